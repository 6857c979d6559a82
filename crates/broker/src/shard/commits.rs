//! Applies the batches of records that the engine (which writes the log) has committed, and answers the requests that waited for these records. See
//! [`commit`](crate::commit).
//!
//! Words: a *home* is the part of a shard that keeps topics; a *turn* is a pass of the shard's loop; a *gap* is the notice that
//! messages are lost; an *epoch* is a number in each position, which changes with each start on the log.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crore_wire::mqtt::ReasonCode;

use crate::base::ids::PartitionId;
use crate::base::lives::Lives;
use crate::base::loss_detector::LastBatch;
use crate::base::planted::{self, Fault};
use crate::base::reason::Closed;
use crate::base::record_kind::{Family, RecordKind};
use crate::base::snapshot::{Damaged, FieldReader};
use crate::base::time::Now;
use crate::budget::admission::Client;
use crate::client::asking::{home_context, remove_excess_messages};
use crate::commit::Committed;
use crate::commit::batch::{self, HEADER_BYTES, Header, Record, StoredHeader};
use crate::commit::queue::Next;
use crate::commit::record::{ControlRecord, may_skip_unknown};
use crate::home::{Home, ONLY_HOMES_ARE_ASKED};
use crate::mail::session::record::SessionRecord;
use crate::mail::{Ask, Fact, Outcome, Tell, WantedAnswer};
use crate::protocol::front::Front;
use crate::shard::Shard;
use crate::shard::asks::send_outcome;
use crate::shard::pending_request::{PendingRequest, Request};

impl Shard {
    /// Queues a batch that was committed to the log of its partition.
    pub(super) fn enqueue_committed(&mut self, committed: Committed) {
        let partition = committed.header.partition;
        if let Some((partition_index, _)) = partition_at_home(&mut self.home, partition) {
            self.commits.push_committed(partition_index, committed);
        }
    }

    /// Applies committed records and carries out the requests that wait for them, until the turn's budget is spent. Returns whether there were any.
    pub(crate) fn continue_commits(&mut self) -> bool {
        self.look_for_interruption();
        let mut any = false;
        while !self.front.clients.meter.work.is_spent() || !any {
            if remove_excess_messages(&mut self.home, &self.front.clients.ctx) {
                return true;
            }
            let home = &mut self.home;
            let is_valid = |at, writer, number| match home {
                Some(home) => home.logs.accept_batch(at, writer, number),
                None => false,
            };
            let Some(next) = self.commits.take_next(self.front.clients.ctx.now, is_valid) else {
                break;
            };
            any = true;
            self.front.clients.meter.work.steps.add(1);
            match next {
                Next::Request(waiting, record) => self.complete_request(waiting, record),
                Next::Record { record, is_own } => self.apply_unrequested(&record, is_own),
            }
        }
        any
    }

    /// Answers requests that have been in flight for too long with [`Outcome::Unknown`], until the turn's budget is spent. The records of these requests
    /// stay in flight, and are applied later without a second answer. Returns whether it has searched.
    pub(crate) fn answer_overdue_requests(&mut self) -> bool {
        let Front { clients, subs, .. } = &mut self.front;
        let (mut any, lanes) = (false, &mut subs.lanes);
        while self.commits.is_overdue_search_unfinished()
            && (!clients.meter.work.is_spent() || !any)
        {
            any = true;
            clients.meter.work.steps.add(1);
            let Some(PendingRequest { from, request, .. }) = self.commits.next_overdue() else {
                continue;
            };
            let answer = match request {
                // A QoS 2 message stays unanswered: otherwise its client could send a second copy, which must not be acknowledged while the first is in
                // flight. A will waits too, since its key is released when its message is applied.
                Request::Fact {
                    is_exactly_once: true,
                    ..
                } => continue,
                Request::Fact { answer, .. } => core::mem::replace(answer, WantedAnswer::None),
                Request::Ask(ask) => match ask.0 {
                    Ask::Topic { answer, .. } => {
                        *request = Request::Answered;
                        answer
                    }
                    Ask::Fence(to) => {
                        *request = Request::Answered;
                        lanes.tell(*from, Tell::Fenced(to));
                        continue;
                    }
                    _ => continue,
                },
                Request::Answered | Request::EndRecorded(_) => continue,
            };
            send_outcome(clients, lanes, *from, answer, Outcome::Unknown);
        }
        any
    }

