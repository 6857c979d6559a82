//! The connections of a shard: their rows, the side rows that few of them have, and the bytes that they make the shard hold.
//!
//! Invariants: a side row exists exactly while its connection's row names it; received bytes that are held, outboxes and side rows are
//! charged to the account here and nowhere else, so that what is charged for a connection is released with it.

mod clients;
mod outboxes;
mod received;
#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::base::ids::ConnId;
use crate::budget::account::{Level, Part};
use crate::budget::connection_grants::ConnectionGrants;
use crate::budget::shard_account::ShardAccount;
use crate::budget::stats::Accounts;
use crate::client::outbox::Outbox;
use crate::client::row::{Began, HELD, MULTI, PAUSED, Row, State};
use crate::client::side::Extra;
use crate::client::topics::Moved;
use crate::client::types::{ProtocolTypes, Spilled};
use crate::io::Io;
use crate::mail::ReplyTo;
use crate::store::slab::{NONE, Side, Slab};

/// A share with a short name and filter in the list of a connection.
const SHARE_BYTES: usize = 96;
/// Side rows that wait to be weighed: with more than these they are weighed before the end of the turn.
const TOUCHED_MAX: usize = 4096;

/// The connections of a shard.
pub(crate) struct Connections<P: ProtocolTypes> {
    rows: Slab<Row>,
    spills: Side<P::Spill>,
    outboxes: Side<Outbox>,
    extras: Side<Box<Extra<P>>>,
    /// Rows that protocols give.
    own: Slab<P::Row>,
    /// The grants of clients that came with credentials, and when they expire.
    pub(crate) grants: ConnectionGrants,
    /// Client addresses of connections through proxies, as the proxies name them. The part of an address that a limit needs is
    /// in the row.
    relayed: BTreeMap<u32, IpAddr>,
    /// Connections whose side rows may have changed since they were weighed.
    touched: Vec<u32>,
    /// The shard's account of the bytes that clients make it hold.
    account: ShardAccount,
    /// Bytes that wait for sockets.
    outbox_bytes: usize,
    /// Received bytes that are held.
    receive_bytes: usize,
    /// The next row that is looked at when received bytes need room.
    hoards: u32,
}

impl<P: ProtocolTypes> Connections<P> {
    /// No connections, charged to this account.
    pub(crate) fn new(account: ShardAccount) -> Connections<P> {
        Connections {
            rows: Slab::default(),
            spills: Side::default(),
            outboxes: Side::default(),
            extras: Side::default(),
            own: Slab::default(),
            grants: ConnectionGrants::default(),
            relayed: BTreeMap::new(),
            touched: Vec::new(),
            account,
            outbox_bytes: 0,
            receive_bytes: 0,
            hoards: 0,
        }
    }

    /// Connections that are open.
    pub(crate) fn len(&self) -> u32 {
        self.rows.len()
    }

    /// The end of the table: all rows have lower numbers.
    pub(crate) fn end(&self) -> u32 {
        self.rows.end()
    }

    /// The row of a connection.
    #[inline]
    pub(crate) fn get(&self, slot: u32) -> &Row {
        self.rows.get(slot)
    }

    /// The row of a connection, to be changed.
    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> &mut Row {
        self.rows.get_mut(slot)
    }

    /// The row with this number, in use or not, if the table has it.
    #[inline]
    pub(crate) fn try_get(&self, slot: u32) -> Option<&Row> {
        self.rows.try_get(slot)
    }

    /// Adds a connection; returns its number.
    pub(crate) fn insert(&mut self, row: Row) -> u32 {
        self.rows.insert(row)
    }

    /// Forgets a connection, with all that it holds.
    pub(crate) fn remove(&mut self, slot: u32) -> Row {
        self.take_spill(slot);
        self.grants.remove(slot);
        self.drop_outbox(slot);
        self.drop_extra(slot);
        self.set_relayed(slot, None);
        self.rows.remove(slot)
    }

