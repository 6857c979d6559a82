//! The files of the workspace in memory, by path relative to its root.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::lexer;

/// The text files, without build products, hidden directories and installed packages.
#[derive(Clone, Default)]
pub struct Tree(BTreeMap<String, Rc<File>>);

struct File {
    text: String,
    /// The result of [`lexer::code`], computed at its first use.
    code: OnceCell<String>,
}

impl Tree {
    pub fn read() -> Tree {
        let mut tree = Tree::default();
        tree.collect(root());
        tree
    }

    /// Appends `text` to a file, or creates it. If `text` begins with `=`, the rest replaces the file.
    pub fn plant(&mut self, path: &str, text: &str) {
        let text = match text.strip_prefix('=') {
            Some(whole) => whole.to_string(),
            None => [self.get(path).unwrap_or_default(), text].concat(),
        };
        self.add(path, text);
    }

    fn add(&mut self, path: &str, text: String) {
        let code = OnceCell::new();
        self.0
            .insert(path.to_string(), Rc::new(File { text, code }));
    }

    pub fn get(&self, path: &str) -> Option<&str> {
        self.0.get(path).map(|file| file.text.as_str())
    }

    pub fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(path, file)| (path.as_str(), file.text.as_str()))
    }

    pub fn sources(&self) -> impl Iterator<Item = (&str, &str)> {
        self.all().filter(|(path, _)| path.ends_with(".rs"))
    }

    /// The path of each source file, and its text without comments and literals ([`lexer::code`]).
    pub fn codes(&self) -> impl Iterator<Item = (&str, &str)> {
        let sources = self.0.iter().filter(|(path, _)| path.ends_with(".rs"));
        sources.map(|(path, file)| {
            let code = file.code.get_or_init(|| lexer::code(&file.text));
            (path.as_str(), code.as_str())
        })
    }

    /// The names of the crates below `crates/`.
    pub fn crates(&self) -> BTreeSet<&str> {
        let parts = self
            .sources()
            .filter_map(|(path, _)| path.strip_prefix("crates/")?.split_once("/src/"));
        parts.map(|(name, _)| name).collect()
    }

    /// The directory and the parsed manifest of each member.
    pub fn manifests(&self) -> Vec<(&str, toml::Table)> {
        let own = self
            .all()
            .filter_map(|(path, text)| Some((path.strip_suffix("/Cargo.toml")?, text)));
        own.map(|(directory, text)| (directory, text.parse().expect("a manifest is TOML")))
            .collect()
    }

    fn collect(&mut self, directory: &Path) {
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
                    self.collect(&path);
                }
            } else if ["rs", "toml", "md", "py", "mjs", "js", "html"]
                .iter()
                .any(|end| name.ends_with(&format!(".{end}")))
            {
                // Another process may be writing this file, so that it is gone or incomplete. The next run checks it.
                if let Ok(text) = fs::read_to_string(&path) {
                    let relative = path.strip_prefix(root()).expect("below the root");
                    self.add(&relative.to_string_lossy(), text);
                }
            }
        }
    }
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the workspace")
}
