//! Hands the mail of homes (the parts of shards that keep topics) to the protocols of the connections: answers, changes of interest, and live
//! messages.

use crate::base::ids::ShardId;
use crate::base::planted::{self, Fault};
use crate::base::reason::Reason;
use crate::client::codec::SubscriptionHandler as _;
use crate::client::delivery::{Addressee, FilterMessage};
use crate::client::joining::awaits_page;
use crate::client::list::{count_answered_page, index_if_current};
use crate::client::protocols::protocol_of;
use crate::client::row::{COUNTED, LIVE, SUBSCRIPTION_LIST, State};
use crate::client::subscriptions::{flags_of, subscription_count, topic_of, update_presence};
use crate::client::types::SubscriptionRef;
use crate::io::Io;
use crate::mail::{AttachOutcome, FilterPage, Frames, Outcome, Page, ReplyTo, Tell, WillOutcome};
use crate::protocol::centrifugo::emulation::take_session_commands;
use crate::protocol::centrifugo::presence::handle_centrifugo_presence;
use crate::protocol::centrifugo::subscribe::resume_after_page;
use crate::protocol::front::{AllProtocols, Connections, Front};
use crate::protocol::longpoll::poll::take_early_message;
use crate::protocol::mqtt::closing_sessions::handle_late_answer;
use crate::protocol::mqtt::codec::MqttCodec;
use crate::protocol::mqtt::connect::{end_holder, take_session_answer};
use crate::protocol::mqtt::publish::handle_mqtt_release;
use crate::protocol::mqtt::shared::{handle_group_join, handle_group_message};
use crate::protocol::pusher::presence::handle_pusher_presence;
use crate::protocol::stream::interest::handle_interest_changes;
use crate::protocol::stream::presence::handle_presence_page;
use crate::protocol::stream::stream_pages::is_stream;
use crate::store::slab::NONE;

impl Front {
    /// Handles a home's answer or news for one connection.
    pub(crate) fn handle_reply<I: Io>(
        &mut self,
        home: ShardId,
        tell: &Tell,
        frames: &Frames,
        io: &mut I,
    ) {
        let (clients, subs, _, queues) = self.parts();
        match *tell {
            Tell::Live { .. } | Tell::Match { .. } | Tell::Gone { .. } | Tell::Displaced { .. } => {
                unreachable!("the caller delivers this to each member of the topic")
            }
            Tell::Matches {
                to,
                serial,
                ref page,
            } => self.handle_match_page_answer(to, serial, page, frames, io),
            Tell::Page {
                topic,
                to,
                ref page,
            } => self.handle_page_answer(topic, to, page, frames, io),
            Tell::Outcome(to, outcome) => self.handle_outcome_or_fence(to, Some(outcome), io),
            Tell::Fenced(to) => self.handle_outcome_or_fence(to, None, io),
            Tell::Released(to, _) if !clients.conns.is_waiting_for(to) => {
                handle_late_answer(clients, &mut subs.lanes, to, None);
            }
            Tell::Released(to, is_known) => handle_mqtt_release(clients, queues, to, is_known, io),
            Tell::GroupJoined {
                to,
                group,
                is_new_subscriber,
            } => {
                if clients.conns.is_waiting_for(to) {
                    count_answered_page(clients, queues, to.slot);
                }
                let refused = handle_group_join(
                    clients,
                    &mut subs.lanes,
                    (home, to),
                    (group, is_new_subscriber),
                    io,
                );
                if let Some((sub_index, reason)) = refused {
                    let of = (to.slot, sub_index);
                    MqttCodec::refused(clients, subs, queues, of, reason, io);
                }
            }
            Tell::Shared {
                to,
                group,
                name,
                ref record,
            } => {
                let (to, message) = ((home, to, group), (name, record, frames));
                handle_group_message(clients, &mut subs.lanes, to, message, io);
            }
            Tell::Session(to, ref reply) => {
                take_session_answer(clients, &mut subs.lanes, queues, to, reply, io);
            }
            Tell::SessionTaken(holder) => end_holder(clients, holder, Reason::TakenOver, io),
            Tell::NoRoomForRecords(holder, reason) => end_holder(clients, holder, reason, io),
            Tell::Presence(to, _) if !clients.conns.is_waiting_for(to) => {}
            Tell::Presence(to, ref page) => match clients.conns.get(to.slot).consumer.state {
                State::Centrifugo => {
                    handle_centrifugo_presence(clients, &mut subs.lanes, queues, to, page, io);
                }
                State::Pusher => {
                    handle_pusher_presence(clients, &mut subs.lanes, to, page, io);
                }
                _ => handle_presence_page(clients, queues, to, page, io),
            },
            Tell::Commands(ref commands) => take_session_commands(self, home, commands, io),
            Tell::Interest {
                to,
                ref news,
                part: kind,
            } => handle_interest_changes(clients, queues, to, news, kind, io),
        }
    }

