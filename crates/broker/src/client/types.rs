//! The types that protocols bring: state that the clients' side keeps for them, and does not look into.

use crate::base::time::Now;
use crate::client::run::Encodings;
use crate::store::slab::Vacant;

/// Received bytes that are not handled yet, as the connection's protocol keeps them.
pub(crate) trait Spilled: Default {
    /// Bytes that they hold, as they are counted.
    fn bytes(&self) -> usize;
    /// Bytes of the input that should have come by now and have not.
    fn owed_bytes(&self) -> u64;
}

/// The state of a connection's protocol that few connections need, in a side row.
pub(crate) trait Held: Default {
    /// Bytes of heap that it occupies, without large messages.
    fn bytes(&self) -> usize;
    /// Its share of the large messages that it holds with others.
    fn shared_weight(&self) -> usize;
    /// Whether the protocol needs none of it any more.
    fn is_idle(&self) -> bool;
}

/// The types of the protocols of a server.
pub(crate) trait ProtocolTypes: Sized {
    /// Received bytes of a connection that are not handled yet.
    type Spill: Spilled;
    /// The protocol's state in a side row.
    type Held: Held;
    /// The protocol's state of each subscription in a list.
    type Subscribed: Default;
    /// The row that a protocol may give a connection, besides its common one.
    type Row: Vacant;
    /// The protocols' state of a shard.
    type Own;
    /// The forms in which messages are sent.
    type Encoding: Encodings;

    /// The protocols' state of a shard that begins now.
    fn own(now: Now) -> Self::Own;
}