    fn complete_request(&mut self, waiting: PendingRequest, record: Option<Record>) {
        let PendingRequest {
            from,
            weight,
            request,
        } = waiting;
        self.front.subs.lanes.to[usize::from(from)].credit_bytes += weight;
        let (unlogged, answer, client, reserved) = match request {
            Request::Fact {
                unlogged,
                answer,
                client,
                reserved,
                ..
            } => (unlogged, answer, client, reserved),
            Request::Ask(ask) => {
                let has_effect = record.is_none_or(|record| self.apply_own_record(&record));
                let (ask, bytes) = *ask;
                return match has_effect {
                    true => self.carry_out_unlogged(from, ask, &bytes),
                    false => self.refuse_session_ask(from, ask, ReasonCode::SERVER_UNAVAILABLE),
                };
            }
            Request::Answered => {
                if let Some(record) = &record {
                    self.apply_own_record(record);
                }
                return;
            }
            Request::EndRecorded(tokens) => {
                if let Some(record) = &record {
                    self.apply_own_record(record);
                }
                return self.release_tokens(tokens);
            }
        };
        let now = self.front.clients.ctx.now;
        self.home
            .as_mut()
            .expect(ONLY_HOMES_ARE_ASKED)
            .release(reserved, now);
        let mut outcome = match &record {
            Some(record) => self.apply_batch_record(
                &record.stored,
                record.bytes(),
                record.is_last(),
                Some(client),
            ),
            None => Ok(None),
        };
        let Front { clients, subs, .. } = &mut self.front;
        if let Some(fact) = &unlogged {
            let home = self.home.as_mut().expect(ONLY_HOMES_ARE_ASKED);
            let mut context = home_context(subs, &clients.ctx);
            let hash = |name: &[u8]| clients.ctx.world.hash_of(name);
            outcome = Fact::decode(fact, hash, client, |_, fact| {
                Some(home.apply_admitted(fact, None, &mut context))
            });
        }
        match outcome {
            Ok(Some(outcome)) => send_outcome(clients, &mut subs.lanes, from, answer, outcome),
            // Cannot happen: the record was encoded here, for this request.
            _ => clients.meter.stats.closed[Closed::Broken as usize] += 1,
        }
    }

    /// Applies a record of this process that is not a fact. On one machine, the record of a session only advances the partition, since the waiting request
    /// makes the change. Returns false if the record is void.
    fn apply_own_record(&mut self, record: &Record) -> bool {
        let (stored, bytes) = (&record.stored, record.bytes());
        let outcome =
            self.apply_batch_record(stored, bytes, record.is_last(), Some(Client::NOBODY));
        if outcome.is_err() {
            self.front.clients.meter.stats.closed[Closed::Broken as usize] += 1;
        }
        !matches!(outcome, Ok(Some(Outcome::Unknown)))
    }

    /// Applies a record that no request waits for: a control record that this node wrote without a request, or a record of another process. The record's batch was
    /// checked. `is_own`: this process wrote the record.
    fn apply_unrequested(&mut self, record: &Record, is_own: bool) {
        let (header, bytes) = (&record.stored.header, record.bytes());
        let placement = self.front.clients.ctx.world.placement();
        let partition_index = placement.index_at_home(header.partition);
        if (self.apply_batch_record(&record.stored, bytes, record.is_last(), None)).is_err() {
            self.front.clients.meter.stats.closed[Closed::Broken as usize] += 1;
        }
        let home = self.home.as_mut().expect(ONLY_HOMES_ARE_ASKED);
        home.evict_excess_topic();
        if is_own
            && let Ok(Some((_, control))) = ControlRecord::decode(bytes)
            && let Some(mut node) = self.node_context()
        {
            node.after_own_control_record(partition_index, &control);
        }
    }

