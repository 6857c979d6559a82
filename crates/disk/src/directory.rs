//! The storage of a server: the files of one directory, which is locked for this process.
//!
//! File names are relative to the open directory, so the directory can be moved while it is in use. Symbolic links are not followed.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{self, Access, AtFlags, FallocateFlags, FileType, FlockOperation, Mode, OFlags};

use crate::storage::{Entry, File, Storage};

/// The name of the lock file.
const LOCK: &str = "lock";

/// A directory that is open, and locked if it is open for writing.
#[derive(Debug)]
pub struct Directory {
    directory: OwnedFd,
    /// The open lock file, which holds the lock. `None` for a reader.
    _lock: Option<OwnedFd>,
}

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// An error of the file system, at this path.
    #[error("{0}: {1}")]
    Io(PathBuf, io::Error),
    /// Another process has locked the directory.
    #[error(
        "{0} is in use by another process: stop that server, or give this one another directory"
    )]
    Locked(PathBuf),
}

impl Directory {
    /// Opens a directory for writing. The lock lasts until the `Directory` is dropped or the process ends. A missing directory is created,
    /// and only this user can access it.
    ///
    /// # Errors
    /// If the directory cannot be opened, or another process has locked it.
    pub fn lock(path: &Path) -> Result<Directory, OpenError> {
        let failed = |error: rustix::io::Errno| OpenError::Io(path.to_path_buf(), error.into());
        match fs::mkdir(path, Mode::RWXU) {
            Ok(()) => {
                // Files in the directory survive a power cut only if the directory's name is on disk.
                let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
                let parent = open_directory(parent.unwrap_or(Path::new(".")));
                parent.and_then(fs::fsync).map_err(failed)?;
            }
            Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(failed(error)),
        }
        let directory = open_directory(path).map_err(failed)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = fs::openat(&directory, LOCK, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        match fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(OpenError::Locked(path.to_path_buf()));
            }
            Err(error) => return Err(failed(error)),
        }
        Ok(Directory {
            directory,
            _lock: Some(lock),
        })
    }

    /// Opens a directory for reading, without a lock. A server may be writing to the log, so the end of the log may be torn.
    ///
    /// # Errors
    /// If the directory cannot be opened.
    pub fn read_only(path: &Path) -> Result<Directory, OpenError> {
        let directory = open_directory(path);
        let failed = |error: rustix::io::Errno| OpenError::Io(path.to_path_buf(), error.into());
        Ok(Directory {
            directory: directory.map_err(failed)?,
            _lock: None,
        })
    }
}

/// Checks that this process may create files in a directory.
///
/// # Errors
/// If it may not, or the path is not a directory.
pub fn may_write(directory: &Path) -> io::Result<()> {
    if !std::fs::metadata(directory)?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    let access = Access::WRITE_OK | Access::EXEC_OK;
    Ok(fs::accessat(fs::CWD, directory, access, AtFlags::EACCESS)?)
}

/// Exchanges the names of two files in one step. Both files must exist. If the file system cannot exchange names, `from` replaces `to`.
///
/// # Errors
/// Errors of the file system.
pub fn exchange(from: &Path, to: &Path) -> io::Result<()> {
    use rustix::io::Errno;
    match fs::renameat_with(fs::CWD, from, fs::CWD, to, fs::RenameFlags::EXCHANGE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(fs::rename(from, to)?),
        exchanged => Ok(exchanged?),
    }
}

/// Gives a file this length and allocates disk space for all of it. Creates a missing file. Space that the file already has is not freed in
/// between. If `is_used`, the content is overwritten with zeros.
///
/// # Errors
/// Errors of the file system. On a full disk the file is then shorter.
pub fn reserve(path: &Path, bytes: u64, is_used: bool) -> io::Result<()> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = std::fs::File::from(fs::open(path, flags, Mode::RUSR | Mode::WUSR)?);
    let before = file.metadata()?.len();
    if before > bytes {
        file.set_len(bytes)?;
    }
    if is_used {
        write_zeros(&file, before.min(bytes))?;
    }
    allocate(&file, bytes)
}

/// The size and the free space of a file system.
#[derive(Clone, Copy, Debug)]
pub struct FileSystem {
    /// Bytes free for this user.
    pub free_bytes: u64,
    /// The size of the file system in bytes.
    pub all_bytes: u64,
}

