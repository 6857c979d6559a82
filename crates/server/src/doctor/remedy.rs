//! Changes of the host: steps that a script can hold and `--apply` can take, and those left to the operator.
//!
//! Every step sets a value or replaces a whole file, so that all of them may be taken again. Settings that an earlier run wrote to
//! the file of sysctls stay there unless this run changes them: a host that fits keeps the settings that made it fit.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::Command;
use std::{fmt, fs};

use super::checks::{Check, Fix, State};
use super::host::{Host, SYSCTL_FILE};
use super::tree::sysctl_path;

/// Limits of logins (pam_limits).
const LOGIN_FILE: &str = "/etc/security/limits.d/90-crore.conf";
/// Limits of the service.
const UNIT_FILE: &str = "/etc/systemd/system/crore.service.d/90-limits.conf";
/// Ends a file in the script; no value holds it.
const END: &str = "CRORE_END";

/// All that is to be done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    steps: Vec<Step>,
    /// Lines of the server's settings file.
    pub settings: Vec<String>,
    /// Changes that only the operator can make.
    pub by_hand: Vec<String>,
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    /// Replaces a file.
    Keep { path: &'static str, text: String },
    /// Sets a value of the running kernel.
    Sysctl { name: String, value: String },
    /// Writes to a file of the kernel's.
    Write { path: String, value: String },
    /// Tells systemd of changed files.
    Reload,
}

impl Plan {
    /// The changes that the checks ask for.
    pub fn new(host: &Host, checks: &[Check]) -> Plan {
        let mut plan = Plan::default();
        let mut sysctls = BTreeMap::new();
        let mut descriptors = None;
        let mut writes = Vec::new();
        let bad = |check: &&Check| matches!(check.state, State::Change | State::Advice);
        for check in checks.iter().filter(bad) {
            for fix in &check.fixes {
                match fix {
                    Fix::Sysctl { name, value } => {
                        sysctls.insert((*name).to_string(), (value.clone(), check.why.clone()));
                    }
                    Fix::Descriptors(limit) => descriptors = Some(*limit),
                    Fix::Write { path, value } => writes.push(Step::Write {
                        path: path.clone(),
                        value: value.clone(),
                    }),
                    Fix::Setting(line) => plan.settings.push(line.clone()),
                    Fix::ByHand(text) => plan.by_hand.push(text.clone()),
                }
            }
        }
        if !sysctls.is_empty() {
            plan.sysctls(host, &sysctls);
        }
        if let Some(limit) = descriptors {
            plan.descriptors(host, limit);
        }
        // Last, since a script ends at the first step that fails, and a container's /sys may not be written to.
        plan.steps.extend(writes);
        plan
    }

