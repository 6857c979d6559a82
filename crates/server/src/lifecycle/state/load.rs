//! Loads the newest base (the snapshot that the log continues): opens its documents and checks their heads. Then each home (a shard that
//! keeps topics) reads its part of the documents.
//!
//! A *document* is the snapshot of one home or partition.

use std::fs::{self, File};
use std::io::{self, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crore_broker::snapshot::{FORMAT, Head, PREAMBLE_BYTES, format_of};
use crore_broker::{Now, PartitionId, Placement, Restored, Shard, ShardId, World};

use super::files::{Base, SET_ASIDE, prepare, remove_bases, sync};
use crate::lifecycle::checkpoint::document::{self, Unusable};

/// The documents of a base.
pub struct Documents {
    pub base: Base,
    /// Whether the state outside of the log is valid too, because a stop wrote the base.
    pub clean: bool,
    /// Whether positions from before this start are invalid, because the log lacks messages that clients have already received.
    pub voids_positions: bool,
    documents: Vec<Document>,
}

/// The document of a home or partition.
struct Document {
    path: PathBuf,
    head: Head,
}

impl From<Unusable> for anyhow::Error {
    fn from(reason: Unusable) -> anyhow::Error {
        match reason {
            Unusable::Damaged(reason) => anyhow::Error::msg(reason),
            Unusable::Unreadable(path, error) => unreadable(&path, &error),
        }
    }
}

/// Finds the newest usable base in this directory and removes the others. Creates a missing directory. Also returns the number of
/// partitions that the files of unusable bases name, if one can be read.
///
/// # Errors
/// The directory or a file in it cannot be read. Or another version wrote the files: the operator must choose whether to start that version
/// again or to begin anew. Damaged files are no error: they are set aside.
pub fn newest(directory: &Path) -> anyhow::Result<(Option<Documents>, Option<PartitionId>)> {
    prepare(directory)?;
    let mut partitions = None;
    let mut bases = Base::all(directory)?;
    while let Some(base) = bases.pop() {
        // A base that is not a directory has no documents, and is set aside.
        let paths = base.documents(directory).unwrap_or_default();
        paths.iter().try_for_each(|path| check_version(path))?;
        match Documents::of(directory, base) {
            Ok(documents) => {
                remove_bases(directory, Some(base))?;
                return Ok((Some(documents), partitions));
            }
            Err(Unusable::Damaged(reason)) => {
                let heads = paths.iter().filter_map(|path| open(path).ok());
                partitions = partitions.or(heads.map(|(head, _)| head.partitions).next());
                set_aside(directory, base, &reason)?;
            }
            Err(reason @ Unusable::Unreadable(..)) => return Err(reason.into()),
        }
    }
    remove_bases(directory, None)?;
    Ok((None, partitions))
}

fn unreadable(path: &Path, error: &io::Error) -> anyhow::Error {
    anyhow::anyhow!(
        "state.directory: {} cannot be read: {error}; nothing was changed: make it readable for the server's user, or move it away to begin \
         anew: clients with positions of before are then told a gap",
        path.display()
    )
}

impl Documents {
    /// Opens the documents of this base.
    ///
    /// # Errors
    /// The documents cannot be used.
    pub fn of(directory: &Path, base: Base) -> Result<Documents, Unusable> {
        let found = base.documents(directory);
        let found =
            found.map_err(|error| Unusable::from_read_error(&base.path(directory), error))?;
        Ok(Documents {
            base,
            clean: base.is_clean(directory),
            voids_positions: false,
            documents: documents(found)?,
        })
    }

    /// Reads the part of this home from all documents that may have one.
    ///
    /// # Errors
    /// The documents cannot be used.
    pub fn read(
        &self,
        mut restored: Restored,
        placement: Placement,
        home: ShardId,
    ) -> Result<Restored, Unusable> {
        for Document { path, head, .. } in &self.documents {
            let before = Placement::new(head.partitions, head.homes);
            let mut heirs = placement.heirs(before, head.home);
            if heirs.any(|heir| heir == home) {
                document::read_into(&mut restored, &mut buffered(path)?, path)?;
            }
        }
        let finished = restored.finish();
        finished.map_err(|reason| Unusable::Damaged(reason.to_string()))
    }

    /// The values that all documents have in common: the epoch, the seed, and the number of partitions.
    pub fn head(&self) -> &Head {
        &self.documents[0].head
    }

    /// The number of homes that wrote the documents.
    pub fn homes(&self) -> usize {
        self.documents.len()
    }
}

/// Restores the shard of a home. Any document may have a part of the home, because the number of homes may have changed.
///
/// # Errors
/// The documents cannot be used.
pub fn restore(
    home: ShardId,
    documents: Option<&Documents>,
    world: &Arc<World>,
    now: Now,
) -> Result<Shard, Unusable> {
    let mut shard = Shard::new(home, world.clone(), now);
    let Some(documents) = documents else {
        shard.begin_recovery();
        return Ok(shard);
    };
    let mut restored = Restored::new(world.clone(), home, now);
    if !documents.clean {
        restored = restored.without_local_state();
    }
    if documents.voids_positions {
        restored = restored.with_new_epoch();
    }
    shard.adopt(documents.read(restored, world.placement(), home)?);
    Ok(shard)
}

/// Moves an unusable base to a directory where the operator can examine it. It replaces the base that was there.
///
/// # Errors
/// The errors of the file system.
pub fn set_aside(directory: &Path, base: Base, reason: &str) -> anyhow::Result<()> {
    let aside = directory.join(SET_ASIDE);
    tracing::error!(
        "state.directory: {reason}; the files are set aside in {}, what they hold begins anew, and positions of before are told a gap",
        aside.display()
    );
    match fs::remove_dir_all(&aside) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => fs::remove_file(&aside)?,
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    fs::rename(base.path(directory), aside)?;
    Ok(sync(directory)?)
}

/// Opens all files and checks that they form one snapshot.
fn documents(found: Vec<PathBuf>) -> Result<Vec<Document>, Unusable> {
    let mut all = Vec::new();
    for path in found {
        let (head, _) = open(&path)?;
        all.push(Document { path, head });
    }
    all.sort_by_key(|document| document.head.home);
    let damaged = |reason: &str| Unusable::Damaged(reason.to_string());
    let head = all.first().ok_or_else(|| damaged("it has no documents"))?;
    let head = head.head;
    let alike = |(home, it): (ShardId, &Document)| it.head == Head { home, ..head };
    if all.len() != usize::from(head.homes) || !(0..).zip(&all).all(alike) {
        return Err(damaged("its files are not all of one stop"));
    }
    Ok(all)
}

/// Checks only the version of a file. Damage is found later.
///
/// # Errors
/// Another version has written the file, or it cannot be read.
fn check_version(path: &Path) -> anyhow::Result<()> {
    let mut preamble = [0; PREAMBLE_BYTES];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut preamble));
    if let Err(error) = &read
        && error.kind() != io::ErrorKind::UnexpectedEof
    {
        return Err(unreadable(path, error));
    }
    match read.is_ok().then(|| format_of(&preamble)) {
        Some(Ok(version)) if version != FORMAT => anyhow::bail!(
            "state.directory: {} has version {version} of the state, and this crore reads version {FORMAT} alone; \
             start the crore that wrote it, or move the files away to begin anew: clients with positions of before are then told a gap",
            path.display()
        ),
        _ => Ok(()),
    }
}

/// Opens a file and reads its head. The reader continues with the blocks.
fn open(path: &Path) -> Result<(Head, BufReader<File>), Unusable> {
    let mut rest = buffered(path)?;
    let head = document::read_head(&mut rest, path)?;
    Ok((head, rest))
}

fn buffered(path: &Path) -> Result<BufReader<File>, Unusable> {
    let file = File::open(path).map_err(|error| Unusable::from_read_error(path, error))?;
    Ok(BufReader::new(file))
}

/// Reads a document to its end and verifies the checksum of every block, but not the contents. Returns its size in bytes.
///
/// # Errors
/// The document cannot be used.
pub fn verify(path: &Path) -> Result<u64, Unusable> {
    let (_, mut rest) = open(path)?;
    let (mut number, mut block) = (1, Vec::new());
    while document::read_block(&mut rest, path, number, &mut block)? {
        number += 1;
    }
    let file = rest.into_inner().metadata();
    file.map(|it| it.len())
        .map_err(|error| Unusable::from_read_error(path, error))
}
