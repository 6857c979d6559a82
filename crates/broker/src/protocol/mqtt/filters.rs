//! Subscriptions with wildcards (MQTT 5.0 section 4.7.1). Each is a group of its own among the connection's filters
//! (see `matching.rs`), with a position for each partition; a message that several live subscriptions match is sent once, with
//! the highest QoS of them and all their identifiers. A subscription that has fallen behind reads its messages
//! from the log; `overlap.rs` decides which one sends a message then.

use alloc::vec::Vec;

use crore_wire::mqtt::{Qos, ReasonCode, RetainHandling};

use super::give::{Offered, Wants};
use super::options::{qos, qos_of};
use super::state::Subscribed;
use super::subscribe::Wanted;
use crate::base::ids::PartitionId;
use crate::base::position::{Position, Since};
use crate::client::delivery::{Addressee, Matched};
use crate::client::outbox::Packets;
use crate::client::row::LIVE;
use crate::filters::matching::{OVER, Part};
use crate::io::Io;
use crate::mail::{Attached, Frames, MatchPage};
use crate::protocol::front::Front;
use crate::protocol::front::Sub;
use crate::store::slab::NONE;

impl Front {
    /// Subscribes to a filter. `since` has a position for each partition, or is empty.
    ///
    /// # Errors
    /// When there is no room for it.
    pub(super) fn join_wildcard(
        &mut self,
        slot: u32,
        wanted: &Wanted<'_>,
        since: &[Since],
    ) -> Result<(), ReasonCode> {
        let sub = Sub {
            topic: NONE,
            own: Subscribed {
                options: wanted.options.bits(),
                identifier: wanted.identifier,
                granted: wanted.granted,
                filter: u32::MAX,
                ..Subscribed::default()
            },
            ..Sub::default()
        };
        let part = self.add_sub(slot, sub);
        let first = if wanted.retained {
            Since::Default
        } else {
            Since::Live
        };
        let partitions = usize::from(self.world.partitions);
        let live = alloc::vec![first; partitions];
        let since = if since.len() == partitions {
            since
        } else {
            &live[..]
        };
        match self.join_filters(slot, &[(wanted.filter, part)], since, false) {
            Ok(serial) => {
                self.asked_pages(slot, self.world.partitions.into());
                if let Some(sub) = self.sub_mut(slot, part) {
                    sub.own.filter = serial + 1;
                }
                if wanted.options.max_qos != Qos::AtMostOnce {
                    self.keep_log_of(0, wanted.filter, true);
                    self.mqtt_state(slot).needs_told = true;
                }
                Ok(())
            }
            Err(reason) => {
                if let Some(sub) = self.sub_mut(slot, part) {
                    sub.own.filter = 0;
                }
                let filter = core::str::from_utf8(wanted.filter).unwrap_or_default();
                self.refused_subscription(reason, filter);
                Err(ReasonCode::QUOTA_EXCEEDED)
            }
        }
    }

    /// The text of a subscription with wildcards.
    pub(super) fn wildcard_of(&self, slot: u32, part: u32) -> Option<Vec<u8>> {
        let serial = self.serial_of(slot, part)?;
        let (_, found) = self.filtered(slot)?.parts_of(serial).next()?;
        Some(self.matching.name(found.row))
    }

    /// The serial of the group of a subscription with wildcards.
    fn serial_of(&self, slot: u32, part: u32) -> Option<u32> {
        self.sub(slot, part)?.own.filter.checked_sub(1)
    }

    /// The place in the list of a subscription with wildcards.
    pub(super) fn part_of_wildcard(&self, slot: u32, filter: &[u8]) -> Option<u32> {
        let row = self.matching.find(filter)?;
        let mut parts = self.filtered(slot)?.parts();
        parts
            .find(|(_, part)| part.row == row)
            .map(|(_, part)| part.id)
    }

