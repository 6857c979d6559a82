//! A shard is the state that one thread of the server runs: connections, the topics to which they subscribe, and perhaps a home, which stores
//! topics and their logs. In a turn, a shard handles inputs; at the end of the turn it delivers messages and sends mail to other shards.
//!
//! Invariants: the messages of each home are delivered in the order of its *lane*, the queue of mail from that home. The work for one input,
//! and at the end of a turn, is bounded (see `work.rs`). No input from the network causes a panic.

pub(crate) mod asks;
mod catch_up;
mod cluster;
mod cluster_view;
mod commits;
pub mod control;
pub(crate) mod deliver;
pub(crate) mod deliver_matched;
mod delivery_order;
pub(crate) mod drain;
mod drain_progress;
mod enqueue;
mod flows;
mod pending_request;
mod published_wills;
pub(crate) mod restore;
pub(crate) mod save;
mod session_log;
mod session_replicas;
mod sessions;
pub(crate) mod shadow;
mod snapshot_writer;
mod sweep;
pub(crate) mod sys_publish;
mod sys_values;
pub mod tables;
mod tick;
pub(crate) mod topic_end;
mod wills;
pub(crate) mod work;

use crate::base::reason::Closed;
use crate::budget::world::World;
use crate::client::protocols::protocol_of;
use crate::client::send::handle_writable;
use crate::protocol::centrifugo::backend::backend_answered;
use crate::protocol::front::{AllProtocols, Clients, Front, Gate, Lanes};
use crate::protocol::http::options::PINGS;
use crate::protocol::http::publish::outcomes::info_counted;
use crate::protocol::http2::waiting::{PausedLinks, flush_links};
use crate::store::shared::OutputPart;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::net::IpAddr;

use crate::base::ids::{ConnId, ShardId, SocketId};
use crate::base::time::Now;
use crate::base::turn_limits::TurnLimits;
use crate::budget::admission::Party;
use crate::budget::part::MemoryPart;
use crate::budget::stats::Stats;
use crate::client::admission::admit_connection;
use crate::client::asking::remove_excess_messages;
use crate::client::credit::release_stalled;
use crate::client::relief::charge_turn;
use crate::client::rights;
use crate::client::row::{Row, State};
use crate::commit::queue::CommitQueues;
use crate::home::Home;
use crate::home::sessions::SessionsAtHome;
use crate::io::{CloseMode, Input, Io};
use crate::mail::Mail;
use crate::mail::lanes::WaitingAsks;
use crate::protocol::stream::interest::ask_pages;
use crate::shard::cluster_view::ClusterView;
use crate::shard::drain_progress::DrainProgress;
use crate::shard::pending_request::PendingRequest;
use crate::shard::published_wills::PublishedWills;
use crate::shard::snapshot_writer::SnapshotWriter;
use crate::shard::sweep::Sweep;
use crate::shard::sys_values::SysTopics;

/// The number of mails that were posted and received.
#[derive(Default)]
struct MailCount {
    posted: u64,
    received: u64,
}

/// A shard.
pub struct Shard {
    front: Front,
    home: Option<Home>,
    /// The MQTT sessions whose home is this shard.
    sessions: SessionsAtHome,
    published_wills: PublishedWills,
    /// Requests that wait for the engine to commit records.
    commits: CommitQueues<PendingRequest>,
    /// The home's view of the cluster, if this process is a node of one.
    cluster: Option<Box<ClusterView>>,
    sys_topics: SysTopics,
    /// Present during a drain, which makes clients reconnect elsewhere.
    drain_progress: Option<DrainProgress>,
    /// Present while a snapshot is written.
    snapshot_writer: Option<Box<SnapshotWriter>>,
    /// The shard is about to end: it ignores ticks, and removes no more topics and sessions.
    is_stopped: bool,
    mail_count: MailCount,
    sweep: Sweep,
    /// The checks that the sweep must repeat on each connection after a change of the settings.
    review: crate::protocol::Review,
}

