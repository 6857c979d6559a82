//! One thread of the subscriber: a share of the connections, a descriptor table and an epoll set
//! of its own, one receive buffer for all of them.
//!
//! Invariants: a row is `Closed` exactly when it has no descriptor. A connection that waits keeps
//! no buffer; only an incomplete unit lies in a spill until it is whole. A connection that fails or
//! is closed is opened again, at most [`ATTEMPTS_MAX`] times in a row without success.

mod receive;
mod talk;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::args::Protocol;
use super::connection::{Row, Stage};
use super::connections::{Connections, Spills};
use super::plan::Plan;
use super::shared::{FAILURE_PAUSE_NS, Shared};
use crate::client::tls::Tls;
use crate::measure::tally::Tally;
use crate::sys::{self, Epoll, Interest};
use talk::Talk;

/// Bytes that one read takes at most.
const RECEIVE_BYTES: usize = 128 << 10;
/// Events of one wait.
const EVENTS: usize = 256;
/// How many long-polls ask again before the next wait for events.
const ASKED_TOGETHER: usize = 64;
/// When so many long-polls are answered, some ask again although there is something to read.
const ANSWERED_MAX: usize = 16 << 10;
/// Connects that all workers together have under way: fewer than the usual accept backlog.
const UNDER_WAY_MAX: usize = 1024;
/// Failures in a row after which a connection is given up.
const ATTEMPTS_MAX: u8 = 10;

/// One thread's share.
pub struct Worker {
    plan: Arc<Plan>,
    shared: Arc<Shared>,
    index: usize,
    /// Number of the first connection.
    first: u32,
    conns: Connections,
    polls: Polls,
    opening: Opening,
    obeyed: Obeyed,
    buffer: Vec<u8>,
    /// Acknowledgements of the messages of one read.
    answers: Vec<u8>,
    /// The clients as publishers, when they stand in a grid.
    talk: Option<Talk>,
    epoll: Epoll,
}

/// The state of long-polls besides their rows; empty for the other protocols.
struct Polls {
    /// Header lines with which each goes on from its position.
    positions: Vec<Option<Box<str>>>,
    /// Polls that were answered. They ask again when there is nothing to read: on machines of their own, the clients
    /// of this thread would not keep each other from reading.
    answered: Vec<u32>,
}

/// The connections that are to be opened.
struct Opening {
    pending: VecDeque<u32>,
    under_way: usize,
    started_ns: u64,
    /// Dials since `started_ns`, which the connect rate counts.
    dialled: u64,
    paused_until_ns: u64,
}

/// The orders that were obeyed.
#[derive(Default)]
struct Obeyed {
    drops: u32,
    has_parted: bool,
    churned: u64,
    churn_since_ns: u64,
}

impl Worker {
    /// The worker of connections `first..first + count`. To be made on its own thread.
    pub fn new(
        plan: Arc<Plan>,
        shared: Arc<Shared>,
        index: usize,
        first: u32,
        count: u32,
    ) -> anyhow::Result<Worker> {
        sys::unshare_descriptor_table()?;
        let several = plan.assignment.per_connection > 1;
        let sequences = if several {
            vec![0; (count * plan.assignment.per_connection) as usize]
        } else {
            vec![]
        };
        let positions = if plan.protocol == Protocol::Poll {
            vec![None; count as usize]
        } else {
            vec![]
        };
        Ok(Worker {
            index,
            first,
            conns: Connections {
                rows: vec![Row::default(); count as usize],
                sequences,
                tls: (0..if plan.tls.is_some() { count } else { 0 })
                    .map(|_| None)
                    .collect(),
                spills: Spills::default(),
            },
            polls: Polls {
                positions,
                answered: Vec::new(),
            },
            opening: Opening {
                pending: (0..count).collect(),
                under_way: 0,
                started_ns: sys::now_ns(),
                dialled: 0,
                paused_until_ns: 0,
            },
            obeyed: Obeyed::default(),
            buffer: vec![0; RECEIVE_BYTES],
            answers: Vec::new(),
            talk: Talk::new(&plan, &shared, index, first, count),
            epoll: Epoll::new(EVENTS)?,
            plan,
            shared,
        })
    }

    /// Opens the connections and receives until told to stop.
    pub fn run(&mut self) -> anyhow::Result<()> {
        let shared = self.shared.clone();
        while !shared.stop.load(Relaxed) {
            let timeout = self.timeout();
            let count = self.epoll.wait(timeout)?;
            let mut tally = shared.tallies[self.index].lock().expect("no worker panics");
            for event in 0..count {
                let ready = self.epoll.ready(event);
                let row = ready.key as u32;
                if let Some(slot) = (row as usize).checked_sub(self.conns.rows.len()) {
                    let talk = self.talk.as_mut().expect("only speakers have such keys");
                    talk.ready(slot, &self.epoll, &mut tally.said);
                } else if self.conns.rows[row as usize].stage == Stage::Connecting {
                    self.connected(row, &mut tally);
                } else if ready.readable {
                    self.readable(row, &mut tally);
                }
            }
            if count == 0 || self.polls.answered.len() >= ANSWERED_MAX {
                self.ask_again(&mut tally);
            }
            self.obey();
            if let Some(talk) = &mut self.talk {
                talk.turn(&self.epoll, &mut tally.said);
            }
            self.open_some(&mut tally);
        }
        for row in 0..self.conns.rows.len() as u32 {
            self.close(row, sys::close);
        }
        Ok(())
    }

