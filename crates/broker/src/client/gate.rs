//! Decides whether a shard accepts another connection: the limit of connections, and the number of connections that wait to be
//! refused. Also holds the shard's cache of verdicts on credentials, and the bytes of its questions about credentials.

use crate::base::access::QuestionBytes;
use crate::budget::verdict_cache::VerdictCache;

/// The maximum number of connections of a shard that wait to be refused. Each holds a descriptor and some 4 kB of kernel memory until its
/// request arrives. Connections beyond this number are closed unread.
const TURNED_AWAY_MAX: u32 = 8_192;

/// The limits and counts of a shard's connections.
pub(crate) struct Gate {
    /// The maximum number of connections, without those that wait to be refused.
    connections_max: u32,
    /// The connections that wait to be refused.
    waiting_refusals: u32,
    verdict_cache: VerdictCache,
    question_bytes: QuestionBytes,
}

impl Gate {
    /// A gate for at most `room` connections.
    pub(crate) fn new(room: usize) -> Gate {
        Gate {
            connections_max: u32::try_from(room).unwrap_or(u32::MAX),
            waiting_refusals: 0,
            verdict_cache: VerdictCache::default(),
            question_bytes: QuestionBytes::default(),
        }
    }

    /// Lowers the limit to `connections_max`, if it is higher.
    pub(crate) fn lower_limit(&mut self, connections_max: u32) {
        self.connections_max = self.connections_max.min(connections_max);
    }

    /// The limit of connections.
    pub(crate) fn connections_max(&self) -> u32 {
        self.connections_max
    }

    /// Whether one more connection has room, if `rows` rows are in use.
    pub(crate) fn has_room(&self, rows: u32) -> bool {
        rows - self.waiting_refusals < self.connections_max
    }

    /// Whether one more connection may wait to be refused.
    pub(crate) fn may_turn_away(&self) -> bool {
        self.waiting_refusals < TURNED_AWAY_MAX
    }

    /// Counts a connection that waits to be refused.
    pub(crate) fn count_waiting_refusal(&mut self) {
        self.waiting_refusals += 1;
    }

    /// Stops counting a connection that waited to be refused.
    pub(crate) fn stop_counting_refusal(&mut self) {
        self.waiting_refusals -= 1;
    }

    /// The cached verdicts.
    pub(crate) fn verdict_cache(&mut self) -> &mut VerdictCache {
        &mut self.verdict_cache
    }

    /// The bytes of the questions that the verifier has not answered.
    pub(crate) fn question_bytes(&self) -> &QuestionBytes {
        &self.question_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_are_turned_away_take_no_room() {
        let mut gate = Gate::new(2);
        assert!(gate.has_room(1) && !gate.has_room(2));
        gate.count_waiting_refusal();
        assert!(gate.has_room(2) && !gate.has_room(3));
        gate.stop_counting_refusal();
        assert!(!gate.has_room(2));
        gate.lower_limit(5);
        gate.lower_limit(1);
        assert!(!gate.has_room(1));
    }

    #[test]
    fn number_of_connections_that_wait_to_be_turned_away_is_bounded() {
        let mut gate = Gate::new(0);
        for _ in 0..TURNED_AWAY_MAX {
            assert!(gate.may_turn_away());
            gate.count_waiting_refusal();
        }
        assert!(!gate.may_turn_away());
    }
}
