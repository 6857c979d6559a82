//! A shard: its connections, the topics that they subscribe to, perhaps a home; and the turn that
//! takes inputs in and, at its end, sends everything that they led to.
//!
//! Invariants: a turn's deliveries go out in the order of the lanes; what the shard does within one
//! input, and at the end of a turn, is bounded (see `work.rs`); no input panics, whatever the network says.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crore_wire::mqtt::PropertyBuf;
use crore_wire::topic;

use crate::access::passes::Passes;
use crate::access::verdicts::Verdicts;
use crate::account::Purse;
use crate::admission::Admission;
use crate::carrier::Topics;
use crate::conn::{CLOSING, ConnId, EOF, Extra, FRAMED, Link, PAUSED, PINGS, Row, Spill, State};
use crate::connection::mqtt::{Leaving, MqttRow};
use crate::deliver::Delivery;
use crate::drain::Draining;
use crate::home::Home;
use crate::io::{Close, Input, Io};
use crate::lanes::Lanes;
use crate::mail::{Ask, Mail, ReplyTo, ShardId};
use crate::matching::Matching;
use crate::outbox::Outbox;
use crate::pace::Pace;
use crate::relief::Census;
use crate::rules::Rules;
use crate::run::Run;
use crate::sessions::{ConnOf, Sessions};
use crate::settings::Settings;
use crate::shared::Forms;
use crate::slab::{NONE, Side, Slab};
use crate::snapshot::Saving;
use crate::stats::{Reason, Stats, Transport};
use crate::sys::Sys;
use crate::time::Now;
use crate::totals::Added;
use crate::work::Work;

/// What all shards of a process share, read-only but for the counters of `admission`.
#[derive(Debug)]
pub struct World {
    /// What the operator set.
    pub settings: Settings,
    /// The rules, with the default one.
    pub rules: Rules,
    /// How many shards.
    pub shards: ShardId,
    /// How many of them, from the first on, keep topics.
    pub homes: ShardId,
    /// The life of the logs.
    pub epoch: u32,
    /// Keys the hash of topic names, against floods of collisions.
    pub seed: u64,
    /// What the shards count together.
    pub admission: Admission,
}

