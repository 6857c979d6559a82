//! The operator's orders to a shard, and the shard's reports.
//!
//! Invariants: the work of each [`Control`] is bounded, as for any input, so listings are paged. The shard answers each order with one
//! [`Report`], which has the [`Ticket`] of the order: in the same call of [`Shard::handle`](crate::Shard::handle) or in a later turn (a
//! pass of the shard's loop). A *home* is the part of a shard that keeps topics and sessions.
//!
//! Deliberately not here: permissions. Only the operator sends orders.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;

use derive_more::TryInto;

pub use crate::base::ids::Ticket;
use crate::base::ids::{ConnId, PartitionId, ShardId};
use crate::base::notices::Notice;
use crate::base::position::Position;
use crate::base::snapshot::Head;
use crate::budget::stats::{Accounts, Stats, Transport};
use crate::budget::world::World;
use crate::mail::hooks::{HookNews, Hooks};
use crate::mail::message::Headers;
use crate::mail::peer_presence::{PeerPresence, PeerPresenceReply};
use crate::mail::presence::PresencePage;
use crate::mail::session::SessionId;
use crate::mail::{InterestChanges, Outcome, TopicInfo};

/// An order.
#[derive(Debug)]
pub enum Control {
    /// Report the shard's counters and memory accounts. The answer also shows that the shard is alive.
    Accounts,
    /// Report the first name of this kind that was noted since the last such order, and forget the name.
    Notice(Notice),
    /// Report a page of the home's topics.
    Topics(TopicsPageRequest),
    /// Report the state of this topic of the home.
    Topic(Box<[u8]>),
    /// Report the members of this topic of the home that joined after the change with this number, at most this many.
    Presence(Box<[u8]>, u64, u32),
    /// Report a page of the log of a topic of the home.
    Log(LogPageRequest),
    /// Remove the messages of this topic up to this offset, and the retained message. One order removes a limited number of messages from
    /// the log.
    Purge(Box<[u8]>, u64),
    /// Delete this topic and end its subscriptions.
    Delete(Box<[u8]>),
    /// Publish to a topic of the home.
    Publish(Box<AdminPublish>),
    /// Report a page of connections.
    Connections {
        /// The connections.
        which: Selection,
        /// The row to begin with: 0, or the `next` of the last answer.
        from: u32,
        /// The maximum number.
        connections_max: u32,
    },
    /// Report all details of one connection.
    Connection(ConnId),
    /// Report the users of the next connections, as keyed hashes of their names, each once. The row to begin with is 0, or the `next` of the last answer.
    Users(u32),
    /// Report the MQTT client ids of these sessions of the home: at most the sessions of one page of connections.
    ClientIds(Vec<SessionId>),
    /// Report a page of the home's MQTT sessions whose clients are disconnected.
    Sessions {
        /// The row to begin with: 0, or [`Page::next`].
        from: u32,
        /// The maximum number.
        sessions_max: u32,
    },
    /// Report all details of a session of the home whose client is disconnected.
    Session(SessionName),
    /// End a session of the home whose client is disconnected, as if the session had expired: its will is published.
    EndSession(SessionName),
    /// Close this connection.
    Disconnect(ConnId),
    /// Carry out an order for the next of these connections, a limited number at once.
    EachConnection {
        /// The order.
        order: ConnectionOrder,
        /// The connections.
        which: Selection,
        /// The row to begin with: 0, or the `next` of the last answer.
        from: u32,
    },
    /// Find for a bounded number of topics the rules of this world that will govern them. Sent before [`Control::Settings`], so that the change of the
    /// rules takes little time.
    PrepareRules(Arc<World>),
    /// Report the offset up to which messages are removed, for each of these topics of this partition. Only if the home has applied the log up to this
    /// offset.
    Floors(PartitionId, u64, Vec<Box<[u8]>>),
    /// Use the settings and rules of this world from now on.
    Settings(Arc<World>),
    /// Report the home's view of the cluster.
    Cluster,
    /// Exchange interest with the other nodes of a cluster.
    Interest(Interest),
    /// Exchange members of topics with the other nodes of a cluster.
    PeerPresence(PeerPresence),
    /// Report the next events of a stream for the operator's webhooks.
    Hooks(Hooks),
    /// Drain: make clients reconnect elsewhere.
    Drain,
    /// Ignore all ticks from now on, and report whether work is in flight. Sent when the process is about to end.
    Settle,
    /// Report the next block of the shard's snapshot. The first such order removes the oldest messages, until messages and sessions have at most this many
    /// bytes.
    Save(Head, usize),
}

