//! The messages of a worker's clients to their neighbours in the grid.
//!
//! Once in a period a client sends one message to each neighbour, all of them in one `POST /pub`. It opens a
//! connection for that, from its own address, and closes it after the answer. The connection that it listens on
//! is busy with a poll, and the answer would have to wait until the poll is over. The clients of 2012 did the same: their HTTP
//! library opened a second socket for such a request. It would be cheaper to send between two polls. But then a client that
//! hears nothing would say nothing, and the load would go through the grid in waves until it ends.
//!
//! Invariants: a client makes one request at a time, so that its messages come in order. Each client's turn comes once in a
//! period, and a worker's turns are spread evenly over it. The requests under way are bounded ([`SPEAKERS_MAX`]).

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::client::parse::{self, Response};
use crate::client::request;
use crate::measure::payload::{Header, Payloads};
use crate::measure::tally::RequestCounts;
use crate::subscribe::grid::{Grid, WAYS};
use crate::subscribe::plan::{Plan, SPEAKERS_MAX};
use crate::subscribe::shared::{FAILURE_PAUSE_NS, Shared};
use crate::sys::{self, Epoll, Interest};

/// A request without an answer after this time is given up.
const ANSWER_NS: u64 = 10_000_000_000;
/// Shortest sleep until the next turn. Shorter sleeps would cost more than they are worth.
const TICK_NS: u64 = 1_000_000;
/// Bytes of an answer: its head, and the reasons of as many failures as there are neighbours.
const ANSWER_BYTES: usize = 4096;

/// The connection over which a client makes its request.
struct Speaker {
    fd: i32,
    row: u32,
    /// When the connect began.
    since_ns: u64,
    /// Messages of the request; 0 while the connect is under way.
    messages: u64,
    received: Vec<u8>,
}

/// The turns of a worker's clients to speak.
struct Turns {
    rows: u32,
    /// The worker's place among all workers, from 0 to 1. It shifts the turns, so that those of two workers do not coincide.
    share: f64,
    /// Rows from one turn to the next; coprime to the number of rows.
    stride: u32,
    every_us: u64,
    since_ns: u64,
    /// Turns that were taken since then.
    taken: u64,
}

impl Turns {
    /// When the next turn comes.
    fn next_ns(&self) -> u64 {
        let turns = self.taken as f64 + self.share;
        self.since_ns + (turns * self.every_us as f64 * 1e3 / f64::from(self.rows)) as u64
    }

    /// The row of the next turn.
    fn next_row(&self) -> u32 {
        (self.taken * u64::from(self.stride) % u64::from(self.rows)) as u32
    }
}

/// The clients of one worker as speakers, and what each has heard.
pub struct Talk {
    plan: Arc<Plan>,
    shared: Arc<Shared>,
    grid: Grid,
    first: u32,
    turns: Turns,
    /// Requests that each client has made.
    said: Vec<u32>,
    /// The number of the last message that came on each way.
    heard: Vec<[u32; WAYS]>,
    /// By slot.
    speakers: Vec<Option<Speaker>>,
    /// Clients that were turned away.
    again: VecDeque<u32>,
    paused_until_ns: u64,
    payloads: Payloads,
    lines: Vec<u8>,
}

impl Talk {
    /// For worker `index` with connections `first..first + rows`, if the plan says that they talk.
    pub fn new(
        plan: &Arc<Plan>,
        shared: &Arc<Shared>,
        index: usize,
        first: u32,
        rows: u32,
    ) -> Option<Talk> {
        let size = plan.talk?;
        Some(Talk {
            plan: plan.clone(),
            shared: shared.clone(),
            grid: Grid::of(plan.connections),
            first,
            turns: Turns {
                rows,
                share: index as f64 / plan.threads as f64,
                stride: stride(rows),
                every_us: 0,
                since_ns: 0,
                taken: 0,
            },
            said: vec![0; rows as usize],
            heard: vec![[0; WAYS]; rows as usize],
            speakers: (0..SPEAKERS_MAX).map(|_| None).collect(),
            again: VecDeque::new(),
            paused_until_ns: 0,
            payloads: Payloads::new(size, sys::now_ns()),
            lines: Vec::new(),
        })
    }

