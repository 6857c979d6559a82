//! Answers of homes to a client's subscriptions: grants, retained messages and pages of the log; and going on with
//! subscriptions that fell behind (MQTT 5.0 sections 3.8.4 and 3.9).
//!
//! A subscription gets nothing live before the page that is marked `at_head`; retained messages come before both.

use alloc::format;

use crore_wire::mqtt::ReasonCode;

use super::give::Wants;
use super::options::qos_of;
use crate::base::planted::{self, Fault};
use crate::base::position::{Position, Since};
use crate::budget::admission::Client;
use crate::client::row::{COUNTED, LIVE, MULTI, State};
use crate::client::side::Behind;
use crate::io::Io;
use crate::mail::{Attach, Attached, Frames, Page, Values};
use crate::protocol::front::Front;
use crate::store::slab::NONE;

/// Why a home has no room for a subscription.
const NO_ROOM: &str = "no room by limits.topics_per_shard, limits.filters_per_shard, limits.topics_max or limits.topics_per_address_per_s";

impl Front {
    /// A home's answer to an attach.
    pub(crate) fn mqtt_page<I: Io>(
        &mut self,
        slot: u32,
        part: u32,
        page: &Page,
        frames: &Frames,
        io: &mut I,
    ) {
        // A subscription that stood in the row fell behind there.
        self.expand(slot);
        let Some(sub) = self.sub_mut(slot, part) else {
            return self.broken(slot);
        };
        let granted = core::mem::take(&mut sub.own.granted);
        let (options, identifiers) = (sub.own.options, [sub.own.identifier]);
        if granted != (0, 0) {
            let qos = qos_of(options);
            self.grant(slot, granted, ReasonCode::granted(qos));
            self.send_reply(slot, io);
        }
        let (first, count) = (page.first as usize, page.count as usize);
        let records = frames.pages.get(first..first + count).unwrap_or_default();
        if page.values == Values::These {
            return self.show_page((slot, part), page, records, frames, io);
        }
        let (retained, records) = records.split_at(records.len().min(page.retained as usize));
        let name = self.topic_name(slot, part);
        for record in retained {
            let wants = Wants {
                options,
                identifiers: &identifiers,
                retained: true,
                unbound: true,
                ..Wants::default()
            };
            self.give_once(slot, &wants, (&name, record, frames), io);
        }
        if page.values == Values::Wait {
            // What is behind the position of a session comes by the subscription.
            let position = self.sub(slot, part).filter(|sub| sub.epoch == page.epoch);
            let until = position.filter(|_| !page.only_retained);
            let until = until.map_or(page.head, |sub| sub.offset);
            self.begin_show(slot, part, until);
        }
        if page.only_retained {
            return;
        }
        let (mut head, mut at_head) = (page.head, page.at_head);
        if let Some(left) = self.give_all(slot, part, records, frames, io) {
            (head, at_head) = (left.previous, false);
        }
        let Some(sub) = self.sub_mut(slot, part) else {
            return self.broken(slot);
        };
        (sub.offset, sub.epoch) = (head, page.epoch);
        if at_head {
            sub.flags |= LIVE;
            let partition = self.partition_of(&name);
            self.start_live(slot, part, partition, head);
            self.collapse(slot);
        } else {
            let (epoch, offset) = (page.epoch, head);
            self.conns.extra(slot).behind.push(Behind {
                part,
                offset,
                epoch,
            });
            if !planted::is(Fault::LostWake) {
                self.resume_later(self.conns.id_of(slot));
            }
        }
    }

    /// A home has refused a subscription, or its topic was deleted.
    pub(crate) fn mqtt_not_attached<I: Io>(
        &mut self,
        slot: u32,
        part: u32,
        page: &Page,
        io: &mut I,
    ) {
        let attached = page.attached;
        self.expand(slot);
        if page.only_retained && self.end_show(slot, part) {
            // The subscription itself stands, and is told of a delete.
            return;
        }
        let Some(sub) = self.sub_mut(slot, part) else {
            return self.broken(slot);
        };
        if attached == Attached::Gone {
            // The kept messages are deleted: it goes on with those after the deletion.
            (sub.offset, sub.epoch) = (page.head, page.epoch);
            self.mqtt_state(slot).fresh.push(part);
            let partition = self.partition_of(&self.topic_name(slot, part));
            self.start_anew(slot, part, partition, page.head);
            return self.resume_later(self.conns.id_of(slot));
        }
        let reason = match attached {
            Attached::Forbidden => ReasonCode::NOT_AUTHORIZED,
            _ => ReasonCode::QUOTA_EXCEEDED,
        };
        self.refuse_part(slot, part, reason, io);
    }

