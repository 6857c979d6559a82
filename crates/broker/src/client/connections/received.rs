//! The received bytes that are held for connections, and the memory charged for them.

use crate::budget::account::MemoryPart;
use crate::client::connections::Connections;
use crate::client::types::{ProtocolTypes, UnprocessedInput};
use crate::store::slab::NONE;

impl<P: ProtocolTypes> Connections<P> {
    /// The held input of a connection, if there is any.
    #[inline]
    pub(crate) fn unprocessed_input(&self, slot: u32) -> Option<&P::UnprocessedInput> {
        match self.rows.get(slot).link.unprocessed_input {
            NONE => None,
            input => Some(self.unprocessed_inputs.get(input)),
        }
    }

    /// The held input, mutably. The caller must not change the number of bytes.
    #[inline]
    pub(crate) fn unprocessed_input_mut(&mut self, slot: u32) -> Option<&mut P::UnprocessedInput> {
        match self.rows.get(slot).link.unprocessed_input {
            NONE => None,
            input => Some(self.unprocessed_inputs.get_mut(input)),
        }
    }

    /// Takes the held input of a connection.
    #[inline]
    pub(crate) fn take_unprocessed_input(&mut self, slot: u32) -> Option<P::UnprocessedInput> {
        match self.rows.get(slot).link.unprocessed_input {
            NONE => None,
            input => Some(self.remove_unprocessed_input(slot, input)),
        }
    }

    fn remove_unprocessed_input(&mut self, slot: u32, spill: u32) -> P::UnprocessedInput {
        self.rows.get_mut(slot).link.unprocessed_input = NONE;
        let input = self.unprocessed_inputs.remove(spill);
        self.receive_bytes -= input.bytes();
        input
    }

    /// Holds input for a connection that holds none.
    pub(crate) fn set_unprocessed_input(&mut self, slot: u32, spill: P::UnprocessedInput) {
        self.receive_bytes += spill.bytes();
        self.rows.get_mut(slot).link.unprocessed_input = self.unprocessed_inputs.insert(spill);
    }

    /// Changes the held input of a connection, which may be empty.
    pub(crate) fn change_unprocessed_input<R>(
        &mut self,
        slot: u32,
        change: impl FnOnce(&mut P::UnprocessedInput) -> R,
    ) -> R {
        let row = self.rows.get_mut(slot);
        if row.link.unprocessed_input == NONE {
            row.link.unprocessed_input = self
                .unprocessed_inputs
                .insert(P::UnprocessedInput::default());
        }
        let input = self.unprocessed_inputs.get_mut(row.link.unprocessed_input);
        self.receive_bytes -= input.bytes();
        let result = change(input);
        self.receive_bytes += input.bytes();
        result
    }

    /// Counts `bytes` received bytes that a side row holds from now on.
    pub(crate) fn count_held_bytes(&mut self, bytes: usize) {
        self.receive_bytes += bytes;
    }

    /// Stops counting `bytes` received bytes that a side row held.
    pub(crate) fn stop_counting_held_bytes(&mut self, bytes: usize) {
        self.receive_bytes -= bytes;
    }

    /// The received bytes that are held for all connections.
    pub(crate) fn receive_bytes(&self) -> usize {
        self.receive_bytes
    }

    /// The next row to examine when room is needed for received bytes. The walk goes round the table.
    pub(crate) fn next_row_to_search(&mut self) -> u32 {
        let end = self.rows.end().max(1);
        let slot = self.next_search_row % end;
        self.next_search_row = (slot + 1) % end;
        slot
    }

    /// Updates the charge for held received bytes.
    #[inline]
    pub(crate) fn charge_received(&mut self) {
        if self.account.part(MemoryPart::Received) != self.receive_bytes {
            self.account
                .set_charge(MemoryPart::Received, self.receive_bytes);
        }
    }
}
