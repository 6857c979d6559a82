//! Limits on connections, sessions, publishes and topics: the counts of all shards of a process together, in atomics
//! that any shard may change, without a lock and without mail.
//!
//! Addresses have no rows. A keyed hash of the address leads to one counter in each of two tables, and the lower of the
//! two counts: addresses that share both counters share one limit, so a client may be refused too early, never too
//! late. The tables have enough counters to make this rare (see `client::LOAD_PART`), and the hash is keyed, so that
//! nobody can aim at another's counters.
//!
//! Invariants: every entry leaves once; a refused entry leaves nothing behind. Two that enter at the same moment may
//! both be refused where there was room for one; two messages that are kept at the same moment may both take the last
//! room. It only counts and refuses: `protocol::admission` has the answers to clients.

mod client;
mod party;
mod rate;

use alloc::sync::Arc;
use core::net::IpAddr;
use core::ops::Deref;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

pub use client::Client;
use client::Clients;
pub use party::Party;
use rate::{Buckets, Rate};

use crate::base::settings::Settings;
use crate::budget::account::Account;
use crate::budget::totals::Totals;

/// Which limit was reached: the process', or one client address'.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reached {
    /// Connections of the process.
    Connections,
    /// Connections of the address.
    ConnectionsOfAddress,
    /// Sessions of the address.
    SessionsOfAddress,
    /// Publishes in a second.
    Publishes,
    /// Publishes in a second from the address.
    PublishesOfAddress,
    /// Topics.
    Topics,
    /// Topics made in a second for the address.
    TopicsOfAddress,
    /// Bytes of the address' messages in logs.
    LogBytesOfAddress,
}

/// Shared by all shards, and by their worlds before and after a change of the settings: the counts go on.
#[derive(Clone, Debug)]
pub struct Admission(Arc<Counts>);

impl Deref for Admission {
    type Target = Counts;
    fn deref(&self) -> &Counts {
        &self.0
    }
}

/// The counts and the limits; every method may be called from any shard. In cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub struct Counts {
    connections: AtomicU32,
    connections_max: AtomicU32,
    clients: Option<Clients>,
    session_owners: Option<Clients>,
    log_owners: Option<Clients>,
    /// Of all clients together; 0 per second is no limit.
    publishes: (AtomicU64, AtomicU64),
    publishers: Option<Buckets>,
    topic_makers: Option<Buckets>,
    followers: AtomicU32,
    sessions: AtomicU32,
    sessions_max: AtomicU32,
    /// The memory that clients make all shards hold.
    pub account: Account,
    /// Sums of the shards' counts.
    pub totals: Totals,
    followers_max: AtomicU32,
    seed: u64,
}

impl Admission {
    /// The counts with these limits. `seed` keys the hash of addresses.
    pub fn new(settings: &Settings, seed: u64) -> Admission {
        let limits = &settings.limits;
        let counts = Counts {
            connections: AtomicU32::new(0),
            connections_max: AtomicU32::new(0),
            clients: Clients::new(
                limits.connections_per_address_max as usize,
                limits.connections_max,
            ),
            session_owners: Clients::new(
                settings.mqtt.sessions_per_address_max as usize,
                settings.mqtt.sessions_max as usize,
            ),
            log_owners: Clients::new(limits.log_bytes_per_address_max, limits.log_bytes),
            publishes: (AtomicU64::new(0), AtomicU64::new(0)),
            publishers: Buckets::new(
                limits.publishes_per_address_per_s,
                limits.publishes_per_address_burst,
            ),
            topic_makers: Buckets::new(
                limits.topics_per_address_per_s,
                limits.topics_per_address_burst,
            ),
            followers: AtomicU32::new(0),
            sessions: AtomicU32::new(0),
            sessions_max: AtomicU32::new(0),
            account: Account::new(limits.memory_bytes),
            totals: Totals::default(),
            followers_max: AtomicU32::new(0),
            seed,
        };
        counts.change(settings);
        Admission(Arc::new(counts))
    }
}

impl Counts {
    /// Changes the limits, except those of a client's address: the width of their tables depends on them.
    pub fn change(&self, settings: &Settings) {
        let limits = &settings.limits;
        let connections_max = u32::try_from(limits.connections_max).unwrap_or(u32::MAX);
        let rate = Rate::of(limits.publishes_per_s, limits.publishes_burst);
        self.connections_max.store(connections_max, Relaxed);
        self.publishes.0.store(Rate::pack(rate), Relaxed);
        self.account.change(limits.memory_bytes);
        self.sessions_max.store(settings.mqtt.sessions_max, Relaxed);
        self.followers_max
            .store(settings.interest.followers_max, Relaxed);
    }

