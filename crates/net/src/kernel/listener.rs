//! Listening sockets, one for each shard and address, and the refusal of connections when the descriptor table is full.
//!
//! All listeners of an address form a group (`SO_REUSEPORT`). The kernel distributes connections to its members by a hash of the addresses
//! of client and server. Accepted sockets inherit some options (`TCP_NODELAY`, `TCP_NOTSENT_LOWAT`) from the listener, so that an accept is
//! one system call.
//!
//! Invariant: a listener is opened in the table of its shard, after [`unshare`](super::fd_table::unshare). A copy in another table would
//! receive connections that no thread accepts.
//!
//! Deliberately not here: limits and access control.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, SocketFlags, SocketType, acceptfrom_with, socket_with, sockopt,
};

use super::socket;
use crate::sys::{Fd, Owned, set_option};
use crate::transport::Received;

/// Options of the sockets that a listener accepts.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SocketOptions {
    /// The maximum number of unsent bytes that the kernel accepts (`TCP_NOTSENT_LOWAT`, tcp(7)); `None` for the kernel's default.
    pub unsent_bytes: Option<u32>,
}

/// The result of an accept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Accepted {
    /// A non-blocking socket and the address of its peer.
    Connection(Fd, SocketAddr),
    /// No connection waits.
    Again,
    /// There is no descriptor or no memory for a connection (`EMFILE`, `ENFILE`, `ENOBUFS`, `ENOMEM`). Perhaps no connection waits at all.
    /// See [`SpareDescriptor`].
    Full(i32),
    /// The waiting connection or the listener is broken (`errno`). The next accept may succeed.
    Failed(i32),
}

/// The flags of every socket.
const SOCKET_FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// Opens a TCP socket for the family of this address.
fn open_socket(addr: SocketAddr) -> io::Result<Owned> {
    Ok(socket_with(family(addr), SocketType::STREAM, SOCKET_FLAGS, None)?.into())
}

fn family(addr: SocketAddr) -> AddressFamily {
    if addr.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    }
}

fn local_addr(socket: impl AsFd) -> io::Result<SocketAddr> {
    socket::canonical_address(net::getsockname(socket)?)
        .ok_or_else(|| io::ErrorKind::Unsupported.into())
}

/// Reserves a port until this is dropped: the kernel chooses the port for no other socket, neither for a bind to port 0 nor for a connect.
/// A server can still listen on the port, also repeatedly, if it sets `SO_REUSEADDR` as servers do. The reserving socket never listens.
#[derive(Debug)]
pub struct HeldPort {
    _socket: OwnedFd,
    addr: SocketAddr,
}

impl HeldPort {
    /// Reserves the port of `addr`. If it is 0 the kernel chooses one.
    ///
    /// # Errors
    /// Those of `socket`, `bind` (also if the port is in use), `getsockname` and `setsockopt`.
    pub fn choose(addr: SocketAddr) -> io::Result<HeldPort> {
        let socket = socket_with(family(addr), SocketType::STREAM, SOCKET_FLAGS, None)?;
        net::bind(&socket, &addr)?;
        // Set after the bind, because otherwise the kernel might choose the port of another group of the same user.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        sockopt::set_socket_reuseport(&socket, true)?;
        let addr = local_addr(&socket)?;
        Ok(HeldPort {
            _socket: socket,
            addr,
        })
    }

    /// The address with the chosen port.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

/// A listening socket in this thread's descriptor table. Dropping it closes the socket and resets the connections in its queue.
#[derive(Debug)]
pub struct Listener {
    socket: Owned,
}

impl Listener {
    /// Listens on an address, which other listeners of the same user may share (`SO_REUSEPORT`). `backlog` is the length of the accept
    /// queue (the kernel limits it to `net.core.somaxconn`). `[::]` accepts IPv4 as well.
    ///
    /// # Errors
    /// Those of `socket`, `setsockopt`, `bind` and `listen`.
    pub fn bind(addr: SocketAddr, backlog: u32, options: &SocketOptions) -> io::Result<Listener> {
        let socket = open_socket(addr)?;
        let fd = socket.fd().lend();
        sockopt::set_socket_reuseaddr(fd, true)?;
        sockopt::set_socket_reuseport(fd, true)?;
        sockopt::set_tcp_nodelay(fd, true)?;
        if addr.is_ipv6() && addr.ip().is_unspecified() {
            sockopt::set_ipv6_v6only(fd, false)?;
        }
        if let Some(bytes) = options.unsent_bytes {
            let socket = socket.fd();
            set_option(socket, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, bytes)?;
        }
        net::bind(fd, &addr)?;
        net::listen(fd, i32::try_from(backlog).unwrap_or(i32::MAX))?;
        Ok(Listener { socket })
    }

    /// The descriptor, for [`Driver::add`](super::driver::Driver::add).
    pub fn fd(&self) -> Fd {
        self.socket.fd()
    }

