//! The shadow of a partition is a second home (the part of a shard that keeps topics) of this partition, without clients. It makes the checkpoints: it
//! restores the last checkpoint, replays the log after it, removes the messages that the serving home has removed, and writes the new checkpoint. The
//! serving home continues meanwhile.
//!
//! Invariants: a shadow has replayed no more of the log than the serving home has applied, so if the serving home lacks a message, it has removed the
//! message. A shadow removes no message that the serving home still has. A shadow has what the log has of its partition,
//! with the recorded sessions and the positions of groups, but no local state: no connections, no members of groups, and no list of filters whose
//! messages are kept.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::base::ids::PartitionId;
use crate::base::snapshot::{Damaged, Head};
use crate::base::time::Now;
use crate::budget::admission::Admission;
use crate::budget::world::World;
use crate::commit::batch::Header;
use crate::home::Home;
use crate::mail::orders::Control;
use crate::shard::Shard;
use crate::shard::restore::Restored;

/// A shadow keeps the answer to an idempotency key this many seconds longer than the key is valid: a retry that was admitted in time may reach the log
/// later. A publish waits for the engine (the writer of the log) for less than this time.
const LATE_RETRY_S: u32 = 60;

/// The shadow of a partition: a home without clients.
pub struct Shadow {
    shard: Shard,
    partition: PartitionId,
    /// The time of the newest batch, by the log's clock, in seconds.
    newest_batch_s: u32,
    /// The topic row with which the next [order](Shadow::next_floors_order) to the serving home begins.
    next_topic_row: u32,
    /// The topic rows of the order whose answer has not come yet.
    asked_rows: Vec<u32>,
}

impl Shadow {
    /// The state that all shadows of a server share, made from the server's own. It has one shard for each partition. Shadows remove messages only by
    /// the rules, so all limits of memory are off. `epoch` is the epoch in the checkpoint's head; a start that restores the checkpoint puts its own epoch
    /// into the positions of sessions.
    pub fn world(served: &World, epoch: u32) -> Arc<World> {
        let mut settings = served.settings.clone();
        settings.limits.log_bytes = usize::MAX;
        settings.limits.log_bytes_per_address_max = 0;
        settings.publish.idempotency_keys = usize::MAX;
        Arc::new(World {
            admission: Admission::new(&settings, served.seed),
            rules: served.rules.clone(),
            settings,
            shards: served.partitions,
            homes: served.partitions,
            epoch,
            writer: None,
            ..*served
        })
    }

    /// An empty home into which the caller reads the partition's last checkpoint. `now` is the time of the newest batch in it, by the log's clock.
    pub fn restored(world: &Arc<World>, partition: PartitionId, now: Now) -> Restored {
        Restored::new(world.clone(), partition, now).without_local_state()
    }

    /// The shadow of a partition, from its restored state.
    pub fn new(restored: Restored) -> Shadow {
        // The world of a shadow has a shard for each partition, so the shard's number is the partition's.
        let (partition, now) = (restored.shard(), restored.now());
        let mut shard = Shard::new(partition, restored.world().clone(), now);
        shard.adopt(restored);
        Shadow {
            shard,
            partition,
            newest_batch_s: now.unix_s,
            next_topic_row: 0,
            asked_rows: Vec::new(),
        }
    }

    /// Applies a batch of the partition. `header` is as the log reports it.
    ///
    /// # Errors
    /// The batch cannot be read.
    pub fn apply_batch(&mut self, header: &Header, batch: &[u8]) -> Result<(), Damaged> {
        let unix_s = header.unix_s;
        self.newest_batch_s = self.newest_batch_s.max(unix_s);
        self.shard
            .apply_logged_batch(header, batch, Now { s: 1, unix_s })
    }

    /// Whether the partition has sessions although the format of its cluster has none. A checkpoint would lose them.
    pub fn has_unread_sessions(&self) -> bool {
        self.shard.has_unread_sessions()
    }

    /// The time of the newest batch, in Unix seconds of the log's clock.
    pub fn log_s(&self) -> u32 {
        self.newest_batch_s
    }

    fn home(&mut self) -> &mut Home {
        self.shard.home.as_mut().expect("each shard is a home")
    }

    /// Removes everything that has expired. The present is `now`, or the time of the newest batch if the log is replicated. Called after the last batch.
    pub fn drop_expired(&mut self, now: Now) {
        self.shard.replay_waiting_sessions();
        let world = self.shard.front.clients.ctx.world.clone();
        let now = match world.is_replicated() {
            true => Now {
                unix_s: self.newest_batch_s,
                ..now
            },
            false => now,
        };
        self.shard.front.clients.ctx.now = now;
        let answers_s = self.newest_batch_s.saturating_sub(LATE_RETRY_S);
        self.home().expire_all(&world.rules, now, answers_s);
    }

    /// The order that asks the serving home for the floors of the next topics, at most `limit` of them; `None` after the last topic. The *floor* of a
    /// topic is the last offset that the topic's log has lost.
    pub fn next_floors_order(&mut self, limit: usize) -> Option<Control> {
        let first_row = self.next_topic_row;
        let home = self.home();
        let (topics, next_row) = home.topics.topics_from(first_row, limit);
        let names: Vec<Box<[u8]>> = topics.iter().map(|(_, name)| (*name).into()).collect();
        let rows = topics.iter().map(|(row, _)| *row).collect();
        let sequence = home.logs.sequence(0);
        (self.next_topic_row, self.asked_rows) = (next_row, rows);
        (!names.is_empty()).then_some(Control::Floors(self.partition, sequence, names))
    }

    /// Applies the answer to the last order ([`Report::Floors`](crate::Report::Floors)): removes the messages that the serving home no longer has.
    pub fn apply_floors(&mut self, floors: &[Option<u64>]) {
        let now = self.shard.front.clients.ctx.now;
        let rows = core::mem::take(&mut self.asked_rows);
        for (id, floor) in rows.into_iter().zip(floors) {
            let home = self.home();
            home.drop_below_floor(id, *floor, now);
        }
    }

    /// The next block of the partition's checkpoint; empty after the last one. `head` is the head of the whole checkpoint, in which each
    /// partition counts as a home.
    pub fn save(&mut self, head: &Head) -> Vec<u8> {
        let head = Head {
            homes: self.shard.front.clients.ctx.world.partitions,
            home: self.partition,
            ..*head
        };
        self.shard.save(&head, usize::MAX)
    }
}