    /// The positions of a subscription with wildcards by partition; empty until every home has answered for all of them.
    pub(super) fn wildcard_seen(&self, slot: u32, serial: u32) -> Vec<u64> {
        let Some(group) = self.filtered(slot).and_then(|all| all.group(serial)) else {
            return Vec::new();
        };
        let at = |partition: PartitionId| match group.positions().get(usize::from(partition)) {
            None => Some(self.seen_by(slot, partition)),
            Some(at) if at.live => Some(at.offset.max(self.seen_by(slot, partition))),
            Some(at) if at.new => None,
            Some(at) => Some(at.offset),
        };
        let partitions = 0..self.world.partitions;
        partitions
            .map(at)
            .collect::<Option<_>>()
            .unwrap_or_default()
    }

    /// A home's page for a subscription with wildcards.
    pub(crate) fn mqtt_match_page<I: Io>(
        &mut self,
        slot: u32,
        serial: u32,
        page: &MatchPage,
        frames: &Frames,
        io: &mut I,
    ) {
        let Some(part) = self.part_of_group(slot, serial) else {
            return;
        };
        let shows = self.serial_of(slot, part) != Some(serial);
        if page.attached != Attached::Yes {
            if shows {
                return self.leave_group(slot, serial);
            }
            return self.refuse_part(slot, part, ReasonCode::QUOTA_EXCEEDED, io);
        }
        let mut out = Packets::default();
        let mut full = None;
        let before = self.wildcard_at(slot, serial, page.partition);
        let mut seen = before;
        for (name, record) in Self::records(page, frames) {
            let retained = record.offset <= page.from;
            if shows && !retained {
                break;
            }
            let Some(sub) = self.sub(slot, part) else {
                return self.broken(slot);
            };
            let identifiers = [sub.own.identifier];
            let wants = Wants {
                options: sub.own.options,
                identifiers: &identifiers,
                retained,
                ..Wants::default()
            };
            let message = (frames.name(name), record, frames);
            let offered = match retained {
                true => self.offer_packet(slot, &wants, message, &mut out),
                false => self.give_in_turn(slot, part, &wants, message, &mut out),
            };
            if let Offered::Full = offered {
                full = Some(seen);
                break;
            }
            seen = record.offset;
        }
        if !out.bytes.is_empty() {
            self.put_messages(slot, &out.bytes, &out.ends, io);
        }
        let (offset, live) = full.map_or((page.head, page.at_head), |offset| (offset, false));
        if shows {
            let ends = full.is_none() && (live || offset >= page.from);
            return self.showed(slot, serial, page, offset, ends);
        }
        self.took_page(slot, serial, page, offset, live);
        if live {
            self.start_live(slot, part, page.partition, offset);
        }
        let group = self.filtered(slot).and_then(|all| all.group(serial));
        if group.is_some_and(|group| group.positions().iter().all(|at| !at.asked)) {
            let granted = qos_of(self.sub(slot, part).map_or(0, |sub| sub.own.options));
            self.grant_pending(slot, part, ReasonCode::granted(granted));
            self.send_reply(slot, io);
        }
        self.goes_on_behind(slot);
    }

    /// A page was taken: the next one is asked for, if there is one to ask for.
    fn goes_on_behind(&mut self, slot: u32) {
        if self.filtered(slot).is_some_and(|all| all.is_behind()) {
            self.resume_later(self.conns.id_of(slot));
        }
    }

    /// A page of a group that only shows retained messages again was taken up to `offset`. The group is never live: live
    /// messages come by the subscription's own group. It ends when all of every partition were shown.
    fn showed(&mut self, slot: u32, serial: u32, page: &MatchPage, offset: u64, ends: bool) {
        self.took_page(slot, serial, page, offset, false);
        if !ends {
            return self.resume_later(self.conns.id_of(slot));
        }
        let Some(filtered) = self.filtered_mut(slot) else {
            return self.broken(slot);
        };
        if let Some(at) = filtered.at_mut(serial, page.partition) {
            (at.offset, at.asked) = (OVER, true);
        }
        let group = filtered.group(serial);
        if group.is_some_and(|group| group.positions().iter().all(|at| at.offset == OVER)) {
            self.leave_group(slot, serial);
        }
        self.goes_on_behind(slot);
    }

