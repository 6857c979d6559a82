//! The operations of the file system that the log needs. Tests implement them in memory and simulate power cuts.

use std::io;

/// An entry of the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name of the file.
    pub name: String,
    /// The length in bytes.
    pub bytes: u64,
    /// Whether the entry is a regular file, not a symbolic link, directory or device.
    pub is_file: bool,
}

/// A directory.
pub trait Storage {
    /// An open file.
    type File: File;

    /// The entries of the directory, in any order.
    ///
    /// # Errors
    /// If the directory cannot be read.
    fn list(&self) -> io::Result<Vec<Entry>>;

    /// Opens a file.
    ///
    /// # Errors
    /// If it does not exist, or is no regular file.
    fn open(&self, name: &str) -> io::Result<Self::File>;

    /// Creates a file of this length and allocates disk space for all of it. The content is undefined.
    ///
    /// # Errors
    /// `StorageFull` or `QuotaExceeded` if there is no space. Then the file does not exist.
    fn create(&self, name: &str, bytes: u64) -> io::Result<Self::File>;

    /// Bytes of the file system free for this user.
    ///
    /// # Errors
    /// Errors of the file system.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Renames a file. No file may have the new name.
    ///
    /// # Errors
    /// Errors of the file system.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// Errors of the file system.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Syncs the directory. All creations, renames and removals are then on disk.
    ///
    /// # Errors
    /// Errors of the disk. After an error the log must not be written any more.
    fn sync_names(&self) -> io::Result<()>;
}

/// An open file.
pub trait File {
    /// The length in bytes.
    ///
    /// # Errors
    /// Errors of the file system.
    fn bytes(&self) -> io::Result<u64>;

    /// Reads at this offset until the buffer is full or the file ends. Returns the number of bytes read.
    ///
    /// # Errors
    /// Errors of the disk.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all bytes at this offset.
    ///
    /// # Errors
    /// Errors of the file system. After an error the log must not be written any more.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Syncs the file. Everything written is then on disk.
    ///
    /// # Errors
    /// Errors of the disk. After an error the log must not be written any more.
    fn sync(&self) -> io::Result<()>;
}
