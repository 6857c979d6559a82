//! Limits on connections, sessions, publishes and topics, over all shards of the process. The counters are atomics that any shard may change, without
//! a lock and without mail.
//!
//! Counters by address are a count-min sketch: the keyed hash of an address selects one counter in each of two tables, and the lower count is used.
//! Addresses that share both counters share one limit, so a client may be refused too early, but never too late. The tables are large enough to make
//! this rare (`client::COUNTERS_PER_FULL_CLIENT`). The key of the hash is secret, so nobody can aim at another client's counters.
//!
//! Invariants: each successful `enter` is followed by one `leave`, and a refused `enter` changes nothing. Two concurrent `enter`s may both be refused
//! although there is room for one. Two messages that two shards keep at the same time may exceed a limit together.
//!
//! Deliberately elsewhere: the answers to refused clients (`client/admission.rs`, `protocol/http/turned_away.rs`).

mod client;
mod disk;
pub mod holdings;
mod interruptions;
pub mod keys;
mod party;
mod rate;
pub mod shares;
/// Counts a connection, if the limit and the client's share have room.
fn enter_quota(quota: &Quota<CountsByClient>, client: Client) -> bool {
    let owners = &quota.by_client;
    let taken = quota.taken.fetch_add(1, Relaxed);
    let free = quota.limit.load(Relaxed).saturating_sub(taken) as usize;
    let held = match client.is_known() {
        true => owners.count(client) as usize,
        false => 0,
    };
    let enters = shares::may_take(held, free, shares::HALF);
    if !enters {
        quota.taken.fetch_sub(1, Relaxed);
    } else if client.is_known() {
        owners.add(client, 1);
    }
    enters
}

/// Ends the count of a connection.
fn leave_quota(quota: &Quota<CountsByClient>, client: Client) {
    if client.is_known() {
        quota.by_client.subtract(client, 1);
    }
    let before = quota.taken.fetch_sub(1, Relaxed);
    assert!(before > 0, "more have left than entered");
}

#[cfg(test)]
mod tests;
pub mod valve;

use alloc::sync::Arc;
use core::net::IpAddr;
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

pub use client::Client;
use client::CountsByClient;
use disk::Disk;
use interruptions::Interruptions;
use keys::KeyCounts;
pub use party::Party;
use rate::{Buckets, Rate};
use valve::Valve;

use crate::base::reason::Reason;
use crate::base::settings::Settings;
use crate::budget::account::MemoryAccount;
use crate::budget::totals::Totals;

/// A node of a cluster is not ready if it has not read one of its own heartbeats from the log for this time.
pub const CUT_OFF_S: u32 = 5;
/// If the node's own heartbeats arrive further apart than this, the node may have missed heartbeats of others.
pub(crate) const HEARTBEAT_GAP_S: u32 = 2;
/// Publishers wait for room in the full log of a cluster for this many seconds before they are refused. A checkpoint, which makes room, takes less time.
const WAITS_S: u32 = 5;
/// The channels for which a connection counts in the size of the table of users' channels. With more, users that share counters reach the limit earlier.
const CHANNELS_PER_CONNECTION: usize = 16;
/// The number of hashes in [`RecentNames`]: 16 KiB.
const RECENT_NAMES: usize = 4096;

/// The limits and counters of admission. All shards share them, and the counters survive a change of the settings.
#[derive(Clone, Debug)]
pub struct Admission(Arc<Counts>);

impl Deref for Admission {
    type Target = Counts;
    fn deref(&self) -> &Counts {
        &self.0
    }
}

