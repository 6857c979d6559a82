//! Faults that the simulator plants to show that it would find them. Without the feature `planted`
//! every question is a constant `false`, and nothing of this is left in the product.

/// A fault. One at a time can be switched on, for the whole process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// A subscription takes live messages before its last page.
    LiveBeforeHead = 1,
    /// A tell for a row's former life is believed.
    OldSerial,
    /// Who leaves during a fan-out leaves no tombstone.
    NoTombstone,
    /// A forgotten topic does not raise its partition's floor.
    NoFloor,
    /// Nobody waits for credit.
    NoCredit,
    /// A connection that may go on is not called.
    LostWake,
    /// A subscription that reads on from the log asks twice.
    DoubleResume,
    /// A counted subscription is not given back.
    NoDetach,
    /// The rest of a frame that the socket took in part is dropped.
    HalfFrame,
    /// What may be superseded waits for the socket.
    Superseded,
    /// A session that changes hands loses the oldest message that was not acknowledged.
    LostInflight,
    /// What was not acknowledged is sent again in another order.
    ResendOrder,
    /// More goes out than the client takes at a time.
    NoQuota,
    /// A session that changes hands forgets which QoS 2 messages the client has sent.
    ForgottenIds,
    /// A publish is acknowledged before it stands in the log.
    EarlyAck,
    /// A session that ends releases the logs that it needed twice.
    DoubleRelease,
    /// Who claims a session gets it before its holder has given it back.
    HastyTakeover,
    /// A session's position is written down one too far.
    FarPosition,
    /// A subscription that reads on from the log brings what others of its client have brought.
    OwnCopies,
    /// A page that ends before it has found all there is says one too far.
    LostSeam,
}

#[cfg(feature = "planted")]
mod switch {
    use core::sync::atomic::{AtomicU8, Ordering};

    static FAULT: AtomicU8 = AtomicU8::new(0);

    impl super::Fault {
        /// All of them.
        pub const ALL: [super::Fault; 20] = [
            Self::LiveBeforeHead,
            Self::OldSerial,
            Self::NoTombstone,
            Self::NoFloor,
            Self::NoCredit,
            Self::LostWake,
            Self::DoubleResume,
            Self::NoDetach,
            Self::HalfFrame,
            Self::Superseded,
            Self::LostInflight,
            Self::ResendOrder,
            Self::NoQuota,
            Self::ForgottenIds,
            Self::EarlyAck,
            Self::DoubleRelease,
            Self::HastyTakeover,
            Self::FarPosition,
            Self::OwnCopies,
            Self::LostSeam,
        ];
    }

    /// Switches this fault on, and any other off.
    pub fn plant(fault: Option<super::Fault>) {
        FAULT.store(fault.map_or(0, |fault| fault as u8), Ordering::SeqCst);
    }

    pub(crate) fn is(fault: super::Fault) -> bool {
        FAULT.load(Ordering::Relaxed) == fault as u8
    }
}

#[cfg(feature = "planted")]
pub use switch::plant;

/// Whether this fault is switched on.
#[inline]
pub(crate) fn is(fault: Fault) -> bool {
    #[cfg(feature = "planted")]
    let planted = switch::is(fault);
    #[cfg(not(feature = "planted"))]
    let planted = {
        _ = fault;
        false
    };
    planted
}
