//! The part of the contract that concerns homes: what they tell a connection, and live messages for it.

use alloc::boxed::Box;

use crate::base::planted::{self, Fault};
use crate::client::delivery::{Addressee, Matched};
use crate::client::joining::awaits;
use crate::client::push::{Parcel, push};
use crate::client::row::{COUNTED, LIVE, MULTI, Row, State};
use crate::client::subscriptions::{flags_of, topic_of};
use crate::io::Io;
use crate::mail::{Attached, Frames, MatchPage, Outcome, Page, ReplyTo};
use crate::protocol::contract::run::encode_once;
use crate::protocol::encode::Encoding;
use crate::protocol::front::Front;
use crate::protocol::http::filtered::hold_matches;
use crate::protocol::http::opening::Opening;
use crate::protocol::http::options::{EVENTS, UPGRADE};
use crate::protocol::http::subscribe::stream::is_stream;
use crate::protocol::longpoll::poll::deliver_early;
use crate::protocol::mqtt::client::took_page_of;
use crate::protocol::mqtt::leaving::{late_answer, late_outcome};
use crate::protocol::mqtt::list::part_named;
use crate::protocol::mqtt::options::{is_plain, packets_of};

impl Encoding {
    /// The encoding in which a connection gets its messages.
    #[inline]
    pub fn of(row: &Row) -> Encoding {
        match row.state {
            State::Mqtt => packets_of(row),
            State::Proxy
            | State::Http
            | State::Waiting
            | State::Poll
            | State::Sse
            | State::WebSocket
            | State::Draining => Encoding::of_request(row),
        }
    }
}

impl Front {
    /// A home's answer to an attach.
    pub(crate) fn page<I: Io>(
        &mut self,
        topic: u32,
        to: ReplyTo,
        page: &Page,
        frames: &Frames,
        io: &mut I,
    ) {
        let counted = page.counted;
        if !page.again {
            self.subs.topics.get_mut(topic).waiting -= 1;
        }
        if self.clients.conns.is_asked(to) {
            took_page_of(&mut self.clients, &mut self.queues, to.slot);
        }
        let part = self
            .clients
            .conns
            .is_asked(to)
            .then(|| part_named(&self.clients.conns, to.slot, to.part))
            .flatten()
            .filter(|part| topic_of(&self.clients.conns, to.slot, *part) == topic);
        let Some(part) = part else {
            // The connection that asked is gone.
            if counted {
                self.subs.leave(&self.clients.ctx, topic);
            }
            if !page.again {
                self.subs.topics.close_if_unused(topic);
            }
            return;
        };
        let slot = to.slot;
        if page.attached != Attached::Yes {
            return self.page_refused(slot, part, page, io);
        }
        if counted {
            *flags_of(&mut self.clients.conns, slot, part) |= COUNTED;
        }
        self.page_came(slot, (topic, part), page, frames, io);
    }

    /// A home's answer to an attach by filter, for one of its partitions.
    pub(crate) fn match_page<I: Io>(
        &mut self,
        to: ReplyTo,
        serial: u32,
        page: &MatchPage,
        frames: &Frames,
        io: &mut I,
    ) {
        if page.attached == Attached::Yes && page.at_head {
            // The page came by the same lane as live messages: a connection that is live there already has all before it.
            self.subs.matching.all_saw(page.partition, page.head);
        }
        if self.clients.conns.is_asked(to) {
            took_page_of(&mut self.clients, &mut self.queues, to.slot);
        }
        if !awaits(&self.clients.conns, to, serial) {
            return;
        }
        let slot = to.slot;
        self.match_page_came(slot, serial, page, frames, io);
    }

    /// Another shard's answer to a publish or a verb.
    pub(crate) fn outcome<I: Io>(&mut self, to: ReplyTo, outcome: Outcome, io: &mut I) {
        if !self.clients.conns.is_asked(to) {
            return late_outcome(
                &mut self.subs.lanes,
                &mut self.meter.stats,
                &mut self.own,
                &self.clients.ctx,
                to,
                outcome,
            );
        }
        self.publish_ended(to, outcome, io);
    }

