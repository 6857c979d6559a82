//! Continues subscriptions of streams from the log after they fell behind.

use crate::client::row::{FILTERS, SUBSCRIPTION_LIST};
use crate::client::subscriptions::request_next_page;
use crate::protocol::front::Front;
use crate::protocol::http::options::{DEFLATE, FOLLOWS, PUBLISHES};
use crate::protocol::stream::filtered::catch_up_filters;
use crate::store::slab::NONE;

/// Asks for the next page (bounded run of past messages) of one subscription that fell behind, after the outbox has become empty.
/// One page at a time: the next page is requested when the socket has accepted this one.
pub(crate) fn catch_up(front: &mut Front, slot: u32) {
    let (clients, subs, _, queues) = front.parts();
    let row = clients.conns.get(slot);
    let deflate = row.has_option(DEFLATE);
    if row.side_row() == NONE {
        return;
    }
    if row.has_option(FOLLOWS) {
        return queues.queue_for_page(clients.conns.id_of(slot));
    }
    if row.has_option(FILTERS) {
        return catch_up_filters(clients, subs, slot);
    }
    let behind = &mut clients.conns.ensure_side_row(slot).behind;
    if behind.is_empty() {
        return;
    }
    let oldest_behind = behind.remove(0);
    request_next_page(
        clients,
        subs,
        slot,
        &oldest_behind,
        oldest_behind.sub_index,
        u32::MAX,
        deflate,
    );
    if clients.conns.ensure_side_row(slot).is_idle()
        && clients.conns.get(slot).consumer.options & (SUBSCRIPTION_LIST | PUBLISHES) == 0
    {
        clients.conns.drop_side_row(slot);
    }
}
