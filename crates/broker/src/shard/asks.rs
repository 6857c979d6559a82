//! Carries out asks, the requests of shards to this shard's home (the part of a shard that keeps topics). This shard sends asks to its own home, too.

use alloc::boxed::Box;

use crore_wire::mqtt::ReasonCode;

use crate::base::ids::ShardId;
use crate::base::turn_limits::PREFETCH_ROWS;
use crate::budget::stats::Transport;
use crate::client::asking::{home_context, is_past_budget, remove_excess_messages};
use crate::home::session_terms::LeftSession;
use crate::home::sessions::Claim;
use crate::home::{GroupJoin, Home, ONLY_HOMES_ARE_ASKED};
use crate::mail::lanes::WaitingAsks;
use crate::mail::message::{DedupKey, Publish, Release};
use crate::mail::orders::Report;
use crate::mail::session::stored::token_of;
use crate::mail::{Ask, Fact, Outcome, Tell, TopicRequest, WantedAnswer};
use crate::protocol::front::{Clients, Lanes, Matching, Subscriptions};
use crate::shard::Shard;
use crate::shard::sessions::{end_if_memory_is_short, refuse_session};

impl Shard {
    /// Carries out the asks of this shard to its own home. Must not be called during a delivery, because the delivery reads the frames (the
    /// buffer of the turn's mail) and a publish writes them.
    #[inline]
    pub(super) fn carry_out_own_asks(&mut self) {
        if let Some(asked) = self.front.subs.lanes.take_own_asks() {
            self.carry_out_or_queue_asks(self.front.clients.ctx.own_shard, asked);
        }
    }

    /// Carries out the asks of a shard in order, until the budget of the turn (a pass of the shard's loop) is spent. The other asks wait for later
    /// turns.
    pub(crate) fn carry_out_or_queue_asks(&mut self, from: ShardId, asked: WaitingAsks) {
        // Mail without asks needs no budget.
        let spent = !asked.asks.is_empty() && self.front.clients.meter.work.is_spent();
        let lane = &mut self.front.subs.lanes.to[from as usize];
        if !lane.waiting.is_empty() || spent {
            return lane.waiting.push_back(asked);
        }
        self.carry_out_asks(from, asked, u64::MAX);
    }

    /// Carries out waiting asks for about `steps` steps. Takes one mail of each lane (the queue of mail from one shard) after another. All lanes share the
    /// steps, since a shard with short turns sends many small mails during one turn of another shard. Returns whether asks were waiting.
    pub(crate) fn continue_asks(&mut self, steps: u64) -> bool {
        let until = self.steps() + steps;
        let mut any = false;
        while let Some((from, asked)) = self.front.subs.lanes.next_waiting_asks() {
            any = true;
            self.front.clients.meter.work.steps.add(1);
            if !self.carry_out_asks(from, asked, until) || self.steps() >= until {
                break;
            }
        }
        any
    }

    /// Carries out a shard's asks in order, until the turn's budget is spent or step `until` is reached. Puts the other asks back at the
    /// beginning of the lane. Returns whether all asks are done.
    fn carry_out_asks(&mut self, from: ShardId, mut asked: WaitingAsks, until: u64) -> bool {
        self.front.subs.lanes.read_at = asked.stamp;
        let mut done = 0;
        while !asked.asks.is_empty()
            && (done == 0 || self.steps() < until && !self.is_spent())
            && !remove_excess_messages(&mut self.home, &self.front.clients.ctx)
        {
            prefetch_asks(
                self.home.as_ref(),
                &self.front.subs.matching,
                asked.asks.as_slices().0,
                &asked.bytes,
            );
            for _ in 0..PREFETCH_ROWS {
                let Some(ask) = asked.asks.pop_front() else {
                    break;
                };
                self.front.clients.meter.work.steps.add(1);
                asked.weight -= self.handle_ask(from, ask, &asked.bytes);
                done += 1;
                if self.front.clients.meter.work.is_spent() || is_past_budget(&self.home) {
                    break;
                }
            }
        }
        self.front.subs.lanes.read_at = self.front.subs.lanes.stamp;
        let lane = &mut self.front.subs.lanes.to[from as usize];
        if !asked.asks.is_empty() {
            lane.waiting.push_front(asked);
            return false;
        }
        lane.credit_bytes += asked.weight;
        if from == self.front.clients.ctx.own_shard {
            self.front.subs.lanes.recycle_asks(asked);
        }
        true
    }

