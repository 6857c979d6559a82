//! What the functions of a home (the part of a shard that keeps topics) need from the rest of their shard to handle facts (publishes, and changes of
//! topics) and asks (requests from carriers, the shards that hold connections). Also the result of the admission of a fact.

use super::answers::IdempotencyKey;
use crate::base::rules::Rules;
use crate::base::settings::Settings;
use crate::base::time::Now;
use crate::filters::matching::Matching;
use crate::mail::lanes::Lanes;

/// The parts of the shard that a home reads or changes.
pub(crate) struct HomeContext<'a> {
    pub settings: &'a Settings,
    pub rules: &'a Rules,
    /// The filters of the shard's own connections.
    pub local_filters: &'a Matching,
    pub now: Now,
    pub lanes: &'a mut Lanes,
}

/// An admitted fact. Valid only until the home changes, because the topic may then have another row.
#[derive(Default)]
pub(crate) struct Admitted {
    /// The topic's row, if it exists.
    pub topic_id: Option<u32>,
    /// The message's idempotency key, if it has one.
    pub key: Option<IdempotencyKey>,
}
