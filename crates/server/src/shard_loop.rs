//! One shard's thread: implements the broker's [`Io`] over sockets and turns until it is told to stop.
//!
//! A turn: wait for readiness and mail with one system call, hand everything to the shard within
//! budgets, then flush. The loop decides nothing; whatever fails becomes `Input::Closed`.

use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crore_broker::access::{Question, Verdict};
use crore_broker::connection::shed;
use crore_broker::snapshot::Restored;
use crore_broker::{
    Close, ConnId, Control, Input, Io, Link, Mail, Moved, Now, Report, Shard, ShardId, Ticket,
    World,
};
use crore_net::stream::{Streams, Taken, Then};
use crore_net::{
    Arrival, Driver, Entrance, Fd, Inbox, Received, Sender, Sent, SocketOptions, clock, entrance,
    fd_table, socket, steering,
};

use crate::access::Asker;
use crate::board::Meter;
use crate::tls;

/// Events taken by one wait.
const EVENTS_MAX: usize = 256;
/// Connections accepted from one listener in one turn, so that a storm of arrivals does not hold up
/// deliveries.
const ACCEPTS_PER_TURN: usize = 64;
/// The shard's one receive buffer. Its pages are touched only as far as a read fills them. A publisher's batch
/// (60 kB) fits in whole: with 64 KiB most of them came in two, and a tenth fewer messages a second were delivered.
const RECEIVE_BYTES: usize = 128 << 10;
/// Parts of a write that are passed on without a list on the heap.
const PARTS_MAX: usize = 32;
/// Tokens with this bit are not connections.
const SPECIAL: u64 = 1 << 63;
const MAILBOX: u64 = SPECIAL | 1 << 62;
/// How long a shard that waits for another's credit sleeps.
const STALL_MS: u32 = 1;
/// Ticks of one turn at most, by which a shard that could not tick in time catches up.
const TICKS_PER_TURN: u32 = 8;
/// How far the seconds of one shard are from those of the next, in milliseconds: a golden section, so that
/// the sweeps of any number of shards fall between each other.
const SHARD_APART_MS: u64 = 618;
/// How often it is said that connections are turned away, at most.
const TELL_EVERY_S: u32 = 60;

/// What comes into a shard's inbox.
pub enum Letter {
    /// From another shard.
    Mail(Mail),
    /// From the control thread.
    Control(Ticket, Control),
    /// About what a connection came with.
    Verdict(ConnId, Verdict),
}

/// A report on its way to the control thread.
pub struct Reported {
    /// What it answers.
    pub ticket: Ticket,
    /// The answer.
    pub report: Report,
}

/// What a shard thread needs to begin.
pub struct Start {
    /// Its number.
    pub id: ShardId,
    /// What all shards share.
    pub world: Arc<World>,
    /// What its predecessor left.
    pub restored: Option<Restored>,
    /// Where to listen.
    pub listen: Vec<SocketAddr>,
    /// The length of the accept queue.
    pub backlog: u32,
    /// The shards' listeners of each address.
    pub group: Arc<steering::Group>,
    /// Its mail.
    pub inbox: Inbox<Letter>,
    /// Everybody's mail, by number.
    pub peers: Vec<Sender<Letter>>,
    /// Where reports go.
    pub reports: Sender<Reported>,
    /// Whom to ask about credentials.
    pub asker: Asker,
    /// Where its counters stand.
    pub meter: Meter,
    /// The eventfds of all inboxes.
    pub wakes: Vec<Fd>,
    /// The core to stay on.
    pub core: Option<usize>,
    /// By what TLS handshakes are done, where there are some.
    pub tls: Option<tls::Shared>,
}

/// The broker's world, over sockets.
struct Sockets {
    driver: Driver,
    tls: Option<Box<Streams>>,
    peers: Vec<Sender<Letter>>,
    reports: Sender<Reported>,
    asker: Asker,
    meter: Meter,
    /// Connections that ended within this turn, of which nobody else will hear.
    failed: Vec<ConnId>,
}

