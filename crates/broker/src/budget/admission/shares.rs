//! Shares of a place that all clients share: connections, topics, sessions, followers of interest, filters, questions about credentials.
//! Nobody may take it for all.
//!
//! A client may take one more while it holds less than what is free ([`HALF`]), or four times that ([`MOST`]), or eight times
//! ([`NEARLY_ALL`]), or little. So one client alone has half, four fifths or eight ninths, and each further one takes as much of the rest:
//! whatever a few do, something is free for one that holds little. Nothing is taken away from anybody.
//!
//! Clients are addresses, by their keyed hashes; those whose address no proxy has told are one client.

use alloc::collections::BTreeMap;

use super::client::Client;

/// A client may hold as much as is free: what four clients leave is still enough for others.
pub const HALF: usize = 1;
/// It may hold four times as much, of sessions: a gateway has those of all its devices, and the default limit is far off.
pub const MOST: usize = 4;
/// It may hold eight times as much, of connections: a proxy that names no clients has those of all of them, and so has a load test. Only
/// the last ninth is kept for others.
pub const NEARLY_ALL: usize = 8;
/// This is little: one that holds less may take one more as long as there is any.
const LITTLE: usize = 4;

/// Whether one that holds `own` may take one more of a place in which this many are free.
pub fn may_take(own: usize, free: usize, times: usize) -> bool {
    free > 0 && own < free.saturating_mul(times).max(LITTLE)
}

/// The clients that hold rows of a table, once the table is half full: before that nobody can have too many, and it costs nothing.
#[derive(Debug, Default)]
pub struct Holders {
    /// By row.
    holders: BTreeMap<u32, Client>,
    /// By client.
    held: BTreeMap<u32, u32>,
}

impl Holders {
    /// Whether this client may take one more row of a table with `taken` of at most `most` rows.
    pub fn may_take(&self, client: Client, taken: usize, most: usize) -> bool {
        may_take(self.held_by(client), most.saturating_sub(taken), HALF)
    }

    /// The client that is known to hold this row, if any.
    #[inline]
    pub fn holder(&self, row: u32) -> Client {
        let holder = self.holders.get(&row);
        holder.copied().unwrap_or(Client::NOBODY)
    }

    /// Rows that this client is known to hold.
    pub fn held_by(&self, client: Client) -> usize {
        self.held.get(&client.number()).copied().unwrap_or(0) as usize
    }

    /// The client takes a row of a table in which `taken` of at most `most` are taken then.
    #[inline]
    pub fn took(&mut self, row: u32, client: Client, taken: usize, most: usize) {
        if taken > most / 2 && client != Client::NOBODY {
            self.holders.insert(row, client);
            *self.held.entry(client.number()).or_default() += 1;
        }
    }

    /// A row is free again.
    #[inline]
    pub fn freed(&mut self, row: u32) {
        if !self.holders.is_empty() {
            self.forget(row);
        }
    }

    fn forget(&mut self, row: u32) {
        let Some(client) = self.holders.remove(&row) else {
            return;
        };
        if let Some(held) = self.held.get_mut(&client.number()) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(&client.number());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_some_take_something_is_left_for_one_that_has_little() {
        for (most, times) in [
            (64, HALF),
            (256, HALF),
            (1_000_000, MOST),
            (1_000_000, NEARLY_ALL),
        ] {
            // One after the other takes all that it gets: the worst order.
            let mut free = most;
            for _ in 0..4 {
                let mut held = 0;
                while may_take(held, free, times) {
                    (held, free) = (held + 1, free - 1);
                }
            }
            assert!(free > 3, "{most}: {free}");
        }
    }

    #[test]
    fn one_alone_has_its_share() {
        for (times, share) in [(HALF, 450), (MOST, 720), (NEARLY_ALL, 800)] {
            let all = (0..900).take_while(|own| may_take(*own, 900 - own, times));
            assert_eq!(all.count(), share);
        }
    }

    #[test]
    fn holders_are_known_from_half_on_and_forgotten_with_their_rows() {
        let (one, other) = (Client::from_number(6), Client::from_number(8));
        let mut holders = Holders::default();
        let mut taken = 0;
        while holders.may_take(one, taken, 100) {
            holders.took(taken as u32, one, taken + 1, 100);
            taken += 1;
        }
        assert_eq!((taken, holders.held_by(one)), (75, 25));
        assert!(holders.may_take(other, taken, 100));
        for row in 0..75 {
            holders.freed(row);
        }
        assert!(holders.holders.is_empty() && holders.held.is_empty());
    }
}