/// The limits and counters. All methods may be called from any shard. Aligned, so that no other data shares a cache line with them.
#[derive(Debug)]
#[repr(align(128))]
pub struct Counts {
    connections: Quota<CountsByClient>,
    /// The number of connections for which all shards together have descriptors. 0 if no shard has reported.
    connections_room: AtomicU64,
    /// MQTT sessions, with or without a connection.
    sessions: Quota<CountsByClient>,
    /// The same sessions, by their users.
    user_sessions: CountsByClient,
    /// Subscriptions of Centrifugo's protocol, by their users; `None` without a limit.
    user_channels: Option<CountsByClient>,
    /// Followers of interest (which topics have subscribers).
    followers: Quota<CountsByClient>,
    /// Watchers of who is present in topics.
    watchers: Quota<CountsByClient>,
    kept: KeptByClient,
    /// Bytes that may outlive the connections of a party (address or user): of its absent MQTT sessions (sessions without a connection), and of its calls to the
    /// backend.
    absent_session_bytes: Option<CountsByClient>,
    rates: Rates,
    /// The memory that clients make all shards hold.
    pub account: MemoryAccount,
    /// Sums over all shards, for reports.
    pub totals: Totals,
    /// The number of idempotency keys of all homes (parts of shards that keep topics).
    pub keys: KeyCounts,
    /// Backpressure: the parties that must wait while carriers (shards with subscribers) are behind.
    pub valve: Valve,
    /// MQTT clients of a cluster whose sessions are shorter than they asked for, and which the operator's log has named recently.
    pub short_sessions: RecentNames,
    engine: EngineState,
    /// The interruptions of this node of a cluster: times in which it did not read the log.
    pub interruptions: Interruptions,
    seed: u64,
}

/// Hashes of the names that the operator's log has mentioned recently. The table has a fixed size: a hash replaces an earlier hash in its place.
#[derive(Debug)]
pub struct RecentNames([AtomicU32; RECENT_NAMES]);

impl Default for RecentNames {
    fn default() -> RecentNames {
        RecentNames([const { AtomicU32::new(0) }; RECENT_NAMES])
    }
}

impl RecentNames {
    /// Whether the table has this hash.
    pub fn has(&self, hash: u32) -> bool {
        self.place(hash).load(Relaxed) == hash | 1
    }

    /// Adds a hash.
    pub fn add(&self, hash: u32) {
        self.place(hash).store(hash | 1, Relaxed);
    }

    fn place(&self, hash: u32) -> &AtomicU32 {
        &self.0[(hash >> 1) as usize % RECENT_NAMES]
    }
}

/// A resource with a limited number of places (such as connections): how many are taken, the limit, and how many each client has taken.
#[derive(Debug)]
struct Quota<C> {
    taken: AtomicU32,
    limit: AtomicU32,
    by_client: C,
}

impl<C> Quota<C> {
    fn new(by_client: C) -> Quota<C> {
        Quota {
            taken: AtomicU32::new(0),
            limit: AtomicU32::new(0),
            by_client,
        }
    }
}

/// Bytes of kept messages by client.
#[derive(Debug)]
struct KeptByClient {
    by_client: CountsByClient,
    /// Whether the bytes are counted: only if each client has a limit, or the messages are on disk.
    is_counted: AtomicBool,
}

/// The state of the engine, as the shards know it.
#[derive(Debug, Default)]
struct EngineState {
    /// The engine's disk is full: the engine takes no records.
    disk_is_full: AtomicBool,
    disk: Disk,
    /// The second in which the log of the cluster became full; 0 while it has room.
    log_full_s: AtomicU32,
    /// The second in which this node read its last heartbeat from the cluster's log.
    heartbeat_s: AtomicU32,
    /// The second in which this node last knew the members of topics at every other node.
    presence_s: AtomicU32,
}

/// Rate limits of publishes and of new topics.
#[derive(Debug)]
struct Rates {
    /// The rate limit for the publishes of all clients together ([`Rate::pack`]).
    publishes: AtomicU64,
    /// The token bucket of this rate limit.
    publish_bucket: AtomicU64,
    publishers: Option<Buckets>,
    topic_makers: Option<Buckets>,
}

