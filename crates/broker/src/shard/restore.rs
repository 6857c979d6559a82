//! Reads snapshots into a home (the part of a shard that keeps topics) and its sessions, before the shard starts. The server may have had another number
//! of homes when it wrote the snapshots. So a home reads each snapshot that contains one of its partitions.

use crate::base::snapshot::{Damaged, FieldReader, Head, NO_TOPIC, Origin, kind};
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crore_wire::mqtt::split_shared;
use crore_wire::topic;

use crate::base::ids::{PartitionId, ShardId};
use crate::base::reason::Closed;
use crate::base::time::Now;
use crate::budget::admission::Party;
use crate::budget::world::World;
use crate::home::qos_retention::ALL_TOPICS;
use crate::home::sessions::SessionsAtHome;
use crate::home::{Home, RestoredTopic};
use crate::mail::session::stored::{StoredSubscription, subscriptions, token_of};
use crate::shard::Shard;
use crate::shard::sessions::count_held_bytes;

/// What homes must keep for the sessions of all homes, known after all logs were read.
#[derive(Default)]
pub struct SessionNeeds {
    /// The filters whose messages homes must keep, as in a SUBSCRIBE packet.
    filters: Vec<Box<[u8]>>,
    /// The sessions and wills whose unreleased QoS 2 messages homes must remember.
    publishers: BTreeSet<Party>,
}

/// A home and its sessions, while their snapshots are read.
pub struct Restored {
    world: Arc<World>,
    shard: ShardId,
    now: Now,
    /// Whether to restore local state (sessions, groups, and filters that keep messages).
    restores_local_state: bool,
    /// Whether logs keep the epoch (the number of a start on the log) of the snapshot, so that positions of clients from before the
    /// restart stay valid.
    keeps_epoch: bool,
    home: Box<Home>,
    sessions: SessionsAtHome,
    /// The snapshot being read.
    reader: Option<SnapshotReader>,
    /// Topics whose newest messages were removed on purpose. The absence of these messages is not a loss.
    topics_without_newest: Vec<u32>,
}

/// The progress of reading a snapshot.
pub(crate) struct SnapshotReader {
    origin: Origin,
    /// The snapshot's age in seconds.
    age_s: u32,
    /// The number of topic rows in the snapshot.
    row_count: u32,
    /// The topics of the snapshot, in the order of their rows there. No memory is reserved for `row_count` topics, since that number may be damaged and
    /// too large.
    topics: Vec<RestoredTopic>,
    /// The partition of the sessions that are read next.
    partition: PartitionId,
    /// The number of records read.
    records: u64,
    /// Whether the end record was read.
    is_complete: bool,
}

impl Restored {
    /// An empty home of this shard. `world` has the seed and the partitions of the snapshots, and the epoch of the run that begins now.
    pub fn new(world: Arc<World>, shard: ShardId, now: Now) -> Restored {
        Restored {
            shard,
            now,
            restores_local_state: true,
            keeps_epoch: true,
            home: Box::new(Home::for_world(&world, shard)),
            sessions: SessionsAtHome::new(world.placement(), shard, world.replicates_sessions()),
            reader: None,
            topics_without_newest: Vec::new(),
            world,
        }
    }

    /// Skips the local state of the snapshots: sessions, groups, and filters that keep messages. Used if the server has served clients after it wrote the
    /// snapshots, because the log has no records of the changes of local state since then.
    ///
    /// If the log has records of sessions, these sessions are restored from the log. Which messages they need is unknown until
    /// [`Shard::finish_recovery`], so all messages are kept until then.
    #[must_use]
    pub fn without_local_state(mut self) -> Restored {
        self.restores_local_state = false;
        if self.world.recovers_sessions() {
            self.home
                .count_qos_subscription(0, ALL_TOPICS, true, self.now);
        }
        self
    }

    /// Begins a new epoch, which makes positions from before the restart invalid. Used if the log lacks messages that clients have received.
    #[must_use]
    pub fn with_new_epoch(self) -> Restored {
        Restored {
            keeps_epoch: false,
            ..self
        }
    }

    pub(crate) fn world(&self) -> &Arc<World> {
        &self.world
    }

    pub(crate) fn shard(&self) -> ShardId {
        self.shard
    }

    pub(crate) fn now(&self) -> Now {
        self.now
    }

    /// Begins to read the snapshot with this head.
    ///
    /// # Errors
    /// The previous snapshot is not complete, or this one is of another server.
    pub fn begin_snapshot(&mut self, head: &Head) -> Result<(), Damaged> {
        self.end_snapshot()?;
        let world = &self.world;
        if (head.seed, head.partitions) != (world.seed, world.partitions) {
            return Err(Damaged("it is of another server"));
        }
        self.reader = Some(SnapshotReader {
            origin: Origin {
                restores_local: self.restores_local_state,
                epoch: match self.keeps_epoch {
                    true => head.epoch,
                    false => world.epoch,
                },
                ..head.origin()
            },
            age_s: self.now.unix_s.saturating_sub(head.unix_s),
            row_count: 0,
            topics: Vec::new(),
            partition: 0,
            records: 0,
            is_complete: false,
        });
        Ok(())
    }

