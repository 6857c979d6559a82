//! What the engine has committed: records are applied, and requests that waited behind them are carried out. See
//! [`commit`](crate::commit).

use crate::base::snapshot::{Damaged, In};
use crate::base::time::Now;
use crate::budget::admission::Client;
use crate::budget::stats::Reason;
use crate::commit::Committed;
use crate::commit::batch::{HEADER_BYTES, Header, Kept};
use crate::commit::record::decode_mark;
use crate::conn::io::Io;
use crate::home::Home;
use crate::mail::{Fact, Outcome, Tell};
use crate::shard::Shard;
use crate::shard::asks::HERE;
use crate::shard::waiting::{Due, Request, Waiting};

impl Shard {
    /// Hands batches to the engine.
    pub(super) fn send_batches<I: Io>(&mut self, io: &mut I) {
        if self.commits.len() == 0 {
            return;
        }
        let home = self.home.as_ref();
        let sequence = |at| home.map_or(0, |home: &Home| home.sequence(at));
        self.commits
            .send(self.front.now, sequence, |batch| io.append(batch));
    }

    /// A batch stands in the log of its partition.
    pub(super) fn committed(&mut self, of: Committed) {
        let placement = self.front.world.placement();
        if placement.home_of(of.partition) == self.front.lanes.me {
            let at = placement.place_at_home(of.partition);
            self.commits.committed(at, of, self.front.now);
        }
        self.go_on_with_commits();
    }

    /// Carries out what has waited for the engine, as far as the turn goes; says whether there was any.
    pub(crate) fn go_on_with_commits(&mut self) -> bool {
        let mut any = false;
        while !self.front.is_spent() || !any {
            let Some((waiting, record)) = self.commits.next() else {
                break;
            };
            any = true;
            self.front.work.steps.add(1);
            self.take_effect(waiting, record);
        }
        any
    }

    /// Goes on with answering requests that have waited long for the engine, as far as the turn goes; says whether there may be any. The
    /// records stay in flight.
    pub(crate) fn go_on_with_late(&mut self) -> bool {
        let mut any = false;
        while self.commits.may_have_late() && (!self.front.is_spent() || !any) {
            any = true;
            self.front.work.steps.add(1);
            if let Some(waiting) = self.commits.next_late()
                && let Some((from, due)) = waiting.answer_late()
            {
                match due {
                    Due::Outcome(answer) => self.reply(from, answer, Outcome::Unknown),
                    Due::Fence(to) => self.front.lanes.tell(from, Tell::Fenced(to)),
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
        self.front.lanes.to[usize::from(from)].credit_bytes += weight;
        let (answer, client, reserved, passing) = match request {
            Request::Fact(answer, client, reserved) => (answer, client, reserved, None),
            Request::Passing(fact, answer, client, reserved) => {
                (answer, client, reserved, Some(fact))
            }
            Request::Mark => return self.take_mark(record),
            Request::Ask(ask) => {
                let (ask, bytes) = *ask;
                return self.carry_out(from, ask, &bytes);
            }
            Request::Answered => return,
        };
        let home = self.home.as_mut().expect(HERE);
        home.release(reserved, self.front.now);
        let seed = self.front.world.seed;
        if let Some(fact) = passing {
            let mut around = self.front.around();
            let passed = Fact::decode(&fact, seed, client, |_, fact| home.pass(fact, &mut around));
            return self.reply(from, answer, passed.expect("it was encoded here"));
        }
        let outcome = record.and_then(|record| {
            let (bytes, first, unix_s) = record.parts();
            let read = Fact::decode(bytes, seed, client, |behind, fact| {
                self.apply(fact, first + u64::from(behind), unix_s)
            });
            read.ok()
        });
        match outcome {
            Some(outcome) => self.reply(from, answer, outcome),
            // The record was encoded here, for this request.
            None => self.front.stats.closed[Reason::Broken as usize] += 1,
        }
    }

    /// A mark stands in the log.
    fn take_mark(&mut self, record: Option<Kept>) {
        let read = record.and_then(|record| {
            let (bytes, first, _) = record.parts();
            let (behind, until) = decode_mark(bytes).ok().flatten()?;
            let partition = record.partition();
            let at = self.front.world.placement().place_at_home(partition);
            let home = self.home.as_mut().expect(HERE);
            home.mark(at, first + u64::from(behind), until);
            Some(())
        });
        if read.is_none() {
            self.front.stats.closed[Reason::Broken as usize] += 1;
        }
    }

    /// Applies a batch of the log that no request of this process waits for. A batch of a partition of another home changes
    /// nothing, nor does one that was applied before, here or by the writer of the documents that were read first.
    ///
    /// # Errors
    /// When the batch is none. What it has applied by then stays.
    pub fn fold(&mut self, batch: &[u8], first: u64, now: Now) -> Result<(), Damaged> {
        self.front.now = now;
        let header = Header::read(batch)?;
        let placement = self.front.world.placement();
        if header.partition >= placement.partitions() {
            return Err(Damaged("there is no such partition"));
        }
        if placement.home_of(header.partition) != self.front.lanes.me {
            return Ok(());
        }
        let home = self.home.as_ref().expect(HERE);
        let at = placement.place_at_home(header.partition);
        if first != 0 && first <= home.sequence(at) {
            return Ok(());
        }
        let mut records = In(&batch[HEADER_BYTES..]);
        for _ in 0..header.records {
            let (record, seed) = (records.field()?, self.front.world.seed);
            if let Some((behind, until)) = decode_mark(record)? {
                let home = self.home.as_mut().expect(HERE);
                home.mark(at, first + u64::from(behind), until);
                continue;
            }
            let is_here = Fact::decode(record, seed, Client::NOBODY, |behind, fact| {
                let partition = placement.partition_of(fact.topic().1);
                let is_here = first > 0 && partition == header.partition;
                let offset = first + u64::from(behind);
                if is_here && self.front.world.rules.is_durable(fact.topic().1) {
                    self.apply(fact, offset, header.unix_s);
                } else if is_here {
                    // The operator has changed the rules since: such a topic keeps nothing across a crash.
                    let home = self.home.as_mut().expect(HERE);
                    home.mark(at, offset, 0);
                }
                is_here
            });
            if !is_here? {
                return Err(Damaged(
                    "a record is of another partition, or has no offset",
                ));
            }
        }
        self.front.lanes.drop_untold();
        records.end()
    }

    /// The log was read behind a crash: what stood in no log is lost. Partitions go on behind their marks, and clients with positions of before
    /// are told a gap where they may have missed something.
    pub fn lose_what_passed(&mut self) {
        let rules = &self.front.world.rules;
        if let Some(home) = &mut self.home {
            home.lose_what_passed(rules);
        }
    }

    /// Applies a fact that stands in the log with this offset, in a batch of this second.
    fn apply(&mut self, fact: &Fact<'_>, offset: u64, unix_s: u32) -> Outcome {
        let home = self.home.as_mut().expect(HERE);
        let mut around = self.front.around();
        around.now.unix_s = unix_s;
        home.apply(fact, offset, &mut around)
    }

    /// The digest of what the log says of this home's topics: two processes that have folded the same log have the same one, all
    /// homes of each taken together (exclusive or).
    pub fn digest(&self) -> u64 {
        let rules = &self.front.world.rules;
        let home = self.home.as_ref();
        home.map_or(0, |home| home.digest(rules))
    }
}