    /// Connections that entered and have not left.
    pub fn connections(&self) -> u32 {
        self.connections.load(Relaxed)
    }

    /// The client that a connection from `address` is counted for.
    pub fn client(&self, address: IpAddr) -> Client {
        Client::of(address, self.seed)
    }

    /// A connection comes in, if there is room in the process.
    ///
    /// # Errors
    /// [`Reached::Connections`]; then it must not [`leave`](Self::leave).
    pub fn enter(&self) -> Result<(), Reached> {
        if self.connections.fetch_add(1, Relaxed) >= self.connections_max.load(Relaxed) {
            self.connections.fetch_sub(1, Relaxed);
            return Err(Reached::Connections);
        }
        Ok(())
    }

    /// A connection that entered is gone.
    pub fn leave(&self) {
        self.connections.fetch_sub(1, Relaxed);
    }

    /// A client has one more connection, if its address may.
    ///
    /// # Errors
    /// [`Reached::ConnectionsOfAddress`]; then it must not [`leave_client`](Self::leave_client).
    pub fn enter_client(&self, client: Client) -> Result<(), Reached> {
        match &self.clients {
            Some(clients) if client.is_known() && !clients.enter(client) => {
                Err(Reached::ConnectionsOfAddress)
            }
            _ => Ok(()),
        }
    }

    /// A client has one fewer connection.
    pub fn leave_client(&self, client: Client) {
        if let Some(clients) = &self.clients
            && client.is_known()
        {
            clients.subtract(client, 1);
        }
    }

    /// Whether there is room for another MQTT session. Homes that ask at the same moment may all hear yes.
    pub fn has_room_for_session(&self) -> bool {
        self.sessions.load(Relaxed) < self.sessions_max.load(Relaxed)
    }

    /// A home's sessions went from `before` to `after`.
    pub fn count_sessions(&self, before: u32, after: u32) {
        // A difference below zero is added as its complement.
        self.sessions.fetch_add(after.wrapping_sub(before), Relaxed);
    }

    /// A client has one more session, if its address may.
    ///
    /// # Errors
    /// [`Reached::SessionsOfAddress`]; then it must not [`leave_session`](Counts::leave_session).
    pub fn enter_session(&self, client: Client) -> Result<(), Reached> {
        match &self.session_owners {
            Some(owners) if client.is_known() && !owners.enter(client) => {
                Err(Reached::SessionsOfAddress)
            }
            _ => Ok(()),
        }
    }

    /// A session passes from one client to another, even past the limit: taking up a session creates none.
    pub fn move_session(&self, from: Client, to: Client) {
        if let Some(owners) = self.session_owners.as_ref().filter(|_| to.is_known()) {
            owners.add(to, 1);
        }
        self.leave_session(from);
    }

    /// A client has one fewer session.
    pub fn leave_session(&self, client: Client) {
        if let Some(owners) = self.session_owners.as_ref().filter(|_| client.is_known()) {
            owners.subtract(client, 1);
        }
    }

    /// A connection begins to follow; false when the limit is reached.
    pub fn enter_follower(&self) -> bool {
        let enters = self.followers.fetch_add(1, Relaxed) < self.followers_max.load(Relaxed);
        if !enters {
            self.followers.fetch_sub(1, Relaxed);
        }
        enters
    }

    /// A connection that followed is gone.
    pub fn leave_follower(&self) {
        let before = self.followers.fetch_sub(1, Relaxed);
        assert!(before > 0, "more have left than entered");
    }

    /// A client publishes a message in the second `unix_s`.
    ///
    /// # Errors
    /// When its address or the process has published as many as it may.
    pub fn publish(&self, client: Client, unix_s: u32) -> Result<(), Reached> {
        if !Buckets::take(&self.publishers, client, unix_s) {
            return Err(Reached::PublishesOfAddress);
        }
        let (rate, cell) = &self.publishes;
        match Rate::unpack(rate.load(Relaxed)) {
            Some(rate) if !rate.take(cell, unix_s) => Err(Reached::Publishes),
            _ => Ok(()),
        }
    }
}

impl Counts {
    /// A client makes a topic in the second `unix_s`.
    ///
    /// # Errors
    /// When its address has made as many as it may.
    pub fn make_topic(&self, client: Client, unix_s: u32) -> Result<(), Reached> {
        match Buckets::take(&self.topic_makers, client, unix_s) {
            true => Ok(()),
            false => Err(Reached::TopicsOfAddress),
        }
    }

