//! Listening sockets, one for each shard and address, and the refusal when the descriptor table is full.
//!
//! All listeners of an address form a group (`SO_REUSEPORT`) over which the kernel spreads connections by a hash
//! of the address pair. Options that accepted sockets inherit (`TCP_NODELAY`, `TCP_NOTSENT_LOWAT`) are set
//! once on the listener, so that an accept is one system call.
//!
//! Invariant: a listener is made in the table of its shard, after [`part`](super::fd_table::part); another table's
//! inherited copy would keep receiving connections that no thread accepts.
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
    /// Bytes that the kernel keeps unsent before it takes no more (`TCP_NOTSENT_LOWAT`, tcp(7)); `None` leaves it to the kernel.
    pub unsent_bytes: Option<u32>,
}

/// The result of an accept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Accepted {
    /// A non-blocking socket and the address of its peer.
    Connection(Fd, SocketAddr),
    /// No connection waits.
    Again,
    /// There is no descriptor or no memory for one more (`EMFILE`, `ENFILE`, `ENOBUFS`, `ENOMEM`). The queue
    /// may be empty all the same. See [`Reserve`].
    Full(i32),
    /// The waiting connection is broken, or the listener is (`errno`); the next one may do.
    Failed(i32),
}

/// How every socket is made.
const SOCKET: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// A TCP socket for an address like this one.
fn open(addr: SocketAddr) -> io::Result<Owned> {
    Ok(socket_with(family(addr), SocketType::STREAM, SOCKET, None)?.into())
}

fn family(addr: SocketAddr) -> AddressFamily {
    if addr.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    }
}

fn local_addr(socket: impl AsFd) -> io::Result<SocketAddr> {
    socket::address(net::getsockname(socket)?).ok_or_else(|| io::ErrorKind::Unsupported.into())
}

/// A port that the kernel chose, held until this is dropped: the kernel gives it to no other socket, be it one that binds to port 0
/// or one that connects. A server that names the port can listen on it, once or several times one after the other, if it sets
/// `SO_REUSEADDR`, as servers do; this socket itself never listens.
#[derive(Debug)]
pub struct HeldPort {
    _socket: OwnedFd,
    addr: SocketAddr,
}

impl HeldPort {
    /// Has the kernel choose a port at this address, of which the port is 0.
    ///
    /// # Errors
    /// Those of `socket`, `bind`, `getsockname` and `setsockopt`.
    pub fn choose(addr: SocketAddr) -> io::Result<HeldPort> {
        let socket = socket_with(family(addr), SocketType::STREAM, SOCKET, None)?;
        net::bind(&socket, &addr)?;
        // Only now: before, the kernel might have chosen the port of another group of the same user.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        sockopt::set_socket_reuseport(&socket, true)?;
        let addr = local_addr(&socket)?;
        Ok(HeldPort {
            _socket: socket,
            addr,
        })
    }

    /// The address with the port.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

/// A listening socket of this thread's table, closed with the value. Closing resets the connections in its queue.
#[derive(Debug)]
pub struct Listener {
    socket: Owned,
}

impl Listener {
    /// Listens on an address, beside any other listener of the same user that is bound so. `backlog` is the length of the
    /// accept queue (the kernel caps it at `net.core.somaxconn`). `[::]` takes IPv4 as well.
    ///
    /// # Errors
    /// Those of `socket`, `setsockopt`, `bind` and `listen`.
    pub fn bind(addr: SocketAddr, backlog: u32, options: &SocketOptions) -> io::Result<Listener> {
        let socket = open(addr)?;
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

    /// The address that it listens on, with the port that the kernel chose for port 0.
    ///
    /// # Errors
    /// Those of `getsockname`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        local_addr(self.fd().lend())
    }