    /// A home has no room for a subscription. A new one is refused. For one of the session the connection ends, since MQTT has no
    /// other way to tell the client; the session stays unchanged, so that its next connection tries again.
    pub(super) fn refuse_part<I: Io>(
        &mut self,
        slot: u32,
        part: u32,
        reason: ReasonCode,
        io: &mut I,
    ) {
        let Some(sub) = self.sub_mut(slot, part) else {
            return self.broken(slot);
        };
        let granted = core::mem::take(&mut sub.own.granted);
        if granted == (0, 0) {
            let text = self.text_of(slot, part);
            return self.end_unplaced(slot, &text, reason, io);
        }
        if reason == ReasonCode::QUOTA_EXCEEDED {
            let text = self.text_of(slot, part);
            self.refused_subscription(NO_ROOM, core::str::from_utf8(&text).unwrap_or_default());
        }
        self.grant(slot, granted, reason);
        self.leave_part(slot, part);
        self.send_reply(slot, io);
    }

    /// Ends the connection because a subscription of its session has no room.
    pub(super) fn end_unplaced<I: Io>(
        &mut self,
        slot: u32,
        text: &[u8],
        reason: ReasonCode,
        io: &mut I,
    ) {
        // Filters are UTF-8.
        let text = core::str::from_utf8(text).unwrap_or_default();
        let words = match reason {
            ReasonCode::QUOTA_EXCEEDED => {
                self.stats.turned_away += 1;
                format!("no room for the session's subscription to {text}")
            }
            _ => format!("the topic of the session's subscription to {text} was not created"),
        };
        self.mqtt_end_saying(slot, reason, &words, io);
    }

    /// Goes on with subscriptions that fell behind, as far as there is room for the messages that they have missed.
    pub(super) fn mqtt_go_on<I: Io>(&mut self, slot: u32, io: &mut I) {
        self.give_waiting(slot, io);
        self.give_owed(slot);
        let row = self.conns.get(slot);
        if row.outbox != NONE || row.extra == NONE || row.state != State::Mqtt {
            return;
        }
        let fresh = core::mem::take(&mut self.mqtt_state(slot).fresh);
        for part in fresh {
            let Some(sub) = self.sub(slot, part) else {
                return self.broken(slot);
            };
            let (topic, again) = (sub.topic, sub.flags & COUNTED != 0);
            let since = Since::At(Position {
                epoch: sub.epoch,
                offset: sub.offset,
            });
            if topic == NONE {
                continue;
            }
            self.topics.get_mut(topic).waiting += u32::from(!again);
            let to = self.conns.reply_to(slot, self.part_name(slot, part));
            let ask = self.page_of(topic, to, since, Client::NOBODY);
            self.attach(Attach { again, ..ask });
        }
        self.shows_go_on(slot);
        self.wildcards_go_on(slot);
        if self.has_room(slot) {
            self.catch_up_list(slot);
        }
    }

    /// The outbox is empty: subscriptions that fell behind read on from the log, as far as the client may be sent more messages.
    fn catch_up_list(&mut self, slot: u32) {
        if self.conns.get(slot).extra == NONE {
            return;
        }
        let behind = core::mem::take(&mut self.conns.extra(slot).behind);
        if behind.is_empty() {
            return;
        }
        for seen in behind {
            let most = self.places(slot, seen.part);
            if most == 0 {
                self.conns.extra(slot).behind.push(seen);
                continue;
            }
            self.asked_pages(slot, 1);
            self.ask_behind(slot, &seen, (self.part_name(slot, seen.part), most), false);
        }
        if self.conns.extra(slot).is_idle() && !self.conns.get(slot).wants(MULTI) {
            self.conns.drop_extra(slot);
        }
    }
}