    fn ask_again(&mut self, tally: &mut Tally) {
        let count = self.polls.answered.len().min(ASKED_TOGETHER);
        for row in self.polls.answered.drain(..count).collect::<Vec<_>>() {
            self.ask(row, self.plan.dial(self.first + row).remote, tally);
        }
    }

    /// How long to wait for events. While there is something to open it is short, but so long that all threads together
    /// wake at most about a thousand times a second.
    fn timeout(&mut self) -> Duration {
        if !self.shared.go.load(Relaxed) {
            // The connect rate counts from the word `open`, not from the start of the tool.
            self.opening.started_ns = sys::now_ns();
        }
        if !self.polls.answered.is_empty() {
            return Duration::ZERO;
        }
        let busy = !self.opening.pending.is_empty() || self.shared.churn_per_s.load(Relaxed) > 0;
        let threads = self.plan.threads as u64;
        let longest = Duration::from_millis(if busy {
            threads.clamp(1, 50)
        } else {
            100.max(2 * threads)
        });
        let talk = self.talk.as_ref();
        match talk.and_then(|talk| talk.wait_ns(sys::now_ns())) {
            Some(wait_ns) => longest.min(Duration::from_nanos(wait_ns)),
            None => longest,
        }
    }

    /// Obeys orders to drop, part or churn connections, or to have clients talk.
    fn obey(&mut self) {
        let drops = self.shared.drops.load(Relaxed);
        if drops != self.obeyed.drops {
            self.obeyed.drops = drops;
            // As when a network fails: all connections end at once, and no client says goodbye.
            (0..self.conns.rows.len() as u32).for_each(|row| self.leave(row, sys::reset));
            self.shared.obeyed.fetch_add(1, Relaxed);
        }
        if self.shared.part.load(Relaxed) && !self.obeyed.has_parted {
            self.obeyed.has_parted = true;
            (0..self.conns.rows.len() as u32).for_each(|row| self.part(row));
            self.shared.obeyed.fetch_add(1, Relaxed);
        }
        if self.talk.as_mut().is_some_and(Talk::obey) {
            self.shared.obeyed.fetch_add(1, Relaxed);
        }
        let per_s = self.shared.churn_per_s.load(Relaxed);
        if per_s == 0 || self.conns.rows.is_empty() {
            return;
        }
        let since = self.shared.churn_since_ns.load(Relaxed);
        if since != self.obeyed.churn_since_ns {
            (self.obeyed.churn_since_ns, self.obeyed.churned) = (since, 0);
        }
        let elapsed_s = sys::now_ns().saturating_sub(since) as f64 / 1e9;
        let due = (elapsed_s * f64::from(per_s) / self.plan.threads as f64) as u64;
        while self.obeyed.churned < due {
            let row = (self.obeyed.churned % self.conns.rows.len() as u64) as u32;
            self.obeyed.churned += 1;
            self.leave(row, sys::close);
        }
    }

    /// Closes an open connection from this side and opens it again in its turn.
    fn leave(&mut self, row: u32, how: fn(i32)) {
        if self.is_live(row) {
            self.close(row, how);
            self.queue(row);
        }
    }

    /// Closes an open connection for good, with MQTT's farewell where that is spoken.
    fn part(&mut self, row: u32) {
        if !self.is_live(row) {
            return;
        }
        if matches!(self.plan.protocol, Protocol::Mqtt | Protocol::MqttWs) {
            let mut farewell = Vec::new();
            self.plan.dialect.leave(&mut farewell);
            // A server that does not take it sees the end of the connection.
            let _ = self.conns.send(row, &farewell);
        }
        self.close(row, sys::close);
    }

    /// Whether messages may come: a long-poll waits where others still expect their head.
    fn is_live(&self, row: u32) -> bool {
        match self.conns.rows[row as usize].stage {
            Stage::Open => true,
            Stage::Head => self.plan.protocol == Protocol::Poll,
            Stage::Closed | Stage::Connecting | Stage::Greeting => false,
        }
    }

    /// Puts a closed connection in the queue of those to be opened.
    fn queue(&mut self, row: u32) {
        if self.opening.pending.is_empty() {
            // Otherwise the connect rate would count the time without work, and allow a burst.
            self.opening.started_ns = sys::now_ns();
            self.opening.dialled = 0;
        }
        self.opening.pending.push_back(row);
    }

