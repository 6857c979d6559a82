//! The wills of recorded MQTT sessions whose messages are on their way to the log (see `wills.rs`).

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

/// A will whose message was sent to the home of its topic.
pub(super) struct PublishedWill {
    /// The name of the session.
    pub name: Box<[u8]>,
    /// The token of the session, if it may have ended.
    pub session: Option<u64>,
    /// The token of the will.
    pub will: u64,
}

/// The wills whose messages are not in the log yet, by number.
#[derive(Default)]
pub(super) struct PublishedWills {
    pub last: u32,
    pub waiting: BTreeMap<u32, PublishedWill>,
}