    /// Reads a block that follows the head. The caller has checked the checksum of the block.
    ///
    /// # Errors
    /// A record is invalid.
    pub fn read_block(&mut self, block: &[u8]) -> Result<(), Damaged> {
        let mut reader = self.reader.take().ok_or(Damaged("it has no head"))?;
        let mut block = FieldReader(block);
        while !block.is_empty() {
            if reader.is_complete {
                return Err(Damaged("there is something behind the end"));
            }
            let kind = block.byte()?;
            self.read_record(kind, &mut block, &mut reader)?;
            reader.records += 1;
        }
        self.reader = Some(reader);
        Ok(())
    }

    fn read_record(
        &mut self,
        kind: u8,
        from: &mut FieldReader<'_>,
        reader: &mut SnapshotReader,
    ) -> Result<(), Damaged> {
        let (world, now) = (&self.world, self.now);
        let home = &mut self.home;
        let SnapshotReader { origin, topics, .. } = reader;
        // The record of the home comes first, since all other records are checked against it.
        if (kind == kind::HOME) != (reader.records == 0) {
            return Err(Damaged(
                "the home's own record is not the first, or not the only one",
            ));
        }
        match kind {
            kind::HOME => {
                reader.row_count = home.logs.restore_home(from, origin)?;
                Ok(())
            }
            kind::TOPIC => {
                let (topic, is_newest_removed) = home.restore_topic(from, origin, &world.rules)?;
                let row = topic.row_in_snapshot;
                let follows_last = topics.last().is_none_or(|last| last.row_in_snapshot < row);
                if row >= reader.row_count || !follows_last {
                    return Err(NO_TOPIC);
                }
                if is_newest_removed {
                    self.topics_without_newest.push(topic.row_here);
                }
                topics.push(topic);
                Ok(())
            }
            kind::FILTER => home.restore_filter(from, origin),
            kind::GROUP => home.restore_group(from, origin),
            kind::LOSS => home.restore_loss(from, topics),
            kind::FORGOTTEN => home.logs.restore_forgotten(from, origin, &world.rules),
            kind::RULE_LOSS => home.logs.restore_rule_loss(from, &world.rules),
            kind::WRITER_SET => home.logs.restore_writer_set(from),
            kind::MESSAGE => {
                home.restore_message(from, origin, topics, &world.settings, &world.rules, now)
            }
            kind::ANSWER => home.restore_answer(from, origin, &world.settings, now),
            kind::GROUP_POSITION => home.restore_group_position(from, origin, world),
            kind::UNRELEASED => home.restore_unreleased(from, origin, world),
            kind::NEWEST_CLAIM => home.restore_newest_claim(from, origin, world),
            kind::SESSIONS => {
                reader.partition = from.number16()?;
                let of_its_home = origin.placement.home_of(reader.partition) == origin.home;
                match reader.partition < world.partitions && of_its_home {
                    true => Ok(()),
                    false => Err(Damaged("there is no such partition")),
                }
            }
            kind::SESSION => (self.sessions).restore(from, origin, world, now, reader.age_s),
            kind::RETIRED_TOKEN => (self.sessions).restore_retired(from, origin, world),
            kind::NO_SESSION => (self.sessions).restore_empty_row(from, origin, reader.partition),
            kind::END => {
                reader.is_complete = true;
                match from.number()? == reader.records {
                    true => Ok(()),
                    false => Err(Damaged("records are missing")),
                }
            }
            _ => Err(Damaged("a record is of no known kind")),
        }
    }

    /// Ends the snapshot being read.
    ///
    /// # Errors
    /// The snapshot is not complete.
    pub fn end_snapshot(&mut self) -> Result<(), Damaged> {
        match self.reader.take() {
            Some(reader) if !reader.is_complete => Err(Damaged("it is not whole")),
            _ => Ok(()),
        }
    }

    /// Completes the home, after all snapshots.
    ///
    /// # Errors
    /// The last snapshot is not complete.
    pub fn finish(mut self) -> Result<Restored, Damaged> {
        self.end_snapshot()?;
        self.sessions.free_empty_rows();
        self.home
            .finish_restore(&self.topics_without_newest, &self.world.rules, self.now);
        self.topics_without_newest = Vec::new();
        Ok(self)
    }
}

impl Shard {
    /// Prepares to read a log without a snapshot: until [`finish_recovery`](Self::finish_recovery) all messages are kept.
    pub fn begin_recovery(&mut self) {
        let ctx = &self.front.clients.ctx;
        if let Some(home) = &mut self.home
            && ctx.world.recovers_sessions()
        {
            home.count_qos_subscription(0, ALL_TOPICS, true, ctx.now);
        }
    }

