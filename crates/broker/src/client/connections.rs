//! The connections of a shard: their rows (table entries), side rows (state that few connections need), and charged memory.
//!
//! Invariants: a side row exists exactly while the row of its connection refers to it. Only this module charges memory for received bytes that wait,
//! outboxes and side rows. So the removal of a connection releases all that was charged for it.

mod clients;
mod outboxes;
mod received;
#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::base::ids::{ConnId, SocketId};
use crate::budget::account::{MemoryLevel, MemoryPart};
use crate::budget::connection_grants::ConnectionGrants;
use crate::budget::shard_account::ShardAccount;
use crate::budget::stats::Accounts;
use crate::client::links::{Links, UNSENT_BYTES_MAX};
use crate::client::outbox::Outbox;
use crate::client::row::{HELD, PAUSED, Row, SUBSCRIPTION_LIST, StartSecond, State};
use crate::client::side::SideRow;
use crate::client::topics::MovedMember;
use crate::client::types::{ProtocolTypes, UnprocessedInput};
use crate::io::Io;
use crate::mail::ReplyTo;
use crate::store::slab::{NONE, SideTable, Slab};

/// The bytes of a shared subscription with short names. A connection counts only the bytes of its shared subscriptions, not their number. This constant
/// serves to estimate the number.
const SHARE_BYTES: usize = 96;
/// The charges of changed side rows are updated at the end of the turn, or earlier if more than this many have changed.
const CHANGED_SIDE_ROWS_MAX: usize = 4096;

/// The connections of a shard.
pub(crate) struct Connections<P: ProtocolTypes> {
    rows: Slab<Row>,
    unprocessed_inputs: SideTable<P::UnprocessedInput>,
    outboxes: SideTable<Outbox>,
    side_rows: SideTable<Box<SideRow<P>>>,
    /// The protocols' rows.
    protocol_rows: Slab<P::ProtocolRow>,
    /// The grants of clients with credentials, and when they expire.
    pub(crate) grants: ConnectionGrants,
    /// The client addresses that proxies have named. The limits need only the part of an address that is in the row.
    relayed_addresses: BTreeMap<u32, IpAddr>,
    /// Connections whose side rows may have changed since their sizes were last charged.
    changed_side_rows: Vec<u32>,
    /// The shard's account of the bytes that clients make it hold.
    account: ShardAccount,
    /// The sockets that carry several consumers (streams of HTTP/2).
    pub(crate) links: Links,
    /// The bytes in all outboxes.
    outbox_bytes: usize,
    /// The held received bytes.
    receive_bytes: usize,
    /// The next row to examine when room is needed for received bytes.
    next_search_row: u32,
}

impl<P: ProtocolTypes> Connections<P> {
    /// An empty table, charged to this account.
    pub(crate) fn new(account: ShardAccount) -> Connections<P> {
        Connections {
            rows: Slab::default(),
            unprocessed_inputs: SideTable::default(),
            outboxes: SideTable::default(),
            side_rows: SideTable::default(),
            protocol_rows: Slab::default(),
            grants: ConnectionGrants::default(),
            relayed_addresses: BTreeMap::new(),
            changed_side_rows: Vec::new(),
            account,
            links: Links::default(),
            outbox_bytes: 0,
            receive_bytes: 0,
            next_search_row: 0,
        }
    }

    /// The number of open connections.
    pub(crate) fn len(&self) -> u32 {
        self.rows.len()
    }

    /// The end of the table: all row numbers are below it.
    pub(crate) fn end(&self) -> u32 {
        self.rows.end()
    }

    /// The row of a connection.
    #[inline]
    pub(crate) fn get(&self, slot: u32) -> &Row {
        self.rows.get(slot)
    }

    /// The row of a connection, mutably.
    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> &mut Row {
        self.rows.get_mut(slot)
    }

    /// The row with this number, in use or free, if the table has it.
    #[inline]
    pub(crate) fn try_get(&self, slot: u32) -> Option<&Row> {
        self.rows.try_get(slot)
    }

