//! The calls on one connected, non-blocking socket: receive, send, end. The signal interrupt (`EINTR`) is retried, "not now"
//! is a value (`Again`), and every other failure is its `errno`. Nothing here allocates.
//!
//! A [`close`] still delivers the bytes that were sent, but unread bytes in our receive buffer make the kernel reset the connection (RFC 1122
//! 4.2.2.13): read to the end first where the last answer matters.
//!
//! Deliberately not here: buffering and partial-write bookkeeping, which belong to the outbox.

use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    self, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketAddrAny, sockopt,
};

use crate::sys::Fd;
pub use crate::sys::close;
use crate::transport::{Received, Sent};

/// The most parts that one `sendmsg` takes (`UIO_MAXIOV` of the kernel).
pub const PARTS_MAX: usize = 1024;

/// Receives available bytes, up to the length of `buf`.
///
/// # Panics
/// When `buf` is empty: the answer could not be told from an end.
pub fn recv(fd: Fd, buf: &mut [u8]) -> Received {
    assert!(!buf.is_empty(), "an empty receive looks like an end");
    match retry_on_intr(|| net::recv(fd.lend(), &mut *buf, RecvFlags::DONTWAIT)) {
        Ok((0, _)) => Received::End,
        Ok((count, _)) => Received::Bytes(count),
        Err(Errno::AGAIN) => Received::Again,
        Err(other) => Received::Failed(other.raw_os_error()),
    }
}

/// How every send is done: no signal for a peer that is gone, never blocking.
const SEND_FLAGS: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

/// Sends as much of `buf` as the socket takes.
pub fn send(fd: Fd, buf: &[u8]) -> Sent {
    sent(|| net::send(fd.lend(), buf, SEND_FLAGS))
}

/// Sends as much of the parts, one after the other, as the socket takes; parts after the first
/// [`PARTS_MAX`] are not looked at.
pub fn send_vectored(fd: Fd, parts: &[IoSlice<'_>]) -> Sent {
    let parts = &parts[..parts.len().min(PARTS_MAX)];
    let mut control = SendAncillaryBuffer::default();
    sent(|| net::sendmsg(fd.lend(), parts, &mut control, SEND_FLAGS))
}

fn sent(call: impl FnMut() -> rustix::io::Result<usize>) -> Sent {
    match retry_on_intr(call) {
        Ok(count) => Sent::Bytes(count),
        Err(Errno::AGAIN) => Sent::Again,
        Err(other) => Sent::Failed(other.raw_os_error()),
    }
}

/// Ends our sending; the peer reads an end after all bytes sent before. A connection that is over already stays so.
pub fn shutdown_write(fd: Fd) {
    // The one failure (`ENOTCONN`) means that the peer is gone already.
    let _ = net::shutdown(fd.lend(), Shutdown::Write);
}

/// Closes at once: unsent bytes are dropped and the peer gets a reset. No TIME_WAIT remains.
pub fn reset(fd: Fd) {
    // Should the option fail, an ordinary close is the next best.
    let _ = sockopt::set_socket_linger(fd.lend(), Some(Duration::ZERO));
    close(fd);
}

/// The peer's address; `None` when the socket is not connected any more.
pub fn peer(fd: Fd) -> Option<SocketAddr> {
    address(net::getpeername(fd.lend()).ok()??)
}

/// An address as Rust has it; `None` for one of another family. IPv4 clients of a dual-stack listener arrive as `::ffff:a.b.c.d`; they are
/// given back as the IPv4 addresses that they are, so that limits per address see one client as one.
pub(super) fn address(any: SocketAddrAny) -> Option<SocketAddr> {
    let address = SocketAddr::try_from(any).ok()?;
    Some(match address.ip().to_canonical() {
        IpAddr::V4(v4) => SocketAddr::new(v4.into(), address.port()),
        IpAddr::V6(_) => address,
    })
}

/// Sends small segments at once (`TCP_NODELAY`). Sockets accepted from a [`Listener`](super::listener::Listener) inherit
/// it; only others need this call.
pub fn set_nodelay(fd: Fd) {
    // Best effort: the connection works without, later.
    let _ = sockopt::set_tcp_nodelay(fd.lend(), true);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_address_is_the_ipv4_address() {
        for (kernels, ours) in [
            ("127.0.0.1:8800", "127.0.0.1:8800"),
            ("[2001:db8::7]:1", "[2001:db8::7]:1"),
            ("[fe80::1%3]:2", "[fe80::1%3]:2"),
            ("[::ffff:10.1.2.3]:80", "10.1.2.3:80"),
        ] {
            let any = SocketAddrAny::from(kernels.parse::<SocketAddr>().unwrap());
            assert_eq!(address(any).unwrap().to_string(), ours);
        }
    }
}