    /// The number of the last message that came to `row` on this way; none where there is no such way.
    pub fn last(&mut self, row: u32, way: u16) -> Option<&mut u32> {
        self.heard[row as usize].get_mut(usize::from(way))
    }

    /// Forgets the messages that came to `row`, because its connection was closed: the next message may follow a gap.
    pub fn forget(&mut self, row: u32) {
        self.heard[row as usize] = [0; WAYS];
    }

    /// Takes a new order of how often clients speak; returns whether there was one.
    pub fn obey(&mut self) -> bool {
        let since_ns = self.shared.talk_since_ns.load(Acquire);
        let is_new = since_ns != self.turns.since_ns;
        if is_new {
            (self.turns.since_ns, self.turns.taken) = (since_ns, 0);
            self.turns.every_us = self.shared.talk_every_us.load(Relaxed);
        }
        is_new
    }

    fn is_full(&self) -> bool {
        self.speakers.iter().all(Option::is_some)
    }

    /// How long to sleep at most; none when there is nothing to do before an answer comes.
    pub fn wait_ns(&self, now_ns: u64) -> Option<u64> {
        if self.is_full() {
            return None;
        }
        let retry = (!self.again.is_empty()).then_some(self.paused_until_ns);
        let next = (self.turns.every_us > 0).then(|| self.turns.next_ns());
        let at_ns = retry.into_iter().chain(next).min()?;
        Some(at_ns.saturating_sub(now_ns).max(TICK_NS))
    }

    /// Makes the requests of the clients whose turn has come, and gives up requests that get no answer.
    pub fn turn(&mut self, epoll: &Epoll, said: &mut RequestCounts) {
        let now_ns = sys::now_ns();
        for slot in 0..self.speakers.len() {
            let expired = |it: &Speaker| now_ns > it.since_ns + ANSWER_NS;
            if self.speakers[slot].as_ref().is_some_and(expired) {
                self.failed(slot, "no answer to a POST", said);
            }
        }
        while now_ns >= self.paused_until_ns && !self.is_full() {
            let Some(row) = self.again.pop_front() else {
                break;
            };
            self.dial(row, epoll, said);
        }
        while self.turns.every_us > 0 && now_ns >= self.turns.next_ns() && !self.is_full() {
            let row = self.turns.next_row();
            if self.is_speaking(row) {
                break;
            }
            said.requests += 1;
            said.late_ns_max = said.late_ns_max.max(now_ns - self.turns.next_ns());
            self.shared.speaking.fetch_add(1, Relaxed);
            self.turns.taken += 1;
            self.dial(row, epoll, said);
        }
    }

    fn is_speaking(&self, row: u32) -> bool {
        let speaks = self.speakers.iter().flatten().any(|it| it.row == row);
        speaks || self.again.contains(&row)
    }

    fn dial(&mut self, row: u32, epoll: &Epoll, said: &mut RequestCounts) {
        let slot = self.speakers.iter().position(Option::is_none);
        let slot = slot.expect("the caller has seen a free one");
        let dial = self.plan.dial(self.first + row);
        let since_ns = sys::now_ns();
        let begun = sys::dial(&dial).and_then(|(fd, connected)| {
            self.speakers[slot] = Some(Speaker {
                fd,
                row,
                since_ns,
                messages: 0,
                received: Vec::new(),
            });
            let interest = sys::reading(!connected);
            epoll.add(fd, interest, u64::from(self.turns.rows) + slot as u64)?;
            if connected {
                self.speak(slot, dial.remote)?;
            }
            Ok(())
        });
        if let Err(error) = begun {
            // Without a descriptor there is no speaker to end.
            if self.speakers[slot].is_none() {
                said.unanswered += self.messages(row);
                self.shared.speaking.fetch_sub(1, Relaxed);
                said.complain(format!("connect to {}: {error}", dial.remote));
            } else {
                self.failed(slot, &format!("POST: {error}"), said);
            }
        }
    }

    /// How many messages a request of this client carries.
    fn messages(&self, row: u32) -> u64 {
        let beside = self.grid.beside(self.first + row);
        beside.iter().flatten().count() as u64
    }

