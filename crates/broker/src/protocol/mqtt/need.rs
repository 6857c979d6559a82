//! Subscriptions of QoS 1 and 2 make homes keep more messages than the rules say, until they end.

use super::list::is_vacant;
use super::options::qos;
use alloc::vec::Vec;

use crate::client::row::MULTI;
use crate::mail::{Ask, Span};
use crate::protocol::front::Front;
use crate::protocol::front::Sub;
use crate::protocol::mqtt::options::QOS_SHIFT;
use crate::store::slab::NONE;

impl Front {
    /// Tells a topic's home that a subscription needs its messages kept, or no longer needs them.
    pub(super) fn keep_log(&mut self, topic: u32, on: bool) {
        let hash = self.topics.get(topic).hash;
        let name = self.topics.name(topic).to_vec();
        self.keep_log_of(hash, &name, on);
    }

    pub(crate) fn keep_log_of(&mut self, hash: u32, name: &[u8], on: bool) {
        for home in self.homes_of(name) {
            self.ask(home, |bytes| Ask::KeepLog {
                hash,
                name: Span::of(bytes, name),
                on,
            });
        }
    }

    /// The session ends: releases the logs of its subscriptions.
    pub(super) fn release_logs(&mut self, slot: u32) {
        let row = self.conns.get(slot);
        if !row.wants(MULTI) {
            if row.topic != NONE && row.options >> QOS_SHIFT & 3 > 0 {
                self.keep_log(row.topic, false);
            }
            return;
        }
        let list = self.list_of(slot);
        let needs =
            |sub: &Sub| !is_vacant(sub) && sub.own.group.is_none() && qos(sub.own.options) > 0;
        let parts = (0..list.len()).filter(|part| needs(&list[*part]));
        for part in parts.collect::<Vec<_>>() {
            self.release_log(slot, part as u32);
        }
    }

    /// Releases the log of one subscription.
    pub(super) fn release_log(&mut self, slot: u32, part: u32) {
        let topic = self.sub(slot, part).map_or(NONE, |sub| sub.topic);
        if topic != NONE {
            self.keep_log(topic, false);
        } else if let Some(filter) = self.wildcard_of(slot, part) {
            self.keep_log_of(0, &filter, false);
        }
    }
}