    /// Applies the record of this partition that another process has begun to serve in this second. Until then the connections of the process before it
    /// held their sessions. Such a record is read only while a process starts.
    pub(super) fn release_sessions_at_start(&mut self, partition_index: usize, unix_s: u32) {
        let ctx = &self.front.clients.ctx;
        let (world, now) = (ctx.world.clone(), Now { unix_s, ..ctx.now });
        let invalid = self
            .sessions
            .release_held_of_partition(partition_index, &world, now);
        self.front.clients.meter.stats.closed[Closed::Broken as usize] += u64::from(invalid);
    }

    /// Replays the records of sessions that wait for the end of the log.
    pub(super) fn replay_waiting_sessions(&mut self) {
        let ctx = &self.front.clients.ctx;
        let (world, now) = (ctx.world.clone(), ctx.now);
        let invalid = self.sessions.replay_waiting(&world, now);
        self.front.clients.meter.stats.closed[Closed::Broken as usize] += u64::from(invalid);
    }

    /// Adds the needs of the restored sessions. Called after the last batch.
    pub fn add_session_needs(&mut self, needs: &mut SessionNeeds) {
        self.replay_waiting_sessions();
        for session in self.sessions.stored_states() {
            let needed = subscriptions(session).filter(StoredSubscription::needs_log);
            needs
                .filters
                .extend(needed.map(|it| Box::from(&*it.filter)));
            needs
                .publishers
                .insert(Party::qos2_publisher(token_of(session)));
        }
        let wills = self.sessions.will_tokens().map(Party::qos2_publisher);
        needs.publishers.extend(wills);
    }

    /// Whether the log or a checkpoint of the cluster has sessions although its format has none. A node must not serve then: its checkpoints would lose them.
    pub fn has_unread_sessions(&self) -> bool {
        self.sessions.has_unread()
    }

    /// Ends all restored sessions without publishing their wills. Called before [`finish_recovery`](Self::finish_recovery) if a process has served
    /// clients after the log's last record without recording their sessions. Returns the number of sessions.
    pub fn end_restored_sessions(&mut self, now: Now) -> u32 {
        let world = self.front.clients.ctx.world.clone();
        self.sessions.end_all(&world, now)
    }

    /// Completes the recovery of sessions. Called after the log was read, if the log has records of sessions and the last stop was not
    /// clean. From now on this home keeps only the messages that its rules or sessions need; `needs` are the needs of the sessions of all homes. On one
    /// machine, no connection holds a session from now on.
    pub fn finish_recovery(&mut self, needs: &SessionNeeds, now: Now) {
        let world = self.front.clients.ctx.world.clone();
        if !world.recovers_sessions() {
            return;
        }
        match &mut self.cluster {
            // The connections of the other nodes still hold their sessions.
            Some(cluster) => {
                cluster.counts_needs = true;
                self.sessions.begin_releases();
            }
            None => self.sessions.release_held(now),
        }
        let own_shard = self.front.clients.ctx.own_shard;
        let Some(home) = &mut self.home else { return };
        if !world.replicates_sessions() {
            let unreleased = &mut home.retries.unreleased;
            unreleased.retain(|session| needs.publishers.contains(&session));
        }
        for text in &needs.filters {
            let shared = split_shared(text);
            let filter = shared.map_or(&**text, |(_, filter)| filter);
            if !topic::has_wildcard(filter) && world.placement().home_of_name(filter) != own_shard {
                continue;
            }
            match shared {
                Some((name, filter)) => home.restore_group_member(filter, name),
                None => {
                    let hash = world.hash_of(filter);
                    home.count_qos_subscription(hash, filter, true, now);
                }
            }
        }
        home.subscriptions.drop_positions_of_ended_groups();
        home.count_qos_subscription(0, ALL_TOPICS, false, now);
        home.drop_unneeded(&world.rules, now);
        // If the memory account exceeds its limit now, the first turns evict sessions.
        count_held_bytes(&mut self.front.clients, &self.sessions);
    }

    /// Adopts the restored state, before the shard handles any input.
    pub fn adopt(&mut self, restored: Restored) {
        let Restored {
            home,
            sessions,
            shard,
            ..
        } = restored;
        assert!(
            shard == self.front.clients.ctx.own_shard,
            "each has its own"
        );
        let turn_limits = self.front.clients.meter.work.turn_limits;
        sessions.count_restored(&self.front.clients.ctx.world.admission);
        self.front.clients.meter.work.home_steps = home.steps().clone();
        self.home = Some(*home);
        self.sessions = sessions;
        count_held_bytes(&mut self.front.clients, &self.sessions);
        self.set_turn_limits(turn_limits);
    }
}