    /// Adds a connection. Returns its row number.
    pub(crate) fn insert(&mut self, row: Row) -> u32 {
        self.rows.insert(row)
    }

    /// Removes a connection and everything that it holds.
    pub(crate) fn remove(&mut self, slot: u32) -> Row {
        self.take_unprocessed_input(slot);
        self.grants.remove(slot);
        self.drop_outbox(slot);
        self.drop_side_row(slot);
        self.set_relayed_address(slot, None);
        self.rows.remove(slot)
    }

    /// Whether the connection still exists.
    #[inline]
    pub(crate) fn is_current(&self, conn: ConnId) -> bool {
        self.rows
            .try_get(conn.slot)
            .is_some_and(|row| row.is_open() && row.link.generation == conn.generation)
    }

    /// The identifier of a connection. It differs from that of the previous connections in the same row.
    #[inline]
    pub(crate) fn id_of(&self, slot: u32) -> ConnId {
        ConnId {
            slot,
            generation: self.rows.get(slot).link.generation,
        }
    }

    /// Whether the connection still waits for this answer. A closing connection does not.
    pub(crate) fn is_waiting_for(&self, to: ReplyTo) -> bool {
        self.rows.try_get(to.slot).is_some_and(|row| {
            row.is_open()
                && row.consumer.state != State::Draining
                && row.link.generation == to.generation
                && row.consumer.request == to.request
        })
    }

    /// The address for an answer to the connection's current request.
    pub(crate) fn reply_to(&self, slot: u32, part: u32) -> ReplyTo {
        let row = self.rows.get(slot);
        ReplyTo {
            slot,
            generation: row.link.generation,
            request: row.consumer.request,
            part,
        }
    }

    /// Whether the row is a stream: one of several consumers on one socket.
    #[inline]
    pub(crate) fn is_http2_request(&self, slot: u32) -> bool {
        let socket = self.rows.get(slot).link.socket;
        self.links.link_of(socket).is_some()
    }

    /// The connection whose link a stream shares.
    pub(crate) fn link_of(&self, slot: u32) -> Option<ConnId> {
        let link = self.links.link_of(self.rows.get(slot).link.socket);
        link.map(|link| self.id_of(link))
    }

    /// The socket that a connection's bytes go through: its own, or that of its link.
    pub(crate) fn socket_of(&self, slot: u32) -> SocketId {
        let socket = self.rows.get(slot).link.socket;
        let link = self.links.link_of(socket);
        link.map_or(socket, |link| self.rows.get(link).link.socket)
    }

    /// The bytes that wait for the client.
    pub(crate) fn waiting_bytes(&self, slot: u32) -> usize {
        self.outbox(slot).map_or(0, Outbox::waiting_bytes)
    }

    /// Whether the server reads from the connection. While bytes wait for the client, it does not: a client that does not read gets no service. A link is
    /// read until [`UNSENT_BYTES_MAX`] bytes wait. Otherwise the answers and resets of all its streams would wait for the output of one.
    pub(crate) fn is_read(&self, slot: u32) -> bool {
        let row = self.rows.get(slot);
        let is_link = || row.consumer.state != State::Draining && self.links.get(slot).is_some();
        let has_room =
            row.link.outbox == NONE || self.waiting_bytes(slot) < UNSENT_BYTES_MAX && is_link();
        has_room && !row.link.has(PAUSED)
    }

    /// Tells the socket's poller what the connection waits for.
    pub(crate) fn update_interest<I: Io>(&mut self, slot: u32, io: &mut I) {
        let reads = self.is_read(slot);
        let row = self.rows.get(slot);
        let writes = row.link.outbox != NONE && !row.link.has(HELD);
        match self.links.link_of(row.link.socket) {
            None => io.set_interest(row.link.socket, self.id_of(slot), reads, writes),
            Some(_) => self.links.set_interest(row.link.socket, reads, writes),
        }
    }

