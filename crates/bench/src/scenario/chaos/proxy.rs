//! A proxy between clients and server that simulates a failing network. One thread relays connections and causes faults from a seed.
//!
//! Each connection is cut after an exponentially distributed time, usually in the middle of the bytes that the proxy relays. A cut is a
//! reset of both sides, a proper close of both sides, or a reset of the client's side only, so that the server keeps writing to a client
//! that is gone. Before the cut a direction may stall, or pass bytes in small pieces. Bytes are never changed. When the faults end, stalled
//! bytes pass and no new fault is drawn.

mod counts;
mod faults;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::Result;

use super::shared_state::SharedState;
use crate::measure::payload::Random;
use crate::sys::{self, DialOptions, Epoll, Interest};
pub use counts::ProxyCounts;

/// The maximum pause between two pieces.
const PIECE_PAUSE_NS: u64 = 4_000_000;
/// If a cut is due but there are no bytes that it could split, the cut waits for bytes. This is the maximum time of that wait.
const CUT_TIMEOUT_NS: u64 = 1_000_000_000;
/// When this many bytes of a direction are buffered, the proxy stops reading from the side that sends them.
const BUFFERED_BYTES_MAX: usize = 64 << 10;
/// Size of the receive buffers of the connections to the server. It is small, so that the server notices a stall soon.
const RECEIVE_BUFFER_BYTES: u32 = 64 << 10;
/// The maximum number of events of one wait.
const EVENTS_MAX: usize = 512;
/// The maximum time to wait for events.
const WAIT_MAX: Duration = Duration::from_millis(20);

/// The purpose of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Cut,
    CutAnyway,
    StallOrTear,
    Pass(usize),
    Ghost,
}

/// One direction of a connection. Its index in `Pair::flows` is the number of the side from which the bytes come.
#[derive(Default)]
struct Flow {
    bytes: Vec<u8>,
    sent_bytes: usize,
    /// No bytes pass before this time.
    not_before_ns: u64,
    stalled_until_ns: u64,
    /// Whether a timer is set, after which the bytes may pass.
    has_timer: bool,
    /// Whether the receiving socket is full.
    is_full: bool,
    has_ended: bool,
}

impl Flow {
    fn waiting_bytes(&self) -> usize {
        self.bytes.len() - self.sent_bytes
    }
}

/// A client's connection to the proxy (side 0), and the proxy's connection to the server for this client (side 1).
struct Pair {
    fds: [RawFd; 2],
    watched_interests: [Interest; 2],
    flows: [Flow; 2],
    generation: u32,
    delay_ns: u64,
    torn_until_ns: u64,
    /// The direction whose next bytes will be cut in the middle, together with the connection. `None` if no cut waits for bytes.
    direction_to_cut: Option<usize>,
    is_open: bool,
    /// Whether the client's side is closed, but the server's side is still open.
    is_ghost: bool,
}

/// The thread's state.
pub struct Proxy<'a> {
    shared: &'a SharedState,
    server: SocketAddr,
    listener: RawFd,
    epoll: Epoll,
    pairs: Vec<Pair>,
    free_pairs: Vec<u32>,
    timers: BinaryHeap<Reverse<(u64, u32, u32, Timer)>>,
    random: Random,
    buffer: Vec<u8>,
    counts: ProxyCounts,
    is_calm: bool,
}

/// The listener's epoll key.
const LISTENER_KEY: u64 = u64::MAX;

impl<'a> Proxy<'a> {
    /// Listens on a free port. Must be called on the thread that will run the proxy.
    pub fn new(
        shared: &'a SharedState,
        server: SocketAddr,
        index: u64,
    ) -> Result<(Proxy<'a>, SocketAddr)> {
        sys::unshare_descriptor_table()?;
        let epoll = Epoll::new(EVENTS_MAX)?;
        let (listener, address) = sys::listen(([127, 0, 0, 1], 0).into())?;
        epoll.add(listener, Interest::IN, LISTENER_KEY)?;
        let proxy = Proxy {
            shared,
            server,
            listener,
            epoll,
            pairs: Vec::new(),
            free_pairs: Vec::new(),
            timers: BinaryHeap::new(),
            random: Random::new(shared.seed ^ (index + 1) << 48),
            buffer: vec![0; BUFFERED_BYTES_MAX],
            counts: ProxyCounts::default(),
            is_calm: true,
        };
        Ok((proxy, address))
    }