impl Io for Sockets {
    fn open(&mut self, link: Link, conn: ConnId) {
        if let Err(error) = self.driver.add(Fd(link.0), conn.token(), true, false) {
            // Without a place in the poller it would never be heard of again.
            tracing::warn!(%error, "a connection could not be watched");
            self.failed.push(conn);
        }
        if let Some(tls) = &mut self.tls {
            tls.opened(Fd(link.0));
        }
    }

    #[inline]
    fn send(&mut self, link: Link, parts: &[&[u8]]) -> usize {
        let fd = Fd(link.0);
        if let Some(tls) = &mut self.tls
            && let Some(taken) = tls.send(fd, parts)
        {
            self.meter.turns.sent_bytes += taken as u64;
            return taken;
        }
        let sent = match parts {
            [one] => socket::send(fd, one),
            many => {
                let mut slices = [IoSlice::new(&[]); PARTS_MAX];
                for (slice, part) in slices.iter_mut().zip(many) {
                    *slice = IoSlice::new(part);
                }
                socket::send_vectored(fd, &slices[..many.len().min(PARTS_MAX)])
            }
        };
        match sent {
            Sent::Bytes(len) => {
                self.meter.turns.sent_bytes += len as u64;
                len
            }
            // The poller reports the failure as well, and then the connection ends.
            Sent::Again | Sent::Failed(_) => 0,
        }
    }

    fn interest(&mut self, link: Link, conn: ConnId, read: bool, write: bool) {
        let fd = Fd(link.0);
        let (read, write) = match &mut self.tls {
            Some(tls) => tls.interest(fd, read, write),
            None => (read, write),
        };
        let changed = if read {
            self.driver.modify(fd, conn.token(), read, write)
        } else {
            // Who is not read must not be reported as half closed at every wait.
            self.driver
                .modify_half_closed(fd, conn.token(), read, write)
        };
        if changed.is_err() {
            self.failed.push(conn);
        }
    }

    fn close(&mut self, link: Link, how: Close) {
        let fd = Fd(link.0);
        match (&mut self.tls, how) {
            (Some(tls), Close::Drain) => return tls.shutdown(fd),
            (Some(tls), _) => tls.closing(fd, how == Close::Now),
            (None, _) => {}
        }
        match how {
            Close::Drain => socket::shutdown_write(fd),
            Close::Now => socket::close(fd),
            Close::Reset => socket::reset(fd),
        }
    }

    fn post(&mut self, to: ShardId, mail: Mail) {
        self.peers[to as usize].post(Letter::Mail(mail));
    }

    fn peer(&self, link: Link) -> Option<IpAddr> {
        socket::peer(Fd(link.0)).map(|peer| peer.ip())
    }

    fn written(&mut self, stamp: u64, deliveries: u64) {
        self.meter.written(stamp, deliveries);
    }

    fn held_bytes(&self) -> usize {
        self.tls.as_ref().map_or(0, |tls| tls.held_bytes())
    }

    fn moved(&self) -> Moved {
        Moved {
            received_bytes: self.meter.turns.received_bytes,
            sent_bytes: self.meter.turns.sent_bytes,
        }
    }

    fn report(&mut self, ticket: Ticket, report: Report) {
        self.reports.post(Reported { ticket, report });
    }

    fn question(&mut self, conn: ConnId, question: Question) -> bool {
        self.asker.ask(conn, question)
    }
}

impl Sockets {
    /// Whether whoever writes to this connection may go on.
    fn is_writable(&mut self, fd: Fd, token: u64) -> bool {
        let tls = self.tls.as_mut();
        tls.is_none_or(|tls| tls.writable(fd, token, &mut self.driver))
    }
}

/// The thread.
pub struct ShardLoop {
    shard: Shard,
    io: Sockets,
    inbox: Inbox<Letter>,
    entrance: Entrance,
    buffer: Box<[u8]>,
    letters: Vec<Letter>,
    began_ms: u64,
    turned_away: u64,
    untrusted: u64,
    /// The second until which nothing more is said of those who are turned away.
    told_s: u32,
    tls_told: Option<tls::Told>,
    /// When the next tick is due.
    tick_ms: u64,
}