    /// Whether, since the last call, a row was looked up that does not exist, which is a bug of the server.
    #[inline]
    pub(crate) fn take_missed(&self) -> bool {
        let missed = [
            self.rows.take_missed(),
            self.protocol_rows.take_missed(),
            self.unprocessed_inputs.take_missed(),
            self.outboxes.take_missed(),
            self.side_rows.take_missed(),
            self.links.take_missed(),
        ];
        missed.contains(&true)
    }

    /// The bytes that the account charges.
    pub(crate) fn charged_bytes(&self) -> usize {
        self.account.held_bytes()
    }

    /// Adds the counts and bytes of this table to `accounts`.
    pub(crate) fn add_to_accounts(&self, accounts: &mut Accounts) {
        accounts.connections = self.rows.len();
        accounts.streams = self.links.streams();
        accounts.spills = self.unprocessed_inputs.len();
        accounts.outboxes = self.outboxes.len();
        accounts.extras = self.side_rows.len();
        accounts.parts = self.account.parts();
        accounts.mqtt_connections = self.protocol_rows.len();
        accounts.identities = self.grants.len();
        accounts.relayed = self.relayed_addresses.len() as u32;
        accounts.receive_bytes = self.receive_bytes;
        accounts.outbox_bytes = self.outbox_bytes;
    }

    /// The bytes of the rows, of the protocols' rows, and of the side rows without their heap.
    pub(crate) fn table_bytes(&self) -> (usize, usize, usize) {
        let sides =
            self.unprocessed_inputs.bytes() + self.outboxes.bytes() + self.side_rows.bytes();
        let rows = self.rows.bytes() + self.links.table_bytes();
        (rows, self.protocol_rows.bytes(), sides)
    }
}

/// Side rows.
impl<P: ProtocolTypes> Connections<P> {
    /// The side row of a connection, created if needed. Its charge is updated at the end of the turn.
    pub(crate) fn ensure_side_row(&mut self, slot: u32) -> &mut SideRow<P> {
        if self.changed_side_rows.last() != Some(&slot) {
            self.changed_side_rows.push(slot);
        }
        let row = self.rows.get_mut(slot);
        if row.side_row() == NONE {
            let side_row = self.side_rows.insert(Default::default());
            self.side_rows.get_mut(side_row).start_second = row.start_side_row(side_row);
        }
        self.side_rows.get_mut(row.side_row())
    }

    /// The side row of a connection that must have one.
    #[inline]
    pub(crate) fn side_row(&self, slot: u32) -> &SideRow<P> {
        self.side_rows.get(self.rows.get(slot).side_row())
    }

    /// The side row of a connection that must have one, mutably. The caller must not change its size.
    #[inline]
    pub(crate) fn side_row_mut(&mut self, slot: u32) -> &mut SideRow<P> {
        self.side_rows.get_mut(self.rows.get(slot).side_row())
    }

    /// The side row of a connection, if it has one.
    #[inline]
    pub(crate) fn find_side_row(&self, slot: u32) -> Option<&SideRow<P>> {
        match self.rows.get(slot).side_row() {
            NONE => None,
            side_row => Some(self.side_rows.get(side_row)),
        }
    }

    /// The side row of a connection, if it has one, mutably. The caller must not change its size.
    #[inline]
    pub(crate) fn find_side_row_mut(&mut self, slot: u32) -> Option<&mut SideRow<P>> {
        match self.rows.get(slot).side_row() {
            NONE => None,
            side_row => Some(self.side_rows.get_mut(side_row)),
        }
    }

    /// When a connection began.
    pub(crate) fn start_second(&self, slot: u32) -> StartSecond {
        let row = self.rows.get(slot);
        self.find_side_row(slot)
            .map_or(row.start_second(), |side_row| side_row.start_second)
    }

    /// Records the new place of a connection among the members of a topic. False if the connection does not have that topic.
    pub(crate) fn set_member_place(&mut self, topic: u32, moved: &MovedMember) -> bool {
        let row = self.rows.get_mut(moved.slot);
        if !row.has_option(SUBSCRIPTION_LIST) {
            row.consumer.member_place = moved.index;
            return true;
        }
        let list = &mut self.side_rows.get_mut(row.side_row()).list;
        let sub = list.iter_mut().find(|sub| sub.topic == topic);
        sub.map(|sub| sub.member_place = moved.index).is_some()
    }

