//! The files in `state.directory`: their names, and changes that survive a power cut. A *note* is a file with one short text. A *document* is a part of a
//! base: the snapshot of one home or partition.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use crore_disk::{LogEnd, exchange, reserve};

use crate::lifecycle::checkpoint::document::DocumentWriter;

/// The directory to which an unusable base is moved. A base that is already in this directory is removed.
pub const SET_ASIDE: &str = "set-aside";
/// The directory of the log.
pub const LOG: &str = "log";
/// A document is synced each time this many bytes were written, because a sync of the log may have to wait for all unsynced bytes of the disk.
const SYNC_BYTES: u64 = 8 << 20;
/// The directory of a base that is being written.
const INCOMPLETE_BASE: &str = "base.part";
/// The note with the durability rules of the last server, which decide which topics are in the log.
pub const RULES: &str = "rules";
/// The note with the Unix second of the last erasure. Messages that were deleted before this second are no longer in the files.
pub const ERASED: &str = "erased";
/// The file that keeps room on the disk for the next checkpoint. Its content is never read.
const RESERVE: &str = "reserve";
/// The file of a note that is being written.
const INCOMPLETE_NOTE: &str = "note.part";
/// The file in a base that marks the base as clean: written by a stop, and not yet used by a start.
const CLEAN: &str = "clean";

/// A base: the snapshot that the log continues. It has one document for each home (a shard that keeps topics) or partition. Its directory
/// is named `base-NUMBER-SEGMENT-GROUP`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Base {
    /// The number of the base: 1, 2, 3, ... The base with the highest number is used.
    pub number: u64,
    /// The end of the log in this base, as segment and group: the base replaces all earlier segments, and contains all groups up to this
    /// one.
    pub end: (u64, u64),
}

/// Adds the file's path to an error of the file system.
fn with_path(path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

impl Base {
    /// A base with the next free number.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn next(directory: &Path, end: LogEnd) -> io::Result<Base> {
        let last = Base::all(directory)?.pop().map_or(0, |base| base.number);
        Ok(Base {
            number: last + 1,
            end: (end.segment, end.group),
        })
    }

    fn name(&self) -> String {
        format!("base-{}-{}-{}", self.number, self.end.0, self.end.1)
    }

    fn parse_name(name: &str) -> Option<Base> {
        let mut parts = name.strip_prefix("base-")?.split('-').map(str::parse);
        let mut next = || parts.next()?.ok();
        let base = Base {
            number: next()?,
            end: (next()?, next()?),
        };
        (base.name() == name).then_some(base)
    }

    /// All bases in the directory, the newest last.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn all(directory: &Path) -> io::Result<Vec<Base>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(directory).map_err(with_path(directory))? {
            let entry = entry.map_err(with_path(directory))?;
            found.extend(entry.file_name().to_str().and_then(Base::parse_name));
        }
        found.sort_unstable();
        Ok(found)
    }

    pub fn path(&self, directory: &Path) -> PathBuf {
        directory.join(self.name())
    }

    /// The paths of the base's documents, in any order.
    ///
    /// # Errors
    /// The base cannot be read.
    pub fn documents(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        let base = self.path(directory);
        for entry in fs::read_dir(&base).map_err(with_path(&base))? {
            let path = entry.map_err(with_path(&base))?.path();
            if path.extension().is_some_and(|it| it == "state") {
                found.push(path);
            }
        }
        Ok(found)
    }

    /// The size of the base's files in bytes.
    ///
    /// # Errors
    /// The base cannot be read.
    pub fn bytes(&self, directory: &Path) -> io::Result<u64> {
        bytes_in(&self.path(directory))
    }

    /// Bytes of the document of this home or partition; 0 if that is unknown.
    pub fn document_bytes(&self, directory: &Path, home: u16) -> u64 {
        let path = self.path(directory).join(document_name(home));
        fs::metadata(path).map_or(0, |it| it.len())
    }

    /// Replaces a document of this base by the one that was written into the reserve file. The file of the replaced document becomes the
    /// reserve file, so that no other program takes its room.
    ///
    /// # Errors
    /// The errors of the file system.
    pub fn replace_document(&self, directory: &Path, home: u16) -> io::Result<()> {
        let (base, reserve) = (self.path(directory), directory.join(RESERVE));
        exchange(&reserve, &base.join(document_name(home))).map_err(with_path(&reserve))?;
        sync(&base)?;
        sync(directory)
    }

    /// Gives this base the number and the end of `next`, after all of its documents were replaced.
    ///
    /// # Errors
    /// The errors of the file system.
    pub fn rename(&self, directory: &Path, next: Base) -> io::Result<()> {
        let path = self.path(directory);
        fs::rename(&path, next.path(directory)).map_err(with_path(&path))?;
        sync(directory)
    }

    /// Whether a stop wrote the base, and no server has served clients since then. If so, the state outside of the log is valid too.
    pub fn is_clean(&self, directory: &Path) -> bool {
        self.path(directory).join(CLEAN).exists()
    }

    /// Removes the mark of a clean base, because a server is about to serve clients.
    ///
    /// # Errors
    /// The errors of the file system.
    pub fn clear_clean_mark(&self, directory: &Path) -> io::Result<()> {
        let path = self.path(directory);
        let clean = path.join(CLEAN);
        match fs::remove_file(&clean) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(with_path(&clean)(error)),
            _ => sync(&path),
        }
    }
}

