//! What a drained server leaves on disk for its successor: one file for each home in `state.directory`.
//!
//! A file is the broker's snapshot, block by block. Invariants: a set of files is whole or counts for nothing; it
//! becomes visible by renames after everything is on disk; it is used once: before the successor serves anybody the files are
//! gone, so that a crash later never brings back what is past. What cannot be used is set aside and said.

mod load;
mod store;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use crore_broker::World;
use crore_net::memory;

use crate::shard_loop::now;

pub use load::Used;
pub use store::store;

/// Where files go that cannot be used; what lay there before is removed.
const SET_ASIDE: &str = "set-aside";

/// How a file is named while it is what.
#[derive(Clone, Copy)]
enum Name {
    /// It is being written.
    Part,
    /// It waits for the next start.
    State,
    /// The start that uses it is under way.
    Used,
}

impl Name {
    const ALL: [Name; 3] = [Name::Part, Name::State, Name::Used];

    fn extension(self) -> &'static str {
        match self {
            Name::Part => "part",
            Name::State => "state",
            Name::Used => "used",
        }
    }

    /// The file of a home.
    fn of(self, directory: &Path, home: usize) -> PathBuf {
        directory.join(format!("home-{home}.{}", self.extension()))
    }

    /// All files of homes that have this name.
    fn all(self, directory: &Path) -> io::Result<Vec<PathBuf>> {
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

/// The world of this start: as the last server left it in `directory`, or a new one. `new_world` makes one of an epoch and
/// a seed.
///
/// # Errors
/// When the directory cannot be used.
pub fn resume(
    directory: Option<&Path>,
    homes: usize,
    new_world: impl Fn(u32, u64) -> Arc<World>,
) -> anyhow::Result<(Arc<World>, Option<Used>)> {
    let found = directory.map(|directory| load::load(directory, homes));
    if let Some(found) = found.transpose()?.flatten() {
        let (epoch, seed) = found.epoch_and_seed();
        let world = new_world(epoch, seed);
        if let Some(used) = found.restore(&world, now(0))? {
            return Ok((world, Some(used)));
        }
    }
    // An epoch of nought would look like none.
    let epoch = memory::random_u64() as u32 | 1;
    Ok((new_world(epoch, memory::random_u64()), None))
}

/// Makes the directory, for nobody but us, and shows that it can be written.
fn prepare(directory: &Path) -> anyhow::Result<()> {
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
fn sync(directory: &Path) -> io::Result<()> {
    fs::File::open(directory)?.sync_all()
}