    /// Whether there is nothing to do for a program.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    fn sysctls(&mut self, host: &Host, wanted: &BTreeMap<String, (String, String)>) {
        let mut text = "# Written by `crore doctor`.\n".to_string();
        for (name, value) in &host.kept {
            if !wanted.contains_key(name) {
                text.push_str(&format!("\n# From an earlier run.\n{name} = {value}\n"));
            }
        }
        for (name, (value, why)) in wanted {
            text.push_str(&format!("\n# {why}\n{name} = {value}\n"));
        }
        self.steps.push(Step::Keep {
            path: SYSCTL_FILE,
            text,
        });
        let sysctls = wanted.iter().map(|(name, (value, _))| Step::Sysctl {
            name: name.clone(),
            value: value.clone(),
        });
        self.steps.extend(sysctls);
    }

    fn descriptors(&mut self, host: &Host, limit: u64) {
        let lines = ["* soft", "* hard", "root soft", "root hard"]
            .map(|whom| format!("{whom} nofile {limit}\n"))
            .concat();
        self.steps.push(Step::Keep {
            path: LOGIN_FILE,
            text: format!("# Written by `crore doctor`: descriptors for each shard, from the next login on.\n{lines}"),
        });
        self.steps.push(Step::Keep {
            path: UNIT_FILE,
            text: format!(
                "# Written by `crore doctor`: descriptors for each shard, from the next start of the service on.\n[Service]\nLimitNOFILE={limit}\n"
            ),
        });
        if host.has_systemd {
            self.steps.push(Step::Reload);
        }
    }

    /// A shell script that takes all steps.
    pub fn script(&self, title: &str) -> String {
        let mut out =
            format!("#!/bin/sh\n# {title}\n# To be run as root; it may be run again.\nset -eu\n");
        for step in &self.steps {
            out.push_str(&format!("\n{step}\n"));
        }
        if !self.settings.is_empty() {
            out.push_str("\n# In the server's settings file:\n");
            self.settings
                .iter()
                .for_each(|line| out.push_str(&format!("#   {line}\n")));
        }
        if !self.by_hand.is_empty() {
            out.push_str("\n# By hand:\n");
            self.by_hand
                .iter()
                .for_each(|text| out.push_str(&format!("#   {text}\n")));
        }
        out
    }

    /// Takes all steps on the host below `root`, showing each before; returns how many failed.
    ///
    /// # Errors
    /// Standard output cannot be written to: nothing is done that cannot be shown.
    pub fn apply(&self, root: &Path) -> io::Result<usize> {
        let mut out = io::stdout().lock();
        let mut failed = 0;
        for step in &self.steps {
            writeln!(out, "{step}")?;
            out.flush()?;
            if let Err(error) = step.take(root) {
                failed += 1;
                writeln!(out, "# failed: {error}")?;
            }
        }
        Ok(failed)
    }
}

impl Step {
    fn take(&self, root: &Path) -> io::Result<()> {
        let below = |path: &str| root.join(path.trim_start_matches('/'));
        match self {
            Step::Keep { path, text } => {
                let path = below(path);
                path.parent().map_or(Ok(()), fs::create_dir_all)?;
                fs::write(path, text)
            }
            Step::Sysctl { name, value } => fs::write(below(&sysctl_path(name)), value),
            Step::Write { path, value } => fs::write(below(path), value),
            // A tree that stands for a host has no daemon.
            Step::Reload if root != Path::new("/") => Ok(()),
            Step::Reload => {
                let status = Command::new("systemctl").arg("daemon-reload").status()?;
                match status.success() {
                    true => Ok(()),
                    false => Err(io::Error::other(status.to_string())),
                }
            }
        }
    }
}

/// The step as a shell takes it.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Keep { path, text } => {
                let directory = path
                    .rsplit_once('/')
                    .map_or("/", |(directory, _)| directory);
                write!(
                    f,
                    "mkdir -p {directory}\ncat > {path} <<'{END}'\n{text}{END}"
                )
            }
            Step::Sysctl { name, value } => write!(f, "sysctl -w {name}='{value}'"),
            Step::Write { path, value } => write!(f, "echo {value} > {path}"),
            Step::Reload => write!(f, "systemctl daemon-reload"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_kept_keeps_what_an_earlier_run_wrote() {
        let mut host = Host::default();
        host.kept.insert("fs.nr_open".to_string(), "7".to_string());
        host.kept.insert("fs.file-max".to_string(), "1".to_string());
        let wanted = ("2".to_string(), "why".to_string());
        let mut plan = Plan::default();
        plan.sysctls(
            &host,
            &BTreeMap::from([("fs.file-max".to_string(), wanted)]),
        );
        let Step::Keep { text, .. } = &plan.steps[0] else {
            panic!("the file comes first");
        };
        assert!(text.contains("\nfs.nr_open = 7\n"), "{text}");
        assert!(text.contains("# why\nfs.file-max = 2\n"), "{text}");
        assert!(!text.contains("fs.file-max = 1"), "{text}");
        assert_eq!(plan.steps.len(), 2, "what was kept is set already");
    }
}
