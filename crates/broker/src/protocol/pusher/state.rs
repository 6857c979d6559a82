//! The state of a connection of Pusher's protocol that few clients need, or that clients need only for a while.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use xxhash_rust::xxh3::xxh3_64;

use crate::base::pusher::PusherApp;
use crate::budget::admission::Client;
use crate::client::list::index_with_serial;
use crate::protocol::front::{Clients, Connections};
use crate::protocol::pusher::options::app_number;

/// That state.
#[derive(Default)]
pub struct PusherState {
    /// Subscriptions that no home has answered.
    pub pending_subscribes: Vec<PendingSubscribe>,
    /// The subscriptions to presence channels.
    pub memberships: Vec<Membership>,
    /// The user as whom the client has signed in.
    pub user: Option<Box<str>>,
}

/// A subscription that no home has answered.
#[derive(Clone, Copy)]
pub struct PendingSubscribe {
    /// Its index and its serial number ([`index_with_serial`]).
    pub sub_key: u32,
    /// The topic was deleted after the client's position.
    pub is_lost: bool,
}

/// A subscription to a presence channel. Its client is told which users come and leave.
pub struct Membership {
    /// The subscription: its index and its serial number ([`index_with_serial`]).
    pub sub_key: u32,
    /// The topic, in the shard's table of topics.
    pub topic: u32,
    /// The topic's name.
    pub name: Box<[u8]>,
    /// The client that is counted as a watcher.
    pub client: Client,
    /// The client's own user.
    pub user: Box<str>,
    /// What others may know of that user, as JSON.
    pub info: Box<[u8]>,
    /// How far the client is told.
    pub progress: MembershipProgress,
    /// The next page must be requested when the socket has accepted the last one.
    pub is_page_due: bool,
    /// How many connections of each user are members. A user is named by a keyed hash, since many clients may keep the users of a large channel.
    pub users: BTreeMap<u64, u32>,
}

/// How far the client of a presence channel is told.
pub enum MembershipProgress {
    /// The home has not answered the subscription.
    Subscribing,
    /// The home was asked for the members.
    Collecting(CollectedUsers),
    /// The client knows the members.
    Told,
}

/// The users that are there according to the pages so far. The client is told when the snapshot is whole: until then users may leave.
#[derive(Default)]
pub struct CollectedUsers {
    /// By the same hash as [`Membership::users`].
    users: BTreeMap<u64, CollectedUser>,
    /// The bytes of their texts.
    text_bytes: usize,
}

/// A user that is there.
pub struct CollectedUser {
    /// The number of the user's first member. It orders the users by the time of joining.
    pub first: u64,
    /// The id.
    pub id: Box<[u8]>,
    /// What others may know of the user, as JSON; empty if there is nothing.
    pub info: Box<[u8]>,
}

impl CollectedUsers {
    /// Adds a user, who was not there.
    pub fn add(&mut self, hash: u64, user: CollectedUser) {
        self.text_bytes += user.id.len() + user.info.len();
        self.users.insert(hash, user);
    }

    /// Removes a user.
    pub fn remove(&mut self, hash: u64) {
        if let Some(user) = self.users.remove(&hash) {
            self.text_bytes -= user.id.len() + user.info.len();
        }
    }

    /// The users in the order in which they joined.
    pub fn in_order(&self) -> Vec<&CollectedUser> {
        let mut users: Vec<_> = self.users.values().collect();
        users.sort_unstable_by_key(|user| user.first);
        users
    }

    fn bytes(&self) -> usize {
        // A B-tree is about two thirds full.
        self.users.len() * size_of::<(u64, CollectedUser)>() * 3 / 2 + self.text_bytes
    }
}

impl Membership {
    fn bytes(&self) -> usize {
        // A B-tree is about two thirds full.
        let users_bytes = self.users.len() * size_of::<(u64, u32)>() * 3 / 2;
        let collected_bytes = match &self.progress {
            MembershipProgress::Collecting(collected) => collected.bytes(),
            MembershipProgress::Subscribing | MembershipProgress::Told => 0,
        };
        self.name.len() + self.user.len() + self.info.len() + users_bytes + collected_bytes
    }
}

impl PusherState {
    /// Whether nothing waits, so that the state need not be kept.
    pub fn is_idle(&self) -> bool {
        self.pending_subscribes.is_empty() && self.memberships.is_empty() && self.user.is_none()
    }

    /// The client's user and its info in a topic of a presence channel.
    pub fn member_of(&self, topic: u32) -> Option<(&[u8], &[u8])> {
        let membership = self.memberships.iter().find(|it| it.topic == topic)?;
        Some((membership.user.as_bytes(), &membership.info))
    }

