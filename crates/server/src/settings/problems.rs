//! Collects the faults of settings, so that one run reports them all.

use std::path::PathBuf;

use crore_wire::topic::suggested_filter;

use super::units::format_size;

/// A hint for a topic or filter with the wildcards of other servers. Such a name is valid, but matches only the topic of that name.
pub fn foreign_wildcards(name: &str) -> Option<String> {
    let suggested = suggested_filter(name.as_bytes())?;
    // An author who writes `*` may mean one level, or all levels below.
    let prefix = suggested.strip_suffix('+');
    let or_all_below = prefix.map_or_else(String::new, |prefix| {
        format!(" (any one level) or '{prefix}#' (all levels that follow)")
    });
    Some(format!(
        "`*` and `>` are no wildcards in '{name}'; topics match '{suggested}'{or_all_below}"
    ))
}

/// A size as text, with a unit if the size is a whole number of that unit.
pub fn size_text(bytes: usize) -> String {
    format_size(bytes).unwrap_or_else(|| bytes.to_string())
}

/// A faulty setting.
#[derive(Debug)]
pub struct Problem {
    /// The path of the setting, such as `limits.topic_bytes` or `rule[2].match` (counted from 1).
    pub path: String,
    /// The fault and the remedy.
    pub message: String,
    /// Whether the fault is in the key, not in the value.
    pub is_in_key: bool,
}

/// The problems that were found so far.
#[derive(Default)]
pub struct Problems {
    /// In the order in which they were found.
    pub list: Vec<Problem>,
    /// The folder of the settings file, to which paths in it are relative.
    pub folder: PathBuf,
}

impl Problems {
    /// Reports a fault of the value at `path`.
    pub fn fail(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.list.push(Problem {
            path: path.into(),
            message: message.into(),
            is_in_key: false,
        });
    }

    /// Reports a fault of the key at `path`.
    pub fn fail_key(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.fail(path, message);
        self.list.last_mut().expect("it was just added").is_in_key = true;
    }

    /// Checks that the values of a list are hosts in the form of the header `Host`.
    pub fn check_hosts(&mut self, path: &str, hosts: &[String]) {
        for (index, host) in hosts.iter().enumerate() {
            let is_text = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic());
            if !is_text || host.contains('/') {
                let message = format!(
                    "{host:?} is not a host; write it as browsers do, such as \"push.example.com\" or \"10.0.0.1:8801\""
                );
                self.fail(format!("{path}[{}]", index + 1), message);
            }
        }
    }

    /// Checks that the value is at least `minimum`, the value of the setting `other`.
    pub fn check_at_least(&mut self, path: &str, value: usize, other: &str, minimum: usize) {
        if value < minimum {
            self.fail(
                path,
                format!(
                    "{} is less than {other} ({}); raise this or lower {other}",
                    size_text(value),
                    size_text(minimum)
                ),
            );
        }
    }
}
