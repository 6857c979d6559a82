//! The parts of the state of a shard's clients' side. A function takes only the parts that it reads or changes, so its signature
//! tells what it may change. If one field of a part is enough, the function takes the field.

use alloc::boxed::Box;

use crate::base::journal::Journal;
pub(crate) use crate::base::notices::Notices;
pub(crate) use crate::budget::stats::Stats;
pub(crate) use crate::client::census::Census;
pub(crate) use crate::client::connections::Connections;
pub(crate) use crate::client::context::Context;
pub(crate) use crate::client::deliveries::Deliveries;
pub(crate) use crate::client::gate::Gate;
pub(crate) use crate::client::queues::Queues;
pub(crate) use crate::client::run::Run;
pub(crate) use crate::client::scratch::Scratch;
pub(crate) use crate::client::topics::Topics;
pub(crate) use crate::client::work::Work;
pub(crate) use crate::filters::matching::Matching;
pub(crate) use crate::mail::lanes::Lanes;
pub(crate) use crate::store::shared::EncodingCache;

use crate::client::types::ProtocolTypes;

/// The connections, and what is needed to answer one of them: buffers, settings, time, counters.
pub(crate) struct Clients<P: ProtocolTypes> {
    pub(crate) conns: Connections<P>,
    pub(crate) scratch: Scratch,
    /// Large messages in the encodings that outboxes share.
    pub(crate) encodings: EncodingCache,
    pub(crate) ctx: Context,
    pub(crate) meter: Meter,
    /// The protocols' state of the shard.
    pub(crate) protocol_state: P::ShardState,
}

/// The topics and filters of connections, and the lanes (ordered queues of mail) to the homes (the parts of shards that keep
/// topics).
pub(crate) struct Subscriptions {
    pub(crate) topics: Topics,
    pub(crate) matching: Matching,
    pub(crate) lanes: Lanes,
}

/// Messages on their way to connections.
pub(crate) struct Feed {
    pub(crate) deliveries: Deliveries,
    /// The messages of the current delivery.
    pub(crate) run: Run,
}

/// The shard's counters: its work, compared with the budget of a turn, and the counters and notices for the operator.
pub(crate) struct Meter {
    pub(crate) work: Work,
    pub(crate) stats: Stats,
    pub(crate) notices: Notices,
    /// Events of clients for the operator's log and webhooks, if one of them wants them.
    pub(crate) journal: Option<Box<Journal>>,
}
