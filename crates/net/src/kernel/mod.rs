//! Kernel sockets, the usual implementation of [`Transport`]: epoll, listeners that share a port, and a descriptor table for each shard
//! thread.
//!
//! Invariant: the number of a [`Link`] is its descriptor ([`Fd`]), in the table of the thread that made the [`Kernel`]. In another table
//! that number is another socket, so every owner of a descriptor is `!Send`.

pub mod acceptor;
pub mod driver;
pub mod fd_table;
pub mod listener;
pub mod socket;
pub mod steering;

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::clock;
use crate::mailbox::Inbox;
use crate::sys::Fd;
use crate::transport::{AcceptResult, Event, Link, Received, Sent, Transport};
use acceptor::Acceptor;
use driver::Driver;
use steering::Group;

/// The maximum number of events of one wait.
const EVENTS_MAX: usize = 256;
/// The maximum number of parts of one send; the list of parts is on the stack.
const PARTS_MAX: usize = 32;

/// The sockets of one shard thread.
pub struct Kernel {
    driver: Driver,
    acceptor: Acceptor,
}

impl Kernel {
    /// Listens on these addresses, as a member of the group, in the descriptor table of this thread. Must be called when everything else
    /// that this thread needs has its descriptors.
    ///
    /// # Errors
    /// If there is no descriptor left, or an address cannot be bound.
    pub fn open(
        listen: &[SocketAddr],
        limits: acceptor::Limits,
        group: &Arc<Group>,
    ) -> io::Result<Kernel> {
        let mut driver = Driver::new(EVENTS_MAX)?;
        let acceptor = Acceptor::open(listen, limits, group, &mut driver)?;
        Ok(Kernel { driver, acceptor })
    }

    /// Makes a wait end when mail arrives in this inbox.
    ///
    /// # Errors
    /// If the kernel has no memory for it.
    pub fn woken_by<T: Send>(&mut self, inbox: &Inbox<T>) -> io::Result<()> {
        self.driver.add_wake(inbox.fd())
    }

    /// Makes a wait end while there is something to read from this descriptor.
    ///
    /// # Errors
    /// If the kernel has no memory for it.
    pub(crate) fn woken_while_readable(&mut self, fd: Fd) -> io::Result<()> {
        self.driver.add(fd, driver::WAKE_TOKEN)
    }

    /// The number of listeners.
    pub(crate) fn listeners(&self) -> usize {
        self.acceptor.listeners().len()
    }
}

fn fd(link: Link) -> Fd {
    Fd(link.0)
}

impl Transport for Kernel {
    fn wait(&mut self, timeout_ms: Option<u32>) -> io::Result<usize> {
        let pause = match timeout_ms {
            Some(0) => None,
            _ => self.acceptor.paused_until_ms(),
        };
        let pause_ms = pause.map(|until_ms| {
            let left_ms = until_ms.saturating_sub(clock::monotonic_ms());
            left_ms.max(1) as u32
        });
        self.driver
            .wait(pause_ms.into_iter().chain(timeout_ms).min())
    }

    #[inline]
    fn event(&self, index: usize) -> Event {
        self.driver.event(index)
    }

    fn accept(
        &mut self,
        listener: usize,
        now_ms: u64,
        answer: impl FnOnce(&[u8]) -> Vec<u8>,
    ) -> AcceptResult {
        self.acceptor.accept(listener, now_ms, answer)
    }

    fn pause(&mut self, until_ms: u64) {
        self.acceptor.pause(until_ms);
    }

    fn room(&self) -> u32 {
        self.acceptor.room()
    }

    fn adjust_accepting(&mut self, connections: u32, now_ms: u64) -> io::Result<()> {
        self.acceptor
            .adjust_accepting(&mut self.driver, connections, now_ms)
    }

    fn block_new_connections(&mut self) -> usize {
        self.acceptor.block_new_connections();
        self.acceptor.listeners().len()
    }

    fn close_listeners(&mut self) {
        self.acceptor.close();
    }

    fn open(&mut self, link: Link, token: u64) -> io::Result<()> {
        self.driver.add(fd(link), token)
    }

    fn set_interest(&mut self, link: Link, token: u64, read: bool, write: bool) -> io::Result<()> {
        self.driver.modify(fd(link), token, read, write)
    }

    #[inline]
    fn receive(&mut self, link: Link, buffer: &mut [u8]) -> Received {
        socket::recv(fd(link), buffer)
    }

    #[inline]
    fn send<P: AsRef<[u8]>>(&mut self, link: Link, parts: &[P]) -> Sent {
        if let [one] = parts {
            return socket::send(fd(link), one.as_ref());
        }
        let mut slices = [IoSlice::new(&[]); PARTS_MAX];
        for (slice, part) in slices.iter_mut().zip(parts) {
            *slice = IoSlice::new(part.as_ref());
        }
        socket::send_vectored(fd(link), &slices[..parts.len().min(PARTS_MAX)])
    }

    fn shut_down(&mut self, link: Link) {
        socket::shutdown_write(fd(link));
    }

    fn close(&mut self, link: Link) {
        socket::close(fd(link));
    }

    fn reset(&mut self, link: Link) {
        socket::reset(fd(link));
    }

    fn peer(&self, link: Link) -> Option<IpAddr> {
        socket::peer(fd(link)).map(|peer| peer.ip())
    }
}