    /// Asks for a subscription's retained messages once more, beside its other messages.
    fn show_again(&mut self, slot: u32, part: u32, filter: &[u8]) {
        self.leave_shown(slot, part);
        let since = alloc::vec![Since::Default; usize::from(self.world.partitions)];
        // If there is no room for that, the subscription goes on unchanged.
        if self
            .join_filters(slot, &[(filter, part)], &since, false)
            .is_ok()
        {
            self.asked_pages(slot, self.world.partitions.into());
        }
    }

    /// Stops showing a subscription's retained messages again.
    fn leave_shown(&mut self, slot: u32, part: u32) {
        let own = self.serial_of(slot, part);
        let Some(filtered) = self.filtered(slot) else {
            return;
        };
        let is = |it: &Part| it.id == part && Some(it.group) != own;
        let shown = filtered
            .parts()
            .find_map(|(_, it)| is(it).then_some(it.group));
        if let Some(serial) = shown {
            self.leave_group(slot, serial);
        }
    }

    /// Ends a subscription with wildcards.
    pub(super) fn leave_wildcard(&mut self, slot: u32, part: u32, serial: u32) {
        self.leave_group(slot, serial);
        self.leave_shown(slot, part);
    }

    fn wildcard_at(&self, slot: u32, serial: u32, partition: PartitionId) -> u64 {
        let group = self.filtered(slot).and_then(|all| all.group(serial));
        let at = group.and_then(|group| group.positions().get(usize::from(partition)));
        at.map_or(0, |at| at.offset)
    }

    /// The place in the list of the subscription that this group belongs to.
    fn part_of_group(&self, slot: u32, serial: u32) -> Option<u32> {
        let (_, part) = self.filtered(slot)?.parts_of(serial).next()?;
        Some(part.id)
    }

    fn grant_pending(&mut self, slot: u32, part: u32, reason: ReasonCode) {
        let sub = self.sub_mut(slot, part);
        let granted = sub.map_or((0, 0), |sub| core::mem::take(&mut sub.own.granted));
        if granted != (0, 0) {
            self.grant(slot, granted, reason);
        }
    }

    /// Live messages of a run for one client: each once, whatever number of its subscriptions match.
    pub(crate) fn mqtt_matched<I: Io>(
        &mut self,
        slot: u32,
        all: &[Addressee],
        messages: &[Matched],
        frames: &Frames,
        io: &mut I,
    ) {
        let mut out = Packets::default();
        for due in all.chunk_by(|a, b| a.message == b.message) {
            let message = due
                .first()
                .and_then(|due| messages.get(due.message as usize));
            let Some(message) = message else {
                return self.broken(slot);
            };
            self.mqtt_matched_one(slot, due, message, frames, &mut out);
        }
        if !out.bytes.is_empty() {
            self.put_messages(slot, &out.bytes, &out.ends, io);
        }
    }

    fn mqtt_matched_one(
        &mut self,
        slot: u32,
        due: &[Addressee],
        message: &Matched,
        frames: &Frames,
        out: &mut Packets,
    ) {
        let Some(filtered) = self.filtered(slot) else {
            return;
        };
        let live = due
            .iter()
            .filter(|due| filtered.is_live(due.part, message.partition));
        let mut parts: Vec<u32> = live
            .filter_map(|due| filtered.part(due.part).map(|part| part.id))
            .collect();
        let list = self.list_of(slot);
        // Most messages have no exact subscriber here, and a list may be long. An exact subscription that leaves its messages to a
        // filter gets this one here even if the filter fell behind with an earlier message of the run.
        let is = |sub: &Sub| {
            sub.topic == message.topic
                && sub.flags & LIVE != 0
                && sub.offset < message.record.offset
        };
        let exact = match message.topic {
            NONE => None,
            _ => list.iter().position(is).map(|part| part as u32),
        };
        parts.extend(exact);
        if parts.is_empty() {
            return;
        }
        let (name, record) = (frames.name(message.name), &message.record);
        let (mut all, mut waiting) = (parts.clone(), Vec::new());
        if let Some(sharers) = self.sharers(slot, (name, record, frames)) {
            let shares = |part: &u32| sharers.parts.contains(part);
            if parts.contains(&sharers.lead) {
                let others = sharers.parts.iter().filter(|part| !parts.contains(part));
                all.extend(others);
            } else {
                (waiting, parts) = parts.into_iter().partition(shares);
                all.clone_from(&parts);
            }
        }
        let mut identifiers = Vec::new();
        let options = self.wants_of(slot, &all, record, frames, &mut identifiers);
        let wants = Wants {
            options: options.unwrap_or_default(),
            identifiers: &identifiers,
            ..Wants::default()
        };
        let full = options.is_some()
            && matches!(
                self.offer_packet(slot, &wants, (name, record, frames), out),
                Offered::Full
            );
        if let Some(part) = exact {
            let epoch = self.world.epoch;
            if let Some(sub) = self.sub_mut(slot, part) {
                (sub.offset, sub.epoch) = (record.offset, epoch);
            }
        }
        if full {
            waiting.append(&mut parts);
        }
        if waiting.is_empty() {
            return;
        }
        self.start_all(slot, message.partition, record.offset);
        for part in waiting {
            self.fell_behind_with(slot, part, message);
        }
    }

