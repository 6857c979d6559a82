//! The calls on one connected, non-blocking socket: receive, send, end. The signal interrupt (`EINTR`) is retried, "not now"
//! is a value (`Again`), and every other failure is its `errno`. Nothing here allocates.
//!
//! A [`close`] still delivers what was sent, but unread bytes in our receive buffer make the kernel reset the connection (RFC 1122
//! 4.2.2.13): read to the end first where the last answer matters.
//!
//! Deliberately not here: buffering and partial-write bookkeeping, which belong to the outbox.

use std::io::IoSlice;
use std::net::SocketAddr;

use super::address::Storage;
pub use crate::sys::close;
use crate::sys::{Fd, check, errno, set_option};
use crate::transport::{Received, Sent};

/// The most parts that one `sendmsg` takes (`UIO_MAXIOV` of the kernel).
pub const PARTS_MAX: usize = 1024;

/// Receives available bytes, up to the length of `buf`.
///
/// # Panics
/// When `buf` is empty: the answer could not be told from an end.
pub fn recv(fd: Fd, buf: &mut [u8]) -> Received {
    assert!(!buf.is_empty(), "an empty receive looks like an end");
    loop {
        // SAFETY: `buf` is writable for its length and borrowed mutably through the call.
        let answer = unsafe {
            libc::recv(
                fd.raw(),
                buf.as_mut_ptr().cast(),
                buf.len(),
                libc::MSG_DONTWAIT,
            )
        };
        match usize::try_from(answer) {
            Ok(0) => return Received::End,
            Ok(n) => return Received::Bytes(n),
            Err(_) => match errno() {
                libc::EINTR => {}
                libc::EAGAIN => return Received::Again,
                other => return Received::Failed(other),
            },
        }
    }
}

/// How every send is done: no signal for a peer that is gone, never blocking.
pub(crate) const SEND_FLAGS: libc::c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

/// Sends as much of `buf` as the socket takes.
pub fn send(fd: Fd, buf: &[u8]) -> Sent {
    // SAFETY: `buf` is readable for its length and borrowed through the call.
    sent(|| unsafe { libc::send(fd.raw(), buf.as_ptr().cast(), buf.len(), SEND_FLAGS) })
}

/// Sends as much of the parts, one after the other, as the socket takes; parts after the first
/// [`PARTS_MAX`] are not looked at.
pub fn send_vectored(fd: Fd, parts: &[IoSlice<'_>]) -> Sent {
    // SAFETY: `msghdr` is integers and pointers, for which zeroes (none) are valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    // `IoSlice` is guaranteed to have the layout of `iovec`; the kernel does not write through it.
    message.msg_iov = parts.as_ptr().cast_mut().cast();
    message.msg_iovlen = parts.len().min(PARTS_MAX) as _;
    // SAFETY: `message` names `msg_iovlen` parts, each readable for its length and borrowed
    // through the call; it names no address and no control data.
    sent(|| unsafe { libc::sendmsg(fd.raw(), &raw const message, SEND_FLAGS) })
}

fn sent(call: impl Fn() -> isize) -> Sent {
    loop {
        match usize::try_from(call()) {
            Ok(n) => return Sent::Bytes(n),
            Err(_) => match errno() {
                libc::EINTR => {}
                libc::EAGAIN => return Sent::Again,
                other => return Sent::Failed(other),
            },
        }
    }
}

/// Ends our sending; the peer reads an end after all bytes sent before. A connection that is over already stays so.
pub fn shutdown_write(fd: Fd) {
    // SAFETY: takes no pointers. The one failure (`ENOTCONN`) means that the peer is gone already.
    unsafe { libc::shutdown(fd.raw(), libc::SHUT_WR) };
}

/// Closes at once: unsent bytes are dropped and the peer gets a reset. No TIME_WAIT remains.
pub fn reset(fd: Fd) {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // Should the option fail, an ordinary close is the next best.
    let _ = set_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, linger);
    close(fd);
}

/// The peer's address; `None` when the socket is not connected any more.
pub fn peer(fd: Fd) -> Option<SocketAddr> {
    let mut peer = Storage::empty();
    // SAFETY: the kernel writes an address of at most `length` bytes into `storage`, and its length; both live
    // through the call.
    let answer = unsafe {
        libc::getpeername(
            fd.raw(),
            (&raw mut peer.storage).cast(),
            &raw mut peer.length,
        )
    };
    check(answer).ok()?;
    peer.address()
}

/// Sends small segments at once (`TCP_NODELAY`). Sockets accepted from a [`Listener`](super::listener::Listener) inherit
/// it; only others need this call.
pub fn set_nodelay(fd: Fd) {
    // Best effort: the connection works without, later.
    let _ = set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1_i32);
}