/// The size of the files in a directory, in bytes.
fn bytes_in(path: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(path).map_err(with_path(path))? {
        let entry = entry.and_then(|it| it.metadata());
        bytes += entry.map_err(with_path(path))?.len();
    }
    Ok(bytes)
}

/// Removes all bases except `but`, and the incomplete one if there is one.
///
/// # Errors
/// The errors of the file system.
pub fn remove_bases(directory: &Path, but: Option<Base>) -> io::Result<()> {
    for base in Base::all(directory)? {
        if Some(base) != but {
            let path = base.path(directory);
            fs::remove_dir_all(&path).map_err(with_path(&path))?;
        }
    }
    discard_incomplete_base(directory)?;
    sync(directory)
}

/// Removes an incomplete base, if there is one.
///
/// # Errors
/// The errors of the file system.
pub fn discard_incomplete_base(directory: &Path) -> io::Result<()> {
    let part = directory.join(INCOMPLETE_BASE);
    match fs::remove_dir_all(&part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(with_path(&part)(error)),
        _ => Ok(()),
    }
}

/// Begins an incomplete base; [`publish`] completes it.
///
/// # Errors
/// The errors of the file system.
pub fn begin(directory: &Path) -> io::Result<()> {
    discard_incomplete_base(directory)?;
    let part = directory.join(INCOMPLETE_BASE);
    with_reserve(directory, || fs::create_dir(&part)).map_err(with_path(&part))
}

/// Runs a step of writing a base. If the disk has no room for the step, the step gets the room of the reserve file. The reserve file is not given up
/// before, so that no other program takes room that the base does not need.
fn with_reserve<T>(directory: &Path, mut step: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    match step() {
        Err(error) if is_disk_full(&error) && reserve_bytes(directory) > 0 => {
            release_reserve(directory);
            step()
        }
        done => done,
    }
}

fn is_disk_full(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

/// Removes an incomplete base. If the base has used the room of the reserve file, the reserve file gets the room back at once, before another program
/// takes it. The checkpoint thread then gives the reserve file its right size.
///
/// # Errors
/// The incomplete base cannot be removed.
pub fn return_room_of_incomplete_base(directory: &Path) -> io::Result<()> {
    let bytes = bytes_in(&directory.join(INCOMPLETE_BASE)).unwrap_or(0);
    discard_incomplete_base(directory)?;
    if bytes > 0
        && reserve_bytes(directory) == 0
        && let Err(error) = keep_reserve(directory, bytes, false)
    {
        tracing::debug!("state.directory: no reserve for the next checkpoint: {error}");
    }
    Ok(())
}

/// Bytes of the file that keeps room for the next checkpoint; 0 if it does not exist.
pub fn reserve_bytes(directory: &Path) -> u64 {
    fs::symlink_metadata(directory.join(RESERVE)).map_or(0, |it| it.len())
}

/// Gives the file that keeps room for the next checkpoint this length, and overwrites its content if the file was used.
///
/// # Errors
/// The errors of the file system. The file may be shorter then.
pub fn keep_reserve(directory: &Path, bytes: u64, is_used: bool) -> io::Result<()> {
    let path = directory.join(RESERVE);
    if !fs::symlink_metadata(&path).is_ok_and(|it| it.is_file()) {
        release_reserve(directory);
    }
    reserve(&path, bytes, is_used)
}

/// Removes the file that keeps room for the next checkpoint. A failure is ignored, since it only leaves less room for others.
pub fn release_reserve(directory: &Path) {
    let _ = remove_note(directory, RESERVE);
}

/// Gives the complete base its name, and removes older bases.
///
/// # Errors
/// The errors of the file system.
pub fn publish(directory: &Path, base: Base, clean: bool) -> io::Result<()> {
    let part = directory.join(INCOMPLETE_BASE);
    if clean {
        let clean = part.join(CLEAN);
        with_reserve(directory, || File::create(&clean)).map_err(with_path(&clean))?;
    }
    sync(&part)?;
    fs::rename(&part, base.path(directory)).map_err(with_path(&part))?;
    sync(directory)?;
    remove_bases(directory, Some(base))
}

/// Reads the note with this name; None if it does not exist.
///
/// # Errors
/// The note cannot be read.
pub fn read_note(directory: &Path, name: &str) -> io::Result<Option<String>> {
    let path = directory.join(name);
    match fs::read(&path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(with_path(&path)(error)),
    }
}

/// Writes a note with this name, which replaces an older one.
///
/// # Errors
/// The errors of the file system.
pub fn write_note(directory: &Path, name: &str, text: &str) -> io::Result<()> {
    if read_note(directory, name).is_ok_and(|before| before.as_deref() == Some(text)) {
        return Ok(());
    }
    let part = directory.join(INCOMPLETE_NOTE);
    // The old file is removed first, so that the new one is not written through a link.
    match fs::remove_file(&part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(with_path(&part)(error));
        }
        _ => {}
    }
    let written = File::create_new(&part).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    written.map_err(with_path(&part))?;
    let path = directory.join(name);
    fs::rename(part, &path).map_err(with_path(&path))?;
    sync(directory)
}

