//! SnapshotReader snapshots into a home and its sessions, before its shard begins: those of all homes that had one of its partitions.

use crate::base::snapshot::{Damaged, Head, In, NO_TOPIC, Origin, kind};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::base::ids::{PartitionId, ShardId};
use crate::base::time::Now;
use crate::budget::world::World;
use crate::home::Home;
use crate::home::sessions::SessionsAtHome;
use crate::protocol::mqtt::kept::needs_bytes;
use crate::shard::Shard;

/// A home and its sessions, as far as they are read.
pub struct Restored {
    world: Arc<World>,
    me: ShardId,
    now: Now,
    /// Whether local state is taken over.
    local: bool,
    /// Whether positions of before count, as ones of the life that begins.
    goes_on: bool,
    home: Box<Home>,
    sessions: SessionsAtHome,
    /// The snapshot that is read.
    reading: Option<SnapshotReader>,
    /// Topics whose newest messages had gone without being lost.
    pub(crate) ended: Vec<u32>,
}

/// How far a snapshot is read.
pub(crate) struct SnapshotReader {
    origin: Origin,
    /// Seconds since it was taken.
    passed_s: u32,
    /// How many rows of topics there were.
    rows: u32,
    /// The rows that the topics had and those that they have now, in the order of the former; `NONE` for those of other homes. No
    /// room is reserved by the count in the snapshot, which may be damaged.
    topics: Vec<(u32, u32)>,
    /// The partition of the sessions that come.
    partition: PartitionId,
    records: u64,
    over: bool,
}

impl Restored {
    /// Nothing is read yet of the home `me`. `world` has the seed and the number of partitions of the snapshots. Its epoch is that of the life
    /// that begins.
    pub fn new(world: Arc<World>, me: ShardId, now: Now) -> Restored {
        Restored {
            me,
            now,
            local: true,
            goes_on: true,
            home: Box::new(Home::of(&world, me)),
            sessions: SessionsAtHome::new(world.placement(), me, needs_bytes),
            reading: None,
            ended: Vec::new(),
            world,
        }
    }

    /// Leaves out what is local state: sessions, groups, and which filters need messages kept. For snapshots whose server has served
    /// clients since, so that only the log tells what became true.
    #[must_use]
    pub fn without_local_state(self) -> Restored {
        Restored {
            local: false,
            ..self
        }
    }

    /// Positions in the snapshots do not count any more: the log lacks what they have seen.
    #[must_use]
    pub fn anew(self) -> Restored {
        Restored {
            goes_on: false,
            ..self
        }
    }

    /// Its world and home, and the moment of the reading.
    pub(crate) fn of(&self) -> (Arc<World>, ShardId, Now) {
        (self.world.clone(), self.me, self.now)
    }

    /// Begins to read the snapshot of a home with this head. The one before is read to its end.
    ///
    /// # Errors
    /// When the one before is not whole, or this one is of another server.
    pub fn begin(&mut self, head: &Head) -> Result<(), Damaged> {
        self.end()?;
        let world = &self.world;
        if (head.seed, head.partitions) != (world.seed, world.partitions) {
            return Err(Damaged("it is of another server"));
        }
        self.reading = Some(SnapshotReader {
            origin: Origin {
                local: self.local,
                epoch: match self.goes_on {
                    true => head.epoch,
                    false => world.epoch,
                },
                ..head.origin()
            },
            passed_s: self.now.unix_s.saturating_sub(head.unix_s),
            rows: 0,
            topics: Vec::new(),
            partition: 0,
            records: 0,
            over: false,
        });
        Ok(())
    }

    /// Reads a block behind the first one; its checksum is right.
    ///
    /// # Errors
    /// When its records make no sense all the same.
    pub fn take(&mut self, block: &[u8]) -> Result<(), Damaged> {
        let mut reading = self.reading.take().ok_or(Damaged("it has no head"))?;
        let mut block = In(block);
        while !block.is_empty() {
            if reading.over {
                return Err(Damaged("there is something behind the end"));
            }
            let kind = block.byte()?;
            self.record(kind, &mut block, &mut reading)?;
            reading.records += 1;
        }
        self.reading = Some(reading);
        Ok(())
    }

