//! The party to which resources are charged: a user, or the address of clients without a user name.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::client::Client;

const USER: u64 = 1 << 63;
const CONNECTION: u64 = 1 << 62;
const SESSION: u64 = 1 << 61;

/// The keyed hash of a user's name. For a client without a name it is the keyed hash of its address, or the row of its connection
/// ([`Party::of_connection`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Party(u64);

impl Party {
    /// The user with this name, which must not be empty.
    pub fn user(name: &str, seed: u64) -> Party {
        Party(xxh3_64_with_seed(name.as_bytes(), seed) | USER)
    }

    /// The clients without a name at an address. If the address is unknown, only the connection in row `slot`.
    pub fn of_connection(client: Client, slot: u32) -> Party {
        match client.is_known() {
            true => Party::of_address(client),
            false => Party(u64::from(slot) | CONNECTION),
        }
    }

    /// The clients without a name at an address. All clients of unknown address are one party.
    pub fn of_address(client: Client) -> Party {
        Party(u64::from(client.number()))
    }

    /// Who is charged for an MQTT session. The name of a session may contain a NUL and after it a user: then it is this user. Else it is the address
    /// of `owner`.
    pub fn of_session(name: &[u8], owner: Client, seed: u64) -> Party {
        let user = name.splitn(2, |byte| *byte == 0).nth(1).unwrap_or_default();
        match core::str::from_utf8(user) {
            Ok(user) if !user.is_empty() => Party::user(user, seed),
            _ => Party::of_address(owner),
        }
    }

    /// The publisher of an MQTT session's QoS 2 messages, in the keys of these messages. It only has the form of a party: nothing is charged to it.
    /// `token` must not be 0; its three highest bits do not count.
    pub fn qos2_publisher(token: u64) -> Party {
        Party(token & (SESSION - 1) | SESSION)
    }

    /// Whether the party is an MQTT session.
    pub fn is_qos2_publisher(self) -> bool {
        self.0 & (USER | CONNECTION | SESSION) == SESSION
    }

    /// The key that selects the party's counters.
    pub(super) fn counter_key(self) -> Client {
        Client::from_number((self.0 ^ self.0 >> 32) as u32)
    }

    /// The party's group. Each of the `groups` groups is equally likely.
    #[inline]
    pub fn group(self, groups: usize) -> usize {
        // Not all bits are random: of an address the 32 high bits are zero and the two low bits hardly vary. So they are mixed by a multiplication
        // (Fibonacci hashing).
        let hash = self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        ((hash * groups as u64) >> 32) as usize
    }

    /// Whether the party is a user.
    pub fn is_user(self) -> bool {
        self.0 & USER != 0
    }

    /// The party as a number.
    pub fn number(self) -> u64 {
        self.0
    }

    /// The inverse of [`Party::number`].
    pub(crate) fn from_number(number: u64) -> Party {
        Party(number)
    }
}