impl Admission {
    /// Admission with these limits. `seed` keys the hash of addresses.
    pub fn new(settings: &Settings, seed: u64) -> Admission {
        let limits = &settings.limits;
        let counts = Counts {
            connections: Quota::new(
                CountsByClient::new(
                    limits.connections_per_address_max as usize,
                    limits.connections_max,
                )
                .unwrap_or_else(CountsByClient::without_limit),
            ),
            connections_room: AtomicU64::new(0),
            sessions: Quota::new(
                CountsByClient::new(
                    settings.mqtt.sessions_per_address_max as usize,
                    settings.mqtt.sessions_max as usize,
                )
                .unwrap_or_else(CountsByClient::without_limit),
            ),
            user_sessions: CountsByClient::new(
                settings.mqtt.sessions_per_user_max as usize,
                settings.mqtt.sessions_max as usize,
            )
            .unwrap_or_else(CountsByClient::without_limit),
            user_channels: CountsByClient::new(
                settings.centrifugo.channels_per_user_max as usize,
                limits
                    .connections_max
                    .saturating_mul(CHANNELS_PER_CONNECTION),
            ),
            followers: Quota::new(CountsByClient::without_limit()),
            watchers: Quota::new(CountsByClient::without_limit()),
            kept: KeptByClient {
                by_client: CountsByClient::new(limits.log_bytes_per_address_max, limits.log_bytes)
                    .unwrap_or_else(CountsByClient::without_limit),
                is_counted: AtomicBool::new(limits.log_bytes_per_address_max > 0),
            },
            absent_session_bytes: CountsByClient::new(limits.little_bytes(), limits.memory_bytes),
            rates: Rates {
                publishes: AtomicU64::new(0),
                publish_bucket: AtomicU64::new(0),
                publishers: Buckets::new(
                    limits.publishes_per_address_per_s,
                    limits.publishes_per_address_burst,
                ),
                topic_makers: Buckets::new(
                    limits.topics_per_address_per_s,
                    limits.topics_per_address_burst,
                ),
            },
            account: MemoryAccount::new(limits.memory_bytes),
            totals: Totals::default(),
            keys: KeyCounts::default(),
            valve: Valve::default(),
            short_sessions: RecentNames::default(),
            engine: EngineState::default(),
            interruptions: Interruptions::default(),
            seed,
        };
        counts.change_limits(settings);
        Admission(Arc::new(counts))
    }
}

impl Counts {
    /// Changes the limits, except the limits by address: the size of the tables depends on these.
    pub fn change_limits(&self, settings: &Settings) {
        let limits = &settings.limits;
        let connections_max = u32::try_from(limits.connections_max).unwrap_or(u32::MAX);
        let rate = Rate::new(limits.publishes_per_s, limits.publishes_burst);
        self.connections.limit.store(connections_max, Relaxed);
        self.rates.publishes.store(Rate::pack(rate), Relaxed);
        self.account.set_limit(limits.memory_bytes);
        self.sessions
            .limit
            .store(settings.mqtt.sessions_max, Relaxed);
        self.followers
            .limit
            .store(settings.interest.followers_max, Relaxed);
        self.watchers
            .limit
            .store(settings.presence.watchers_max, Relaxed);
    }

    /// The number of connections that entered and have not left.
    pub fn connections(&self) -> u32 {
        self.connections.taken.load(Relaxed)
    }

    /// The client with this address.
    pub fn client(&self, address: IpAddr) -> Client {
        Client::from_address(address, self.seed)
    }

    /// Admits a connection, if the process has room.
    ///
    /// # Errors
    /// [`Reason::ConnectionsFull`]. A refused connection must not [`leave`](Self::leave).
    pub fn enter(&self) -> Result<(), Reason> {
        if self.connections.taken.fetch_add(1, Relaxed) >= self.connections.limit.load(Relaxed) {
            self.connections.taken.fetch_sub(1, Relaxed);
            return Err(Reason::ConnectionsFull);
        }
        Ok(())
    }

