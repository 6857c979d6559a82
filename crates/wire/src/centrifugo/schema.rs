//! The fields of client messages (`client.proto`): their names for JSON and their numbers for protobuf.
//!
//! Fields of features that the server does not have are absent, so both readers ignore them. The fields `type` and `tf` are an exception:
//! the server refuses them, because the client would otherwise get something else than it asked for.

/// The kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestKind {
    Connect,
    Subscribe,
    Unsubscribe,
    Publish,
    Presence,
    PresenceStats,
    History,
    Ping,
    Send,
    Rpc,
    Refresh,
    SubRefresh,
}

/// Where a value is stored in [`Raw`](super::raw::Raw).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    Id,
    Request(RequestKind),
    Channel,
    Token,
    Data,
    Base64Data,
    Meta,
    Override,
    ExpireAt,
    Name,
    Version,
    Method,
    Epoch,
    Delta,
    Node,
    Session,
    Offset,
    Limit,
    Type,
    Flags,
    Recover,
    Positioned,
    Recoverable,
    JoinLeave,
    Reverse,
    Since,
    Filter,
    Subs,
    Headers,
}

/// The type of a field's value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    U32,
    U64,
    I32,
    Bool,
    Text,
    /// Any JSON value, or bytes.
    Data,
    /// A string in JSON, any bytes in protobuf.
    TextOrBytes,
    /// Any value, of which only the presence is recorded.
    Presence,
    Message(&'static [Field]),
    /// A map from text to text.
    Texts,
    /// A map from channel to a message with these fields.
    Subs(&'static [Field]),
    /// A list of channels. Each becomes an entry of `subs` without options.
    Channels,
}

/// A field of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub name: &'static str,
    pub number: u32,
    pub kind: Kind,
    pub slot: Slot,
}

const fn field(name: &'static str, number: u32, kind: Kind, slot: Slot) -> Field {
    Field {
        name,
        number,
        kind,
        slot,
    }
}

const fn request(
    name: &'static str,
    number: u32,
    kind: RequestKind,
    fields: &'static [Field],
) -> Field {
    field(name, number, Kind::Message(fields), Slot::Request(kind))
}

pub(super) static COMMAND: [Field; 13] = [
    field("id", 1, Kind::U32, Slot::Id),
    request("connect", 4, RequestKind::Connect, &CONNECT),
    request("subscribe", 5, RequestKind::Subscribe, &SUBSCRIBE),
    request("unsubscribe", 6, RequestKind::Unsubscribe, &ONE_CHANNEL),
    request("publish", 7, RequestKind::Publish, &PUBLISH),
    request("presence", 8, RequestKind::Presence, &ONE_CHANNEL),
    request(
        "presence_stats",
        9,
        RequestKind::PresenceStats,
        &ONE_CHANNEL,
    ),
    request("history", 10, RequestKind::History, &HISTORY),
    request("ping", 11, RequestKind::Ping, &[]),
    request("send", 12, RequestKind::Send, &SEND),
    request("rpc", 13, RequestKind::Rpc, &RPC),
    request("refresh", 14, RequestKind::Refresh, &REFRESH),
    request("sub_refresh", 15, RequestKind::SubRefresh, &SUB_REFRESH),
];

pub(super) static CONNECT: [Field; 6] = [
    field("token", 1, Kind::Text, Slot::Token),
    field("data", 2, Kind::Data, Slot::Data),
    field("subs", 3, Kind::Subs(&SUBSCRIBE), Slot::Subs),
    field("name", 4, Kind::Text, Slot::Name),
    field("version", 5, Kind::Text, Slot::Version),
    field("headers", 6, Kind::Texts, Slot::Headers),
];

