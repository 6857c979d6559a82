//! The commands of a client. Their values are slices of the frame and of the scratch buffer.

use super::error::Error;
use super::raw::{Raw, Scratch, Span};
use super::schema::RequestKind;
use core::fmt;

/// A command.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Command<'a> {
    /// The id that the reply repeats. 0 for a [`Request::Pong`], and for a [`Request::Send`] without an id.
    pub id: u32,
    /// What the client asks for.
    pub request: Request<'a>,
}

/// What a client asks for. Data is JSON text in a JSON frame, otherwise bytes. An absent text or absent data is empty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Request<'a> {
    /// The answer to a ping of the server: an empty command.
    Pong,
    /// The first command of a connection.
    Connect(Connect<'a>),
    /// Subscribes to a channel.
    Subscribe(Subscribe<'a>),
    /// Unsubscribes from the channel.
    Unsubscribe(&'a str),
    /// Publishes a message.
    Publish(Publish<'a>),
    /// Asks for the subscribers of the channel.
    Presence(&'a str),
    /// Asks for the number of subscribers of the channel.
    PresenceStats(&'a str),
    /// Asks for stored messages.
    History(History<'a>),
    /// A ping of the client.
    Ping,
    /// A message with this data to the server, without a reply.
    Send(&'a [u8]),
    /// A call of a method of the backend.
    Rpc {
        /// The name of the method.
        method: &'a str,
        /// The argument.
        data: &'a [u8],
    },
    /// Extends the connection with this token.
    Refresh(&'a str),
    /// Extends a subscription.
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
    /// HTTP headers for the backend. Browsers cannot set them on a connection, so the client sends them here.
    pub headers: Headers<'a>,
}

/// The bit of a subscribe's `flag` that sets [`Subscribe::reject_unrecovered`]. Other bits are for what is not built.
const REJECT_UNRECOVERED: u64 = 1 << 1;

/// The subscription that a client asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Subscribe<'a> {
    /// The channel.
    pub channel: &'a str,
    /// The subscription token.
    pub token: &'a str,
    /// Whether the server should send the messages after `offset`.
    pub recover: bool,
    /// The epoch of `offset`.
    pub epoch: &'a str,
    /// The position of the last message that the client received.
    pub offset: u64,
    /// Data for the backend.
    pub data: &'a [u8],
    /// Whether the server must check that no message is lost.
    pub positioned: bool,
    /// Whether the client wants to recover lost messages later.
    pub recoverable: bool,
    /// Whether the client wants to see joins and leaves.
    pub join_leave: bool,
    /// The delta format that the client understands, such as `fossil`.
    pub delta: &'a str,
    /// Whether the client asks to filter messages by their tags.
    pub filter: bool,
    /// Whether the server should answer with an error if messages after `offset` are lost.
    pub reject_unrecovered: bool,
    /// The type of the subscription. 0 means a stream of messages.
    pub kind: i32,
}

/// A message that a client publishes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Publish<'a> {
    /// The channel.
    pub channel: &'a str,
    /// The message.
    pub data: &'a [u8],
    /// The type of the publication. 0 means a message of a stream.
    pub kind: i32,
}

/// A query for stored messages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct History<'a> {
    /// The channel.
    pub channel: &'a str,
    /// The maximum number of messages. 0 asks only for the position; a negative number means no limit.
    pub limit: i32,
    /// If present, only messages after this position.
    pub since: Option<Position<'a>>,
    /// Whether the newest message comes first.
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
    /// The type of the request. 0 extends the subscription.
    pub kind: i32,
}

/// The body of a request to `/emulation`. It contains commands for a connection with a unidirectional transport.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Emulation<'a> {
    /// The node of the connection.
    pub node: &'a str,
    /// The session of the connection.
    pub session: &'a str,
    /// A frame of commands.
    pub data: &'a [u8],
}

/// The subscriptions of a [`Connect`]. The same channel may occur twice.
#[derive(Clone, Copy)]
pub struct Subs<'a> {
    bytes: Bytes<'a>,
    subs: &'a [Raw],
}

impl<'a> Subs<'a> {
    /// The subscriptions in the order of the frame.
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

/// The claims of a connection token, besides those that the verifier reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConnectClaims<'a> {
    /// The channels to which the server subscribes the client.
    pub subs: ClaimedSubs<'a>,
    /// JSON for the backend; empty without this claim.
    pub meta: &'a [u8],
    /// The Unix second in which the connection ends, in place of the token's `exp`; 0 means that it has no end.
    pub expire_at: Option<u64>,
}

/// The claims of a subscription token, besides its channel and those that the verifier reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SubscriptionClaims<'a> {
    /// Data for the client.
    pub data: ClaimedData<'a>,
    /// The Unix second in which the subscription ends, in place of the token's `exp`; 0 means that it has no end.
    pub expire_at: Option<u64>,
    /// Whether the client sees joins and leaves, if it asks for them or not.
    pub join_leave: bool,
}

/// A channel to which the server subscribes the client of a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClaimedSub<'a> {
    /// The channel.
    pub channel: &'a str,
    /// Data for the client.
    pub data: ClaimedData<'a>,
    /// Whether the client sees joins and leaves.
    pub join_leave: bool,
}

/// Data of a token for the client.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ClaimedData<'a> {
    /// The claim `data`, which is JSON; empty without it.
    pub json: &'a [u8],
    /// The claim `b64data`, which has precedence; empty without it.
    pub base64: &'a str,
}