    /// Whether the connection is still there.
    #[inline]
    pub(crate) fn is_current(&self, conn: ConnId) -> bool {
        self.rows
            .try_get(conn.slot)
            .is_some_and(|row| row.is_open() && row.generation == conn.generation)
    }

    /// The name of a connection that outlives it.
    #[inline]
    pub(crate) fn id_of(&self, slot: u32) -> ConnId {
        ConnId {
            slot,
            generation: self.rows.get(slot).generation,
        }
    }

    /// Whether the connection still waits for this answer; a closing one does not.
    pub(crate) fn is_asked(&self, to: ReplyTo) -> bool {
        self.rows.try_get(to.slot).is_some_and(|row| {
            row.is_open()
                && row.state != State::Draining
                && row.generation == to.generation
                && row.request == to.request
        })
    }

    /// Where the answer to something that the connection's request asks for goes.
    pub(crate) fn reply_to(&self, slot: u32, part: u32) -> ReplyTo {
        let row = self.rows.get(slot);
        ReplyTo {
            slot,
            generation: row.generation,
            request: row.request,
            part,
        }
    }

    /// Says what the connection waits for. One with a full outbox is not read either: a client that does not read is not served.
    pub(crate) fn update_interest<I: Io>(&mut self, slot: u32, io: &mut I) {
        let row = self.rows.get(slot);
        let full = row.outbox != NONE;
        let (reads, writes) = (!full && !row.is(PAUSED), full && !row.is(HELD));
        io.interest(row.link, self.id_of(slot), reads, writes);
    }

    /// Whether rows were followed to a row that is not there, since this was last asked.
    #[inline]
    pub(crate) fn was_missed(&self) -> bool {
        let missed = [
            self.rows.was_missed(),
            self.own.was_missed(),
            self.spills.was_missed(),
            self.outboxes.was_missed(),
            self.extras.was_missed(),
        ];
        missed.contains(&true)
    }

    /// Bytes of the account.
    pub(crate) fn charged_bytes(&self) -> usize {
        self.account.held_bytes()
    }

    /// Adds its counts and bytes.
    pub(crate) fn account(&self, accounts: &mut Accounts) {
        accounts.connections = self.rows.len();
        accounts.spills = self.spills.len();
        accounts.outboxes = self.outboxes.len();
        accounts.extras = self.extras.len();
        accounts.parts = self.account.parts();
        accounts.mqtt_connections = self.own.len();
        accounts.identities = self.grants.len();
        accounts.relayed = self.relayed.len() as u32;
        accounts.receive_bytes = self.receive_bytes;
        accounts.outbox_bytes = self.outbox_bytes;
    }

    /// Bytes of the rows, of those that protocols give, and of the side rows without what they hold on the heap.
    pub(crate) fn table_bytes(&self) -> (usize, usize, usize) {
        let sides = self.spills.bytes() + self.outboxes.bytes() + self.extras.bytes();
        (self.rows.bytes(), self.own.bytes(), sides)
    }
}

/// Side rows with state that few connections need.
impl<P: ProtocolTypes> Connections<P> {
    /// The side row of a connection, made if there is none yet. It will be weighed.
    pub(crate) fn extra(&mut self, slot: u32) -> &mut Extra<P> {
        if self.touched.last() != Some(&slot) {
            self.touched.push(slot);
        }
        let row = self.rows.get_mut(slot);
        if row.extra() == NONE {
            let extra = self.extras.insert(Default::default());
            self.extras.get_mut(extra).began = row.begin_extra(extra);
        }
        self.extras.get_mut(row.extra())
    }

    /// The side row of a connection that must have one.
    #[inline]
    pub(crate) fn extra_of(&self, slot: u32) -> &Extra<P> {
        self.extras.get(self.rows.get(slot).extra())
    }

    /// The same, to be changed, where that does not change what it weighs.
    #[inline]
    pub(crate) fn extra_mut(&mut self, slot: u32) -> &mut Extra<P> {
        self.extras.get_mut(self.rows.get(slot).extra())
    }

