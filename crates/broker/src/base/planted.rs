//! Faults that the simulator plants on purpose, to prove that its checks find them. Without the feature `planted` each check is a
//! constant `false`, so the product contains no fault.
//!
//! Words: a *home* is the part of a shard that keeps topics. A *carrier* is a shard with subscribers. A *tell* is mail from a home
//! to a carrier. A *row* is an entry of a table, here of a topic. A *page* is a bounded run of past messages. A *fence* is a
//! request that is answered after all earlier ones.

use core::sync::atomic::{AtomicU8, Ordering};

/// A planted fault. At most one is switched on in a process.
#[cfg_attr(feature = "planted", derive(strum::VariantArray))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// A subscription takes live messages before its last page.
    LiveBeforeHead = 1,
    /// A tell for the previous topic of a row is accepted.
    OldSerial,
    /// A connection that leaves during a fan-out leaves no tombstone.
    NoTombstone,
    /// A forgotten topic does not raise the floor of its slot, below which positions get a gap (see `home.rs`).
    NoFloor,
    /// Publishers do not wait for credit.
    NoCredit,
    /// A connection that waited and may continue is not woken.
    LostWake,
    /// A subscription that continues from the log asks for a page twice.
    DoubleResume,
    /// A carrier does not tell the home that a counted subscription has ended.
    NoDetach,
    /// The rest of a partially written frame is dropped.
    HalfFrame,
    /// A message waits in the outbox although a newer one of its key may replace it.
    Superseded,
    /// A session that moves to another connection loses its oldest unacknowledged message.
    LostInflight,
    /// Unacknowledged messages are sent again in another order.
    ResendOrder,
    /// More messages are in flight than the client's Receive Maximum.
    NoQuota,
    /// A session that moves to another connection forgets the QoS 2 messages that the client has sent.
    ForgottenIds,
    /// A publish is acknowledged before it is committed.
    EarlyAck,
    /// The logs that a session has made homes keep are released twice when the session ends.
    DoubleRelease,
    /// A connection takes over a session before the previous connection has given the session back.
    HastyTakeover,
    /// A session's stored position is one too high.
    FarPosition,
    /// A subscription that continues from the log repeats messages that the client got by its other subscriptions.
    OwnCopies,
    /// A page that ends early has an end offset that is one too high.
    LostSeam,
    /// A position by filter lacks earlier messages of other partitions in the same run.
    StaleVector,
    /// A message whose partition moves to another home at a restart is left behind.
    LeftBehind,
    /// A record is applied before it is committed.
    AppliedEarly,
    /// A batch after a gap of numbers is accepted.
    GapAccepted,
    /// A batch that is appended again has a new number.
    NewNumber,
    /// The sequence number of a batch ignores the batches in flight.
    StaleSequence,
    /// A fence does not wait for the batches in flight.
    EarlyFence,
    /// Two publishes with one idempotency key, both in flight, are both applied.
    KeyTwice,
    /// Durations are measured with the wall clock.
    WallClock,
    /// A checkpoint lacks a message that the home has.
    DroppedLive,
    /// No mark covers the offsets of facts that are not logged.
    NoMark,
    /// Batches of a dead writer are accepted.
    DeadAccepted,
    /// Records that were committed after their publishers were told "outcome unknown" are applied.
    LateAccepted,
    /// The node that wrote a record gives it another offset.
    OwnOffset,
    /// Damage in the log of a partition is not reported.
    SilentDamage,
    /// A node that starts from a checkpoint does not restore the writers.
    ForgottenWriters,
    /// A position of a past life is accepted, even beyond the end of that life.
    OneLife,
    /// Batches that no checkpoint contains are removed from the log of a cluster.
    EarlyPurge,
    /// A SUBACK does not wait until the session is recorded.
    EarlySuback,
    /// A start applies batches that a document of the base already contains.
    FoldedTwice,
    /// A QoS 2 message is sent before the session's record with its packet id is committed.
    UnrecordedPublish,
    /// In a cluster, a change of a session takes effect although another connection has claimed the session.
    FencedAccepted,
    /// The message of a will has no key by which a second one is recognised.
    KeylessWill,
    /// The recorded position of a session is behind QoS 1 messages that the client has not acknowledged.
    HighPosition,
    /// The reply to a subscribe of Centrifugo's protocol lacks the first publication after the client's position.
    SkippedPublication,
    /// The reply to a subscribe of Centrifugo's protocol names an offset that is one too high.
    HighReplyOffset,
}

/// The fault that is switched on, or 0.
static PLANTED: AtomicU8 = AtomicU8::new(0);

/// Switches this fault on and all others off.
#[cfg(feature = "planted")]
pub fn plant(fault: Option<Fault>) {
    PLANTED.store(fault.map_or(0, |fault| fault as u8), Ordering::SeqCst);
}

/// Whether this fault is switched on.
#[inline]
pub(crate) fn is(fault: Fault) -> bool {
    cfg!(feature = "planted") && PLANTED.load(Ordering::Relaxed) == fault as u8
}
