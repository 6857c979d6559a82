//! Handles deadlines and heartbeats of connections: once a second, a sweep over the table finds the deadlines that have passed and the
//! heartbeats that are due, so that rows need no timers.
//!
//! The sweep of a large table is spread over many ticks within the second, so that heartbeats are sent in small groups and do not delay
//! messages.
//!
//! Invariants: each row is visited once in a sweep, and at most one sweep begins in a second. A deadline is never handled early, and
//! normally at most two seconds late, since it counts from the beginning of the second in which it was set. If very many connections end at
//! once, a tick ends only some of them, and the next tick follows soon.

use crate::base::reason::Reason;
use crate::client::deadlines::{charge_if_nothing_is_read, handle_deadline};
use crate::client::hold::is_too_slow;
use crate::client::protocols::protocol_of;
use crate::client::review::review;
use crate::io::Io;
use crate::protocol::front::{AllProtocols, Clients};
use crate::protocol::mqtt::contract::cut_off;
use crate::shard::Shard;
use crate::shard::drain::move_due_clients;

/// The interval at which moved positions of shared subscriptions are recorded, in seconds.
const GROUP_INTERVAL_S: u32 = 5;
/// The time for a sweep.
const SWEEP_MS: u32 = 1000;
/// The maximum number of ticks of a sweep, because the poller's timeout is in whole milliseconds.
const TICKS_MAX: u32 = 500;

impl Shard {
    /// Milliseconds to the next tick of the present sweep or drain; `None` if the next tick is due at the beginning of the next second.
    pub fn ms_until_tick(&self) -> Option<u32> {
        if self.is_stopped {
            return None;
        }
        // The time is divided by one tick more than the table needs, so that the sweep ends before the next sweep begins.
        let clients = &self.front.clients;
        let ticks = clients.conns.end().div_ceil(rows_per_tick(clients)) + 1;
        let ticks = if self.sweep.is_crowded {
            TICKS_MAX
        } else {
            ticks
        };
        let sweeps_ms = self.sweep.is_under_way().then_some(SWEEP_MS / ticks);
        match self.ms_until_drain_tick() {
            Some(ms) => Some(sweeps_ms.map_or(ms, |sweeps_ms| ms.min(sweeps_ms))),
            None => sweeps_ms,
        }
    }

    /// Continues the present sweep, or begins one in a new second.
    pub(crate) fn tick<I: Io>(&mut self, io: &mut I) {
        if let Some(home) = &mut self.home {
            home.tick(self.commits.oldest_unix_s(self.front.clients.ctx.now));
        }
        move_due_clients(&mut self.drain_progress, &mut self.front, io);
        self.commits
            .begin_overdue_search(self.front.clients.ctx.now.s);
        if !self.sweep.is_under_way() {
            if !self.sweep.begin(self.front.clients.ctx.now.s) {
                return;
            }
            self.review.begin();
            self.publish_sys_topics(io.socket_bytes());
            self.forget_takeovers();
            self.publish_refused_wills();
            self.record_starts();
            let ctx = &self.front.clients.ctx;
            if ctx.world.records_sessions() {
                // Groups that a planned restart has restored may have no recorded position yet. A crash would lose what they have not delivered.
                self.record_group_positions(ctx.now.s.is_multiple_of(GROUP_INTERVAL_S));
            }
            if let Some(mut node) = self.node_context() {
                node.tick();
            }
        }
        let end = self.front.clients.conns.end();
        if self.review.looks_for_members() {
            // A new budget, so that the turn's other work does not reduce the budget of this search.
            self.front.clients.meter.work.begin_budget();
        }
        let rows = self.sweep.rows(rows_per_tick(&self.front.clients), end);
        let ends_most = self.front.clients.meter.work.turn_limits.ends_per_tick;
        let (first, last, mut until) = (rows.start, rows.end, rows.end);
        let watches_identities = !self.front.clients.conns.grants.is_empty();
        let is_cut_off = self.front.clients.ctx.is_cut_off();
        for slot in rows {
            let is_spent =
                self.review.looks_for_members() && self.front.clients.meter.work.is_spent();
            // The work to end a connection depends on the topics that it leaves, and is known only afterwards.
            if self.front.clients.scratch.ends.len() >= ends_most || is_spent && slot > first {
                until = slot;
                break;
            }
            let row = self.front.clients.conns.get(slot);
            if !row.is_open() {
                continue;
            }
            self.sweep.count(row.transport());
            let clients = &self.front.clients;
            let changed = self.review.is_running();
            let lost_credential =
                watches_identities.then(|| clients.lost_credential(slot, changed));
            let lost = (lost_credential.flatten(), changed);
            let ends = review(&mut self.front, slot, lost, io)
                || is_cut_off && cut_off(&mut self.front.clients, slot, io);
            if ends {
                continue;
            }
            if self.review.looks_for_members() {
                self.front.review_presence(slot);
            }
            let clients = &mut self.front.clients;
            let (row, conns) = (clients.conns.get(slot), &clients.conns);
            let state = row.consumer.state;
            if row.link.deadline_s != 0 && row.link.deadline_s < clients.ctx.now.s {
                handle_deadline(&mut self.front, slot, io);
            } else if protocol_of!(AllProtocols, state, has_begun_input(conns, slot))
                && is_too_slow(clients, slot)
            {
                clients.end_connection(slot, Reason::TooSlow, io);
            } else {
                charge_if_nothing_is_read(clients, slot);
                protocol_of!(AllProtocols, state, each_second(&mut self.front, slot, io));
            }
        }
        // The rows are counted at the end, so that they do not use the budget of the connections that end.
        let visited = (until - first) as usize;
        self.front.clients.meter.work.steps.add(visited);
        self.sweep.is_crowded = self.front.clients.scratch.ends.len() >= ends_most || until < last;
        self.sweep.advance(until, end);
    }
}

fn rows_per_tick(clients: &Clients) -> u32 {
    let least = clients.meter.work.turn_limits.rows_per_tick;
    least.max(clients.conns.end().div_ceil(TICKS_MAX))
}
