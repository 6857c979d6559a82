//! Joins waiting messages for filters: if the mail of several turns of a home (a part of a shard that keeps topics) waits behind a
//! long run, their deliveries become one.
//!
//! The messages are copied, so that they are adjacent (large ones are shared). The frames of their turns are held until the joined
//! delivery ends. A home has at most one such delivery, of 256 KiB and one message.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::client::deliveries::Deliveries;
use crate::client::delivery::{Delivery, IN_ORDER, RunProgress};
use crate::client::walk::{TOGETHER_BYTES, TOGETHER_MAX};
use crate::mail::{Frames, Tell};

/// Messages of several turns.
#[derive(Default)]
struct JoinedDeliveries {
    tells: Vec<Tell>,
    frames: Frames,
    turns: Vec<Arc<Frames>>,
    bytes: usize,
}

impl JoinedDeliveries {
    fn is_full(&self) -> bool {
        self.tells.len() >= TOGETHER_MAX || self.bytes >= TOGETHER_BYTES
    }

    fn add(&mut self, delivery: &Delivery) {
        for n in 0..delivery.keys.len() - delivery.cursor {
            let mut tell = delivery.tell(n).clone();
            if let Tell::Match { name, record, .. } = &mut tell {
                self.bytes += record.frame_bytes();
                *name = self.frames.push_name(delivery.frames.name(*name));
                *record = self.frames.copy_with_compressed(record, &delivery.frames);
            }
            self.tells.push(tell);
        }
        if delivery.frames.stamp != 0 {
            self.frames.record_read_time(delivery.frames.stamp);
        }
        self.turns.push(delivery.frames.clone());
    }
}

/// Whether a delivery has not begun, and contains only messages for filters, few enough to be joined with others.
fn can_be_joined(delivery: &Delivery) -> bool {
    let remaining = delivery.keys.len() - delivery.cursor;
    let is_match = |n| matches!(delivery.tell(n), Tell::Match { .. });
    let is_begun = delivery.run.len > 0 || delivery.is_walking;
    !is_begun
        && delivery.turn_frames.is_empty()
        && remaining <= TOGETHER_MAX
        && (0..remaining).all(is_match)
}

impl Deliveries {
    /// Joins the next queued deliveries of the same home with `delivery`, while each of them contains only a few messages for
    /// filters.
    pub(crate) fn join_next_deliveries(&mut self, delivery: &mut Delivery) {
        let home = delivery.home;
        let is_next = |it: &Delivery| it.home == home && can_be_joined(it);
        if !self.queued.front().is_some_and(is_next) || !can_be_joined(delivery) {
            return;
        }
        let mut together = JoinedDeliveries::default();
        together.add(delivery);
        while !together.is_full()
            && self.queued.front().is_some_and(is_next)
            && let Some(next) = self.queued.pop_front()
        {
            together.add(&next);
        }
        let count = together.tells.len() as u64;
        *delivery = Delivery {
            tells: together.tells,
            frames: Arc::new(together.frames),
            keys: (0..count).map(|n| u64::from(IN_ORDER) << 32 | n).collect(),
            cursor: 0,
            walk_place: 0,
            is_walking: false,
            home,
            is_ordered: true,
            run: RunProgress::default(),
            turn_frames: together.turns,
        };
    }
}
