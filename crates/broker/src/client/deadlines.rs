//! Ends connections whose deadline has passed, and tells when a heartbeat is due. The shard walks its connections for this
//! (`shard/tick.rs`), so there are no timers and no links between rows.

use crate::base::reason::Closed;
use crate::client::front::Front;
use crate::client::parts::Clients;
use crate::client::protocols::{Protocols, protocol_of};
use crate::client::row::HELD;
use crate::client::types::ProtocolTypes;
use crate::io::Io;
use crate::store::slab::NONE;

/// If a client reads nothing for this many seconds, it is charged for the bytes in the kernel's socket buffer. A slow link may
/// pause for a shorter time.
const UNREAD_S: u32 = 2;

/// Handles the passed deadline of a connection.
pub(crate) fn handle_deadline<P: Protocols, I: Io>(front: &mut Front<P>, slot: u32, io: &mut I) {
    let clients = &mut front.clients;
    let row = clients.conns.get(slot);
    if row.link.outbox != NONE {
        let (now_s, body_s) = (
            clients.ctx.now.s,
            clients.ctx.world.settings.timeouts.body_s,
        );
        let since_s = now_s.saturating_sub(body_s);
        if !row.link.has(HELD) && clients.conns.links.waits_for_link(row.link.socket, since_s) {
            // The client reads what others of its streams have sent. If it reads nothing, the deadline of the link passes.
            clients.conns.get_mut(slot).link.deadline_s = now_s + body_s;
            return;
        }
        // The client reads nothing, so its outbox only costs memory.
        clients.scratch.set_close_reason(Closed::Slow);
        return clients.reset(slot);
    }
    protocol_of!(P, row.consumer.state, deadline_passed(front, slot, io));
}

/// Charges the connection for the bytes in the kernel, if its client has read nothing for [`UNREAD_S`]. A client that reads again is
/// charged for its outbox alone.
pub(crate) fn charge_if_nothing_is_read<P: ProtocolTypes>(clients: &mut Clients<P>, slot: u32) {
    let row = clients.conns.get(slot);
    // The bytes of a stream are in the buffer of its link, which is charged for its own outbox.
    if row.link.outbox == NONE || clients.conns.is_http2_request(slot) {
        return;
    }
    let settings = &clients.ctx.world.settings;
    // The deadline was set when the socket last accepted a byte, so it tells how long the client has read nothing.
    let left_s = row.link.deadline_s.saturating_sub(clients.ctx.now.s);
    if left_s + UNREAD_S <= settings.timeouts.body_s {
        let kernel_bytes = settings.limits.kernel_bytes();
        clients.conns.charge_kernel_bytes(slot, kernel_bytes);
    }
}

impl<P: ProtocolTypes> Clients<P> {
    /// Whether nothing was sent for so long that a heartbeat is due.
    pub(crate) fn is_heartbeat_due(&self, slot: u32) -> bool {
        let heartbeat = &self.ctx.world.settings.heartbeat;
        let row = self.conns.get(slot);
        if heartbeat.interval_s == 0 {
            return false;
        }
        // A multiplicative hash of the slot and the last second spreads connections that were opened together.
        let spread = (slot ^ row.link.sent_s.rotate_left(16)).wrapping_mul(0x9E37_79B9) >> 16;
        let jitter_s = heartbeat.interval_s * heartbeat.jitter_percent / 100;
        let early_s = if jitter_s == 0 {
            0
        } else {
            spread % (jitter_s + 1)
        };
        self.ctx.now.s - row.link.sent_s >= heartbeat.interval_s - early_s
    }
}
