//! The operator's orders to a shard and the shard's reports: besides mail the only way into a shard that is not a
//! connection.
//!
//! Invariants: the work of one [`Control`] is bounded like that of any input (listings are pages of so many rows); each
//! gets one [`Report`], with the [`Ticket`] of the order, within the call of [`Shard::handle`](crate::Shard::handle) or
//! in a later turn.
//!
//! Deliberately not here: permissions. The holder of the other end is the operator.

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
use crate::base::snapshot::Head;
use crate::budget::stats::{Accounts, Stats, Transport};
use crate::budget::world::World;
use crate::mail::message::Headers;
use crate::mail::session::SessionId;
use crate::mail::{Info, InterestChanges, Outcome};

/// An order.
#[derive(Debug)]
pub enum Control {
    /// Report counts and holdings; the answer also shows that the shard turns at all.
    Accounts,
    /// Report the first name of this kind that was met since the last such order, and forget it.
    Notice(Notice),
    /// A page of the topics of this home.
    Topics(TopicsPage),
    /// The state of this topic of the home.
    Topic(Box<[u8]>),
    /// A page of the log of a topic of the home.
    Log(LogPage),
    /// Remove the messages of this topic up to this offset, the retained one included; of the log as many as one turn
    /// may.
    Purge(Box<[u8]>, u64),
    /// Delete this topic and end its subscriptions.
    Delete(Box<[u8]>),
    /// Publish to a topic of the home.
    Publish(Box<AdminPublish>),
    /// A page of connections: at most this many, from this row on.
    Connections {
        /// Which ones.
        which: Selection,
        /// The row.
        from: u32,
        /// How many.
        most: u32,
    },
    /// All of one connection.
    Connection(ConnId),
    /// The MQTT client ids of these sessions of the home, at most as many as a page has connections.
    ClientIds(Vec<SessionId>),
    /// A page of the MQTT sessions of the home whose clients are away.
    Sessions {
        /// The row to begin with: 0, or [`Page::next`].
        from: u32,
        /// How many at most.
        most: u32,
    },
    /// All of a session of the home whose client is away.
    Session(SessionName),
    /// End that session, as if it had expired: its will is published.
    EndSession(SessionName),
    /// End this connection.
    Disconnect(ConnId),
    /// End connections, from this row on, as many as one turn may.
    DisconnectAll {
        /// Which ones.
        which: Selection,
        /// The row.
        from: u32,
    },
    /// Determine the rules of this world for a bounded number of further topics, so that the change itself is short.
    PrepareRules(Arc<World>),
    /// The messages that are left of these topics of a partition of the home, once it has applied all up to this offset.
    Floors(PartitionId, u64, Vec<Box<[u8]>>),
    /// Change to the settings and rules of this world, which has the same shards and topics.
    Settings(Arc<World>),
    /// Report what the home knows of the cluster.
    Cluster,
    /// Interest at the nodes of a cluster.
    Interest(Interest),
    /// Move clients off.
    Drain,
    /// Stop the clock, and report whether anything is under way: the last orders before an end.
    Settle,
    /// The next block of the shard's snapshot, of at most this many bytes.
    Save(Head, usize),
}

/// The answer to an order. Each has a type of its own, into which the sender of the order turns it.
#[derive(Debug, TryInto)]
pub enum Report {
    /// The shard's counts and holdings.
    Accounts(Box<(Stats, Accounts)>),
    /// The name of a refused request, if there was one: printable ASCII, at most 100 bytes.
    Notice(Option<String>),
    /// A page of topics.
    Topics(Page<Topic>),
    /// The state of a topic, if there is one.
    Topic(Option<Box<Topic>>),
    /// A page of a log, if there is such a topic.
    Messages(Option<Messages>),
    /// The outcome of a publish, a purge or a deletion.
    Outcome(Outcome),
    /// A page of connections.
    Connections(Page<Connection>),
    /// A connection, if there is one.
    Connection(Option<Box<Connection>>),
    /// Client ids in the order of the question; none where the connection is gone.
    ClientIds(Vec<Option<Box<[u8]>>>),
    /// A page of sessions.
    Sessions(Page<Session>),
    /// A session, if the home has it and its client is away.
    Session(Option<Box<Session>>),
    /// How many connections were ended.
    Ended(Ended),
    /// Whether topics are left for [`Control::PrepareRules`].
    RulesPrepared(bool),
    /// For each topic the offset up to which it has no messages in its log; `None` for one that is not known. None at all where the home
    /// has not come so far.
    Floors(Option<Vec<Option<u64>>>),
    /// The home's view of the cluster, if this is a node of one and the shard a home.
    Cluster(Option<Box<ClusterState>>),
    /// The answer to [`Control::Interest`].
    Interest(InterestReply),
    /// It is done.
    Done,
    /// Whether anything is under way.
    Settled(Settled),
    /// A block; empty behind the last one.
    Block(Vec<u8>),
}

