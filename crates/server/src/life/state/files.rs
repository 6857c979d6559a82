//! The files of `state.directory`: their names, and what makes changes of them last.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// Where files go that cannot be used; what lay there before is removed.
pub const SET_ASIDE: &str = "set-aside";

/// How a file is named while it is what.
#[derive(Clone, Copy)]
pub enum Name {
    /// It is being written.
    Part,
    /// It waits for the next start.
    State,
    /// The start that uses it is under way.
    Used,
}

impl Name {
    /// All of them.
    pub const ALL: [Name; 3] = [Name::Part, Name::State, Name::Used];

    /// How the names end.
    pub fn extension(self) -> &'static str {
        match self {
            Name::Part => "part",
            Name::State => "state",
            Name::Used => "used",
        }
    }

    /// The file of a home.
    pub fn of(self, directory: &Path, home: usize) -> PathBuf {
        directory.join(format!("home-{home}.{}", self.extension()))
    }

    /// All files of homes that have this name.
    pub fn all(self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let ours = name.and_then(|name| name.strip_prefix("home-"));
            let number = ours.and_then(|name| name.strip_suffix(self.extension()));
            if number.is_some_and(|number| number.trim_end_matches('.').parse::<u32>().is_ok()) {
                found.push(path);
            }
        }
        Ok(found)
    }
}

/// Makes the directory, readable by this user alone, and shows that it can be written.
pub fn prepare(directory: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory);
    let probe = Name::Part.of(directory, 0);
    let tried = made
        .and_then(|()| fs::File::create(&probe))
        .and_then(|_| fs::remove_file(&probe));
    tried.with_context(|| {
        format!(
            "state.directory: {} cannot be written; name a directory that belongs to the server's user, or leave the setting out",
            directory.display()
        )
    })
}

/// Makes what happened to a directory's names last.
pub fn sync(directory: &Path) -> io::Result<()> {
    fs::File::open(directory)?.sync_all()
}
