//! Hands what homes (the parts of shards that keep topics) send to the protocol of a connection: answers, news and live messages.

use alloc::boxed::Box;

use crate::base::ids::ShardId;
use crate::base::planted::{self, Fault};
use crate::base::reason::Reason;
use crate::client::codec::Codec as _;
use crate::client::delivery::{Addressee, Matched};
use crate::client::joining::awaits_page;
use crate::client::list::filters::filter_page;
use crate::client::list::live::{live_matches, live_messages};
use crate::client::list::{count_answered_page, page as list, part_named};
use crate::client::push::{Parcel, push};
use crate::client::row::{COUNTED, LIVE, MULTI, Row, State};
use crate::client::subscriptions::{flags_of, topic_of};
use crate::io::Io;
use crate::mail::{Attached, FilterPage, Frames, Outcome, Page, ReplyTo, Tell};
use crate::protocol::contract::Listed;
use crate::protocol::encode::Encoding;
use crate::protocol::front::{Clients, Feed, Front, Queues, Subscriptions};
use crate::protocol::http::history::history_page;
use crate::protocol::http::opening::Opening;
use crate::protocol::http::publish::batch::batch_fenced;
use crate::protocol::http::publish::outcomes::request_outcome;
use crate::protocol::longpoll::filtered::{open_poll, poll_matched};
use crate::protocol::longpoll::poll::{answer_poll, deliver_early, poll_page};
use crate::protocol::mqtt::closing_sessions::{late_answer, mqtt_fenced};
use crate::protocol::mqtt::codec::MqttCodec;
use crate::protocol::mqtt::connect::{session_given, session_taken};
use crate::protocol::mqtt::options::{is_plain, packets_of};
use crate::protocol::mqtt::publish::{mqtt_outcome, mqtt_released};
use crate::protocol::mqtt::shared::{group_joined, shared_message};
use crate::protocol::run::encode_once;
use crate::protocol::stream::course::{is_stream, stream_page};
use crate::protocol::stream::filtered::{
    hold_matches, open_stream, picks_of, request_match_page, stream_matched,
};
use crate::protocol::stream::interest::news_came;
use crate::protocol::stream::live::stream_live_of_part;
use crate::protocol::stream::page::not_attached;
use crate::protocol::websocket::publish::frame_outcome;

impl Encoding {
    /// The encoding in which a connection gets its messages.
    #[inline]
    pub fn of(row: &Row) -> Encoding {
        match row.listed() {
            Some(Listed::Mqtt) => packets_of(row),
            None => Encoding::of_request(row),
        }
    }
}