impl FileSystem {
    /// The file system that contains a file or directory.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn of(path: &Path) -> io::Result<FileSystem> {
        Ok(FileSystem::from(&fs::statvfs(path)?))
    }

    fn from(stat: &fs::StatVfs) -> FileSystem {
        // Some file systems, mainly FUSE ones, report the size 0 if they do not know it.
        let bytes = |blocks: u64| match stat.f_blocks {
            0 => u64::MAX,
            _ => blocks.saturating_mul(stat.f_frsize),
        };
        FileSystem {
            free_bytes: bytes(stat.f_bavail),
            all_bytes: bytes(stat.f_blocks),
        }
    }
}

/// Allocates the first bytes of a file.
fn allocate(file: &std::fs::File, bytes: u64) -> io::Result<()> {
    match fs::fallocate(file, FallocateFlags::empty(), 0, bytes) {
        // Some file systems cannot allocate space.
        Err(rustix::io::Errno::OPNOTSUPP) => write_zeros(file, bytes),
        allocated => Ok(allocated?),
    }
}

fn write_zeros(file: &std::fs::File, bytes: u64) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    let mut done = 0;
    while done < bytes {
        let len = zeros.len().min((bytes - done) as usize);
        file.write_all_at(&zeros[..len], done)?;
        done += len as u64;
    }
    Ok(())
}

fn open_directory(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    fs::open(path, flags, Mode::empty())
}

impl Storage for Directory {
    type File = std::fs::File;

    fn list(&self) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in fs::Dir::read_from(&self.directory)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name == "." || name == ".." || name == LOCK {
                continue;
            }
            let stat = match fs::statat(&self.directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                // Another program removed the file in the meantime, or its name is not UTF-8. Names of the log's files are ASCII, so the
                // entry is skipped.
                Err(rustix::io::Errno::NOENT) => continue,
                Err(error) => return Err(error.into()),
            };
            entries.push(Entry {
                name,
                bytes: u64::try_from(stat.st_size).unwrap_or(0),
                is_file: FileType::from_raw_mode(stat.st_mode).is_file(),
            });
        }
        Ok(entries)
    }

    fn open(&self, name: &str) -> io::Result<std::fs::File> {
        let access = match self._lock {
            Some(_) => OFlags::RDWR,
            None => OFlags::RDONLY,
        };
        let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(fs::openat(&self.directory, name, flags, Mode::empty())?.into())
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<std::fs::File> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = fs::openat(&self.directory, name, flags, Mode::RUSR | Mode::WUSR)?;
        let file = std::fs::File::from(file);
        if let Err(error) = allocate(&file, bytes) {
            self.remove(name)?;
            return Err(error);
        }
        Ok(file)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let stat = fs::fstatvfs(&self.directory)?;
        Ok(FileSystem::from(&stat).free_bytes)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(fs::renameat(&self.directory, from, &self.directory, to)?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Ok(fs::unlinkat(&self.directory, name, AtFlags::empty())?)
    }

    fn sync_names(&self) -> io::Result<()> {
        Ok(fs::fsync(&self.directory)?)
    }
}

impl File for std::fs::File {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < bytes.len() {
            match FileExt::read_at(self, &mut bytes[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        // The length of the file never changes, so only the data must reach the disk.
        self.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_has_its_length_and_nothing_of_the_file_with_which_it_was_exchanged() {
        let name = format!("crore-test-reserve-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory).expect("a directory");
        let (file, other) = (directory.join("reserve"), directory.join("other"));
        let len = || std::fs::metadata(&file).expect("the reserve").len();
        for bytes in [5000, 9000, 100] {
            reserve(&file, bytes, false).expect("room");
            assert_eq!(len(), bytes);
        }
        std::fs::write(&other, [1; 3000]).expect("a file");
        exchange(&file, &other).expect("both exist");
        assert_eq!(std::fs::read(&other).expect("a file"), [0; 100]);
        assert_eq!(len(), 3000);
        reserve(&file, 4000, true).expect("room");
        assert_eq!(std::fs::read(&file).expect("the reserve"), [0; 4000]);
        std::fs::remove_dir_all(directory).expect("the directory");
    }

    #[test]
    fn file_system_that_does_not_tell_its_size_has_room() {
        let mut stat = fs::statvfs("/").expect("it is there");
        (stat.f_blocks, stat.f_bavail) = (0, 0);
        let FileSystem {
            free_bytes,
            all_bytes,
        } = FileSystem::from(&stat);
        assert_eq!((free_bytes, all_bytes), (u64::MAX, u64::MAX));
        (stat.f_blocks, stat.f_bavail, stat.f_frsize) = (3, 2, 4096);
        assert_eq!(FileSystem::from(&stat).free_bytes, 8192);
    }
}
