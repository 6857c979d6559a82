//! The places for connections of the admin port, and who gives one up when all are taken.
//!
//! A connection is a stranger's until a request of it has shown that it may ask: with `admin.token`, where that is set. When all places
//! are taken, a new connection gets the place of a stranger's: the oldest one of the address that has most of them. So strangers keep out
//! nobody who asks at once, however many they are, and no connection that was admitted ends for another.
//!
//! Deliberately elsewhere: which requests may be asked ([`super::gate`]), and what happens without a stranger ([`super::port`]).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crore_broker::admission::{Client, Party};
use tokio::task::AbortHandle;

/// All places.
pub struct Places {
    max: u32,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    /// By number, in the order of arrival.
    connections: BTreeMap<u64, Connection>,
    next: u64,
}

struct Connection {
    from: Party,
    admitted: Admitted,
    task: Option<AbortHandle>,
}

/// Whether a request of a connection was admitted. Each of its requests carries it to the gate.
#[derive(Clone, Default)]
pub struct Admitted(Arc<AtomicBool>);

impl Admitted {
    /// A request is admitted: the connection is no stranger's any more.
    pub fn admit(&self) {
        self.0.store(true, Relaxed);
    }
}

/// A place that a connection has until this is dropped.
pub struct Place {
    all: Arc<Places>,
    number: u64,
    /// Whether a request of the connection was admitted.
    pub admitted: Admitted,
}

impl Place {
    /// Its number.
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.all.taken().connections.remove(&self.number);
    }
}

impl Places {
    /// So many places.
    pub fn new(max: u32) -> Arc<Places> {
        let taken = Mutex::default();
        Arc::new(Places { max, taken })
    }

    /// How many there are.
    pub fn max(&self) -> u32 {
        self.max
    }

    /// How many are taken.
    pub fn len(&self) -> usize {
        self.taken().connections.len()
    }

    /// The connection that took this place is served by `task`.
    pub fn hold(&self, number: u64, task: AbortHandle) {
        if let Some(connection) = self.taken().connections.get_mut(&number) {
            connection.task = Some(task);
        }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a connection from this address, and says whether a stranger's connection was ended for it. None when all places
    /// are taken by connections that were admitted.
    pub fn take(self: &Arc<Places>, from: IpAddr) -> Option<(Place, bool)> {
        let from = Party::of_address(Client::of(from, 0));
        let mut taken = self.taken();
        let is_full = taken.connections.len() >= self.max as usize;
        if is_full {
            let stranger = taken.stranger(from)?;
            let ended = taken.connections.remove(&stranger);
            if let Some(task) = ended.and_then(|ended| ended.task) {
                task.abort();
            }
        }
        let number = taken.next;
        taken.next += 1;
        let admitted = Admitted::default();
        let connection = Connection {
            from,
            admitted: admitted.clone(),
            task: None,
        };
        taken.connections.insert(number, connection);
        let all = Arc::clone(self);
        let place = Place {
            all,
            number,
            admitted,
        };
        Some((place, is_full))
    }
}

impl Taken {
    /// The oldest stranger's connection of the address that has most of them, if one more comes from `newcomer`.
    fn stranger(&self, newcomer: Party) -> Option<u64> {
        let strangers = || {
            let all = self.connections.iter();
            all.filter(|(_, connection)| !connection.admitted.0.load(Relaxed))
        };
        let mut counts = BTreeMap::from([(newcomer, 1)]);
        for (_, connection) in strangers() {
            *counts.entry(connection.from).or_default() += 1;
        }
        let most = |from: &Party| counts.get(from).copied().unwrap_or(0);
        // Of several the first: the oldest.
        let oldest = strangers().map(|(number, connection)| (most(&connection.from), *number));
        let (_, number) =
            oldest.max_by_key(|(count, number)| (*count, std::cmp::Reverse(*number)))?;
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: u8) -> IpAddr {
        [192, 0, 2, host].into()
    }

    #[test]
    fn new_connection_gets_the_oldest_place_of_the_address_with_most_strangers() {
        let places = Places::new(4);
        let take = |host| places.take(at(host)).expect("a place");
        let held: Vec<_> = [1, 2, 2, 3].map(take).into();
        assert!(held.iter().all(|(_, ended)| !ended));
        held[1].0.admitted.admit();
        let has = |of: usize| places.taken().connections.contains_key(&(of as u64));
        // Another of the first's address: the two of that address are most, its own older one goes.
        let (other, ended) = take(1);
        assert!(ended && !has(0) && has(1) && has(2) && has(3));
        // All have one now but for the newcomer's address.
        let (more, ended) = take(3);
        assert!(ended && !has(3) && has(1) && has(2));
        for place in [&held[2].0, &other, &more] {
            place.admitted.admit();
        }
        assert!(places.take(at(9)).is_none(), "nobody is a stranger");
        drop(more);
        assert!(!take(9).1);
        drop((held, other));
        assert_eq!(places.len(), 0);
    }
}
