//! Publishes the messages of a worker's clients to their neighbours in the grid.
//!
//! Once in a period a client publishes one message to each neighbour, all in one `POST /pub`. For this the client opens a second
//! connection from its own address, and closes it after the answer. It cannot use the first connection: a long-poll occupies it, and the
//! answer would have to wait until the poll ends. The clients of the benchmark of 2012 did the same: their HTTP library opened a second
//! socket for such a request. To publish between two polls would be cheaper. But then a client that receives nothing would publish nothing,
//! and the load would pass through the grid in waves until it stops.
//!
//! Invariants: a client makes one request at a time, so that its messages arrive in order. Each client has one turn in a period, and a
//! worker's turns are spread evenly over the period. The number of requests in flight is limited ([`GRID_REQUESTS_MAX`]).

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::client::parse::{self, Response};
use crate::client::request;
use crate::measure::payload::{Header, Payloads};
use crate::measure::tally::RequestCounts;
use crate::subscribe::grid::{DIRECTIONS, Grid};
use crate::subscribe::plan::{GRID_REQUESTS_MAX, Plan};
use crate::subscribe::shared::{FAILURE_PAUSE_NS, Shared};
use crate::sys::{self, Epoll, Interest};

/// Timeout of a request.
const ANSWER_TIMEOUT_NS: u64 = 10_000_000_000;
/// The minimum sleep until the next turn. Shorter sleeps would cost too much processor time.
const WAIT_MIN_NS: u64 = 1_000_000;
/// The maximum size of an answer, in bytes. An answer has a head, and a failure reason for each neighbour.
const ANSWER_BYTES_MAX: usize = 4096;

/// A request in flight, with its connection.
struct GridRequest {
    fd: i32,
    row: u32,
    /// When the connect started.
    start_ns: u64,
    /// The number of messages in the request. 0 while the connect is in progress.
    messages: u64,
    received: Vec<u8>,
}

/// The schedule of the turns of a worker's clients.
struct Schedule {
    rows: u32,
    /// The worker's index divided by the number of workers: shifts the turns, so that turns of two workers do not coincide.
    phase: f64,
    /// The step from the row of one turn to that of the next. It is coprime to the number of rows, so every row gets a turn.
    stride: u32,
    period_us: u64,
    start_ns: u64,
    /// The number of turns since `start_ns`.
    turn_count: u64,
}

impl Schedule {
    /// The time of the next turn.
    fn next_ns(&self) -> u64 {
        let turns = self.turn_count as f64 + self.phase;
        self.start_ns + (turns * self.period_us as f64 * 1e3 / f64::from(self.rows)) as u64
    }

    /// The row of the next turn.
    fn next_row(&self) -> u32 {
        (self.turn_count * u64::from(self.stride) % u64::from(self.rows)) as u32
    }
}

/// The grid clients of one worker: their requests, and the last message that each received.
pub struct GridPublishers {
    plan: Arc<Plan>,
    shared: Arc<Shared>,
    grid: Grid,
    first_connection: u32,
    schedule: Schedule,
    /// The number of requests that each client has made.
    request_counts: Vec<u32>,
    /// The number of the last message that each client received from each direction.
    last_sequences: Vec<[u32; DIRECTIONS]>,
    /// Requests in flight, by slot.
    requests: Vec<Option<GridRequest>>,
    /// Clients whose request was refused for now and must be repeated.
    refused_rows: VecDeque<u32>,
    paused_until_ns: u64,
    payloads: Payloads,
    lines: Vec<u8>,
}

impl GridPublishers {
    /// The grid clients of worker `index` with connections `first..first + rows`; `None` if clients do not publish.
    pub fn new(
        plan: &Arc<Plan>,
        shared: &Arc<Shared>,
        index: usize,
        first_connection: u32,
        rows: u32,
    ) -> Option<GridPublishers> {
        let size = plan.grid_message_bytes?;
        Some(GridPublishers {
            plan: plan.clone(),
            shared: shared.clone(),
            grid: Grid::of(plan.connections),
            first_connection,
            schedule: Schedule {
                rows,
                phase: index as f64 / plan.threads as f64,
                stride: stride(rows),
                period_us: 0,
                start_ns: 0,
                turn_count: 0,
            },
            request_counts: vec![0; rows as usize],
            last_sequences: vec![[0; DIRECTIONS]; rows as usize],
            requests: (0..GRID_REQUESTS_MAX).map(|_| None).collect(),
            refused_rows: VecDeque::new(),
            paused_until_ns: 0,
            payloads: Payloads::new(size, sys::now_ns()),
            lines: Vec::new(),
        })
    }

