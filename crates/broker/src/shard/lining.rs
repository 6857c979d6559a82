//! Asks of homes whose engine takes time: writes are admitted and appended, and what else is asked takes its place in the same order. See
//! [`commit`](crate::commit).

use alloc::boxed::Box;
use alloc::vec::Vec;

use crore_wire::mqtt::ReasonCode;
use crore_wire::topic;

use crate::base::ids::{PartitionId, ShardId};
use crate::base::planted::{self, Fault};
use crate::budget::admission::Client;
use crate::commit::queue::Place;
use crate::commit::record::{Share, Write};
use crate::home::sessions::{Room, room_for_session};
use crate::mail::message::Publish;
use crate::mail::{Answer, Ask, Farewell, LeaveGroup, Outcome, ReplyTo, Span, Verb};
use crate::shard::Shard;
use crate::shard::asks::message_of;
use crate::shard::waiting::{For, Waiting, What};

impl Shard {
    fn place(&self, partition: PartitionId) -> Place {
        Place::One(self.front.world.placement().place_at_home(partition))
    }

    fn place_of_name(&self, name: &[u8]) -> Place {
        self.place(self.front.partition_of(name))
    }

    /// The place of a subscription to a topic or a filter.
    fn place_of_filter(&self, filter: &[u8]) -> Place {
        match topic::has_wildcard(filter) {
            true => Place::All,
            false => self.place_of_name(filter),
        }
    }

    /// Admits a write and appends it, or has what else is asked wait for its turn. Returns the part of the sender's credit that is given
    /// back when it is done.
    pub(super) fn line_up(&mut self, from: ShardId, ask: Ask, bytes: &[u8]) -> usize {
        match ask {
            Ask::Publish { .. } => return self.append_publish(from, &ask, bytes),
            Ask::Topic {
                verb,
                hash,
                name,
                answer,
                client,
            } if verb != Verb::Info => {
                let name = name.in_bytes(bytes);
                self.append_verb(from, verb, (hash, name), answer, client);
            }
            Ask::Purge {
                name,
                until,
                most,
                ticket,
            } => {
                let name = name.in_bytes(bytes);
                let write = Write::Purge(name, until, most);
                let place = self.place_of_name(name);
                self.append(from, place, &write, For::Order(ticket));
            }
            Ask::ForgetLatest(name) => {
                let name = name.in_bytes(bytes);
                let place = self.place_of_name(name);
                self.append(from, place, &Write::ForgetLatest(name), For::Nobody);
            }
            Ask::KeepLog { name, on, .. } => {
                let name = name.in_bytes(bytes);
                let place = self.place_of_filter(name);
                if place == Place::All && on {
                    // Now, since its partitions commit one by one: what is published meanwhile in one of them is kept.
                    self.keep_log(name, on);
                }
                self.append(from, place, &Write::KeepLog(name, on), For::Nobody);
            }
            Ask::SessionOpen {
                to,
                hash,
                client,
                clean,
                owner,
            } => self.append_claim(from, to, (hash, &client), clean, owner),
            Ask::SessionClose(mut farewell) => {
                self.trim(&mut farewell);
                let Farewell {
                    id,
                    owner,
                    kept,
                    will,
                    ..
                } = *farewell;
                let place = self.place(id.partition.into());
                let write = Write::CloseSession(id, kept, will);
                self.append(from, place, &write, For::Holder(owner));
            }
            ask => self.line_up_at_home(from, ask, bytes),
        }
        0
    }

    fn line_up_at_home(&mut self, from: ShardId, ask: Ask, bytes: &[u8]) {
        match ask {
            Ask::JoinGroup {
                to,
                name,
                filter,
                credit,
                counts,
            } => {
                let share = Share {
                    filter: &filter,
                    name: &name,
                };
                let place = self.place_of_filter(&filter);
                let write = Write::JoinGroup(share, counts);
                self.append(from, place, &write, For::Member(to, credit));
            }
            Ask::LeaveGroup(leave) => self.append_leave(from, *leave),
            Ask::ReleaseGroup { name, filter } => {
                let share = Share {
                    filter: &filter,
                    name: &name,
                };
                let place = self.place_of_filter(&filter);
                self.append(from, place, &Write::ReleaseGroup(share), For::Nobody);
            }
            Ask::Attach(attach, name) => {
                let name = name.in_bytes(bytes);
                let place = self.place_of_name(name);
                self.wait(from, place, name, |name| Ask::Attach(attach, name));
            }
            Ask::Topic {
                verb,
                hash,
                name,
                answer,
                client,
            } => {
                let name = name.in_bytes(bytes);
                let place = self.place_of_name(name);
                self.wait(from, place, name, |name| Ask::Topic {
                    verb,
                    hash,
                    name,
                    answer,
                    client,
                });
            }
            Ask::AttachFilters(attach, names, each) => {
                let place = attach.partition.map_or(Place::All, |one| self.place(one));
                let names = names.in_bytes(bytes);
                self.wait(from, place, names, |names| {
                    Ask::AttachFilters(attach, names, each)
                });
            }
            Ask::LeaveFilter(filter) => {
                let filter = filter.in_bytes(bytes);
                self.wait(from, Place::All, filter, Ask::LeaveFilter);
            }
            Ask::Fence(to) if !planted::is(Fault::EarlyFence) => {
                self.wait(from, Place::All, b"", |_| Ask::Fence(to))
            }
            // They are about subscriptions that have begun, or about nothing that is written.
            ask => self.carry_out(from, ask, bytes),
        }
    }