    /// Called when an admitted connection is closed.
    pub fn leave(&self) {
        self.connections.taken.fetch_sub(1, Relaxed);
    }

    /// Adds the number of connections for which a shard has descriptors.
    pub fn add_room(&self, connections: u32) {
        self.connections_room.fetch_add(connections.into(), Relaxed);
    }

    /// How many more connections may be admitted.
    fn free_connections(&self) -> usize {
        let limit = u64::from(self.connections.limit.load(Relaxed));
        let limit = match self.connections_room.load(Relaxed) {
            0 => limit,
            room => limit.min(room),
        };
        limit.saturating_sub(self.connections().into()) as usize
    }

    /// Counts an admitted connection for its client, if that is within the client's limit and its share of all connections.
    ///
    /// # Errors
    /// [`Reason::ConnectionsOfAddress`] above the limit, [`Reason::ConnectionsFull`] above the share. A refused connection must not
    /// [`leave_client`](Self::leave_client).
    pub fn enter_client(&self, client: Client) -> Result<(), Reason> {
        let owners = &self.connections.by_client;
        if !client.is_known() {
            return Ok(());
        }
        // `enter` has counted the connection itself, so its place counts as free.
        let free = self.free_connections() + 1;
        if !shares::may_take(owners.count(client) as usize, free, shares::NEARLY_ALL) {
            return Err(Reason::ConnectionsFull);
        }
        match owners.try_add_one(client) {
            true => Ok(()),
            false => Err(Reason::ConnectionsOfAddress),
        }
    }

    /// Called when a connection that was counted for its client is closed.
    pub fn leave_client(&self, client: Client) {
        if client.is_known() {
            self.connections.by_client.subtract(client, 1);
        }
    }

    /// Whether there is room for another MQTT session. Homes that ask concurrently may all get true.
    pub fn has_room_for_session(&self) -> bool {
        self.sessions.taken.load(Relaxed) < self.sessions.limit.load(Relaxed)
    }

    /// Counts a change of a home's number of sessions.
    pub fn count_sessions(&self, before: u32, after: u32) {
        // For a decrease, both operations wrap around.
        self.sessions
            .taken
            .fetch_add(after.wrapping_sub(before), Relaxed);
    }

    /// Counts a session with this name for its client and its user, if that is within their limits and their shares of all sessions.
    ///
    /// # Errors
    /// [`Reason::SessionsOfAddress`], [`Reason::SessionsOfUser`]. A refused session must not [`leave_session`](Counts::leave_session).
    pub fn enter_session(&self, client: Client, name: &[u8]) -> Result<(), Reason> {
        let (taken, most) = (
            self.sessions.taken.load(Relaxed),
            self.sessions.limit.load(Relaxed),
        );
        let free = most.saturating_sub(taken) as usize;
        let enters = |counts: &CountsByClient, key| {
            shares::may_take(counts.count(key) as usize, free, shares::MOST)
                && counts.try_add_one(key)
        };
        if client.is_known() && !enters(&self.sessions.by_client, client) {
            return Err(Reason::SessionsOfAddress);
        }
        match self.user_of_session(name) {
            Some(user) if !enters(&self.user_sessions, user) => {
                if client.is_known() {
                    self.sessions.by_client.subtract(client, 1);
                }
                Err(Reason::SessionsOfUser)
            }
            _ => Ok(()),
        }
    }

    /// Whether [`enter_session`](Self::enter_session) would succeed. Counts nothing.
    pub fn may_enter_session(&self, client: Client, name: &[u8]) -> bool {
        let enters = self.has_room_for_session() && self.enter_session(client, name).is_ok();
        if enters {
            self.leave_session(client, name);
        }
        enters
    }