    /// Handles a page (a bounded run of past messages), a home's answer to a subscribe request. The protocol also tells
    /// the client if messages before the page are lost.
    fn handle_page_answer<I: Io>(
        &mut self,
        topic: u32,
        to: ReplyTo,
        page: &Page,
        frames: &Frames,
        io: &mut I,
    ) {
        let (clients, subs, _, queues) = self.parts();
        let (slot, counted) = (to.slot, page.counted);
        if !page.is_next_page {
            subs.topics.get_mut(topic).pending_attaches -= 1;
        }
        let mut sub_index = None;
        if clients.conns.is_waiting_for(to) {
            count_answered_page(clients, queues, slot);
            resume_after_page(clients, queues, slot);
            let state = clients.conns.get(slot).consumer.state;
            if protocol_of!(
                AllProtocols,
                state,
                handle_requested_page(self, to, (page, frames), io)
            ) {
                return;
            }
            sub_index = index_if_current(&self.clients.conns, slot, to.part);
        }
        let (clients, subs, ..) = self.parts();
        let Some(sub_index) =
            sub_index.filter(|sub_index| topic_of(&clients.conns, slot, *sub_index) == topic)
        else {
            // The connection that asked has ended.
            if counted {
                subs.detach(&clients.ctx, topic);
            }
            if !page.is_next_page {
                subs.topics.free_if_unused(topic);
            }
            return;
        };
        if counted && page.attached == AttachOutcome::Yes {
            *flags_of(&mut clients.conns, slot, sub_index) |= COUNTED;
            if clients.ctx.world.rules.has_presence() && may_be_present(&clients.conns, slot) {
                update_presence(clients, subs, slot, (topic, sub_index));
            }
        }
        let state = clients.conns.get(slot).consumer.state;
        let subscription = SubscriptionRef {
            slot,
            topic,
            sub_index,
        };
        protocol_of!(
            AllProtocols,
            state,
            handle_page(self, subscription, (page, frames), io)
        );
    }

    /// After a change of the rules, adds the subscriptions of a connection to the members of their topics, or removes them.
    pub(crate) fn review_presence(&mut self, slot: u32) {
        let (clients, subs, ..) = self.parts();
        if !may_be_present(&clients.conns, slot) {
            return;
        }
        let sub_count = subscription_count(&clients.conns, slot);
        clients.meter.work.steps.add(sub_count as usize);
        for sub_index in 0..sub_count {
            let topic = topic_of(&clients.conns, slot, sub_index);
            if topic != NONE && *flags_of(&mut clients.conns, slot, sub_index) & COUNTED != 0 {
                update_presence(clients, subs, slot, (topic, sub_index));
            }
        }
    }

    /// Handles a home's page for a group of filters, for one partition.
    fn handle_match_page_answer<I: Io>(
        &mut self,
        to: ReplyTo,
        serial: u32,
        page: &FilterPage,
        frames: &Frames,
        io: &mut I,
    ) {
        let (clients, subs, _, queues) = self.parts();
        if page.attached == AttachOutcome::Yes && page.at_head {
            // The page came by the same lane (ordered queue of mail) as live messages, so live connections have seen everything
            // before it.
            subs.matching.record_seen_by_all(page.partition, page.head);
        }
        if clients.conns.is_waiting_for(to) {
            count_answered_page(clients, queues, to.slot);
        }
        if !awaits_page(&clients.conns, to, serial) {
            return;
        }
        let state = clients.conns.get(to.slot).consumer.state;
        let (group, page) = ((to.slot, serial), (page, frames));
        protocol_of!(
            AllProtocols,
            state,
            handle_filter_page(self, group, page, io)
        );
    }

