//! The context of decisions about connections, which read it and never change it: the shard's number, the settings and rules, the time of
//! the current input, and whether the server drains.

use alloc::sync::Arc;

use crate::base::ids::{PartitionId, ShardId};
use crate::base::lives::Lives;
use crate::base::planted::{self, Fault};
use crate::base::position::Position;
use crate::base::time::{Now, Wall};
use crate::budget::world::World;
use crate::client::outbox::Bounds;

/// What decisions read.
pub(crate) struct Context {
    pub(crate) own_shard: ShardId,
    pub(crate) world: Arc<World>,
    /// The lives (periods between two starts) of the logs.
    pub(crate) lives: Arc<Lives>,
    pub(crate) now: Now,
    pub(crate) wall: Wall,
    /// The server drains: it moves its clients to other servers.
    pub(crate) is_draining: bool,
}

impl Context {
    /// Sets the time at which an input arrives or a turn ends.
    pub(crate) fn set_now(&mut self, now: Now) {
        self.now = now;
        if planted::is(Fault::WallClock) {
            self.now.unix_s = self.wall_s();
        }
    }

    /// Unix seconds as the wall clock shows them.
    pub(crate) fn wall_s(&self) -> u32 {
        self.wall.unix_s(self.now)
    }

    /// The date of a message of this second, as clients see it. Never later than the `Date` of the same answer.
    pub(crate) fn date_of(&self, counted_s: u32) -> u64 {
        self.wall.date_of(counted_s, self.now).into()
    }

    /// Whether this node is cut off from the log of its cluster.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.world.is_replicated() && self.world.admission.is_cut_off(self.now.unix_s)
    }

    /// The keyed hash of a topic, and its home (the shard that keeps the topic).
    pub(crate) fn hash_and_home_of(&self, name: &[u8]) -> (u32, ShardId) {
        let hash = self.world.hash_of(name);
        (hash, self.world.placement().home_of_name(name))
    }

    /// The position of an offset, with the epoch of the life that assigned the offset, so the position stays the same in later
    /// lives.
    #[inline]
    pub(crate) fn position_at(&self, offset: u64) -> Position {
        Position::new(self.lives.epoch_of(offset), offset)
    }

    /// The partition of a topic.
    pub(crate) fn partition_of(&self, name: &[u8]) -> PartitionId {
        self.world.placement().partition_of(name)
    }

    /// The bytes that an address or user may hold, however much others hold.
    pub(crate) fn little_bytes(&self) -> usize {
        self.world.settings.limits.little_bytes()
    }

    /// The bounds for bytes that belong to no topic.
    pub(crate) fn default_bounds(&self) -> Bounds {
        Bounds::without_rule(&self.world.settings.limits)
    }

    /// How many bytes and messages may wait for a connection when a message of this topic arrives.
    pub(crate) fn bounds_for_topic(&self, topic: &[u8]) -> Bounds {
        let (rules, limits) = (&self.world.rules, &self.world.settings.limits);
        match rules.any_bounds_outboxes() {
            true => Bounds::by_rule(rules.get(rules.number_for(topic)), limits),
            false => Bounds::without_rule(limits),
        }
    }

    /// A number that differs between connections and between seconds. It spreads the reconnects of clients.
    pub(crate) fn retry_spread(&self, slot: u32) -> u32 {
        slot ^ self.now.s << 16 ^ u32::from(self.own_shard) << 8
    }
}
