//! The latest values of a topic whose rule keeps only those, shown to a subscription of the topic's name as its retained state (MQTT 5.0
//! section 3.8.4).
//!
//! The subscription itself begins with the next message, so subscriptions that overlap with it know nothing of this: the values come beside
//! it in pages, each asked for when the client takes more, one topic after the other. A value that is published meanwhile comes by the
//! subscription and not once more from here. Deliberately elsewhere: a single retained message (`page.rs`), and the values of topics
//! that a filter matches (`filters.rs`).

use super::give::{Offered, Wants};
use super::reading::Show;
use crate::base::position::{Position, Since};
use crate::budget::admission::Client;
use crate::client::outbox::Packets;
use crate::io::Io;
use crate::mail::{Attach, Frames, Page, Record};
use crate::protocol::front::Front;

impl Front {
    /// A subscription is to be shown the latest values of its topic up to this offset, all of them.
    pub(super) fn begin_show(&mut self, slot: u32, part: u32, until: u64) {
        let shows = &mut self.mqtt_state(slot).shows;
        match shows.iter_mut().find(|show| show.part == part) {
            Some(show) => (show.offset, show.until, show.anew) = (0, until, show.asked),
            None => shows.push(Show {
                part,
                offset: 0,
                until,
                asked: false,
                anew: false,
            }),
        }
        self.resume_later(self.conns.id_of(slot));
    }

    /// Whether a subscription was not shown all values yet.
    pub(super) fn is_shown_values(&self, slot: u32, part: u32) -> bool {
        let shows = self.mqtt(slot).map_or(&[][..], |mqtt| &mqtt.shows);
        shows.iter().any(|show| show.part == part)
    }

    /// Nothing more is shown to a subscription; says whether there was something.
    pub(super) fn end_show(&mut self, slot: u32, part: u32) -> bool {
        if !self.is_shown_values(slot, part) {
            return false;
        }
        self.mqtt_state(slot).shows.retain(|show| show.part != part);
        // The next one may be asked for.
        self.resume_later(self.conns.id_of(slot));
        true
    }

    /// Asks for the next values of the topic whose turn it is, if the client takes some.
    pub(super) fn shows_go_on(&mut self, slot: u32) {
        let show = self.mqtt(slot).and_then(|mqtt| mqtt.shows.first());
        let Some((part, offset)) = show
            .filter(|show| !show.asked)
            .map(|show| (show.part, show.offset))
        else {
            return;
        };
        let most = self.places(slot, part);
        let Some(sub) = self.sub(slot, part) else {
            return self.broken(slot);
        };
        let (topic, epoch) = (sub.topic, sub.epoch);
        if most == 0 || most < u32::MAX && !self.has_place(slot) {
            return;
        }
        let since = match offset {
            0 => Since::Oldest,
            offset => Since::At(Position { epoch, offset }),
        };
        let to = self.conns.reply_to(slot, self.part_name(slot, part));
        let ask = self.page_of(topic, to, since, Client::NOBODY);
        self.attach(Attach {
            most,
            again: true,
            retained: true,
            ..ask
        });
        if let Some(show) = self.mqtt_state(slot).shows.first_mut() {
            show.asked = true;
        }
    }

    /// A page of values came.
    pub(super) fn show_page<I: Io>(
        &mut self,
        (slot, part): (u32, u32),
        page: &Page,
        records: &[Record],
        frames: &Frames,
        io: &mut I,
    ) {
        let shows = self.mqtt(slot).map_or(&[][..], |mqtt| &mqtt.shows);
        let asked = |show: &&Show| show.part == part && show.asked;
        let Some((mut offset, until)) = shows
            .iter()
            .find(asked)
            .map(|show| (show.offset, show.until))
        else {
            return;
        };
        let Some((options, identifier)) = self
            .sub(slot, part)
            .map(|sub| (sub.own.options, sub.own.identifier))
        else {
            return self.broken(slot);
        };
        let name = self.topic_name(slot, part);
        let wants = Wants {
            options,
            identifiers: &[identifier],
            retained: true,
            ..Wants::default()
        };
        let mut out = Packets::default();
        let mut is_full = false;
        for record in records.iter().filter(|record| record.offset <= until) {
            let message = (&name[..], record, frames);
            if let Offered::Full = self.offer_packet(slot, &wants, message, &mut out) {
                is_full = true;
                break;
            }
            offset = record.offset;
        }
        let ends = !is_full && (page.at_head || page.head >= until);
        let shows = &mut self.mqtt_state(slot).shows;
        if let Some(at) = shows.iter().position(|show| show.part == part) {
            let show = &mut shows[at];
            show.asked = false;
            match (core::mem::take(&mut show.anew), ends) {
                (true, _) => {}
                (false, true) => drop(shows.remove(at)),
                (false, false) => show.offset = offset,
            }
        }
        if !out.bytes.is_empty() {
            self.put_messages(slot, &out.bytes, &out.ends, io);
        }
        match self.mqtt(slot).is_some_and(|mqtt| !mqtt.shows.is_empty()) {
            true => self.resume_later(self.conns.id_of(slot)),
            false => self.collapse(slot),
        }
    }
}
