//! Kernel sockets and connections over `AF_XDP` of one shard, side by side.
//!
//! Invariant: the numbers of links of kernel sockets are even, those of the others are odd. So both are small, as [`Link`] demands.

use std::io;
use std::net::IpAddr;

use crore_tcp::Conn;

use super::tcp_endpoint::TcpEndpoint;
use crate::kernel::Kernel;
use crate::sys::Fd;
use crate::transport::{AcceptResult, Event, Link, OwnTcpStats, Received, Sent, Transport};

/// The connections of a shard that has both kinds.
pub struct XdpTransport {
    kernel: Kernel,
    endpoint: TcpEndpoint,
    /// The number of listeners of the kernel, whose numbers come first.
    kernel_listeners: usize,
    /// The number of events of the last wait that are the kernel's, and come first.
    kernel_events: usize,
}

/// Which of the two a link belongs to.
enum Side {
    Kernel(Link),
    Endpoint(Conn),
}

fn side(link: Link) -> Side {
    match link.0 % 2 {
        0 => Side::Kernel(Link(link.0 / 2)),
        _ => Side::Endpoint(Conn(link.0 / 2)),
    }
}

impl XdpTransport {
    /// Joins the two. `descriptors` tell when frames have arrived.
    ///
    /// # Errors
    /// If the kernel has no memory for it.
    pub fn new(
        mut kernel: Kernel,
        (endpoint, descriptors): (TcpEndpoint, Vec<Fd>),
    ) -> io::Result<XdpTransport> {
        for descriptor in descriptors {
            kernel.woken_while_readable(descriptor)?;
        }
        Ok(XdpTransport {
            kernel_listeners: kernel.listeners(),
            kernel,
            endpoint,
            kernel_events: 0,
        })
    }
}

impl Transport for XdpTransport {
    fn wait(&mut self, timeout_ms: Option<u32>) -> io::Result<usize> {
        let sleep_ms = self.endpoint.end_turn(self.kernel_listeners);
        let timeout_ms = timeout_ms.into_iter().chain(sleep_ms).min();
        self.kernel_events = self.kernel.wait(timeout_ms)?;
        self.endpoint.receive(self.kernel_listeners);
        Ok(self.kernel_events + self.endpoint.events().len())
    }

    fn event(&self, index: usize) -> Event {
        match index.checked_sub(self.kernel_events) {
            Some(index) => self.endpoint.events()[index],
            None => self.kernel.event(index),
        }
    }

    fn accept(
        &mut self,
        listener: usize,
        now_ms: u64,
        answer: impl FnOnce(&[u8]) -> Vec<u8>,
    ) -> AcceptResult {
        let Some(listener) = listener.checked_sub(self.kernel_listeners) else {
            return match self.kernel.accept(listener, now_ms, answer) {
                AcceptResult::Connection(link, peer) => {
                    AcceptResult::Connection(Link(link.0 * 2), peer)
                }
                other => other,
            };
        };
        match self.endpoint.accept(listener, answer) {
            AcceptResult::Connection(link, peer) => {
                AcceptResult::Connection(Link(link.0 * 2 + 1), peer)
            }
            other => other,
        }
    }

    fn pause(&mut self, until_ms: u64) {
        self.kernel.pause(until_ms);
        self.endpoint.pause(until_ms);
    }

    fn room(&self) -> u32 {
        // Those of the endpoint need no descriptor, and have a limit of their own.
        let of_endpoint = self.endpoint.limits().connections;
        self.kernel.room().saturating_add(of_endpoint)
    }

    fn adjust_accepting(&mut self, connections: u32, now_ms: u64) -> io::Result<()> {
        self.endpoint.adjust_accepting(now_ms);
        let of_kernel = connections.saturating_sub(self.endpoint.links());
        self.kernel.adjust_accepting(of_kernel, now_ms)
    }

    fn block_new_connections(&mut self) -> usize {
        self.endpoint.block_new_connections();
        self.kernel.block_new_connections();
        self.kernel_listeners + self.endpoint.listeners()
    }

    fn close_listeners(&mut self) {
        self.kernel.close_listeners();
        self.endpoint.close_listeners();
        // Nobody may accept from them any more.
        self.kernel_listeners = 0;
    }

    fn open(&mut self, link: Link, token: u64) -> io::Result<()> {
        match side(link) {
            Side::Kernel(link) => self.kernel.open(link, token),
            Side::Endpoint(conn) => {
                self.endpoint.set_interest(conn, token, true, false);
                Ok(())
            }
        }
    }

    fn set_interest(&mut self, link: Link, token: u64, read: bool, write: bool) -> io::Result<()> {
        match side(link) {
            Side::Kernel(link) => self.kernel.set_interest(link, token, read, write),
            Side::Endpoint(conn) => {
                self.endpoint.set_interest(conn, token, read, write);
                Ok(())
            }
        }
    }

    fn receive(&mut self, link: Link, buffer: &mut [u8]) -> Received {
        match side(link) {
            Side::Kernel(link) => self.kernel.receive(link, buffer),
            Side::Endpoint(conn) => self.endpoint.read(conn, buffer),
        }
    }

    fn send<P: AsRef<[u8]>>(&mut self, link: Link, parts: &[P]) -> Sent {
        match side(link) {
            Side::Kernel(link) => self.kernel.send(link, parts),
            Side::Endpoint(conn) => self.endpoint.send(conn, parts),
        }
    }

    fn shut_down(&mut self, link: Link) {
        match side(link) {
            Side::Kernel(link) => self.kernel.shut_down(link),
            Side::Endpoint(conn) => self.endpoint.shut_down(conn),
        }
    }

    fn close(&mut self, link: Link) {
        match side(link) {
            Side::Kernel(link) => self.kernel.close(link),
            Side::Endpoint(conn) => self.endpoint.close(conn, false),
        }
    }

    fn reset(&mut self, link: Link) {
        match side(link) {
            Side::Kernel(link) => self.kernel.reset(link),
            Side::Endpoint(conn) => self.endpoint.close(conn, true),
        }
    }

    fn peer(&self, link: Link) -> Option<IpAddr> {
        match side(link) {
            Side::Kernel(link) => self.kernel.peer(link),
            Side::Endpoint(conn) => Some(self.endpoint.peer(conn)),
        }
    }

    fn own_tcp_stats(&self) -> OwnTcpStats {
        self.endpoint.stats()
    }
}
