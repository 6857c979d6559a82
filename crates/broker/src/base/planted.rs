//! Faults that the simulator plants to show that it would find them. Without the feature `planted` every check is a
//! constant `false`, and the product contains none of this.

use core::sync::atomic::{AtomicU8, Ordering};

/// A fault. One at a time can be switched on, for the whole process.
#[cfg_attr(feature = "planted", derive(strum::VariantArray))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// A subscription takes live messages before its last page.
    LiveBeforeHead = 1,
    /// A tell that was meant for the row's former topic is accepted.
    OldSerial,
    /// A connection that leaves during a fan-out leaves no tombstone.
    NoTombstone,
    /// A forgotten topic does not raise the floor of its slot.
    NoFloor,
    /// Publishers do not wait for credit.
    NoCredit,
    /// A connection that may go on is not woken.
    LostWake,
    /// A subscription that reads on from the log asks twice.
    DoubleResume,
    /// The carrier does not give a counted subscription back.
    NoDetach,
    /// The rest of a frame that the socket took in part is dropped.
    HalfFrame,
    /// A message that a newer one may supersede waits for the socket.
    Superseded,
    /// A session that changes hands loses the oldest message that was not acknowledged.
    LostInflight,
    /// Unacknowledged messages are sent again in another order.
    ResendOrder,
    /// More messages are under way than the client takes at a time.
    NoQuota,
    /// A session that changes hands forgets which QoS 2 messages the client has sent.
    ForgottenIds,
    /// A publish is acknowledged before it stands in the log.
    EarlyAck,
    /// A session that ends releases twice the logs that it needed.
    DoubleRelease,
    /// A connection that claims a session gets it before the holder has given it back.
    HastyTakeover,
    /// A session's position is written down one too far.
    FarPosition,
    /// A subscription that reads on from the log repeats messages that the client has from its other subscriptions.
    OwnCopies,
    /// A page that ends before all is found names an offset one too far.
    LostSeam,
    /// A position by filter leaves out what other partitions told before the message, in the same run.
    StaleVector,
    /// A message whose partition moves to another home at a restart is left behind.
    LeftBehind,
    /// A record is applied before the engine has kept it.
    AppliedEarly,
    /// A batch behind a gap counts.
    GapAccepted,
    /// A batch that is appended again has a new number.
    NewNumber,
    /// A batch begins behind what is applied, whatever is in flight.
    StaleSequence,
    /// A fence does not wait for what is under way to the engine.
    EarlyFence,
    /// Two publishes with one idempotency key that are under way together are both applied.
    KeyTwice,
    /// Durations are reckoned by the wall clock.
    WallClock,
    /// A checkpoint drops a message that the home still has.
    DroppedLive,
    /// Offsets of facts that stand in no log are not marked.
    NoMark,
    /// Batches of a writer count that is dead.
    DeadAccepted,
    /// Records take effect although the log stored them after their publishers were told that the outcome is not known.
    LateAccepted,
    /// A record has another offset at the node that wrote it.
    OwnOffset,
    /// Damage in the log of a partition is told to nobody.
    SilentDamage,
    /// A node that begins with a checkpoint does not know who has written the log before.
    ForgottenWriters,
    /// A position of an earlier life of the log counts, wherever that life ended.
    OneLife,
    /// Batches are removed from the log of a cluster that no checkpoint contains.
    EarlyPurge,
}

/// The one that is switched on; 0: none.
static PLANTED: AtomicU8 = AtomicU8::new(0);

/// Switches this fault on, and any other off.
#[cfg(feature = "planted")]
pub fn plant(fault: Option<Fault>) {
    PLANTED.store(fault.map_or(0, |fault| fault as u8), Ordering::SeqCst);
}

/// Whether this fault is switched on.
#[inline]
pub(crate) fn is(fault: Fault) -> bool {
    cfg!(feature = "planted") && PLANTED.load(Ordering::Relaxed) == fault as u8
}
