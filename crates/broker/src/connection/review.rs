//! Looking again at who is connected, when settings were read by which somebody may do less.
//!
//! What lasts was granted when it began. The first whole sweep after the change looks at each connection once: a stream, a poll that
//! waits, who follows interest and an MQTT client end, with the reason, where they have something that they would not get now.
//!
//! Invariant: what a token or a user's entry grants is had until its end; all else is judged by the settings that hold. A request
//! that waits for a home meanwhile is dropped where it would be refused.
//!
//! Deliberately not here: publishes, each of which is judged when it comes.

use alloc::vec::Vec;

use super::close_code;
use crate::access::{Denied, Right};
use crate::conn::{CLOSING, FOLLOWS, State};
use crate::io::{Close, Io};
use crate::settings::Settings;
use crate::shard::Shard;
use crate::slab::NONE;
use crate::stats::Reason;

/// How far it is.
#[derive(Default)]
pub struct Review {
    /// The next sweep is to do it.
    due: bool,
    /// The sweep under way does it.
    runs: bool,
}

impl Review {
    /// Whether who is connected is looked at, once `next` holds in the place of `former`.
    pub fn change(&mut self, former: &Settings, next: &Settings) {
        let everybody = |of: &Settings| (of.access.closed, of.access.anonymous_wildcards);
        let open = |of: &Settings| -> Vec<_> {
            let rules = of.rules.iter();
            rules.map(|rule| (rule.filter.clone(), rule.open)).collect()
        };
        let same = everybody(former) == everybody(next)
            && former.access.anonymous == next.access.anonymous
            && open(former) == open(next);
        self.due |= next.access.closed && !same;
    }

    /// A sweep begins.
    pub fn begin(&mut self) {
        self.runs = core::mem::take(&mut self.due);
    }

    /// Whether the sweep under way looks at connections.
    pub fn runs(&self) -> bool {
        self.runs
    }
}

impl Shard {
    /// Ends what lasts if it would be refused now; false when it stays.
    pub(super) fn review<I: Io>(&mut self, slot: u32, io: &mut I) -> bool {
        let row = self.conns.get(slot);
        let state = row.state;
        if row.is(CLOSING) {
            return false;
        }
        let ended = match state {
            State::Mqtt => self.mqtt_review(slot, io),
            State::Poll | State::Sse | State::WebSocket | State::Waiting => {
                let denied = self.may_keep(slot).err();
                denied
                    .inspect(|denied| self.end_denied(slot, *denied, io))
                    .is_some()
            }
            State::Proxy | State::Http | State::Draining => false,
        };
        self.stats.lapsed += u64::from(ended);
        ended
    }

    fn end_denied<I: Io>(&mut self, slot: u32, denied: Denied, io: &mut I) {
        let state = self.conns.get(slot).state;
        if state == State::Poll {
            return self.answer_status(slot, denied.status(), denied.reason(), io);
        }
        self.because(Reason::Refused);
        match state {
            State::Waiting => self.drop_conn(slot, Close::Now, io),
            _ => self.end_stream(slot, close_code::EXPIRED, denied.reason(), io),
        }
    }

    /// Whether the client could subscribe now to all that it is subscribed to.
    pub(super) fn may_keep(&self, slot: u32) -> Result<(), Denied> {
        let row = self.conns.get(slot);
        if row.wants(FOLLOWS) && row.extra != NONE {
            let follow = self.extras.get(row.extra).follow.as_ref();
            let filter = follow.map(|follow| &follow.filter);
            return filter.map_or(Ok(()), |filter| self.may(slot, Right::Interest, filter));
        }
        let may = |name: &[u8]| self.may(slot, Right::Subscribe, name);
        self.all_topics_of(slot).into_iter().try_for_each(may)?;
        let filters = self.all_filters_of(slot);
        filters.iter().try_for_each(|filter| may(filter))
    }
}
