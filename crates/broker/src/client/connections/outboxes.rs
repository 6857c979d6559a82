//! The outboxes of connections (bytes that wait for a socket) and the memory charged for them.

use crate::budget::account::MemoryPart;
use crate::client::connections::Connections;
use crate::client::outbox::Outbox;
use crate::client::types::ProtocolTypes;
use crate::io::Io;
use crate::store::rope::Queue;
use crate::store::slab::NONE;

impl<P: ProtocolTypes> Connections<P> {
    /// The outbox of a connection, if bytes wait for its socket.
    #[inline]
    pub(crate) fn outbox(&self, slot: u32) -> Option<&Outbox> {
        match self.rows.get(slot).link.outbox {
            NONE => None,
            outbox => Some(self.outboxes.get(outbox)),
        }
    }

    /// Sends at most `most` bytes of the outbox. Returns the number of bytes that the socket accepted, and the number that still
    /// wait.
    pub(crate) fn send_outbox<I: Io>(
        &mut self,
        slot: u32,
        most: usize,
        io: &mut I,
    ) -> (usize, usize) {
        let row = self.rows.get(slot);
        let outbox = self.outboxes.get_mut(row.link.outbox);
        (
            outbox.send(row.link.socket, most, io),
            outbox.waiting_bytes(),
        )
    }

    /// Charges `kernel_bytes` for a connection whose client has read nothing for some time: so many bytes are assumed to be in the
    /// kernel's socket buffer.
    pub(crate) fn charge_kernel_bytes(&mut self, slot: u32, kernel_bytes: usize) {
        let outbox = self.rows.get(slot).link.outbox;
        self.outboxes.get_mut(outbox).set_kernel_bytes(kernel_bytes);
        self.weigh_outbox(slot);
    }

    /// Creates the outbox with the bytes that `write` adds.
    pub(crate) fn begin_outbox(&mut self, slot: u32, write: impl FnOnce(&mut Queue)) {
        self.rows.get_mut(slot).link.outbox = self.outboxes.insert(Outbox::default());
        self.add_to_outbox(slot, write);
    }

    /// Adds the bytes of `write` to the outbox.
    pub(crate) fn add_to_outbox(&mut self, slot: u32, write: impl FnOnce(&mut Queue)) {
        let outbox = self.outboxes.get_mut(self.rows.get(slot).link.outbox);
        write(&mut outbox.queue);
        self.weigh_outbox(slot);
    }

    /// Counts the messages of a write of `len` bytes whose unsent rest was just added to the outbox, if there is an outbox. `ends`
    /// are the ends of the messages, in bytes from the start of the write.
    pub(crate) fn count_waiting(&mut self, slot: u32, len: usize, ends: &[usize]) {
        let outbox = self.rows.get(slot).link.outbox;
        if outbox != NONE {
            self.outboxes.get_mut(outbox).count(len, ends);
        }
    }

    /// Updates the charge for the bytes that only this outbox holds.
    pub(crate) fn weigh_outbox(&mut self, slot: u32) {
        let outbox = self.outboxes.get_mut(self.rows.get(slot).link.outbox);
        let (charged, counted) = outbox.weigh();
        self.account
            .change(MemoryPart::Outboxes, charged.0, charged.1);
        self.outbox_bytes = self.outbox_bytes - counted.0 + counted.1;
    }

    /// Drops the outbox, if there is one.
    pub(crate) fn drop_outbox(&mut self, slot: u32) {
        let row = self.rows.get_mut(slot);
        let outbox = core::mem::replace(&mut row.link.outbox, NONE);
        if outbox != NONE {
            let (charged, counted) = self.outboxes.remove(outbox).weigh();
            self.account.release(MemoryPart::Outboxes, charged.0);
            self.outbox_bytes -= counted.0;
        }
    }
}
