//! One thread of the subscriber: a share of the connections, with its own descriptor table, epoll set and receive buffer.
//!
//! Invariants: a row is `Closed` if and only if it has no descriptor. A connection has a buffer, a *spill*, only for the bytes of an
//! incomplete unit (response, frame, event or packet). A connection that fails or is closed is opened again, until [`FAILURES_MAX`]
//! consecutive attempts have failed.

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
/// The maximum number of events that one wait returns.
const EVENTS_MAX: usize = 256;
/// The maximum number of long-polls that send their next request before the next wait for events.
const NEXT_POLLS_MAX: usize = 64;
/// If this many answered long-polls have not sent their next request, some of them send it even if there are events to handle.
const ANSWERED_POLLS_MAX: usize = 16 << 10;
/// The maximum number of connects in progress, of all workers together. It is below the usual accept backlog.
const IN_PROGRESS_MAX: usize = 1024;
/// Consecutive failures after which a connection is given up.
const FAILURES_MAX: u8 = 10;

/// The state of one thread.
pub struct Worker {
    plan: Arc<Plan>,
    shared: Arc<Shared>,
    index: usize,
    /// The number of the first connection.
    first_connection: u32,
    connections: Connections,
    polls: Polls,
    connect_queue: ConnectQueue,
    executed_commands: ExecutedCommands,
    buffer: Vec<u8>,
    /// The acknowledgements for the messages of one read.
    acknowledgements: Vec<u8>,
    /// The clients as publishers, if they are a grid.
    grid: Option<GridPublishers>,
    epoll: Epoll,
}

/// The state of long-polls. Empty for other protocols.
struct Polls {
    /// The header lines with the position of each connection.
    positions: Vec<Option<Box<str>>>,
    /// Answered polls that have not sent their next request yet. They send it when there is nothing to read. Otherwise their writes would
    /// delay the reads of other clients, as would not happen if each client were on its own machine.
    answered: Vec<u32>,
}

/// The connections to open.
struct ConnectQueue {
    queue: VecDeque<u32>,
    in_progress: usize,
    rate_start_ns: u64,
    /// The number of connects since `rate_start_ns`, for the connect rate.
    connect_count: u64,
    paused_until_ns: u64,
}

/// The commands that this worker has executed.
#[derive(Default)]
struct ExecutedCommands {
    drop_commands: u32,
    has_closed_all: bool,
    churn_count: u64,
    churn_since_ns: u64,
}

