//! Fair shares of a limited resource, so that no client can use up the resource. The resources are connections, topics, sessions,
//! filters, questions about credentials, and followers of interest (which topics have subscribers).
//!
//! A client may take one more while it holds little, or less than the free amount times a factor: 1 ([`HALF`]), 4 ([`MOST`]) or 8 ([`NEARLY_ALL`]). So
//! the first client can get half, four fifths or eight ninths of the resource, and the next client the same fraction of what is left. Whatever a few
//! clients take, something remains for a client that holds little. No client loses what it has.
//!
//! Clients are keyed hashes of addresses. All clients of unknown address count as one.

use alloc::collections::BTreeMap;

use super::client::Client;

/// A client may hold as much as is free. Four clients that take all they can get leave one sixteenth for others.
pub const HALF: usize = 1;
/// A client may hold four times the free amount. Used for sessions, since a gateway has the sessions of all its devices and the default limit is high,
/// and for idempotency keys.
pub const MOST: usize = 4;
/// A client may hold eight times the free amount. Used for connections, since a proxy that does not name its clients has the connections of all of them,
/// and a load test comes from one address. Also used for the disk.
pub const NEARLY_ALL: usize = 8;
/// A client that holds less than this number may take one more as long as any is free.
const LITTLE: usize = 4;

/// Whether a client that holds `held` may take one more, if `free` are free. `factor` is one of those above.
pub fn may_take(held: usize, free: usize, factor: usize) -> bool {
    free > 0 && held < free.saturating_mul(factor).max(LITTLE)
}

/// The clients that hold rows of a table. Rows are recorded only while the table is more than half full. Before that nobody can
/// hold too many, and the records would cost memory.
#[derive(Debug, Default)]
pub struct Holders {
    /// The client of each recorded row.
    holder_by_row: BTreeMap<u32, Client>,
    /// The number of recorded rows, by client.
    row_counts: BTreeMap<u32, u32>,
}

impl Holders {
    /// Whether this client may take one more row of a table that has `taken` rows and may have `rows_max`.
    pub fn may_take(&self, client: Client, taken: usize, rows_max: usize) -> bool {
        may_take(self.held_by(client), rows_max.saturating_sub(taken), HALF)
    }

    /// The client of this row, or [`Client::NOBODY`] if the row is not recorded.
    #[inline]
    pub fn holder(&self, row: u32) -> Client {
        let holder = self.holder_by_row.get(&row);
        holder.copied().unwrap_or(Client::NOBODY)
    }

    /// The number of rows that are recorded for this client.
    pub fn held_by(&self, client: Client) -> usize {
        self.row_counts.get(&client.number()).copied().unwrap_or(0) as usize
    }

    /// Records that the client has taken a row of a table that now has `taken` rows and may have `rows_max`.
    #[inline]
    pub fn record_row(&mut self, row: u32, client: Client, taken: usize, rows_max: usize) {
        if taken > rows_max / 2 && client != Client::NOBODY {
            self.holder_by_row.insert(row, client);
            *self.row_counts.entry(client.number()).or_default() += 1;
        }
    }

    /// Called when a row becomes free.
    #[inline]
    pub fn forget_row(&mut self, row: u32) {
        if !self.holder_by_row.is_empty() {
            self.forget_recorded_row(row);
        }
    }

    fn forget_recorded_row(&mut self, row: u32) {
        let Some(client) = self.holder_by_row.remove(&row) else {
            return;
        };
        if let Some(held) = self.row_counts.get_mut(&client.number()) {
            *held -= 1;
            if *held == 0 {
                self.row_counts.remove(&client.number());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn something_is_left_for_a_client_that_holds_little() {
        for (most, times) in [
            (64, HALF),
            (256, HALF),
            (1_000_000, MOST),
            (1_000_000, NEARLY_ALL),
        ] {
            // In the worst order, one client after another takes all that it can get.
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
    fn single_client_gets_the_fraction_of_its_factor() {
        for (times, share) in [(HALF, 450), (MOST, 720), (NEARLY_ALL, 800)] {
            let all = (0..900).take_while(|own| may_take(*own, 900 - own, times));
            assert_eq!(all.count(), share);
        }
    }

    #[test]
    fn holders_are_recorded_while_the_table_is_half_full_and_forgotten_with_their_rows() {
        let (one, other) = (Client::from_number(6), Client::from_number(8));
        let mut holders = Holders::default();
        let mut taken = 0;
        while holders.may_take(one, taken, 100) {
            holders.record_row(taken as u32, one, taken + 1, 100);
            taken += 1;
        }
        assert_eq!((taken, holders.held_by(one)), (75, 25));
        assert!(holders.may_take(other, taken, 100));
        for row in 0..75 {
            holders.forget_row(row);
        }
        assert!(holders.holder_by_row.is_empty() && holders.row_counts.is_empty());
    }
}
