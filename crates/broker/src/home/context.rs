//! The context of a fact or an ask at its home, and the findings of its admission.

use super::answers::IdempotencyKey;
use crate::base::rules::Rules;
use crate::base::settings::Settings;
use crate::base::time::Now;
use crate::filters::matching::Matching;
use crate::mail::lanes::Lanes;

/// The state of its shard that a home reads or changes with a fact or an ask.
pub(crate) struct HomeContext<'a> {
    pub settings: &'a Settings,
    pub rules: &'a Rules,
    /// The filters of its shard.
    pub here: &'a Matching,
    pub now: Now,
    pub lanes: &'a mut Lanes,
}

/// The findings of admission. They hold until anything else happens at the home.
#[derive(Default)]
pub(crate) struct Found {
    /// The row of the topic.
    pub row: Option<u32>,
    /// The key of a message that brings one.
    pub key: Option<IdempotencyKey>,
}
