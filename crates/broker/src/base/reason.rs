//! The table of reasons for which the server ends a connection or refuses a request. A row has the reason's code in each protocol, its text and its
//! counter. Code that ends a connection names the reason, and the row determines how the connection's protocol ends it. `docs/REASONS.md` is generated
//! from this table.
//!
//! For invalid bytes of HTTP and WebSocket, the parser in `crore-wire` has the code and the exact text; the row has a general text. Deliberately not here: the reason
//! codes that MQTT itself prescribes for a packet.

use alloc::borrow::Cow;
use alloc::format;

use crore_settings::rights::Right;
use crore_wire::http::body::BodyError;
use crore_wire::http::head::HeadError;
use crore_wire::mqtt::ReasonCode;
use crore_wire::websocket::gap::CLOSE_GAP;
use crore_wire::websocket::receive::Violation;

use crate::base::labels::labels;
use crate::base::settings::Settings;

labels! {
    /// Why a connection ended: the label `reason` of `crore_closed_connections_total`.
    pub enum Closed {
        Peer, "peer", "the client ended it, or its link failed";
        Done, "done", "the answer was the last, or no further request came";
        Timeout, "timeout", "a deadline passed, or heartbeats were not answered";
        Slow, "slow", "the client did not read, and messages that waited for it are lost or too many";
        Refused, "refused", "the client broke a rule of the protocol, or asked for something that it may not do";
        Full, "full", "a limit was reached";
        Deleted, "deleted", "its topic was deleted";
        Operator, "operator", "the operator ended it";
        Broken, "broken", "a fault of the server, which ended this connection alone: tell us";
    }
}

/// A protocol appends this to the refusal of a client without credentials, and after it says where in a request the token belongs.
pub const SEND_A_TOKEN: &str = "; send a token as ";

