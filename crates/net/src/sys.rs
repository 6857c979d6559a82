//! Helpers of every module here that calls the kernel: descriptors, which close themselves where they are owned, and what
//! `rustix`, which makes most calls, does not have.
//!
//! Deliberately not `OwnedFd`: its drop may run on any thread, ours belong to a table.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};

/// A descriptor: a number in the table of the thread that made it, and meaningless elsewhere.
///
/// It is `Copy` and owns nothing: its holder closes it, once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fd(pub u32);

impl Fd {
    /// The number as C wants it. Descriptors are bounded far below `i32::MAX` by the kernel.
    pub(crate) fn raw(self) -> libc::c_int {
        self.0 as libc::c_int
    }

    /// Lends it to one system call.
    #[inline]
    pub(crate) fn lend<'a>(self) -> BorrowedFd<'a> {
        // SAFETY: the holder of a descriptor forgets it when it closes it, so that it is open during the call.
        unsafe { BorrowedFd::borrow_raw(self.raw()) }
    }
}

impl From<OwnedFd> for Fd {
    fn from(fd: OwnedFd) -> Fd {
        Fd(fd.into_raw_fd() as u32)
    }
}

/// The result of a system call that answers 0 or -1.
///
/// # Errors
/// The one that `errno` names.
pub fn check(answer: libc::c_int) -> io::Result<()> {
    if answer == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Makes a value `!Send` and `!Sync`: it belongs to the descriptor table of its thread.
pub(crate) type OfThisTable = PhantomData<*const ()>;

/// A descriptor that is closed with its value, in the table that it was made in.
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
    // SAFETY: takes no pointers; the caller owned the descriptor. Linux frees it even when it returns `EINTR`, so there is
    // no retry.
    let answer = unsafe { libc::close(fd.raw()) };
    // A second close could close another socket that has the number by then.
    assert!(
        answer == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EBADF),
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