    /// Handles an ask: admits a fact (a publish, or a change of a topic), and carries out any other ask after the earlier requests that are
    /// in flight to the engine, which writes the log. Returns the credit that the sender gets back when a fact is applied later; 0 if the ask is done.
    pub(crate) fn handle_ask(&mut self, from: ShardId, ask: Ask, bytes: &[u8]) -> usize {
        match &ask {
            Ask::Publish {
                hash,
                name,
                data,
                headers,
                dedup,
                answer,
                client,
            } => {
                let message = Publish {
                    hash: *hash,
                    name: name.in_bytes(bytes),
                    data: data.in_bytes(bytes),
                    headers: headers.map(|field| field.in_bytes(bytes)),
                    dedup: dedup.map(|dedup| DedupKey {
                        key: dedup.key.in_bytes(bytes),
                        publisher: dedup.publisher,
                    }),
                    client: *client,
                };
                self.admit(from, &Fact::Publish(&message), *answer)
            }
            &Ask::Topic {
                request: TopicRequest::Change(change),
                hash,
                name,
                answer,
                client,
            } => {
                let fact = Fact::Topic {
                    change,
                    hash,
                    name: name.in_bytes(bytes),
                    client,
                };
                self.admit(from, &fact, answer)
            }
            Ask::Release { .. } => {
                self.handle_release(from, ask);
                0
            }
            Ask::SessionOpen {
                to,
                hash,
                client,
                begins: None,
                ..
            } if self.refuses_takeover(*hash, client) => {
                let lanes = &mut self.front.subs.lanes;
                refuse_session(lanes, from, *to, ReasonCode::CONNECTION_RATE_EXCEEDED);
                0
            }
            Ask::SessionOpen { .. } | Ask::SessionClose(_) | Ask::SessionRecord(_)
                if self.front.clients.ctx.world.records_sessions() =>
            {
                match self.front.clients.ctx.world.replicates_sessions() {
                    true => self.handle_replicated_request(from, ask),
                    false => self.handle_session_request(from, ask),
                }
                0
            }
            _ => {
                self.enqueue_ask(from, ask, bytes);
                0
            }
        }
    }