    /// One home has dealt with its part of a batch.
    pub(crate) fn fenced<I: Io>(&mut self, to: ReplyTo, io: &mut I) {
        if !self.clients.conns.is_asked(to) {
            return late_answer(
                &mut self.subs.lanes,
                &mut self.meter.stats,
                &mut self.own,
                &self.clients.ctx,
                to,
                false,
            );
        }
        self.fence_passed(to, io);
    }

    /// A home has answered an attach with a page for one of the connection's topics; the protocol also says what is lost before it.
    pub(crate) fn page_came<I: Io>(
        &mut self,
        slot: u32,
        (topic, part): (u32, u32),
        page: &Page,
        frames: &Frames,
        io: &mut I,
    ) {
        match self.clients.conns.get(slot).state {
            State::Mqtt => self.mqtt_page(slot, part, page, frames, io),
            State::Proxy
            | State::Http
            | State::Waiting
            | State::Poll
            | State::Sse
            | State::WebSocket
            | State::Draining => self.request_page(slot, (topic, part), page, frames, io),
        }
    }

    /// A page for a request or a stream.
    pub(crate) fn request_page<I: Io>(
        &mut self,
        slot: u32,
        (topic, part): (u32, u32),
        page: &Page,
        frames: &Frames,
        io: &mut I,
    ) {
        if self.clients.conns.get(slot).waits_for_history() {
            self.history_page(slot, topic, page, frames, io);
        } else if self.clients.conns.get(slot).options & (UPGRADE | EVENTS) == 0 {
            self.poll_page(slot, topic, part, page, frames, io);
        } else {
            self.stream_page(slot, topic, part, page, frames, io);
        }
    }

    /// A home has refused an attach, or the topic is gone.
    pub(crate) fn page_refused<I: Io>(&mut self, slot: u32, part: u32, page: &Page, io: &mut I) {
        match self.clients.conns.get(slot).state {
            State::Mqtt => self.mqtt_not_attached(slot, part, page, io),
            State::Proxy
            | State::Http
            | State::Waiting
            | State::Poll
            | State::Sse
            | State::WebSocket
            | State::Draining => self.not_attached(slot, page.attached, io),
        }
    }

    /// A home has answered an attach by filter.
    pub(crate) fn match_page_came<I: Io>(
        &mut self,
        slot: u32,
        serial: u32,
        page: &MatchPage,
        frames: &Frames,
        io: &mut I,
    ) {
        match self.clients.conns.get(slot).state {
            State::Mqtt => self.mqtt_match_page(slot, serial, page, frames, io),
            State::Proxy
            | State::Http
            | State::Waiting
            | State::Poll
            | State::Sse
            | State::WebSocket
            | State::Draining => self.request_match_page(slot, serial, page, frames, io),
        }
    }

    /// A home has appended a message of this connection, or refused it.
    pub(crate) fn publish_ended<I: Io>(&mut self, to: ReplyTo, outcome: Outcome, io: &mut I) {
        match self.clients.conns.get(to.slot).state {
            State::Mqtt => self.mqtt_outcome(to.slot, to.part, outcome, io),
            State::WebSocket => _ = self.frame_outcome(to.slot, to.part, outcome, io),
            State::Proxy
            | State::Http
            | State::Waiting
            | State::Poll
            | State::Sse
            | State::Draining => self.request_outcome(to, outcome, io),
        }
    }

    /// A home has done all that was asked of it before a fence.
    pub(crate) fn fence_passed<I: Io>(&mut self, to: ReplyTo, io: &mut I) {
        match self.clients.conns.get(to.slot).state {
            // Only the end of a session asks for fences.
            State::Mqtt => late_answer(
                &mut self.subs.lanes,
                &mut self.meter.stats,
                &mut self.own,
                &self.clients.ctx,
                to,
                false,
            ),
            State::Proxy
            | State::Http
            | State::Waiting
            | State::Poll
            | State::Sse
            | State::WebSocket
            | State::Draining => self.batch_fenced(to, io),
        }
    }

