//! The parts of a shard's clients' side. A function takes the parts that it reads or changes, and no others: its signature says what a change
//! of it may break. Where one field of a part is enough, it takes that field.

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
pub(crate) use crate::store::shared::Forms;

use crate::client::types::ProtocolTypes;

/// The connections, and what is at hand to answer one of them: buffers, the settings and the time, the counts.
pub(crate) struct Clients<P: ProtocolTypes> {
    pub(crate) conns: Connections<P>,
    pub(crate) scratch: Scratch,
    pub(crate) ctx: Context,
    pub(crate) meter: Meter,
    /// The state of a shard that only protocols know.
    pub(crate) own: P::Own,
}

/// The topics and filters that connections subscribe to, and the way to the homes, which have the topics.
pub(crate) struct Subscriptions {
    pub(crate) topics: Topics,
    pub(crate) matching: Matching,
    pub(crate) lanes: Lanes,
}

/// Messages on their way to the connections.
pub(crate) struct Feed {
    pub(crate) deliveries: Deliveries,
    /// The messages at hand.
    pub(crate) run: Run,
    /// Large messages in the encoded forms that sockets wait for.
    pub(crate) forms: Forms,
}

/// The counts of the shard: its work, against the budget of a turn, and the counters and notices that the operator sees.
pub(crate) struct Meter {
    pub(crate) work: Work,
    pub(crate) stats: Stats,
    pub(crate) notices: Notices,
    /// What happens to clients, where the operator's log wants that.
    pub(crate) journal: Option<Box<Journal>>,
}