    /// Drops the side row of a connection, if it has one.
    pub(crate) fn drop_side_row(&mut self, slot: u32) {
        let row = self.rows.get_mut(slot);
        let side_row = row.side_row();
        if side_row != NONE {
            let mut removed = self.side_rows.remove(side_row);
            row.end_side_row(removed.start_second);
            let (charged_bytes, _) = removed.weigh();
            self.account.release(MemoryPart::Connections, charged_bytes);
        }
    }

    /// Updates the charges of side rows that may have changed.
    pub(crate) fn weigh_changed_side_rows(&mut self) {
        let mut changed = core::mem::take(&mut self.changed_side_rows);
        changed.sort_unstable();
        changed.dedup();
        for slot in changed.drain(..) {
            let row = self.rows.get(slot);
            let side_row = row.side_row();
            if row.is_open() && side_row != NONE {
                let (before, now) = self.side_rows.get_mut(side_row).weigh();
                self.account
                    .change_charge(MemoryPart::Connections, before, now);
            }
        }
        self.changed_side_rows = changed;
    }

    /// Whether too many side rows may have changed for their charges to wait until the end of the turn.
    #[inline]
    pub(crate) fn must_weigh_now(&self) -> bool {
        self.changed_side_rows.len() > CHANGED_SIDE_ROWS_MAX
    }
}

/// The memory account.
impl<P: ProtocolTypes> Connections<P> {
    /// How near the memory of the process is to its limit, as this shard sees it.
    #[inline]
    pub(crate) fn level(&self) -> MemoryLevel {
        self.account.level()
    }

    /// The level if this shard held `bytes` bytes less.
    pub(crate) fn level_without(&self, bytes: usize) -> MemoryLevel {
        self.account.level_without(bytes)
    }

    /// The bytes that must be released so that `bytes` more bytes fit below [`MemoryLevel::Full`].
    pub(crate) fn missing_bytes(&mut self, bytes: usize) -> usize {
        self.charge_received();
        self.account.missing_bytes(bytes)
    }

    /// Updates the charge for the state of a link with streams.
    pub(crate) fn weigh_link(&mut self, slot: u32) {
        let (before, now) = self.links.weigh(slot);
        self.account
            .change_charge(MemoryPart::Connections, before, now);
    }

    /// Removes the state of a link with streams. Returns the rows of its streams, which must end.
    pub(crate) fn end_link(&mut self, slot: u32) -> Vec<u32> {
        let Some((link, charged_bytes)) = self.links.remove(slot) else {
            return Vec::new();
        };
        self.account.release(MemoryPart::Connections, charged_bytes);
        let known = link.codec.slots().map(|(_, slot)| slot);
        known.filter(|slot| *slot != NONE).collect()
    }

    /// Sets the charge of a part that belongs to no single connection.
    pub(crate) fn set_charge(&mut self, part: MemoryPart, bytes: usize) {
        self.account.set_charge(part, bytes);
    }

    /// How many subscriptions of a connection have a filter. Subscriptions to shared groups are estimated from their bytes.
    pub(crate) fn filter_count(&self, slot: u32) -> usize {
        let Some(side_row) = self.find_side_row(slot) else {
            return 0;
        };
        let plain_filters = side_row.filters.as_ref().map_or(0, |filters| filters.len());
        // A shared subscription with long names counts as several, since a home (the part of a shard that keeps topics) stores the names, too.
        plain_filters + side_row.share_entry_bytes as usize / SHARE_BYTES
    }

    /// The bytes that a connection makes the shard hold, with its part of shared messages.
    pub(crate) fn held_bytes(&self, slot: u32) -> usize {
        let input = self
            .unprocessed_input(slot)
            .map_or(0, UnprocessedInput::bytes);
        let outbox = self.outbox(slot).map_or(0, Outbox::weight);
        let side_row = self.find_side_row(slot).map_or(0, SideRow::weight);
        input + outbox + side_row + self.links.bytes_of(slot)
    }
}
