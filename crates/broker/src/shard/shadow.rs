//! A shadow of one partition: a home that nobody is connected to. It takes what documents say of the partition, folds the log behind them,
//! drops what the home that serves clients has dropped, and writes new documents. So a checkpoint needs no home to stand still.
//!
//! Invariants: it is never ahead of the home that serves, so that whatever is missing there was dropped; it drops nothing that the home still
//! has. Local state (sessions, groups, which filters need messages kept) is none of its business.

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

/// A retry was admitted within so many seconds after its message: longer than one waits for the engine.
const RETRY_S: u32 = 60;

/// A shadow.
pub struct Shadow {
    shard: Shard,
    partition: PartitionId,
    /// The second of the last batch: a retry of a message may stand a little behind it in the log.
    last_s: u32,
    /// Topics before this row were asked about.
    asked: u32,
    /// The rows of those that were asked about last.
    rows: Vec<u32>,
}

impl Shadow {
    /// The world of the shadows of a server: one for each partition. Only rules limit what they keep.
    pub fn world(of: &World) -> Arc<World> {
        let mut settings = of.settings.clone();
        settings.limits.log_bytes = usize::MAX;
        settings.limits.log_bytes_per_address_max = 0;
        settings.publish.idempotency_keys = usize::MAX;
        Arc::new(World {
            admission: Admission::new(&settings, of.seed),
            rules: of.rules.clone(),
            settings,
            shards: of.partitions,
            homes: of.partitions,
            writer: None,
            ..*of
        })
    }

    /// Nothing is read yet of this partition. `now` is the moment of the documents to read.
    pub fn restored(world: &Arc<World>, partition: PartitionId, now: Now) -> Restored {
        Restored::new(world.clone(), partition, now).without_local_state()
    }

    /// The shadow of a partition, of which this was read.
    pub fn new(restored: Restored) -> Shadow {
        let (world, partition, now) = restored.of();
        let mut shard = Shard::new(partition, world, now);
        shard.adopt(restored);
        Shadow {
            shard,
            partition,
            last_s: now.unix_s,
            asked: 0,
            rows: Vec::new(),
        }
    }

    /// Applies a batch of the partition; `header` is as the log has it.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn fold(&mut self, header: &Header, batch: &[u8]) -> Result<(), Damaged> {
        let unix_s = header.unix_s;
        self.last_s = self.last_s.max(unix_s);
        self.shard.fold(header, batch, Now { s: 1, unix_s })
    }

    fn home(&mut self) -> &mut Home {
        self.shard.home.as_mut().expect("each shard is a home")
    }

    /// Behind the last batch: drops what has run out by now; where the log has a clock, by that.
    pub fn settle(&mut self, now: Now) {
        let world = self.shard.front.clients.ctx.world.clone();
        let now = match world.is_shared() {
            true => Now {
                unix_s: self.last_s,
                ..now
            },
            false => now,
        };
        self.shard.front.clients.ctx.now = now;
        let answers_s = self.last_s.saturating_sub(RETRY_S);
        self.home().expire_all(&world.rules, now, answers_s);
    }

    /// The order by which the home that serves clients is asked about the next topics, so many at most. None behind the last ones.
    pub fn ask(&mut self, most: usize) -> Option<Control> {
        let asked = self.asked;
        let home = self.home();
        let (found, next) = home.topics.names(asked, most);
        let names: Vec<Box<[u8]>> = found.iter().map(|(_, name)| (*name).into()).collect();
        let rows = found.iter().map(|(id, _)| *id).collect();
        let sequence = home.logs.sequence(0);
        (self.asked, self.rows) = (next, rows);
        (!names.is_empty()).then_some(Control::Floors(self.partition, sequence, names))
    }

    /// Keeps what the home has told of them ([`Report::Floors`](crate::Report::Floors)).
    pub fn keep(&mut self, floors: &[Option<u64>]) {
        let now = self.shard.front.clients.ctx.now;
        let rows = core::mem::take(&mut self.rows);
        for (id, floor) in rows.into_iter().zip(floors) {
            let home = self.home();
            let (topics, logs) = (&mut home.topics, &mut home.logs);
            topics.keep_above(logs, &mut home.interest, id, *floor, now);
        }
    }

    /// The next block of the document of the partition; empty behind the last one. `head` is that of the documents; its homes are the partitions.
    pub fn save(&mut self, head: &Head) -> Vec<u8> {
        let head = Head {
            homes: self.shard.front.clients.ctx.world.partitions,
            home: self.partition,
            ..*head
        };
        self.shard.save(&head, usize::MAX)
    }
}