    /// Counts a session that was read, or that another node has begun, even above the limits.
    pub fn begin_session(&self, client: Client, name: &[u8]) {
        if client.is_known() {
            self.sessions.by_client.add(client, 1);
        }
        if let Some(user) = self.user_of_session(name) {
            self.user_sessions.add(user, 1);
        }
    }

    /// The key of the counters of the user of this session, if it has one.
    fn user_of_session(&self, name: &[u8]) -> Option<Client> {
        let party = self.party_of_session(name, Client::NOBODY);
        party.is_user().then(|| party.counter_key())
    }

    /// Counts a session for another client than before, even above that client's limit, since no session is created.
    pub fn move_session(&self, from: Client, to: Client) {
        if to.is_known() {
            self.sessions.by_client.add(to, 1);
        }
        if from.is_known() {
            self.sessions.by_client.subtract(from, 1);
        }
    }

    /// Called when a counted session with this name has ended.
    pub fn leave_session(&self, client: Client, name: &[u8]) {
        if client.is_known() {
            self.sessions.by_client.subtract(client, 1);
        }
        if let Some(user) = self.user_of_session(name) {
            self.user_sessions.subtract(user, 1);
        }
    }

    /// The party that is charged for an MQTT session.
    pub fn party_of_session(&self, name: &[u8], owner: Client) -> Party {
        Party::of_session(name, owner, self.seed)
    }

    /// Bytes of the party's absent sessions at all homes, and of its calls to the backend. May include those of parties that share counters with this party.
    pub fn absent_bytes(&self, party: Party) -> usize {
        let absent = self.absent_session_bytes.as_ref();
        absent.map_or(0, |absent| absent.count(party.counter_key()) as usize)
    }

    /// Counts a change of the party's [`absent_bytes`](Self::absent_bytes) by one session or call.
    pub fn change_absent(&self, party: Party, before: usize, after: usize) {
        let Some(absent) = &self.absent_session_bytes else {
            return;
        };
        match after > before {
            true => absent.add(party.counter_key(), (after - before) as u64),
            false => absent.subtract(party.counter_key(), (before - after) as u64),
        }
    }

    /// Whether no absent session is counted.
    pub fn has_no_absent(&self) -> bool {
        self.absent_session_bytes
            .as_ref()
            .is_none_or(CountsByClient::is_empty)
    }

    /// Whether the channels of users have a limit.
    pub fn counts_channels(&self) -> bool {
        self.user_channels.is_some()
    }

    /// Whether a user may have so many more channels.
    pub fn has_room_for_channels(&self, user: Party, more: usize) -> bool {
        let counts = self.user_channels.as_ref();
        counts.is_none_or(|it| it.has_room(user.counter_key(), more as u64))
    }

    /// Counts a channel of a user.
    pub fn add_channel(&self, user: Party) {
        if let Some(counts) = &self.user_channels {
            counts.add(user.counter_key(), 1);
        }
    }

    /// Called when counted channels of a user have ended.
    pub fn subtract_channels(&self, user: Party, ended: u64) {
        if let Some(counts) = &self.user_channels {
            counts.subtract(user.counter_key(), ended);
        }
    }

    /// Counts a connection that begins to follow interest. False if the limit or the client's share is reached.
    pub fn enter_follower(&self, client: Client) -> bool {
        enter_quota(&self.followers, client)
    }

    /// Called when a counted follower is closed.
    pub fn leave_follower(&self, client: Client) {
        leave_quota(&self.followers, client);
    }

    /// Counts a connection that begins to watch who is present. False if the limit or the client's share is reached.
    pub fn enter_watcher(&self, client: Client) -> bool {
        enter_quota(&self.watchers, client)
    }

    /// Called when a counted watcher is closed.
    pub fn leave_watcher(&self, client: Client) {
        leave_quota(&self.watchers, client);
    }

