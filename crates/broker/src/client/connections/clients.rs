//! What a connection stores about its client: the address that a proxy has named, and the row (table entry) of the connection's protocol.

use core::net::IpAddr;

use crate::budget::account::MemoryPart;
use crate::client::connections::Connections;
use crate::client::types::ProtocolTypes;
use crate::store::slab::NONE;

/// The memory for the address of a client behind a proxy: an entry in a B-tree whose leaves of eleven entries are two thirds full.
const RELAYED_BYTES: usize = 32;

impl<P: ProtocolTypes> Connections<P> {
    /// The protocol's row of this connection.
    #[inline]
    pub(crate) fn protocol_row(&self, slot: u32) -> &P::ProtocolRow {
        self.protocol_rows
            .get(self.rows.get(slot).consumer.protocol_row)
    }

    /// The protocol's row of this connection, mutably.
    pub(crate) fn protocol_row_mut(&mut self, slot: u32) -> &mut P::ProtocolRow {
        self.protocol_rows
            .get_mut(self.rows.get(slot).consumer.protocol_row)
    }

    /// Stores the protocol's row of this connection.
    pub(crate) fn set_protocol_row(&mut self, slot: u32, row: P::ProtocolRow) {
        self.rows.get_mut(slot).consumer.protocol_row = self.protocol_rows.insert(row);
    }

    /// Removes the protocol's row of this connection.
    pub(crate) fn take_protocol_row(&mut self, slot: u32) -> P::ProtocolRow {
        let row = self.rows.get_mut(slot);
        let protocol_row = core::mem::replace(&mut row.consumer.protocol_row, NONE);
        self.protocol_rows.remove(protocol_row)
    }

    /// The client's address, if a proxy has named it.
    pub(crate) fn relayed_address(&self, slot: u32) -> Option<IpAddr> {
        self.relayed_addresses.get(&slot).copied()
    }

    /// Sets or removes the client's address as named by a proxy.
    pub(crate) fn set_relayed_address(&mut self, slot: u32, address: Option<IpAddr>) {
        let before = self.relayed_addresses.len();
        match address {
            Some(address) => self.relayed_addresses.insert(slot, address),
            None => self.relayed_addresses.remove(&slot),
        };
        let bytes = |count| count * RELAYED_BYTES;
        let now = self.relayed_addresses.len();
        self.account
            .change_charge(MemoryPart::Connections, bytes(before), bytes(now));
    }
}
