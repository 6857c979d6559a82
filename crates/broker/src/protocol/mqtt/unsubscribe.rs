//! How subscriptions of the client end (MQTT 5.0 sections 3.10 and 3.11): by UNSUBSCRIBE, or because the client goes.

use alloc::vec::Vec;

use crore_wire::mqtt::{Properties, ReasonCode, Unsubscribe, encode};

use super::options::qos;
use crate::client::row::{COUNTED, MULTI};
use crate::protocol::front::Front;
use crate::protocol::front::Sub;
use crate::store::slab::NONE;

impl Front {
    /// An UNSUBSCRIBE, which is answered at once.
    pub(super) fn client_unsubscribed(
        &mut self,
        slot: u32,
        unsubscribe: &Unsubscribe<'_>,
    ) -> Result<(), ReasonCode> {
        self.has_room_for_codes(slot, unsubscribe.filters.iter().count())?;
        self.expand(slot);
        let mut reasons = Vec::new();
        for filter in unsubscribe.filters.iter() {
            let listed = self.conns.extra_of(slot).list.len();
            self.work.steps.add(1 + listed / 8);
            let part = self.part_of(slot, filter.as_bytes());
            reasons.push(match part {
                Some(part) => {
                    self.leave_part(slot, part);
                    ReasonCode::SUCCESS
                }
                None => ReasonCode::NO_SUBSCRIPTION_EXISTED,
            });
        }
        let (version, id) = (self.version(slot), unsubscribe.packet_id);
        let reasons = reasons.iter().copied();
        self.write(slot, |out| {
            encode::unsuback(out, version, id, &Properties::NONE, reasons)
        });
        Ok(())
    }

    /// Takes one subscription out of the list; its place stays.
    pub(super) fn leave_part(&mut self, slot: u32, part: u32) {
        self.part_group(slot, part, true);
        self.forget_starts(slot, part);
        self.end_show(slot, part);
        let Some(sub) = self.sub(slot, part) else {
            return self.broken(slot);
        };
        if sub.own.group.is_none() && qos(sub.own.options) > 0 {
            self.release_log(slot, part);
        }
        let extra = self.conns.extra(slot);
        extra.behind.retain(|behind| behind.part != part);
        if let Some(mqtt) = &mut extra.own.mqtt {
            mqtt.fresh.retain(|other| *other != part);
        }
        let Some(sub) = extra.list.get_mut(part as usize) else {
            return;
        };
        let shared_bytes = sub.own.group.take().map(|shared| shared.bytes());
        let grouped = shared_bytes.is_some();
        extra.shared_bytes -= shared_bytes.unwrap_or(0);
        let (topic, place, counted) = (sub.topic, sub.place, sub.flags & COUNTED != 0);
        let (granted, filter) = (sub.own.granted, core::mem::take(&mut sub.own.filter));
        (sub.topic, sub.own.granted, sub.flags) = (NONE, (0, 0), 0);
        if filter != 0 {
            self.leave_wildcard(slot, part, filter - 1);
        }
        if granted != (0, 0) {
            self.grant(slot, granted, ReasonCode::UNSPECIFIED_ERROR);
        }
        if grouped || filter != 0 {
            return;
        }
        self.part_one(topic, place, counted);
    }

    /// Removes subscriptions that were never granted from the session: their home might hear of them only after another home
    /// has ended the session.
    pub(super) fn leave_unanswered(&mut self, slot: u32) {
        let row = self.conns.get(slot);
        if !row.wants(MULTI) {
            return;
        }
        let new = !self.world.epoch;
        let waits = |sub: &Sub| {
            sub.topic != NONE
                && sub.epoch == new
                && sub.flags & COUNTED == 0
                && qos(sub.own.options) > 0
        };
        let list = self.list_of(slot);
        let parts = (0..list.len()).filter(|part| waits(&list[*part]));
        for part in parts.collect::<Vec<_>>() {
            // There is no client to tell.
            if let Some(sub) = self.sub_mut(slot, part as u32) {
                sub.own.granted = (0, 0);
            }
            self.leave_part(slot, part as u32);
        }
    }

    /// Takes the client out of all its groups.
    pub(super) fn part_groups(&mut self, slot: u32, ends: bool) {
        let row = self.conns.get(slot);
        if !row.wants(MULTI) {
            return;
        }
        for part in 0..self.list_of(slot).len() as u32 {
            self.part_group(slot, part, ends);
        }
    }
}