    /// The client that a kept message is counted for: nobody, unless bytes of logs are counted.
    pub fn log_owner(&self, client: Client) -> Client {
        match &self.log_owners {
            Some(_) => client,
            None => Client::NOBODY,
        }
    }

    /// Whether a message of this client may be kept, with this many bytes.
    ///
    /// # Errors
    /// When the kept messages of its address leave no room for it.
    pub fn may_keep(&self, client: Client, bytes: usize) -> Result<(), Reached> {
        match &self.log_owners {
            Some(owners) if client.is_known() && !owners.has_room(client, bytes as u64) => {
                Err(Reached::LogBytesOfAddress)
            }
            _ => Ok(()),
        }
    }

    /// This many bytes of the client's are now kept.
    pub fn keep(&self, owner: Client, bytes: usize) {
        if let Some(owners) = self.log_owners.as_ref().filter(|_| owner.is_known()) {
            owners.add(owner, bytes as u64);
        }
    }

    /// This many bytes of the client's are no longer kept.
    pub fn drop_kept(&self, owner: Client, bytes: usize) {
        if let Some(owners) = self.log_owners.as_ref().filter(|_| owner.is_known()) {
            owners.subtract(owner, bytes as u64);
        }
    }

    /// Whether no message in any log is counted for anybody.
    pub fn keeps_nothing(&self) -> bool {
        self.log_owners.as_ref().is_none_or(Clients::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::settings::Limits;
    use core::net::{Ipv4Addr, Ipv6Addr};

    fn admission(change: impl FnOnce(&mut Limits)) -> Admission {
        let mut settings = Settings::default();
        change(&mut settings.limits);
        Admission::new(&settings, 7)
    }

    fn v4(n: u32) -> IpAddr {
        Ipv4Addr::from_bits(n).into()
    }

    #[test]
    fn the_process_takes_its_limit_and_again_what_has_left() {
        let admission = admission(|limits| limits.connections_max = 2);
        assert!(admission.enter().is_ok() && admission.enter().is_ok());
        assert_eq!(admission.enter(), Err(Reached::Connections));
        admission.leave();
        assert!(admission.enter().is_ok());
        assert_eq!(admission.connections(), 2);
    }

    #[test]
    fn an_address_takes_its_limit_and_a_refusal_leaves_nothing() {
        let admission = admission(|limits| limits.connections_per_address_max = 3);
        let (one, other) = (admission.client(v4(1)), admission.client(v4(2)));
        for _ in 0..3 {
            assert!(admission.enter_client(one).is_ok());
        }
        for _ in 0..9 {
            assert_eq!(
                admission.enter_client(one),
                Err(Reached::ConnectionsOfAddress)
            );
        }
        assert!(admission.enter_client(other).is_ok());
        admission.leave_client(one);
        assert!(admission.enter_client(one).is_ok());
        assert_eq!(
            admission.enter_client(one.relayed()),
            Err(Reached::ConnectionsOfAddress)
        );
    }

    #[test]
    fn a_session_counts_for_the_address_that_had_it_last() {
        let mut settings = Settings::default();
        settings.mqtt.sessions_per_address_max = 1;
        let admission = Admission::new(&settings, 7);
        let [one, other] = [1, 2].map(|n| admission.client(v4(n)));
        assert!(admission.enter_session(one).is_ok());
        assert_eq!(
            admission.enter_session(one),
            Err(Reached::SessionsOfAddress)
        );
        assert!(admission.enter_session(other).is_ok());
        // Taking up a session is never refused, and leaves room for its former address.
        admission.move_session(one, other);
        assert!(admission.enter_session(one).is_ok());
        admission.leave_session(other);
        assert_eq!(
            admission.enter_session(other),
            Err(Reached::SessionsOfAddress)
        );
        admission.leave_session(other);
        assert!(admission.enter_session(other).is_ok());
        for _ in 0..3 {
            assert!(admission.enter_session(Client::NOBODY).is_ok());
        }
    }

    #[test]
    fn one_customer_of_ipv6_is_one_client() {
        let of = |text: &str| Client::of(text.parse().unwrap(), 7);
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1:2:3"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        assert!(!Client::RELAYED.is_known() && Client::RELAYED.is_relayed());
        assert_eq!(Client::NOBODY.relayed(), Client::RELAYED);
        assert_ne!(
            Client::of(Ipv6Addr::LOCALHOST.into(), 7),
            Client::of(Ipv6Addr::LOCALHOST.into(), 8)
        );
    }

    /// The claim of the module: with as many addresses as connections are allowed, hardly anyone who stays below the
    /// limit is refused.
    #[test]
    fn few_are_refused_for_others() {
        let (addresses, each) = (20_000, 5);
        let admission = admission(|limits| {
            limits.connections_max = addresses * each;
            limits.connections_per_address_max = 10;
        });
        let refused = (0..each)
            .flat_map(|_| 0..addresses as u32)
            .filter(|n| admission.enter_client(admission.client(v4(*n))).is_err())
            .count();
        assert!(refused < addresses * each / 1000, "{refused} refused");
    }

    #[test]
    fn a_rate_is_a_burst_and_then_so_many_a_second() {
        let admission = admission(|limits| {
            limits.publishes_per_address_per_s = 10;
            limits.publishes_per_address_burst = 30;
            limits.publishes_per_s = 100;
        });
        let (one, other) = (admission.client(v4(1)), admission.client(v4(2)));
        let taken = |client, s| {
            (0..1_000)
                .take_while(|_| admission.publish(client, s).is_ok())
                .count()
        };
        assert_eq!(taken(one, 1_000), 30);
        assert_eq!(
            admission.publish(one, 1_000),
            Err(Reached::PublishesOfAddress)
        );
        assert_eq!(taken(one, 1_001), 10);
        assert_eq!(taken(one, 1_001), 0);
        // A clock that was set back gives nothing, and no extra when it has caught up.
        assert_eq!(taken(one, 900), 0);
        assert_eq!(taken(one, 1_002), 10);
        assert_eq!(taken(one, 9_999), 30);
        assert_eq!(taken(other, 9_999), 30);
        // Topics have a rate of their own, here without a limit.
        assert!((0..1_000).all(|_| admission.make_topic(one, 9_999).is_ok()));
        // Without an address only the process counts.
        assert_eq!(taken(Client::NOBODY, 9_999), 40);
        assert_eq!(
            admission.publish(Client::NOBODY, 9_999),
            Err(Reached::Publishes)
        );
    }

    #[test]
    fn what_is_kept_of_an_address_has_a_limit_and_makes_room_when_it_goes() {
        let admission = admission(|limits| limits.log_bytes_per_address_max = 1_000);
        let [one, other] = [1, 2].map(|n| admission.client(v4(n)));
        assert_eq!(admission.log_owner(one), one);
        admission.keep(one, 900);
        assert!(admission.may_keep(one, 100).is_ok());
        assert_eq!(
            admission.may_keep(one.relayed(), 101),
            Err(Reached::LogBytesOfAddress)
        );
        assert!(admission.may_keep(other, 1_000).is_ok());
        assert!(admission.may_keep(Client::NOBODY, 1 << 40).is_ok());
        admission.keep(Client::NOBODY, 1 << 40);
        admission.drop_kept(one, 300);
        assert!(admission.may_keep(one, 400).is_ok() && !admission.keeps_nothing());
        admission.drop_kept(one, 600);
        assert!(admission.keeps_nothing());
    }

    #[test]
    fn limits_that_change_are_held_and_the_counts_go_on() {
        let mut settings = Settings::default();
        settings.limits.connections_max = 2;
        let (admission, other) = {
            let admission = Admission::new(&settings, 7);
            (admission.clone(), admission)
        };
        assert!(other.enter().is_ok() && other.enter().is_ok());
        settings.limits.connections_max = 3;
        settings.limits.publishes_per_s = 4;
        admission.change(&settings);
        assert!(other.enter().is_ok());
        assert_eq!(other.enter(), Err(Reached::Connections));
        let published = || (0..9).filter(|_| other.publish(Client::NOBODY, 5).is_ok());
        assert_eq!(published().count(), 4);
        settings.limits.publishes_per_s = 0;
        admission.change(&settings);
        assert_eq!(published().count(), 9);
    }

    #[test]
    fn nothing_is_counted_that_has_no_limit() {
        let admission = admission(|_| ());
        let one = admission.client(v4(1));
        assert!((0..1_000).all(|_| admission.enter_client(one).is_ok()));
        assert!((0..1_000).all(|_| admission.publish(Client::NOBODY, 5).is_ok()));
        assert!((0..1_000).all(|_| admission.enter().is_ok()));
    }
}