/// The answer to an order. Each variant has its own type, so that the sender of the order can convert the report into it.
#[derive(Debug, TryInto)]
pub enum Report {
    /// The shard's counters and memory accounts.
    Accounts(Box<(Stats, Accounts)>),
    /// The name that was noted, if there is one: printable ASCII, at most 100 bytes.
    Notice(Option<String>),
    /// A page of topics.
    Topics(Page<Topic>),
    /// The state of a topic, if there is one.
    Topic(Option<Box<Topic>>),
    /// Members of a topic.
    Presence(Box<PresencePage>),
    /// A page of a log, if there is such a topic.
    Messages(Option<Messages>),
    /// The outcome of a publish, a purge or a deletion.
    Outcome(Outcome),
    /// A page of connections.
    Connections(Page<Connection>),
    /// A connection, if there is one.
    Connection(Option<Box<Connection>>),
    /// Hashes of users.
    Users(Page<u64>),
    /// Client ids in the order of the request; `None` where the connection has ended.
    ClientIds(Vec<Option<Box<[u8]>>>),
    /// A page of sessions.
    Sessions(Page<Session>),
    /// A session, if the home has it and its client is disconnected.
    Session(Option<Box<Session>>),
    /// The number of connections or sessions that were ended or changed.
    Ended(Ended),
    /// Whether topics remain for [`Control::PrepareRules`].
    RulesPrepared(bool),
    /// For each topic the offset up to which its messages are removed; `None` for an unknown topic. The whole list is `None` if the home has
    /// not applied the log up to the offset in the order.
    Floors(Option<Vec<Option<u64>>>),
    /// The home's view of the cluster, if the node is in a cluster and the shard is a home.
    Cluster(Option<Box<ClusterState>>),
    /// The answer to [`Control::Interest`].
    Interest(InterestReply),
    /// The answer to [`Control::PeerPresence`].
    PeerPresence(PeerPresenceReply),
    /// The events; `None` if the shard does not have the stream, or has lost events of it.
    Hooks(Option<Box<HookNews>>),
    /// The order is done.
    Done,
    /// Whether work is in flight.
    Settled(Settled),
    /// A block of the snapshot; empty after the last one.
    Block(Vec<u8>),
}

/// An order about interest: the topics that have subscribers at the nodes of a cluster.
#[derive(Debug)]
pub enum Interest {
    /// Report the filters that connections of this node follow.
    Filters,
    /// Report the next changes of the stream with this number, which another node follows. With filters, a new stream begins, under a number
    /// that no other stream has.
    Next(u64, Option<Vec<Box<[u8]>>>),
    /// End the stream with this number.
    End(u64),
    /// Apply the changes that another node has sent for topics of this home, at most some hundred. The number of the stream is below
    /// [`STREAMS`](crate::STREAMS).
    ApplyRemote(u8, InterestChanges),
    /// Drop the changes of this stream for the next topics after this name, in the order of names.
    DropStream(u8, Box<[u8]>),
}

/// The answer to an [`Interest`].
#[derive(Debug)]
pub enum InterestReply {
    /// The followed filters.
    Filters(BTreeSet<Box<[u8]>>),
    /// The changes, and whether more are ready; `None` if the home does not have the stream, or has lost changes of the stream.
    Changes(Option<(InterestChanges, bool)>),
    /// The number of topics without room, whose changes were dropped.
    Refused(u32),
    /// The name after which to continue, unless all is dropped.
    Dropped(Option<Box<[u8]>>),
    /// The order is done, or this shard is no home.
    Done,
}

/// A request for a page of topics.
#[derive(Debug)]
pub struct TopicsPageRequest {
    /// The filter that matches the topics; `#` matches all, `$` topics included.
    pub filter: Box<[u8]>,
    /// The row to begin with: 0, or [`Page::next`].
    pub from: u32,
    /// The maximum number of topics.
    pub topics_max: u32,
}

/// A page of a listing.
#[derive(Debug)]
pub struct Page<T> {
    /// The entries found.
    pub found: Vec<T>,
    /// The row to continue with, unless this is the last page.
    pub next: Option<u32>,
}

impl<T> Default for Page<T> {
    fn default() -> Self {
        Page {
            found: Vec::new(),
            next: None,
        }
    }
}

/// A topic as its home knows it.
#[derive(Debug)]
pub struct Topic {
    /// The topic's name.
    pub name: Box<[u8]>,
    /// The topic's state.
    pub info: TopicInfo,
    /// The bytes that the topic's kept messages occupy.
    pub bytes: u32,
    /// The number of the topic's rule.
    pub rule: u8,
}