    /// Carries out an ask that changes nothing logged.
    pub(super) fn carry_out_unlogged(&mut self, from: ShardId, ask: Ask, bytes: &[u8]) {
        match ask {
            ask @ (Ask::SessionOpen { .. } | Ask::SessionClose(_))
                if self.must_record_again(&ask) =>
            {
                self.record_again(from, ask);
            }
            Ask::SessionOpen {
                to,
                hash,
                client,
                owner,
                recorded: Some(claim),
                ..
            } if self.front.clients.ctx.world.replicates_sessions() => {
                self.give_session(from, to, (hash, &client), claim.token, owner);
            }
            Ask::SessionOpen {
                to,
                hash,
                client,
                clean,
                expiry_s,
                owner,
                recorded,
                begins,
            } => {
                if begins.is_some() {
                    self.sessions.remove_claim_in_flight(&client);
                }
                let claim = Claim {
                    shard: from,
                    to,
                    clean,
                    expiry_s,
                    owner,
                    recorded,
                };
                self.open_session(claim, (hash, &client));
            }
            // The record of the connection's end has closed the session already.
            Ask::SessionClose(_) if self.front.clients.ctx.world.replicates_sessions() => {}
            Ask::SessionClose(session) if self.sessions.claim_to(session.id).is_some() => {
                // Another connection has claimed the session. If the session ends, the record of that claim has ended it in the log.
                let ended = session.kept.as_ref().map_or(session.token, |_| 0);
                self.close_session(*session);
                self.release_tokens([ended, 0]);
            }
            Ask::SessionClose(mut session) => {
                let front = &mut self.front;
                let (clients, lanes) = (&mut front.clients, &mut front.subs.lanes);
                let was_kept = session.kept.is_some();
                let kept = session.kept.as_ref();
                let token = kept.map_or(session.token, |kept| token_of(&kept.state.bytes));
                end_if_memory_is_short(clients, lanes, &front.census, &self.sessions, &mut session);
                let records_sessions = self.front.clients.ctx.world.records_sessions();
                let name: Option<Box<[u8]>> = match was_kept && records_sessions {
                    true => self.sessions.name_of(session.id).map(Box::from),
                    false => None,
                };
                let left_session = LeftSession {
                    token,
                    has_ended: session.kept.is_none(),
                };
                // The end of a session with a will is recorded after the will was published.
                let ends = left_session.has_ended && session.will.is_none();
                self.close_session(*session);
                match name {
                    Some(name) if ends => self.record_state_or_end(&name, Some(left_session), 0),
                    None if ends => self.release_tokens([left_session.token, 0]),
                    _ => {}
                }
            }
            Ask::SessionRecord(session) => {
                (self.front.subs.lanes).tell(from, Tell::Fenced(session.to));
            }
            Ask::Release { to: None, .. } => {}
            Ask::Release {
                key,
                claim,
                to: Some(to),
                ..
            } => {
                let home = self.home.as_ref().expect(ONLY_HOMES_ARE_ASKED);
                match home.is_release_outdated(Release { key, claim }) {
                    // The release has a record in each of several partitions, and one of them was void.
                    true => self.refuse_session_ask(from, ask, ReasonCode::SERVER_UNAVAILABLE),
                    false => (self.front.subs.lanes).tell(from, Tell::Released(to, true)),
                }
            }
            Ask::DeclareWriterDead(writer) => {
                let cluster = self.cluster.iter_mut();
                cluster.for_each(|cluster| cluster.add_death(writer));
            }
            ask => {
                let home = self.home.as_mut().expect(ONLY_HOMES_ARE_ASKED);
                let (clients, subs) = (&mut self.front.clients, &mut self.front.subs);
                carry_out_at_home(home, clients, subs, from, &ask, bytes);
                if clients.ctx.world.records_sessions() {
                    self.record_group_positions(false);
                }
            }
        }
    }
}

