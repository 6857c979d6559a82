//! Reads snapshots into a home and its sessions, before its shard starts. Other homes may have had the partitions of this home when the
//! snapshots were written. So the snapshots of all homes that had one of them are read.

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

/// A home and its sessions, while they are read.
pub struct Restored {
    world: Arc<World>,
    me: ShardId,
    now: Now,
    /// Whether local state is restored.
    local: bool,
    /// Whether positions that clients got before the restart stay valid after it.
    goes_on: bool,
    home: Box<Home>,
    sessions: SessionsAtHome,
    /// The snapshot being read.
    reading: Option<SnapshotReader>,
    /// Topics whose newest messages are missing because they were removed, and not because they were lost.
    pub(crate) ended: Vec<u32>,
}

/// The progress of reading a snapshot.
pub(crate) struct SnapshotReader {
    origin: Origin,
    /// The snapshot's age in seconds.
    passed_s: u32,
    /// The number of topic rows in the snapshot.
    rows: u32,
    /// For each topic, its row in the snapshot and its row in this home; `NONE` if another home now has the topic. Ordered by the row
    /// in the snapshot.
    ///
    /// The count in the snapshot may be damaged, and so large that memory would run out. So nothing is reserved: the vector grows as
    /// topics are read.
    topics: Vec<(u32, u32)>,
    /// The partition of the next sessions.
    partition: PartitionId,
    records: u64,
    over: bool,
}

impl Restored {
    /// An empty home for the shard `me`. `world` has the seed and the partitions of the snapshots, but the epoch of the run that
    /// begins now.
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

    /// Skips local state: sessions, groups, and filters whose messages are kept. Use it if the server has served clients since it wrote
    /// the snapshots: they are out of date then, and only the log tells what has changed since.
    #[must_use]
    pub fn without_local_state(self) -> Restored {
        Restored {
            local: false,
            ..self
        }
    }

    /// Makes the positions of the snapshots invalid. Use it if the log lacks messages that the clients with these positions have seen.
    #[must_use]
    pub fn anew(self) -> Restored {
        Restored {
            goes_on: false,
            ..self
        }
    }

    pub(crate) fn of(&self) -> (Arc<World>, ShardId, Now) {
        (self.world.clone(), self.me, self.now)
    }

    /// Begins the snapshot of a home with this head.
    ///
    /// # Errors
    /// The snapshot before is not complete, or this one is of another server.
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

    /// Reads a block after the first one. The caller has checked its checksum.
    ///
    /// # Errors
    /// A record is invalid although the checksum is right.
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
        // The home's record comes first, since all other records are checked against it.
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
                let (row, id, ended) = home.restore_topic(from, origin, &world.rules)?;
                if row >= reading.rows || topics.last().is_some_and(|(last, _)| *last >= row) {
                    return Err(NO_TOPIC);
                }
                topics.push((row, id));
                if ended {
                    self.ended.push(id);
                }
                Ok(())
            }
            kind::FILTER => home.restore_filter(from, origin),
            kind::GROUP => home.restore_group(from, origin),
            kind::LOSS => home.restore_loss(from, topics),
            kind::FORGOTTEN => home.logs.restore_forgotten(from, origin, &world.rules),
            kind::BLAMED => home.logs.restore_blamed(from, &world.rules),
            kind::ROSTER => home.logs.restore_roster(from),
            kind::MESSAGE => {
                home.restore_message(from, origin, topics, &world.settings, &world.rules, now)
            }
            kind::ANSWER => home.restore_answer(from, origin, &world.settings, now),
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

    /// Ends the present snapshot.
    ///
    /// # Errors
    /// It is not complete.
    pub fn end(&mut self) -> Result<(), Damaged> {
        match self.reading.take() {
            Some(reading) if !reading.over => Err(Damaged("it is not whole")),
            _ => Ok(()),
        }
    }

    /// Ends the reading, after all snapshots.
    ///
    /// # Errors
    /// The last snapshot is not complete.
    pub fn finish(mut self) -> Result<Restored, Damaged> {
        self.end()?;
        self.sessions.close_gaps();
        self.home.restored(&self.ended, &self.world.rules, self.now);
        self.ended = Vec::new();
        Ok(self)
    }
}

impl Shard {
    /// Takes over restored state. Called before anything else.
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
