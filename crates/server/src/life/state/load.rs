//! The start: the state that a predecessor left is read, checked as a whole, and used up.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crore_broker::snapshot::{
    BLOCK_HEAD_BYTES, FORM, Head, PREAMBLE_BYTES, block_bytes, check_block, form_of,
};
use crore_broker::{Now, Placement, Restored, ShardId, World};

use super::files::{Name, SET_ASIDE, prepare, sync};

/// The state that a predecessor left.
pub struct Loaded {
    directory: PathBuf,
    snapshots: Vec<Snapshot>,
}

/// The file of a home.
struct Snapshot {
    path: PathBuf,
    head: Head,
}

/// Looks for the state that a predecessor left in this directory.
///
/// # Errors
/// When the directory cannot be used, or another version wrote its files: the operator chooses whether to start that version again or to
/// begin anew. Damaged files are no error: they are set aside.
pub fn load(directory: &Path) -> anyhow::Result<Option<Loaded>> {
    prepare(directory)?;
    for name in [Name::Part, Name::Used] {
        // Left by a server that did not come to the end of its stop or its start.
        for path in name.all(directory)? {
            fs::remove_file(path)?;
        }
    }
    let found = Name::State.all(directory)?;
    if found.is_empty() {
        return Ok(None);
    }
    for path in &found {
        check_version(path)?;
    }
    match snapshots(found) {
        Ok(snapshots) => Ok(Some(Loaded {
            directory: directory.to_path_buf(),
            snapshots,
        })),
        Err(why) => {
            set_aside(directory, &why)?;
            Ok(None)
        }
    }
}

impl Loaded {
    /// What all its files have in common: the epoch, the seed, and the number of partitions.
    pub fn head(&self) -> &Head {
        &self.snapshots[0].head
    }

    /// Reads it for this world, by home; nothing when it is damaged, and then it is set aside.
    ///
    /// # Errors
    /// When the files can be neither used up nor set aside.
    pub fn restore(self, world: &Arc<World>, now: Now) -> anyhow::Result<Option<Used>> {
        let snapshots = &self.snapshots;
        let read = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..world.homes)
                .map(|home| scope.spawn(move || restore(home, snapshots, world, now)))
                .collect();
            let results = threads.into_iter().map(|thread| {
                let result = thread.join();
                result.unwrap_or_else(|_| Err("the reader failed".to_string()))
            });
            results.collect::<Result<Vec<_>, _>>()
        });
        match read {
            Ok(restored) => {
                rename_all(&self.directory, Name::State, Name::Used)?;
                tracing::info!(
                    directory = %self.directory.display(),
                    homes = restored.len(),
                    homes_before = self.snapshots.len(),
                    partitions = world.partitions,
                    "going on with what the last server left"
                );
                Ok(Some(Used {
                    directory: self.directory,
                    restored,
                }))
            }
            Err(why) => {
                set_aside(&self.directory, &why)?;
                Ok(None)
            }
        }
    }
}

/// The state that was read; its files wait until the start has succeeded.
pub struct Used {
    directory: PathBuf,
    restored: Vec<Restored>,
}

impl Used {
    /// Takes the state that was read, by home.
    pub fn part(self) -> (VecDeque<Restored>, Ticket) {
        (self.restored.into(), Ticket(Some(self.directory)))
    }
}

/// The files of a start that is under way. Dropped, they wait again for the next one.
pub struct Ticket(Option<PathBuf>);

impl Ticket {
    /// The start has succeeded, and no client has been served yet that could be told something else after a crash.
    ///
    /// # Errors
    /// When a file cannot be removed.
    pub fn used_up(mut self) -> anyhow::Result<()> {
        if let Some(directory) = self.0.take() {
            for path in Name::Used.all(&directory)? {
                fs::remove_file(path)?;
            }
            sync(&directory)?;
        }
        Ok(())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(directory) = &self.0
            && let Err(error) = rename_all(directory, Name::Used, Name::State)
        {
            tracing::error!(%error, "what the last server left cannot be kept for the next start");
        }
    }
}

fn rename_all(directory: &Path, from: Name, to: Name) -> anyhow::Result<()> {
    for path in from.all(directory)? {
        fs::rename(&path, path.with_extension(to.extension()))?;
    }
    Ok(sync(directory)?)
}