    /// Applies a record of a batch, and then what waits for the end of the batch. `asker` is the client that requested the record; `None` if no request of
    /// this process waits for the record. Returns the outcome of a fact; for another record `Outcome::Unknown` if the record is void.
    fn apply_batch_record(
        &mut self,
        stored: &StoredHeader,
        record: &[u8],
        is_last: bool,
        asker: Option<Client>,
    ) -> Result<Option<Outcome>, Damaged> {
        let placement = self.front.clients.ctx.world.placement();
        let partition_index = placement.index_at_home(stored.header.partition);
        let applied = self.apply_record(partition_index, stored, record, asker);
        if let (Some(cluster), Some(home)) = (&mut self.cluster, &mut self.home) {
            let offset = applied
                .as_ref()
                .map_or(stored.header.first_offset, |(offset, _)| *offset);
            home.after_record(partition_index, offset, is_last);
            cluster.record_applied(partition_index, self.front.clients.ctx.now.s);
        }
        applied.map(|(_, outcome)| outcome)
    }

    /// Applies a record. Returns its offset, and the outcome as in [`Shard::apply_batch_record`].
    fn apply_record(
        &mut self,
        partition_index: usize,
        stored: &StoredHeader,
        record: &[u8],
        asker: Option<Client>,
    ) -> Result<(u64, Option<Outcome>), Damaged> {
        let header = &stored.header;
        // Most records are facts. For them the other decoders are not called.
        let family = RecordKind::read(record).map(RecordKind::family);
        if family.is_none() && may_skip_unknown(record) == Some(true) {
            return Ok((header.first_offset, None));
        }
        if family == Some(Family::Control)
            && let Some((offset_delta, control)) = ControlRecord::decode(record)?
        {
            let offset = header.first_offset + u64::from(offset_delta);
            let has_effect = self.apply_control_record(partition_index, stored, &control, offset);
            return Ok((offset, (!has_effect).then_some(Outcome::Unknown)));
        }
        let home = self.home.as_mut().expect(ONLY_HOMES_ARE_ASKED);
        let Front { clients, subs, .. } = &mut self.front;
        let world = &clients.ctx.world;
        if family == Some(Family::Session)
            && let Some((offset_delta, session)) = SessionRecord::decode(record)?
        {
            let offset = header.first_offset + u64::from(offset_delta);
            home.logs
                .skip_record(partition_index, offset, header.unix_s, 0);
            if world.replicates_sessions() {
                let has_effect =
                    self.apply_session_record(partition_index, &session, stored, offset);
                return Ok((offset, (!has_effect).then_some(Outcome::Unknown)));
            }
            self.sessions.note_read(world);
            if asker.is_none() && world.recovers_sessions() {
                let now = Now {
                    unix_s: header.unix_s,
                    ..clients.ctx.now
                };
                let is_valid = self.sessions.replay(&session, record, world, now);
                clients.meter.stats.closed[Closed::Broken as usize] += u64::from(!is_valid);
            }
            return Ok((offset, None));
        }
        let client = asker.unwrap_or(Client::NOBODY);
        let is_void =
            world.is_replicated() && stored.is_late() && !planted::is(Fault::LateAccepted);
        let hash = |name: &[u8]| world.hash_of(name);
        Fact::decode(record, hash, client, |offset_delta, fact| {
            let offset = header.first_offset + u64::from(offset_delta);
            let name = fact.topic().name;
            if is_void {
                home.logs
                    .skip_record(partition_index, offset, header.unix_s, 0);
                return (offset, Some(Outcome::Unknown));
            }
            if asker.is_none() && !world.rules.is_durable(name) {
                // Since the record was written, the operator has changed the rules, and the topic no longer survives a crash.
                home.logs.skip_record(partition_index, offset, 0, 0);
                return (offset, None);
            }
            let own = asker.is_some() && world.is_replicated() && planted::is(Fault::OwnOffset);
            let offset = offset + u64::from(own) * 7;
            let mut context = home_context(subs, &clients.ctx);
            context.now.unix_s = header.unix_s;
            (
                offset,
                Some(home.apply_admitted(fact, Some(offset), &mut context)),
            )
        })
    }