impl ShardLoop {
    /// Parts this thread's descriptor table and opens its sockets.
    pub fn new(start: Start) -> anyhow::Result<Self> {
        if let Some(core) = start.core {
            crore_net::affinity::pin_to(core)?;
        }
        fd_table::part(&start.wakes)?;
        let mut driver = Driver::new(EVENTS_MAX)?;
        driver.add(start.inbox.fd(), MAILBOX, true, false)?;
        let limits = &start.world.settings.limits;
        let limits = entrance::Limits {
            backlog: start.backlog,
            connections_max: u32::try_from(limits.connections_per_shard).unwrap_or(u32::MAX),
            accepts_per_s: limits.accepts_per_s.div_ceil(u32::from(start.world.shards)),
            sockets: SocketOptions {
                send_buffer_bytes: send_buffer_bytes(limits.send_buffer_bytes),
                ..SocketOptions::default()
            },
        };
        let token = |n| SPECIAL | n as u64;
        let entrance = Entrance::open(&start.listen, limits, &start.group, &mut driver, token)?;
        let tls = start.tls.as_ref().map(tls::Shared::streams);
        let apart_ms = u64::from(start.id) * SHARD_APART_MS % 1000;
        let began_ms = clock::monotonic_ms().saturating_sub(apart_ms);
        let mut shard = Shard::new(start.id, start.world, now(0));
        shard.limit_connections(entrance.room());
        let mut meter = start.meter;
        meter.turns.room = u64::from(entrance.room());
        if let Some(restored) = start.restored {
            shard.adopt(restored);
        }
        Ok(ShardLoop {
            shard,
            io: Sockets {
                driver,
                tls,
                peers: start.peers,
                reports: start.reports,
                asker: start.asker,
                meter,
                failed: Vec::new(),
            },
            inbox: start.inbox,
            entrance,
            buffer: vec![0; RECEIVE_BYTES].into_boxed_slice(),
            letters: Vec::new(),
            began_ms,
            turned_away: 0,
            untrusted: 0,
            told_s: 0,
            tls_told: start.tls.as_ref().map(tls::Shared::told),
            tick_ms: began_ms,
        })
    }

    /// Turns for ever.
    pub fn run(mut self) -> ! {
        let mut busy = false;
        loop {
            busy = self.turn(busy);
        }
    }

    fn turn(&mut self, busy: bool) -> bool {
        let timeout_ms = if busy || !self.inbox.sleep() {
            Some(0)
        } else {
            self.sleep_ms()
        };
        let events = match self.io.driver.wait(timeout_ms) {
            Ok(events) => events,
            Err(error) => panic!("the poller failed: {error}"),
        };
        self.inbox.awake();
        self.shard.stamp(self.io.meter.begin());
        let now_ms = clock::monotonic_ms();
        let now = now(now_ms - self.began_ms);
        self.tick(now_ms, now);
        for n in 0..events {
            if self.shard.is_spent() {
                // What is left is reported again: the poller is level-triggered.
                break;
            }
            let event = self.io.driver.event(n);
            if event.token & SPECIAL == 0 {
                self.connection_event(n, now);
            } else if event.token != MAILBOX {
                self.accept((event.token & !SPECIAL) as usize, now);
            }
        }
        let handshakes = self.handshakes(now);
        let mut letters = std::mem::take(&mut self.letters);
        self.inbox.drain(&mut letters);
        for letter in letters.drain(..) {
            let input = match letter {
                Letter::Mail(mail) => Input::Mail(mail),
                Letter::Control(ticket, control) => Input::Control(ticket, control),
                Letter::Verdict(conn, verdict) => Input::Verdict(conn, verdict),
            };
            self.shard.handle(input, now, &mut self.io);
        }
        self.letters = letters;
        if self.shard.drains() {
            self.close_entrance(now);
        }
        let busy = self.shard.flush(now, &mut self.io) | handshakes;
        while let Some(conn) = self.io.failed.pop() {
            self.shard.handle(Input::Closed(conn), now, &mut self.io);
        }
        let (connections, now_ms) = (self.shard.connections(), clock::monotonic_ms());
        let settled = self
            .entrance
            .settle(&mut self.io.driver, connections, now_ms);
        if let Err(error) = settled {
            tracing::warn!(%error, "new connections cannot be kept from a shard that is full");
        }
        self.tell_tls(now);
        let tls = self.io.tls.as_deref();
        self.io.meter.end(&self.shard, tls, now_ms);
        busy
    }

