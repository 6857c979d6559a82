//! Faults of settings: found section by section, told all at once.

use std::path::PathBuf;

use super::units::format_size;

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
