//! Notes of the ends that this input leads to: why the connection at hand is about to end, and the connections whose rows contradict each other.

use alloc::vec::Vec;

use crate::base::ids::ConnId;
use crate::base::reason::Closed;

/// Notes from the code that finds a reason to end a connection, for the code that ends it.
#[derive(Default)]
pub(crate) struct Ending {
    /// Why the connection at hand is about to end, where that is not its peer's doing.
    why: Option<Closed>,
    /// Connections that end with this input, since their rows contradict each other.
    broken: Vec<ConnId>,
}

impl Ending {
    /// Notes why the connection at hand is about to end, if no reason was noted before.
    #[inline]
    pub(crate) fn because(&mut self, reason: Closed) {
        self.why.get_or_insert(reason);
    }

    /// Takes the reason that was noted: it counts for one end.
    pub(crate) fn take_reason(&mut self) -> Option<Closed> {
        self.why.take()
    }

    /// The connection at hand does not end after all: its end was counted before.
    pub(crate) fn forget_reason(&mut self) {
        self.why = None;
    }

    /// The rows of this connection contradict each other.
    pub(crate) fn mark_broken(&mut self, conn: ConnId) {
        self.broken.push(conn);
    }

    /// The next connection that is to end as broken. For that end no other reason counts.
    pub(crate) fn next_broken(&mut self) -> Option<ConnId> {
        self.broken.pop()
    }

    /// The connection at hand ends as broken, whatever reason was noted.
    pub(crate) fn is_broken(&mut self) {
        self.why = Some(Closed::Broken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_counts_and_counts_once() {
        let mut ending = Ending::default();
        ending.because(Closed::Slow);
        ending.because(Closed::Operator);
        assert_eq!(ending.take_reason(), Some(Closed::Slow));
        assert_eq!(ending.take_reason(), None);
        ending.because(Closed::Slow);
        ending.is_broken();
        assert_eq!(ending.take_reason(), Some(Closed::Broken));
    }
}
