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
    room: u32,
    /// The connections that wait to be refused.
    turned_away: u32,
    verdict_cache: VerdictCache,
    question_bytes: QuestionBytes,
}

impl Gate {
    /// A gate for at most `room` connections.
    pub(crate) fn new(room: usize) -> Gate {
        Gate {
            room: u32::try_from(room).unwrap_or(u32::MAX),
            turned_away: 0,
            verdict_cache: VerdictCache::default(),
            question_bytes: QuestionBytes::default(),
        }
    }

    /// Lowers the limit to `most` connections.
    pub(crate) fn limit(&mut self, most: u32) {
        self.room = self.room.min(most);
    }

    /// The limit of connections.
    pub(crate) fn room(&self) -> u32 {
        self.room
    }

    /// Whether one more connection has room, if `rows` rows are in use.
    pub(crate) fn has_room(&self, rows: u32) -> bool {
        rows - self.turned_away < self.room
    }

    /// Whether one more connection may wait to be refused.
    pub(crate) fn may_turn_away(&self) -> bool {
        self.turned_away < TURNED_AWAY_MAX
    }

    /// Counts a connection that waits to be refused.
    pub(crate) fn turn_away(&mut self) {
        self.turned_away += 1;
    }

    /// Stops counting a connection that waited to be refused.
    pub(crate) fn turned_away_left(&mut self) {
        self.turned_away -= 1;
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
        gate.turn_away();
        assert!(gate.has_room(2) && !gate.has_room(3));
        gate.turned_away_left();
        assert!(!gate.has_room(2));
        gate.limit(5);
        gate.limit(1);
        assert!(!gate.has_room(1));
    }

    #[test]
    fn number_of_connections_that_wait_to_be_turned_away_is_bounded() {
        let mut gate = Gate::new(0);
        for _ in 0..TURNED_AWAY_MAX {
            assert!(gate.may_turn_away());
            gate.turn_away();
        }
        assert!(!gate.may_turn_away());
    }
}
