//! Ends connections whose deadline has passed, and says when a heartbeat is due. The sweep that finds them is the shard's (`shard/tick.rs`): no timers,
//! no links in the rows.

use crate::base::reason::Closed;
use crate::client::parts::{Clients, Deliveries, Queues, Subscriptions};
use crate::client::protocols::Protocols;
use crate::client::types::ProtocolTypes;
use crate::io::Io;
use crate::store::slab::NONE;

/// The connection's deadline has passed.
pub(crate) fn deadline<P: Protocols, I: Io>(
    clients: &mut Clients<P>,
    subs: &mut Subscriptions,
    deliveries: &Deliveries,
    queues: &mut Queues,
    slot: u32,
    io: &mut I,
) {
    if clients.conns.get(slot).outbox != NONE {
        // The client reads nothing: its outbox would only hold memory.
        clients.scratch.because(Closed::Slow);
        return clients.reset(slot);
    }
    P::deadline_passed(clients, subs, deliveries, queues, slot, io);
}

impl<P: ProtocolTypes> Clients<P> {
    /// Whether a heartbeat is due: nothing was sent for too long.
    pub(crate) fn is_heartbeat_due(&self, slot: u32) -> bool {
        let heartbeat = &self.ctx.world.settings.heartbeat;
        let row = self.conns.get(slot);
        if heartbeat.interval_s == 0 {
            return false;
        }
        // A multiplicative hash of the slot and the last second spreads connections that were opened together.
        let spread = (slot ^ row.sent_s.rotate_left(16)).wrapping_mul(0x9E37_79B9) >> 16;
        let jitter_s = heartbeat.interval_s * heartbeat.jitter_percent / 100;
        let early_s = if jitter_s == 0 {
            0
        } else {
            spread % (jitter_s + 1)
        };
        self.ctx.now.s - row.sent_s >= heartbeat.interval_s - early_s
    }
}
