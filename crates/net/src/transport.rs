//! The interface to connections, [`Transport`]: TLS and the shard loop know connections only through it.
//!
//! Kernel sockets are one implementation ([`kernel`](crate::kernel)), and kernel sockets beside connections over `AF_XDP` are another
//! ([`xdp`](crate::xdp)). Each must keep these invariants:
//!
//! * A [`Link`] is a small number, because callers use it as an index of tables. It is reused only after its connection was closed.
//! * Readiness is level-triggered: an event that was not handled is reported again by the next wait.
//! * A failed connection is reported as hung up, even if a send has already reported the failure.
//! * A transport belongs to one thread. Only [`wait`](Transport::wait) blocks, and nothing that a peer does causes a panic.
//!
//! The trait deliberately has no constructor: only the code that starts the thread of a shard knows the implementation.

use std::io;
use std::net::IpAddr;

/// The number of a connection of one transport. Dropping a `Link` does not close the connection: the owner must close it, once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link(pub u32);

/// An event found by a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Something happened to a connection.
    Link(Readiness),
    /// A connection may wait at this listener.
    Listener(usize),
    /// Another thread has woken this one, because there is mail.
    Woken,
}

/// The readiness of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Readiness {
    /// The token from [`Transport::open`] or from the last [`Transport::set_interest`].
    pub token: u64,
    /// There are bytes to receive, or the end of the stream.
    pub readable: bool,
    /// The connection can take bytes to send.
    pub writable: bool,
    /// The peer has closed its sending side, or both sides are closed, or the connection failed. There may still be bytes to receive.
    pub hangup: bool,
}

/// The result of an attempt to accept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AcceptResult {
    /// A connection, and the address of its peer.
    Connection(Link, IpAddr),
    /// There is no room (`errno`), so one connection was answered and closed. More may wait.
    Shed(i32),
    /// The transport has as many connections as it may have (`xdp.connections_max`), so one was answered and closed. More may wait.
    OverLimit,
    /// No connection waits, or accepting is paused.
    NoConnection,
    /// There is no room (`errno`) even to answer and close a connection, so accepting is paused.
    CannotShed(i32),
    /// The waiting connection or the listener is broken (`errno`).
    Failed(i32),
}

/// The result of a receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Received {
    /// The number of bytes received, at least one.
    Bytes(usize),
    /// The peer has ended its stream.
    End,
    /// Nothing has arrived since the last receive.
    Again,
    /// The connection failed with this `errno`.
    Failed(i32),
}

/// The result of a send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// The number of bytes taken, perhaps fewer than were offered.
    Bytes(usize),
    /// No bytes can be taken now.
    Again,
    /// The connection failed with this `errno`.
    Failed(i32),
}

/// Counts and sizes of connections that do not pass through the kernel's TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnTcpStats {
    /// Connections that were accepted and are open.
    pub connections: u64,
    /// Connections with bytes or acknowledgements on their way.
    pub busy: u64,
    /// Bytes that are sent and not acknowledged, or received and not read.
    pub buffered_bytes: u64,
    /// Packets that were received, and packets that were sent.
    pub packets: [u64; 2],
    /// Packets that were dropped because of a wrong checksum, because they do not parse, and because they are fragments.
    pub refused: [u64; 3],
    /// Segments that were sent again.
    pub retransmitted: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Handshakes that a cookie answered, and cookies that were wrong or too old.
    pub cookies: [u64; 2],
    /// Connections that were dropped at their third packet, since there was no room.
    pub overflows: u64,
    /// Resets that ended a connection, and resets that were sent.
    pub resets: [u64; 2],
    /// Frames that the kernel has dropped because they are too large or there is no memory, because the ring of received frames was full,
    /// and because there was no free frame.
    pub dropped_frames: [u64; 3],
}

/// The connections and listeners of one shard.
pub trait Transport {
    /// Waits for events, at most `timeout_ms` (`None`: without limit; 0: returns at once). Returns the number of events, perhaps 0
    /// even before the time is over.
    ///
    /// # Errors
    /// Only after a programming error.
    fn wait(&mut self, timeout_ms: Option<u32>) -> io::Result<usize>;

    /// Event number `index` of the last wait.
    ///
    /// # Panics
    /// If the last wait found no such event.
    fn event(&self, index: usize) -> Event;

    /// Accepts a connection from the listener. If there is no room, sends the client an answer instead and closes the connection: `answer`
    /// makes it from the bytes received so far.
    fn accept(
        &mut self,
        listener: usize,
        now_ms: u64,
        answer: impl FnOnce(&[u8]) -> Vec<u8>,
    ) -> AcceptResult;

    /// Accepts no connections, and reports no arrivals, until this time of the monotonic clock. New connections wait in the accept queue.
    fn pause(&mut self, until_ms: u64);

    /// The number of connections for which there is room. A few more can be accepted only to answer and close them.
    fn room(&self) -> u32;

    /// Must be called at the end of each round of the shard's loop: adjusts how new connections are accepted. `connections` is the number
    /// of accepted connections that are open.
    ///
    /// # Errors
    /// If there is no room and new connections cannot be directed to other shards.
    fn adjust_accepting(&mut self, connections: u32, now_ms: u64) -> io::Result<()>;

    /// Lets no more connections into the accept queues, and returns the number of listeners. Queued connections can still be
    /// accepted, also during a pause.
    fn block_new_connections(&mut self) -> usize;

    /// Closes the listeners, which resets the connections in their queues.
    fn close_listeners(&mut self);

    /// Begins to report events of an accepted connection with this token, whose top bit must be 0. The first interest is in reading.
    ///
    /// # Errors
    /// If there is no room for the registration. Then no events are reported.
    fn open(&mut self, link: Link, token: u64) -> io::Result<()>;

    /// Replaces the token and the interest of an open connection. The end of the peer's stream is reported only with `read`, and then
    /// by every wait; a failure is always reported.
    ///
    /// # Errors
    /// If the connection is not open.
    fn set_interest(&mut self, link: Link, token: u64, read: bool, write: bool) -> io::Result<()>;

    /// Receives available bytes, up to the length of `buffer`.
    ///
    /// # Panics
    /// If `buffer` is empty, since the result would look like an end.
    fn receive(&mut self, link: Link, buffer: &mut [u8]) -> Received;

    /// Sends the parts in order, as many bytes as the connection takes. The type of the parts is generic, so that a transport which must
    /// keep bytes until the peer acknowledges them can keep a reference-counted part without a copy.
    fn send<P: AsRef<[u8]>>(&mut self, link: Link, parts: &[P]) -> Sent;

    /// Closes our sending side: the peer reads an end after all bytes sent before. Does nothing if the connection is over.
    fn shut_down(&mut self, link: Link);

    /// Closes the connection. Bytes already sent are still delivered, unless there are unreceived bytes of the peer.
    fn close(&mut self, link: Link);

    /// Closes the connection with a reset, and drops unsent bytes.
    fn reset(&mut self, link: Link);

    /// The peer's address, if it is known.
    fn peer(&self, link: Link) -> Option<IpAddr>;

    /// Counts and sizes of connections that do not pass through the kernel's TCP; zero without such connections.
    fn own_tcp_stats(&self) -> OwnTcpStats {
        OwnTcpStats::default()
    }
}