/// A request for a page of a topic's log.
#[derive(Clone, Debug)]
pub struct LogPageRequest {
    /// The topic.
    pub name: Box<[u8]>,
    /// Only messages after this offset; 0 for the whole log.
    pub after: u64,
    /// The epoch of `after`, if the client has named one. If the log does not know the position, messages count as lost.
    pub epoch: Option<u32>,
    /// The maximum number of messages.
    pub messages_max: u32,
    /// Whether to return the newest messages instead of the oldest. In both cases the messages are in ascending order.
    pub newest: bool,
}

/// Messages of a topic's log, oldest first.
#[derive(Debug, Default)]
pub struct Messages {
    /// The messages found.
    pub messages: Vec<Message>,
    /// The `after` of the next page, if the log has more messages. If the search for the first message was too long for one order, `next` is
    /// given without messages.
    pub next: Option<u64>,
    /// Whether messages between the requested offset and the first message are lost.
    pub lost: bool,
}

/// A kept message.
#[derive(Debug)]
pub struct Message {
    /// The message's offset in its partition.
    pub offset: u64,
    /// When the message was published: Unix seconds, by the wall clock.
    pub time_s: u32,
    /// The message's data.
    pub data: Vec<u8>,
    /// Whether the message is sent in binary frames.
    pub binary: bool,
    /// The message's content type, or empty.
    pub content_type: Vec<u8>,
    /// The message's event name, or empty.
    pub event: Vec<u8>,
    /// The message's key, or empty.
    pub key: Vec<u8>,
}

/// A message that the operator publishes. The sender of the order has checked it.
#[derive(Debug)]
pub struct AdminPublish {
    /// The topic.
    pub name: Box<[u8]>,
    /// The message.
    pub data: Vec<u8>,
    /// The message's headers.
    pub headers: Headers<Vec<u8>>,
    /// The idempotency key of the message, if there is one. A retry has the same key.
    pub idempotency_key: Option<Box<[u8]>>,
}

/// A selection of connections: all conditions must hold.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Only connections with this protocol.
    pub transport: Option<Transport>,
    /// Only connections of this user.
    pub user: Option<Box<str>>,
    /// Only connections whose [`Connection::address`] is this one.
    pub address: Option<IpAddr>,
    /// Only connections that subscribe to a topic that this filter matches, or to a filter that this filter covers.
    pub filter: Option<Box<[u8]>>,
    /// Only connections with bytes that their socket has not accepted yet.
    pub slow: bool,
    /// Only this connection.
    pub only: Option<ConnId>,
    /// Not these connections.
    pub except: Vec<ConnId>,
}

/// An order for a connection. All orders except `Disconnect` are for clients of Centrifugo's protocol, and change no other connection.
#[derive(Clone, Debug)]
pub enum ConnectionOrder {
    /// Close the connection.
    Disconnect,
    /// Close the connection with this code, which WebSocket allows, and this reason, which fits into a Close frame.
    DisconnectAs(u16, Box<str>),
    /// Begin a subscription.
    Subscribe(Box<ServerSide>),
    /// End the subscription to this topic.
    Unsubscribe(Box<[u8]>),
    /// Set the Unix second in which the connection's credential ends; `u32::MAX` for never. Changes no connection without a credential.
    Refresh(u32),
}

/// A subscription that the server begins for a client.
#[derive(Clone, Debug)]
pub struct ServerSide {
    /// The topic. The sender of the order has checked the name.
    pub name: Box<[u8]>,
    /// The position of the client's last message; without one, the subscription begins with the next message.
    pub since: Option<Position>,
    /// Data for the client; empty for none.
    pub data: Box<[u8]>,
    /// The Unix second in which the subscription ends; `u32::MAX` without an end.
    pub until_unix_s: u32,
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    /// The connection's id.
    pub id: ConnId,
    /// The connection's protocol.
    pub transport: Transport,
    /// The connection of HTTP/2 of which this one is a stream.
    pub link: Option<ConnId>,
    /// Whether a request is in flight.
    pub request_in_flight: bool,
    /// The client's address, if a trusted proxy stated it for the last request or for the connection; otherwise the address of the socket's peer.
    pub address: Option<IpAddr>,
    /// The connection's user, or empty.
    pub user: Box<str>,
    /// The connection's MQTT session, and the home of the session. The home reports the client id ([`Control::ClientIds`]).
    pub session: Option<(ShardId, SessionId)>,
    /// Topics that the connection subscribes to; the list may be truncated.
    pub topics: Vec<Box<[u8]>>,
    /// The number of all topics that the connection subscribes to.
    pub topic_count: u32,
    /// Filters that the connection subscribes to; the list may be truncated.
    pub filters: Vec<Box<[u8]>>,
    /// Bytes that the socket has not accepted yet.
    pub outbox_bytes: usize,
    /// Whether the client has fallen behind and continues from the log.
    pub behind: bool,
    /// Seconds since bytes were last sent to the client.
    pub silent_s: u32,
    /// The Unix second in which the connection was accepted, by the wall clock.
    pub connected_unix_s: u32,
    /// Whether this server, not a proxy, encrypts the connection with TLS.
    pub is_secure: bool,
    /// The state of an MQTT connection.
    pub mqtt: Option<MqttState>,
}

