//! Batches that the engine has committed: records are applied, and requests that waited behind them are carried out. See
//! [`commit`](crate::commit).

use alloc::vec::Vec;

use crate::base::ids::PartitionId;
use crate::base::planted::{self, Fault};
use crate::base::reason::Closed;
use crate::base::snapshot::{Damaged, In};
use crate::base::time::Now;
use crate::budget::admission::Client;
use crate::client::asking::fact_context;
use crate::commit::Committed;
use crate::commit::batch::{HEADER_BYTES, Header, Kept};
use crate::commit::queue::Next;
use crate::commit::record::{Note, unknown};
use crate::home::{HERE, Home};
use crate::mail::{Fact, Outcome, Tell};
use crate::protocol::front::{Context, Front, Subscriptions};
use crate::shard::Shard;
use crate::shard::asks::reply;
use crate::shard::waiting::{LateAnswer, Request, Waiting};

impl Shard {
    /// A batch stands in the log of its partition.
    pub(super) fn committed(&mut self, of: Committed) {
        let placement = self.front.clients.ctx.world.placement();
        if placement.home_of(of.partition) == self.front.clients.ctx.me {
            let at = placement.place_at_home(of.partition);
            self.commits.committed(at, of, self.front.clients.ctx.now);
        }
        self.go_on_with_commits();
    }

    /// Carries out what has waited for the engine, as far as the turn goes; says whether there was any.
    pub(crate) fn go_on_with_commits(&mut self) -> bool {
        let mut any = false;
        while !self.front.clients.meter.work.is_spent() || !any {
            let home = &mut self.home;
            let counts = |at, writer, number| match home {
                Some(home) => home.logs.counts(at, writer, number),
                None => false,
            };
            let Some(next) = self.commits.next(self.front.clients.ctx.now, counts) else {
                break;
            };
            any = true;
            self.front.clients.meter.work.steps.add(1);
            match next {
                Next::Request(waiting, record) => self.take_effect(waiting, record),
                Next::Foreign(record) => self.take_aside(&record),
            }
        }
        any
    }

    /// Goes on with answering requests that have waited long for the engine, as far as the turn goes; says whether there may be any. The
    /// records stay in flight.
    pub(crate) fn go_on_with_late(&mut self) -> bool {
        let mut any = false;
        while self.commits.may_have_late() && (!self.front.clients.meter.work.is_spent() || !any) {
            any = true;
            self.front.clients.meter.work.steps.add(1);
            if let Some(waiting) = self.commits.next_late()
                && let Some((from, due)) = waiting.answer_late()
            {
                match due {
                    LateAnswer::Outcome(answer) => reply(
                        &mut self.front.clients,
                        &mut self.front.subs.lanes,
                        from,
                        answer,
                        Outcome::Unknown,
                    ),
                    LateAnswer::Fence(to) => self.front.subs.lanes.tell(from, Tell::Fenced(to)),
                }
            }
        }
        any
    }

    fn take_effect(&mut self, waiting: Waiting, record: Option<Kept>) {
        let Waiting {
            from,
            weight,
            request,
            ..
        } = waiting;
        self.front.subs.lanes.to[usize::from(from)].credit_bytes += weight;
        let (answer, client, reserved, unlogged) = match request {
            Request::Fact(answer, client, reserved) => (answer, client, reserved, None),
            Request::Unlogged(fact, answer, client, reserved) => {
                (answer, client, reserved, Some(fact))
            }
            Request::Note => return record.into_iter().for_each(|it| self.take_aside(&it)),
            Request::Ask(ask) => {
                let (ask, bytes) = *ask;
                return self.carry_out(from, ask, &bytes);
            }
            Request::Answered => return,
        };
        let home = self.home.as_mut().expect(HERE);
        home.release(reserved, self.front.clients.ctx.now);
        let seed = self.front.clients.ctx.world.seed;
        if let Some(fact) = unlogged {
            let mut context = fact_context(&mut self.front.subs, &self.front.clients.ctx);
            let passed = Fact::decode(&fact, seed, client, |_, fact| {
                home.apply_unlogged(fact, &mut context)
            });
            return reply(
                &mut self.front.clients,
                &mut self.front.subs.lanes,
                from,
                answer,
                passed.expect("it was encoded here"),
            );
        }
        let Front { clients, subs, .. } = &mut self.front;
        let ctx = &clients.ctx;
        let outcome = record.and_then(|record| {
            let (bytes, first, unix_s) = record.parts();
            let read = Fact::decode(bytes, seed, client, |behind, fact| {
                let own = ctx.world.is_shared() && planted::is(Fault::OwnOffset);
                let offset = first + u64::from(behind) + u64::from(own) * 7;
                let outcome = apply(subs, ctx, home, fact, (offset, unix_s));
                if ctx.world.is_shared() {
                    let partition = ctx.partition_of(fact.topic().1);
                    let at = ctx.world.placement().place_at_home(partition);
                    home.has_applied(at, offset, record.is_last());
                    if let Some(cluster) = &mut self.cluster {
                        cluster.was_heard(at, ctx.now.s);
                    }
                }
                outcome
            });
            read.ok()
        });
        match outcome {
            Some(outcome) => reply(clients, &mut subs.lanes, from, answer, outcome),
            // The record was encoded here, for this request.
            None => clients.meter.stats.closed[Closed::Broken as usize] += 1,
        }
    }