    /// Says how time passes: as each second begins, and within it as often as the shard asks for.
    fn tick(&mut self, now_ms: u64, now: Now) {
        for _ in 0..TICKS_PER_TURN {
            if now_ms < self.tick_ms {
                return;
            }
            self.shard.handle(Input::Tick, now, &mut self.io);
            self.tick_ms = match self.shard.tick_in_ms() {
                Some(ms) => self.tick_ms + u64::from(ms),
                None => {
                    self.tell_turned_away(now);
                    now_ms + 1000 - (now_ms - self.began_ms) % 1000
                }
            };
        }
    }

    /// Until the next tick while there is anything that may time out or is to be told, else without end.
    fn sleep_ms(&self) -> Option<u32> {
        if self.shard.is_waiting() {
            return Some(STALL_MS);
        }
        let now_ms = clock::monotonic_ms();
        if let Some(ms) = self.entrance.wait_ms(now_ms) {
            return Some(ms);
        }
        let ticks = !self.shard.is_idle();
        let tick = ticks.then(|| self.tick_ms.saturating_sub(now_ms) as u32);
        let publish = self.io.meter.sleep_ms(now_ms);
        tick.into_iter().chain(publish).min()
    }

    fn connection_event(&mut self, n: usize, now: Now) {
        let event = self.io.driver.event(n);
        let conn = ConnId::from_token(event.token);
        let Some(link) = self.shard.link_of(conn) else {
            return;
        };
        let fd = Fd(link.0);
        if event.writable && self.io.is_writable(fd, event.token) {
            self.shard.handle(Input::Writable(conn), now, &mut self.io);
        }
        // What was written may have been its last.
        if !(event.readable || event.hangup) || self.shard.link_of(conn).is_none() {
            return;
        }
        if !event.readable && event.hangup {
            self.shard.handle(Input::Closed(conn), now, &mut self.io);
            return;
        }
        if let Some(tls) = &mut self.io.tls {
            let taken = tls.receive(fd, event.token, &mut self.buffer);
            return self.taken(conn, taken, now);
        }
        let input = match socket::recv(fd, &mut self.buffer) {
            Received::Bytes(len) => {
                self.io.meter.turns.received_bytes += len as u64;
                Input::Received(conn, &mut self.buffer[..len])
            }
            Received::End => Input::End(conn),
            Received::Again => return,
            Received::Failed(_) => Input::Closed(conn),
        };
        self.shard.handle(input, now, &mut self.io);
    }

    /// Hands on what came of a connection that may have TLS: it lies at the beginning of the buffer.
    fn taken(&mut self, conn: ConnId, taken: Taken, now: Now) {
        if taken.plain > 0 {
            self.io.meter.turns.received_bytes += taken.plain as u64;
            let bytes = &mut self.buffer[..taken.plain];
            self.shard
                .handle(Input::Received(conn, bytes), now, &mut self.io);
        }
        let input = match taken.then {
            Then::Open => return,
            Then::End => Input::End(conn),
            Then::Closed => Input::Closed(conn),
        };
        self.shard.handle(input, now, &mut self.io);
    }

