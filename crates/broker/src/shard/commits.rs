//! What the engine has committed: records are applied, and requests that waited behind them are carried out. See
//! [`commit`](crate::commit).

use crate::base::snapshot::{Damaged, In};
use crate::base::time::Now;
use crate::budget::admission::Client;
use crate::budget::stats::Reason;
use crate::commit::Committed;
use crate::commit::batch::{HEADER_BYTES, Header, Kept};
use crate::commit::record::Write;
use crate::conn::io::Io;
use crate::home::Home;
use crate::mail::message::Publish;
use crate::mail::orders::Report;
use crate::mail::{Answer, Outcome};
use crate::shard::Shard;
use crate::shard::waiting::{Request, Waiting};

/// The end of a record that was applied.
enum Applied {
    Outcome(Outcome),
    Purged(Option<u32>),
    Forgotten,
}

impl Shard {
    /// Hands batches to the engine.
    pub(super) fn send_batches<I: Io>(&mut self, io: &mut I) {
        if self.commits.len() == 0 {
            return;
        }
        let home = self.front.home.as_ref();
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

    /// Tells publishers whose records the engine has not committed for long that the outcome is not known. The records stay in flight.
    pub(super) fn tell_late(&mut self) {
        let mut late = alloc::vec::Vec::new();
        self.commits
            .tell_late(self.front.now.s, |waiting| match &mut waiting.request {
                // A second copy must not be acknowledged while the first is in flight (MQTT QoS 2).
                Request::Publish(..) if waiting.once => {}
                Request::Publish(answer, ..) => {
                    late.push((waiting.from, core::mem::replace(answer, Answer::None)));
                }
                Request::Purge(ticket) => {
                    late.extend(ticket.take().map(|it| (waiting.from, Answer::Order(it))));
                }
                Request::Ask(_) | Request::Write => {}
            });
        for (from, answer) in late {
            self.reply(from, answer, Outcome::Unknown);
        }
    }

    fn take_effect(&mut self, waiting: Waiting, record: Option<Kept>) {
        let Waiting {
            from,
            weight,
            request,
            ..
        } = waiting;
        self.front.lanes.to[usize::from(from)].credit_bytes += weight;
        if let Request::Ask(ask) = request {
            let (ask, bytes) = *ask;
            return self.carry_out(from, ask, &bytes);
        }
        if let Request::Publish(_, _, reserved) = request {
            let home = self.front.home.as_mut().expect("only homes are asked");
            home.release(reserved, self.front.now);
        }
        let client = match request {
            Request::Publish(_, client, _) => client,
            _ => Client::NOBODY,
        };
        let applied = record.and_then(|record| self.apply(record.parts(), client).ok());
        match (applied, request) {
            (Some(Applied::Outcome(outcome)), Request::Publish(answer, ..)) => {
                self.reply(from, answer, outcome);
            }
            (Some(Applied::Purged(purged)), Request::Purge(ticket)) => {
                let report = |ticket| (ticket, Report::Purged(purged));
                self.front.lanes.reports.extend(ticket.map(report));
            }
            (Some(Applied::Forgotten), Request::Write) => {}
            // The record was encoded here, for this request.
            _ => self.front.stats.closed[Reason::Broken as usize] += 1,
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
        let home = self
            .front
            .home
            .as_ref()
            .expect("a partition is at its home");
        let at = placement.place_at_home(header.partition);
        if first != 0 && first <= home.sequence(at) {
            return Ok(());
        }
        let mut records = In(&batch[HEADER_BYTES..]);
        for _ in 0..header.records {
            let record = records.field()?;
            let (_, write) = Write::decode(record)?;
            if first == 0 || placement.partition_of(write.topic()) != header.partition {
                return Err(Damaged(
                    "a record is of another partition, or has no offset",
                ));
            }
            self.apply((record, first, header.unix_s), Client::NOBODY)?;
        }
        self.front.lanes.drop_untold();
        match records.is_empty() {
            true => Ok(()),
            false => Err(Damaged("a batch is too long")),
        }
    }

    /// Applies a record that stands in the log: its bytes, the offset of the first record of its batch, and the batch's second.
    fn apply(&mut self, record: (&[u8], u64, u32), client: Client) -> Result<Applied, Damaged> {
        let (bytes, first, unix_s) = record;
        let (behind, write) = Write::decode(bytes)?;
        let offset = first + u64::from(behind);
        let now = Now {
            unix_s,
            ..self.front.now
        };
        let home = self.front.home.as_mut().expect("only homes are asked");
        let (world, lanes) = (&self.front.world, &mut self.front.lanes);
        let (settings, rules) = (&world.settings, &world.rules);
        let hash = home.hash_of(write.topic());
        home.begin_record(write.topic(), offset);
        let applied = match &write {
            Write::Publish(message) => {
                let message = Publish {
                    hash,
                    client,
                    ..*message
                };
                let here = &self.front.matching;
                Applied::Outcome(home.apply(&message, settings, rules, here, now, lanes))
            }
            Write::Topic(verb, name) => {
                Applied::Outcome(home.apply_verb(*verb, hash, name, rules, now, lanes))
            }
            Write::Purge(name, until, most) => {
                Applied::Purged(home.purge_some(name, *until, *most, now))
            }
            Write::ForgetLatest(name) => {
                home.forget_latest(name, now);
                Applied::Forgotten
            }
        };
        home.end_record(write.topic(), offset);
        Ok(applied)
    }

    /// The digest of what the log says of this home's topics: two processes that have folded the same log have the same one, all
    /// homes of each taken together (exclusive or).
    pub fn digest(&self) -> u64 {
        self.front.home.as_ref().map_or(0, Home::digest)
    }
}
