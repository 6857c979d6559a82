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
//! room. It only counts and refuses: `client/admission.rs` and `protocol/http/turned_away.rs` have the answers to clients.

mod client;
mod disk;
pub mod holdings;
pub mod keys;
mod party;
mod rate;
pub mod shares;
#[cfg(test)]
mod tests;
pub mod valve;

use alloc::sync::Arc;
use core::net::IpAddr;
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

pub use client::Client;
use client::Clients;
use disk::Disk;
use keys::Keys;
pub use party::Party;
use rate::{Buckets, Rate};
use valve::Valve;

use crate::base::reason::Reason;
use crate::base::settings::Settings;
use crate::budget::account::Account;
use crate::budget::totals::Totals;

/// A node of a cluster is not ready when none of its signs of life has come back for so many seconds.
const CUT_OFF_S: u32 = 5;
/// Publishers wait for so many seconds for room in the log of a cluster before they are refused: a checkpoint is made within.
const WAITS_S: u32 = 5;
/// Clients of which it is remembered that the log has named them: 16 KiB.
const NAMED: usize = 4096;

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
    connections: Places<Clients>,
    /// Connections that all shards have room for, by their descriptors; 0 where no shard has said so.
    connections_room: AtomicU64,
    /// MQTT sessions, connected or away.
    sessions: Places<Clients>,
    /// Followers of interest.
    followers: Places<Clients>,
    kept: Kept,
    /// Bytes of MQTT sessions whose clients are away, by party.
    absent: Option<Clients>,
    rates: Rates,
    /// The memory that clients make all shards hold.
    pub account: Account,
    /// Sums of the shards' counts.
    pub totals: Totals,
    /// Idempotency keys of all homes.
    pub keys: Keys,
    /// Who waits while carriers are behind.
    pub valve: Valve,
    /// Clients of a cluster whose sessions are short, by hash: those that the log has named last.
    pub short_sessions: Named,
    engine: EngineState,
    seed: u64,
}

/// Names that the operator's log had lately, as hashes: so many at most, however many clients choose. Of two with one place the later one stays.
#[derive(Debug)]
pub struct Named([AtomicU32; NAMED]);

impl Default for Named {
    fn default() -> Named {
        Named([const { AtomicU32::new(0) }; NAMED])
    }
}

impl Named {
    /// Whether it has this one.
    pub fn has(&self, hash: u32) -> bool {
        self.place(hash).load(Relaxed) == hash | 1
    }

    /// Remembers it.
    pub fn add(&self, hash: u32) {
        self.place(hash).store(hash | 1, Relaxed);
    }

    fn place(&self, hash: u32) -> &AtomicU32 {
        &self.0[(hash >> 1) as usize % NAMED]
    }
}

/// A number of places: how many are taken by all clients, how many there may be, and how many each client has.
#[derive(Debug)]
struct Places<C> {
    taken: AtomicU32,
    most: AtomicU32,
    by_client: C,
}

impl<C> Places<C> {
    fn new(by_client: C) -> Places<C> {
        Places {
            taken: AtomicU32::new(0),
            most: AtomicU32::new(0),
            by_client,
        }
    }
}

/// Bytes of kept messages by client.
#[derive(Debug)]
struct Kept {
    by_client: Clients,
    /// Whether they are counted: they have a limit, or are on disk.
    is_counted: AtomicBool,
}

/// The state of the engine as the shards know it.
#[derive(Debug, Default)]
struct EngineState {
    /// It takes nothing more for now.
    disk_is_full: AtomicBool,
    disk: Disk,
    /// The second since which the log of a cluster is full; 0: it has room.
    log_full_s: AtomicU32,
    /// The second in which a sign of life of this node of a cluster came back last.
    beaten_s: AtomicU32,
    /// How often this node has read of its own death.
    deaths: AtomicU32,
}

/// The rates of what clients do.
#[derive(Debug)]
struct Rates {
    /// Publishes of all clients together; 0 per second is no limit.
    publishes: (AtomicU64, AtomicU64),
    publishers: Option<Buckets>,
    topic_makers: Option<Buckets>,
}