    /// Sends the request.
    fn speak(&mut self, slot: usize, remote: SocketAddr) -> io::Result<()> {
        let speaker = self.speakers[slot].as_mut().expect("it has connected");
        let sequence = self.said[speaker.row as usize] + 1;
        let beside = self.grid.beside(self.first + speaker.row);
        self.lines.clear();
        for (way, topic) in beside.into_iter().enumerate() {
            let Some(topic) = topic else { continue };
            let header = Header {
                run: way as u16,
                sent_ns: sys::now_ns(),
                topic,
                sequence,
            };
            let name = self.plan.topic(topic);
            request::line(&name, header, &mut self.payloads, &mut self.lines);
            speaker.messages += 1;
        }
        let mut request = request::batch_head(&remote.to_string(), self.lines.len()).into_bytes();
        request.extend_from_slice(&self.lines);
        match sys::send(speaker.fd, &request)? {
            count if count == request.len() => Ok(()),
            _ => Err(io::Error::other("the socket did not take the request")),
        }
    }

    /// Goes on with a request whose connection is ready.
    pub fn ready(&mut self, slot: usize, epoll: &Epoll, said: &mut RequestCounts) {
        let Some(speaker) = &mut self.speakers[slot] else {
            return;
        };
        let result = if speaker.messages == 0 {
            let (fd, row) = (speaker.fd, speaker.row);
            sys::connect_result(fd)
                .and_then(|()| {
                    epoll.modify(fd, Interest::IN, u64::from(self.turns.rows) + slot as u64)
                })
                .and_then(|()| self.speak(slot, self.plan.dial(self.first + row).remote))
        } else {
            self.receive(slot, said)
        };
        if let Err(error) = result {
            self.failed(slot, &format!("POST: {error}"), said);
        }
    }

    /// Reads the answer, and ends the connection when it is whole.
    fn receive(&mut self, slot: usize, said: &mut RequestCounts) -> io::Result<()> {
        let speaker = self.speakers[slot].as_mut().expect("it was asked for");
        let mut buffer = [0; ANSWER_BYTES];
        match sys::receive(speaker.fd, &mut buffer)? {
            None => return Ok(()),
            Some(0) => return Err(io::Error::other("closed before the answer")),
            Some(count) => speaker.received.extend_from_slice(&buffer[..count]),
        }
        let response = parse::response(&speaker.received).map_err(io::Error::other)?;
        let Some(Response { head, body, .. }) = response else {
            return Ok(());
        };
        let (status, messages) = (head.status, speaker.messages);
        let refused = match status {
            200 => request::failed(body),
            _ => messages,
        };
        if status == 503 {
            said.turned_away += 1;
            self.again.push_back(speaker.row);
            self.paused_until_ns = sys::now_ns() + FAILURE_PAUSE_NS;
            sys::close(speaker.fd);
            self.speakers[slot] = None;
            return Ok(());
        }
        if refused > 0 {
            said.complain(format!("{status}: {}", String::from_utf8_lossy(body)));
        }
        said.refused += refused;
        said.accepted += messages.saturating_sub(refused);
        said.answered.add(sys::now_ns() - speaker.since_ns);
        self.end(slot);
        Ok(())
    }

    /// Gives up a request that got no answer. Its messages keep their numbers, because the server may have taken them.
    fn failed(&mut self, slot: usize, why: &str, said: &mut RequestCounts) {
        let row = self.speakers[slot].as_ref().expect("it failed").row;
        said.unanswered += self.messages(row);
        said.complain(why);
        self.end(slot);
    }

    fn end(&mut self, slot: usize) {
        let speaker = self.speakers[slot].take().expect("it ends once");
        self.said[speaker.row as usize] += 1;
        self.shared.speaking.fetch_sub(1, Relaxed);
        sys::close(speaker.fd);
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        for speaker in self.speakers.iter().flatten() {
            sys::close(speaker.fd);
        }
    }
}

/// A large step that visits all of `rows` before it comes to one for the second time.
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
            let mut seen = vec![false; rows as usize];
            for turn in 0..u64::from(rows) {
                seen[(turn * step % u64::from(rows)) as usize] = true;
            }
            assert!(seen.into_iter().all(|it| it), "{rows}");
        }
    }
}
