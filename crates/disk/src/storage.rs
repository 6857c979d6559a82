//! The seam to the file system: the operations of a directory that the log needs. Tests implement it in memory, with power cuts.

use std::io;

/// A name in the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name of the file.
    pub name: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// Whether it is an ordinary file: a symbolic link, a directory or a device is not.
    pub is_file: bool,
}

/// A directory.
pub trait Storage {
    /// An open file.
    type File: File;

    /// All that lies in it, in any order.
    ///
    /// # Errors
    /// When the directory cannot be read.
    fn list(&self) -> io::Result<Vec<Entry>>;

    /// Opens a file.
    ///
    /// # Errors
    /// When it is not there, or is no ordinary file.
    fn open(&self, name: &str) -> io::Result<Self::File>;

    /// Makes a file of this length, with room for all of it. Its content may be anything.
    ///
    /// # Errors
    /// `StorageFull` or `QuotaExceeded` where there is no room; then the file is not there.
    fn create(&self, name: &str, bytes: u64) -> io::Result<Self::File>;

    /// Bytes of the file system that are free for this user.
    ///
    /// # Errors
    /// Those of the file system.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Gives a file another name, which no file has.
    ///
    /// # Errors
    /// Those of the file system.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// Those of the file system.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Returns when the names are on disk.
    ///
    /// # Errors
    /// Those of the disk. They are final.
    fn sync_names(&self) -> io::Result<()>;
}

/// An open file.
pub trait File {
    /// Its length in bytes.
    ///
    /// # Errors
    /// Those of the file system.
    fn bytes(&self) -> io::Result<u64>;

    /// Reads at this offset until the buffer is full or the file ends; returns the number of bytes.
    ///
    /// # Errors
    /// Those of the disk.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all bytes at this offset.
    ///
    /// # Errors
    /// Those of the file system. They are final.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Returns when all that was written is on disk.
    ///
    /// # Errors
    /// Those of the disk. They are final.
    fn sync(&self) -> io::Result<()>;
}
