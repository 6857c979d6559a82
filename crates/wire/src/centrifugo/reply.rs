//! Replies and pushes, and the fields of their messages (`client.proto`) in Centrifugo's order.

use super::codes;
use super::write::{Message, Payload, Writer};

/// The answer to a command.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reply<'a> {
    /// The id of the command.
    pub id: u32,
    /// The result or the error.
    pub answer: Answer<'a>,
}

/// The result of a command, or why there is none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Answer<'a> {
    /// The command failed.
    Error(ErrorReply<'a>),
    /// The connection is authenticated.
    Connect(ConnectResult<'a>),
    /// The subscription exists.
    Subscribe(SubscribeResult<'a>),
    /// The subscription has ended.
    Unsubscribe,
    /// The message is published.
    Publish,
    /// The subscribers of the channel, by client id.
    Presence(&'a [(&'a str, ClientInfo<'a>)]),
    /// The numbers of subscribers of the channel.
    PresenceStats {
        /// The number of connections.
        clients: u32,
        /// The number of different users.
        users: u32,
    },
    /// Stored messages.
    History(HistoryResult<'a>),
    /// The answer to a ping of the client.
    Ping,
    /// The result of a call.
    Rpc(Payload<'a>),
    /// The connection is extended.
    Refresh {
        /// The id of the client.
        client: &'a str,
        /// The version of the server.
        version: &'a str,
        /// When the connection must be refreshed again.
        ttl: Ttl,
    },
    /// The subscription is extended; its next refresh is due at this time.
    SubRefresh(Ttl),
}

/// When a connection or a subscription must be refreshed: after this number of seconds. `None` for never.
pub type Ttl = Option<u32>;

/// Why a command failed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ErrorReply<'a> {
    /// The code. 400 to 1999 are for the backend.
    pub code: u32,
    /// The text for human readers.
    pub message: &'a str,
    /// Whether a retry may help.
    pub temporary: bool,
}

impl From<codes::ErrorCode> for ErrorReply<'static> {
    fn from(error: codes::ErrorCode) -> Self {
        Self {
            code: error.code,
            message: error.text,
            temporary: error.temporary(),
        }
    }
}

/// The result of a connect.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConnectResult<'a> {
    /// The id of the client.
    pub client: &'a str,
    /// The version of the server.
    pub version: &'a str,
    /// When the client must refresh the connection.
    pub ttl: Ttl,
    /// Data for the client.
    pub data: Payload<'a>,
    /// The server-side subscriptions, with their channels.
    pub subs: &'a [(&'a str, SubscribeResult<'a>)],
    /// Interval of the server's pings in seconds; 0 if there are none.
    pub ping: u32,
    /// Whether the client must answer a ping.
    pub pong: bool,
    /// The session for `/emulation`.
    pub session: &'a str,
    /// The node for `/emulation`.
    pub node: &'a str,
}

/// The result of a subscribe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SubscribeResult<'a> {
    /// When the client must refresh the subscription.
    pub ttl: Ttl,
    /// Whether the client may later recover lost messages from a position.
    pub recoverable: bool,
    /// The epoch of `offset`.
    pub epoch: &'a str,
    /// The recovered messages.
    pub publications: &'a [Publication<'a>],
    /// Whether `publications` contains all messages since the client's position.
    pub recovered: bool,
    /// The position after `publications`.
    pub offset: u64,
    /// Whether the server checks that no message is lost.
    pub positioned: bool,
    /// Data for the client.
    pub data: Payload<'a>,
    /// Whether the client asked to recover.
    pub was_recovering: bool,
    /// Whether the server may send messages as deltas.
    pub delta: bool,
}

/// Stored messages, and the current position of the channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HistoryResult<'a> {
    /// The messages.
    pub publications: &'a [Publication<'a>],
    /// The epoch of `offset`.
    pub epoch: &'a str,
    /// The offset of the newest message.
    pub offset: u64,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Publication<'a> {
    /// The message, or its delta from the previous message.
    pub data: Payload<'a>,
    /// The client that published the message.
    pub info: Option<ClientInfo<'a>>,
    /// The position; 0 in a channel without positions.
    pub offset: u64,
    /// Labels of the message.
    pub tags: &'a [(&'a str, &'a str)],
    /// Whether `data` is a delta.
    pub delta: bool,
}

/// A connection, as it is shown to other clients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClientInfo<'a> {
    /// The user.
    pub user: &'a str,
    /// The id of the client.
    pub client: &'a str,
    /// Data of the connection.
    pub conn_info: Payload<'a>,
    /// Data of the subscription.
    pub chan_info: Payload<'a>,
}

