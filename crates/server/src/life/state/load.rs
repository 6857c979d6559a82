//! The documents of the newest base: looked at as a whole, then read home by home.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crore_broker::snapshot::{
    BLOCK_HEAD_BYTES, FORM, Head, PREAMBLE_BYTES, block_bytes, check_block, form_of,
};
use crore_broker::{Now, Placement, Restored, Shard, ShardId, World};

use super::files::{Base, SET_ASIDE, prepare, remove_bases, sync};

/// The documents of a base.
pub struct Documents {
    pub base: Base,
    /// Whether what is no part of the log is valid too.
    pub clean: bool,
    documents: Vec<Document>,
}

/// The file of a home.
struct Document {
    path: PathBuf,
    head: Head,
}

/// Looks for the newest base in this directory that can be used, and removes the others. The directory is made if it is not there.
///
/// # Errors
/// When the directory or a file in it cannot be read, or another version wrote its files: the operator chooses whether to start that version
/// again or to begin anew. Damaged files are no error: they are set aside.
pub fn newest(directory: &Path) -> anyhow::Result<Option<Documents>> {
    prepare(directory)?;
    let mut bases = Base::all(directory)?;
    while let Some(base) = bases.pop() {
        match base.documents(directory) {
            Ok(paths) => paths.iter().try_for_each(|path| check_version(path))?,
            // It is set aside.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {}
            Err(error) => return Err(unreadable(&base.path(directory), &error)),
        }
        match Documents::of(directory, base) {
            Ok(documents) => {
                remove_bases(directory, Some(base))?;
                return Ok(Some(documents));
            }
            Err(why) => set_aside(directory, base, &why)?,
        }
    }
    remove_bases(directory, None)?;
    Ok(None)
}

fn unreadable(path: &Path, error: &io::Error) -> anyhow::Error {
    anyhow::anyhow!(
        "state.directory: {} cannot be read: {error}; nothing was changed: make it readable for the server's user, or move it away to begin \
         anew: clients with positions of before are then told a gap",
        path.display()
    )
}

impl Documents {
    /// Those of this base.
    ///
    /// # Errors
    /// Why they cannot be used.
    pub fn of(directory: &Path, base: Base) -> Result<Documents, String> {
        let found = base.documents(directory);
        let found =
            found.map_err(|error| format!("{}: {error}", base.path(directory).display()))?;
        Ok(Documents {
            base,
            clean: base.is_clean(directory),
            documents: documents(found)?,
        })
    }

    /// Reads what belongs to this home.
    ///
    /// # Errors
    /// Why they are damaged.
    pub fn read(
        &self,
        mut restored: Restored,
        placement: Placement,
        home: ShardId,
    ) -> Result<Restored, String> {
        for Document { path, head, .. } in &self.documents {
            let before = Placement::new(head.partitions, head.homes);
            let mut heirs = placement.heirs(before, head.home);
            if heirs.any(|heir| heir == home) {
                let read = read_into(&mut restored, path);
                read.map_err(|why| format!("{}: {why}", path.display()))?;
            }
        }
        restored.finish().map_err(|why| why.to_string())
    }

    /// What all of them have in common: the epoch, the seed, and the number of partitions.
    pub fn head(&self) -> &Head {
        &self.documents[0].head
    }

    /// How many there are.
    pub fn homes(&self) -> usize {
        self.documents.len()
    }
}

/// The shard of a home, with what belongs to it of the documents of all homes that had a part of it.
///
/// # Errors
/// Why the documents are damaged.
pub fn restore(
    home: ShardId,
    documents: Option<&Documents>,
    world: &Arc<World>,
    now: Now,
) -> Result<Shard, String> {
    let mut shard = Shard::new(home, world.clone(), now);
    let Some(documents) = documents else {
        return Ok(shard);
    };
    let mut restored = Restored::new(world.clone(), home, now);
    if !documents.clean {
        restored = restored.without_local_state();
    }
    shard.adopt(documents.read(restored, world.placement(), home)?);
    Ok(shard)
}

/// Keeps files that cannot be used for the operator to look at, and replaces those that were set aside before.
///
/// # Errors
/// Those of the file system.
pub fn set_aside(directory: &Path, base: Base, why: &str) -> anyhow::Result<()> {
    let aside = directory.join(SET_ASIDE);
    tracing::error!(
        "state.directory: {why}; the files are set aside in {}, what they hold begins anew, and positions of before are told a gap",
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

/// Looks at all files; they must be those of one moment.
fn documents(found: Vec<PathBuf>) -> Result<Vec<Document>, String> {
    let mut all = Vec::new();
    for path in found {
        let opened = open(&path).map_err(|why| format!("{}: {why}", path.display()))?;
        let (head, _) = opened;
        all.push(Document { path, head });
    }
    all.sort_by_key(|document| document.head.home);
    let head = all.first().ok_or("it has no documents")?.head;
    let alike = |(home, it): (ShardId, &Document)| it.head == Head { home, ..head };
    if all.len() != usize::from(head.homes) || !(0..).zip(&all).all(alike) {
        return Err("its files are not all of one stop".to_string());
    }
    Ok(all)
}
/// Looks at a file's version alone: whether it is whole is looked at later.
///
/// # Errors
/// When another version has written it, or it cannot be read.
fn check_version(path: &Path) -> anyhow::Result<()> {
    let mut preamble = [0; PREAMBLE_BYTES];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut preamble));
    if let Err(error) = &read
        && error.kind() != io::ErrorKind::UnexpectedEof
    {
        return Err(unreadable(path, error));
    }
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

/// Reads a document to its end and verifies the checksum of every block. What the blocks say is not looked at. Returns its bytes.
///
/// # Errors
/// Why it is damaged.
pub fn verify(path: &Path) -> Result<u64, String> {
    let (_, mut rest) = open(path)?;
    let (mut number, mut block) = (1, Vec::new());
    while read_block(&mut rest, number, &mut block)? {
        number += 1;
    }
    let file = rest.into_inner().metadata();
    file.map(|it| it.len()).map_err(|error| error.to_string())
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
