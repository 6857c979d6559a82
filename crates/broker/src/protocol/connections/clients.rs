//! The client behind a connection: its credentials, the address that a proxy names, and the row of an MQTT client.

use alloc::sync::Arc;
use core::net::IpAddr;

use super::Connections;
use crate::base::access::{Grants, Known};
use crate::budget::account::Part;
use crate::protocol::mqtt::state::MqttRow;
use crate::store::slab::NONE;

/// Memory for the address of a client behind a proxy: an entry of a B-tree whose leaves of eleven are two thirds full.
const RELAYED_BYTES: usize = 32;

impl Connections {
    /// The row of a connection between CONNECT and its end.
    #[inline]
    pub(crate) fn mqtt_row(&self, slot: u32) -> &MqttRow {
        self.mqtts.get(self.rows.get(slot).own)
    }

    /// The same, to be changed.
    pub(in crate::protocol) fn mqtt_row_mut(&mut self, slot: u32) -> &mut MqttRow {
        self.mqtts.get_mut(self.rows.get(slot).own)
    }

    /// A CONNECT gives the connection this row.
    pub(in crate::protocol) fn set_mqtt_row(&mut self, slot: u32, row: MqttRow) {
        self.rows.get_mut(slot).own = self.mqtts.insert(row);
    }

    /// Takes the row that the CONNECT gave.
    pub(in crate::protocol) fn take_mqtt_row(&mut self, slot: u32) -> MqttRow {
        let row = self.rows.get_mut(slot);
        let mqtt = core::mem::replace(&mut row.own, NONE);
        self.mqtts.remove(mqtt)
    }

    /// The grants of the connection's client, and when they expire.
    #[inline]
    pub(in crate::protocol) fn pass(&self, slot: u32) -> Option<(&Arc<Grants>, u32)> {
        self.passes.get(slot)
    }

    /// Gives the connection these grants, in place of its former ones.
    pub(in crate::protocol) fn set_pass(&mut self, slot: u32, known: Known) {
        self.passes.set(slot, known);
    }

    /// Takes the connection's grants away.
    pub(in crate::protocol) fn drop_pass(&mut self, slot: u32) {
        self.passes.remove(slot);
    }

    /// Whether some connection came with credentials.
    pub(crate) fn has_passes(&self) -> bool {
        !self.passes.is_empty()
    }

    /// Whether the connection's grants have expired.
    pub(crate) fn is_pass_over(&self, slot: u32, now_unix_s: u32) -> bool {
        self.passes.is_over(slot, now_unix_s)
    }

    /// The address that a proxy has named for this connection.
    pub(crate) fn relayed(&self, slot: u32) -> Option<IpAddr> {
        self.relayed.get(&slot).copied()
    }

    /// A proxy has named the client of this connection, or the name is withdrawn.
    pub(in crate::protocol) fn set_relayed(&mut self, slot: u32, address: Option<IpAddr>) {
        let before = self.relayed.len();
        match address {
            Some(address) => self.relayed.insert(slot, address),
            None => self.relayed.remove(&slot),
        };
        let bytes = |count| count * RELAYED_BYTES;
        let now = self.relayed.len();
        self.purse
            .change(Part::Connections, bytes(before), bytes(now));
    }
}