/// A message that the server sends without a command. A push about a channel contains nothing about the receiver, so one encoding serves
/// all subscribers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Push<'a> {
    /// A message of the channel.
    Publication(&'a str, Publication<'a>),
    /// A client has subscribed to the channel.
    Join(&'a str, ClientInfo<'a>),
    /// A client has left the channel.
    Leave(&'a str, ClientInfo<'a>),
    /// The server has ended the subscription to a channel.
    Unsubscribe {
        /// The channel.
        channel: &'a str,
        /// The code; see [`codes::Unsubscribe`].
        code: u32,
        /// The text for human readers.
        reason: &'a str,
    },
    /// A message to this connection, without a channel.
    Message(Payload<'a>),
    /// The server has subscribed the connection to a channel.
    Subscribe {
        /// The channel.
        channel: &'a str,
        /// Whether the client may later recover lost messages from a position.
        recoverable: bool,
        /// The epoch of `offset`.
        epoch: &'a str,
        /// The position of the channel.
        offset: u64,
        /// Whether the server checks that no message is lost.
        positioned: bool,
        /// Data for the client.
        data: Payload<'a>,
    },
    /// The connection is accepted. This is the first push of a unidirectional transport.
    Connect(ConnectResult<'a>),
    /// The server ends the connection. Over WebSocket the close frame contains the same code.
    Disconnect {
        /// The code; see [`codes::Disconnect`].
        code: u32,
        /// The text for human readers.
        reason: &'a str,
        /// Whether the client should connect again.
        reconnect: bool,
    },
    /// The server has extended the connection.
    Refresh(Ttl),
}

/// A message without fields.
pub(super) struct Nothing;

impl Message for Nothing {
    fn write(&self, _: &mut impl Writer) {}
}

impl Message for Reply<'_> {
    fn write(&self, w: &mut impl Writer) {
        w.number(("id", 1), self.id.into());
        match &self.answer {
            Answer::Error(error) => w.message(("error", 2), error),
            Answer::Connect(result) => w.message(("connect", 5), result),
            Answer::Subscribe(result) => w.message(("subscribe", 6), result),
            Answer::Unsubscribe => w.message(("unsubscribe", 7), &Nothing),
            Answer::Publish => w.message(("publish", 8), &Nothing),
            Answer::Presence(clients) => w.message(("presence", 9), &Presence(clients)),
            Answer::PresenceStats { clients, users } => {
                w.message(("presence_stats", 10), &PresenceStats(*clients, *users));
            }
            Answer::History(result) => w.message(("history", 11), result),
            Answer::Ping => w.message(("ping", 12), &Nothing),
            Answer::Rpc(data) => w.message(("rpc", 13), &Data(*data)),
            Answer::Refresh {
                client,
                version,
                ttl,
            } => w.message(("refresh", 14), &Refresh(client, version, *ttl)),
            Answer::SubRefresh(ttl) => w.message(("sub_refresh", 15), &Until(*ttl)),
        }
    }
}

/// A push inside an empty reply, the form for bidirectional transports.
pub(super) struct Wrapped<'a>(pub &'a Push<'a>);

impl Message for Wrapped<'_> {
    fn write(&self, w: &mut impl Writer) {
        w.message(("push", 4), self.0);
    }
}

impl Message for Push<'_> {
    fn write(&self, w: &mut impl Writer) {
        let channel = ("channel", 2);
        match self {
            Push::Publication(name, publication) => {
                w.text(channel, name);
                w.message(("pub", 4), publication);
            }
            Push::Join(name, info) => {
                w.text(channel, name);
                w.message(("join", 5), &Client(*info));
            }
            Push::Leave(name, info) => {
                w.text(channel, name);
                w.message(("leave", 6), &Client(*info));
            }
            Push::Unsubscribe {
                channel: name,
                code,
                reason,
            } => {
                w.text(channel, name);
                w.message(("unsubscribe", 7), &Ended(*code, reason));
            }
            Push::Message(data) => w.message(("message", 8), &Data(*data)),
            Push::Subscribe {
                channel: name,
                recoverable,
                epoch,
                offset,
                positioned,
                data,
            } => {
                w.text(channel, name);
                let subscribed = Subscribed {
                    recoverable: *recoverable,
                    epoch,
                    offset: *offset,
                    positioned: *positioned,
                    data: *data,
                };
                w.message(("subscribe", 9), &subscribed);
            }
            Push::Connect(result) => w.message(("connect", 10), &Connected(result)),
            Push::Disconnect {
                code,
                reason,
                reconnect,
            } => w.message(("disconnect", 11), &Disconnected(*code, reason, *reconnect)),
            Push::Refresh(ttl) => w.message(("refresh", 12), &Until(*ttl)),
        }
    }
}

impl Message for ErrorReply<'_> {
    fn write(&self, w: &mut impl Writer) {
        w.number(("code", 1), self.code.into());
        w.text(("message", 2), self.message);
        w.flag(("temporary", 3), self.temporary);
    }
}

impl Message for ConnectResult<'_> {
    fn write(&self, w: &mut impl Writer) {
        w.text(("client", 1), self.client);
        w.text(("version", 2), self.version);
        until(w, 3, self.ttl);
        w.data(("data", 5), self.data);
        w.messages(("subs", 6), self.subs);
        w.number(("ping", 7), self.ping.into());
        w.flag(("pong", 8), self.pong);
        w.text(("session", 9), self.session);
        w.text(("node", 10), self.node);
    }
}

