//! The outboxes of connections (bytes that wait for a socket) and the memory charged for them.

use crate::base::ids::SocketId;
use crate::budget::account::MemoryPart;
use crate::client::connections::Connections;
use crate::client::outbox::{Outbox, OutboxCharges, PARTS_MAX, parts_len};
use crate::client::row::{Link, NO_SOCKET};
use crate::client::types::ProtocolTypes;
use crate::io::{CloseMode, Io};
use crate::store::rope::{Queue, Rope};
use crate::store::shared::OutputPart;
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

    /// Sends the parts in order. Returns the number of bytes that the socket accepted, or for a stream the windows of its client.
    /// Nothing else sends bytes of a connection.
    #[inline(always)] // a delivery's only call, with one more compare than before streams
    pub(crate) fn write<I: Io>(
        &mut self,
        socket: SocketId,
        parts: &[OutputPart<'_>],
        io: &mut I,
    ) -> usize {
        if socket.is_http2_stream() {
            return self.write_stream(socket, parts, io);
        }
        io.send(socket, parts)
    }

    #[inline(never)]
    fn write_stream<I: Io>(
        &mut self,
        stream: SocketId,
        parts: &[OutputPart<'_>],
        io: &mut I,
    ) -> usize {
        let link = self.links.link_of(stream);
        let link_socket = link.map_or(NO_SOCKET, |link| self.rows.get(link).link.socket);
        self.links.write(stream, parts, link_socket, io)
    }

    /// Closes the socket of a row, or ends the stream.
    pub(crate) fn close<I: Io>(&mut self, socket: SocketId, mode: CloseMode, io: &mut I) {
        match self.links.link_of(socket) {
            None => io.close(socket, mode),
            Some(_) => self.links.close(socket, mode),
        }
    }

    /// Sends a rope (a list of byte strings). Returns the number of bytes that the socket accepted.
    pub(crate) fn write_rope<I: Io>(&mut self, slot: u32, rope: &Rope, io: &mut I) -> usize {
        let socket = self.rows.get(slot).link.socket;
        let mut sent = 0;
        for parts in rope.parts().chunks(PARTS_MAX) {
            let len = parts_len(parts);
            let accepted = self.write(socket, parts, io);
            sent += accepted;
            if accepted < len {
                break;
            }
        }
        sent
    }

    /// Sends at most `bytes_max` bytes of the outbox. Returns the number of bytes that the socket accepted, and the number that still
    /// wait.
    pub(crate) fn send_outbox<I: Io>(
        &mut self,
        slot: u32,
        bytes_max: usize,
        io: &mut I,
    ) -> (usize, usize) {
        let Link { socket, outbox, .. } = self.rows.get(slot).link;
        let link = self.links.link_of(socket);
        let link_socket = link.map_or(socket, |link| self.rows.get(link).link.socket);
        let (outbox, links) = (self.outboxes.get_mut(outbox), &mut self.links);
        let sent = outbox.send(bytes_max, |parts| match link {
            None => io.send(socket, parts),
            Some(_) => links.write(socket, parts, link_socket, io),
        });
        (sent, outbox.waiting_bytes())
    }

    /// Charges `kernel_bytes` for a connection whose client has read nothing for some time. This is the assumed number of bytes in the kernel's
    /// socket buffer.
    pub(crate) fn charge_kernel_bytes(&mut self, slot: u32, kernel_bytes: usize) {
        let outbox = self.rows.get(slot).link.outbox;
        self.outboxes.get_mut(outbox).set_kernel_bytes(kernel_bytes);
        self.weigh_outbox(slot);
    }

    /// Creates the outbox with the bytes that `write` adds.
    pub(crate) fn create_outbox(&mut self, slot: u32, write: impl FnOnce(&mut Queue)) {
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
    pub(crate) fn count_waiting_messages(&mut self, slot: u32, len: usize, ends: &[usize]) {
        let outbox = self.rows.get(slot).link.outbox;
        if outbox != NONE {
            self.outboxes.get_mut(outbox).count_messages(len, ends);
        }
    }

    /// Updates the charges for the bytes that only this outbox holds, and for those that the kernel holds for its client.
    pub(crate) fn weigh_outbox(&mut self, slot: u32) {
        let outbox = self.outboxes.get_mut(self.rows.get(slot).link.outbox);
        let OutboxCharges {
            own,
            kernel,
            waiting,
        } = outbox.weigh();
        let account = &mut self.account;
        account.change_charge(MemoryPart::Outboxes, own.0, own.1);
        account.change_charge(MemoryPart::KernelBuffers, kernel.0, kernel.1);
        self.outbox_bytes = self.outbox_bytes - waiting.0 + waiting.1;
    }

    /// Drops the outbox, if there is one.
    pub(crate) fn drop_outbox(&mut self, slot: u32) {
        let row = self.rows.get_mut(slot);
        let outbox = core::mem::replace(&mut row.link.outbox, NONE);
        if outbox != NONE {
            let weighed = self.outboxes.remove(outbox).weigh();
            let account = &mut self.account;
            account.release(MemoryPart::Outboxes, weighed.own.0);
            account.release(MemoryPart::KernelBuffers, weighed.kernel.0);
            self.outbox_bytes -= weighed.waiting.0;
        }
    }
}
