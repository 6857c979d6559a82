//! Types of the interface between the protocols and the clients' side of a shard, and traits for the state of a protocol. The clients' side stores
//! this state, and reads and changes it only through these traits.

use crate::base::time::Now;
use crate::client::progress::Allowance;
use crate::client::run::Encodings;
use crate::store::slab::SlabRow;

/// A subscription: its connection, its topic, and its index in the connection's list.
#[derive(Clone, Copy)]
pub(crate) struct SubscriptionRef {
    pub slot: u32,
    pub topic: u32,
    pub sub_index: u32,
}

/// A subscription in a list: the connection's row, and the index in the connection's list.
pub(crate) type SlotAndIndex = (u32, u32);
/// A group of filters: the connection's row, and the serial number of the group among the connection's filters.
pub(crate) type SlotAndSerial = (u32, u32);

/// An incomplete input.
#[derive(Default)]
pub(crate) struct PartialInput {
    /// The bytes that have come.
    pub bytes: usize,
    /// How many more bytes should have come by now (see `progress.rs`).
    pub bytes_behind: u64,
}

/// Received bytes that are not processed yet, as the connection's protocol stores them.
pub(crate) trait UnprocessedInput: Default {
    /// The number of bytes that is charged.
    fn bytes(&self) -> usize;
    /// How many bytes the input is behind (see `progress.rs`).
    fn bytes_behind(&self) -> u64;
    /// Whether the bytes may wait for the connection's turn or for credit. False if they only wait for the rest of an input.
    fn is_waiting(&self) -> bool;
    /// Counts a second of a partly received input. Returns whether the input is too slow.
    fn count_second(&mut self, allowance: Allowance) -> bool;
}

/// The protocol's state that few connections need. It is in a second table (a *side row*), to keep the table of connections small.
pub(crate) trait SideState: Default {
    /// The bytes of its heap, without large messages.
    fn bytes(&self) -> usize;
    /// The bytes outside its heap that are charged too: the connection's share of large messages that several connections hold, and the
    /// memory that homes use only for this connection.
    fn shared_weight(&self) -> usize;
    /// Whether the protocol does not need this state any more.
    fn is_idle(&self) -> bool;
    /// How many requests of the client wait for an answer of a home. Requests for pages are not counted.
    fn pending_answers(&self) -> usize;
    /// The user and the info that the client has given for its membership of this topic. `None` if they are those of the connection.
    fn member_of(&self, topic: u32) -> Option<(&[u8], &[u8])>;
}

/// The protocol's state of each subscription in a list.
pub(crate) trait SubscriptionState: Default {
    /// The name, if the protocol itself handles the subscription. Such a subscription has neither topic nor filter in the list.
    fn name(&self) -> Option<&[u8]>;
    /// Moves the state out of the options of the connection's row, where a connection with only one subscription keeps it.
    fn unpack_options(options: &mut u32) -> Self;
    /// Moves the state into the options of the connection's row. False if the options cannot express it.
    fn pack_options(&self, options: &mut u32) -> bool;
}

/// The types of the protocols of a server.
pub(crate) trait ProtocolTypes: Sized {
    /// Received bytes that are not processed yet.
    type UnprocessedInput: UnprocessedInput;
    /// The protocol's state in a side row.
    type SideState: SideState;
    /// The protocol's state of each subscription in a list.
    type SubscriptionState: SubscriptionState;
    /// A row (table entry) that a protocol may add to a connection.
    type ProtocolRow: SlabRow;
    /// The protocols' state of a shard.
    type ShardState;
    /// The forms in which messages are sent.
    type Encoding: Encodings;

    /// The protocols' state of a new shard.
    fn new_shard_state(now: Now) -> Self::ShardState;
}