/// An order about which topics have interest at the nodes of a cluster.
#[derive(Debug)]
pub enum Interest {
    /// Report what connections here follow.
    Filters,
    /// Report what is new for another node that follows. With filters its stream begins; none has this number yet.
    Next(u64, Option<Vec<Box<[u8]>>>),
    /// That node follows no more.
    End(u64),
    /// Changes of topics of the home that another node has told, some hundred at most, in a stream with a number below
    /// [`STREAMS`](crate::STREAMS).
    Elsewhere(u8, InterestChanges),
    /// Forget what this stream has told of topics behind this name.
    Forget(u8, Box<[u8]>),
}

/// The answer to an [`Interest`].
#[derive(Debug)]
pub enum InterestReply {
    /// Filters.
    Filters(BTreeSet<Box<[u8]>>),
    /// The news, and whether there is more at once; none where the home has no such stream, or not all of its news.
    Changes(Option<(InterestChanges, bool)>),
    /// For how many topics there was no room.
    Refused(u32),
    /// The name to go on with, unless all is forgotten.
    Forgot(Option<Box<[u8]>>),
    /// It is done, or this shard is no home.
    Done,
}

/// Which topics, and from which row on.
#[derive(Debug)]
pub struct TopicsPage {
    /// Only topics that it matches; `#` matches all, `$` topics among them.
    pub filter: Box<[u8]>,
    /// The row to begin with: 0, or [`Page::next`].
    pub from: u32,
    /// How many topics at most.
    pub most: u32,
}

/// A page of a listing.
#[derive(Debug)]
pub struct Page<T> {
    /// The entries found.
    pub found: Vec<T>,
    /// The row to go on with, unless this is the last page.
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
    /// Its name.
    pub name: Box<[u8]>,
    /// Its state.
    pub info: Info,
    /// Bytes that its kept messages occupy.
    pub bytes: u32,
    /// The number of the rule that governs it.
    pub rule: u8,
}

/// A page of a topic's log.
#[derive(Debug)]
pub struct LogPage {
    /// The topic.
    pub name: Box<[u8]>,
    /// Only messages behind this offset; 0 is the beginning.
    pub after: u64,
    /// How many messages at most.
    pub most: u32,
    /// The newest of them instead of the oldest: those of the end, from the oldest of them on.
    pub newest: bool,
}

/// Messages of a topic's log, oldest first.
#[derive(Debug, Default)]
pub struct Messages {
    /// The messages found.
    pub messages: Vec<Message>,
    /// Whether there are more.
    pub more: bool,
    /// Whether messages between the offset asked for and the first one are lost.
    pub lost: bool,
}

/// A kept message.
#[derive(Debug)]
pub struct Message {
    /// Its sequence number at its home.
    pub offset: u64,
    /// When it was published: Unix seconds, by the wall clock.
    pub time_s: u32,
    /// Its data.
    pub data: Vec<u8>,
    /// Sent in binary frames.
    pub binary: bool,
    /// Its content type, or empty.
    pub content_type: Vec<u8>,
    /// Its event name, or empty.
    pub event: Vec<u8>,
    /// Its key, or empty.
    pub key: Vec<u8>,
}

/// A message that the operator publishes. The sender of the order has checked all of it.
#[derive(Debug)]
pub struct AdminPublish {
    /// The topic.
    pub name: Box<[u8]>,
    /// The message.
    pub data: Vec<u8>,
    /// Its state.
    pub headers: Headers<Vec<u8>>,
}

