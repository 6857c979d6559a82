//! Descriptors, and system calls that `rustix` does not have.
//!
//! [`Owned`] replaces `OwnedFd`, which may be dropped on another thread and would then close another descriptor with the same number in the
//! table of that thread.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};

/// A descriptor: a number in the table of the thread that made it, and meaningless in other tables.
///
/// Dropping an `Fd` does not close the descriptor: its holder must close it, once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fd(pub u32);

impl Fd {
    /// The number as a C integer. The kernel limits descriptors far below `i32::MAX`.
    pub(crate) fn raw(self) -> libc::c_int {
        self.0 as libc::c_int
    }

    /// Borrows the descriptor for one system call.
    #[inline]
    pub(crate) fn lend<'a>(self) -> BorrowedFd<'a> {
        // SAFETY: the holder of a descriptor does not use it after closing it, so it is open during the call.
        unsafe { BorrowedFd::borrow_raw(self.raw()) }
    }
}

impl From<OwnedFd> for Fd {
    fn from(fd: OwnedFd) -> Fd {
        Fd(fd.into_raw_fd() as u32)
    }
}

/// The result of a system call that returns 0 or -1.
///
/// # Errors
/// The value of `errno`.
pub fn check(result: libc::c_int) -> io::Result<()> {
    if result == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Makes a type `!Send` and `!Sync`, because its values belong to the descriptor table of one thread.
pub(crate) type OfThisTable = PhantomData<*const ()>;

/// A descriptor that is closed on drop, in the table that it was made in.
#[derive(Debug)]
pub(crate) struct Owned {
    fd: Fd,
    _table: OfThisTable,
}

impl Owned {
    pub(crate) fn fd(&self) -> Fd {
        self.fd
    }
}

impl From<OwnedFd> for Owned {
    fn from(fd: OwnedFd) -> Owned {
        Owned {
            fd: fd.into(),
            _table: PhantomData,
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        close(self.fd);
    }
}

/// Closes a descriptor.
pub fn close(fd: Fd) {
    // SAFETY: takes no pointers; the caller owned the descriptor. Linux closes it even if it returns `EINTR`, so there is no retry.
    let result = unsafe { libc::close(fd.raw()) };
    // A second close could close another socket that has got the same number meanwhile.
    assert!(
        result == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EBADF),
        "descriptor {} closed twice",
        fd.0
    );
}

/// Sets one fixed-size option of a socket.
pub fn set_option<T: Copy>(fd: Fd, level: i32, name: i32, value: T) -> io::Result<()> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of `value`, which lives through the call.
    check(unsafe {
        libc::setsockopt(
            fd.raw(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    })
}