impl Shard {
    /// A shard that starts at `now`. `world` is the state that all shards of the process share.
    pub fn new(me: ShardId, world: Arc<World>, now: Now) -> Self {
        let home = (me < world.homes).then(|| Home::for_world(&world, me));
        let steps = home.as_ref().map(|home| home.steps().clone());
        Shard {
            home,
            sessions: SessionsAtHome::new(world.placement(), me, world.replicates_sessions()),
            published_wills: PublishedWills::default(),
            commits: CommitQueues::new(
                world.placement(),
                me,
                world.writer.unwrap_or(0),
                world.is_replicated(),
            ),
            cluster: (world.is_replicated() && me < world.homes)
                .then(|| ClusterView::new(world.placement().count_at(me))),
            front: Front::new(me, world, steps.unwrap_or_default(), now),
            sys_topics: SysTopics::new(),
            drain_progress: None,
            snapshot_writer: None,
            is_stopped: false,
            mail_count: MailCount::default(),
            sweep: Sweep::new(now.s),
            review: Default::default(),
        }
    }

    /// The connection side of the shard, for tests.
    #[cfg(test)]
    pub(crate) fn front(&mut self) -> &mut Front {
        &mut self.front
    }

    /// Sets the limits of a turn.
    pub fn set_turn_limits(&mut self, turn_limits: TurnLimits) {
        self.front.clients.meter.work.turn_limits = turn_limits;
        self.front.clients.meter.work.begin_budget();
        self.front.subs.lanes.turn_limits = turn_limits;
        if let Some(home) = &mut self.home {
            home.turn_limits = turn_limits;
        }
    }

    /// Changes settings and rules. The new world must have the same shards, placement, epoch and seed.
    pub fn change_settings(&mut self, world: Arc<World>) {
        let fixed_fields = |world: &World| {
            let World {
                shards,
                epoch,
                seed,
                ..
            } = *world;
            (shards, world.placement(), epoch, seed)
        };
        assert!(
            fixed_fields(&world) == fixed_fields(&self.front.clients.ctx.world),
            "shards, placement, epoch and seed must stay the same"
        );
        if let Some(home) = &mut self.home {
            home.change_settings(
                &world,
                &self.front.clients.ctx.world.rules,
                self.front.clients.ctx.now,
            );
        }
        self.review
            .note_change(&self.front.clients.ctx.world.settings, &world.settings);
        self.front.clients.ctx.world = world;
        self.front.gate.verdict_cache().clear();
    }

    /// The counters of this shard's connections since its start, without the counters of its home.
    pub fn connection_stats(&self) -> &Stats {
        &self.front.clients.meter.stats
    }

    /// The counters of this shard since its start, with those of its home.
    pub fn stats(&self) -> Stats {
        let mut stats = *self.connection_stats();
        if let Some(home) = &self.home {
            stats += home.stats();
        }
        stats
    }

    /// Sets the time of this turn, in nanoseconds of a clock that all shards share and that is never 0. When messages that were published in
    /// this turn are written, [`Io::report_deliveries`] gets this time, so that their delay can be measured.
    pub fn set_turn_time(&mut self, stamp: u64) {
        self.front.subs.lanes.stamp = stamp;
        self.front.subs.lanes.read_at = stamp;
    }

    /// Sets the seconds by which the wall clock is ahead of [`Now::unix_s`].
    pub fn set_wall_clock_offset(&mut self, ahead_s: i32) {
        self.front.clients.ctx.wall.set(ahead_s);
    }

    /// Limits the number of connections. Called if the transport has room for fewer connections than the settings allow.
    pub fn limit_connections(&mut self, max: u32) {
        self.front.gate.lower_limit(max);
        let admission = &self.front.clients.ctx.world.admission;
        admission.add_room(self.front.gate.connections_max());
    }

    /// The number of open connections.
    pub fn connection_count(&self) -> u32 {
        self.front.clients.conns.len()
    }

    /// The socket of a connection, if it is open.
    #[inline]
    pub fn socket_of(&self, conn: ConnId) -> Option<SocketId> {
        self.front
            .clients
            .conns
            .is_current(conn)
            .then(|| self.front.clients.conns.get(conn.slot).link.socket)
    }