/// A shard. Generic over [`Io`] in each call, never `dyn`.
pub struct Shard {
    pub(crate) world: Arc<World>,
    pub(crate) now: Now,
    pub(crate) conns: Slab<Row>,
    pub(crate) spills: Side<Spill>,
    pub(crate) outboxes: Side<Outbox>,
    pub(crate) extras: Side<Box<Extra>>,
    pub(crate) mqtts: Slab<MqttRow>,
    pub(crate) passes: Passes,
    /// Whose connections these are that come from proxies, as far as those say it. What a limit needs of an address is in
    /// the row.
    pub(crate) relayed: BTreeMap<u32, IpAddr>,
    pub(crate) verdicts: Verdicts,
    pub(crate) topics: Topics,
    /// MQTT sessions whose client ids have their home here.
    pub(crate) sessions: Sessions,
    /// What is asked of homes about sessions: it waits until no delivery is under way, since a will is a publish.
    pub(crate) errands: Vec<(ShardId, Ask)>,
    /// Sessions that are given back when what their connections published is answered.
    pub(crate) leaving: BTreeMap<ConnOf, Leaving>,
    /// What it has added to the sums of all shards.
    pub(crate) added: Added,
    pub(crate) sys: Sys,
    /// MQTT clients that were given an id.
    pub(crate) clients_named: u64,
    pub(crate) matching: Matching,
    pub(crate) home: Option<Home>,
    pub(crate) lanes: Lanes,
    pub(crate) deliveries: VecDeque<Delivery>,
    /// Connections whose pipelined requests may go on.
    pub(crate) resumed: VecDeque<ConnId>,
    /// Followers that may have the next page of their snapshot.
    pub(crate) paging: Vec<ConnId>,
    /// Publishers that wait for credit.
    pub(crate) stalled: Vec<ConnId>,
    pub(crate) outbox_bytes: usize,
    pub(crate) receive_bytes: usize,
    /// Its account of the bytes that clients make it hold.
    pub(crate) purse: Purse,
    /// Connections whose side rows may have changed since they were weighed.
    pub(crate) touched: Vec<u32>,
    /// Which clients hold how much, while the account is near its limit.
    pub(crate) census: Census,
    /// Large messages in the forms that sockets wait for.
    pub(crate) forms: Forms,
    /// The next row that is looked at when received bytes need room.
    pub(crate) hoards: u32,
    /// Connections that there is room for, but for those that wait to be turned away.
    pub(crate) room: u32,
    /// Connections that wait to be turned away.
    pub(crate) turned_away: u32,
    /// Clients are moved off.
    pub(crate) draining: Option<Draining>,
    /// How far its snapshot is.
    pub(crate) saving: Option<Box<Saving>>,
    /// The clock stands still: the end is near.
    pub(crate) stopped: bool,
    /// Mail that it posted, and that came to it.
    pub(crate) posted: u64,
    pub(crate) received: u64,
    /// What it has done and may still do.
    pub(crate) work: Work,
    pub(crate) swept: u32,
    pub(crate) swept_s: u32,
    /// What the sweep under way has seen, and what the last one saw.
    pub(crate) tally: [[u32; Transport::ALL.len()]; 2],
    /// Whether the sweep looks at who may have what it has.
    pub(crate) review: crate::connection::Review,
    /// Why the connection at hand is about to end, where that is not its peer's doing.
    pub(crate) why: Option<Reason>,
    /// Connections that end with this input, since what is held of them contradicts itself.
    pub(crate) broken: Vec<ConnId>,
    /// The response that is being written.
    pub(crate) reply: Vec<u8>,
    /// The position that is being written.
    pub(crate) id: Vec<u8>,
    /// The MQTT properties that are being written.
    pub(crate) properties: PropertyBuf,
    /// The topic of an MQTT publish that is being read.
    pub(crate) named_scratch: Vec<u8>,
    pub(crate) run: Run,
    pub(crate) scratch: crore_wire::ndjson::Scratch,
    pub(crate) pace: Pace,
    pub(crate) stats: Stats,
}

impl Shard {
    /// A shard of this world, which began at `now`.
    pub fn new(me: ShardId, world: Arc<World>, now: Now) -> Self {
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
        let mut shard = Shard {
            now,
            conns: Slab::new(),
            spills: Side::new(),
            outboxes: Side::new(),
            extras: Side::new(),
            mqtts: Slab::new(),
            passes: Passes::default(),
            relayed: BTreeMap::new(),
            verdicts: Verdicts::default(),
            topics: Topics::default(),
            sessions: Sessions::default(),
            errands: Vec::new(),
            leaving: BTreeMap::new(),
            added: Added::default(),
            sys: Sys::new(now.s),
            // Another number after a restart that keeps epoch and seed.
            clients_named: u64::from(now.unix_s) << 32,
            matching: Matching::new(world.homes as usize, world.seed),
            home,
            lanes,
            deliveries: VecDeque::new(),
            resumed: VecDeque::new(),
            paging: Vec::new(),
            stalled: Vec::new(),
            outbox_bytes: 0,
            receive_bytes: 0,
            purse: Purse::new(world.admission.clone(), world.shards as usize),
            touched: Vec::new(),
            census: Census::default(),
            forms: Forms::default(),
            hoards: 0,
            room: u32::try_from(world.settings.limits.connections_per_shard).unwrap_or(u32::MAX),
            turned_away: 0,
            draining: None,
            saving: None,
            stopped: false,
            posted: 0,
            received: 0,
            work: Work::default(),
            swept: 0,
            swept_s: now.s,
            tally: Default::default(),
            review: Default::default(),
            why: None,
            broken: Vec::new(),
            reply: Vec::new(),
            id: Vec::new(),
            properties: PropertyBuf::new(),
            named_scratch: Vec::new(),
            run: Run::default(),
            scratch: Default::default(),
            pace: Pace::default(),
            stats: Stats::default(),
            world,
        };
        shard.begin_work();
        shard
    }