    /// A subscription that is live cannot take this message: it reads on from its log.
    fn fell_behind_with(&mut self, slot: u32, part: u32, message: &Matched) {
        let record = &message.record;
        let filter = self.sub(slot, part).map_or(0, |sub| sub.own.filter);
        match filter.checked_sub(1) {
            Some(serial) => {
                self.fall_back_in(slot, serial, message.partition, record.offset - 1);
            }
            None => self.fall_back(slot, part, record.previous),
        }
    }

    /// Asks homes for the messages that subscriptions with wildcards have missed, as far as there is room.
    pub(super) fn wildcards_go_on(&mut self, slot: u32) {
        let Some(filtered) = self.filtered(slot).filter(|all| all.is_behind()) else {
            return;
        };
        let bound = !self.has_place(slot);
        let list = self.list_of(slot);
        let mut behind = Vec::new();
        for group in filtered.groups() {
            let mut parts = filtered.parts_of(group.serial);
            // QoS 0 is never held back by messages under way.
            let held = |(_, part): (u32, &Part)| {
                bound
                    && list
                        .get(part.id as usize)
                        .is_some_and(|sub| qos(sub.own.options) > 0)
            };
            if !parts.any(held) {
                behind.push(group.serial);
            }
        }
        for serial in behind {
            let filtered = self.filtered_mut(slot);
            if let Some(partition) = filtered.and_then(|all| all.next_behind(serial)) {
                let asked = self.ask_matches(slot, serial, partition, false);
                self.asked_pages(slot, asked.into());
            }
        }
    }

    /// A subscription with wildcards takes new options.
    pub(super) fn resubscribe_wildcard(
        &mut self,
        slot: u32,
        part: u32,
        wanted: &Wanted<'_>,
    ) -> Result<(), ReasonCode> {
        let Some(sub) = self.sub_mut(slot, part) else {
            return Err(ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR);
        };
        let former = qos(sub.own.options);
        (sub.own.options, sub.own.identifier) = (wanted.options.bits(), wanted.identifier);
        let needs_log = wanted.options.max_qos != Qos::AtMostOnce;
        if (former > 0) != needs_log {
            self.keep_log_of(0, wanted.filter, needs_log);
            self.mqtt_state(slot).needs_told |= needs_log;
        }
        self.grant(
            slot,
            wanted.granted,
            ReasonCode::granted(wanted.options.max_qos),
        );
        if wanted.options.retain_handling == RetainHandling::Send {
            // [MQTT-3.8.4-3]; live messages go on.
            self.show_again(slot, part, wanted.filter);
        }
        Ok(())
    }

    /// Where a restored subscription with wildcards goes on.
    pub(super) fn since_all(epoch: u32, seen: &[u64]) -> Vec<Since> {
        let at = |offset: &u64| {
            Since::At(Position {
                epoch,
                offset: *offset,
            })
        };
        seen.iter().map(at).collect()
    }
}