/// Reads a limit from the settings: its value and its unit.
type Limit = fn(&Settings) -> (usize, &'static str);

/// A row of the table. `None` in the column of a protocol: the protocol has no code for this reason.
pub struct Row {
    /// The name of the variant.
    pub name: &'static str,
    /// The section of the table.
    pub section: Section,
    /// The HTTP status.
    pub status: Option<u16>,
    /// The code of a WebSocket's Close frame (RFC 6455 section 7.4).
    pub close: Option<u16>,
    /// The reason code of MQTT 5. MQTT 3.1.1 has return codes only in CONNACK. Later the connection is closed without a code.
    pub mqtt: Option<ReasonCode>,
    /// The label of `crore_closed_connections_total`.
    pub closed: Closed,
    /// The text for clients and logs, in one line. Code that knows more may use a more exact text.
    pub text: &'static str,
    /// The remedy for the operator; empty where the text names it.
    pub remedy: &'static str,
    /// The limit whose value is appended to the text. Only limits for a single client have one: clients are not told the limits that all share.
    limit: Option<Limit>,
}

/// Defines the table. It has sections, since a counter may sum a section. A row is one line: name, HTTP status, close code of a WebSocket, reason code
/// of MQTT, counter, text, optionally the remedy for the operator, and optionally the setting of the limit with its unit.
macro_rules! reasons {
    (@limit) => { None };
    (@limit $section:ident $field:ident $unit:literal) => {
        Some(|settings| (settings.$section.$field as usize, $unit))
    };
    ($($(#[$meta:meta])* $section:ident { $($name:ident, $status:expr, $close:expr, $mqtt:expr, $closed:ident, $text:literal $(, $remedy:literal)?
        $(=> $table:ident . $field:ident $unit:literal)?;)* })*) => {
        /// The sections of the table of reasons.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Section {
            $($(#[$meta])* $section,)*
        }

        /// Why a connection or a request ends.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Reason {
            $($(#[doc = $text] $name,)*)*
        }

        impl Reason {
            /// All reasons, in the order of the table.
            pub const ALL: &[Reason] = &[$($(Reason::$name,)*)*];
        }

        static ROWS: [Row; Reason::ALL.len()] = [$($(Row {
            name: stringify!($name),
            section: Section::$section,
            status: code_or_none($status),
            close: code_or_none($close),
            mqtt: $mqtt,
            closed: Closed::$closed,
            text: $text,
            remedy: concat!("" $(, $remedy)?),
            limit: reasons!(@limit $($table $field $unit)?),
        },)*)*];
    };
}

/// A status or a close code, as the table has it: 0 means none.
const fn code_or_none(code: u16) -> Option<u16> {
    match code {
        0 => None,
        code => Some(code),
    }
}

const NONE: Option<ReasonCode> = None;
const ADMINISTRATIVE: Option<ReasonCode> = Some(ReasonCode::ADMINISTRATIVE_ACTION);
const BUSY: Option<ReasonCode> = Some(ReasonCode::SERVER_BUSY);
const LATE: Option<ReasonCode> = Some(ReasonCode::KEEP_ALIVE_TIMEOUT);
const NOT_AUTHORIZED: Option<ReasonCode> = Some(ReasonCode::NOT_AUTHORIZED);
const PASSWORD: Option<ReasonCode> = Some(ReasonCode::BAD_USER_NAME_OR_PASSWORD);
const QUOTA: Option<ReasonCode> = Some(ReasonCode::QUOTA_EXCEEDED);
const SPECIFIC: Option<ReasonCode> = Some(ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR);
const STOPS: Option<ReasonCode> = Some(ReasonCode::SERVER_SHUTTING_DOWN);
const TAKEN_OVER: Option<ReasonCode> = Some(ReasonCode::SESSION_TAKEN_OVER);
const UNAVAILABLE: Option<ReasonCode> = Some(ReasonCode::SERVER_UNAVAILABLE);
const NO_SHARES: Option<ReasonCode> = Some(ReasonCode::SHARED_SUBSCRIPTIONS_NOT_SUPPORTED);
const ELSEWHERE: Option<ReasonCode> = Some(ReasonCode::USE_ANOTHER_SERVER);
const LASTED: Option<ReasonCode> = Some(ReasonCode::MAXIMUM_CONNECT_TIME);

#[rustfmt::skip]
reasons! {
    /// Why connections end.
    Ends {
        PeerClosed, 0, 1000, NONE, Peer, "the client closed the connection";
        TooSlow, 408, 1001, SPECIFIC, Timeout, "the request, frame or packet took too long to arrive", "timeouts.head_s, timeouts.body_s and timeouts.progress_bytes_per_s say how slow they may be";
        Silent, 0, 0, LATE, Timeout, "nothing came from the client for one and a half times its keep alive";
        TakenOver, 0, 0, TAKEN_OVER, Peer, "another connection took over the session";
        CutOff, 0, 0, BUSY, Full, "this node cannot reach its cluster", "NATS must be reached again: docs/CLUSTER.md";
        Operator, 0, 4403, ADMINISTRATIVE, Operator, "the operator ended the connection";
        Restart, 0, 1012, STOPS, Operator, "the server restarts";
        Moved, 0, 1012, ELSEWHERE, Operator, "the server restarts; connect to the server that is named", "drain.server_reference names it";
        Gap, 0, CLOSE_GAP, NONE, Slow, "messages are lost", "docs/PROTOCOLS.md lists the causes of a gap; in most cases the topic's log is too short: rule.log_bytes, rule.log_age_s";
        EventsLost, 0, 4413, NONE, Slow, "events are lost, because the client reads too slowly; connect again for a new snapshot", "raise limits.outbox_bytes";
        NotBinary, 0, 1003, NONE, Refused, "MQTT packets are binary";
    }
    /// Bytes that are not valid HTTP or WebSocket. The parser adds what is wrong.
    Malformed {
        BadHead, HeadError::Malformed("").status(), 0, NONE, Refused, "the request head is not valid HTTP";
        HeadTooLarge, HeadError::TooLarge.status(), 0, NONE, Refused, "the request head is too large", "raise limits.head_bytes; the number of fields is fixed";
        HttpVersion, HeadError::Version.status(), 0, NONE, Refused, "only HTTP/1.0 and HTTP/1.1 are spoken here", "http.h2_cleartext allows HTTP/2 without TLS";
        Http2Violation, 0, 0, NONE, Refused, "a frame of HTTP/2 violates RFC 9113, or such frames come too often";
        TransferCoding, HeadError::UnknownTransferCoding.status(), 0, NONE, Refused, "no transfer coding but chunked is understood";
        Expectation, HeadError::Expectation.status(), 0, NONE, Refused, "no expectation but 100-continue is understood";
        BadBody, BodyError::Malformed("").status(), 0, NONE, Refused, "the body of the request is not valid chunked coding";
        BadFrame, 0, Violation::ReservedBits.code(), NONE, Refused, "a WebSocket frame violates RFC 6455";
        BadEvent, 0, 0, NONE, Refused, "an event of Pusher's protocol is not valid";
        BadFrameData, 0, Violation::BadUtf8.code(), NONE, Refused, "text in a WebSocket frame is not UTF-8, or compressed data is malformed";
    }
    /// Topics and their names.
    Topics {
        Deleted, 410, 4410, NONE, Deleted, "the topic was deleted";
        Displaced, 409, 0, NONE, Refused, "a later subscriber took this place", "rule.concurrency says how many may wait";
        Occupied, 409, 0, NONE, Refused, "another subscriber waits already", "rule.concurrency says how many may wait";
        NotCreated, 403, 0, NOT_AUTHORIZED, Refused, "only publishers create topics here, and this topic does not exist", "rule.publisher_creates is set for it";
        NoTopic, 404, 0, NONE, Refused, "there is no such topic; the first publish (POST) makes it";
        Reserved, 403, 0, NOT_AUTHORIZED, Refused, "topics that begin with $ are the server's own";
        BadName, 400, 0, NONE, Refused, "a topic or filter of the request is not valid";
        NoName, 400, 0, NONE, Refused, "no topic is named: put it behind the path or into ?topic=";
        SeveralNames, 400, 0, NONE, Refused, "exactly one topic can be named here";
        TooManyNames, 400, 0, QUOTA, Refused, "more topics than limits.topics_per_connection allows" => limits.topics_per_connection "";
        NamesTooLong, 400, 0, QUOTA, Refused, "the names of the connection's topics and filters are longer in all than limits.subscription_bytes allows", "a filter takes the place of many topics; or raise it" => limits.subscription_bytes " bytes";
        NamesNotResumed, 400, 0, NONE, Refused, "no request could resume so many topics and filters: their names and positions are longer than three quarters of limits.head_bytes", "a filter takes the place of many topics; or raise it, or set limits.topics_per_connection" => limits.head_bytes " bytes";
        FilterLevels, 400, 1008, QUOTA, Refused, "a filter has more than 16 levels", "shorten it: only filters have this limit, names of topics do not";
        NoSharedSubscriptions, 0, 0, NO_SHARES, Refused, "a cluster has no shared subscriptions";
        Unread, 400, 0, NONE, Refused, "nothing reads this parameter or header here";
        BadEnvelope, 400, 0, NONE, Refused, "envelope= takes json";
        TwoForms, 400, 0, NONE, Refused, "envelope=json and the subprotocol ws+meta.nchan are two forms of a message: leave one of them out";
    }
    /// Positions and limits of what is read.
    Positions {
        BadPosition, 400, 0, NONE, Refused, "since= and last_event_id= take oldest, live, -N or a position that the server gave";
        BadPositionEscape, 400, 0, NONE, Refused, "a bad percent escape in the position";
        NewestByFilter, 400, 0, NONE, Refused, "with filters, since=-N is for event streams and WebSockets, and N is at most 100; a long-poll takes oldest, live or a position that the server gave";
        BadLimit, 400, 0, NONE, Refused, "limit= takes a number of messages, from 1 on";
    }
    /// Invalid publishes.
    Publishes {
        BadField, 400, 0, NONE, Refused, "a header of the message is not valid";
        SeveralToPublish, 400, 0, NONE, Refused, "frames can be published to one topic only";
        OtherMessage, 422, 0, QUOTA, Refused, "this idempotency key was used for another message";
        OutcomeUnknown, 503, 0, BUSY, Full, "the outcome is not known: the log has not answered in time; retry with the same Idempotency-Key", "the disk or the cluster did not answer for ten seconds: docs/DURABILITY.md, docs/CLUSTER.md";
        MessageTooLong, 413, 1009, QUOTA, Refused, "the message is longer than limits.message_bytes allows" => limits.message_bytes " bytes";
        BatchTooLong, 413, 0, NONE, Refused, "the batch is longer than limits.batch_bytes allows" => limits.batch_bytes " bytes";
        Encoded, 415, 0, NONE, Refused, "Content-Encoding is not decoded here: send the body as it is, or publish compressed bytes with a content type of their own, such as application/gzip";
        PutWithBody, 400, 0, NONE, Refused, "PUT makes a topic and takes no body; POST publishes (curl --data-binary @FILE)";
    }
    /// Paths, methods and pages.
    Requests {
        NoPath, 404, 0, NONE, Refused, "no such path; topics are published at /pub/{topic} and read at /sub/{topic}";
        AdminPath, 404, 0, NONE, Refused, "no such path; this is a data port, and operators ask the admin port (admin.listen, by default 127.0.0.1:8801)";
        NoSocketPath, 404, 0, NONE, Refused, "no such path; topics are read at /sub/{topic}; MQTT over WebSocket goes to any path, and offers the subprotocol mqtt (Sec-WebSocket-Protocol: mqtt)";
        CentrifugoOff, 404, 0, NONE, Refused, "Centrifugo's client protocol is off here; centrifugo.enabled turns it on";
        CentrifugoPath, 404, 0, NONE, Refused, "of Centrifugo's transports there are /websocket, /http_stream, /sse, /uni_websocket, /uni_sse and /uni_http_stream, below centrifugo.path";
        PusherPath, 404, 0, NONE, Refused, "of Pusher's transports there is WebSocket, at /app/ and the key of a `pusher_app`";
        PusherVersion, 0, 0, NONE, Refused, "of Pusher's protocol the versions 5 to 7 are spoken here";
        EmulationNode, 404, 0, NONE, Refused, "the connection of these commands is at another node, or at one that has ended";
        Method, 405, 0, NONE, Refused, "this path does not take this method";
        PresenceOff, 404, 4404, NONE, Refused, "who is present is not recorded for this topic: its rule has no presence = true";
        BadMember, 400, 0, NONE, Refused, "after= takes the id of a member";
        HistoryUpgrade, 400, 0, NONE, Refused, "history is read by GET; a WebSocket subscribes at /sub";
        NoUpgrade, 426, 0, NONE, Refused, "this path takes WebSocket clients only";
        UpgradeLost, 426, 0, NONE, Refused, "the request of a WebSocket came without Upgrade: websocket and Connection: Upgrade in HTTP/1.1, so a proxy has removed them", "the proxy must pass both headers on and speak HTTP/1.1: docs/PROXIES.md";
        WebSocketVersion, 426, 0, NONE, Refused, "Sec-WebSocket-Version must be 13";
        WebSocketKey, 400, 0, NONE, Refused, "Sec-WebSocket-Key must be 16 bytes in base64";
        ForeignHost, 403, 0, NONE, Refused, "this server listens on the loopback only, and the Host is another", "http.hosts must name it, where a proxy passes its own name on: docs/PROXIES.md";
        ForeignOrigin, 403, 0, NONE, Refused, "the page's origin is not allowed", "http.allowed_origins must name it: docs/PROXIES.md";
        SeveralOrigins, 400, 0, NONE, Refused, "several Origin fields; send one";
        RunsAsCode, 403, 0, NONE, Refused, "no message is a script, a style sheet, a worker or a plugin: a page reads messages by fetch, EventSource or WebSocket";
    }
    /// Credentials that are not valid, or not verified.
    Credentials {
        CredentialsMalformed, 401, 0, NOT_AUTHORIZED, Refused, "the credentials cannot be read: send Authorization: Bearer with one token, or Basic", "`crore token inspect` shows what is wrong with a token";
        TokenTooLong, 401, 0, NOT_AUTHORIZED, Refused, "the token is longer than access.token_bytes allows", "grant fewer filters, or raise access.token_bytes and limits.head_bytes" => access.token_bytes " bytes";
        TokenAlgorithm, 401, 0, NOT_AUTHORIZED, Refused, "no key of this server has the token's algorithm", "a key is bound to one algorithm: [[access.key]] alg";
        TokenSignature, 401, 0, NOT_AUTHORIZED, Refused, "the token is not signed by a key that this server knows", "the issuer's key must stand in [[access.key]]";
        TokenExpired, 401, 0, NOT_AUTHORIZED, Refused, "the token has expired", "the client must get a new token; compare the clocks";
        TokenNotYet, 401, 0, NOT_AUTHORIZED, Refused, "the token is not valid yet", "compare the clocks, or raise access.leeway_s";
        TokenOfSubscription, 401, 0, NOT_AUTHORIZED, Refused, "the token is for a subscription: it names a channel", "the client must connect with a token that names none";
        TokenForOthers, 401, 0, NOT_AUTHORIZED, Refused, "the token was made for another audience or by another issuer", "compare with access.audience and access.issuer";
        CredentialsRevoked, 401, 0, NOT_AUTHORIZED, Refused, "the token or the user has been revoked", "`crore admin revoke` lists what is revoked, and until when";
        TokenClaims, 401, 0, NOT_AUTHORIZED, Refused, "a claim of the token is not valid", "docs/ACCESS.md lists the claims and their forms";
        WrongPassword, 401, 0, PASSWORD, Refused, "the user or the password is wrong", "`crore token hash` makes the entry of [[access.user]]";
        CredentialsRefused, 401, 0, NOT_AUTHORIZED, Refused, "the credentials were refused", "the callback at access.callback.url said no";
        PusherKey, 0, 0, NONE, Refused, "no `pusher_app` has the key in the path";
        PusherSignature, 0, 0, NONE, Refused, "a signature of Pusher's protocol is missing or wrong", "the backend must sign with the secret of the [[pusher_app]], for the socket id of this connection";
        VerifierUnreachable, 503, 0, UNAVAILABLE, Full, "the credentials cannot be verified now; try again", "the callback at access.callback.url must answer 200, 401 or 403 within access.callback.timeout_s, and a JWKS at access.key.url 200";
        VerifierBusy, 503, 0, BUSY, Full, "too many credentials wait to be verified; try again", "raise access.questions_max or access.password_threads, or access.cache_s";
    }
    /// Credentials that ended while they were used.
    Expiry {
        Expired, 401, 4401, LASTED, Refused, "the token has expired", "the client must get a new token; compare the clocks";
        Revoked, 401, 4401, NOT_AUTHORIZED, Refused, "the token or the user has been revoked", "`crore admin revoke` lists what is revoked, and until when";
    }
    /// Rights that a client without credentials would need.
    NoCredentials {
        ConnectNeedsCredentials, 0, 0, NOT_AUTHORIZED, Refused, "connect with a token as the password, or with a user and a password (docs/ACCESS.md)";
        SessionNeedsCredentials, 0, 0, NOT_AUTHORIZED, Refused, "a session that outlives its connection needs credentials";
        PublishNeedsCredentials, 401, 4401, NOT_AUTHORIZED, Refused, "publishing this needs credentials: a token or a user with a grant for it";
        SubscribeNeedsCredentials, 401, 4401, NOT_AUTHORIZED, Refused, "subscribing to this needs credentials: a token or a user with a grant for it";
        WildcardsNeedCredentials, 401, 4401, NOT_AUTHORIZED, Refused, "a filter with wildcards needs credentials here, as access.anonymous_wildcards is not set: name topics, or come with a token or a user with a grant for it";
        ManageNeedsCredentials, 401, 4401, NOT_AUTHORIZED, Refused, "creating and deleting this needs credentials: a token or a user with a grant for it";
        InfoNeedsCredentials, 401, 4401, NOT_AUTHORIZED, Refused, "reading about this needs credentials: a token or a user with a grant for it";
        PresenceNeedsCredentials, 401, 4401, NOT_AUTHORIZED, Refused, "who is present is told to credentials only: a token or a user with a grant for it";
        InterestNeedsCredentials, 401, 4401, NOT_AUTHORIZED, Refused, "following this needs credentials: a token or a user with a grant for it";
    }
    /// Rights that a client's credentials do not grant.
    NotGranted {
        PublishNotGranted, 403, 4401, NOT_AUTHORIZED, Refused, "your credentials do not grant `publish` here";
        SubscribeNotGranted, 403, 4401, NOT_AUTHORIZED, Refused, "your credentials do not grant `subscribe` here; a filter needs a granted filter that covers it";
        ManageNotGranted, 403, 4401, NOT_AUTHORIZED, Refused, "your credentials do not grant `manage` here";
        InfoNotGranted, 403, 4401, NOT_AUTHORIZED, Refused, "your credentials do not grant `info` here";
        ClientEvent, 0, 0, NONE, Refused, "client events are not allowed here", "pusher_app.client_events permits them in private and presence channels";
        PresenceNotGranted, 403, 4401, NOT_AUTHORIZED, Refused, "your credentials do not grant `presence` here";
        InterestNotGranted, 403, 4401, NOT_AUTHORIZED, Refused, "your credentials do not grant `interest` here; a filter needs a granted filter that covers it";
    }
    /// Limits of memory, connections and sessions.
    Limits {
        InputsFull, 503, 1013, QUOTA, Full, "too many requests are under way", "they have come in part and use up limits.memory_bytes";
        MemoryFull, 503, 1013, QUOTA, Full, "limits.memory_bytes is reached, and this client holds most", "docs/SETTINGS.md says what counts; `crore admin memory` shows it";
        ConnectionsFull, 503, 0, BUSY, Full, "no room for a connection: limits.connections_max, limits.connections_per_shard or the limit of open files is reached, or this client's address has so many that others would find no room", "docs/SETTINGS.md has the shares; http.trusted_proxies must name a proxy, so that its clients are told apart";
        ConnectionsOfAddress, 429, 0, BUSY, Full, "limits.connections_per_address_max is reached" => limits.connections_per_address_max "";
        SessionsOfUser, 429, 0, QUOTA, Full, "mqtt.sessions_per_user_max is reached" => mqtt.sessions_per_user_max "";
        ChannelsOfUser, 429, 0, QUOTA, Full, "centrifugo.channels_per_user_max is reached" => centrifugo.channels_per_user_max "";
        SessionsOfAddress, 429, 0, QUOTA, Full, "mqtt.sessions_per_address_max is reached" => mqtt.sessions_per_address_max "";
    }
    /// Rates of publishes.
    PublishRates {
        PublishRate, 503, 1013, QUOTA, Full, "limits.publishes_per_s is reached";
        PublishRateOfAddress, 429, 1013, QUOTA, Full, "limits.publishes_per_address_per_s is reached" => limits.publishes_per_address_per_s " a second";
    }
    /// Shares of an address, and limits of a shard.
    Shares {
        TopicsFull, 503, 1013, QUOTA, Full, "limits.topics_max or limits.topics_per_shard is reached, or this client's address has made so many topics that others would find no room";
        TopicRateOfAddress, 429, 1013, QUOTA, Full, "limits.topics_per_address_per_s is reached" => limits.topics_per_address_per_s " a second";
        LogOfAddress, 429, 1013, QUOTA, Full, "limits.log_bytes_per_address_max is reached" => limits.log_bytes_per_address_max " bytes";
        DiskFull, 503, 1013, QUOTA, Full, "no room on disk for messages: state.bytes_max is reached, or the file system of state.directory is full", "docs/DURABILITY.md says what happens then";
        LogFull, 503, 1013, QUOTA, Full, "the log of the cluster is full: its checkpoints are behind", "docs/CLUSTER.md says what happens then";
        KeysFull, 503, 1013, QUOTA, Full, "publish.idempotency_keys is reached, or this publisher's share of it: publish without a key, or later", "raise it, or shorten publish.idempotency_window_s";
        FiltersFull, 503, 1013, QUOTA, Full, "limits.filters_per_shard is reached, or this client's address has so many filters that others would find no room";
        FilterShapes, 503, 1013, QUOTA, Full, "no further filter with three or more + is taken from this client: too few of their 256 shapes are left";
        WatchersFull, 503, 0, NONE, Full, "presence.watchers_max is reached, or this client's address watches so often that others would find no room";
        FollowersFull, 503, 0, NONE, Full, "interest.followers_max is reached, or this client's address follows so often that others would find no room";
        Broken, 503, 0, SPECIFIC, Broken, "an internal error of the server";
    }
}

impl Reason {
    /// The reason to refuse a client that lacks this right and has no credentials.
    pub const fn needs_credentials(right: Right) -> Reason {
        match right {
            Right::Publish => Reason::PublishNeedsCredentials,
            Right::Subscribe => Reason::SubscribeNeedsCredentials,
            Right::Manage => Reason::ManageNeedsCredentials,
            Right::Info => Reason::InfoNeedsCredentials,
            Right::Interest => Reason::InterestNeedsCredentials,
            Right::Presence => Reason::PresenceNeedsCredentials,
        }
    }

    /// The reason to refuse a client whose credentials do not grant this right.
    pub const fn not_granted(right: Right) -> Reason {
        match right {
            Right::Publish => Reason::PublishNotGranted,
            Right::Subscribe => Reason::SubscribeNotGranted,
            Right::Manage => Reason::ManageNotGranted,
            Right::Info => Reason::InfoNotGranted,
            Right::Interest => Reason::InterestNotGranted,
            Right::Presence => Reason::PresenceNotGranted,
        }
    }

    /// The row of this reason.
    pub fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// The reason code of MQTT 5, for an answer that must have one.
    pub fn mqtt(self) -> ReasonCode {
        self.row().mqtt.unwrap_or(ReasonCode::UNSPECIFIED_ERROR)
    }

    /// The text for the client, in one line.
    pub fn text(self) -> &'static str {
        self.row().text
    }

    /// The text for the client, with the value of the limit that was reached, if the row names a limit.
    pub fn text_with_limit(self, settings: &Settings) -> Cow<'static, str> {
        let Row { text, limit, .. } = self.row();
        match limit.map(|limit| limit(settings)) {
            Some((number, unit)) => format!("{text} ({number}{unit})").into(),
            None => (*text).into(),
        }
    }
}