/// Keeps files that cannot be used for the operator to look at, and replaces those that were set aside before.
fn set_aside(directory: &Path, why: &str) -> anyhow::Result<()> {
    let aside = directory.join(SET_ASIDE);
    tracing::error!(
        "state.directory: {why}; the files are set aside in {}, logs and sessions begin anew, and positions of before are told a gap",
        aside.display()
    );
    if aside.exists() {
        fs::remove_dir_all(&aside)?;
    }
    fs::create_dir(&aside)?;
    for path in Name::State.all(directory)? {
        let name = path.file_name().expect("it was listed by its name");
        fs::rename(&path, aside.join(name))?;
    }
    Ok(sync(directory)?)
}

/// Looks at all files; they must be those of one stop.
fn snapshots(found: Vec<PathBuf>) -> Result<Vec<Snapshot>, String> {
    let mut all = Vec::new();
    for path in found {
        let opened = open(&path).map_err(|why| format!("{}: {why}", path.display()))?;
        let (head, _) = opened;
        all.push(Snapshot { path, head });
    }
    let head = all[0].head;
    all.sort_by_key(|snapshot| snapshot.head.home);
    let alike = |(home, it): (ShardId, &Snapshot)| it.head == Head { home, ..head };
    if all.len() != usize::from(head.homes) || !(0..).zip(&all).all(alike) {
        return Err("its files are not all of one stop".to_string());
    }
    Ok(all)
}

/// Looks at a file's version alone: whether it is whole is looked at later.
///
/// # Errors
/// When another version has written it.
fn check_version(path: &Path) -> anyhow::Result<()> {
    let mut preamble = [0; PREAMBLE_BYTES];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut preamble));
    match read.is_ok().then(|| form_of(&preamble)) {
        Some(Ok(version)) if version != FORM => anyhow::bail!(
            "state.directory: {} has version {version} of the state, and this crore reads version {FORM} alone; \
             start the crore that wrote it, or move the files away to begin anew: clients with positions of before are then told a gap",
            path.display()
        ),
        _ => Ok(()),
    }
}

/// Opens a file and reads its first block; the others follow.
fn open(path: &Path) -> Result<(Head, BufReader<File>), String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let mut rest = BufReader::new(file);
    let mut preamble = [0; PREAMBLE_BYTES];
    let short = |_| "it is not whole".to_string();
    rest.read_exact(&mut preamble).map_err(short)?;
    if form_of(&preamble).map_err(|why| why.to_string())? != FORM {
        return Err("another version has written it".to_string());
    }
    let mut block = Vec::new();
    read_block(&mut rest, 0, &mut block)?;
    let head = Head::read(&block).map_err(|why| why.to_string())?;
    Ok((head, rest))
}

/// Reads what belongs to this home now, from the files of all homes that had a part of it.
fn restore(
    home: ShardId,
    snapshots: &[Snapshot],
    world: &Arc<World>,
    now: Now,
) -> Result<Restored, String> {
    let mut restored = Restored::new(world.clone(), home, now);
    for Snapshot { path, head, .. } in snapshots {
        let before = Placement::new(head.partitions, head.homes);
        let mut heirs = world.placement().heirs(before, head.home);
        if heirs.any(|heir| heir == home) {
            let read = read_into(&mut restored, path);
            read.map_err(|why| format!("{}: {why}", path.display()))?;
        }
    }
    restored.finish().map_err(|why| why.to_string())
}

fn read_into(restored: &mut Restored, path: &Path) -> Result<(), String> {
    let (head, mut rest) = open(path)?;
    restored.begin(&head).map_err(|why| why.to_string())?;
    let mut block = Vec::new();
    let mut number = 1;
    while read_block(&mut rest, number, &mut block)? {
        restored.take(&block).map_err(|why| why.to_string())?;
        number += 1;
    }
    restored.end().map_err(|why| why.to_string())
}

/// False at the end of the file.
fn read_block(from: &mut impl Read, number: u64, block: &mut Vec<u8>) -> Result<bool, String> {
    let mut head = [0; BLOCK_HEAD_BYTES];
    let mut filled = 0;
    while filled < head.len() {
        match from.read(&mut head[filled..]) {
            Ok(0) if filled == 0 => return Ok(false),
            Ok(0) => return Err("it is not whole".to_string()),
            Ok(read) => filled += read,
            Err(error) => return Err(error.to_string()),
        }
    }
    let bytes = block_bytes(&head).map_err(|why| why.to_string())?;
    block.clear();
    let read = from.take(bytes as u64).read_to_end(block);
    let read = read.map_err(|error| error.to_string())?;
    if read < bytes {
        return Err("it is not whole".to_string());
    }
    check_block(&head, number, block).map_err(|why| why.to_string())?;
    Ok(true)
}