    /// Carries out an ask that writes nothing when all before it is done; `text` is what its span is of.
    fn wait(&mut self, from: ShardId, place: Place, text: &[u8], ask: impl FnOnce(Span) -> Ask) {
        let mut bytes = Vec::new();
        let ask = ask(Span::of(&mut bytes, text));
        if self.commits.is_free(place) {
            return self.carry_out(from, ask, &bytes);
        }
        let held = size_of::<(Ask, Vec<u8>)>() + bytes.capacity();
        let waiting = Waiting {
            from,
            weight: 0,
            what: What::Ask(Box::new((ask, bytes))),
        };
        self.commits.push(place, None, false, waiting, held);
    }

    fn append(&mut self, from: ShardId, place: Place, write: &Write<'_>, who: For) {
        self.append_weighing(from, place, write, who, 0);
    }

    fn append_weighing(
        &mut self,
        from: ShardId,
        place: Place,
        write: &Write<'_>,
        who: For,
        weight: usize,
    ) {
        let record = write.encode(self.front.now.unix_s);
        self.front.work.steps.add_bytes(record.len());
        // A publish that wants an answer, an order and a claim may fail; what else failed would be lost.
        let insists = match &who {
            For::Publisher(Answer::None, ..) => {
                matches!(write, Write::Publish(message) if message.headers.qos > 0)
            }
            For::Publisher(..) | For::Order(_) | For::Claimant(..) | For::Ending(_) => false,
            For::Nobody | For::Member(..) | For::Leaver(..) | For::Holder(_) => true,
        };
        let waiting = Waiting {
            from,
            weight,
            what: What::Write(who),
        };
        self.commits.push(place, Some(record), insists, waiting, 0);
    }

    fn append_publish(&mut self, from: ShardId, ask: &Ask, bytes: &[u8]) -> usize {
        let Some((message, answer)) = message_of(ask, bytes) else {
            return 0;
        };
        let home = self.front.home.as_mut().expect("only homes are asked");
        let (settings, rules) = (&self.front.world.settings, &self.front.world.rules);
        match home.reserve(&message, settings, rules, self.front.now) {
            Ok(reserved) => {
                let weight = self.front.lanes.weight(1, bytes_of(&message));
                let who = For::Publisher(answer, message.client, reserved);
                let (place, write) = (self.place_of_name(message.name), Write::Publish(message));
                self.append_weighing(from, place, &write, who, weight);
                weight
            }
            Err(outcome) => {
                self.reply(from, answer, outcome);
                0
            }
        }
    }

    fn append_verb(
        &mut self,
        from: ShardId,
        verb: Verb,
        (hash, name): (u32, &[u8]),
        answer: Answer,
        client: Client,
    ) {
        let home = self.front.home.as_mut().expect("only homes are asked");
        let (rules, now) = (&self.front.world.rules, self.front.now);
        match home.reserve_topic(verb, (hash, name), client, rules, now) {
            Ok(reserved) => {
                let who = For::Publisher(answer, client, reserved);
                let place = self.place_of_name(name);
                self.append(from, place, &Write::Topic(verb, name), who);
            }
            Err(reached) => self.reply(from, answer, Outcome::Full(reached)),
        }
    }

    fn append_claim(
        &mut self,
        from: ShardId,
        to: ReplyTo,
        (hash, client): (u32, &[u8]),
        clean: bool,
        owner: Client,
    ) {
        if !self.may_open((hash, client), owner) {
            return self.refuse_session(from, to, ReasonCode::QUOTA_EXCEEDED);
        }
        let admission = &self.front.world.admission;
        let room = match self.sessions.has(hash, client) {
            true => Room::None,
            false if room_for_session(owner, admission) => {
                admission.count_sessions(0, 1);
                Room::Reserved
            }
            false => return self.refuse_session(from, to, ReasonCode::QUOTA_EXCEEDED),
        };
        let place = self.place_of_name(client);
        let write = Write::OpenSession(client, clean);
        self.append(from, place, &write, For::Claimant(to, owner, room));
    }

    fn append_leave(&mut self, from: ShardId, leave: LeaveGroup) {
        let home = self.front.home.as_ref().expect("only homes are asked");
        let Some((filter, name)) = home.share_of(leave.group) else {
            return;
        };
        let (filter, name): (Box<[u8]>, Box<[u8]>) = (filter.into(), name.into());
        let share = Share {
            filter: &filter,
            name: &name,
        };
        let place = self.place_of_filter(&filter);
        let write = Write::LeaveGroup(share, leave.unacked, leave.ends);
        self.append(from, place, &write, For::Leaver(leave.to, leave.group));
    }

    pub(super) fn keep_log(&mut self, name: &[u8], on: bool) {
        let home = self.front.home.as_mut().expect("only homes are asked");
        let hash = home.hash_of(name);
        home.keep_log(hash, name, on, self.front.now);
    }

    /// Something is due of the sessions of the partition at this place.
    pub(super) fn end_session_later(&mut self, at: usize) {
        self.sessions.ends_later(at, true);
        let me = self.front.lanes.me;
        let who = For::Ending(at);
        self.append(me, Place::One(at), &Write::EndSession, who);
    }
}

/// Bytes of a message in a mail.
fn bytes_of(message: &Publish<'_>) -> usize {
    let retry = message.retry.map_or(0, |retry| retry.key.len());
    let fields = message.headers.fields().into_iter();
    let fields = fields.map(|field| field.len()).sum::<usize>();
    message.name.len() + message.data.len() + fields + retry
}
