//! The client of a connection: the address that a proxy names, and the row (table entry) that the connection's protocol stores.

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
    pub(crate) fn own_row(&self, slot: u32) -> &P::OwnRow {
        self.own.get(self.rows.get(slot).consumer.own)
    }

    /// The protocol's row of this connection, mutably.
    pub(crate) fn own_row_mut(&mut self, slot: u32) -> &mut P::OwnRow {
        self.own.get_mut(self.rows.get(slot).consumer.own)
    }

    /// Stores the protocol's row of this connection.
    pub(crate) fn set_own_row(&mut self, slot: u32, row: P::OwnRow) {
        self.rows.get_mut(slot).consumer.own = self.own.insert(row);
    }

    /// Removes the protocol's row of this connection.
    pub(crate) fn take_own_row(&mut self, slot: u32) -> P::OwnRow {
        let row = self.rows.get_mut(slot);
        let own = core::mem::replace(&mut row.consumer.own, NONE);
        self.own.remove(own)
    }

    /// The client's address, if a proxy has named it.
    pub(crate) fn relayed(&self, slot: u32) -> Option<IpAddr> {
        self.relayed.get(&slot).copied()
    }

    /// Sets or removes the client's address as named by a proxy.
    pub(crate) fn set_relayed(&mut self, slot: u32, address: Option<IpAddr>) {
        let before = self.relayed.len();
        match address {
            Some(address) => self.relayed.insert(slot, address),
            None => self.relayed.remove(&slot),
        };
        let bytes = |count| count * RELAYED_BYTES;
        let now = self.relayed.len();
        self.account
            .change(MemoryPart::Connections, bytes(before), bytes(now));
    }
}
