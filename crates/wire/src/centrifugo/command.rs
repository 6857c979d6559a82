//! The commands of a client, as slices of the frame and of the scratch buffer.

use super::error::Error;
use super::raw::{Raw, Scratch, Span};
use super::schema::RequestKind;
use core::fmt;

/// A command.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Command<'a> {
    /// The id that the reply repeats. 0 for [`Request::Pong`], and where a [`Request::Send`] has none.
    pub id: u32,
    /// What the client wants.
    pub request: Request<'a>,
}

/// What a client wants. Data is JSON text in a frame of JSON, else bytes; it is empty when it is absent. Absent texts are empty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Request<'a> {
    /// An empty command: the answer to a ping of the server.
    Pong,
    /// The first command of a connection.
    Connect(Connect<'a>),
    /// Subscribes to a channel.
    Subscribe(Subscribe<'a>),
    /// Unsubscribes from the channel.
    Unsubscribe(&'a str),
    /// Publishes a message.
    Publish(Publish<'a>),
    /// Asks who is subscribed to the channel.
    Presence(&'a str),
    /// Asks how many are subscribed to the channel.
    PresenceStats(&'a str),
    /// Asks for kept messages.
    History(History<'a>),
    /// A ping of the client.
    Ping,
    /// A message to the server, with this data, which gets no reply.
    Send(&'a [u8]),
    /// A call of the server's backend.
    Rpc {
        /// The name of the method.
        method: &'a str,
        /// The argument.
        data: &'a [u8],
    },
    /// Renews the connection with this token.
    Refresh(&'a str),
    /// Renews a subscription.
    SubRefresh(SubRefresh<'a>),
}

/// The first command of a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Connect<'a> {
    /// The connection token.
    pub token: &'a str,
    /// Data for the backend.
    pub data: &'a [u8],
    /// Positions of server-side subscriptions, to recover them.
    pub subs: Subs<'a>,
    /// The name of the client's program or library.
    pub name: &'a str,
    /// The version of the client.
    pub version: &'a str,
    /// Headers that a browser cannot send, for the backend.
    pub headers: Headers<'a>,
}

/// A subscription that a client wants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Subscribe<'a> {
    /// The channel.
    pub channel: &'a str,
    /// The subscription token.
    pub token: &'a str,
    /// Whether to send the messages after `offset`.
    pub recover: bool,
    /// The epoch of `offset`.
    pub epoch: &'a str,
    /// The position of the last message that the client has.
    pub offset: u64,
    /// Data for the backend.
    pub data: &'a [u8],
    /// Whether the server must check that nothing is lost.
    pub positioned: bool,
    /// Whether the client wants to recover later.
    pub recoverable: bool,
    /// Whether the client wants joins and leaves.
    pub join_leave: bool,
    /// The kind of delta that the client understands, like `fossil`.
    pub delta: &'a str,
    /// Whether the client wants only the messages whose tags pass a filter.
    pub filter: bool,
    /// The type of the subscription: 0 is a stream of messages.
    pub kind: i32,
}

/// A message that a client publishes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Publish<'a> {
    /// The channel.
    pub channel: &'a str,
    /// The message.
    pub data: &'a [u8],
    /// The type of the publication: 0 is a message of a stream.
    pub kind: i32,
}

/// A question for kept messages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct History<'a> {
    /// The channel.
    pub channel: &'a str,
    /// The maximum number of messages; 0 asks only for the position, and a negative number is no limit.
    pub limit: i32,
    /// Only messages after this position.
    pub since: Option<Position<'a>>,
    /// From the newest to the oldest.
    pub reverse: bool,
}

/// A position of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position<'a> {
    /// The offset of the last message.
    pub offset: u64,
    /// The epoch of the offset.
    pub epoch: &'a str,
}

/// A new token for a subscription.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SubRefresh<'a> {
    /// The channel.
    pub channel: &'a str,
    /// The new token.
    pub token: &'a str,
    /// The type of the request: 0 renews the subscription.
    pub kind: i32,
}

/// The body of a request to `/emulation`, which carries commands of a connection whose transport only goes to the client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Emulation<'a> {
    /// The node that has the connection.
    pub node: &'a str,
    /// The session of the connection.
    pub session: &'a str,
    /// A frame of commands.
    pub data: &'a [u8],
}

/// The subscriptions of a [`Connect`]. A channel may come twice.
#[derive(Clone, Copy)]
pub struct Subs<'a> {
    bytes: Bytes<'a>,
    subs: &'a [Raw],
}

impl<'a> Subs<'a> {
    /// The subscriptions, in the order of the frame.
    pub fn iter(&self) -> impl Iterator<Item = Subscribe<'a>> + use<'a> {
        let bytes = self.bytes;
        self.subs.iter().map(move |sub| bytes.subscribe(sub))
    }
}

impl fmt::Debug for Subs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl PartialEq for Subs<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

/// The headers of a [`Connect`]. A name may come twice.
#[derive(Clone, Copy)]
pub struct Headers<'a> {
    bytes: Bytes<'a>,
    headers: &'a [(Span, Span)],
}

