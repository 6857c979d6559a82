//! One thread of the subscriber: a share of the connections, with its own descriptor table, epoll set and receive buffer.
//!
//! Invariants: a row is `Closed` if and only if it has no descriptor. An idle connection has no buffer. Only the bytes of an incomplete
//! unit (response, frame, event or packet) are kept in a buffer, a *spill*, until the unit is complete. A connection that fails or is
//! closed is opened again, until [`ATTEMPTS_MAX`] consecutive attempts have failed.

mod grid_publisher;
mod receive;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::args::Protocol;
use super::connection::{ConnectionRow, Stage};
use super::connections::{Connections, Spills};
use super::plan::Plan;
use super::shared::{FAILURE_PAUSE_NS, Shared};
use crate::client::tls::Tls;
use crate::measure::tally::Tally;
use crate::sys::{self, Epoll, Interest};
use grid_publisher::GridPublishers;

/// The maximum size of one read, in bytes.
const RECEIVE_BYTES: usize = 128 << 10;
/// The maximum number of events of one wait.
const EVENTS: usize = 256;
/// At most this many long-polls send their next request before the next wait for events.
const REPOLLED_TOGETHER: usize = 64;
/// When this many answered long-polls have not sent their next request, some of them send it even if there are events.
const ANSWERED_MAX: usize = 16 << 10;
/// The maximum number of connects in progress, of all workers together. It is below the usual accept backlog.
const IN_PROGRESS_MAX: usize = 1024;
/// Consecutive failures after which a connection is given up.
const ATTEMPTS_MAX: u8 = 10;

/// The state of one thread.
pub struct Worker {
    plan: Arc<Plan>,
    shared: Arc<Shared>,
    index: usize,
    /// The number of the first connection.
    first: u32,
    conns: Connections,
    polls: Polls,
    connect_queue: ConnectQueue,
    applied: AppliedCommands,
    buffer: Vec<u8>,
    /// The acknowledgements for the messages of one read.
    answers: Vec<u8>,
    /// The clients as publishers, if they are a grid.
    grid: Option<GridPublishers>,
    epoll: Epoll,
}

/// The state of long-polls. Empty for other protocols.
struct Polls {
    /// The header lines with the position of each connection.
    positions: Vec<Option<Box<str>>>,
    /// Answered polls that have not sent their next request yet. They send it when there is nothing to read. Otherwise their writes would
    /// delay the reads of other clients, which could not happen if each client were a machine of its own.
    answered: Vec<u32>,
}

/// The connections to open.
struct ConnectQueue {
    pending: VecDeque<u32>,
    in_progress: usize,
    started_ns: u64,
    /// Connects since `started_ns`, for the connect rate.
    dialled: u64,
    paused_until_ns: u64,
}

/// The commands that were executed.
#[derive(Default)]
struct AppliedCommands {
    drops: u32,
    has_closed_all: bool,
    churned: u64,
    churn_since_ns: u64,
}

