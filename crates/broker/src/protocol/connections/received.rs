//! Received bytes that are held for connections, and their charge.

use super::Connections;
use crate::budget::account::Part;
use crate::protocol::side::Spill;
use crate::store::slab::NONE;

impl Connections {
    /// The partly received input of a connection, if there is some.
    #[inline]
    pub(in crate::protocol) fn spill(&self, slot: u32) -> Option<&Spill> {
        match self.rows.get(slot).spill {
            NONE => None,
            spill => Some(self.spills.get(spill)),
        }
    }

    /// The same, to be changed, where that does not change how many bytes it holds.
    #[inline]
    pub(in crate::protocol) fn spill_mut(&mut self, slot: u32) -> Option<&mut Spill> {
        match self.rows.get(slot).spill {
            NONE => None,
            spill => Some(self.spills.get_mut(spill)),
        }
    }

    /// Takes the partly received input of a connection.
    #[inline]
    pub(in crate::protocol) fn take_spill(&mut self, slot: u32) -> Option<Spill> {
        match self.rows.get(slot).spill {
            NONE => None,
            spill => Some(self.remove_spill(slot, spill)),
        }
    }

    fn remove_spill(&mut self, slot: u32, spill: u32) -> Spill {
        self.rows.get_mut(slot).spill = NONE;
        let spill = self.spills.remove(spill);
        self.receive_bytes -= spill.bytes();
        spill
    }

    /// Keeps partly received input of a connection that holds none.
    pub(in crate::protocol) fn set_spill(&mut self, slot: u32, spill: Spill) {
        self.receive_bytes += spill.bytes();
        self.rows.get_mut(slot).spill = self.spills.insert(spill);
    }

    /// Adds bytes behind those of a request, or of requests, of which a head has `head_bytes` at most; returns how many are held then.
    /// `None` where the connection holds something else.
    pub(in crate::protocol) fn append_spill(
        &mut self,
        slot: u32,
        bytes: &[u8],
        head_bytes: usize,
    ) -> Option<usize> {
        let row = self.rows.get_mut(slot);
        if row.spill == NONE {
            row.spill = self.spills.insert(Spill::default());
        }
        let Spill::Http(spill) = self.spills.get_mut(row.spill) else {
            return None;
        };
        self.receive_bytes -= spill.bytes();
        spill.append(bytes, head_bytes);
        self.receive_bytes += spill.bytes();
        Some(spill.data.len())
    }

    /// So many received bytes are held in a side row from now on.
    pub(in crate::protocol) fn hold_bytes(&mut self, bytes: usize) {
        self.receive_bytes += bytes;
    }

    /// So many received bytes are not held in a side row any more.
    pub(in crate::protocol) fn let_go_bytes(&mut self, bytes: usize) {
        self.receive_bytes -= bytes;
    }

    /// Received bytes that are held for all connections.
    pub(in crate::protocol) fn receive_bytes(&self) -> usize {
        self.receive_bytes
    }

    /// The next row to look at when received bytes need room: the walk goes round the table, which is not empty.
    pub(in crate::protocol) fn next_hoard(&mut self) -> u32 {
        let end = self.rows.end().max(1);
        let slot = self.hoards % end;
        self.hoards = (slot + 1) % end;
        slot
    }

    /// Charges the received bytes that are held.
    #[inline]
    pub(in crate::protocol) fn charge_received(&mut self) {
        if self.purse.part(Part::Received) != self.receive_bytes {
            self.purse.set(Part::Received, self.receive_bytes);
        }
    }
}