    /// Counts a publish in the second `unix_s`.
    ///
    /// # Errors
    /// When the rate limit of the client's address or of the process is reached.
    pub fn count_publish(&self, client: Client, unix_s: u32) -> Result<(), Reason> {
        if !Buckets::take_token(&self.rates.publishers, client, unix_s) {
            return Err(Reason::PublishRateOfAddress);
        }
        let rates = &self.rates;
        match Rate::unpack(rates.publishes.load(Relaxed)) {
            Some(rate) if !rate.take_token(&rates.publish_bucket, unix_s) => {
                Err(Reason::PublishRate)
            }
            _ => Ok(()),
        }
    }

    /// Counts a new topic in the second `unix_s`.
    ///
    /// # Errors
    /// When the rate limit of the client's address is reached.
    pub fn count_new_topic(&self, client: Client, unix_s: u32) -> Result<(), Reason> {
        match Buckets::take_token(&self.rates.topic_makers, client, unix_s) {
            true => Ok(()),
            false => Err(Reason::TopicRateOfAddress),
        }
    }

    /// Whether kept messages are counted by client.
    pub fn counts_kept_bytes(&self) -> bool {
        self.kept.is_counted.load(Relaxed)
    }

    /// Counts kept messages by client from now on, since clients have shares of the disk. Called before any message is kept.
    pub fn begin_counting_kept_bytes(&self) {
        self.kept.is_counted.store(true, Relaxed);
    }

    /// Checks that a message of this client may be kept.
    ///
    /// # Errors
    /// When the message would exceed the limit of kept bytes of the client's address.
    pub fn check_kept_bytes(&self, client: Client, bytes: usize) -> Result<(), Reason> {
        match !client.is_known() || self.kept.by_client.has_room(client, bytes as u64) {
            true => Ok(()),
            false => Err(Reason::LogOfAddress),
        }
    }

    /// Checks that the engine may write messages of a client. The disk must have room, and the client must be within its share of the disk: with its kept
    /// bytes, and also with the bytes that it has written since room was last freed.
    ///
    /// # Errors
    /// [`Reason::DiskFull`], or in a cluster [`Reason::LogFull`] once the log has been full for `WAITS_S`.
    pub fn check_disk_share(&self, client: Client, unix_s: u32) -> Result<(), Reason> {
        let EngineState {
            disk_is_full, disk, ..
        } = &self.engine;
        if self.log_is_full_for(unix_s).is_some_and(|it| it >= WAITS_S) {
            return Err(Reason::LogFull);
        }
        let held_bytes = || {
            self.kept
                .by_client
                .count(client)
                .max(disk.written_bytes.count(client))
        };
        if disk_is_full.load(Relaxed) {
            return Err(Reason::DiskFull);
        }
        if !disk.may_take(held_bytes()) {
            disk.has_refused_share.store(true, Relaxed);
            return Err(Reason::DiskFull);
        }
        Ok(())
    }

    /// Whether a client was refused for its share of the disk since the last call.
    pub fn take_refused_share(&self) -> bool {
        self.engine.disk.has_refused_share.swap(false, Relaxed)
    }

    /// Counts the bytes of a message of this client that goes to the engine's disk.
    pub fn add_written(&self, client: Client, bytes: usize) {
        self.engine.disk.written_bytes.add(client, bytes as u64);
    }

    /// Whether this client may write records of its existing sessions. Even a full disk, and the full log of a cluster, have spare room for such records,
    /// and each client gets a part of it.
    ///
    /// # Errors
    /// [`Reason::DiskFull`], [`Reason::LogFull`].
    pub fn check_session_write(&self, client: Client) -> Result<(), Reason> {
        let disk = &self.engine.disk;
        match self.reason_of_full_engine() {
            Some(reason) if !disk.may_take_spare(disk.spare_bytes.count(client)) => Err(reason),
            _ => Ok(()),
        }
    }

    /// Why the engine takes no messages; `None` if it does.
    fn reason_of_full_engine(&self) -> Option<Reason> {
        if self.engine.disk_is_full.load(Relaxed) {
            return Some(Reason::DiskFull);
        }
        (self.engine.log_full_s.load(Relaxed) != 0).then_some(Reason::LogFull)
    }

