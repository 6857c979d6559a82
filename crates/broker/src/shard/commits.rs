//! What the engine has kept, or not: records are applied, and what has waited behind them is carried out. See [`commit`](crate::commit).

use alloc::sync::Arc;

use crore_wire::mqtt::ReasonCode;
use crore_wire::topic;

use crate::base::ids::{PartitionId, ShardId};
use crate::base::time::Now;
use crate::budget::stats::Reason;
use crate::commit::queue::Due;
use crate::commit::record::Write;
use crate::conn::io::Io;
use crate::home::sessions::{Claim, Room};
use crate::mail::message::Publish;
use crate::mail::orders::Report;
use crate::mail::{Farewell, LeaveGroup, Outcome};
use crate::shard::Shard;
use crate::shard::waiting::{For, Waiting, What};

impl Shard {
    /// Hands new records to the engine, and asks it again about batches whose answer is late.
    pub(super) fn send_batches<I: Io>(&mut self, io: &mut I) {
        if self.commits.len() > 0 {
            let now_s = self.front.now.s;
            self.commits.send_again(now_s, |batch| io.append(batch));
            self.commits.send(now_s, |batch| io.append(batch));
        }
    }

    /// The engine has decided about a batch.
    pub(super) fn decided(&mut self, partition: PartitionId, number: u64, kept: bool) {
        let placement = self.front.world.placement();
        if placement.home_of(partition) == self.front.lanes.me {
            let at = placement.place_at_home(partition);
            self.commits.decided(at, number, kept, self.front.now.s);
        }
        self.go_on_with_commits();
    }

    /// Carries out what has waited for the engine, as far as the turn goes; says whether there was any.
    pub(crate) fn go_on_with_commits(&mut self) -> bool {
        let mut any = false;
        while !self.front.is_spent() || !any {
            let Some(due) = self.commits.next() else {
                break;
            };
            any = true;
            self.front.work.steps.add(1);
            self.take_effect(due);
        }
        any
    }

    fn take_effect(&mut self, due: Due<Waiting>) {
        let (Waiting { from, weight, what }, record) = match due {
            Due::Turn(waiting, record) => (waiting, record),
            Due::Failed(waiting) => (waiting, None),
        };
        self.front.lanes.to[usize::from(from)].credit_bytes += weight;
        match (what, record) {
            (What::Ask(ask), _) => {
                let (ask, bytes) = *ask;
                self.carry_out(from, ask, &bytes);
            }
            (What::Write(who), Some(record)) => self.committed(from, who, &record),
            (What::Write(who), None) => self.unkept(from, who),
        }
    }

    /// Gives back what was reserved for a record.
    fn release(&mut self, who: &For) {
        match who {
            For::Publisher(_, _, reserved) => {
                let home = self.front.home.as_mut().expect("only homes are asked");
                home.release(*reserved, self.front.now);
            }
            For::Claimant(_, _, Room::Reserved) => {
                self.front.world.admission.count_sessions(1, 0);
            }
            For::Ending(at) => self.sessions.ends_later(*at, false),
            _ => {}
        }
    }

    /// A record was not kept: what it was for fails.
    fn unkept(&mut self, from: ShardId, who: For) {
        self.release(&who);
        match who {
            For::Publisher(answer, ..) => self.reply(from, answer, Outcome::Unkept),
            For::Order(ticket) => (self.front.lanes.reports).push((ticket, Report::Unkept)),
            For::Claimant(to, owner, room) => {
                if room == Room::Reserved {
                    self.front.world.admission.leave_session(owner);
                }
                self.refuse_session(from, to, ReasonCode::SERVER_UNAVAILABLE);
            }
            // Due again in the next turn.
            For::Ending(_) => {}
            For::Nobody | For::Member(..) | For::Leaver(..) | For::Holder(_) => {}
        }
    }

    /// Applies a record that is kept.
    fn committed(&mut self, from: ShardId, who: For, record: &Arc<[u8]>) {
        self.release(&who);
        let admission = self.front.world.admission.clone();
        let Ok((unix_s, write)) = Write::decode(record, &admission) else {
            // It was encoded here.
            self.front.stats.closed[Reason::Broken as usize] += 1;
            return;
        };
        let now = Now {
            unix_s,
            ..self.front.now
        };
        match (write, who) {
            (Write::OpenSession(client, clean), For::Claimant(to, owner, room)) => {
                let (hash, _) = self.front.place_of(client);
                let claim = Claim {
                    shard: from,
                    to,
                    clean,
                    owner,
                };
                self.session_open(claim, (hash, client), room);
            }
            (Write::CloseSession(id, kept, will), For::Holder(owner)) => {
                self.session_close(Farewell {
                    id,
                    owner,
                    kept,
                    will,
                    passage: Default::default(),
                });
            }
            (Write::EndSession, For::Ending(at)) => self.end_session(at),
            (write, who) => self.committed_at_home(from, who, write, now),
        }
    }

    fn committed_at_home(&mut self, from: ShardId, who: For, write: Write<'_>, now: Now) {
        let home = self.front.home.as_mut().expect("only homes are asked");
        let (world, lanes) = (&self.front.world, &mut self.front.lanes);
        match (write, who) {
            (Write::Publish(message), For::Publisher(answer, client, _)) => {
                let message = Publish {
                    hash: home.hash_of(message.name),
                    client,
                    ..message
                };
                let (settings, rules) = (&world.settings, &world.rules);
                let here = &self.front.matching;
                let outcome = home.apply(&message, settings, rules, here, now, lanes);
                self.reply(from, answer, outcome);
            }
            (Write::Topic(verb, name), For::Publisher(answer, ..)) => {
                let (rules, hash) = (&world.rules, home.hash_of(name));
                let outcome = home.apply_verb(verb, hash, name, rules, now, lanes);
                self.reply(from, answer, outcome);
            }
            (Write::Purge(name, until, most), For::Order(ticket)) => {
                let purged = home.purge_some(name, until, most, now);
                lanes.reports.push((ticket, Report::Purged(purged)));
            }
            (Write::ForgetLatest(name), _) => home.forget_latest(name, now),
            (Write::KeepLog(name, true), _) if topic::has_wildcard(name) => {}
            (Write::KeepLog(name, on), _) => self.keep_log(name, on),
            (Write::JoinGroup(share, counts), For::Member(to, credit)) => {
                let of = (share.filter, share.name);
                home.group_join(from, to, of, credit, counts, lanes);
            }
            (Write::LeaveGroup(_, unacked, ends), For::Leaver(to, group)) => {
                let leave = LeaveGroup {
                    group,
                    to,
                    unacked,
                    ends,
                };
                home.group_leave(from, &leave);
            }
            (Write::ReleaseGroup(share), _) => home.group_release(share.filter, share.name),
            // Each record was made with what it is for.
            _ => self.front.stats.closed[Reason::Broken as usize] += 1,
        }
    }
}