/// A selection of connections: all conditions must hold.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Only connections with this protocol.
    pub transport: Option<Transport>,
    /// Only connections of this user.
    pub user: Option<Box<str>>,
    /// Only connections from this address, as [`Connection::address`] has it.
    pub address: Option<IpAddr>,
    /// Only connections that subscribe to a topic that it matches, or to a filter that it covers.
    pub filter: Option<Box<[u8]>>,
    /// Only connections with bytes that wait for their socket.
    pub slow: bool,
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    /// Its row.
    pub id: ConnId,
    /// Its protocol.
    pub transport: Transport,
    /// A request is under way.
    pub waits: bool,
    /// Its address: from a trusted proxy's word for its last request, or for the connection; otherwise its peer.
    pub address: Option<IpAddr>,
    /// Its user, or empty.
    pub user: Box<str>,
    /// Its MQTT session: the home that knows the client id, which the connection itself does not hold, and the session
    /// to ask for there ([`Control::ClientIds`]).
    pub session: Option<(ShardId, SessionId)>,
    /// Topics that it subscribes to.
    pub topics: Vec<Box<[u8]>>,
    /// How many there are; the list may have fewer.
    pub topic_count: u32,
    /// Filters that it subscribes to.
    pub filters: Vec<Box<[u8]>>,
    /// Bytes that its socket has not taken yet.
    pub outbox_bytes: usize,
    /// It fell behind and will read on from the log.
    pub behind: bool,
    /// Seconds since something was last sent to it.
    pub silent_s: u32,
    /// It is encrypted by TLS here, and not by a proxy.
    pub is_secure: bool,
    /// What only a client of MQTT has.
    pub mqtt: Option<MqttState>,
}

/// The state of an MQTT connection.
#[derive(Clone, Copy, Debug)]
pub struct MqttState {
    /// Whether it speaks 5.0, else 3.1.1.
    pub is_v5: bool,
    /// Seconds of its Keep Alive, 0 for none.
    pub keep_alive_s: u16,
    /// QoS 1 and 2 messages that it has not acknowledged.
    pub in_flight: usize,
    /// How many there may be.
    pub receive_max: u16,
    /// Messages that wait for room there.
    pub waiting: usize,
    /// Seconds that its session outlives the connection.
    pub expiry_s: u32,
}

/// An MQTT session whose client is away.
#[derive(Debug)]
pub struct Session {
    /// Its client id.
    pub client_id: Box<[u8]>,
    /// Its user, or empty.
    pub user: Box<[u8]>,
    /// Seconds after which it ends; none: never.
    pub expires_in_s: Option<u32>,
    /// Bytes that it occupies.
    pub bytes: usize,
    /// Its subscriptions, each with its QoS; none in a list.
    pub subscriptions: Vec<(Box<[u8]>, u8)>,
}

/// An MQTT session by its client.
#[derive(Clone, Debug)]
pub struct SessionName {
    /// The client id.
    pub client_id: Box<[u8]>,
    /// The user, or empty.
    pub user: Box<[u8]>,
}

/// The result of an order to end connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// How many were ended.
    pub count: u32,
    /// The row to go on with, unless these were the last.
    pub next: Option<u32>,
}

/// The view that a home of a node has of its cluster.
#[derive(Clone, Debug, Default)]
pub struct ClusterState {
    /// The partitions of the home.
    pub partitions: Vec<PartitionState>,
    /// Nodes that live, by what the log says: at the home of partition 0.
    pub nodes: Vec<NodeState>,
    /// Nodes that have died within the last hour, and whose places no others have taken: at the home of partition 0.
    pub dead_nodes: Vec<NodeState>,
    /// The second of the report since 1970, by the clock that follows that of the log.
    pub unix_s: u32,
    /// No sign of life of this node has come back for some seconds: it may have no way to the log.
    pub is_cut_off: bool,
}

/// A partition at a node.
#[derive(Clone, Debug)]
pub struct PartitionState {
    /// Its number.
    pub partition: PartitionId,
    /// The offset of the last record that is applied.
    pub offset: u64,
    /// As which writer this node writes to it.
    pub writer: u64,
    /// The writer that does what one node does for all, such as checkpoints.
    pub steward: Option<u64>,
}

/// A node, as its last sign of life has told.
#[derive(Clone, Debug)]
pub struct NodeState {
    /// Its number among the writers of partition 0.
    pub writer: u64,
    /// It is the one that reports.
    pub is_self: bool,
    /// Its name.
    pub name: Box<[u8]>,
    /// The address of its admin API.
    pub link: Box<[u8]>,
    /// Its connections.
    pub connections: u64,
    /// The offset of the sign of life.
    pub offset: u64,
    /// When it was read, by the clock of the shard.
    pub beat_s: u32,
    /// When the log stored it, in seconds since 1970.
    pub beat_unix_s: u32,
    /// Seconds by which its clock was ahead of the log's, by the time on the way less.
    pub ahead_s: i64,
}

/// The work and mail under way at a shard. Once two rounds over all shards have found the same, no shard busy and as much mail
/// received as posted, all of them are at rest: only a connection or the clock can begin anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Connections.
    pub connections: u32,
    /// Mail that it has posted since it began.
    pub posted: u64,
    /// Mail that it has received since it began.
    pub received: u64,
    /// It has more to do.
    pub busy: bool,
}
