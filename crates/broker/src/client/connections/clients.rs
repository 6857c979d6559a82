//! The client behind a connection: the address that a proxy names, and the row that its protocol gives it.

use core::net::IpAddr;

use crate::budget::account::Part;
use crate::client::connections::Connections;
use crate::client::types::ProtocolTypes;
use crate::store::slab::NONE;

/// Memory for the address of a client behind a proxy: an entry of a B-tree whose leaves of eleven are two thirds full.
const RELAYED_BYTES: usize = 32;

impl<P: ProtocolTypes> Connections<P> {
    /// The row that its protocol has given the connection.
    #[inline]
    pub(crate) fn own_row(&self, slot: u32) -> &P::Row {
        self.own.get(self.rows.get(slot).own)
    }

    /// The same, to be changed.
    pub(crate) fn own_row_mut(&mut self, slot: u32) -> &mut P::Row {
        self.own.get_mut(self.rows.get(slot).own)
    }

    /// The protocol gives the connection this row.
    pub(crate) fn set_own_row(&mut self, slot: u32, row: P::Row) {
        self.rows.get_mut(slot).own = self.own.insert(row);
    }

    /// Takes the row that the protocol gave.
    pub(crate) fn take_own_row(&mut self, slot: u32) -> P::Row {
        let row = self.rows.get_mut(slot);
        let own = core::mem::replace(&mut row.own, NONE);
        self.own.remove(own)
    }

    /// The address that a proxy has named for this connection.
    pub(crate) fn relayed(&self, slot: u32) -> Option<IpAddr> {
        self.relayed.get(&slot).copied()
    }

    /// A proxy has named the client of this connection, or the name is withdrawn.
    pub(crate) fn set_relayed(&mut self, slot: u32, address: Option<IpAddr>) {
        let before = self.relayed.len();
        match address {
            Some(address) => self.relayed.insert(slot, address),
            None => self.relayed.remove(&slot),
        };
        let bytes = |count| count * RELAYED_BYTES;
        let now = self.relayed.len();
        self.account
            .change(Part::Connections, bytes(before), bytes(now));
    }
}