impl Admission {
    /// The counts with these limits. `seed` keys the hash of addresses.
    pub fn new(settings: &Settings, seed: u64) -> Admission {
        let limits = &settings.limits;
        let counts = Counts {
            connections: Places::new(
                Clients::new(
                    limits.connections_per_address_max as usize,
                    limits.connections_max,
                )
                .unwrap_or_else(Clients::without_limit),
            ),
            connections_room: AtomicU64::new(0),
            sessions: Places::new(
                Clients::new(
                    settings.mqtt.sessions_per_address_max as usize,
                    settings.mqtt.sessions_max as usize,
                )
                .unwrap_or_else(Clients::without_limit),
            ),
            followers: Places::new(Clients::without_limit()),
            kept: Kept {
                by_client: Clients::new(limits.log_bytes_per_address_max, limits.log_bytes)
                    .unwrap_or_else(Clients::without_limit),
                is_counted: AtomicBool::new(limits.log_bytes_per_address_max > 0),
            },
            absent: Clients::new(limits.little_bytes(), limits.memory_bytes),
            rates: Rates {
                publishes: (AtomicU64::new(0), AtomicU64::new(0)),
                publishers: Buckets::new(
                    limits.publishes_per_address_per_s,
                    limits.publishes_per_address_burst,
                ),
                topic_makers: Buckets::new(
                    limits.topics_per_address_per_s,
                    limits.topics_per_address_burst,
                ),
            },
            account: Account::new(limits.memory_bytes),
            totals: Totals::default(),
            keys: Keys::default(),
            valve: Valve::default(),
            short_sessions: Named::default(),
            engine: EngineState::default(),
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
        self.connections.most.store(connections_max, Relaxed);
        self.rates.publishes.0.store(Rate::pack(rate), Relaxed);
        self.account.change(limits.memory_bytes);
        self.sessions
            .most
            .store(settings.mqtt.sessions_max, Relaxed);
        self.followers
            .most
            .store(settings.interest.followers_max, Relaxed);
    }

    /// Connections that entered and have not left.
    pub fn connections(&self) -> u32 {
        self.connections.taken.load(Relaxed)
    }

    /// The client that a connection from `address` is counted for.
    pub fn client(&self, address: IpAddr) -> Client {
        Client::of(address, self.seed)
    }

    /// A connection comes in, if there is room in the process.
    ///
    /// # Errors
    /// [`Reason::ConnectionsFull`]; then it must not [`leave`](Self::leave).
    pub fn enter(&self) -> Result<(), Reason> {
        if self.connections.taken.fetch_add(1, Relaxed) >= self.connections.most.load(Relaxed) {
            self.connections.taken.fetch_sub(1, Relaxed);
            return Err(Reason::ConnectionsFull);
        }
        Ok(())
    }

    /// A connection that entered is gone.
    pub fn leave(&self) {
        self.connections.taken.fetch_sub(1, Relaxed);
    }

    /// One more shard has room for so many connections.
    pub fn add_room(&self, connections: u32) {
        self.connections_room.fetch_add(connections.into(), Relaxed);
    }

    /// Connections that there is room for besides those that entered.
    fn free_connections(&self) -> usize {
        let most = u64::from(self.connections.most.load(Relaxed));
        let most = match self.connections_room.load(Relaxed) {
            0 => most,
            room => most.min(room),
        };
        most.saturating_sub(self.connections().into()) as usize
    }

    /// A client has one more connection, which entered before, if its address may: by its limit, and by its share of the connections
    /// of all.
    ///
    /// # Errors
    /// [`Reason::ConnectionsOfAddress`] past the limit, [`Reason::ConnectionsFull`] past the share; then it must not
    /// [`leave_client`](Self::leave_client).
    pub fn enter_client(&self, client: Client) -> Result<(), Reason> {
        let owners = &self.connections.by_client;
        if !client.is_known() {
            return Ok(());
        }
        // Its own place is not free any more.
        let free = self.free_connections() + 1;
        if !shares::may_take(owners.held_by(client), free, shares::NEARLY_ALL) {
            return Err(Reason::ConnectionsFull);
        }
        match owners.enter(client) {
            true => Ok(()),
            false => Err(Reason::ConnectionsOfAddress),
        }
    }

    /// A client has one fewer connection.
    pub fn leave_client(&self, client: Client) {
        if client.is_known() {
            self.connections.by_client.subtract(client, 1);
        }
    }

    /// Whether there is room for another MQTT session. Homes that ask at the same moment may all hear yes.
    pub fn has_room_for_session(&self) -> bool {
        self.sessions.taken.load(Relaxed) < self.sessions.most.load(Relaxed)
    }

    /// A home's sessions went from `before` to `after`.
    pub fn count_sessions(&self, before: u32, after: u32) {
        // A difference below zero is added as its complement.
        self.sessions
            .taken
            .fetch_add(after.wrapping_sub(before), Relaxed);
    }

    /// A client has one more session, if its address may: by its limit, and by its share of the sessions of all.
    ///
    /// # Errors
    /// [`Reason::SessionsOfAddress`]; then it must not [`leave_session`](Counts::leave_session).
    pub fn enter_session(&self, client: Client) -> Result<(), Reason> {
        let owners = &self.sessions.by_client;
        if !client.is_known() {
            return Ok(());
        }
        let (taken, most) = (
            self.sessions.taken.load(Relaxed),
            self.sessions.most.load(Relaxed),
        );
        let free = most.saturating_sub(taken) as usize;
        match shares::may_take(owners.held_by(client), free, shares::MOST) && owners.enter(client) {
            true => Ok(()),
            false => Err(Reason::SessionsOfAddress),
        }
    }

    /// A session passes from one client to another, even past the limit: taking up a session creates none.
    pub fn move_session(&self, from: Client, to: Client) {
        if to.is_known() {
            self.sessions.by_client.add(to, 1);
        }
        self.leave_session(from);
    }

    /// A client has one fewer session.
    pub fn leave_session(&self, client: Client) {
        if client.is_known() {
            self.sessions.by_client.subtract(client, 1);
        }
    }

    /// The party of an MQTT session.
    pub fn party_of_session(&self, name: &[u8], owner: Client) -> Party {
        Party::of_session(name, owner, self.seed)
    }

    /// Bytes that the party's sessions hold at all homes while their clients are away. Parties that share both of its counters may
    /// add theirs.
    pub fn absent_bytes(&self, party: Party) -> usize {
        let absent = self.absent.as_ref();
        absent.map_or(0, |absent| absent.count(party.key()) as usize)
    }

    /// The bytes of the party's absent sessions went from `before` to `after`.
    pub fn change_absent(&self, party: Party, before: usize, after: usize) {
        let Some(absent) = &self.absent else { return };
        match after > before {
            true => absent.add(party.key(), (after - before) as u64),
            false => absent.subtract(party.key(), (before - after) as u64),
        }
    }

    /// Whether no absent session is counted.
    pub fn has_no_absent(&self) -> bool {
        self.absent.as_ref().is_none_or(Clients::is_empty)
    }

    /// A connection of this client begins to follow; false when the limit is reached, or the client's share of it.
    pub fn enter_follower(&self, client: Client) -> bool {
        let owners = &self.followers.by_client;
        let taken = self.followers.taken.fetch_add(1, Relaxed);
        let free = self.followers.most.load(Relaxed).saturating_sub(taken) as usize;
        let held = if client.is_known() {
            owners.held_by(client)
        } else {
            0
        };
        let enters = shares::may_take(held, free, shares::HALF);
        if !enters {
            self.followers.taken.fetch_sub(1, Relaxed);
        } else if client.is_known() {
            owners.add(client, 1);
        }
        enters
    }

    /// A connection of this client that followed is gone.
    pub fn leave_follower(&self, client: Client) {
        if client.is_known() {
            self.followers.by_client.subtract(client, 1);
        }
        let before = self.followers.taken.fetch_sub(1, Relaxed);
        assert!(before > 0, "more have left than entered");
    }

    /// A client publishes a message in the second `unix_s`.
    ///
    /// # Errors
    /// When its address or the process has published as many as it may.
    pub fn publish(&self, client: Client, unix_s: u32) -> Result<(), Reason> {
        if !Buckets::take(&self.rates.publishers, client, unix_s) {
            return Err(Reason::PublishRateOfAddress);
        }
        let (rate, cell) = &self.rates.publishes;
        match Rate::unpack(rate.load(Relaxed)) {
            Some(rate) if !rate.take(cell, unix_s) => Err(Reason::PublishRate),
            _ => Ok(()),
        }
    }

    /// A client makes a topic in the second `unix_s`.
    ///
    /// # Errors
    /// When its address has made as many as it may.
    pub fn make_topic(&self, client: Client, unix_s: u32) -> Result<(), Reason> {
        match Buckets::take(&self.rates.topic_makers, client, unix_s) {
            true => Ok(()),
            false => Err(Reason::TopicRateOfAddress),
        }
    }

    /// Whether the kept messages of each client are counted.
    pub fn counts_logs(&self) -> bool {
        self.kept.is_counted.load(Relaxed)
    }

    /// They are counted from now on, since there is nothing yet: what is kept is on disk, where clients have shares.
    pub fn count_logs(&self) {
        self.kept.is_counted.store(true, Relaxed);
    }

    /// Whether a message of this client may be kept, with this many bytes.
    ///
    /// # Errors
    /// When the kept messages of its address leave no room for it.
    pub fn may_keep(&self, client: Client, bytes: usize) -> Result<(), Reason> {
        match !client.is_known() || self.kept.by_client.has_room(client, bytes as u64) {
            true => Ok(()),
            false => Err(Reason::LogOfAddress),
        }
    }

    /// Whether the engine takes further messages of a client: there is room on its disk, and the client has not its share of it, by what it
    /// keeps, or by what it has written since room came free.
    ///
    /// # Errors
    /// [`Reason::DiskFull`], or [`Reason::LogFull`] in a cluster whose publishers have waited for room.
    pub fn may_write(&self, client: Client, unix_s: u32) -> Result<(), Reason> {
        let EngineState {
            disk_is_full, disk, ..
        } = &self.engine;
        if self.log_is_full_for(unix_s).is_some_and(|it| it >= WAITS_S) {
            return Err(Reason::LogFull);
        }
        let held = || {
            self.kept
                .by_client
                .count(client)
                .max(disk.written.count(client))
        };
        match disk_is_full.load(Relaxed) || !disk.may_take(held()) {
            true => Err(Reason::DiskFull),
            false => Ok(()),
        }
    }

    /// A client writes a message of so many bytes.
    pub fn write(&self, client: Client, bytes: usize) {
        self.engine.disk.written.add(client, bytes as u64);
    }

    /// So many of `all_bytes` are free on the disk of the engine.
    pub fn set_disk_room(&self, free_bytes: u64, all_bytes: u64) {
        self.engine.disk.set_room(free_bytes, all_bytes);
    }

    /// The disk of the engine has become full, or has room again.
    pub fn set_disk_full(&self, is_full: bool) {
        self.engine.disk_is_full.store(is_full, Relaxed);
    }

    /// The log of the cluster has become full in this second, or (0) has room again.
    pub fn set_log_full(&self, unix_s: u32) {
        self.engine.log_full_s.store(unix_s, Relaxed);
    }

    /// For how many seconds the log of the cluster has been full.
    fn log_is_full_for(&self, unix_s: u32) -> Option<u32> {
        match self.engine.log_full_s.load(Relaxed) {
            0 => None,
            since_s => Some(unix_s.saturating_sub(since_s)),
        }
    }

    /// Whether publishers wait for room in the log of the cluster: a checkpoint that is under way makes some. After a while they are
    /// [refused](Self::may_write).
    pub fn waits_for_log(&self, unix_s: u32) -> bool {
        self.log_is_full_for(unix_s).is_some_and(|it| it < WAITS_S)
    }

    /// A sign of life of this node of a cluster has come back in this second.
    pub fn beats(&self, unix_s: u32) {
        self.engine.beaten_s.store(unix_s, Relaxed);
    }

    /// Whether none has for so long that this node may have no way to the log; also before the first.
    pub fn is_cut_off(&self, unix_s: u32) -> bool {
        unix_s.saturating_sub(self.engine.beaten_s.load(Relaxed)) >= CUT_OFF_S
    }

    /// This node of a cluster has read of its own death, and goes on as another writer.
    pub fn died(&self) {
        self.engine.deaths.fetch_add(1, Relaxed);
    }

    /// How often it has.
    pub fn deaths(&self) -> u32 {
        self.engine.deaths.load(Relaxed)
    }

    /// This many bytes of the client's are now kept.
    pub fn keep(&self, owner: Client, bytes: usize) {
        if self.counts_logs() && owner.is_known() {
            self.kept.by_client.add(owner, bytes as u64);
        }
    }

    /// This many bytes of the client's are no longer kept.
    pub fn drop_kept(&self, owner: Client, bytes: usize) {
        if self.counts_logs() && owner.is_known() {
            self.kept.by_client.subtract(owner, bytes as u64);
        }
    }

    /// Whether no message in any log is counted for anybody.
    pub fn keeps_nothing(&self) -> bool {
        self.kept.by_client.is_empty()
    }
}