/// Writes a note as [`write_note`] does. On a full disk it overwrites the older note in place, if at least `needed` bytes of the text fit into its size. A
/// power cut at that moment may damage the note.
///
/// # Errors
/// The errors of the file system. If the disk is full and the older note is too small, the error names the remedy.
pub fn write_or_overwrite_note(
    directory: &Path,
    name: &str,
    text: &str,
    needed: usize,
) -> io::Result<()> {
    match write_note(directory, name, text) {
        Err(error) if is_disk_full(&error) => {
            overwrite(directory, name, text.as_bytes(), needed).map_err(|_| {
                io::Error::other(format!(
                    "the file `{name}` needs {} bytes: make room on the file system of {}, and start the server again ({error})",
                    text.len(),
                    directory.display()
                ))
            })
        }
        written => written,
    }
}

/// Overwrites the note with this name in place, so that the note needs no more space. Writes as much of `text` as fits into the present
/// size of the file. At least `needed` bytes must fit.
///
/// # Errors
/// The note is too small, or an error of the file system.
fn overwrite(directory: &Path, name: &str, text: &[u8], needed: usize) -> io::Result<()> {
    let _ = fs::remove_file(directory.join(INCOMPLETE_NOTE));
    let mut file = OpenOptions::new().write(true).open(directory.join(name))?;
    let len = file.metadata()?.len().min(text.len() as u64) as usize;
    if len < needed {
        return Err(io::ErrorKind::StorageFull.into());
    }
    file.write_all(&text[..len])?;
    file.set_len(len as u64)?;
    file.sync_all()
}

/// Removes a note.
///
/// # Errors
/// The errors of the file system.
pub fn remove_note(directory: &Path, name: &str) -> io::Result<()> {
    let path = directory.join(name);
    match fs::remove_file(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed
            .map_err(with_path(&path))
            .and_then(|()| sync(directory)),
    }
}

/// The name of the document of a home or partition.
fn document_name(home: u16) -> String {
    format!("home-{home}.state")
}

/// Writes the document of a home or partition.
pub struct Document {
    blocks: DocumentWriter<BufWriter<DocumentFile>>,
    path: PathBuf,
    /// Number of bytes that are synced.
    synced: u64,
}

impl Document {
    /// Creates a file in the incomplete base.
    ///
    /// # Errors
    /// The errors of the file system.
    pub fn begin(directory: &Path, home: u16) -> Result<Document, String> {
        let path = directory.join(INCOMPLETE_BASE).join(document_name(home));
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        Document::open(path, &mut options, Some(directory))
    }

