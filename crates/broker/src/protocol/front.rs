//! A shard's side towards clients: the rows of connections, their subscriptions, and the way to homes.

use crate::base::work::Steps;
use crate::budget::world::World;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crore_wire::topic;

use crate::base::ids::ConnId;
use crate::base::ids::ShardId;
use crate::base::pace::Pace;
use crate::base::time::Now;
use crate::base::turns::Turns;
use crate::budget::passes::Passes;
use crate::budget::purse::Purse;
use crate::budget::stats::Stats;
use crate::conn::io::{Close, Io};
use crate::conn::topics::Topics;
use crate::conn::{CLOSING, EOF, FRAMED, PAUSED, PINGS, Row, State};
use crate::filters::matching::Matching;
use crate::home::Home;
use crate::mail::lanes::Lanes;
use crate::mail::{Ask, ReplyTo};
use crate::protocol::census::Census;
use crate::protocol::delivery::Delivery;
use crate::protocol::ending::Ending;
use crate::protocol::gate::Gate;
use crate::protocol::mqtt::farewells::Farewells;
use crate::protocol::mqtt::state::MqttRow;
use crate::protocol::outbox::Outbox;
use crate::protocol::queues::Queues;
use crate::protocol::run::Run;
use crate::protocol::scratch::Scratch;
use crate::protocol::side::{Extra, Spill};
use crate::store::shared::Forms;
use crate::store::slab::{NONE, Side, Slab};

/// The clients' side of a shard. Generic over [`Io`] in each call, never `dyn`.
pub struct Front {
    pub(crate) world: Arc<World>,
    pub(crate) now: Now,
    pub(crate) conns: Slab<Row>,
    pub(crate) spills: Side<Spill>,
    pub(crate) outboxes: Side<Outbox>,
    pub(crate) extras: Side<Box<Extra>>,
    pub(crate) mqtts: Slab<MqttRow>,
    pub(crate) passes: Passes,
    /// Client addresses of connections through proxies, as the proxies name them. The part of an address that a limit needs is
    /// in the row.
    pub(crate) relayed: BTreeMap<u32, IpAddr>,
    pub(crate) topics: Topics,
    /// Requests to homes about sessions: they wait until no delivery is under way, since a will is a publish.
    pub(crate) errands: Vec<(ShardId, Ask)>,
    /// Sessions that are given back when the publishes of their connections are answered.
    pub(crate) leaving: Farewells,
    /// MQTT clients that the server gave an id.
    pub(crate) clients_named: u64,
    pub(crate) matching: Matching,
    pub(crate) home: Option<Home>,
    pub(crate) lanes: Lanes,
    pub(crate) deliveries: VecDeque<Delivery>,
    /// Connections that wait for their turn, a page or credit.
    pub(crate) queues: Queues,
    pub(crate) outbox_bytes: usize,
    pub(crate) receive_bytes: usize,
    /// Its account of the bytes that clients make it hold.
    pub(crate) purse: Purse,
    /// Connections whose side rows may have changed since they were weighed.
    pub(crate) touched: Vec<u32>,
    /// Which clients hold how much, while the account is near its limit.
    pub(crate) census: Census,
    /// Large messages in the encoded forms that sockets wait for.
    pub(crate) forms: Forms,
    /// The next row that is looked at when received bytes need room.
    pub(crate) hoards: u32,
    pub(crate) gate: Gate,
    /// The work done and the budget for it.
    pub(crate) work: Work,
    pub(super) ending: Ending,
    pub(crate) scratch: Scratch,
    pub(crate) run: Run,
    pub(crate) pace: Pace,
    pub(crate) stats: Stats,
    /// Clients are being moved off this server.
    pub(crate) drains: bool,
}

/// The work that a shard may still do.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// The steps that the shard itself has done.
    pub steps: Steps,
    /// The count of steps at which the budget is spent.
    pub until: u64,
    /// The same limit for the connection at hand, among others that wait.
    pub quantum: u64,
}

impl Front {
    /// A front of this world, which began at `now`.
    pub(crate) fn new(me: ShardId, world: Arc<World>, now: Now) -> Front {
        let home = (me < world.homes).then(|| {
            Home::new(
                &world.settings,
                &world.rules,
                world.admission.clone(),
                world.epoch,
                world.homes as usize,
                world.seed,
            )
        });
        let lanes = Lanes::new(me, world.shards as usize);
        let mut front = Front {
            now,
            conns: Slab::new(),
            spills: Side::new(),
            outboxes: Side::new(),
            extras: Side::new(),
            mqtts: Slab::new(),
            passes: Passes::default(),
            relayed: BTreeMap::new(),
            topics: Topics::default(),
            errands: Vec::new(),
            leaving: Farewells::default(),
            clients_named: u64::from(now.unix_s) << 32,
            matching: Matching::new(world.homes as usize, world.seed),
            home,
            lanes,
            deliveries: VecDeque::new(),
            queues: Queues::default(),
            outbox_bytes: 0,
            receive_bytes: 0,
            purse: Purse::new(world.admission.clone(), world.shards as usize),
            touched: Vec::new(),
            census: Census::default(),
            forms: Forms::default(),
            hoards: 0,
            gate: Gate::new(world.settings.limits.connections_per_shard),
            work: Work::default(),
            ending: Ending::default(),
            scratch: Scratch::new(),
            run: Run::default(),
            pace: Pace::default(),
            stats: Stats::default(),
            drains: false,
            world,
        };
        front.begin_work();
        front
    }

    pub(crate) fn is_current(&self, conn: ConnId) -> bool {
        self.conns
            .try_get(conn.slot)
            .is_some_and(|row| row.is_open() && row.generation == conn.generation)
    }