impl<'a> Headers<'a> {
    /// Names and values, in the order of the frame.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let bytes = self.bytes;
        let pair = move |&(name, value)| (bytes.text(name), bytes.text(value));
        self.headers.iter().map(pair)
    }
}

impl fmt::Debug for Headers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl PartialEq for Headers<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

/// What places point into.
#[derive(Clone, Copy)]
struct Bytes<'a> {
    frame: &'a [u8],
    decoded: &'a [u8],
}

impl<'a> Bytes<'a> {
    fn of(self, span: Span) -> &'a [u8] {
        match span.decoded {
            true => &self.decoded[span.start..span.end],
            false => &self.frame[span.start..span.end],
        }
    }

    fn text(self, span: Span) -> &'a str {
        core::str::from_utf8(self.of(span)).expect("the reader has checked it")
    }

    fn subscribe(self, raw: &Raw) -> Subscribe<'a> {
        Subscribe {
            channel: self.text(raw.channel),
            token: self.text(raw.token),
            recover: raw.recover,
            epoch: self.text(raw.epoch),
            offset: raw.offset,
            data: self.of(raw.data),
            positioned: raw.positioned,
            recoverable: raw.recoverable,
            join_leave: raw.join_leave,
            delta: self.text(raw.delta),
            filter: raw.filter,
            kind: raw.kind,
        }
    }
}

pub(super) fn connect<'a>(raw: &Raw, frame: &'a [u8], scratch: &'a Scratch) -> Connect<'a> {
    let bytes = Bytes {
        frame,
        decoded: &scratch.text,
    };
    Connect {
        token: bytes.text(raw.token),
        data: bytes.of(raw.data),
        subs: subs(frame, scratch),
        name: bytes.text(raw.name),
        version: bytes.text(raw.version),
        headers: Headers {
            bytes,
            headers: &scratch.headers,
        },
    }
}

pub(super) fn subs<'a>(frame: &'a [u8], scratch: &'a Scratch) -> Subs<'a> {
    let bytes = Bytes {
        frame,
        decoded: &scratch.text,
    };
    Subs {
        bytes,
        subs: &scratch.subs,
    }
}

pub(super) fn channel<'a>(raw: &Raw, frame: &'a [u8], scratch: &'a Scratch) -> &'a str {
    let bytes = Bytes {
        frame,
        decoded: &scratch.text,
    };
    bytes.text(raw.channel)
}

pub(super) fn emulation<'a>(raw: &Raw, frame: &'a [u8], scratch: &'a Scratch) -> Emulation<'a> {
    let bytes = Bytes {
        frame,
        decoded: &scratch.text,
    };
    Emulation {
        node: bytes.text(raw.node),
        session: bytes.text(raw.session),
        data: bytes.of(raw.data),
    }
}

pub(super) fn command<'a>(
    raw: &Raw,
    frame: &'a [u8],
    scratch: &'a Scratch,
) -> Result<Command<'a>, Error> {
    let bytes = Bytes {
        frame,
        decoded: &scratch.text,
    };
    let channel = || bytes.text(raw.channel);
    let request = match raw.request {
        None if raw.id == 0 => Request::Pong,
        None => return Err(Error::NoRequest),
        Some(RequestKind::Send) => Request::Send(bytes.of(raw.data)),
        Some(_) if raw.id == 0 => return Err(Error::NoId),
        Some(RequestKind::Connect) => Request::Connect(connect(raw, frame, scratch)),
        Some(RequestKind::Subscribe) => Request::Subscribe(bytes.subscribe(raw)),
        Some(RequestKind::Unsubscribe) => Request::Unsubscribe(channel()),
        Some(RequestKind::Publish) => Request::Publish(Publish {
            channel: channel(),
            data: bytes.of(raw.data),
            kind: raw.kind,
        }),
        Some(RequestKind::Presence) => Request::Presence(channel()),
        Some(RequestKind::PresenceStats) => Request::PresenceStats(channel()),
        Some(RequestKind::History) => Request::History(History {
            channel: channel(),
            limit: raw.limit,
            since: raw.since.then(|| Position {
                offset: raw.offset,
                epoch: bytes.text(raw.epoch),
            }),
            reverse: raw.reverse,
        }),
        Some(RequestKind::Ping) => Request::Ping,
        Some(RequestKind::Rpc) => Request::Rpc {
            method: bytes.text(raw.method),
            data: bytes.of(raw.data),
        },
        Some(RequestKind::Refresh) => Request::Refresh(bytes.text(raw.token)),
        Some(RequestKind::SubRefresh) => Request::SubRefresh(SubRefresh {
            channel: channel(),
            token: bytes.text(raw.token),
            kind: raw.kind,
        }),
    };
    Ok(Command {
        id: raw.id,
        request,
    })
}