    /// Replays a batch of the log: no request of this process waits for it. `header` is as the log reports it. Does nothing for:
    /// * a batch of another home's partition,
    /// * a batch that was replayed before, or that is contained in the checkpoint from which this home began,
    /// * a batch that fails the [check](batch::check), if the log is replicated.
    ///
    /// # Errors
    /// The batch fails the check, and the log is not replicated. No record of the batch is applied.
    pub fn apply_logged_batch(
        &mut self,
        header: &Header,
        batch: &[u8],
        now: Now,
    ) -> Result<(), Damaged> {
        self.front.clients.ctx.now = now;
        let world = &self.front.clients.ctx.world;
        let is_replicated = world.is_replicated();
        if let Err(why) = batch::check(batch, world.placement(), is_replicated) {
            return if is_replicated { Ok(()) } else { Err(why) };
        }
        let Some((at, Home { logs, .. })) = partition_at_home(&mut self.home, header.partition)
        else {
            return Ok(());
        };
        let known = match is_replicated {
            true => logs.writer_set(at).last_offset,
            false => logs.sequence(at),
        };
        let is_applied = header.first_offset != 0 && header.first_offset <= known;
        if is_applied && !planted::is(Fault::FoldedTwice)
            || is_replicated && !logs.accept_batch(at, header.writer, header.number)
        {
            return Ok(());
        }
        logs.set_last_batch(
            at,
            LastBatch {
                writer: header.writer,
                number: header.number,
            },
        );
        let stored = StoredHeader::new(*header, batch);
        let mut records = FieldReader(batch.get(HEADER_BYTES..).unwrap_or_default());
        for left in (0..header.record_count).rev() {
            self.apply_batch_record(&stored, records.field()?, left == 0, None)?;
            if let Some(home) = &mut self.home {
                home.make_room(&self.front.clients.ctx.world.rules, now);
            }
        }
        self.front.subs.lanes.drop_unused_frames();
        records.expect_end()
    }

    /// Records that a crash has lost the facts without a record. Called when the log was replayed after a crash. Each partition continues after its mark
    /// (the highest offset that such a fact may have). A client whose position is before the mark gets a gap if it may have missed a message.
    pub fn lose_unlogged(&mut self) {
        if let Some(home) = &mut self.home {
            home.record_unlogged_loss(&self.front.clients.ctx.world.rules);
        }
    }

    /// Begins a new epoch of a partition whose log is damaged and may have lost records before its end. Called after the last batch.
    /// Clients with older positions get a gap. `ended_life_start` is the first offset of the log's last life, which began with the last start on the log.
    pub fn begin_epoch(&mut self, partition: PartitionId, ended_life_start: u64) {
        if let Some((at, home)) = partition_at_home(&mut self.home, partition)
            && !planted::is(Fault::SilentDamage)
        {
            home.begin_epoch(at, ended_life_start, &self.front.clients.ctx.world.rules);
        }
    }

    /// The partitions of this home, each with its last offset. Called after the last batch was read.
    pub fn last_offsets(&self) -> Vec<(PartitionId, u64)> {
        let home = self.home.iter();
        home.flat_map(|home| home.logs.last_offsets()).collect()
    }

    /// Sets the lives of the log, with the present life: each start on the log begins a life. Positions of all these lives are valid. Called
    /// on every shard, after the last batch.
    pub fn set_lives(&mut self, lives: &Arc<Lives>) {
        self.front.clients.ctx.lives = lives.clone();
        if let Some(home) = &mut self.home {
            home.follow_lives(lives.clone());
        }
    }

    /// The partitions of the home, each with the last batch that was read from its log.
    pub fn last_batches(&self) -> Vec<(PartitionId, LastBatch)> {
        let home = self.home.iter();
        home.flat_map(|home| home.logs.last_batches()).collect()
    }

    /// A digest of the logged state of this home's topics, and of the sessions of a cluster. Two processes that have applied the same log get the
    /// same number if each combines the digests of all its homes by XOR.
    pub fn digest(&self) -> u64 {
        let world = &self.front.clients.ctx.world;
        let home = self.home.as_ref();
        let topics = home.map_or(0, |home| home.digest(&world.rules));
        topics ^ self.sessions.digest(world.seed)
    }
}

/// The index of a partition at this home, and the home; `None` if another home keeps the partition.
fn partition_at_home(
    home: &mut Option<Home>,
    partition: PartitionId,
) -> Option<(usize, &mut Home)> {
    let home = home.as_mut()?;
    Some((home.logs.partition_index_here(partition)?, home))
}