    /// The party to which a connection's work is charged: a number for the client's address, or for the connection if the address is unknown.
    /// 0 if the connection does not exist.
    pub fn party_of(&self, conn: ConnId) -> u64 {
        let row = self.front.clients.conns.try_get(conn.slot);
        row.map_or(0, |row| {
            Party::of_connection(row.consumer.client, conn.slot).number()
        })
    }

    /// Whether the shard needs no ticks: it is not a home in a cluster, it has no connections, sessions or topics, nothing is in flight to the
    /// engine, and all its counts are added to the totals of all shards.
    pub fn is_idle(&self) -> bool {
        self.front.clients.conns.len() == 0
            && self.commits.bytes() == 0
            && self.cluster.is_none()
            && self.sessions.len() == 0
            && self.home.as_ref().is_none_or(Home::is_idle)
            && self
                .sys_topics
                .added
                .is_up_to_date(&self.stats(), &self.accounts())
    }

    /// Begins to report client events to [`Io::report_client_event`].
    pub fn report_client_events(&mut self) {
        let journal = self.front.clients.meter.journal.get_or_insert_default();
        journal.is_for_log = true;
    }

    /// Handles one input. The output is sent now or by [`Shard::flush`].
    pub fn handle<I: Io>(&mut self, input: Input<'_>, now: Now, io: &mut I) {
        self.front.clients.ctx.set_now(now);
        let input_connection = input.connection();
        let front = &mut self.front;
        match input {
            Input::Accepted(socket, peer) => {
                admit_accepted(&mut front.clients, &mut front.gate, socket, peer, io);
            }
            Input::Received(conn, bytes) => {
                if front.clients.conns.is_current(conn) {
                    let consumer = &mut front.clients.conns.get_mut(conn.slot).consumer;
                    // The peer is alive, so the count of unanswered pings is reset.
                    consumer.options &= !PINGS;
                    let (state, home) = (consumer.state, &mut self.home);
                    protocol_of!(
                        AllProtocols,
                        state,
                        received(front, conn.slot, bytes, home, io)
                    );
                }
            }
            Input::Writable(conn, most) => {
                if front.clients.conns.is_current(conn) {
                    handle_writable(front, conn.slot, most, io);
                }
            }
            Input::HalfClosed(conn) => {
                if front.clients.conns.is_current(conn) {
                    let clients = &mut front.clients;
                    let state = clients.conns.get(conn.slot).consumer.state;
                    protocol_of!(AllProtocols, state, peer_ended(clients, conn.slot, io));
                }
            }
            Input::Failed(conn) => {
                if front.clients.conns.is_current(conn) {
                    front.clients.drop_connection(conn.slot, CloseMode::Now);
                }
            }
            Input::Mail(mail) => self.receive_mail(mail),
            Input::Control(ticket, control) => self.carry_out_order(ticket, control, io),
            Input::Tick if self.is_stopped => {}
            Input::Committed(committed) => self.enqueue_committed(committed),
            Input::Verdict(conn, verdict) => rights::handle_verdict(
                &mut front.clients,
                &mut front.queues,
                &mut front.gate,
                conn,
                verdict,
            ),
            Input::BackendAnswer(conn, answer) => {
                backend_answered(front, conn, answer, io);
            }
            Input::SubscriberCount(to, elsewhere) => {
                info_counted(&mut front.clients, &mut front.queues, to, elsewhere, io)
            }
            Input::Tick => {
                self.tick(io);
                // A new budget of work, so that the tick does not use the budget of the turn's other inputs.
                self.front.clients.meter.work.begin_budget();
            }
        }
        self.front.end_input(input_connection, io);
        self.front.charge_input(&mut self.sessions, io);
        self.carry_out_own_asks();
    }