/// Carries out an ask to the home that changes nothing logged.
fn carry_out_at_home(
    home: &mut Home,
    clients: &mut Clients,
    subs: &mut Subscriptions,
    from: ShardId,
    ask: &Ask,
    bytes: &[u8],
) {
    let (rules, now) = (&clients.ctx.world.rules, clients.ctx.now);
    let lanes = &mut subs.lanes;
    match ask {
        Ask::Attach(attach, name) => {
            let name = name.in_bytes(bytes);
            let mut context = home_context(subs, &clients.ctx);
            home.attach(from, attach, name, None, &mut context);
        }
        Ask::AttachFilters(attach, names, each) => {
            let mut context = home_context(subs, &clients.ctx);
            let names = names.in_bytes(bytes);
            home.attach_filters(from, attach, names, each.as_deref(), &mut context);
        }
        Ask::LeaveFilter(filter) => home
            .subscriptions
            .remove_filter(from, filter.in_bytes(bytes)),
        &Ask::Leave {
            hash,
            topic,
            serial,
        } => home.remove_subscriber(from, hash, topic, serial, now),
        Ask::Topic {
            hash, name, answer, ..
        } => {
            let name = name.in_bytes(bytes);
            let outcome = home.answer_topic_info(*hash, name, rules, now);
            send_outcome(clients, lanes, from, *answer, outcome);
        }
        Ask::CountQosSubscription { hash, name, begins } => {
            home.count_qos_subscription(*hash, name.in_bytes(bytes), *begins, now);
        }
        Ask::JoinGroup {
            to,
            name,
            filter,
            credit,
            is_new_subscriber,
            party,
            recorded_for,
        } => {
            let join = GroupJoin {
                filter,
                name,
                member: (from, *to),
                credit: *credit,
                party: *party,
                is_new: *is_new_subscriber,
                recorded_for: *recorded_for,
            };
            home.join_group(&join, lanes, now);
        }
        &Ask::GroupCredit {
            group,
            to,
            partition,
            offset,
        } => home.return_group_credit(from, group, to, (partition, offset)),
        Ask::LeaveGroup(leave) => home.leave_group(from, leave),
        Ask::ReleaseGroup { name, filter } => home.subscriptions.remove_group_session(filter, name),
        Ask::Publish { .. }
        | Ask::SessionOpen { .. }
        | Ask::SessionClose(_)
        | Ask::SessionRecord(_)
        | Ask::Release { .. }
        | Ask::DeclareWriterDead(_) => {
            unreachable!("`handle_ask` and `carry_out_unlogged` handle it")
        }
        Ask::Fence(to) => lanes.tell(from, Tell::Fenced(*to)),
        Ask::Follow { to, party, filter } => {
            let filter = filter.in_bytes(bytes);
            home.follow(from, *to, *party, filter);
        }
        Ask::NextInterestPage(to, party) => {
            home.continue_snapshot(from, *to, *party);
        }
        Ask::Unfollow(to) => home.remove_follower(from, *to),
        Ask::Presence(ask, text) => {
            home.handle_presence_ask(from, *ask, text.in_bytes(bytes), (rules, now), lanes);
        }
    }
}

/// Prefetches the memory that the publishes among the next [`PREFETCH_ROWS`] asks will touch.
fn prefetch_asks(home: Option<&Home>, matching: &Matching, asks: &[Ask], bytes: &[u8]) {
    let large = |home: &&Home| home.is_large(matching);
    let Some(home) = home.filter(large) else {
        return;
    };
    let mut topics = [(0, &b""[..]); PREFETCH_ROWS];
    let mut count = 0;
    for ask in asks.iter().take(PREFETCH_ROWS) {
        if let Ask::Publish { hash, name, .. } = ask {
            topics[count] = (*hash, name.in_bytes(bytes));
            count += 1;
        }
    }
    if count > 1 {
        home.prefetch(&topics[..count], matching);
    }
}

/// Sends the outcome of a request to the connection or the operator that waits for it.
pub(super) fn send_outcome(
    clients: &mut Clients,
    lanes: &mut Lanes,
    from: ShardId,
    answer: WantedAnswer,
    outcome: Outcome,
) {
    match answer {
        WantedAnswer::OutcomeAndInfo(to) => lanes.tell(from, Tell::Outcome(to, outcome)),
        WantedAnswer::Failure(to) if !matches!(outcome, Outcome::Done(_)) => {
            lanes.tell(from, Tell::Outcome(to, outcome));
        }
        WantedAnswer::Report(ticket) => lanes.reports.push((ticket, Report::Outcome(outcome))),
        // No client waits for this outcome, so a refusal is only counted. Only MQTT has publishes without an answer, so it counts as MQTT, even over
        // WebSocket.
        WantedAnswer::None if let Outcome::NoRoom(reason) = outcome => {
            clients.meter.stats.dropped += 1;
            clients.meter.stats.refusals.add(reason, Transport::Mqtt);
        }
        WantedAnswer::Failure(_) | WantedAnswer::None => {}
    }
}