    /// The number of the last message that `row` received from this direction; `None` if the direction is invalid.
    pub fn last_sequence(&mut self, row: u32, direction: u16) -> Option<&mut u32> {
        self.last_sequences[row as usize].get_mut(usize::from(direction))
    }

    /// Resets the sequences of `row` after its connection was closed: the next message may follow a gap.
    pub fn reset_sequences(&mut self, row: u32) {
        self.last_sequences[row as usize] = [0; DIRECTIONS];
    }

    /// Executes a new command that sets the period. Returns whether there was one.
    pub fn apply_command(&mut self) -> bool {
        let start_ns = self.shared.publish_start_ns.load(Acquire);
        let is_new = start_ns != self.schedule.start_ns;
        if is_new {
            (self.schedule.start_ns, self.schedule.turn_count) = (start_ns, 0);
            self.schedule.period_us = self.shared.publish_interval_us.load(Relaxed);
        }
        is_new
    }

    fn is_full(&self) -> bool {
        self.requests.iter().all(Option::is_some)
    }

    /// The maximum time to wait for events. `None` if there is nothing to do before an answer arrives.
    pub fn wait_ns(&self, now_ns: u64) -> Option<u64> {
        if self.is_full() {
            return None;
        }
        let retry_ns = (!self.refused_rows.is_empty()).then_some(self.paused_until_ns);
        let turn_ns = (self.schedule.period_us > 0).then(|| self.schedule.next_ns());
        let next_ns = retry_ns.into_iter().chain(turn_ns).min()?;
        Some(next_ns.saturating_sub(now_ns).max(WAIT_MIN_NS))
    }

    /// Starts the requests of the clients whose turn is due, and gives up requests that have timed out.
    pub fn run_turn(&mut self, epoll: &Epoll, counts: &mut RequestCounts) {
        let now_ns = sys::now_ns();
        for slot in 0..self.requests.len() {
            let is_expired = |request: &GridRequest| now_ns > request.start_ns + ANSWER_TIMEOUT_NS;
            if self.requests[slot].as_ref().is_some_and(is_expired) {
                self.give_up(slot, "no answer to a POST", counts);
            }
        }
        while now_ns >= self.paused_until_ns && !self.is_full() {
            let Some(row) = self.refused_rows.pop_front() else {
                break;
            };
            self.start_request(row, epoll, counts);
        }
        while self.schedule.period_us > 0 && now_ns >= self.schedule.next_ns() && !self.is_full() {
            let row = self.schedule.next_row();
            if self.has_request(row) {
                break;
            }
            counts.requests += 1;
            counts.late_ns_max = counts.late_ns_max.max(now_ns - self.schedule.next_ns());
            self.shared.publishes_in_flight.fetch_add(1, Relaxed);
            self.schedule.turn_count += 1;
            self.start_request(row, epoll, counts);
        }
    }

    fn has_request(&self, row: u32) -> bool {
        let is_in_flight = self
            .requests
            .iter()
            .flatten()
            .any(|request| request.row == row);
        is_in_flight || self.refused_rows.contains(&row)
    }

    fn start_request(&mut self, row: u32, epoll: &Epoll, counts: &mut RequestCounts) {
        let slot = self.requests.iter().position(Option::is_none);
        let slot = slot.expect("the caller has seen a free one");
        let options = self.plan.dial_options(self.first_connection + row);
        let start_ns = sys::now_ns();
        let result = sys::dial(&options).and_then(|(fd, connected)| {
            self.requests[slot] = Some(GridRequest {
                fd,
                row,
                start_ns,
                messages: 0,
                received: Vec::new(),
            });
            let interest = sys::reading(!connected);
            epoll.add(fd, interest, u64::from(self.schedule.rows) + slot as u64)?;
            if connected {
                self.send_request(slot, options.remote)?;
            }
            Ok(())
        });
        if let Err(error) = result {
            // If the connect has failed, there is no request to give up.
            if self.requests[slot].is_none() {
                counts.unanswered += self.message_count(row);
                self.shared.publishes_in_flight.fetch_sub(1, Relaxed);
                counts.record_failure(format!("connect to {}: {error}", options.remote));
            } else {
                self.give_up(slot, &format!("POST: {error}"), counts);
            }
        }
    }

    /// The number of messages in a request of this client.
    fn message_count(&self, row: u32) -> u64 {
        let neighbours = self.grid.neighbours(self.first_connection + row);
        neighbours.iter().flatten().count() as u64
    }