    /// Ends the turn: delivers within the budget and posts the mail. Returns whether work is left, so that the caller must not sleep.
    pub fn flush<I: Io>(&mut self, now: Now, io: &mut I) -> bool {
        self.front.clients.ctx.set_now(now);
        let now = self.front.clients.ctx.now;
        self.front.clients.meter.work.begin_budget();
        // A follower gets one page in each turn, since an interest snapshot of a million topics is too much for one turn.
        let clients = &mut self.front.clients;
        ask_pages(clients, &mut self.front.subs.lanes, &mut self.front.queues);
        let has_more_to_forget = match &mut self.home {
            Some(home) if !self.is_stopped => {
                let leaves = home.end_absent_members(now);
                home.remove_expired(&self.front.clients.ctx.world.rules, now) | leaves
            }
            _ => false,
        };
        if !self.is_stopped {
            self.end_sessions();
        }
        // Waiting requests continue first, so that this turn delivers their messages too. They use at most half of the budget.
        self.continue_waiting_work(io);
        if !self.front.clients.protocol_state.published_wills.is_empty() {
            self.finish_wills();
        }
        if !self.front.clients.protocol_state.unrecorded.is_empty() {
            self.front.record_sessions();
            self.carry_out_own_asks();
        }
        let mut visits = self.front.clients.meter.work.visits_max();
        let mut more_news;
        loop {
            let (home, lanes) = (self.home.as_mut(), &mut self.front.subs.lanes);
            more_news = home.is_some_and(|home| {
                home.send_watch_news(lanes);
                home.send_interest_news(now, lanes)
            });
            if let Some((tells, frames)) = lanes.take_own_tells() {
                let Clients { conns, ctx, .. } = &self.front.clients;
                self.front
                    .feed
                    .deliveries
                    .enqueue(conns, ctx.own_shard, tells, frames);
            }
            if !self.front.deliver(&mut visits, io) {
                break;
            }
            self.carry_out_own_asks();
            let home_pauses =
                !self.has_waiting_work() || self.front.clients.meter.work.is_half_spent();
            if home_pauses
                && !self.front.subs.lanes.has_own_tells()
                && !self.home.as_ref().is_some_and(|home| {
                    home.interest.has_news() || home.has_watch_news(&mut self.front.subs.lanes)
                })
            {
                break;
            }
            self.continue_waiting_work(io);
        }
        self.front.end_input(None, io);
        let mut paused_links = PausedLinks::default();
        flush_links(&mut self.front, &mut paused_links, io);
        // An answer that has waited for the HTTP/2 window may have ended its stream. The end of a stream is a frame, too, so it is written now.
        while !self.front.clients.scratch.ends.is_empty() {
            self.front.end_input(None, io);
            flush_links(&mut self.front, &mut paused_links, io);
        }
        paused_links.wake(&mut self.front.clients.conns);
        let logs = self.home.as_ref().map(|home| &home.logs);
        let sequence = |at| logs.map_or(0, |logs| logs.sequence(at));
        self.commits
            .append_batches(now, sequence, |batch| io.append(batch));
        send_reports(&mut self.front.subs.lanes, io);
        let posted = &mut self.mail_count.posted;
        self.front.subs.lanes.flush(|to, mail| {
            *posted += 1;
            io.post(to, mail);
        });
        let front = &mut self.front;
        let lanes = &mut front.subs.lanes;
        lanes.update_valve(&front.clients.ctx.world.admission.valve);
        if front.queues.has_stalled() {
            release_stalled(&mut front.clients, lanes, &mut front.queues, io);
        }
        let lacks_room = remove_excess_messages(&mut self.home, &front.clients.ctx);
        (self.home.iter_mut()).for_each(Home::end_turn);
        let lanes = &mut self.front.subs.lanes;
        more_news |= (self.home.as_ref()).is_some_and(|home| home.has_watch_news(lanes));
        let front = &mut self.front;
        let waiting_bytes = self.commits.bytes()
            + front.feed.deliveries.walk_bytes()
            + self.published_wills.bytes();
        let delta_bytes = front.clients.protocol_state.latest_messages.bytes();
        (front.clients.conns).set_charge(MemoryPart::Deltas, delta_bytes);
        let has_more_to_trim = charge_turn(front, self.home.as_mut(), waiting_bytes, io);
        let has_more_to_free =
            self.front.relieve(&mut self.sessions, io) | has_more_to_trim | lacks_room;
        self.front.clients.meter.work.begin_budget();
        has_more_to_free
            || more_news
            || has_more_to_forget
            || !self.is_stopped && self.has_session_due()
            || self.has_waiting_work()
            || !self.front.feed.deliveries.is_empty()
            || self.front.queues.has_waiting_for_page()
            || !self.front.clients.protocol_state.unrecorded.is_empty()
            // A turn finishes wills before it handles mail, so the outcomes of this turn's mail wait for the next one.
            || !(self.front.clients.protocol_state.published_wills).is_empty()
            || self.front.clients.conns.links.has_dirty()
            || !self.front.clients.scratch.ends.is_empty()
    }