/// The channels of a connection token. The same channel may occur twice.
#[derive(Clone, Copy)]
pub struct ClaimedSubs<'a> {
    bytes: Bytes<'a>,
    subs: &'a [Raw],
}

impl<'a> ClaimedSubs<'a> {
    /// The channels in the order of the token.
    pub fn iter(&self) -> impl Iterator<Item = ClaimedSub<'a>> + use<'a> {
        let bytes = self.bytes;
        let claimed = move |sub: &Raw| ClaimedSub {
            channel: bytes.text(sub.channel),
            data: bytes.claimed_data(sub),
            join_leave: sub.join_leave,
        };
        self.subs.iter().map(claimed)
    }
}

impl fmt::Debug for ClaimedSubs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl PartialEq for ClaimedSubs<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

/// The headers of a [`Connect`]. The same name may occur twice.
#[derive(Clone, Copy)]
pub struct Headers<'a> {
    bytes: Bytes<'a>,
    headers: &'a [(Span, Span)],
}

impl<'a> Headers<'a> {
    /// Names and values in the order of the frame.
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

/// The two buffers to which spans refer.
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

    fn claimed_data(self, raw: &Raw) -> ClaimedData<'a> {
        ClaimedData {
            json: self.of(raw.data),
            base64: self.text(raw.base64_data),
        }
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
            reject_unrecovered: raw.flags & REJECT_UNRECOVERED != 0,
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
        subs: Subs {
            bytes,
            subs: &scratch.subs,
        },
        name: bytes.text(raw.name),
        version: bytes.text(raw.version),
        headers: Headers {
            bytes,
            headers: &scratch.headers,
        },
    }
}

pub(super) fn connect_claims<'a>(
    raw: &Raw,
    claims: &'a [u8],
    scratch: &'a Scratch,
) -> ConnectClaims<'a> {
    let bytes = Bytes {
        frame: claims,
        decoded: &scratch.text,
    };
    ConnectClaims {
        subs: ClaimedSubs {
            bytes,
            subs: &scratch.subs,
        },
        meta: bytes.of(raw.meta),
        expire_at: raw.expire_at,
    }
}

pub(super) fn subscription_claims<'a>(
    raw: &Raw,
    claims: &'a [u8],
    scratch: &'a Scratch,
) -> SubscriptionClaims<'a> {
    let bytes = Bytes {
        frame: claims,
        decoded: &scratch.text,
    };
    SubscriptionClaims {
        data: bytes.claimed_data(raw),
        expire_at: raw.expire_at,
        join_leave: raw.join_leave,
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
