//! The slots for connections of the admin port. When all are taken, a new connection may replace an unauthenticated one.
//!
//! A connection is a *stranger* until one of its requests was accepted (with `admin.token`, if that is set, or with a signature of Pusher's server API).
//! When all slots are taken, a new connection replaces a stranger: the oldest stranger of the address that has the most strangers. So a client that sends
//! its request at once gets through, even if many strangers connect. With `admin.token`, an authenticated connection is never closed to make room for another one.
//! Without a token everybody can send a valid request, so such a connection is closed too, but only for a connection from an address that has fewer.
//!
//! Deliberately elsewhere: the checks of requests ([`super::request_guard`]), and connections that get no slot ([`super::admin_port`]).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crore_broker::admission::{Client, Party};
use tokio::task::AbortHandle;

/// All slots.
pub struct ConnectionSlots {
    max: u32,
    table: Mutex<SlotTable>,
}

struct SlotTable {
    /// Whether requests need a token, so that an accepted request shows that its client is trusted.
    needs_token: bool,
    /// The connections by number. Numbers ascend in the order of arrival.
    connections: BTreeMap<u64, Connection>,
    next: u64,
}

struct Connection {
    address: Party,
    authenticated: AuthenticatedFlag,
    task: Option<AbortHandle>,
}

/// Whether a connection is authenticated: the request guard has accepted one of its requests, or Pusher's server API has accepted a signature. Each request
/// carries a reference to the flag, so that guard and API can set it.
#[derive(Clone, Default)]
pub struct AuthenticatedFlag(Arc<AtomicBool>);

impl AuthenticatedFlag {
    /// Marks the connection as no longer a stranger.
    pub fn set(&self) {
        self.0.store(true, Relaxed);
    }
}

/// The slot of a connection. Dropping it frees the slot.
pub struct Slot {
    slots: Arc<ConnectionSlots>,
    number: u64,
    pub authenticated: AuthenticatedFlag,
}

impl Slot {
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.table().connections.remove(&self.number);
    }
}

impl ConnectionSlots {
    pub fn new(max: u32, needs_token: bool) -> Arc<ConnectionSlots> {
        let table = Mutex::new(SlotTable {
            needs_token,
            connections: BTreeMap::new(),
            next: 0,
        });
        Arc::new(ConnectionSlots { max, table })
    }

    pub fn max(&self) -> u32 {
        self.max
    }

    /// The number of taken slots.
    pub fn len(&self) -> usize {
        self.table().connections.len()
    }

    /// Sets the task that serves the connection with this number. The task is aborted if another connection replaces this one.
    pub fn set_task(&self, number: u64, task: AbortHandle) {
        if let Some(connection) = self.table().connections.get_mut(&number) {
            connection.task = Some(task);
        }
    }

    fn table(&self) -> MutexGuard<'_, SlotTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot for a new connection from `peer`, and returns whether another connection was closed to free the slot. `None` if none may be closed.
    pub fn take(self: &Arc<ConnectionSlots>, peer: IpAddr) -> Option<(Slot, bool)> {
        let address = Party::of_address(Client::from_address(peer, 0));
        let mut table = self.table();
        let is_full = table.connections.len() >= self.max as usize;
        if is_full {
            let number = table.connection_to_close(address)?;
            let ended = table.connections.remove(&number);
            if let Some(task) = ended.and_then(|ended| ended.task) {
                task.abort();
            }
        }
        let number = table.next;
        table.next += 1;
        let authenticated = AuthenticatedFlag::default();
        let connection = Connection {
            address,
            authenticated: authenticated.clone(),
            task: None,
        };
        table.connections.insert(number, connection);
        let slots = Arc::clone(self);
        let slot = Slot {
            slots,
            number,
            authenticated,
        };
        Some((slot, is_full))
    }
}

impl SlotTable {
    /// The connection that is closed for a new one from the address `newcomer`: with a token, the oldest stranger of the address with the most strangers. The
    /// new connection counts as a stranger. Without a token, all connections count, and none of an address with fewer connections than the newcomer's is closed.
    fn connection_to_close(&self, newcomer: Party) -> Option<u64> {
        let is_stranger = |it: &Connection| !it.authenticated.0.load(Relaxed);
        let mut counts = BTreeMap::from([(newcomer, 1)]);
        for connection in self.connections.values() {
            if !self.needs_token || is_stranger(connection) {
                *counts.entry(connection.address).or_default() += 1;
            }
        }
        let count_of = |address: &Party| counts.get(address).copied().unwrap_or(0);
        let of_newcomer = count_of(&newcomer);
        let candidates = self.connections.iter().filter_map(|(number, connection)| {
            let count = count_of(&connection.address);
            let may_close = is_stranger(connection) || !self.needs_token && count > of_newcomer;
            may_close.then_some((count, *number))
        });
        // If several addresses have the most connections, the oldest connection among all of these is closed.
        let (count, number) =
            candidates.max_by_key(|(count, number)| (*count, std::cmp::Reverse(*number)))?;
        (self.needs_token || count + 1 >= of_newcomer).then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: u8) -> IpAddr {
        [192, 0, 2, host].into()
    }

    #[test]
    fn new_connection_gets_the_oldest_slot_of_the_address_with_most_strangers() {
        let slots = ConnectionSlots::new(4, true);
        let take = |host| slots.take(at(host)).expect("a slot");
        let held: Vec<_> = [1, 2, 2, 3].map(take).into();
        assert!(held.iter().all(|(_, ended)| !ended));
        held[1].0.authenticated.set();
        let has = |connection: usize| slots.table().connections.contains_key(&(connection as u64));
        // A second connection of the first address: now that address has the most strangers, so its older connection is closed.
        let (other, ended) = take(1);
        assert!(ended && !has(0) && has(1) && has(2) && has(3));
        // Each address has one stranger. With the new connection, its address has two.
        let (more, ended) = take(3);
        assert!(ended && !has(3) && has(1) && has(2));
        for slot in [&held[2].0, &other, &more] {
            slot.authenticated.set();
        }
        assert!(slots.take(at(9)).is_none(), "nobody is a stranger");
        drop(more);
        assert!(!take(9).1);
        drop((held, other));
        assert_eq!(slots.len(), 0);
    }

    #[test]
    fn without_a_token_valid_requests_keep_no_address_with_fewer_connections_out() {
        let slots = ConnectionSlots::new(6, false);
        let take = |host| slots.take(at(host));
        let crowd: Vec<_> = [2, 2, 2, 3, 3, 3]
            .map(|host| take(host).expect("a slot").0)
            .into();
        crowd.iter().for_each(|slot| slot.authenticated.set());
        assert!(take(2).is_none(), "no address has more");
        let (operator, replaces_other) = take(1).expect("a slot");
        assert!(replaces_other && crowd[0].number() == 0);
        // The operator's connection is the only stranger, and older than those of the crowd that come now.
        for host in [2, 3, 2, 3, 3] {
            let newcomer = take(host);
            let table = slots.table();
            assert!(table.connections.contains_key(&operator.number()));
            drop(table);
            newcomer
                .iter()
                .for_each(|(slot, _)| slot.authenticated.set());
            std::mem::forget(newcomer);
        }
    }
}