/// The state of an MQTT connection.
#[derive(Clone, Debug)]
pub struct MqttState {
    /// Whether the client uses MQTT 5.0, otherwise 3.1.1.
    pub is_v5: bool,
    /// Seconds of the client's Keep Alive, 0 for none.
    pub keep_alive_s: u16,
    /// QoS 1 and 2 messages that the client has not acknowledged.
    pub in_flight: usize,
    /// The maximum number of messages that may be in flight.
    pub receive_max: u16,
    /// Messages that wait to become in flight.
    pub waiting: usize,
    /// Seconds that the session outlives the connection.
    pub expiry_s: u32,
    /// The client's subscriptions, each with its filter as in the SUBSCRIBE and its QoS; the list may be truncated.
    pub subscriptions: Vec<(Box<[u8]>, u8)>,
}

/// An MQTT session whose client is disconnected.
#[derive(Debug)]
pub struct Session {
    /// The session's client id.
    pub client_id: Box<[u8]>,
    /// The session's user, or empty.
    pub user: Box<[u8]>,
    /// Seconds until the session expires; `None` if it does not expire.
    pub expires_in_s: Option<u32>,
    /// Bytes that the session occupies.
    pub bytes: usize,
    /// The session's subscriptions, each with its QoS; empty in a page of sessions.
    pub subscriptions: Vec<(Box<[u8]>, u8)>,
}

/// The name of an MQTT session.
#[derive(Clone, Debug)]
pub struct SessionName {
    /// The client id.
    pub client_id: Box<[u8]>,
    /// The user, or empty.
    pub user: Box<[u8]>,
}

/// The result of an order that ends or changes connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// The number of connections or sessions that were ended or changed.
    pub count: u32,
    /// The row to continue with, unless these were the last.
    pub next: Option<u32>,
}

/// The view that a home of a node has of its cluster.
#[derive(Clone, Debug, Default)]
pub struct ClusterState {
    /// The partitions of the home.
    pub partitions: Vec<PartitionState>,
    /// Nodes that are alive according to the log. Only the home of partition 0 knows them.
    pub nodes: Vec<NodeState>,
    /// Nodes that died within the last hour and whose name no living node has. Only the home of partition 0 knows them.
    pub dead_nodes: Vec<NodeState>,
    /// When the report was made, by this node's counted seconds (`Now::unix_s`), which follow the log's clock.
    pub unix_s: u32,
    /// Whether this node has read none of its own heartbeats for some seconds, so that it may be cut off from the log.
    pub is_cut_off: bool,
}

/// A partition as a node sees it.
#[derive(Clone, Debug)]
pub struct PartitionState {
    /// The partition's number.
    pub partition: PartitionId,
    /// The offset of the last applied record.
    pub offset: u64,
    /// The number of this node as a writer of the partition.
    pub writer: u64,
    /// The writer that is the steward: the node that makes checkpoints, and does other work that must be done once.
    pub steward: Option<u64>,
}

/// A node, according to its last heartbeat.
#[derive(Clone, Debug)]
pub struct NodeState {
    /// The node's number as a writer of partition 0.
    pub writer: u64,
    /// Whether this node made the report.
    pub is_self: bool,
    /// The node's name.
    pub name: Box<[u8]>,
    /// The address of the node's admin API.
    pub admin_address: Box<[u8]>,
    /// The node's connections.
    pub connections: u64,
    /// The offset of the heartbeat.
    pub offset: u64,
    /// When the heartbeat was read, by the clock of the shard.
    pub beat_s: u32,
    /// When the log stored the heartbeat, in Unix seconds.
    pub beat_unix_s: u32,
    /// Seconds by which the node's clock was ahead of the log's clock, minus the time that the heartbeat was in flight.
    pub ahead_s: i64,
}

/// The work and mail in flight at a shard. All shards are idle if two rounds over them find the same numbers, no shard is busy, and as many
/// mails were received as posted: then only a connection or the clock can start new work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// The number of connections.
    pub connections: u32,
    /// The number of mails that the shard has posted since its start.
    pub posted: u64,
    /// The number of mails that the shard has received since its start.
    pub received: u64,
    /// Whether the shard has work left.
    pub busy: bool,
}