    /// Changes how much a turn does.
    pub fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
        self.begin_work();
        self.lanes.under_way_max = pace.turns_under_way;
        if let Some(home) = &mut self.home {
            home.pace = pace;
        }
    }

    /// From now on by another world: one of the same shards and topics, with other settings or rules.
    pub fn change(&mut self, world: Arc<World>) {
        let of = |world: &World| (world.shards, world.homes, world.epoch, world.seed);
        assert!(
            of(&world) == of(&self.world),
            "what a shard is made of stays"
        );
        if let Some(home) = &mut self.home {
            home.change(&world, &self.world.rules, self.now);
        }
        self.review.change(&self.world.settings, &world.settings);
        self.world = world;
        self.verdicts.clear();
    }

    /// What this shard met since it began.
    pub fn stats(&self) -> Stats {
        let mut stats = self.stats;
        if let Some(home) = &self.home {
            stats += home.stats();
        }
        stats
    }

    /// Begins a turn at this moment, on a clock that all shards share and that is never 0. The shard does not read it;
    /// it comes back with what was published in this turn and is written somewhere, in [`Io::written`].
    pub fn stamp(&mut self, stamp: u64) {
        self.lanes.stamp = stamp;
        self.lanes.read_at = stamp;
    }

    /// Has room for so many connections at most: what lies below may have less than the settings allow.
    pub fn limit_connections(&mut self, most: u32) {
        self.room = self.room.min(most);
    }

    /// Connections that are open.
    pub fn connections(&self) -> u32 {
        self.conns.len()
    }

    /// The link of a connection that is still open.
    pub fn link_of(&self, conn: ConnId) -> Option<Link> {
        self.is_current(conn)
            .then(|| self.conns.get(conn.slot).link)
    }

    /// Whether time means nothing to it: it has no connection, as a home no topic, subscriber or session, and nothing that
    /// the sums of all shards lack.
    pub fn is_idle(&self) -> bool {
        self.conns.len() == 0
            && self.sessions.len() == 0
            && self.home.as_ref().is_none_or(Home::is_idle)
            && self.added.is_told(&self.stats(), &self.accounts())
    }

    /// Takes one input. What it leads to may go out now or with [`Shard::flush`].
    pub fn handle<I: Io>(&mut self, input: Input<'_>, now: Now, io: &mut I) {
        self.now = now;
        let about = input.about();
        match input {
            Input::Accepted(link, peer) => self.accepted(link, peer, io),
            Input::Received(conn, bytes) => {
                if self.is_current(conn) {
                    self.received(conn, bytes, io);
                }
            }
            Input::Writable(conn) => {
                if self.is_current(conn) {
                    self.writable(conn.slot, io);
                }
            }
            Input::End(conn) => {
                if self.is_current(conn) {
                    self.ended(conn.slot, io);
                }
            }
            Input::Closed(conn) => {
                if self.is_current(conn) {
                    self.drop_conn(conn.slot, Close::Now, io);
                }
            }
            Input::Mail(mail) => self.mail(mail),
            Input::Control(ticket, control) => self.control(ticket, control, io),
            Input::Tick if self.stopped => {}
            Input::Verdict(conn, verdict) => self.verdict(conn, verdict),
            Input::Tick => {
                self.tick(io);
                // However many rows it looks at, somebody is heard in each turn.
                self.begin_work();
            }
        }
        self.end_missed(about, io);
        self.charge_input(io);
    }

    /// Ends the turn: delivers what is due within the budget and posts the mail. Says whether work
    /// is left, so that the caller does not sleep.
    pub fn flush<I: Io>(&mut self, now: Now, io: &mut I) -> bool {
        self.now = now;
        self.begin_work();
        // Once a turn: a snapshot of a million topics is many turns.
        self.ask_pages();
        let forgets = match &mut self.home {
            Some(home) if !self.stopped => home.forget(&self.world.rules, now),
            _ => false,
        };
        // First, and not the whole budget: no delivery of this turn's frames is under way yet.
        self.go_on(io);
        let mut visits = self.visits();
        let mut more_news;
        loop {
            more_news = self.tell_followers();
            if let Some((tells, frames)) = self.lanes.take_own() {
                self.enqueue(self.lanes.me, tells, frames);
            }
            if !self.deliver(&mut visits, io) {
                break;
            }
            self.end_broken(io);
            self.run_errands();
            let waits = !self.has_more() || self.is_half_spent();
            if waits && !self.lanes.has_own() && !self.has_news() {
                break;
            }
            self.go_on(io);
        }
        self.end_missed(None, io);
        let posted = &mut self.posted;
        self.lanes.flush(|to, mail| {
            *posted += 1;
            io.post(to, mail);
        });
        if !self.stalled.is_empty() && !self.must_stall() {
            self.release_stalled(io);
        }
        if let Some(home) = &mut self.home {
            home.end_turn();
        }
        self.charge_turn(io);
        let relieves = self.relieve(io);
        self.begin_work();
        relieves
            || more_news
            || forgets
            || self.has_more()
            || !self.deliveries.is_empty()
            || !self.paging.is_empty()
    }

    /// Whether the shard waits for something that no event announces, and should be called again
    /// within a millisecond or two.
    pub fn is_waiting(&self) -> bool {
        !self.stalled.is_empty() || self.lanes.withholds
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

    fn accepted<I: Io>(&mut self, link: Link, peer: IpAddr, io: &mut I) {
        if !self.is_expected(peer) {
            self.stats.untrusted += 1;
            io.close(link, Close::Now);
            return;
        }
        self.stats.accepted += 1;
        let settings = &self.world.settings;
        let state = if settings.http.proxy_protocol {
            State::Proxy
        } else {
            State::Http
        };
        let mut row = Row::new(link, state, self.now.s + settings.timeouts.head_s);
        row.sent_s = self.now.s;
        if !self.enter(&mut row, peer) {
            self.stats.closed[Reason::Full as usize] += 1;
            self.shed(link, io);
            return;
        }
        let slot = self.conns.insert(row);
        io.open(link, self.id_of(slot));
    }

    fn shed<I: Io>(&self, link: Link, io: &mut I) {
        io.send(link, &[&crate::connection::shed(b"", link.0 ^ self.now.s)]);
        io.close(link, Close::Now);
    }

    fn received<I: Io>(&mut self, conn: ConnId, bytes: &mut [u8], io: &mut I) {
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

    fn ended<I: Io>(&mut self, slot: u32, io: &mut I) {
        let row = self.conns.get_mut(slot);
        let answer_due = row.state == State::Waiting || row.outbox != NONE;
        if answer_due && matches!(row.state, State::Waiting | State::Http | State::Draining) {
            row.flags |= EOF | PAUSED;
            self.update_interest(slot, io);
            return;
        }
        self.drop_conn(slot, Close::Now, io);
    }

    fn mail(&mut self, mail: Mail) {
        self.received += 1;
        let from = mail.from as usize;
        self.lanes.to[from].under_way_bytes -= mail.credit_bytes;
        self.take_asks(mail.from, mail.asks, mail.bytes, mail.stamp);
        if let Some(frames) = mail.frames {
            self.enqueue(mail.from, mail.tells, frames);
        }
    }

    pub(crate) fn ask(&mut self, to: ShardId, ask: impl FnOnce(&mut Vec<u8>) -> Ask) {
        let lane = &mut self.lanes.to[to as usize];
        let ask = ask(&mut lane.bytes);
        lane.asks.push(ask);
    }

    /// A connection whose outbox is full is not read either: whoever does not listen is not heard.
    pub(crate) fn update_interest<I: Io>(&mut self, slot: u32, io: &mut I) {
        let row = self.conns.get(slot);
        let full = row.outbox != NONE;
        io.interest(row.link, self.id_of(slot), !full && !row.is(PAUSED), full);
    }

    fn writable<I: Io>(&mut self, slot: u32, io: &mut I) {
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
            State::Http => self.resumed.push_back(self.id_of(slot)),
            State::Sse | State::WebSocket => self.catch_up(slot),
            State::Mqtt => self.resumed.push_back(self.id_of(slot)),
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
}