    /// Opens the reserve file, so that the document uses its room.
    ///
    /// # Errors
    /// The errors of the file system.
    pub fn begin_in_reserve(directory: &Path) -> Result<Document, String> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        Document::open(directory.join(RESERVE), &mut options, None)
    }

    fn open(
        path: PathBuf,
        options: &mut OpenOptions,
        reserve_in: Option<&Path>,
    ) -> Result<Document, String> {
        options.mode(0o600);
        let opened = match reserve_in {
            Some(directory) => with_reserve(directory, || options.open(&path)),
            None => options.open(&path),
        };
        let file = opened.map(|file| DocumentFile {
            file,
            reserve_in: reserve_in.map(Path::to_path_buf),
        });
        match file.and_then(|file| DocumentWriter::begin(BufWriter::new(file))) {
            Ok(blocks) => Ok(Document {
                blocks,
                path,
                synced: 0,
            }),
            Err(error) => Err(format!("{}: {error}", path.display())),
        }
    }

    /// Bytes of the blocks written so far.
    pub fn bytes(&self) -> u64 {
        self.blocks.written_bytes
    }

    /// Writes the next block.
    ///
    /// # Errors
    /// The errors of the file system.
    pub fn block(&mut self, block: &[u8]) -> Result<(), String> {
        let mut written = self.blocks.write_block(block);
        if self.bytes() - self.synced >= SYNC_BYTES {
            self.synced = self.bytes();
            let file = self.blocks.get_mut();
            let flushed = written.and_then(|()| file.flush());
            written = flushed.and_then(|()| file.get_ref().file.sync_data());
        }
        written.map_err(|error| format!("{}: {error}", self.path.display()))
    }

    /// Completes and syncs the document. Returns the total size of its blocks in bytes.
    ///
    /// # Errors
    /// The errors of the file system.
    pub fn end(self) -> Result<u64, String> {
        let bytes = self.bytes();
        let file = self.blocks.into_inner().into_inner();
        let file = file.map_err(io::Error::from);
        let synced = file.and_then(|DocumentFile { mut file, .. }| {
            let end = file.stream_position()?;
            file.set_len(end)?;
            file.sync_all()
        });
        synced.map_err(|error| format!("{}: {error}", self.path.display()))?;
        Ok(bytes)
    }
}

/// The file of a document.
struct DocumentFile {
    file: File,
    /// The directory whose reserve file gives its room when the disk is full. `None` if the document is in the reserve file itself.
    reserve_in: Option<PathBuf>,
}

impl io::Write for DocumentFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &self.reserve_in {
            Some(directory) => with_reserve(directory, || self.file.write(bytes)),
            None => self.file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Creates the directory, which only this user can read, and checks that files can be created in the directory.
///
/// # Errors
/// No file can be created, or the directory has files of a version that this build does not read.
pub fn prepare(directory: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory);
    let probe = directory.join("probe");
    // A start that was killed may have left the file. The file is removed first, so that the new one is not written through a link.
    let _ = fs::remove_file(&probe);
    let tried = made
        .and_then(|()| File::create_new(&probe))
        .and_then(|_| fs::remove_file(&probe));
    tried.with_context(|| unwritable(directory))?;
    check_version(directory)
}

/// Checks whether [`prepare`] would succeed, without creating anything.
///
/// # Errors
/// [`prepare`] would not succeed.
pub fn check_can_prepare(directory: &Path) -> anyhow::Result<()> {
    let there = directory
        .ancestors()
        .find(|path| path.symlink_metadata().is_ok());
    let there = there.unwrap_or(directory);
    let may_write = crore_disk::may_write(there);
    may_write
        .with_context(|| there.display().to_string())
        .with_context(|| unwritable(directory))?;
    check_version(directory)
}

fn unwritable(directory: &Path) -> String {
    format!(
        "state.directory: {} cannot be written; name a directory that belongs to the server's user, or leave the setting out",
        directory.display()
    )
}

fn check_version(directory: &Path) -> anyhow::Result<()> {
    let former = directory.join("home-0.state");
    if former.exists() {
        anyhow::bail!(
            "state.directory: {} was left by an earlier version of crore; start that version, or move its files away to begin anew: \
             clients with positions of before are then told a gap",
            former.display()
        );
    }
    Ok(())
}

/// Syncs a directory, which makes created, renamed and removed files durable.
///
/// # Errors
/// The errors of the file system.
pub fn sync(directory: &Path) -> io::Result<()> {
    let synced = File::open(directory).and_then(|it| it.sync_all());
    synced.map_err(with_path(directory))
}

#[cfg(test)]
mod tests {
    use super::Base;

    #[test]
    fn base_is_recognised_only_by_its_complete_name() {
        let base = Base {
            number: 12,
            end: (3, 456),
        };
        assert_eq!(Base::parse_name(&base.name()), Some(base));
        for other in ["base-1-2", "base-01-2-3", "base-1-2-3-4", "base.part", "x"] {
            assert_eq!(Base::parse_name(other), None, "{other}");
        }
    }
}