    /// The address of the listener. If it was bound to port 0, this has the port that the kernel chose.
    ///
    /// # Errors
    /// Those of `getsockname`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        local_addr(self.fd().lend())
    }

    /// Keeps new connections out of the queue, by dropping the packets of TCP handshakes. So the caller can empty the queue before it
    /// closes the listener; the close would reset the connections in the queue. The client's kernel tries again later, when the port is
    /// closed or belongs to another process.
    ///
    /// # Errors
    /// Those of `SO_ATTACH_FILTER` (socket(7)).
    pub fn block_new_connections(&self) -> io::Result<()> {
        // One instruction, which keeps 0 bytes of each packet.
        let mut drop_all = [libc::sock_filter {
            code: (libc::BPF_RET | libc::BPF_K) as u16,
            jt: 0,
            jf: 0,
            k: 0,
        }];
        let program = libc::sock_fprog {
            len: 1,
            // The kernel copies the instruction within the call.
            filter: drop_all.as_mut_ptr(),
        };
        set_option(self.fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program)
    }

    /// Accepts one waiting connection.
    pub fn accept(&self) -> Accepted {
        loop {
            return match acceptfrom_with(self.fd().lend(), SOCKET_FLAGS) {
                Ok((fd, peer)) => {
                    let fd = Fd::from(fd);
                    let Some(peer) = peer.and_then(socket::canonical_address) else {
                        // Cannot happen: a TCP listener has no peers of another family.
                        socket::close(fd);
                        return Accepted::Failed(libc::EAFNOSUPPORT);
                    };
                    Accepted::Connection(fd, peer)
                }
                // The peer closed the connection in the queue, or a signal interrupted the call: accept again.
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(Errno::AGAIN) => Accepted::Again,
                Err(full @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                    Accepted::Full(full.raw_os_error())
                }
                Err(other) => Accepted::Failed(other.raw_os_error()),
            };
        }
    }
}

/// The maximum number of bytes of a refused request that are discarded before the close: several times the largest head that a server
/// accepts.
const DISCARDED_BYTES_MAX: usize = 64 * 1024;

/// The maximum number of bytes of a refused request that are read: enough to reach the `Accept` field of a browser.
const SHED_HEAD_BYTES: usize = 2048;

/// The result of [`SpareDescriptor::shed`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShedOutcome {
    /// One connection was answered and closed.
    Shed,
    /// No connection waits.
    NoConnection,
    /// There was no descriptor; the caller should pause accepting.
    NoDescriptor,
}

/// A spare descriptor. With it, a waiting connection can be refused with an answer when the table is full.
///
/// Without it the clients in the queue would wait in vain, and every wait of the poller would report the listener as ready.
#[derive(Debug)]
pub struct SpareDescriptor {
    spare: Option<Owned>,
}

impl SpareDescriptor {
    /// Reserves a descriptor.
    ///
    /// # Errors
    /// If the table is already full.
    pub fn new() -> io::Result<SpareDescriptor> {
        Ok(SpareDescriptor {
            spare: Some(open_spare()?),
        })
    }

    /// Refuses one waiting connection, using the spare descriptor: accepts it, sends the answer and closes it. `answer` makes the answer
    /// from the first bytes of the request that have arrived. The answer is cut off if the socket does not take all of it.
    ///
    /// Discards the bytes that the client has sent so far. With these bytes unread, the close would reset the connection, perhaps before
    /// the client has read the answer. Bytes that arrive later still cause a reset.
    pub fn shed(
        &mut self,
        listener: &Listener,
        answer: impl FnOnce(&[u8]) -> Vec<u8>,
    ) -> ShedOutcome {
        self.spare = None;
        let outcome = match listener.accept() {
            Accepted::Connection(fd, _) => {
                let mut head = [0; SHED_HEAD_BYTES];
                let read = match socket::recv(fd, &mut head) {
                    Received::Bytes(read) => read,
                    Received::End | Received::Again | Received::Failed(_) => 0,
                };
                socket::send(fd, &answer(&head[..read]));
                socket::shutdown_write(fd);
                discard_received(fd);
                socket::close(fd);
                ShedOutcome::Shed
            }
            Accepted::Again => ShedOutcome::NoConnection,
            Accepted::Full(_) | Accepted::Failed(_) => ShedOutcome::NoDescriptor,
        };
        // This fails only if the machine is out of descriptors or memory. Then the next call tries again.
        self.spare = open_spare().ok();
        outcome
    }
}

fn open_spare() -> io::Result<Owned> {
    // An eventfd is the cheapest descriptor, and needs no file system.
    Ok(eventfd(0, EventfdFlags::CLOEXEC)?.into())
}

fn discard_received(fd: Fd) {
    // SAFETY: with `MSG_TRUNC` TCP drops the bytes and writes nothing, so that no buffer is needed (tcp(7)).
    unsafe {
        libc::recv(
            fd.raw(),
            std::ptr::null_mut(),
            DISCARDED_BYTES_MAX,
            libc::MSG_DONTWAIT | libc::MSG_TRUNC,
        )
    };
}
