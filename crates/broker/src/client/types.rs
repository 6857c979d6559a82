//! The types that the protocols define: state that the clients' side stores for them and does not read.

use crate::base::time::Now;
use crate::client::progress::Allowance;
use crate::client::run::Encodings;
use crate::store::slab::Vacant;

/// Received bytes that are not processed yet, as the connection's protocol stores them.
pub(crate) trait Spilled: Default {
    /// The number of held bytes that is charged.
    fn bytes(&self) -> usize;
    /// How many bytes the input is behind (see `progress.rs`).
    fn owed_bytes(&self) -> u64;
    /// Whether the bytes may still have to be processed: they wait for the connection's turn or for credit.
    fn is_held(&self) -> bool;
    /// Counts a second of a partly received input. Returns whether the input is too slow.
    fn lags(&mut self, allowance: Allowance) -> bool;
}

/// The protocol's state that few connections need. It is in a side row, outside the table of connections.
pub(crate) trait Held: Default {
    /// The bytes of its heap, without large messages.
    fn bytes(&self) -> usize;
    /// The connection's part of the large messages that it shares with others, and what homes keep for it alone.
    fn shared_weight(&self) -> usize;
    /// Whether the protocol does not need this state any more.
    fn is_idle(&self) -> bool;
    /// The number of answers to the client that wait for homes, besides those to pages.
    fn answers(&self) -> usize;
}

/// The protocol's state of each subscription in a list.
pub(crate) trait Subscribed: Default {
    /// The name of a subscription that the protocol itself carries out, so that it has neither topic nor filter in the list.
    fn name(&self) -> Option<&[u8]>;
    /// Takes the state of the only subscription out of the options of its row.
    fn leave_row(options: &mut u32) -> Self;
    /// Puts the state into the options of a row. False if the options cannot express it.
    fn enter_row(&self, options: &mut u32) -> bool;
}

/// The types of the protocols of a server.
pub(crate) trait ProtocolTypes: Sized {
    /// Received bytes of a connection that are not handled yet.
    type Spill: Spilled;
    /// The protocol's state in a side row.
    type Held: Held;
    /// The protocol's state of each subscription in a list.
    type Subscribed: Subscribed;
    /// A row (table entry) that a protocol may add to a connection.
    type Row: Vacant;
    /// The protocols' state of a shard.
    type Own;
    /// The forms in which messages are sent.
    type Encoding: Encodings;

    /// The protocols' state of a shard that begins now.
    fn own(now: Now) -> Self::Own;
}