    /// Goes on with handshakes, for this turn's share of time; says whether some are left.
    fn handshakes(&mut self, now: Now) -> bool {
        while let Some(tls) = &mut self.io.tls
            && let Some((token, taken)) = tls.next_handshake(&mut self.io.driver, &mut self.buffer)
        {
            self.taken(ConnId::from_token(token), taken, now);
        }
        while let Some(tls) = &mut self.io.tls
            && let Some(token) = tls.take_ended()
        {
            let over = Input::Closed(ConnId::from_token(token));
            self.shard.handle(over, now, &mut self.io);
        }
        let tls = self.io.tls.as_mut();
        tls.is_some_and(|tls| tls.end_turn(&mut self.io.driver))
    }

    fn accept(&mut self, listener: usize, now: Now) {
        for n in 0..ACCEPTS_PER_TURN {
            if !self.accept_one(listener, n as u32, now) {
                return;
            }
        }
    }

    /// Takes the connection that waits, as the `n`th of a turn; false when there is no other one now.
    fn accept_one(&mut self, listener: usize, n: u32, now: Now) -> bool {
        let now_ms = clock::monotonic_ms();
        let answer = |request: &[u8]| shed(request, now_ms as u32 ^ n << 16);
        match self.entrance.accept(listener, now_ms, answer) {
            Arrival::Connection(fd, peer) => {
                let arrived = Input::Accepted(Link(fd.0), peer.ip());
                self.shard.handle(arrived, now, &mut self.io);
                self.tell_untrusted(now);
            }
            Arrival::Shed(_) => {
                self.io.meter.turns.shed += 1;
                self.tell("out of descriptors or memory", now);
            }
            Arrival::Stuck(_) => {
                self.tell("the machine is out of descriptors", now);
                return false;
            }
            Arrival::Nobody => return false,
            Arrival::Failed(errno) => {
                tracing::debug!(errno, "accept failed");
                return false;
            }
        }
        true
    }

    /// Nobody is let in any more; whoever stands in the queues is.
    fn close_entrance(&mut self, now: Now) {
        let listeners = self.entrance.listeners().len();
        if listeners == 0 {
            return;
        }
        self.entrance.bar();
        for listener in 0..listeners {
            let mut n = 0;
            while self.accept_one(listener, n, now) {
                n += 1;
            }
        }
        self.entrance.close();
    }

    /// Says that somebody came who may not, as a shard without connections never ticks.
    fn tell_untrusted(&mut self, now: Now) {
        let untrusted = self.shard.stats().untrusted;
        if untrusted > self.untrusted {
            self.untrusted = untrusted;
            let peers = "not in http.trusted_proxies, while http.proxy_protocol is on";
            self.tell(
                &format!("{untrusted} came from peers that are {peers}"),
                now,
            );
        }
    }

    fn tell_turned_away(&mut self, now: Now) {
        let turned_away = self.shard.stats().turned_away;
        if turned_away > self.turned_away {
            self.turned_away = turned_away;
            self.tell("a limit is reached", now);
        }
    }

    /// Says why connections were ended that had or should have had TLS, not for each of them.
    fn tell_tls(&mut self, now: Now) {
        if let (Some(tls), Some(told)) = (&mut self.io.tls, &mut self.tls_told) {
            told.tell(tls, now.s);
        }
    }

    /// Says why connections are turned away, not for each of them.
    fn tell(&mut self, why: &str, now: Now) {
        if now.s < self.told_s {
            return;
        }
        self.told_s = now.s + TELL_EVERY_S;
        let connections = self.shard.connections();
        tracing::warn!(connections, "{why}: new connections are turned away");
    }
}

/// What to ask of the kernel, which doubles it: its own bookkeeping takes up to half.
fn send_buffer_bytes(bytes: usize) -> Option<u32> {
    (bytes > 0).then(|| u32::try_from(bytes).unwrap_or(u32::MAX))
}

/// The moment at which a shard began, so long after that.
pub fn now(elapsed_ms: u64) -> Now {
    Now {
        s: u32::try_from(elapsed_ms / 1000 + 1).unwrap_or(u32::MAX),
        unix_s: u32::try_from(clock::unix_s()).unwrap_or(u32::MAX),
    }
}

#[cfg(test)]
mod tests;
