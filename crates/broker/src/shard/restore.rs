//! Reading a snapshot into a home and its sessions, before its shard begins.

use crate::base::snapshot::NO_TOPIC;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::base::ids::ShardId;
use crate::base::placement::Placement;
use crate::base::snapshot::{Damaged, Head, In, kind};
use crate::base::time::Now;
use crate::budget::admission::Client;
use crate::budget::world::World;
use crate::home::Home;
use crate::home::sessions::Sessions;
use crate::shard::Shard;

/// A home and its sessions, as far as they are read.
pub struct Restored {
    world: Arc<World>,
    me: ShardId,
    now: Now,
    /// Seconds since the snapshot was taken.
    passed_s: u32,
    home: Box<Home>,
    sessions: Sessions,
    /// How many rows of topics there were.
    rows: u32,
    /// The rows that the topics had and those that they have now, in the order of the former. No room is reserved by
    /// the count in the snapshot, which may be damaged.
    pub(crate) topics: Vec<(u32, u32)>,
    /// Topics whose newest messages had gone without being lost.
    pub(crate) ended: Vec<u32>,
    records: u64,
    over: bool,
}

impl Restored {
    /// Nothing is read yet. `world` has the epoch, the seed and the number of homes of `head`.
    pub fn new(world: Arc<World>, head: &Head, now: Now) -> Restored {
        let home = Home::new(
            &world.settings,
            &world.rules,
            world.admission.clone(),
            head.epoch,
            (Placement::new(head.homes, head.homes), head.home),
            head.seed,
        );
        Restored {
            me: head.home,
            now,
            passed_s: now.unix_s.saturating_sub(head.unix_s),
            home: Box::new(home),
            sessions: Sessions::default(),
            rows: 0,
            topics: Vec::new(),
            ended: Vec::new(),
            records: 0,
            over: false,
            world,
        }
    }

    /// Reads a block behind the first one; its checksum is right.
    ///
    /// # Errors
    /// When its records make no sense all the same.
    pub fn take(&mut self, block: &[u8]) -> Result<(), Damaged> {
        let mut block = In(block);
        while !block.is_empty() {
            if self.over {
                return Err(Damaged("there is something behind the end"));
            }
            let kind = block.byte()?;
            self.record(kind, &mut block)?;
            self.records += 1;
        }
        Ok(())
    }

    fn record(&mut self, kind: u8, from: &mut In<'_>) -> Result<(), Damaged> {
        let (world, now) = (self.world.clone(), self.now);
        let home = &mut self.home;
        // All others are judged by it.
        if (kind == kind::HOME) != (self.records == 0) {
            return Err(Damaged(
                "the home's own record is not the first, or not the only one",
            ));
        }
        match kind {
            kind::HOME => {
                self.rows = home.restore_home(from)?;
                Ok(())
            }
            kind::TOPIC => {
                let (row, id, ended) = home.restore_topic(from, &world.rules)?;
                if row >= self.rows || self.topics.last().is_some_and(|(last, _)| *last >= row) {
                    return Err(NO_TOPIC);
                }
                self.topics.push((row, id));
                if ended {
                    self.ended.push(id);
                }
                Ok(())
            }
            kind::FILTER => home.restore_filter(from),
            kind::GROUP => home.restore_group(from),
            kind::LOSS => home.restore_loss(from, &self.topics),
            kind::FORGOTTEN => home.restore_forgotten(from, &world.rules),
            kind::BLAMED => home.restore_blamed(from, &world.rules),
            kind::MESSAGE => {
                home.restore_message(from, &self.topics, &world.settings, &world.rules, now)
            }
            kind::ANSWER => home.restore_answer(from, &world.settings, now),
            kind::SESSION => self.sessions.restore(from, &world, now, self.passed_s),
            kind::NO_SESSION => self.sessions.restore_gap(from),
            kind::END => {
                self.over = true;
                match from.number()? == self.records {
                    true => Ok(()),
                    false => Err(Damaged("records are missing")),
                }
            }
            _ => Err(Damaged("a record is of no known kind")),
        }
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// When the end is missing.
    pub fn finish(mut self) -> Result<Restored, Damaged> {
        if !self.over {
            return Err(Damaged("it is not whole"));
        }
        self.sessions.close_gaps();
        self.home.restored(&self.ended, &self.world.rules, self.now);
        self.ended = Vec::new();
        self.topics = Vec::new();
        Ok(self)
    }
}

impl Shard {
    /// Takes over what its predecessor left. To be called before anything else.
    pub fn adopt(&mut self, restored: Restored) {
        let Restored {
            home, sessions, me, ..
        } = restored;
        assert!(me == self.front.lanes.me, "each has its own");
        let pace = self.front.pace;
        let admission = &self.front.world.admission;
        admission.count_sessions(0, sessions.len());
        for owner in sessions.owners() {
            admission.move_session(Client::NOBODY, owner);
        }
        self.front.home = Some(*home);
        self.sessions = sessions;
        self.set_pace(pace);
    }
}