    /// Sends the request.
    fn send_request(&mut self, slot: usize, remote: SocketAddr) -> io::Result<()> {
        let request = self.requests[slot].as_mut().expect("it has connected");
        let sequence = self.request_counts[request.row as usize] + 1;
        let neighbours = self.grid.neighbours(self.first_connection + request.row);
        self.lines.clear();
        for (direction, topic) in neighbours.into_iter().enumerate() {
            let Some(topic) = topic else { continue };
            let header = Header {
                run: direction as u16,
                sent_ns: sys::now_ns(),
                topic,
                sequence,
            };
            let name = self.plan.topic(topic);
            request::line(&name, header, &mut self.payloads, &mut self.lines);
            request.messages += 1;
        }
        let mut bytes = request::batch_head(&remote.to_string(), self.lines.len()).into_bytes();
        bytes.extend_from_slice(&self.lines);
        match sys::send(request.fd, &bytes)? {
            count if count == bytes.len() => Ok(()),
            _ => Err(io::Error::other("the socket did not take the request")),
        }
    }

    /// Continues a request whose connection is ready.
    pub fn handle_event(&mut self, slot: usize, epoll: &Epoll, counts: &mut RequestCounts) {
        let Some(request) = &mut self.requests[slot] else {
            return;
        };
        let result = if request.messages == 0 {
            let (fd, row) = (request.fd, request.row);
            sys::connect_result(fd)
                .and_then(|()| {
                    epoll.modify(
                        fd,
                        Interest::IN,
                        u64::from(self.schedule.rows) + slot as u64,
                    )
                })
                .and_then(|()| {
                    self.send_request(
                        slot,
                        self.plan.dial_options(self.first_connection + row).remote,
                    )
                })
        } else {
            self.receive(slot, counts)
        };
        if let Err(error) = result {
            self.give_up(slot, &format!("POST: {error}"), counts);
        }
    }

    /// Reads the answer, and closes the connection once it is complete.
    fn receive(&mut self, slot: usize, counts: &mut RequestCounts) -> io::Result<()> {
        let request = self.requests[slot].as_mut().expect("it was asked for");
        let mut buffer = [0; ANSWER_BYTES_MAX];
        match sys::receive(request.fd, &mut buffer)? {
            None => return Ok(()),
            Some(0) => return Err(io::Error::other("closed before the answer")),
            Some(count) => request.received.extend_from_slice(&buffer[..count]),
        }
        let response = parse::response(&request.received).map_err(io::Error::other)?;
        let Some(Response { head, body, .. }) = response else {
            return Ok(());
        };
        let (status, messages) = (head.status, request.messages);
        let refused = match status {
            200 => request::count_failed(body),
            _ => messages,
        };
        if status == 503 {
            counts.turned_away += 1;
            self.refused_rows.push_back(request.row);
            self.paused_until_ns = sys::now_ns() + FAILURE_PAUSE_NS;
            sys::close(request.fd);
            self.requests[slot] = None;
            return Ok(());
        }
        if refused > 0 {
            counts.record_failure(format!("{status}: {}", String::from_utf8_lossy(body)));
        }
        counts.refused += refused;
        counts.accepted += messages.saturating_sub(refused);
        counts.answer_times.add(sys::now_ns() - request.start_ns);
        self.finish(slot);
        Ok(())
    }

    /// Gives up a request without an answer. Its messages keep their numbers, because the server may have accepted them.
    fn give_up(&mut self, slot: usize, reason: &str, counts: &mut RequestCounts) {
        let row = self.requests[slot].as_ref().expect("it failed").row;
        counts.unanswered += self.message_count(row);
        counts.record_failure(reason);
        self.finish(slot);
    }

    fn finish(&mut self, slot: usize) {
        let request = self.requests[slot].take().expect("it ends once");
        self.request_counts[request.row as usize] += 1;
        self.shared.publishes_in_flight.fetch_sub(1, Relaxed);
        sys::close(request.fd);
    }
}

impl Drop for GridPublishers {
    fn drop(&mut self) {
        for request in self.requests.iter().flatten() {
            sys::close(request.fd);
        }
    }
}

/// A large step that visits each of `rows` once before it returns to the first.
fn stride(rows: u32) -> u32 {
    fn divisor(a: u32, b: u32) -> u32 {
        if b == 0 { a } else { divisor(b, a % b) }
    }
    let about = (f64::from(rows) * 0.618) as u32;
    let coprime = |step: &u32| divisor(*step, rows) == 1;
    (about.max(1)..).find(coprime).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_client_has_its_turn_once_in_a_period() {
        for rows in [1, 2, 10, 97, 500, 18_519] {
            let step = u64::from(stride(rows));
            let mut visited = vec![false; rows as usize];
            for turn in 0..u64::from(rows) {
                visited[(turn * step % u64::from(rows)) as usize] = true;
            }
            assert!(visited.into_iter().all(|is_visited| is_visited), "{rows}");
        }
    }
}