    /// Handles the outcome of a connection's publish or topic request. `None` is the answer to a fence: the
    /// home has handled all earlier requests of the connection.
    fn handle_outcome_or_fence<I: Io>(
        &mut self,
        to: ReplyTo,
        outcome: Option<Outcome>,
        io: &mut I,
    ) {
        let Front { clients, subs, .. } = self;
        if to.is_for_will() {
            let outcome = match outcome {
                Some(Outcome::Unknown) => WillOutcome::Unknown,
                Some(Outcome::NoRoom(_)) => WillOutcome::Refused,
                _ => WillOutcome::Published,
            };
            return clients
                .protocol_state
                .published_wills
                .push((to.part, outcome));
        }
        if !clients.conns.is_waiting_for(to) {
            return handle_late_answer(clients, &mut subs.lanes, to, outcome);
        }
        let state = clients.conns.get(to.slot).consumer.state;
        match outcome {
            Some(outcome) => {
                protocol_of!(AllProtocols, state, handle_outcome(self, to, outcome, io))
            }
            None => protocol_of!(AllProtocols, state, fence_passed(self, to, io)),
        }
    }

    /// Delivers the live messages of the current run to a connection that subscribes to their topic.
    #[inline]
    pub(crate) fn deliver_live_run<I: Io>(
        &mut self,
        slot: u32,
        topic: u32,
        frames: &Frames,
        io: &mut I,
    ) {
        let row = self.clients.conns.get(slot);
        let state = row.consumer.state;
        let shared = protocol_of!(AllProtocols, state, shared_encoding(row));
        let (mut sub_index, mut flags) = (0, row.consumer.flags | COUNTED);
        if row.has_option(SUBSCRIPTION_LIST) {
            let mut list = self.clients.conns.side_row(slot).list.iter();
            let position = list.position(|sub| sub.topic == topic);
            sub_index = position.expect("a member has the topic in its list");
            flags = self.clients.conns.side_row(slot).list[sub_index].flags;
        }
        let sub_index = sub_index as u32;
        let subscription = SubscriptionRef {
            slot,
            topic,
            sub_index,
        };
        let is_live = flags & (COUNTED | LIVE) == COUNTED | LIVE;
        let is_begun = matches!(state, State::WebSocket | State::Sse);
        if is_live
            || is_begun && !row.has_option(SUBSCRIPTION_LIST) && planted::is(Fault::LiveBeforeHead)
        {
            match shared {
                Some(encoding) => self.push_encoded(subscription, encoding, frames, io),
                None => protocol_of!(
                    AllProtocols,
                    state,
                    deliver_live(self, subscription, frames, io)
                ),
            }
        } else if row.has_option(SUBSCRIPTION_LIST) {
            let first = self.feed.run.records()[0];
            take_early_message(&mut self.clients, slot, sub_index, &first, frames);
        }
    }

    /// Delivers the messages of a run that match filters of the connection, in order, if the filters are live in the message's
    /// partition.
    pub(crate) fn deliver_live_matches<I: Io>(
        &mut self,
        slot: u32,
        matches: (&[Addressee], &[FilterMessage], &Frames),
        io: &mut I,
    ) {
        let state = self.clients.conns.get(slot).consumer.state;
        protocol_of!(
            AllProtocols,
            state,
            deliver_matched(self, slot, matches, io)
        );
    }
}

/// Whether the subscriptions of a connection may be members of their topics: those of a long-poll are not, since it comes and goes.
fn may_be_present(conns: &Connections, slot: u32) -> bool {
    conns.get(slot).has_changing_subscriptions() || is_stream(conns, slot)
}