    /// The side row of a connection, if it has one.
    #[inline]
    pub(crate) fn find_extra(&self, slot: u32) -> Option<&Extra<P>> {
        match self.rows.get(slot).extra() {
            NONE => None,
            extra => Some(self.extras.get(extra)),
        }
    }

    /// The same, to be changed, where that does not change what it weighs.
    #[inline]
    pub(crate) fn find_extra_mut(&mut self, slot: u32) -> Option<&mut Extra<P>> {
        match self.rows.get(slot).extra() {
            NONE => None,
            extra => Some(self.extras.get_mut(extra)),
        }
    }

    /// When a connection began.
    pub(crate) fn began(&self, slot: u32) -> Began {
        let row = self.rows.get(slot);
        self.find_extra(slot)
            .map_or(row.began(), |extra| extra.began)
    }

    /// A connection has another place among the members of one of its topics. False where it does not have that topic.
    pub(crate) fn has_moved(&mut self, topic: u32, moved: &Moved) -> bool {
        let row = self.rows.get_mut(moved.conn);
        if !row.wants(MULTI) {
            row.place = moved.index;
            return true;
        }
        let list = &mut self.extras.get_mut(row.extra()).list;
        let sub = list.iter_mut().find(|sub| sub.topic == topic);
        sub.map(|sub| sub.place = moved.index).is_some()
    }

    /// Drops the side row of a connection.
    pub(crate) fn drop_extra(&mut self, slot: u32) {
        let row = self.rows.get_mut(slot);
        let extra = row.extra();
        if extra != NONE {
            let mut side = self.extras.remove(extra);
            row.end_extra(side.began);
            let (charged_bytes, _) = side.weigh();
            self.account.release(Part::Connections, charged_bytes);
        }
    }

    /// Charges the bytes of side rows that may have changed.
    pub(crate) fn weigh_touched(&mut self) {
        let mut touched = core::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        for slot in touched.drain(..) {
            let row = self.rows.get(slot);
            let extra = row.extra();
            if row.is_open() && extra != NONE {
                let (before, now) = self.extras.get_mut(extra).weigh();
                self.account.change(Part::Connections, before, now);
            }
        }
        self.touched = touched;
    }

    /// Whether so many side rows may have changed that they are weighed before the end of the turn.
    #[inline]
    pub(crate) fn must_weigh(&self) -> bool {
        self.touched.len() > TOUCHED_MAX
    }
}

/// The account.
impl<P: ProtocolTypes> Connections<P> {
    /// How near the sum of the process is to its limit, for this shard.
    #[inline]
    pub(crate) fn level(&self) -> Level {
        self.account.level()
    }

    /// The same when so many bytes of this shard are gone.
    pub(crate) fn level_without(&self, bytes: usize) -> Level {
        self.account.level_without(bytes)
    }

    /// Bytes that must be released before this many more still fit below [`Level::Full`].
    pub(crate) fn lacks(&mut self, bytes: usize) -> usize {
        self.charge_received();
        self.account.lacks(bytes)
    }

    /// Something that is no connection's holds so many bytes now.
    pub(crate) fn charge(&mut self, part: Part, bytes: usize) {
        self.account.set(part, bytes);
    }

    /// Subscriptions of a connection by filter, those in groups included.
    pub(crate) fn filters_of(&self, slot: u32) -> usize {
        let Some(extra) = self.find_extra(slot) else {
            return 0;
        };
        let own = extra.filters.as_ref().map_or(0, |filters| filters.len());
        // A group's name is at its homes too, and its filter in their tries.
        own + extra.shared_bytes / SHARE_BYTES
    }

    /// Bytes that a connection makes the shard hold; of shared messages its part.
    pub(crate) fn held_by(&self, slot: u32) -> usize {
        let spill = self.spill(slot).map_or(0, Spilled::bytes);
        let outbox = self.outbox(slot).map_or(0, Outbox::weight);
        let extra = self.find_extra(slot).map_or(0, Extra::weight);
        spill + outbox + extra
    }
}
