//! The contract between the code that moves bytes and everything above it: TLS and the turn of a shard know connections
//! only through [`Transport`].
//!
//! Kernel sockets are the one implementation ([`kernel`](crate::kernel)). Another one, such as a TCP of our own, must keep
//! these invariants:
//!
//! * A [`Link`] is a small number, and is given to another connection only after it was closed: tables above are indexed by it.
//! * Readiness is level-triggered: an event that was not dealt with is reported again by the next wait.
//! * A failed connection is reported as hung up, also when a send has met the failure first.
//! * A transport belongs to one thread. Only [`wait`](Transport::wait) blocks, and nothing that a peer does panics.
//!
//! Deliberately not here: how a transport is made. Only the code that starts a shard's thread knows which one it is.

use std::io;
use std::net::IpAddr;

/// A connection of one transport. It is `Copy` and owns nothing: the row of the connection closes it, once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link(pub u32);

/// An event found by a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Something happened to a connection.
    Link(Readiness),
    /// A connection may wait at this listener.
    Arrival(usize),
    /// Another thread has woken this one: there is mail.
    Woken,
}

/// The readiness of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Readiness {
    /// The token given when the connection was opened, or with its last interest.
    pub token: u64,
    /// Bytes or an end wait to be received.
    pub readable: bool,
    /// There is room for bytes to be sent.
    pub writable: bool,
    /// The peer has ended its sending, or both directions are over, or the connection failed. There may still be bytes to
    /// receive.
    pub hangup: bool,
}

/// The result of an attempt to accept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// A connection, and the address of its peer.
    Connection(Link, IpAddr),
    /// One connection was answered and turned away for want of room (`errno`); more may wait.
    Shed(i32),
    /// No connection waits, or none is accepted now.
    Nobody,
    /// No connection is accepted for a while: there is no room (`errno`) even to turn one away.
    Stuck(i32),
    /// The waiting connection is broken, or the listener is (`errno`).
    Failed(i32),
}

/// The result of a receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Received {
    /// So many bytes, at least one.
    Bytes(usize),
    /// The peer sends no more.
    End,
    /// Nothing is there now.
    Again,
    /// The connection is over, with this `errno`.
    Failed(i32),
}

/// The result of a send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// So many bytes were taken, perhaps fewer than were offered.
    Bytes(usize),
    /// No bytes are taken now.
    Again,
    /// The connection is over, with this `errno`.
    Failed(i32),
}

/// All connections of one shard, and the way in for new ones.
pub trait Transport {
    /// Waits until something is ready or `timeout_ms` has passed (`None`: without end, 0: only looks) and says how many
    /// events there are. It may return early, with none.
    ///
    /// # Errors
    /// Only those of a broken program.
    fn wait(&mut self, timeout_ms: Option<u32>) -> io::Result<usize>;

    /// The event `n` of the last wait.
    ///
    /// # Panics
    /// When the last wait found no such event.
    fn event(&self, n: usize) -> Event;

    /// Accepts a connection from the listener, or turns one away with the answer that `answer` makes of the bytes received
    /// so far.
    fn accept(
        &mut self,
        listener: usize,
        now_ms: u64,
        answer: impl FnOnce(&[u8]) -> Vec<u8>,
    ) -> Arrival;

    /// Accepts nothing until this time of the monotonic clock: new connections wait, and none is reported.
    fn pause(&mut self, until_ms: u64);

    /// How many connections there is room for; a few more can be answered that there is none.
    fn room(&self) -> u32;

    /// Ends a turn after which so many accepted connections are open, and adjusts how new ones are accepted.
    ///
    /// # Errors
    /// When new connections cannot be kept from coming here although there is no room.
    fn settle(&mut self, connections: u32, now_ms: u64) -> io::Result<()>;

    /// Lets no more connections arrive, and returns how many listeners there are; those already queued can still be
    /// accepted, also during a pause.
    fn bar(&mut self) -> usize;

    /// Closes the listeners, which resets the connections in their queues.
    fn close_listeners(&mut self);

    /// Begins to report events of an accepted connection, under this token; it is read. The topmost bit of a token is 0.
    ///
    /// # Errors
    /// When there is no room for it: nothing will ever be reported.
    fn open(&mut self, link: Link, token: u64) -> io::Result<()>;

    /// Replaces token and interest of an open connection. The end of a peer's sending is reported only while
    /// the connection is read, and then at every wait; a failure always is.
    ///
    /// # Errors
    /// When the connection is not open.
    fn interest(&mut self, link: Link, token: u64, read: bool, write: bool) -> io::Result<()>;

    /// Receives available bytes, up to the length of `buffer`.
    ///
    /// # Panics
    /// When `buffer` is empty: the answer could not be told from an end.
    fn receive(&mut self, link: Link, buffer: &mut [u8]) -> Received;

    /// Sends as much of the parts, one after the other, as is taken. A part may be any of the caller's types: a
    /// reference-counted one is passed as it is, and need not be copied where it must be kept until the peer has
    /// acknowledged it.
    fn send<P: AsRef<[u8]>>(&mut self, link: Link, parts: &[P]) -> Sent;

    /// Ends our sending; the peer reads an end after all bytes sent before. A connection that is over already stays so.
    fn shut_down(&mut self, link: Link);

    /// Closes the connection. Sent bytes are still delivered, unless bytes of the peer were not received.
    fn close(&mut self, link: Link);

    /// Closes the connection at once: unsent bytes are dropped, and the peer gets a reset.
    fn reset(&mut self, link: Link);

    /// The peer's address, if it is known.
    fn peer(&self, link: Link) -> Option<IpAddr>;
}