    /// The bytes of the heap.
    pub fn heap_bytes(&self) -> usize {
        self.pending_subscribes.capacity() * size_of::<PendingSubscribe>()
            + self.memberships.capacity() * size_of::<Membership>()
            + self
                .memberships
                .iter()
                .map(Membership::bytes)
                .sum::<usize>()
            + self.user.as_ref().map_or(0, |user| user.len())
    }
}

/// The state of a connection, if it has any.
pub(super) fn state(conns: &Connections, slot: u32) -> Option<&PusherState> {
    conns.find_side_row(slot)?.protocol_state.pusher()
}

/// The state of a connection, made if necessary.
pub(super) fn state_mut(conns: &mut Connections, slot: u32) -> &mut PusherState {
    conns.ensure_side_row(slot).protocol_state.pusher_mut()
}

/// Removes the subscription with this index from those that wait. Returns `None` if it was not one of them.
pub(super) fn take_pending_subscribe(
    clients: &mut Clients,
    slot: u32,
    sub_index: u32,
) -> Option<PendingSubscribe> {
    let pending = *pending_subscribe(clients, slot, sub_index)?;
    let all = &mut state_mut(&mut clients.conns, slot).pending_subscribes;
    all.retain(|other| other.sub_key != pending.sub_key);
    drop_idle_state(&mut clients.conns, slot);
    Some(pending)
}

/// The subscription with this index, if no home has answered it.
pub(super) fn pending_subscribe(
    clients: &mut Clients,
    slot: u32,
    sub_index: u32,
) -> Option<&mut PendingSubscribe> {
    let sub_key = index_with_serial(&clients.conns, slot, sub_index);
    // A client without this state gets none.
    state(&clients.conns, slot)?;
    let pending = &mut state_mut(&mut clients.conns, slot).pending_subscribes;
    pending.iter_mut().find(|it| it.sub_key == sub_key)
}

/// Frees the state of a connection if nothing needs it. A client with many channels may never need it again.
pub(super) fn drop_idle_state(conns: &mut Connections, slot: u32) {
    if state(conns, slot).is_some_and(PusherState::is_idle) {
        conns.side_row_mut(slot).protocol_state.channels = None;
    }
}

/// The app of a connection. `None` if the connection began without one.
pub(super) fn app_of(clients: &Clients, slot: u32) -> Option<&PusherApp> {
    let number = app_number(clients.conns.get(slot));
    clients.ctx.world.settings.pusher_apps.get(number)
}

/// The number after the dot of a socket id. Nobody can guess that of a connection: a user could have the ids of later connections signed. It differs
/// from that of the former connections in the same row.
fn connection_number(clients: &Clients, slot: u32) -> u64 {
    let conn = clients.conns.id_of(slot);
    let start = clients.conns.start_second(slot).unix_s(clients.ctx.now);
    let mut bytes = [0; 12];
    bytes[..2].copy_from_slice(&clients.ctx.own_shard.to_le_bytes());
    bytes[2..4].copy_from_slice(&conn.generation.to_le_bytes());
    bytes[4..8].copy_from_slice(&conn.slot.to_le_bytes());
    bytes[8..].copy_from_slice(&start.to_le_bytes());
    let hash = blake3::keyed_hash(&clients.ctx.world.settings.access.key, &bytes);
    let mut number = [0; 8];
    number.copy_from_slice(&hash.as_bytes()[..8]);
    u64::from_le_bytes(number)
}

/// The socket id of a connection, which no other connection has.
pub(super) fn socket_id(clients: &Clients, slot: u32) -> String {
    let process = clients.ctx.world.process_number();
    format!("{process}.{}", connection_number(clients, slot))
}

/// The number of a connection as the publisher of messages that it does not get.
pub(super) fn origin_of(clients: &Clients, slot: u32) -> u64 {
    let process = clients.ctx.world.process_number();
    origin_number(process.into(), connection_number(clients, slot))
}

/// The publisher's number of a message that the connection with this socket id must not get; `None` if this is no socket id.
pub fn origin_of_socket(socket_id: &str) -> Option<u64> {
    let (process, number) = socket_id.split_once('.')?;
    Some(origin_number(process.parse().ok()?, number.parse().ok()?))
}

/// Numbers of MQTT sessions are random, so that equal ones are as unlikely as equal random numbers.
fn origin_number(process: u64, number: u64) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&process.to_le_bytes());
    bytes[8..].copy_from_slice(&number.to_le_bytes());
    xxh3_64(&bytes) | 1
}
