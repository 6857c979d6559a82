//! The files of the workspace in memory, by path relative to its root.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Text files only; build products, hidden directories and installed packages are left out.
pub struct Tree(BTreeMap<String, String>);

impl Tree {
    pub fn read() -> Tree {
        let mut files = BTreeMap::new();
        collect(root(), root(), &mut files);
        Tree(files)
    }

    /// Appends to a file, makes it, or with a leading `=` replaces it.
    pub fn plant(&mut self, path: &str, text: &str) {
        let file = self.0.entry(path.to_string()).or_default();
        match text.strip_prefix('=') {
            Some(whole) => *file = whole.to_string(),
            None => file.push_str(text),
        }
    }

    pub fn get(&self, path: &str) -> Option<&str> {
        self.0.get(path).map(String::as_str)
    }

    pub fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }

    pub fn sources(&self) -> impl Iterator<Item = (&str, &str)> {
        self.all().filter(|(path, _)| path.ends_with(".rs"))
    }

    /// The manifests of the members, parsed, by the directory that holds them.
    pub fn manifests(&self) -> Vec<(&str, toml::Table)> {
        let own = self
            .all()
            .filter_map(|(path, text)| Some((path.strip_suffix("/Cargo.toml")?, text)));
        own.map(|(directory, text)| (directory, text.parse().expect("a manifest is TOML")))
            .collect()
    }
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the workspace")
}

fn collect(root: &Path, directory: &Path, files: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(directory).expect("a directory of the workspace") {
        let path: PathBuf = entry.expect("an entry").path();
        let name = path
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        if path.is_dir() {
            let ours = !name.starts_with('.')
                && !["target", "node_modules", "fuzz"].contains(&name.as_str());
            if ours {
                collect(root, &path, files);
            }
        } else if ["rs", "toml", "md", "py", "mjs", "js", "html"]
            .iter()
            .any(|end| name.ends_with(&format!(".{end}")))
        {
            // A file that another process is just writing may be gone or torn; the next run sees it.
            if let Ok(text) = fs::read_to_string(&path) {
                let relative = path.strip_prefix(root).expect("below the root");
                files.insert(relative.to_string_lossy().into_owned(), text);
            }
        }
    }
}
