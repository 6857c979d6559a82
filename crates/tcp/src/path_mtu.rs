//! What a router says about packets of ours that are too big for a link on their way (RFC 1191, RFC 8201).

use core::net::IpAddr;

use crate::account::Account;
use crate::packet::{End, Options, TooBig, header_bytes};
use crate::sequence::{is_after, is_from};
use crate::table::Table;

/// The smallest packet that every link carries: what Linux assumes for IPv4, and RFC 8200 §5 for IPv6.
const PACKET_BYTES_MIN: (u32, u32) = (552, 1_280);

impl<H: AsRef<[u8]>, A: Account> Table<H, A> {
    /// Handles a message that a packet of ours was too big. It must quote a sequence number that is in flight, so a stranger must guess one
    /// (RFC 5927 §4).
    pub(crate) fn too_big(&mut self, message: &TooBig) {
        let Some(id) = self.find(&message.from, &message.to) else {
            return;
        };
        let headers = header_bytes(message.to, &Options::default()) as u32;
        let least = match End::ip(&message.to) {
            IpAddr::V4(_) => PACKET_BYTES_MIN.0,
            IpAddr::V6(_) => PACKET_BYTES_MIN.1,
        };
        let bytes = message.packet_bytes.max(least) - headers;
        let row = &mut self.rows[id as usize];
        let is_in_flight = is_from(message.sequence, row.unacknowledged)
            && is_after(row.send_next, message.sequence);
        if !is_in_flight || bytes >= row.segment_bytes.into() {
            return;
        }
        row.segment_bytes = bytes as u16;
        let data_bytes = row.data_bytes();
        if let Some(transfer) = self.transfer_of(id) {
            // This is no sign of congestion.
            transfer
                .scoreboard
                .mark_lost(|segment| segment.len() > data_bytes);
            self.queue_to_send(id);
        }
    }
}
