//! The state of a connection of Pusher's protocol that few clients need, or that clients need only for a while.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use xxhash_rust::xxh3::xxh3_64;

use crate::base::ids::{ConnId, ShardId};
use crate::base::pusher::PusherApp;
use crate::client::list::index_with_serial;
use crate::protocol::front::{Clients, Connections};
use crate::protocol::pusher::options::app_number;

/// That state.
#[derive(Default)]
pub struct PusherState {
    /// Subscriptions that no home has answered: the index with the serial number of each ([`index_with_serial`]).
    pub pending_subscribes: Vec<u32>,
}

impl PusherState {
    /// Whether nothing waits, so that the state need not be kept.
    pub fn is_idle(&self) -> bool {
        self.pending_subscribes.is_empty()
    }

    /// The bytes of the heap.
    pub fn heap_bytes(&self) -> usize {
        self.pending_subscribes.capacity() * size_of::<u32>()
    }
}

/// The state of a connection, if it has any.
pub(super) fn state(conns: &Connections, slot: u32) -> Option<&PusherState> {
    conns.find_side_row(slot)?.protocol_state.pusher()
}

/// The state of a connection, made if necessary.
pub(super) fn state_mut(conns: &mut Connections, slot: u32) -> &mut PusherState {
    conns.ensure_side_row(slot).protocol_state.pusher_mut()
}

/// Removes the subscription with this index from those that wait. Returns whether it was one of them.
pub(super) fn take_pending_subscribe(clients: &mut Clients, slot: u32, sub_index: u32) -> bool {
    let key = index_with_serial(&clients.conns, slot, sub_index);
    let waits = |state: &PusherState| state.pending_subscribes.contains(&key);
    let is_pending = state(&clients.conns, slot).is_some_and(waits);
    if is_pending {
        let pending = &mut state_mut(&mut clients.conns, slot).pending_subscribes;
        pending.retain(|other| *other != key);
        if pending.is_empty() {
            pending.shrink_to_fit();
        }
    }
    is_pending
}

/// The app of a connection. `None` if the connection began without one.
pub(super) fn app_of(clients: &Clients, slot: u32) -> Option<&PusherApp> {
    let number = app_number(clients.conns.get(slot));
    clients.ctx.world.settings.pusher_apps.get(number)
}

/// The number after the dot of a socket id.
fn connection_number(shard: ShardId, conn: ConnId) -> u64 {
    u64::from(shard) << 48 | u64::from(conn.generation) << 32 | u64::from(conn.slot)
}

/// The socket id of a connection, which no other connection has.
pub(super) fn socket_id(clients: &Clients, slot: u32) -> String {
    let (world, conn) = (&clients.ctx.world, clients.conns.id_of(slot));
    let number = connection_number(clients.ctx.own_shard, conn);
    format!("{}.{number}", world.process_number())
}

/// The number of a connection as the publisher of messages that it does not get.
pub(super) fn origin_of(clients: &Clients, slot: u32) -> u64 {
    let (world, conn) = (&clients.ctx.world, clients.conns.id_of(slot));
    let number = connection_number(clients.ctx.own_shard, conn);
    origin_number(world.process_number().into(), number)
}

/// Numbers of MQTT sessions are random, so that equal ones are as unlikely as equal random numbers.
fn origin_number(process: u64, number: u64) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&process.to_le_bytes());
    bytes[8..].copy_from_slice(&number.to_le_bytes());
    xxh3_64(&bytes) | 1
}