    /// Counts the bytes of a session's record of this client that goes to the engine's disk.
    pub fn add_written_session(&self, client: Client, bytes: usize) {
        let disk = &self.engine.disk;
        disk.written_bytes.add(client, bytes as u64);
        if self.reason_of_full_engine().is_some() {
            disk.spare_bytes.add(client, bytes as u64);
        }
    }

    /// Sets the free bytes and the size of the engine's disk.
    pub fn set_disk_room(&self, free_bytes: u64, all_bytes: u64) {
        self.engine.disk.set_room(free_bytes, all_bytes);
    }

    /// Sets whether the engine's disk is full.
    pub fn set_disk_full(&self, is_full: bool) {
        if self.engine.disk_is_full.swap(is_full, Relaxed) && !is_full {
            self.engine.disk.spare_bytes.clear();
        }
    }

    /// Sets the second in which the cluster's log became full; 0 when it has room again.
    pub fn set_log_full(&self, unix_s: u32) {
        if self.engine.log_full_s.swap(unix_s, Relaxed) != 0 && unix_s == 0 {
            self.engine.disk.spare_bytes.clear();
        }
    }

    /// Seconds since the cluster's log became full; `None` while it has room.
    fn log_is_full_for(&self, unix_s: u32) -> Option<u32> {
        match self.engine.log_full_s.load(Relaxed) {
            0 => None,
            since_s => Some(unix_s.saturating_sub(since_s)),
        }
    }

    /// Whether publishers wait for the next checkpoint to make room in the cluster's full log. After `WAITS_S` they are [refused](Self::check_disk_share).
    #[inline]
    pub fn waits_for_log(&self, unix_s: u32) -> bool {
        self.log_is_full_for(unix_s).is_some_and(|it| it < WAITS_S)
    }

    /// Records that this node has read its own heartbeat from the cluster's log.
    pub fn note_heartbeat(&self, unix_s: u32) {
        self.engine.heartbeat_s.store(unix_s, Relaxed);
    }

    /// Whether this node may be cut off from the log: it has not read a heartbeat of its own for `CUT_OFF_S`, or never.
    pub fn is_cut_off(&self, unix_s: u32) -> bool {
        unix_s.saturating_sub(self.engine.heartbeat_s.load(Relaxed)) >= CUT_OFF_S
    }

    /// Records that this node has known the members of topics at every other node in this second.
    pub fn note_presence(&self, unix_s: u32) {
        self.engine.presence_s.store(unix_s, Relaxed);
    }

    /// The age of this node's knowledge of the members of topics at other nodes, in seconds.
    pub fn presence_age_s(&self, unix_s: u32) -> u32 {
        unix_s.saturating_sub(self.engine.presence_s.load(Relaxed))
    }

    /// Whether more time has passed since the node's last heartbeat in the log than between two heartbeats.
    pub(crate) fn misses_heartbeats(&self, unix_s: u32) -> bool {
        unix_s.saturating_sub(self.engine.heartbeat_s.load(Relaxed)) > HEARTBEAT_GAP_S
    }

    /// Counts a message of this client that the log begins to keep.
    pub fn add_kept(&self, owner: Client, bytes: usize) {
        if self.counts_kept_bytes() && owner.is_known() {
            self.kept.by_client.add(owner, bytes as u64);
        }
    }

    /// Subtracts a message of this client that the log no longer keeps.
    pub fn drop_kept(&self, owner: Client, bytes: usize) {
        if self.counts_kept_bytes() && owner.is_known() {
            self.kept.by_client.subtract(owner, bytes as u64);
        }
    }

    /// Whether no kept message is counted.
    pub fn keeps_nothing(&self) -> bool {
        self.kept.by_client.is_empty()
    }
}
