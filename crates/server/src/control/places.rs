//! The places for connections of the admin port, and the connection that loses its place when all are taken.
//!
//! A connection is a *stranger* until one of its requests was admitted (with `admin.token`, if that is set). When all places are taken, a new
//! connection replaces a stranger: the oldest of the address with the most strangers. So strangers, however many, do not
//! keep out a client that sends its request at once, and an admitted connection is never closed for another.
//!
//! Deliberately elsewhere: the checks of requests ([`super::gate`]), and connections for which no stranger makes room ([`super::port`]).

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
    /// By number, which grows with each arrival.
    connections: BTreeMap<u64, Connection>,
    next: u64,
}

struct Connection {
    from: Party,
    admitted: Admitted,
    task: Option<AbortHandle>,
}

/// A flag of a connection: one of its requests was admitted. Each request carries it to the gate, which sets it.
#[derive(Clone, Default)]
pub struct Admitted(Arc<AtomicBool>);

impl Admitted {
    /// Marks the connection: it is no longer a stranger.
    pub fn admit(&self) {
        self.0.store(true, Relaxed);
    }
}

/// A connection's place, which is freed when this is dropped.
pub struct Place {
    all: Arc<Places>,
    number: u64,
    pub admitted: Admitted,
}

impl Place {
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
    pub fn new(max: u32) -> Arc<Places> {
        let taken = Mutex::default();
        Arc::new(Places { max, taken })
    }

    pub fn max(&self) -> u32 {
        self.max
    }

    /// The number of taken places.
    pub fn len(&self) -> usize {
        self.taken().connections.len()
    }

    /// Sets the task that serves the connection of this place. It is aborted if the place is needed for another.
    pub fn hold(&self, number: u64, task: AbortHandle) {
        if let Some(connection) = self.taken().connections.get_mut(&number) {
            connection.task = Some(task);
        }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a connection from this address. Also returns whether a stranger was closed for it. None if all places belong to
    /// admitted connections.
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
    /// The oldest stranger of the address with the most strangers, where the new connection counts for `newcomer`.
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
        // Of several with the same count the first, which is the oldest.
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
        // Another of the first's address: that address has the most strangers now, so its older one is closed.
        let (other, ended) = take(1);
        assert!(ended && !has(0) && has(1) && has(2) && has(3));
        // Each address has one now; the newcomer's has one more.
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
