//! The gate of a shard: its room for connections, the count of those that wait to be turned away, and the verdicts on credentials that
//! the shard remembers.

use crate::budget::verdict_cache::VerdictCache;

/// Connections of one shard that wait to be turned away: each holds a descriptor and some 4 kB of the kernel until its
/// request is there. Connections beyond this number are turned away unread.
const TURNED_AWAY_MAX: u32 = 8_192;

/// The gate.
pub(crate) struct Gate {
    /// Connections that there is room for, not counting those that wait to be turned away.
    room: u32,
    /// Connections that wait to be turned away.
    turned_away: u32,
    verdict_cache: VerdictCache,
}

impl Gate {
    /// A gate with room for so many connections.
    pub(crate) fn new(room: usize) -> Gate {
        Gate {
            room: u32::try_from(room).unwrap_or(u32::MAX),
            turned_away: 0,
            verdict_cache: VerdictCache::default(),
        }
    }

    /// There is room for so many connections at most.
    pub(crate) fn limit(&mut self, most: u32) {
        self.room = self.room.min(most);
    }

    /// Connections that there is room for.
    pub(crate) fn room(&self) -> u32 {
        self.room
    }

    /// Whether one more connection has room, of so many rows that are in use.
    pub(crate) fn has_room(&self, rows: u32) -> bool {
        rows - self.turned_away < self.room
    }

    /// Whether one more connection may wait to be turned away.
    pub(crate) fn may_turn_away(&self) -> bool {
        self.turned_away < TURNED_AWAY_MAX
    }

    /// A connection waits to be turned away.
    pub(crate) fn turn_away(&mut self) {
        self.turned_away += 1;
    }

    /// A connection that was turned away is gone.
    pub(crate) fn turned_away_left(&mut self) {
        self.turned_away -= 1;
    }

    /// The verdicts that are remembered.
    pub(crate) fn verdict_cache(&mut self) -> &mut VerdictCache {
        &mut self.verdict_cache
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