    pub(crate) fn id_of(&self, slot: u32) -> ConnId {
        ConnId {
            slot,
            generation: self.conns.get(slot).generation,
        }
    }

    pub(crate) fn reply_to(&self, slot: u32, part: u32) -> ReplyTo {
        let row = self.conns.get(slot);
        ReplyTo {
            slot,
            generation: row.generation,
            request: row.request,
            part,
        }
    }

    /// The keyed hash and the home of a topic.
    pub(crate) fn place_of(&self, name: &[u8]) -> (u32, ShardId) {
        let hash = xxh3_64_with_seed(name, self.world.seed) as u32;
        (
            hash,
            ShardId::from(topic::partition(name)) % self.world.homes,
        )
    }

    pub(crate) fn extra(&mut self, slot: u32) -> &mut Extra {
        if self.touched.last() != Some(&slot) {
            self.touched.push(slot);
        }
        let row = self.conns.get_mut(slot);
        if row.extra == NONE {
            row.extra = self.extras.insert(Default::default());
        }
        self.extras.get_mut(row.extra)
    }

    pub(crate) fn received<I: Io>(&mut self, conn: ConnId, bytes: &mut [u8], io: &mut I) {
        let row = self.conns.get_mut(conn.slot);
        row.options &= !PINGS;
        match row.state {
            State::Proxy | State::Http => self.http_received(conn.slot, bytes, io),
            State::Waiting | State::Poll => self.hold(conn.slot, bytes, io),
            State::WebSocket => self.frames_received(conn.slot, bytes, io),
            State::Mqtt if row.wants(FRAMED) => self.frames_received(conn.slot, bytes, io),
            State::Mqtt => self.mqtt_received(conn.slot, bytes, io),
            State::Draining => self.throw_away(conn.slot, bytes.len(), io),
            State::Sse => {}
        }
    }

    pub(crate) fn ended<I: Io>(&mut self, slot: u32, io: &mut I) {
        let row = self.conns.get_mut(slot);
        let answer_due = row.state == State::Waiting || row.outbox != NONE;
        if answer_due && matches!(row.state, State::Waiting | State::Http | State::Draining) {
            row.flags |= EOF | PAUSED;
            self.update_interest(slot, io);
            return;
        }
        self.drop_conn(slot, Close::Now, io);
    }

    pub(crate) fn ask(&mut self, to: ShardId, ask: impl FnOnce(&mut Vec<u8>) -> Ask) {
        let lane = &mut self.lanes.to[to as usize];
        let ask = ask(&mut lane.bytes);
        lane.asks.push(ask);
    }

    /// A connection with a full outbox is not read either: a client that does not read is not served.
    pub(crate) fn update_interest<I: Io>(&mut self, slot: u32, io: &mut I) {
        let row = self.conns.get(slot);
        let full = row.outbox != NONE;
        io.interest(row.link, self.id_of(slot), !full && !row.is(PAUSED), full);
    }

    pub(crate) fn writable<I: Io>(&mut self, slot: u32, io: &mut I) {
        let row = self.conns.get_mut(slot);
        if row.outbox == NONE {
            return;
        }
        let outbox = self.outboxes.get_mut(row.outbox);
        let sent = outbox.send(row.link, io);
        if sent > 0 {
            row.deadline_s = self.now.s + self.world.settings.timeouts.body_s;
            row.sent_s = self.now.s;
        }
        if outbox.waiting_bytes() > 0 {
            return self.weigh_outbox(slot);
        }
        self.drop_outbox(slot);
        let row = self.conns.get(slot);
        let deadline_s = match row.state {
            State::Http => self.now.s + self.world.settings.timeouts.keep_alive_s,
            State::Mqtt => self.keep_alive_end_s(slot),
            _ => 0,
        };
        let row = self.conns.get_mut(slot);
        row.deadline_s = deadline_s;
        if row.is(CLOSING) {
            self.shut(slot, io);
            return;
        }
        let state = row.state;
        self.update_interest(slot, io);
        match state {
            State::Http => self.resume_later(self.id_of(slot)),
            State::Sse | State::WebSocket => self.catch_up(slot),
            State::Mqtt => self.resume_later(self.id_of(slot)),
            _ => {}
        }
    }

    pub(crate) fn drop_spill(&mut self, slot: u32) {
        let row = self.conns.get_mut(slot);
        if row.spill == NONE {
            return;
        }
        self.receive_bytes -= self.spills.remove(row.spill).bytes();
        row.spill = NONE;
    }

    /// Steps done since the shard began.
    #[inline]
    pub fn steps(&self) -> u64 {
        self.work.steps.count() + self.home.as_ref().map_or(0, Home::steps)
    }

    /// Resets the budget: the inputs of a turn have one, and its end another.
    pub(crate) fn begin_work(&mut self) {
        self.work.until = self.steps() + u64::from(self.pace.steps_per_turn);
        self.work.quantum = self.work.until;
    }

    /// Whether the turn has used its budget: further input may wait for the next turn.
    #[inline]
    pub fn is_spent(&self) -> bool {
        self.steps() >= self.work.quantum
    }

    /// Whether half of what the end of a turn may do is done: the rest is for deliveries.
    pub(crate) fn is_half_spent(&self) -> bool {
        self.steps() + u64::from(self.pace.steps_per_turn) / 2 >= self.work.until
    }

    /// Connections that may be visited at the end of this turn: as the budget allows, and one at least.
    pub(crate) fn visits(&self) -> u32 {
        let left = self.work.until.saturating_sub(self.steps());
        let left = u32::try_from(left).unwrap_or(u32::MAX);
        self.pace.visits_per_turn.min(left).max(1)
    }

    /// Whether clients are being moved off this server.
    pub(crate) fn drains(&self) -> bool {
        self.drains
    }
}