    /// Relays until the run is over.
    pub fn run(mut self) -> Result<ProxyCounts> {
        while !self.shared.must_stop.load(Relaxed) {
            let now = sys::now_ns();
            let next_timer_ns = self
                .timers
                .peek()
                .map_or(u64::MAX, |Reverse(timer)| timer.0);
            let wait_time = Duration::from_nanos(next_timer_ns.saturating_sub(now)).min(WAIT_MAX);
            let count = self.epoll.wait(wait_time)?;
            for index in 0..count {
                let ready = self.epoll.ready(index);
                if ready.key == LISTENER_KEY {
                    self.accept()?;
                    continue;
                }
                let (pair, side) = ((ready.key as u32 >> 1) as usize, (ready.key & 1) as usize);
                let row = &mut self.pairs[pair];
                if row.generation != (ready.key >> 32) as u32 || !row.is_open {
                    continue;
                }
                if ready.writable {
                    row.flows[1 - side].is_full = false;
                    self.pass_bytes(pair, 1 - side);
                }
                if ready.readable && self.pairs[pair].is_open {
                    self.read_side(pair, side);
                }
            }
            self.handle_timers();
            self.follow_schedule();
        }
        for pair in 0..self.pairs.len() {
            self.close_pair(pair, sys::reset);
        }
        sys::close(self.listener);
        Ok(self.counts)
    }

    fn accept(&mut self) -> Result<()> {
        while let Some(client) = sys::accept(self.listener)? {
            let options = DialOptions {
                remote: self.server,
                local: Some(([127, 0, 10, 1 + self.random.below(20) as u8], 0).into()),
                receive_buffer: Some(RECEIVE_BUFFER_BYTES),
            };
            let (server, _) = match sys::dial(&options) {
                Ok(result) => result,
                Err(_) => {
                    sys::reset(client);
                    continue;
                }
            };
            sys::no_delay(client)?;
            sys::no_delay(server)?;
            let index = self
                .free_pairs
                .pop()
                .map_or(self.pairs.len(), |index| index as usize);
            let generation = self.pairs.get(index).map_or(1, |pair| pair.generation + 1);
            let pair = Pair {
                fds: [client, server],
                watched_interests: [Interest::IN; 2],
                flows: Default::default(),
                generation,
                delay_ns: 0,
                torn_until_ns: 0,
                direction_to_cut: None,
                is_open: true,
                is_ghost: false,
            };
            if index == self.pairs.len() {
                self.pairs.push(pair);
            } else {
                self.pairs[index] = pair;
            }
            for side in 0..2 {
                let fd = self.pairs[index].fds[side];
                self.epoll.add(fd, Interest::IN, self.key(index, side))?;
            }
            self.counts.connections += 1;
            if !self.is_calm {
                self.draw_faults(index);
            }
        }
        Ok(())
    }

    fn key(&self, pair: usize, side: usize) -> u64 {
        u64::from(self.pairs[pair].generation) << 32 | (pair as u64) << 1 | side as u64
    }

    fn set_timer(&mut self, pair: usize, delay_ns: u64, due: Timer) {
        let generation = self.pairs[pair].generation;
        self.timers.push(Reverse((
            sys::now_ns() + delay_ns,
            pair as u32,
            generation,
            due,
        )));
    }

    fn handle_timers(&mut self) {
        let now = sys::now_ns();
        while let Some(Reverse((due_ns, pair, generation, due))) = self.timers.peek().copied() {
            if due_ns > now {
                return;
            }
            self.timers.pop();
            let pair = pair as usize;
            if self.pairs[pair].generation != generation || !self.pairs[pair].is_open {
                continue;
            }
            match due {
                Timer::Pass(direction) => {
                    self.pairs[pair].flows[direction].has_timer = false;
                    self.pass_bytes(pair, direction);
                }
                Timer::Ghost => self.close_pair(pair, sys::close),
                _ if self.is_calm || self.pairs[pair].is_ghost => {}
                Timer::Cut => {
                    self.pairs[pair].direction_to_cut = Some(self.random.below(4).min(1) as usize);
                    self.set_timer(pair, CUT_TIMEOUT_NS, Timer::CutAnyway);
                }
                Timer::CutAnyway => self.cut(pair),
                Timer::StallOrTear => self.stall_or_tear(pair),
            }
        }
    }

