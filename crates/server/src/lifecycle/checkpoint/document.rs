//! Reads and writes documents. A document is a snapshot as it is stored: in blocks with checksums, of one partition or of all partitions of a home (a
//! shard that keeps topics). On disk a document is a file, in a cluster an object of NATS.

use std::fmt;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crore_broker::snapshot::{
    BLOCK_HEAD_BYTES, FORMAT, Head, PREAMBLE_BYTES, block_bytes, block_head, check_block,
    format_of, preamble,
};
use crore_broker::{Restored, World};
use crore_net::{clock, memory};

/// The reason why a document cannot be used.
#[derive(Debug)]
pub enum Unusable {
    /// The document is damaged, or another version of the program has written it.
    Damaged(String),
    /// The store cannot return the document now. A later attempt may succeed.
    Unreadable(PathBuf, io::Error),
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unusable::Damaged(reason) => f.write_str(reason),
            Unusable::Unreadable(path, error) => write!(f, "{}: {error}", path.display()),
        }
    }
}

impl Unusable {
    /// Turns an error of reading the document with this name into the reason why it cannot be used.
    pub fn from_read_error(name: &Path, error: io::Error) -> Unusable {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Unusable::damaged(name, "it is not whole"),
            io::ErrorKind::NotADirectory | io::ErrorKind::InvalidData => {
                Unusable::damaged(name, error)
            }
            _ => Unusable::Unreadable(name.to_path_buf(), error),
        }
    }

    /// The reason `Damaged` for the document with this name.
    pub fn damaged(name: &Path, reason: impl fmt::Display) -> Unusable {
        Unusable::Damaged(format!("{}: {reason}", name.display()))
    }
}

/// The head of a new document. Its `home` is the first home; for another home the caller changes the head.
pub fn new_head(world: &World) -> Head {
    Head {
        stop_id: memory::random_u64(),
        epoch: world.epoch,
        seed: world.seed,
        partitions: world.partitions,
        homes: world.homes,
        home: 0,
        unix_s: u32::try_from(clock::counted_s()).unwrap_or(u32::MAX),
        wall_s: u32::try_from(clock::unix_s()).unwrap_or(u32::MAX),
    }
}

/// Writes a document block by block.
pub struct DocumentWriter<W> {
    out: W,
    block_count: u64,
    /// Bytes of the blocks written so far, without the blocks' heads.
    pub written_bytes: u64,
}

impl<W: Write> DocumentWriter<W> {
    /// Begins the document: writes its preamble.
    ///
    /// # Errors
    /// The errors of the writer.
    pub fn begin(mut out: W) -> io::Result<DocumentWriter<W>> {
        out.write_all(&preamble())?;
        Ok(DocumentWriter {
            out,
            block_count: 0,
            written_bytes: 0,
        })
    }

    /// Writes the next block.
    ///
    /// # Errors
    /// The errors of the writer.
    pub fn write_block(&mut self, block: &[u8]) -> io::Result<()> {
        let head = block_head(self.block_count, block);
        self.block_count += 1;
        self.written_bytes += block.len() as u64;
        self.out.write_all(&head)?;
        self.out.write_all(block)
    }

    pub fn get_mut(&mut self) -> &mut W {
        &mut self.out
    }

    /// Returns the writer after the last block. A document has no end mark.
    pub fn into_inner(self) -> W {
        self.out
    }
}

/// Reads and checks the preamble and the head of a document.
///
/// # Errors
/// The document cannot be used.
pub fn read_head(from: &mut impl Read, name: &Path) -> Result<Head, Unusable> {
    let mut preamble = [0; PREAMBLE_BYTES];
    let read = from.read_exact(&mut preamble);
    read.map_err(|error| Unusable::from_read_error(name, error))?;
    let format = format_of(&preamble).map_err(|reason| Unusable::damaged(name, reason))?;
    if format != FORMAT {
        return Err(Unusable::damaged(name, "another version has written it"));
    }
    let mut block = Vec::new();
    read_block(from, name, 0, &mut block)?;
    Head::read(&block).map_err(|reason| Unusable::damaged(name, reason))
}

/// Reads a document into a home.
///
/// # Errors
/// The document cannot be used.
pub fn read_into(
    restored: &mut Restored,
    from: &mut impl Read,
    name: &Path,
) -> Result<(), Unusable> {
    let to_damaged = |reason| Unusable::damaged(name, reason);
    let head = read_head(from, name)?;
    restored.begin_snapshot(&head).map_err(to_damaged)?;
    let mut block = Vec::new();
    let mut number = 1;
    while read_block(from, name, number, &mut block)? {
        restored.read_block(&block).map_err(to_damaged)?;
        number += 1;
    }
    restored.end_snapshot().map_err(to_damaged)
}

/// Reads the block with this number. Returns false at the end.
///
/// # Errors
/// The document cannot be used.
pub fn read_block(
    from: &mut impl Read,
    name: &Path,
    number: u64,
    block: &mut Vec<u8>,
) -> Result<bool, Unusable> {
    let read_error = |error| Unusable::from_read_error(name, error);
    block.clear();
    let read = from
        .by_ref()
        .take(BLOCK_HEAD_BYTES as u64)
        .read_to_end(block);
    if read.map_err(read_error)? == 0 {
        return Ok(false);
    }
    let head = (&block[..]).try_into();
    let head: [u8; BLOCK_HEAD_BYTES] =
        head.map_err(|_| Unusable::damaged(name, "it is not whole"))?;
    let damaged = |reason| Unusable::damaged(name, reason);
    let bytes = block_bytes(&head).map_err(damaged)?;
    block.clear();
    let read = from.take(bytes as u64).read_to_end(block);
    if read.map_err(read_error)? < bytes {
        return Err(Unusable::damaged(name, "it is not whole"));
    }
    check_block(&head, number, block).map_err(damaged)?;
    Ok(true)
}
