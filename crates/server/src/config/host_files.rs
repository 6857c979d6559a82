//! Reads files of a host, such as those in `/proc` and `/sys`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The files of a host. In tests, the root directory is not `/`.
pub struct HostFiles<'a> {
    pub root: &'a Path,
}

impl HostFiles<'_> {
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// A file's text, if it can be read.
    pub fn text(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path(name)).ok()
    }

    /// The number in a file that contains only a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.trim().parse().ok()
    }

    /// The names in a directory, sorted.
    pub fn names(&self, directory: &str) -> BTreeSet<String> {
        let entries = fs::read_dir(self.path(directory));
        let entries = entries.into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    }

    /// A kernel setting, with single spaces between its words.
    pub fn sysctl(&self, name: &str) -> Option<String> {
        let text = self.text(&format!("proc/sys/{}", name.replace('.', "/")))?;
        let words: Vec<&str> = text.split_whitespace().collect();
        Some(words.join(" "))
    }
}

/// The rest of the first line that begins with `name`.
pub fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line[name.len()..].trim())
}