    /// Lets no more connections into the queue: the packets of a handshake are dropped, so that the queue can be emptied
    /// before the close, which would reset it. A client that is kept out tries again, and finds the port closed or taken by
    /// another process.
    ///
    /// # Errors
    /// Those of `SO_ATTACH_FILTER` (socket(7)).
    pub fn bar(&self) -> io::Result<()> {
        // One instruction: of each packet keep nothing.
        let mut nothing = [libc::sock_filter {
            code: (libc::BPF_RET | libc::BPF_K) as u16,
            jt: 0,
            jf: 0,
            k: 0,
        }];
        let program = libc::sock_fprog {
            len: 1,
            // The kernel copies the instruction within the call.
            filter: nothing.as_mut_ptr(),
        };
        set_option(self.fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program)
    }

    /// Takes one waiting connection.
    pub fn accept(&self) -> Accepted {
        loop {
            return match acceptfrom_with(self.fd().lend(), SOCKET) {
                Ok((fd, peer)) => {
                    let fd = Fd::from(fd);
                    let Some(peer) = peer.and_then(socket::address) else {
                        // A TCP listener never has peers of another family.
                        socket::close(fd);
                        return Accepted::Failed(libc::EAFNOSUPPORT);
                    };
                    Accepted::Connection(fd, peer)
                }
                // The peer left while it waited: try the next one.
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

/// How much of a shed connection's request is thrown away before the close, in bytes: a head of the
/// greatest size that a server takes, several times over.
const DISCARD_MAX: usize = 64 * 1024;

/// How much of a shed connection's request is read, in bytes: enough to reach the `Accept` field of a browser.
const SHED_HEAD_BYTES: usize = 2048;

/// The result of an attempt to shed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shed {
    /// One connection was answered and closed.
    Done,
    /// No connection waits.
    Nobody,
    /// No descriptor could be had; stop listening for a while.
    Unable,
}

/// A spare descriptor, so that a full table can still tell a waiting connection that it is full.
///
/// Without it a level-triggered listener of a full table is ready for ever, and the clients in its queue wait in vain.
#[derive(Debug)]
pub struct Reserve {
    spare: Option<Owned>,
}

impl Reserve {
    /// Takes a descriptor into reserve.
    ///
    /// # Errors
    /// When the table is already full.
    pub fn new() -> io::Result<Reserve> {
        Ok(Reserve {
            spare: Some(spare()?),
        })
    }

    /// Gives up the spare descriptor for one waiting connection, sends it the answer that `answer` makes of the first bytes
    /// of its request (as far as they have come and the socket takes the answer), closes it and takes the spare back.
    ///
    /// Bytes that the client has sent so far are read and discarded, so that the close does not reset the connection before
    /// the client has read the answer. Bytes that it sends later are answered by a reset.
    pub fn shed(&mut self, listener: &Listener, answer: impl FnOnce(&[u8]) -> Vec<u8>) -> Shed {
        self.spare = None;
        let shed = match listener.accept() {
            Accepted::Connection(fd, _) => {
                let mut head = [0; SHED_HEAD_BYTES];
                let read = match socket::recv(fd, &mut head) {
                    Received::Bytes(read) => read,
                    Received::End | Received::Again | Received::Failed(_) => 0,
                };
                socket::send(fd, &answer(&head[..read]));
                socket::shutdown_write(fd);
                discard(fd);
                socket::close(fd);
                Shed::Done
            }
            Accepted::Again => Shed::Nobody,
            Accepted::Full(_) | Accepted::Failed(_) => Shed::Unable,
        };
        // Fails only when the whole machine is out of descriptors or memory; the next shed tries again.
        self.spare = spare().ok();
        shed
    }
}

fn spare() -> io::Result<Owned> {
    // The cheapest descriptor that needs no file system.
    Ok(eventfd(0, EventfdFlags::CLOEXEC)?.into())
}

fn discard(fd: Fd) {
    // SAFETY: with `MSG_TRUNC` TCP drops the bytes and writes nothing, so that no buffer is needed (tcp(7)).
    unsafe {
        libc::recv(
            fd.raw(),
            std::ptr::null_mut(),
            DISCARD_MAX,
            libc::MSG_DONTWAIT | libc::MSG_TRUNC,
        )
    };
}
