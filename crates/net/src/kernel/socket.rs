//! Receive, send and close on one connected, non-blocking socket. A call that a signal interrupts (`EINTR`) is repeated, a call that would
//! block returns `Again`, and any other failure returns its `errno`. Nothing here allocates.
//!
//! After a [`close`] the kernel still delivers the bytes that were sent. But if received bytes are unread at the close, the kernel resets
//! the connection (RFC 1122 4.2.2.13). So a caller whose last bytes matter must first read to the end of the stream.
//!
//! Deliberately not here: buffers and partial writes, which are left to the caller's outbox.

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

/// The maximum number of parts of one `sendmsg` (`UIO_MAXIOV` of the kernel).
pub const PARTS_MAX: usize = 1024;

/// Receives available bytes, up to the length of `buf`.
///
/// # Panics
/// If `buf` is empty, because the result would look like the end of the stream.
#[inline]
pub fn recv(fd: Fd, buf: &mut [u8]) -> Received {
    assert!(!buf.is_empty(), "an empty receive looks like an end");
    match retry_on_intr(|| net::recv(fd.lend(), &mut *buf, RecvFlags::DONTWAIT)) {
        Ok((0, _)) => Received::End,
        Ok((count, _)) => Received::Bytes(count),
        Err(Errno::AGAIN) => Received::Again,
        Err(other) => Received::Failed(other.raw_os_error()),
    }
}

/// The flags of every send: no signal for a closed connection, no blocking.
const SEND_FLAGS: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

/// Sends as much of `buf` as the socket takes.
#[inline]
pub fn send(fd: Fd, buf: &[u8]) -> Sent {
    send_result(|| net::send(fd.lend(), buf, SEND_FLAGS))
}

/// Sends the parts in order, as many bytes as the socket takes; at most the first [`PARTS_MAX`] parts.
#[inline]
pub fn send_vectored(fd: Fd, parts: &[IoSlice<'_>]) -> Sent {
    let parts = &parts[..parts.len().min(PARTS_MAX)];
    let mut control = SendAncillaryBuffer::default();
    send_result(|| net::sendmsg(fd.lend(), parts, &mut control, SEND_FLAGS))
}

#[inline]
fn send_result(call: impl FnMut() -> rustix::io::Result<usize>) -> Sent {
    match retry_on_intr(call) {
        Ok(count) => Sent::Bytes(count),
        Err(Errno::AGAIN) => Sent::Again,
        Err(other) => Sent::Failed(other.raw_os_error()),
    }
}

/// Closes our sending side: after all bytes that were sent, the peer reads the end of the stream. Does nothing if the connection is already
/// closed.
pub fn shutdown_write(fd: Fd) {
    // The only failure (`ENOTCONN`) means that the peer is already gone.
    let _ = net::shutdown(fd.lend(), Shutdown::Write);
}

/// Closes the socket with a reset, and drops unsent bytes. No TIME_WAIT remains.
pub fn reset(fd: Fd) {
    // If the option cannot be set, the socket is closed without a reset.
    let _ = sockopt::set_socket_linger(fd.lend(), Some(Duration::ZERO));
    close(fd);
}

/// The peer's address; `None` if the socket is no longer connected.
pub fn peer(fd: Fd) -> Option<SocketAddr> {
    canonical_address(net::getpeername(fd.lend()).ok()??)
}

/// Converts an address; `None` if it is not an IP address. An IPv4 client of a dual-stack listener has an address `::ffff:a.b.c.d`. This
/// becomes `a.b.c.d`, so that limits by address count the client under one address.
pub(super) fn canonical_address(any: SocketAddrAny) -> Option<SocketAddr> {
    let address = SocketAddr::try_from(any).ok()?;
    Some(match address.ip().to_canonical() {
        IpAddr::V4(v4) => SocketAddr::new(v4.into(), address.port()),
        IpAddr::V6(_) => address,
    })
}

/// Makes the socket send small segments at once (`TCP_NODELAY`). Sockets accepted from a
/// [`Listener`](super::listener::Listener) inherit the option and do not need this.
pub fn set_nodelay(fd: Fd) {
    // A failure is ignored: without the option the connection works, but with delays.
    let _ = sockopt::set_tcp_nodelay(fd.lend(), true);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_address_is_the_ipv4_address() {
        for (kernel_form, canonical_form) in [
            ("127.0.0.1:8800", "127.0.0.1:8800"),
            ("[2001:db8::7]:1", "[2001:db8::7]:1"),
            ("[fe80::1%3]:2", "[fe80::1%3]:2"),
            ("[::ffff:10.1.2.3]:80", "10.1.2.3:80"),
        ] {
            let any = SocketAddrAny::from(kernel_form.parse::<SocketAddr>().unwrap());
            assert_eq!(canonical_address(any).unwrap().to_string(), canonical_form);
        }
    }
}