static SUBSCRIBE: [Field; 13] = [
    field("channel", 1, Kind::Text, Slot::Channel),
    field("token", 2, Kind::Text, Slot::Token),
    field("recover", 3, Kind::Bool, Slot::Recover),
    field("epoch", 6, Kind::Text, Slot::Epoch),
    field("offset", 7, Kind::U64, Slot::Offset),
    field("data", 8, Kind::Data, Slot::Data),
    field("positioned", 9, Kind::Bool, Slot::Positioned),
    field("recoverable", 10, Kind::Bool, Slot::Recoverable),
    field("join_leave", 11, Kind::Bool, Slot::JoinLeave),
    field("delta", 12, Kind::Text, Slot::Delta),
    field("tf", 13, Kind::Presence, Slot::Filter),
    field("flag", 14, Kind::U64, Slot::Flags),
    field("type", 15, Kind::I32, Slot::Type),
];

const ONE_CHANNEL: [Field; 1] = [field("channel", 1, Kind::Text, Slot::Channel)];

static PUBLISH: [Field; 3] = [
    field("channel", 1, Kind::Text, Slot::Channel),
    field("data", 2, Kind::Data, Slot::Data),
    field("type", 3, Kind::I32, Slot::Type),
];

static HISTORY: [Field; 4] = [
    field("channel", 1, Kind::Text, Slot::Channel),
    field("limit", 7, Kind::I32, Slot::Limit),
    field("since", 8, Kind::Message(&POSITION), Slot::Since),
    field("reverse", 9, Kind::Bool, Slot::Reverse),
];

static POSITION: [Field; 2] = [
    field("offset", 1, Kind::U64, Slot::Offset),
    field("epoch", 2, Kind::Text, Slot::Epoch),
];

static SEND: [Field; 1] = [field("data", 1, Kind::Data, Slot::Data)];

static RPC: [Field; 2] = [
    field("data", 1, Kind::Data, Slot::Data),
    field("method", 2, Kind::Text, Slot::Method),
];

static REFRESH: [Field; 1] = [field("token", 1, Kind::Text, Slot::Token)];

static SUB_REFRESH: [Field; 3] = [
    field("channel", 1, Kind::Text, Slot::Channel),
    field("token", 2, Kind::Text, Slot::Token),
    field("type", 3, Kind::I32, Slot::Type),
];

// The claims of tokens. They are JSON, so their field numbers have no meaning.

/// The claim of a subscription token that names its channel. It is read alone, so that a fault of another claim hides no channel.
pub(super) static CHANNEL_CLAIM: [Field; 1] = ONE_CHANNEL;

/// The other claims of a subscription token.
pub(super) static SUBSCRIPTION_CLAIMS: [Field; 4] = [
    field("data", 1, Kind::Data, Slot::Data),
    field("b64data", 2, Kind::Text, Slot::Base64Data),
    field("expire_at", 3, Kind::U64, Slot::ExpireAt),
    field("override", 4, Kind::Message(&OVERRIDE), Slot::Override),
];

/// The claims of a connection token.
pub(super) static CONNECT_CLAIMS: [Field; 4] = [
    field("channels", 1, Kind::Channels, Slot::Subs),
    field("subs", 2, Kind::Subs(&CLAIMED_SUB), Slot::Subs),
    field("meta", 3, Kind::Data, Slot::Meta),
    field("expire_at", 4, Kind::U64, Slot::ExpireAt),
];

/// An entry of the claim `subs`.
static CLAIMED_SUB: [Field; 3] = [
    field("data", 1, Kind::Data, Slot::Data),
    field("b64data", 2, Kind::Text, Slot::Base64Data),
    field("override", 3, Kind::Message(&OVERRIDE), Slot::Override),
];

/// The options of a subscription that a token sets. The others have no meaning for this server.
static OVERRIDE: [Field; 1] = [field(
    "force_push_join_leave",
    1,
    Kind::Message(&JOIN_LEAVE_VALUE),
    Slot::Override,
)];

static JOIN_LEAVE_VALUE: [Field; 1] = [field("value", 1, Kind::Bool, Slot::JoinLeave)];

/// The body of a request to `/emulation`.
pub(super) static EMULATION: [Field; 3] = [
    field("node", 1, Kind::Text, Slot::Node),
    field("session", 2, Kind::Text, Slot::Session),
    field("data", 3, Kind::TextOrBytes, Slot::Data),
];