impl Worker {
    /// The worker for connections `first..first + count`. Must be called on the worker's thread.
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
                rows: vec![ConnectionRow::default(); count as usize],
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
            connect_queue: ConnectQueue {
                pending: (0..count).collect(),
                in_progress: 0,
                started_ns: sys::now_ns(),
                dialled: 0,
                paused_until_ns: 0,
            },
            applied: AppliedCommands::default(),
            buffer: vec![0; RECEIVE_BYTES],
            answers: Vec::new(),
            grid: GridPublishers::new(&plan, &shared, index, first, count),
            epoll: Epoll::new(EVENTS)?,
            plan,
            shared,
        })
    }

    /// Opens the connections and receives until the worker is told to stop.
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
                    let grid = self.grid.as_mut().expect("only requests have such keys");
                    grid.ready(slot, &self.epoll, &mut tally.grid_requests);
                } else if self.conns.rows[row as usize].stage == Stage::Connecting {
                    self.connected(row, &mut tally);
                } else if ready.readable {
                    self.readable(row, &mut tally);
                }
            }
            if count == 0 || self.polls.answered.len() >= ANSWERED_MAX {
                self.send_next_polls(&mut tally);
            }
            self.apply_commands();
            if let Some(grid) = &mut self.grid {
                grid.turn(&self.epoll, &mut tally.grid_requests);
            }
            self.open_due(&mut tally);
        }
        for row in 0..self.conns.rows.len() as u32 {
            self.close(row, sys::close);
        }
        Ok(())
    }

    fn send_next_polls(&mut self, tally: &mut Tally) {
        let count = self.polls.answered.len().min(REPOLLED_TOGETHER);
        for row in self.polls.answered.drain(..count).collect::<Vec<_>>() {
            self.send_request(row, self.plan.dial(self.first + row).remote, tally);
        }
    }

    /// How long to wait for events. While there are connections to open, the wait is short, but long enough that all threads together wake
    /// at most about a thousand times a second.
    fn timeout(&mut self) -> Duration {
        if !self.shared.may_connect.load(Relaxed) {
            // The connect rate applies from the command `open`, not from the start of the tool.
            self.connect_queue.started_ns = sys::now_ns();
        }
        if !self.polls.answered.is_empty() {
            return Duration::ZERO;
        }
        let busy =
            !self.connect_queue.pending.is_empty() || self.shared.churn_per_s.load(Relaxed) > 0;
        let threads = self.plan.threads as u64;
        let longest = Duration::from_millis(if busy {
            threads.clamp(1, 50)
        } else {
            100.max(2 * threads)
        });
        let grid = self.grid.as_ref();
        match grid.and_then(|grid| grid.wait_ns(sys::now_ns())) {
            Some(wait_ns) => longest.min(Duration::from_nanos(wait_ns)),
            None => longest,
        }
    }

    /// Executes commands to drop, end or churn connections, or to publish in the grid.
    fn apply_commands(&mut self) {
        let drops = self.shared.drops.load(Relaxed);
        if drops != self.applied.drops {
            self.applied.drops = drops;
            // All connections are reset at once, as when a network fails.
            (0..self.conns.rows.len() as u32)
                .for_each(|row| self.close_and_requeue(row, sys::reset));
            self.shared.applied.fetch_add(1, Relaxed);
        }
        if self.shared.close_all.load(Relaxed) && !self.applied.has_closed_all {
            self.applied.has_closed_all = true;
            (0..self.conns.rows.len() as u32).for_each(|row| self.close_for_good(row));
            self.shared.applied.fetch_add(1, Relaxed);
        }
        if self
            .grid
            .as_mut()
            .is_some_and(GridPublishers::apply_command)
        {
            self.shared.applied.fetch_add(1, Relaxed);
        }
        let per_s = self.shared.churn_per_s.load(Relaxed);
        if per_s == 0 || self.conns.rows.is_empty() {
            return;
        }
        let since = self.shared.churn_since_ns.load(Relaxed);
        if since != self.applied.churn_since_ns {
            (self.applied.churn_since_ns, self.applied.churned) = (since, 0);
        }
        let elapsed_s = sys::now_ns().saturating_sub(since) as f64 / 1e9;
        let due = (elapsed_s * f64::from(per_s) / self.plan.threads as f64) as u64;
        while self.applied.churned < due {
            let row = (self.applied.churned % self.conns.rows.len() as u64) as u32;
            self.applied.churned += 1;
            self.close_and_requeue(row, sys::close);
        }
    }

    /// Closes an open connection from this side and queues it for reopening.
    fn close_and_requeue(&mut self, row: u32, close_fd: fn(i32)) {
        if self.is_live(row) {
            self.close(row, close_fd);
            self.enqueue(row);
        }
    }

    /// Closes an open connection for good. Over MQTT a DISCONNECT is sent first.
    fn close_for_good(&mut self, row: u32) {
        if !self.is_live(row) {
            return;
        }
        if matches!(self.plan.protocol, Protocol::Mqtt | Protocol::MqttWs) {
            let mut bytes = Vec::new();
            self.plan.dialect.disconnect(&mut bytes);
            // If the packet cannot be sent, the server still sees the end of the connection.
            let _ = self.conns.send(row, &bytes);
        }
        self.close(row, sys::close);
    }

    /// Whether messages may arrive. A long-poll counts as live while it waits for its response head.
    fn is_live(&self, row: u32) -> bool {
        match self.conns.rows[row as usize].stage {
            Stage::Open => true,
            Stage::Head => self.plan.protocol == Protocol::Poll,
            Stage::Closed | Stage::Connecting | Stage::Greeting => false,
        }
    }

    /// Queues a closed connection for opening.
    fn enqueue(&mut self, row: u32) {
        if self.connect_queue.pending.is_empty() {
            // Otherwise the connect rate would include the idle time and allow a burst.
            self.connect_queue.started_ns = sys::now_ns();
            self.connect_queue.dialled = 0;
        }
        self.connect_queue.pending.push_back(row);
    }

    fn close(&mut self, row: u32, close_fd: fn(i32)) {
        let live = self.is_live(row);
        let state = &mut self.conns.rows[row as usize];
        if state.stage == Stage::Closed {
            return;
        }
        if live {
            self.shared.live.fetch_sub(1, Relaxed);
            state.was_away = true;
            let several = self.plan.assignment.per_connection as usize;
            if several > 1 {
                // `was_away` is cleared by the next message, of whatever topic. With several topics all sequences start again instead.
                self.conns.sequences[row as usize * several..][..several].fill(0);
            }
            if let Some(grid) = &mut self.grid {
                grid.forget(row);
            }
        } else {
            self.connect_queue.in_progress -= 1;
        }
        close_fd(state.fd);
        if let Some(tls) = self.conns.tls.get_mut(row as usize) {
            *tls = None;
        }
        state.stage = Stage::Closed;
        self.polls.answered.retain(|answered| *answered != row);
        (state.chunk_left, state.chunked) = (0, false);
        self.conns.spills.free(state);
    }

    fn open_due(&mut self, tally: &mut Tally) {
        if self.connect_queue.pending.is_empty() || !self.shared.may_connect.load(Relaxed) {
            return;
        }
        let now = sys::now_ns();
        let allowed = match self.plan.connect_rate {
            Some(rate) => {
                let elapsed_s = (now - self.connect_queue.started_ns) as f64 / 1e9;
                (elapsed_s * rate / self.plan.threads as f64) as u64 + 1
            }
            None => u64::MAX,
        };
        let in_progress_max = (IN_PROGRESS_MAX / self.plan.threads).max(8);
        while self.connect_queue.dialled < allowed
            && self.connect_queue.in_progress < in_progress_max
            && now >= self.connect_queue.paused_until_ns
        {
            let Some(row) = self.connect_queue.pending.pop_front() else {
                break;
            };
            self.connect_queue.dialled += 1;
            self.dial(row, tally);
        }
    }

    fn dial(&mut self, row: u32, tally: &mut Tally) {
        let dial = self.plan.dial(self.first + row);
        match sys::dial(&dial) {
            Err(error) => {
                self.open_failed(row, &format!("connect to {}: {error}", dial.remote), tally)
            }
            Ok((fd, connected)) => {
                self.connect_queue.in_progress += 1;
                self.conns.rows[row as usize].fd = fd;
                self.conns.rows[row as usize].stage = Stage::Connecting;
                let interest = sys::reading(!connected);
                match self.epoll.add(fd, interest, row.into()) {
                    Ok(()) if connected => self.send_request(row, dial.remote, tally),
                    Ok(()) => {}
                    Err(error) => self.open_failed(row, &format!("epoll: {error}"), tally),
                }
            }
        }
    }

    /// Continues a connection whose connect has finished or failed.
    fn connected(&mut self, row: u32, tally: &mut Tally) {
        let fd = self.conns.rows[row as usize].fd;
        let result =
            sys::connect_result(fd).and_then(|()| self.epoll.modify(fd, Interest::IN, row.into()));
        match result {
            Ok(()) => self.send_request(row, self.plan.dial(self.first + row).remote, tally),
            Err(error) => self.open_failed(row, &format!("connect: {error}"), tally),
        }
    }

    /// Sends the request.
    fn send_request(&mut self, row: u32, remote: SocketAddr, tally: &mut Tally) {
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
            Ok(_) => self.open_failed(row, "the socket did not take the request", tally),
            Err(error) => self.open_failed(row, &format!("send: {error}"), tally),
        }
    }

    fn opened(&mut self, row: u32, tally: &mut Tally) {
        self.connect_queue.in_progress -= 1;
        self.conns.rows[row as usize].failures = 0;
        tally.life.opened += 1;
        let live = self.shared.live.fetch_add(1, Relaxed) + 1;
        self.shared.live_max.fetch_max(live, Relaxed);
    }

    /// Closes a connection that could not be opened or whose server violated the protocol. Queues it again unless it has failed
    /// too often.
    fn open_failed(&mut self, row: u32, why: &str, tally: &mut Tally) {
        self.close(row, sys::close);
        tally.life.failed += 1;
        tally
            .life
            .first_failure
            .get_or_insert_with(|| why.to_string());
        self.connect_queue.paused_until_ns = sys::now_ns() + FAILURE_PAUSE_NS;
        let state = &mut self.conns.rows[row as usize];
        state.failures += 1;
        if state.failures < ATTEMPTS_MAX {
            self.enqueue(row);
        } else {
            tally.life.given_up += 1;
            self.shared.given_up.fetch_add(1, Relaxed);
        }
    }

    /// Closes a connection that the server has ended, and queues it again.
    fn server_closed(&mut self, row: u32, why: &str, tally: &mut Tally) {
        if !self.is_live(row) {
            return self.open_failed(row, why, tally);
        }
        tally.life.closed += 1;
        self.close(row, sys::close);
        self.enqueue(row);
    }
}