impl Worker {
    /// The worker for connections `first..first + count`. Must be called on the worker's thread.
    pub fn new(
        plan: Arc<Plan>,
        shared: Arc<Shared>,
        index: usize,
        first_connection: u32,
        count: u32,
    ) -> anyhow::Result<Worker> {
        sys::unshare_descriptor_table()?;
        let has_several_topics = plan.assignment.per_connection > 1;
        let sequences = if has_several_topics {
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
            first_connection,
            connections: Connections {
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
                queue: (0..count).collect(),
                in_progress: 0,
                rate_start_ns: sys::now_ns(),
                connect_count: 0,
                paused_until_ns: 0,
            },
            executed_commands: ExecutedCommands::default(),
            buffer: vec![0; RECEIVE_BYTES],
            acknowledgements: Vec::new(),
            grid: GridPublishers::new(&plan, &shared, index, first_connection, count),
            epoll: Epoll::new(EVENTS_MAX)?,
            plan,
            shared,
        })
    }

    /// Opens the connections and receives until the worker is told to stop.
    pub fn run(&mut self) -> anyhow::Result<()> {
        let shared = self.shared.clone();
        while !shared.must_stop.load(Relaxed) {
            let timeout = self.wait_time();
            let count = self.epoll.wait(timeout)?;
            let mut tally = shared.tallies[self.index].lock().expect("no worker panics");
            for event in 0..count {
                let ready = self.epoll.ready(event);
                let row = ready.key as u32;
                if let Some(slot) = (row as usize).checked_sub(self.connections.rows.len()) {
                    let grid = self.grid.as_mut().expect("only requests have such keys");
                    grid.handle_event(slot, &self.epoll, &mut tally.grid_requests);
                } else if self.connections.rows[row as usize].stage == Stage::Connecting {
                    self.finish_connect(row, &mut tally);
                } else if ready.readable {
                    self.read(row, &mut tally);
                }
            }
            if count == 0 || self.polls.answered.len() >= ANSWERED_POLLS_MAX {
                self.send_next_polls(&mut tally);
            }
            self.apply_commands();
            if let Some(grid) = &mut self.grid {
                grid.run_turn(&self.epoll, &mut tally.grid_requests);
            }
            self.start_due_connects(&mut tally);
        }
        for row in 0..self.connections.rows.len() as u32 {
            self.close(row, sys::close);
        }
        Ok(())
    }

    fn send_next_polls(&mut self, tally: &mut Tally) {
        let count = self.polls.answered.len().min(NEXT_POLLS_MAX);
        for row in self.polls.answered.drain(..count).collect::<Vec<_>>() {
            self.send_request(
                row,
                self.plan.dial_options(self.first_connection + row).remote,
                tally,
            );
        }
    }

    /// How long to wait for events. The wait is short while there are connections to open, but long enough that all threads together wake at
    /// most about a thousand times a second.
    fn wait_time(&mut self) -> Duration {
        if !self.shared.may_connect.load(Relaxed) {
            // The connect rate applies from the command `open`, not from the start of the tool.
            self.connect_queue.rate_start_ns = sys::now_ns();
        }
        if !self.polls.answered.is_empty() {
            return Duration::ZERO;
        }
        let is_busy =
            !self.connect_queue.queue.is_empty() || self.shared.churn_per_s.load(Relaxed) > 0;
        let threads = self.plan.threads as u64;
        let wait_max = Duration::from_millis(if is_busy {
            threads.clamp(1, 50)
        } else {
            100.max(2 * threads)
        });
        let grid = self.grid.as_ref();
        match grid.and_then(|grid| grid.wait_ns(sys::now_ns())) {
            Some(wait_ns) => wait_max.min(Duration::from_nanos(wait_ns)),
            None => wait_max,
        }
    }

    /// Executes new commands: to reset, end or churn connections, or to publish in the grid.
    fn apply_commands(&mut self) {
        let drop_commands = self.shared.drop_commands.load(Relaxed);
        if drop_commands != self.executed_commands.drop_commands {
            self.executed_commands.drop_commands = drop_commands;
            // All connections are reset at once, as when a network fails.
            (0..self.connections.rows.len() as u32)
                .for_each(|row| self.close_and_requeue(row, sys::reset));
            self.shared.executed_commands.fetch_add(1, Relaxed);
        }
        if self.shared.close_all.load(Relaxed) && !self.executed_commands.has_closed_all {
            self.executed_commands.has_closed_all = true;
            (0..self.connections.rows.len() as u32).for_each(|row| self.close_for_good(row));
            self.shared.executed_commands.fetch_add(1, Relaxed);
        }
        if self
            .grid
            .as_mut()
            .is_some_and(GridPublishers::apply_command)
        {
            self.shared.executed_commands.fetch_add(1, Relaxed);
        }
        let per_s = self.shared.churn_per_s.load(Relaxed);
        if per_s == 0 || self.connections.rows.is_empty() {
            return;
        }
        let churn_since_ns = self.shared.churn_since_ns.load(Relaxed);
        if churn_since_ns != self.executed_commands.churn_since_ns {
            (
                self.executed_commands.churn_since_ns,
                self.executed_commands.churn_count,
            ) = (churn_since_ns, 0);
        }
        let elapsed_s = sys::now_ns().saturating_sub(churn_since_ns) as f64 / 1e9;
        let due_count = (elapsed_s * f64::from(per_s) / self.plan.threads as f64) as u64;
        while self.executed_commands.churn_count < due_count {
            let row =
                (self.executed_commands.churn_count % self.connections.rows.len() as u64) as u32;
            self.executed_commands.churn_count += 1;
            self.close_and_requeue(row, sys::close);
        }
    }

    /// Closes an open connection from this side and queues it for reopening.
    fn close_and_requeue(&mut self, row: u32, close_fd: fn(i32)) {
        if self.is_live(row) {
            self.close(row, close_fd);
            self.queue_connect(row);
        }
    }

    /// Closes an open connection for good. Over MQTT a DISCONNECT is sent first.
    fn close_for_good(&mut self, row: u32) {
        if !self.is_live(row) {
            return;
        }
        if matches!(self.plan.protocol, Protocol::Mqtt | Protocol::MqttWs) {
            let mut bytes = Vec::new();
            self.plan.dialect.write_disconnect(&mut bytes);
            // If the packet cannot be sent, the server still sees the end of the connection.
            let _ = self.connections.send(row, &bytes);
        }
        self.close(row, sys::close);
    }

    /// Whether messages may arrive. A long-poll counts as live while it waits for its response head.
    fn is_live(&self, row: u32) -> bool {
        match self.connections.rows[row as usize].stage {
            Stage::Open => true,
            Stage::Head => self.plan.protocol == Protocol::Poll,
            Stage::Closed | Stage::Connecting | Stage::Greeting => false,
        }
    }

    /// Queues a closed connection for opening.
    fn queue_connect(&mut self, row: u32) {
        if self.connect_queue.queue.is_empty() {
            // Otherwise the connect rate would include the idle time and allow a burst.
            self.connect_queue.rate_start_ns = sys::now_ns();
            self.connect_queue.connect_count = 0;
        }
        self.connect_queue.queue.push_back(row);
    }

    fn close(&mut self, row: u32, close_fd: fn(i32)) {
        let was_live = self.is_live(row);
        let connection = &mut self.connections.rows[row as usize];
        if connection.stage == Stage::Closed {
            return;
        }
        if was_live {
            self.shared.live.fetch_sub(1, Relaxed);
            connection.was_away = true;
            let topics_per_connection = self.plan.assignment.per_connection as usize;
            if topics_per_connection > 1 {
                // The next message of any topic clears `was_away`. So with several topics all sequences start again.
                self.connections.sequences[row as usize * topics_per_connection..]
                    [..topics_per_connection]
                    .fill(0);
            }
            if let Some(grid) = &mut self.grid {
                grid.reset_sequences(row);
            }
        } else {
            self.connect_queue.in_progress -= 1;
        }
        close_fd(connection.fd);
        if let Some(tls) = self.connections.tls.get_mut(row as usize) {
            *tls = None;
        }
        connection.stage = Stage::Closed;
        self.polls.answered.retain(|answered| *answered != row);
        (connection.chunk_left, connection.is_chunked) = (0, false);
        self.connections.spills.free(connection);
    }

    fn start_due_connects(&mut self, tally: &mut Tally) {
        if self.connect_queue.queue.is_empty() || !self.shared.may_connect.load(Relaxed) {
            return;
        }
        let now = sys::now_ns();
        let allowed_count = match self.plan.connect_rate {
            Some(rate) => {
                let elapsed_s = (now - self.connect_queue.rate_start_ns) as f64 / 1e9;
                (elapsed_s * rate / self.plan.threads as f64) as u64 + 1
            }
            None => u64::MAX,
        };
        let in_progress_max = (IN_PROGRESS_MAX / self.plan.threads).max(8);
        while self.connect_queue.connect_count < allowed_count
            && self.connect_queue.in_progress < in_progress_max
            && now >= self.connect_queue.paused_until_ns
        {
            let Some(row) = self.connect_queue.queue.pop_front() else {
                break;
            };
            self.connect_queue.connect_count += 1;
            self.start_connect(row, tally);
        }
    }

    fn start_connect(&mut self, row: u32, tally: &mut Tally) {
        let options = self.plan.dial_options(self.first_connection + row);
        match sys::dial(&options) {
            Err(error) => self.record_failed_connect(
                row,
                &format!("connect to {}: {error}", options.remote),
                tally,
            ),
            Ok((fd, connected)) => {
                self.connect_queue.in_progress += 1;
                self.connections.rows[row as usize].fd = fd;
                self.connections.rows[row as usize].stage = Stage::Connecting;
                let interest = sys::reading(!connected);
                match self.epoll.add(fd, interest, row.into()) {
                    Ok(()) if connected => self.send_request(row, options.remote, tally),
                    Ok(()) => {}
                    Err(error) => {
                        self.record_failed_connect(row, &format!("epoll: {error}"), tally)
                    }
                }
            }
        }
    }

    /// Continues a connection whose connect has finished or failed.
    fn finish_connect(&mut self, row: u32, tally: &mut Tally) {
        let fd = self.connections.rows[row as usize].fd;
        let result =
            sys::connect_result(fd).and_then(|()| self.epoll.modify(fd, Interest::IN, row.into()));
        match result {
            Ok(()) => self.send_request(
                row,
                self.plan.dial_options(self.first_connection + row).remote,
                tally,
            ),
            Err(error) => self.record_failed_connect(row, &format!("connect: {error}"), tally),
        }
    }

    /// Sends the first bytes of a connection, or the next request of a long-poll.
    fn send_request(&mut self, row: u32, remote: SocketAddr, tally: &mut Tally) {
        let position = self
            .polls
            .positions
            .get(row as usize)
            .and_then(|p| p.as_deref());
        let request = self
            .plan
            .request(self.first_connection + row, remote, position);
        let old_stage = self.connections.rows[row as usize].stage;
        if let Some(config) = &self.plan.tls
            && old_stage == Stage::Connecting
        {
            self.connections.tls[row as usize] = Tls::new(config).ok().map(Box::new);
        }
        match self.connections.send(row, &request) {
            Ok(count) if count == request.len() => {
                self.connections.rows[row as usize].stage = Stage::Head;
                if self.plan.protocol == Protocol::Poll && old_stage == Stage::Connecting {
                    self.mark_open(row, tally);
                }
            }
            Ok(_) => self.record_failed_connect(row, "the socket did not take the request", tally),
            Err(error) => self.record_failed_connect(row, &format!("send: {error}"), tally),
        }
    }

    fn mark_open(&mut self, row: u32, tally: &mut Tally) {
        self.connect_queue.in_progress -= 1;
        self.connections.rows[row as usize].failures = 0;
        tally.connections.opened += 1;
        let live = self.shared.live.fetch_add(1, Relaxed) + 1;
        self.shared.live_max.fetch_max(live, Relaxed);
    }

    /// Closes a connection that could not be opened, or on which the server violated the protocol. Queues it again unless it has failed too
    /// often.
    fn record_failed_connect(&mut self, row: u32, reason: &str, tally: &mut Tally) {
        self.close(row, sys::close);
        tally.connections.failed += 1;
        tally
            .connections
            .first_failure
            .get_or_insert_with(|| reason.to_string());
        self.connect_queue.paused_until_ns = sys::now_ns() + FAILURE_PAUSE_NS;
        let connection = &mut self.connections.rows[row as usize];
        connection.failures += 1;
        if connection.failures < FAILURES_MAX {
            self.queue_connect(row);
        } else {
            tally.connections.given_up += 1;
            self.shared.given_up.fetch_add(1, Relaxed);
        }
    }

    /// Closes a connection that the server has closed, and queues it again.
    fn record_server_close(&mut self, row: u32, reason: &str, tally: &mut Tally) {
        if !self.is_live(row) {
            return self.record_failed_connect(row, reason, tally);
        }
        tally.connections.closed += 1;
        self.close(row, sys::close);
        self.queue_connect(row);
    }
}