    /// Applies a record that no request waits for: a note, or what another process has written. One that makes no sense is void; behind one that a
    /// later version has written, and that must not be left out, nothing more of the partition is applied.
    fn take_aside(&mut self, record: &Kept) {
        let header = record.header();
        let placement = self.front.clients.ctx.world.placement();
        let at = placement.place_at_home(header.partition);
        let (bytes, first, unix_s) = record.parts();
        if unknown(bytes) == Some(false) {
            return self.commits.halt(at);
        }
        let taken = self.take_record(at, &header, bytes, (first, unix_s));
        let home = self.home.as_mut().expect(HERE);
        home.topics
            .make_room_for_others(&mut home.logs, &mut home.interest);
        home.has_applied(at, taken.unwrap_or(first), record.is_last());
        if let Some(cluster) = &mut self.cluster {
            cluster.was_heard(at, self.front.clients.ctx.now.s);
        }
        if header.writer == self.commits.writer(at)
            && let Ok(Some((_, note))) = Note::decode(bytes)
        {
            let noted = self.node();
            noted
                .into_iter()
                .for_each(|mut node| node.was_noted(at, &note));
        }
    }

    /// Applies a record of a batch with this header, whose first record has this offset and second; returns its own offset.
    fn take_record(
        &mut self,
        at: usize,
        header: &Header,
        record: &[u8],
        (first, unix_s): (u64, u32),
    ) -> Result<u64, Damaged> {
        let seed = self.front.clients.ctx.world.seed;
        if unknown(record) == Some(true) {
            return Ok(first);
        }
        if let Some((behind, note)) = Note::decode(record)? {
            let offset = first + u64::from(behind);
            self.take_note(at, header, &note, (offset, unix_s));
            return Ok(offset);
        }
        let placement = self.front.clients.ctx.world.placement();
        let is_here = Fact::decode(record, seed, Client::NOBODY, |behind, fact| {
            let partition = placement.partition_of(fact.topic().1);
            let is_here = first > 0 && partition == header.partition;
            let offset = first + u64::from(behind);
            if is_here
                && self
                    .front
                    .clients
                    .ctx
                    .world
                    .rules
                    .is_durable(fact.topic().1)
            {
                apply(
                    &mut self.front.subs,
                    &self.front.clients.ctx,
                    self.home.as_mut().expect(HERE),
                    fact,
                    (offset, unix_s),
                );
            } else if is_here {
                // The operator has changed the rules since: such a topic keeps nothing across a crash.
                let home = self.home.as_mut().expect(HERE);
                home.logs.mark(at, offset, 0);
            }
            is_here.then_some(offset)
        });
        is_here?.ok_or(Damaged(
            "a record is of another partition, or has no offset",
        ))
    }