impl Front {
    /// Handles a home's answer or news for one connection.
    pub(crate) fn handle_reply<I: Io>(
        &mut self,
        home: ShardId,
        tell: &Tell,
        frames: &Frames,
        io: &mut I,
    ) {
        let Front {
            clients,
            subs,
            queues,
            ..
        } = self;
        match *tell {
            Tell::Live { .. } | Tell::Match { .. } | Tell::Gone { .. } | Tell::Displaced { .. } => {
                unreachable!("a tell for all members is walked over them")
            }
            Tell::Matches {
                to,
                serial,
                ref page,
            } => self.match_page(to, serial, page, frames, io),
            Tell::Page {
                topic,
                to,
                ref page,
            } => self.page(topic, to, page, frames, io),
            Tell::Outcome(to, outcome) => self.answered(to, Some(outcome), io),
            Tell::Fenced(to) => self.answered(to, None, io),
            Tell::Released(to, _) if !clients.conns.is_asked(to) => {
                late_answer(clients, &mut subs.lanes, to, None);
            }
            Tell::Released(to, is_known) => mqtt_released(clients, queues, to, is_known, io),
            Tell::GroupJoined {
                to,
                group,
                is_new_subscriber,
            } => {
                if clients.conns.is_asked(to) {
                    count_answered_page(clients, queues, to.slot);
                }
                let refused = group_joined(
                    clients,
                    &mut subs.lanes,
                    (home, to),
                    (group, is_new_subscriber),
                    io,
                );
                if let Some(part) = refused {
                    let (of, reason) = ((to.slot, part), Reason::FiltersFull);
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
                shared_message(clients, &mut subs.lanes, to, message, io);
            }
            Tell::Session(to, ref given) => {
                session_given(clients, &mut subs.lanes, queues, to, given, io);
            }
            Tell::SessionTaken(holder) => session_taken(clients, holder, io),
            Tell::Interest { to, ref news, part } => news_came(clients, queues, to, news, part, io),
        }
    }

    /// Handles a page (a bounded run of past messages), a home's answer to a subscribe request. The protocol also reports lost
    /// messages.
    fn page<I: Io>(&mut self, topic: u32, to: ReplyTo, page: &Page, frames: &Frames, io: &mut I) {
        let Front {
            clients,
            subs,
            feed,
            queues,
            ..
        } = self;
        let (slot, counted) = (to.slot, page.counted);
        if !page.is_next_page {
            subs.topics.get_mut(topic).waiting -= 1;
        }
        let mut part = None;
        if clients.conns.is_asked(to) {
            count_answered_page(clients, queues, slot);
            part = part_named(&clients.conns, slot, to.part);
        }
        let Some(part) = part.filter(|part| topic_of(&clients.conns, slot, *part) == topic) else {
            // The connection that asked has ended.
            if counted {
                subs.leave(&clients.ctx, topic);
            }
            if !page.is_next_page {
                subs.topics.close_if_unused(topic);
            }
            return;
        };
        let (of, listed) = ((slot, part), clients.conns.get(slot).listed());
        if page.attached != Attached::Yes {
            return match listed {
                Some(Listed::Mqtt) => {
                    list::not_attached::<MqttCodec, _, _>(clients, subs, queues, of, page, io);
                }
                None => not_attached(clients, subs, queues, slot, page.attached, io),
            };
        }
        if counted {
            *flags_of(&mut clients.conns, slot, part) |= COUNTED;
        }
        let (row, page) = (clients.conns.get(slot), (page, frames));
        let asked = (slot, topic, part);
        match listed {
            Some(Listed::Mqtt) => {
                let to = &feed.deliveries;
                list::topic_page::<MqttCodec, _, _>(clients, subs, to, queues, of, page, io);
            }
            None if row.waits_for_history() => {
                let forms = &mut feed.forms;
                history_page(clients, subs, forms, queues, (slot, topic), page, io);
            }
            None if is_stream(&clients.conns, slot) => {
                stream_page(clients, subs, feed, queues, asked, page, io);
            }
            None => poll_page(clients, subs, feed, queues, asked, page, io),
        }
    }

    /// Handles a home's page for a group of filters, for one partition.
    fn match_page<I: Io>(
        &mut self,
        to: ReplyTo,
        serial: u32,
        page: &FilterPage,
        frames: &Frames,
        io: &mut I,
    ) {
        let Front {
            clients,
            subs,
            feed,
            queues,
            ..
        } = self;
        if page.attached == Attached::Yes && page.at_head {
            // The page came by the same lane (ordered queue of mail) as live messages, so live connections have seen everything
            // before it.
            subs.matching.record_seen_by_all(page.partition, page.head);
        }
        if clients.conns.is_asked(to) {
            count_answered_page(clients, queues, to.slot);
        }
        if !awaits_page(&clients.conns, to, serial) {
            return;
        }
        let (of, page) = ((to.slot, serial), (page, frames));
        match clients.conns.get(to.slot).listed() {
            Some(Listed::Mqtt) => {
                let deliveries = &feed.deliveries;
                filter_page::<MqttCodec, _, _>(clients, subs, deliveries, queues, of, page, io);
            }
            None => {
                let opening = request_match_page(clients, subs, feed, queues, of, page, io);
                if let Some(opening) = opening {
                    opened(clients, subs, feed, queues, to.slot, opening, io);
                }
            }
        }
    }

    /// Handles the outcome of a connection's publish or topic request. No outcome: the answer to a fence, which a home gives after
    /// all earlier requests of the connection.
    fn answered<I: Io>(&mut self, to: ReplyTo, outcome: Option<Outcome>, io: &mut I) {
        let Front {
            clients,
            subs,
            queues,
            ..
        } = self;
        if to.is_of_will() {
            let is_unknown = matches!(outcome, Some(Outcome::Unknown));
            return clients.own.published_wills.push((to.part, is_unknown));
        }
        if !clients.conns.is_asked(to) {
            return late_answer(clients, &mut subs.lanes, to, outcome);
        }
        match (clients.conns.get(to.slot).consumer.state, outcome) {
            (State::Mqtt, Some(outcome)) => {
                mqtt_outcome(clients, queues, to.slot, to.part, outcome, io);
            }
            (State::Mqtt, None) => mqtt_fenced(clients, &mut subs.lanes, queues, to, io),
            (State::WebSocket, Some(outcome)) => {
                frame_outcome(clients, to.slot, to.part, outcome, io);
            }
            (
                State::Proxy
                | State::Http
                | State::Waiting
                | State::Poll
                | State::Sse
                | State::Draining,
                Some(outcome),
            ) => request_outcome(clients, &mut subs.lanes, queues, to, outcome, io),
            (_, None) => batch_fenced(clients, queues, to, io),
        }
    }

    /// Delivers the live messages of the current run to a connection that subscribes to their topic.
    #[inline]
    pub(crate) fn live<I: Io>(&mut self, slot: u32, topic: u32, frames: &Frames, io: &mut I) {
        let Front {
            clients,
            subs,
            feed,
            queues,
            ..
        } = self;
        let row = clients.conns.get(slot);
        if row.wants(MULTI) {
            return live_of_list(clients, subs, feed, queues, (slot, topic), frames, io);
        }
        let begun = matches!(row.consumer.state, State::WebSocket | State::Sse);
        let live = row.consumer.is(LIVE) || begun && planted::is(Fault::LiveBeforeHead);
        if !live {
            return;
        }
        match row.consumer.state {
            State::Poll => {
                let first = feed.run.records()[0];
                let message = (&first, frames);
                answer_poll(clients, subs, feed, queues, (slot, topic), message, io);
            }
            State::Mqtt if !is_plain(row.consumer.options) => {
                clients.expand(slot);
                live_messages::<MqttCodec, _, _>(clients, subs, feed, (slot, 0), frames, io);
            }
            State::WebSocket | State::Sse | State::Mqtt => {
                let encoding = Encoding::of(row);
                if encoding != Encoding::Frame {
                    encode_once(&subs.topics, feed, clients, encoding, topic, frames);
                }
                let parcel = Parcel::whole(slot, encoding, &feed.run, frames);
                push(clients, subs, &feed.run, &parcel, io);
            }
            State::Proxy | State::Http | State::Waiting | State::Draining => {
                unreachable!("a live subscription is a poll or a stream")
            }
        }
    }

    /// Delivers the messages of a run that match filters of the connection, in order, if the filters are live in the message's
    /// partition.
    pub(crate) fn live_matched<I: Io>(
        &mut self,
        slot: u32,
        all: &[Addressee],
        messages: &[Matched],
        frames: &Frames,
        io: &mut I,
    ) {
        let Front {
            clients,
            subs,
            feed,
            queues,
            ..
        } = self;
        match clients.conns.get(slot).consumer.state {
            State::Waiting | State::Poll | State::Sse | State::WebSocket => {
                let picks = picks_of(&clients.conns, slot, all, messages);
                if !picks.is_empty() {
                    let matches = (&picks[..], messages, frames);
                    matched(clients, subs, feed, queues, slot, matches, io);
                }
            }
            State::Mqtt => {
                let matches = (all, messages, frames);
                live_matches::<MqttCodec, _, _>(clients, subs, &feed.deliveries, slot, matches, io);
            }
            State::Proxy | State::Http | State::Draining => {}
        }
    }
}

/// Delivers live messages to a connection with several topics. Each message is encoded for this connection, since the position
/// names all topics.
fn live_of_list<I: Io>(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    feed: &mut Feed,
    queues: &mut Queues,
    (slot, topic): (u32, u32),
    frames: &Frames,
    io: &mut I,
) {
    let list = &clients.conns.extra_of(slot).list;
    let place = list.iter().position(|sub| sub.topic == topic);
    let part = place.expect("a member has the topic in its list");
    let is_live = list[part].flags & (COUNTED | LIVE) == COUNTED | LIVE;
    let part = part as u32;
    if !is_live {
        let first = feed.run.records()[0];
        return deliver_early(clients, slot, part, &first, frames);
    }
    let row = clients.conns.get(slot);
    match row.listed() {
        Some(Listed::Mqtt) => {
            live_messages::<MqttCodec, _, _>(clients, subs, feed, (slot, part), frames, io);
        }
        None if row.consumer.state == State::Poll => {
            let first = feed.run.records()[0];
            clients.conns.extra_mut(slot).list[part as usize].offset = first.offset;
            let message = (&first, frames);
            answer_poll(clients, subs, feed, queues, (slot, topic), message, io);
        }
        None => stream_live_of_part(clients, subs, feed, slot, (topic, part), frames, io),
    }
}

/// Delivers messages of a run that match the filters of a request or stream.
fn matched<I: Io>(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    feed: &mut Feed,
    queues: &mut Queues,
    slot: u32,
    (picks, messages, frames): (&[u32], &[Matched], &Frames),
    io: &mut I,
) {
    if clients.conns.extra(slot).own.opening.is_some() {
        return hold_matches(clients, slot, picks, messages, frames);
    }
    let matches = (picks, messages, frames);
    match clients.conns.get(slot).consumer.state == State::Poll {
        true => poll_matched(clients, subs, feed, queues, slot, matches, io),
        false => stream_matched(clients, subs, feed, slot, matches, io),
    }
}

/// Begins a response by filter, after the homes have answered for all partitions.
fn opened<I: Io>(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    feed: &mut Feed,
    queues: &mut Queues,
    slot: u32,
    opening: Box<Opening>,
    io: &mut I,
) {
    match is_stream(&clients.conns, slot) {
        true => open_stream(clients, &subs.matching, feed, queues, slot, opening, io),
        false => open_poll(clients, subs, feed, queues, slot, opening, io),
    }
}