    /// Whether work waits for a condition that no event announces. If so, the caller should run another turn within a millisecond or two.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        // Throttled pages wait until the subscribers' shards have delivered earlier messages.
        let owes = (self.home.as_ref()).is_some_and(|home| {
            // News that is due now waits for carriers to take earlier pages.
            let has_news = |at_ns| at_ns <= self.front.subs.lanes.stamp;
            home.page_queue.has_throttled() || home.next_watch_news_ns().is_some_and(has_news)
        });
        owes || self.front.queues.has_stalled() || self.front.subs.lanes.is_behind()
    }

    /// The time, in nanoseconds of the clock of [`Shard::set_turn_time`], at which the shard needs a turn even if no event comes; `None` if it needs none.
    #[inline]
    pub fn next_wake_ns(&self) -> Option<u64> {
        self.home.as_ref().and_then(Home::next_watch_news_ns)
    }

    fn receive_mail(&mut self, mail: Mail) {
        self.mail_count.received += 1;
        let from = mail.from as usize;
        self.front.subs.lanes.to[from].in_flight_bytes -= mail.credit_bytes;
        let asked = WaitingAsks {
            asks: mail.asks.into(),
            bytes: mail.bytes,
            weight: mail.weight,
            stamp: mail.stamp,
        };
        self.carry_out_or_queue_asks(mail.from, asked);
        if let Some(frames) = mail.frames {
            let conns = &self.front.clients.conns;
            self.front
                .feed
                .deliveries
                .enqueue(conns, mail.from, mail.tells, frames);
        }
    }
}

fn send_reports<I: Io>(lanes: &mut Lanes, io: &mut I) {
    for (ticket, report) in lanes.reports.drain(..) {
        io.answer_order(ticket, report);
    }
}

/// Admits an accepted connection, or turns it away.
fn admit_accepted<I: Io>(
    clients: &mut Clients,
    gate: &mut Gate,
    socket: SocketId,
    peer: IpAddr,
    io: &mut I,
) {
    if !clients.ctx.may_connect(peer) {
        clients.meter.stats.untrusted += 1;
        clients.report_turned_away(peer, "not a trusted proxy (http.proxy_protocol)", io);
        return io.close(socket, CloseMode::Now);
    }
    clients.meter.stats.accepted += 1;
    let settings = &clients.ctx.world.settings;
    let state = match settings.http.proxy_protocol {
        true => State::Proxy,
        false => State::Http,
    };
    let now = clients.ctx.now;
    let mut row = Row::new(socket, state, now, now.s + settings.timeouts.head_s);
    if !admit_connection(clients, gate, &mut row, peer) {
        clients.meter.stats.closed[Closed::Full as usize] += 1;
        clients.report_turned_away(
            peer,
            "no room for another connection, or its address has its share",
            io,
        );
        let answer = crate::protocol::shed(b"", socket.0 ^ now.s);
        io.send(socket, &[OutputPart::Bytes(&answer)]);
        return io.close(socket, CloseMode::Now);
    }
    let slot = clients.conns.insert(row);
    io.start_reading(socket, clients.conns.id_of(slot));
    clients.record_accepted(slot, peer);
}