/// A [`ConnectResult`] in a push, whose fields have other numbers than in a reply.
struct Connected<'a>(&'a ConnectResult<'a>);

impl Message for Connected<'_> {
    fn write(&self, w: &mut impl Writer) {
        w.text(("client", 1), self.0.client);
        w.text(("version", 2), self.0.version);
        w.data(("data", 3), self.0.data);
        w.messages(("subs", 4), self.0.subs);
        until(w, 5, self.0.ttl);
        w.number(("ping", 7), self.0.ping.into());
        w.flag(("pong", 8), self.0.pong);
        w.text(("session", 9), self.0.session);
        w.text(("node", 10), self.0.node);
    }
}

impl Message for SubscribeResult<'_> {
    fn write(&self, w: &mut impl Writer) {
        until(w, 1, self.ttl);
        w.flag(("recoverable", 3), self.recoverable);
        w.text(("epoch", 6), self.epoch);
        w.list(("publications", 7), self.publications);
        w.flag(("recovered", 8), self.recovered);
        w.number(("offset", 9), self.offset);
        w.flag(("positioned", 10), self.positioned);
        w.data(("data", 11), self.data);
        w.flag(("was_recovering", 12), self.was_recovering);
        w.flag(("delta", 13), self.delta);
    }
}

impl Message for HistoryResult<'_> {
    fn write(&self, w: &mut impl Writer) {
        w.list(("publications", 1), self.publications);
        w.text(("epoch", 2), self.epoch);
        w.number(("offset", 3), self.offset);
    }
}

impl Message for Publication<'_> {
    fn write(&self, w: &mut impl Writer) {
        w.data(("data", 4), self.data);
        if let Some(info) = &self.info {
            w.message(("info", 5), info);
        }
        w.number(("offset", 6), self.offset);
        w.texts(("tags", 7), self.tags);
        w.flag(("delta", 8), self.delta);
    }
}

impl Message for ClientInfo<'_> {
    fn write(&self, w: &mut impl Writer) {
        w.required(("user", 1), self.user);
        w.required(("client", 2), self.client);
        w.data(("conn_info", 3), self.conn_info);
        w.data(("chan_info", 4), self.chan_info);
    }
}

/// Writes the fields `expires` and `ttl`, which have consecutive numbers.
fn until(w: &mut impl Writer, number: u32, ttl: Ttl) {
    w.flag(("expires", number), ttl.is_some());
    w.number(("ttl", number + 1), ttl.unwrap_or(0).into());
}

struct Until(Ttl);

impl Message for Until {
    fn write(&self, w: &mut impl Writer) {
        until(w, 1, self.0);
    }
}

struct Refresh<'a>(&'a str, &'a str, Ttl);

impl Message for Refresh<'_> {
    fn write(&self, w: &mut impl Writer) {
        w.text(("client", 1), self.0);
        w.text(("version", 2), self.1);
        until(w, 3, self.2);
    }
}

// As Centrifugo, JSON says that nobody is there. Libraries do not take a missing field for that.

struct Presence<'a>(&'a [(&'a str, ClientInfo<'a>)]);

impl Message for Presence<'_> {
    fn write(&self, w: &mut impl Writer) {
        w.required_messages(("presence", 1), self.0);
    }
}

struct PresenceStats(u32, u32);

impl Message for PresenceStats {
    fn write(&self, w: &mut impl Writer) {
        w.required_number(("num_clients", 1), self.0.into());
        w.required_number(("num_users", 2), self.1.into());
    }
}

struct Data<'a>(Payload<'a>);

impl Message for Data<'_> {
    fn write(&self, w: &mut impl Writer) {
        w.data(("data", 1), self.0);
    }
}

struct Client<'a>(ClientInfo<'a>);

impl Message for Client<'_> {
    fn write(&self, w: &mut impl Writer) {
        w.message(("info", 1), &self.0);
    }
}

struct Ended<'a>(u32, &'a str);

impl Message for Ended<'_> {
    fn write(&self, w: &mut impl Writer) {
        w.number(("code", 2), self.0.into());
        w.text(("reason", 3), self.1);
    }
}

struct Subscribed<'a> {
    recoverable: bool,
    epoch: &'a str,
    offset: u64,
    positioned: bool,
    data: Payload<'a>,
}

impl Message for Subscribed<'_> {
    fn write(&self, w: &mut impl Writer) {
        w.flag(("recoverable", 1), self.recoverable);
        w.text(("epoch", 4), self.epoch);
        w.number(("offset", 5), self.offset);
        w.flag(("positioned", 6), self.positioned);
        w.data(("data", 7), self.data);
    }
}

struct Disconnected<'a>(u32, &'a str, bool);

impl Message for Disconnected<'_> {
    fn write(&self, w: &mut impl Writer) {
        w.number(("code", 1), self.0.into());
        w.text(("reason", 2), self.1);
        w.flag(("reconnect", 3), self.2);
    }
}