    fn record(
        &mut self,
        kind: u8,
        from: &mut In<'_>,
        reading: &mut SnapshotReader,
    ) -> Result<(), Damaged> {
        let (world, now) = (&self.world, self.now);
        let home = &mut self.home;
        let SnapshotReader { origin, topics, .. } = reading;
        // All others are judged by it.
        if (kind == kind::HOME) != (reading.records == 0) {
            return Err(Damaged(
                "the home's own record is not the first, or not the only one",
            ));
        }
        match kind {
            kind::HOME => {
                reading.rows = home.logs.restore_home(from, origin)?;
                Ok(())
            }
            kind::TOPIC => {
                let (row, id, ended) = home.topics.restore_topic(
                    &mut home.logs,
                    &mut home.subscriptions,
                    from,
                    origin,
                    &world.rules,
                )?;
                if row >= reading.rows || topics.last().is_some_and(|(last, _)| *last >= row) {
                    return Err(NO_TOPIC);
                }
                topics.push((row, id));
                if ended {
                    self.ended.push(id);
                }
                Ok(())
            }
            kind::FILTER => home.subscriptions.restore_filter(&home.logs, from, origin),
            kind::GROUP => home.subscriptions.restore_group(&home.logs, from, origin),
            kind::LOSS => home.logs.restore_loss(&home.topics, from, topics),
            kind::FORGOTTEN => home.logs.restore_forgotten(from, origin, &world.rules),
            kind::BLAMED => home.logs.restore_blamed(from, &world.rules),
            kind::ROSTER => home.logs.restore_roster(from),
            kind::MESSAGE => {
                home.restore_message(from, (origin, topics), &world.settings, &world.rules, now)
            }
            kind::ANSWER => {
                home.retries
                    .restore_answer(&home.logs, from, origin, &world.settings, now)
            }
            kind::SESSIONS => {
                reading.partition = from.number16()?;
                let of_its_home = origin.placement.home_of(reading.partition) == origin.home;
                match reading.partition < world.partitions && of_its_home {
                    true => Ok(()),
                    false => Err(Damaged("there is no such partition")),
                }
            }
            kind::SESSION => (self.sessions).restore(from, origin, world, now, reading.passed_s),
            kind::NO_SESSION => (self.sessions).restore_gap(from, origin, reading.partition),
            kind::END => {
                reading.over = true;
                match from.number()? == reading.records {
                    true => Ok(()),
                    false => Err(Damaged("records are missing")),
                }
            }
            _ => Err(Damaged("a record is of no known kind")),
        }
    }

    /// Ends the snapshot at hand.
    ///
    /// # Errors
    /// When it is not whole.
    pub fn end(&mut self) -> Result<(), Damaged> {
        match self.reading.take() {
            Some(reading) if !reading.over => Err(Damaged("it is not whole")),
            _ => Ok(()),
        }
    }

    /// Ends the reading, behind the snapshots of all homes that had a partition of this one.
    ///
    /// # Errors
    /// When the last one is not whole.
    pub fn finish(mut self) -> Result<Restored, Damaged> {
        self.end()?;
        self.sessions.close_gaps();
        self.home.restored(&self.ended, &self.world.rules, self.now);
        self.ended = Vec::new();
        Ok(self)
    }
}

impl Shard {
    /// Takes over what its predecessor left. To be called before anything else.
    pub fn adopt(&mut self, restored: Restored) {
        let Restored {
            home, sessions, me, ..
        } = restored;
        assert!(me == self.front.clients.ctx.me, "each has its own");
        let pace = self.front.clients.meter.work.pace;
        sessions.adopt(&self.front.clients.ctx.world.admission);
        self.front.clients.meter.work.home = home.steps().clone();
        self.home = Some(*home);
        self.sessions = sessions;
        self.set_pace(pace);
    }
}