    fn close_pair(&mut self, pair: usize, close_fd: fn(RawFd)) {
        let row = &mut self.pairs[pair];
        if !row.is_open {
            return;
        }
        row.is_open = false;
        if !row.is_ghost {
            close_fd(row.fds[0]);
        }
        close_fd(row.fds[1]);
        row.flows = Default::default();
        self.free_pairs.push(pair as u32);
    }

    fn set_interest(&mut self, pair: usize, side: usize, interest: Interest) {
        let (key, row) = (self.key(pair, side), &mut self.pairs[pair]);
        if row.watched_interests[side] != interest && !(row.is_ghost && side == 0) {
            row.watched_interests[side] = interest;
            // The descriptor is open and in the epoll set, so this fails only if there is no memory.
            let _ = self.epoll.modify(row.fds[side], interest, key);
        }
    }

    fn read_side(&mut self, pair: usize, side: usize) {
        let row = &mut self.pairs[pair];
        if !row.watched_interests[side].contains(Interest::IN) {
            // This side is not watched for reading, so epoll has reported a broken connection.
            return self.close_pair(pair, sys::reset);
        }
        let count = match sys::receive(row.fds[side], &mut self.buffer) {
            Ok(Some(count)) => count,
            Ok(None) => return,
            Err(_) => return self.close_pair(pair, sys::reset),
        };
        self.counts.bytes += count as u64;
        let flow = &mut row.flows[side];
        if count == 0 {
            flow.has_ended = true;
        } else {
            if flow.waiting_bytes() == 0 {
                flow.not_before_ns = sys::now_ns() + row.delay_ns;
            }
            flow.bytes.extend_from_slice(&self.buffer[..count]);
            if row.direction_to_cut == Some(side) {
                // A part of the buffered bytes passes before the cut.
                let bytes = &flow.bytes[flow.sent_bytes..];
                let part = self.random.below(bytes.len() as u32) as usize;
                let _ = sys::send(row.fds[1 - side], &bytes[..part]);
                self.counts.in_mid_bytes += 1;
                return self.cut(pair);
            }
        }
        self.pass_bytes(pair, side);
    }

    /// Passes the bytes that are due.
    fn pass_bytes(&mut self, pair: usize, direction: usize) {
        let now = sys::now_ns();
        if self.pairs[pair].is_ghost {
            return;
        }
        loop {
            let row = &mut self.pairs[pair];
            let flow = &mut row.flows[direction];
            if flow.waiting_bytes() == 0 {
                flow.bytes.clear();
                flow.sent_bytes = 0;
                if flow.has_ended {
                    return self.close_pair(pair, sys::close);
                }
                break;
            }
            let not_before = flow.not_before_ns.max(flow.stalled_until_ns);
            if now < not_before {
                if !std::mem::replace(&mut flow.has_timer, true) {
                    self.set_timer(pair, not_before - now, Timer::Pass(direction));
                }
                break;
            }
            let is_torn = now < row.torn_until_ns;
            let mut piece = flow.waiting_bytes();
            if is_torn {
                let piece_max = (piece / 16).clamp(40, 4000) as u32;
                piece = piece.min(1 + self.random.below(piece_max) as usize);
            }
            match sys::send(
                row.fds[1 - direction],
                &flow.bytes[flow.sent_bytes..][..piece],
            ) {
                Ok(0) => {
                    flow.is_full = true;
                    break;
                }
                Ok(count) => flow.sent_bytes += count,
                Err(error) if error.kind() == std::io::ErrorKind::NotConnected => {
                    flow.is_full = true;
                    break;
                }
                Err(_) => return self.close_pair(pair, sys::reset),
            }
            if is_torn {
                flow.not_before_ns = now + 1 + self.random.draw() % PIECE_PAUSE_NS;
            }
        }
        for side in 0..2 {
            let row = &self.pairs[pair];
            let read =
                !row.flows[side].has_ended && row.flows[side].waiting_bytes() < BUFFERED_BYTES_MAX;
            let mut interest = Interest::empty();
            interest.set(Interest::IN, read);
            interest.set(Interest::OUT, row.flows[1 - side].is_full);
            self.set_interest(pair, side, interest);
        }
    }
}
