//! Going on from the log after falling behind.

use crate::client::row::{FILTERS, MULTI};
use crate::protocol::front::Front;
use crate::protocol::http::options::{DEFLATE, FOLLOWS, PUBLISHES};
use crate::store::slab::NONE;

impl Front {
    /// The outbox is empty: a stream's subscription that fell behind reads on from the log. One page at a time: the next one is asked for when
    /// the socket has taken it.
    pub(in crate::protocol) fn catch_up(&mut self, slot: u32) {
        let row = self.conns.get(slot);
        let deflate = row.wants(DEFLATE);
        if row.extra == NONE {
            return;
        }
        if row.wants(FOLLOWS) {
            return self.queues.page(self.conns.id_of(slot));
        }
        if row.wants(FILTERS) {
            return self.catch_up_filters(slot);
        }
        let behind = &mut self.conns.extra(slot).behind;
        if behind.is_empty() {
            return;
        }
        let seen = behind.remove(0);
        self.ask_behind(slot, &seen, (seen.part, u32::MAX), deflate);
        if self.conns.extra(slot).is_idle()
            && self.conns.get(slot).options & (MULTI | PUBLISHES) == 0
        {
            self.conns.drop_extra(slot);
        }
    }
}
