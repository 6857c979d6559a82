//! The fallback of a slow consumer: a subscription whose connection cannot take a message has seen all before it, and reads on from the log when
//! the socket drains. [`Clients::lags`] decides this for every protocol; the code that finds that a message does not fit (`send::fits`) says why ([`Lag`]).
//! A follower of interest, which can lose nothing, ends instead (`http/interest.rs`).
//!
//! Deliberately not here: how much may wait for a socket (`outbox`, `send`), how a subscription reads on (`subscribe/leave`, `filtered`), and what a
//! rule's `slow` makes of messages that the log has no more (`gap` of `http/subscribe` and `websocket`).

use crate::base::ids::PartitionId;
use crate::client::joining::filtered_mut;
use crate::client::parts::{Clients, Matching};
use crate::client::row::{LIVE, MULTI};
use crate::client::side::Behind;
use crate::client::types::ProtocolTypes;
use crate::filters::matching::At;
use crate::mail::Record;

/// Why a connection cannot take a message now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lag {
    /// The client does not read: its outbox is full.
    Outbox,
    /// The message would wait for the socket, and a newer one of its key may take its place meanwhile (`keep = "latest"`).
    Latest,
    /// The client does not acknowledge: as many messages are in flight as it takes.
    Window,
}

impl Lag {
    /// Of a message that does not fit; where only the newest message of each key is kept, none waits.
    pub(crate) fn of(record: &Record) -> Lag {
        match record.latest {
            true => Lag::Latest,
            false => Lag::Outbox,
        }
    }
}

impl<P: ProtocolTypes> Clients<P> {
    /// The policy for a connection that cannot take a message. Its subscription then falls back to its position.
    fn lags(&mut self, lag: Lag) {
        match lag {
            Lag::Outbox | Lag::Latest | Lag::Window => self.meter.stats.fallbacks += 1,
        }
    }

    /// A subscription to a topic cannot take its messages: it has seen the topic up to `offset`.
    pub(crate) fn fall_back(&mut self, slot: u32, part: u32, offset: u64, lag: Lag) {
        self.lags(lag);
        self.read_on(slot, part, offset);
    }

    /// The same of a stream that has not begun: messages before `offset` are held and not sent yet, so that its position stays behind them.
    pub(crate) fn fall_back_unsent(&mut self, slot: u32, part: u32, offset: u64, lag: Lag) {
        self.lags(lag);
        ask_again(self, slot, part, offset);
    }

    /// A subscription to a topic is not live: it has seen the topic up to `offset`, and the next page begins there.
    pub(crate) fn read_on(&mut self, slot: u32, part: u32, offset: u64) {
        let epoch = self.ctx.world.epoch;
        if self.conns.get(slot).wants(MULTI)
            && let Some(sub) = self.conns.extra(slot).list.get_mut(part as usize)
        {
            (sub.offset, sub.epoch) = (offset, epoch);
        }
        ask_again(self, slot, part, offset);
    }

    /// A group of filters cannot take a partition's messages: it has seen the partition up to `offset`.
    pub(crate) fn fall_back_in(
        &mut self,
        matching: &Matching,
        slot: u32,
        serial: u32,
        (partition, offset): (PartitionId, u64),
        lag: Lag,
    ) {
        self.lags(lag);
        let (seen, epoch) = (matching.seen.clone(), self.ctx.world.epoch);
        let Some(filtered) = filtered_mut(&mut self.conns, slot) else {
            return self.broken(slot);
        };
        let Some(group) = filtered.group(serial) else {
            return self.broken(slot);
        };
        let live = |offset| At {
            offset,
            epoch,
            live: true,
            ..At::default()
        };
        let mut positions = match group.positions() {
            [] => seen.into_iter().map(live).collect(),
            positions => positions.to_vec(),
        };
        let Some(at) = positions.get_mut(usize::from(partition)) else {
            return self.broken(slot);
        };
        *at = At {
            offset,
            epoch,
            ..At::default()
        };
        filtered.set_positions(serial, positions);
    }
}

/// The next page of a topic begins behind `offset`.
fn ask_again<P: ProtocolTypes>(clients: &mut Clients<P>, slot: u32, part: u32, offset: u64) {
    if clients.conns.get(slot).wants(MULTI) {
        let Some(sub) = clients.conns.extra(slot).list.get_mut(part as usize) else {
            return clients.broken(slot);
        };
        sub.flags &= !LIVE;
    } else {
        clients.conns.get_mut(slot).flags &= !LIVE;
    }
    let epoch = clients.ctx.world.epoch;
    let behind = &mut clients.conns.extra(slot).behind;
    behind.retain(|behind| behind.part != part);
    behind.push(Behind {
        part,
        offset,
        epoch,
    });
}