    /// The live messages of the run at hand, of a topic that the connection subscribes to.
    #[inline]
    pub(crate) fn live<I: Io>(&mut self, slot: u32, topic: u32, frames: &Frames, io: &mut I) {
        let row = self.clients.conns.get(slot);
        if row.wants(MULTI) {
            return self.live_of_list(slot, topic, frames, io);
        }
        let begun = matches!(row.state, State::WebSocket | State::Sse);
        let live = row.is(LIVE) || begun && planted::is(Fault::LiveBeforeHead);
        if !live {
            return;
        }
        match row.state {
            State::Poll => {
                let first = self.feed.run.records()[0];
                self.answer_poll(slot, topic, &first, frames, false, io);
            }
            State::Mqtt if !is_plain(row.options) => {
                self.clients.expand(slot);
                self.mqtt_deliver(slot, 0, frames, io);
            }
            State::WebSocket | State::Sse | State::Mqtt => {
                let encoding = Encoding::of(row);
                if encoding != Encoding::Frame {
                    encode_once(
                        &self.subs.topics,
                        &mut self.feed,
                        &mut self.clients,
                        encoding,
                        topic,
                        frames,
                    );
                }
                let parcel = Parcel::whole(slot, encoding, &self.feed.run, frames);
                push(
                    &mut self.clients,
                    &self.subs,
                    &self.feed.run,
                    &mut self.meter.stats,
                    &parcel,
                    io,
                );
            }
            State::Proxy | State::Http | State::Waiting | State::Draining => {
                unreachable!("a live subscription is a poll or a stream")
            }
        }
    }

    /// A connection with several topics: each message is encoded for it, since the position names
    /// all of them.
    fn live_of_list<I: Io>(&mut self, slot: u32, topic: u32, frames: &Frames, io: &mut I) {
        let list = &self.clients.conns.extra_of(slot).list;
        let part = list
            .iter()
            .position(|sub| sub.topic == topic)
            .expect("a member has the topic in its list");
        if list[part].flags & (COUNTED | LIVE) != COUNTED | LIVE {
            let first = self.feed.run.records()[0];
            deliver_early(&mut self.clients, slot, part as u32, &first, frames);
            return;
        }
        self.live_of_part(slot, (topic, part as u32), frames, io);
    }

    /// The same for a connection with several topics, of which this is `part`; its subscription is live.
    pub(crate) fn live_of_part<I: Io>(
        &mut self,
        slot: u32,
        (topic, part): (u32, u32),
        frames: &Frames,
        io: &mut I,
    ) {
        match self.clients.conns.get(slot).state {
            State::Mqtt => self.mqtt_deliver(slot, part, frames, io),
            State::Poll => {
                let first = self.feed.run.records()[0];
                self.clients.conns.extra_mut(slot).list[part as usize].offset = first.offset;
                self.answer_poll(slot, topic, &first, frames, false, io);
            }
            State::Proxy
            | State::Http
            | State::Waiting
            | State::Sse
            | State::WebSocket
            | State::Draining => self.stream_live_of_part(slot, (topic, part), frames, io),
        }
    }

    /// Messages of a run that match the filters of a request or stream.
    pub(crate) fn matched<I: Io>(
        &mut self,
        slot: u32,
        picks: &[u32],
        messages: &[Matched],
        frames: &Frames,
        io: &mut I,
    ) {
        if self.clients.conns.extra(slot).own.opening.is_some() {
            return hold_matches(&mut self.clients, slot, picks, messages, frames);
        }
        match self.clients.conns.get(slot).state {
            State::Poll => self.poll_matched(slot, picks, messages, frames, io),
            State::Proxy
            | State::Http
            | State::Waiting
            | State::Sse
            | State::WebSocket
            | State::Mqtt
            | State::Draining => self.stream_matched(slot, picks, messages, frames, io),
        }
    }

    /// The homes have answered a request by filter for all partitions.
    pub(crate) fn opened<I: Io>(&mut self, slot: u32, opening: Box<Opening>, io: &mut I) {
        match is_stream(&self.clients.conns, slot) {
            true => self.open_stream(slot, opening, io),
            false => self.open_poll(slot, opening, io),
        }
    }

    /// The messages of a run that match the connection's filters, in order: those of the filters that are live in its partition.
    pub(crate) fn live_matched<I: Io>(
        &mut self,
        slot: u32,
        all: &[Addressee],
        messages: &[Matched],
        frames: &Frames,
        io: &mut I,
    ) {
        match self.clients.conns.get(slot).state {
            State::Waiting | State::Poll | State::Sse | State::WebSocket => {
                self.request_matched(slot, all, messages, frames, io);
            }
            State::Mqtt => self.mqtt_matched(slot, all, messages, frames, io),
            State::Proxy | State::Http | State::Draining => {}
        }
    }
}
