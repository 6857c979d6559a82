//! Continues subscriptions of streams from the log after they fell behind.

use crate::base::ids::ConnId;
use crate::client::row::{FILTERS, MULTI, State};
use crate::client::subscriptions::ask_behind;
use crate::home::Home;
use crate::io::Io;
use crate::protocol::front::{Clients, Front, Queues, Subscriptions};
use crate::protocol::http::options::{DEFLATE, FOLLOWS, PUBLISHES};
use crate::protocol::stream::filtered::catch_up_filters;
use crate::store::slab::NONE;

impl Front {
    /// Continues with the held frames, and with subscriptions that fell behind.
    pub(crate) fn stream_resume<I: Io>(
        &mut self,
        conn: ConnId,
        home: &mut Option<Home>,
        io: &mut I,
    ) {
        if self.clients.conns.get(conn.slot).consumer.state == State::WebSocket {
            self.queues.read_again(&mut self.clients.conns, conn, io);
            self.frames_received(conn.slot, &mut [], home, io);
        }
        // One of the frames may have ended the connection.
        let row = self.clients.conns.get(conn.slot);
        let streams = matches!(row.consumer.state, State::Sse | State::WebSocket);
        if streams && row.link.outbox == NONE {
            catch_up(
                &mut self.clients,
                &mut self.subs,
                &mut self.queues,
                conn.slot,
            );
        }
    }
}

/// Asks for the next page (bounded run of past messages) of one subscription that fell behind, after the outbox has become empty.
/// One page at a time: the next page is requested when the socket has accepted this one.
pub(crate) fn catch_up(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    queues: &mut Queues,
    slot: u32,
) {
    let row = clients.conns.get(slot);
    let deflate = row.wants(DEFLATE);
    if row.extra() == NONE {
        return;
    }
    if row.wants(FOLLOWS) {
        return queues.page(clients.conns.id_of(slot));
    }
    if row.wants(FILTERS) {
        return catch_up_filters(clients, subs, slot);
    }
    let behind = &mut clients.conns.extra(slot).behind;
    if behind.is_empty() {
        return;
    }
    let seen = behind.remove(0);
    ask_behind(clients, subs, slot, &seen, (seen.part, u32::MAX), deflate);
    if clients.conns.extra(slot).is_idle()
        && clients.conns.get(slot).consumer.options & (MULTI | PUBLISHES) == 0
    {
        clients.conns.drop_extra(slot);
    }
}