    fn close(&mut self, row: u32, how: fn(i32)) {
        let live = self.is_live(row);
        let state = &mut self.conns.rows[row as usize];
        if state.stage == Stage::Closed {
            return;
        }
        if live {
            self.shared.live.fetch_sub(1, Relaxed);
            state.returned = true;
            let several = self.plan.assignment.per_connection as usize;
            if several > 1 {
                // The flag covers one message only, and several topics have a next one: they begin anew.
                self.conns.sequences[row as usize * several..][..several].fill(0);
            }
            if let Some(talk) = &mut self.talk {
                talk.forget(row);
            }
        } else {
            self.opening.under_way -= 1;
        }
        how(state.fd);
        if let Some(tls) = self.conns.tls.get_mut(row as usize) {
            *tls = None;
        }
        state.stage = Stage::Closed;
        self.polls.answered.retain(|answered| *answered != row);
        (state.chunk_left, state.chunked) = (0, false);
        self.conns.spills.free(state);
    }

    fn open_some(&mut self, tally: &mut Tally) {
        if self.opening.pending.is_empty() || !self.shared.go.load(Relaxed) {
            return;
        }
        let now = sys::now_ns();
        let allowed = match self.plan.connect_rate {
            Some(rate) => {
                let elapsed_s = (now - self.opening.started_ns) as f64 / 1e9;
                (elapsed_s * rate / self.plan.threads as f64) as u64 + 1
            }
            None => u64::MAX,
        };
        let under_way_max = (UNDER_WAY_MAX / self.plan.threads).max(8);
        while self.opening.dialled < allowed
            && self.opening.under_way < under_way_max
            && now >= self.opening.paused_until_ns
        {
            let Some(row) = self.opening.pending.pop_front() else {
                break;
            };
            self.opening.dialled += 1;
            self.dial(row, tally);
        }
    }

    fn dial(&mut self, row: u32, tally: &mut Tally) {
        let dial = self.plan.dial(self.first + row);
        match sys::dial(&dial) {
            Err(error) => self.failed(row, &format!("connect to {}: {error}", dial.remote), tally),
            Ok((fd, connected)) => {
                self.opening.under_way += 1;
                self.conns.rows[row as usize].fd = fd;
                self.conns.rows[row as usize].stage = Stage::Connecting;
                let interest = sys::reading(!connected);
                match self.epoll.add(fd, interest, row.into()) {
                    Ok(()) if connected => self.ask(row, dial.remote, tally),
                    Ok(()) => {}
                    Err(error) => self.failed(row, &format!("epoll: {error}"), tally),
                }
            }
        }
    }

    /// Goes on with a connection whose connect has finished or failed.
    fn connected(&mut self, row: u32, tally: &mut Tally) {
        let fd = self.conns.rows[row as usize].fd;
        let result =
            sys::connect_result(fd).and_then(|()| self.epoll.modify(fd, Interest::IN, row.into()));
        match result {
            Ok(()) => self.ask(row, self.plan.dial(self.first + row).remote, tally),
            Err(error) => self.failed(row, &format!("connect: {error}"), tally),
        }
    }

    /// Sends the request.
    fn ask(&mut self, row: u32, remote: SocketAddr, tally: &mut Tally) {
        let position = self
            .polls
            .positions
            .get(row as usize)
            .and_then(|p| p.as_deref());
        let request = self.plan.request(self.first + row, remote, position);
        let was = self.conns.rows[row as usize].stage;
        if let Some(config) = &self.plan.tls
            && was == Stage::Connecting
        {
            self.conns.tls[row as usize] = Tls::new(config).ok().map(Box::new);
        }
        match self.conns.send(row, &request) {
            Ok(count) if count == request.len() => {
                self.conns.rows[row as usize].stage = Stage::Head;
                if self.plan.protocol == Protocol::Poll && was == Stage::Connecting {
                    self.opened(row, tally);
                }
            }
            Ok(_) => self.failed(row, "the socket did not take the request", tally),
            Err(error) => self.failed(row, &format!("send: {error}"), tally),
        }
    }

    fn opened(&mut self, row: u32, tally: &mut Tally) {
        self.opening.under_way -= 1;
        self.conns.rows[row as usize].failures = 0;
        tally.life.opened += 1;
        let live = self.shared.live.fetch_add(1, Relaxed) + 1;
        self.shared.live_max.fetch_max(live, Relaxed);
    }

    /// Closes a connection that could not be opened or whose server broke the protocol, and queues it again unless it has
    /// failed too often.
    fn failed(&mut self, row: u32, why: &str, tally: &mut Tally) {
        self.close(row, sys::close);
        tally.life.failed += 1;
        tally
            .life
            .first_failure
            .get_or_insert_with(|| why.to_string());
        self.opening.paused_until_ns = sys::now_ns() + FAILURE_PAUSE_NS;
        let state = &mut self.conns.rows[row as usize];
        state.failures += 1;
        if state.failures < ATTEMPTS_MAX {
            self.queue(row);
        } else {
            tally.life.given_up += 1;
            self.shared.given_up.fetch_add(1, Relaxed);
        }
    }

    /// Closes a connection that the server has ended, and queues it again.
    fn ended(&mut self, row: u32, why: &str, tally: &mut Tally) {
        if !self.is_live(row) {
            return self.failed(row, why, tally);
        }
        tally.life.closed += 1;
        self.close(row, sys::close);
        self.queue(row);
    }
}
