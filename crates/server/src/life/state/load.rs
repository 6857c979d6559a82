//! The start: the state that a predecessor left is read, checked as a whole, and used up.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crore_broker::snapshot::{
    BLOCK_HEAD_BYTES, Head, PREAMBLE_BYTES, block_bytes, check_block, check_preamble,
};
use crore_broker::{Now, Restored, World};

use super::files::{Name, SET_ASIDE, prepare, sync};

/// The state that a predecessor left.
pub struct Loaded {
    directory: PathBuf,
    homes: Vec<Home>,
}

/// A file, behind its first block.
struct Home {
    path: PathBuf,
    head: Head,
    rest: BufReader<File>,
}

/// Looks for the state that a predecessor with so many homes left in this directory.
///
/// # Errors
/// When the directory cannot be used. Files in it that cannot be read are no error: they are set aside.
pub fn load(directory: &Path, homes: usize) -> anyhow::Result<Option<Loaded>> {
    prepare(directory)?;
    for name in [Name::Part, Name::Used] {
        // Left by a server that did not come to the end of its stop or its start.
        for path in name.all(directory)? {
            fs::remove_file(path)?;
        }
    }
    if Name::State.all(directory)?.is_empty() {
        return Ok(None);
    }
    match heads(directory, homes) {
        Ok(homes) => Ok(Some(Loaded {
            directory: directory.to_path_buf(),
            homes,
        })),
        Err(why) => {
            set_aside(directory, &why)?;
            Ok(None)
        }
    }
}

impl Loaded {
    /// The life of the logs, and what keys the hashes.
    pub fn epoch_and_seed(&self) -> (u32, u64) {
        let head = &self.homes[0].head;
        (head.epoch, head.seed)
    }

    /// Reads it for this world, by home; nothing when it is damaged, and then it is set aside.
    ///
    /// # Errors
    /// When the files can be neither used up nor set aside.
    pub fn restore(self, world: &Arc<World>, now: Now) -> anyhow::Result<Option<Used>> {
        let read = std::thread::scope(|scope| {
            let read = |home: Home| {
                let what = home.path.display().to_string();
                let restored = restore(home, world, now);
                restored.map_err(|why| format!("{what}: {why}"))
            };
            let threads: Vec<_> = self
                .homes
                .into_iter()
                .map(|home| scope.spawn(move || read(home)))
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

/// Opens all files; they must be those of one stop of a server with as many homes.
fn heads(directory: &Path, homes: usize) -> Result<Vec<Home>, String> {
    let found = Name::State.all(directory).map_err(|e| e.to_string())?;
    let mut opened = Vec::new();
    for path in &found {
        let home = open(path).map_err(|why| format!("{}: {why}", path.display()))?;
        opened.push(home);
    }
    let first = opened[0].head;
    if usize::from(first.homes) != homes {
        return Err(format!(
            "it was left by a server with {} homes (shards, at most one for each core), and this one has {homes}",
            first.homes
        ));
    }
    opened.sort_by_key(|home| home.head.home);
    let alike = |(number, home): (usize, &Home)| {
        let head = Head {
            home: number as u16,
            ..first
        };
        home.head == head
    };
    if opened.len() != homes || !opened.iter().enumerate().all(alike) {
        return Err("its files are not all of one stop".to_string());
    }
    Ok(opened)
}

fn open(path: &Path) -> Result<Home, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let mut rest = BufReader::new(file);
    let mut preamble = [0; PREAMBLE_BYTES];
    let short = |_| "it is not whole".to_string();
    rest.read_exact(&mut preamble).map_err(short)?;
    check_preamble(&preamble).map_err(|why| why.to_string())?;
    let mut block = Vec::new();
    read_block(&mut rest, 0, &mut block)?;
    let head = Head::read(&block).map_err(|why| why.to_string())?;
    Ok(Home {
        path: path.to_path_buf(),
        head,
        rest,
    })
}

fn restore(home: Home, world: &Arc<World>, now: Now) -> Result<Restored, String> {
    let Home { head, mut rest, .. } = home;
    let mut restored = Restored::new(world.clone(), &head, now);
    let mut block = Vec::new();
    let mut number = 1;
    while read_block(&mut rest, number, &mut block)? {
        restored.take(&block).map_err(|why| why.to_string())?;
        number += 1;
    }
    restored.finish().map_err(|why| why.to_string())
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
