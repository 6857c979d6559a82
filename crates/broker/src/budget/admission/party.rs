//! The party that makes the server hold something: a user, or else an address.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::client::Client;

const USER: u64 = 1 << 63;
const CONNECTION: u64 = 1 << 62;

/// The keyed hash of a user's name; without a name, that of the client's address; without an address, the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Party(u64);

impl Party {
    /// A user, by a name that is not empty.
    pub fn user(name: &str, seed: u64) -> Party {
        Party(xxh3_64_with_seed(name.as_bytes(), seed) | USER)
    }

    /// All clients without a name at that address, or only this connection if its address is unknown.
    pub fn without_name(client: Client, slot: u32) -> Party {
        match client.is_known() {
            true => Party(u64::from(client.number())),
            false => Party(u64::from(slot) | CONNECTION),
        }
    }

    /// Whether it is a user.
    pub fn is_user(self) -> bool {
        self.0 & USER != 0
    }

    /// As a number.
    pub fn number(self) -> u64 {
        self.0
    }

    /// Back from [`Party::number`].
    pub(crate) fn from_number(number: u64) -> Party {
        Party(number)
    }
}