    /// Applies a batch of the log that no request of this process waits for. A batch of a partition of another home changes
    /// nothing, nor does one that was applied before, here or by the writer of the documents that were read first. Where the log gives records
    /// their second, it is that of `now`.
    ///
    /// # Errors
    /// When the batch is none. The records that it has applied by then stay.
    pub fn fold(&mut self, batch: &[u8], first: u64, now: Now) -> Result<(), Damaged> {
        self.front.clients.ctx.now = now;
        let header = Header::read(batch)?;
        let (placement, is_shared) = (
            self.front.clients.ctx.world.placement(),
            self.front.clients.ctx.world.is_shared(),
        );
        if header.partition >= placement.partitions() {
            return Err(Damaged("there is no such partition"));
        }
        if placement.home_of(header.partition) != self.front.clients.ctx.me {
            return Ok(());
        }
        let at = placement.place_at_home(header.partition);
        let home = self.home.as_mut().expect(HERE);
        let known = if is_shared {
            home.logs.roster(at).last
        } else {
            home.logs.sequence(at)
        };
        if first != 0 && first <= known {
            return Ok(());
        }
        if is_shared && !home.logs.counts(at, header.writer, header.number) {
            return Ok(());
        }
        home.logs.has_read(at, (header.writer, header.number));
        let unix_s = if is_shared { now.unix_s } else { header.unix_s };
        let mut records = In(&batch[HEADER_BYTES..]);
        for left in (0..header.records).rev() {
            let record = records.field()?;
            if unknown(record) == Some(false) {
                return Err(Damaged("a record is of no known kind"));
            }
            let taken = self.take_record(at, &header, record, (first, unix_s));
            if is_shared {
                let home = self.home.as_mut().expect(HERE);
                home.has_applied(at, *taken.as_ref().unwrap_or(&first), left == 0);
            } else {
                taken?;
            }
        }
        self.front.subs.lanes.drop_untold();
        records.end()
    }

    /// The log was read behind a crash: what stood in no log is lost. Partitions go on behind their marks, and clients with positions of before
    /// are told a gap where they may have missed something.
    pub fn lose_unlogged(&mut self) {
        let rules = &self.front.clients.ctx.world.rules;
        if let Some(home) = &mut self.home {
            home.lose_unlogged(rules);
        }
    }

    /// The log no longer has what had offsets up to this one, and this process has read none of it: positions before it are told a gap.
    pub fn lose(&mut self, partition: PartitionId, until: u64) {
        let placement = self.front.clients.ctx.world.placement();
        if placement.home_of(partition) != self.front.clients.ctx.me {
            return;
        }
        let at = placement.place_at_home(partition);
        let rules = &self.front.clients.ctx.world.rules;
        if let Some(home) = &mut self.home {
            home.lose(at, until, rules);
        }
    }

    /// The log of a partition is damaged, and may have lost anything of it before its end: positions of before are told a gap, with a new epoch.
    /// To be called behind the last batch.
    pub fn begin_epoch(&mut self, partition: PartitionId) {
        let placement = self.front.clients.ctx.world.placement();
        let is_here = placement.home_of(partition) == self.front.clients.ctx.me;
        if let Some(home) = self.home.as_mut().filter(|_| is_here)
            && !planted::is(Fault::SilentDamage)
        {
            let at = placement.place_at_home(partition);
            home.begin_epoch(at, &self.front.clients.ctx.world.rules);
        }
    }

    /// Partitions, with writer and number of the last batch that was read of each.
    pub fn last_batches(&self) -> Vec<(PartitionId, (u64, u64))> {
        let home = self.home.iter();
        home.flat_map(|home| home.logs.last_batches()).collect()
    }

    /// The digest of what the log says of this home's topics: two processes that have folded the same log have the same one, all
    /// homes of each taken together (exclusive or).
    pub fn digest(&self) -> u64 {
        let rules = &self.front.clients.ctx.world.rules;
        let home = self.home.as_ref();
        home.map_or(0, |home| home.digest(rules))
    }
}

/// Applies a fact that stands in the log with this offset, in a batch of this second.
fn apply(
    subs: &mut Subscriptions,
    ctx: &Context,
    home: &mut Home,
    fact: &Fact<'_>,
    (offset, unix_s): (u64, u32),
) -> Outcome {
    let mut context = fact_context(subs, ctx);
    context.now.unix_s = unix_s;
    home.apply(fact, offset, &mut context)
}
