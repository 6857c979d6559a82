//! Faults of settings: found section by section, told all at once.

use std::path::PathBuf;

use crore_wire::topic::meant_filter;

use super::units::format_size;

/// Of a topic or filter with the wildcards of other servers, what to write. It is valid as it is, and matches topics of this very name only.
pub fn foreign_wildcards(name: &str) -> Option<String> {
    let meant = meant_filter(name.as_bytes())?;
    // An author who writes `*` may mean one level, or all below.
    let all_below = meant.strip_suffix('+');
    let or_all_below = all_below.map_or_else(String::new, |begin| {
        format!(" (any one level) or '{begin}#' (all levels that follow)")
    });
    Some(format!(
        "`*` and `>` are no wildcards in '{name}'; topics match '{meant}'{or_all_below}"
    ))
}

/// A size as a person writes it.
pub fn size(bytes: usize) -> String {
    format_size(bytes).unwrap_or_else(|| bytes.to_string())
}

/// A setting that cannot stay as it is.
#[derive(Debug)]
pub struct Problem {
    /// Where, as `limits.topic_bytes` or `rule[2].match` (counted from 1).
    pub path: String,
    /// The fault, and what to write instead.
    pub what: String,
    /// Whether it is the key that is wrong.
    pub of_key: bool,
}

/// Collects problems.
#[derive(Default)]
pub struct Check {
    /// All that were found, in the order of the file's sections.
    pub problems: Vec<Problem>,
    /// Where relative paths begin: the folder of the settings file.
    pub folder: PathBuf,
}

impl Check {
    /// Something is wrong with the value at `path`.
    pub fn fail(&mut self, path: impl Into<String>, what: impl Into<String>) {
        self.problems.push(Problem {
            path: path.into(),
            what: what.into(),
            of_key: false,
        });
    }

    /// The key at `path` is wrong itself.
    pub fn fail_key(&mut self, path: impl Into<String>, what: impl Into<String>) {
        self.fail(path, what);
        self.problems.last_mut().expect("it was just told").of_key = true;
    }

    /// The values of a list must be hosts as a `Host` field has them.
    pub fn hosts(&mut self, path: &str, hosts: &[String]) {
        for (index, host) in hosts.iter().enumerate() {
            let plain = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic());
            if !plain || host.contains('/') {
                let what = format!(
                    "{host:?} is not a host; write it as browsers do, such as \"push.example.com\" or \"10.0.0.1:8801\""
                );
                self.fail(format!("{path}[{}]", index + 1), what);
            }
        }
    }

    /// The value must be as much as another setting's.
    pub fn at_least(&mut self, path: &str, value: usize, other: &str, least: usize) {
        if value < least {
            self.fail(
                path,
                format!(
                    "{} is less than {other} ({}); raise this or lower {other}",
                    size(value),
                    size(least)
                ),
            );
        }
    }
}
