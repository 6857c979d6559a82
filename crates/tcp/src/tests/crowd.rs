//! Many short connections between few ends: rows, places of the side table and ports are used again and again, while packets of earlier
//! connections still arrive. No byte of one connection may reach another one.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crore_rng::Rng;

use super::invariants;
use super::network::{CLIENT, Endpoint, Packets, SERVER, Shared, endpoint, ends};
use crate::{Config, Conn, End, Part, Received, Sent};

/// The number of connections of a seed.
const CONNECTIONS: u64 = 60;
/// The number of ports that they begin from.
const PORTS: u16 = 4;

/// The end of a connection that plays its part.
struct Talker {
    conn: Conn,
    /// The bytes to send and to receive. A server learns them from the first bytes, which are the number of the connection.
    streams: Option<[Vec<u8>; 2]>,
    sent: usize,
    got: Vec<u8>,
    /// It resets the connection once it has received this many bytes.
    resets_at: Option<usize>,
    has_shut: bool,
}

impl Talker {
    fn new(conn: Conn, streams: Option<[Vec<u8>; 2]>, rng: &mut Rng) -> Talker {
        Talker {
            conn,
            streams,
            sent: 0,
            got: Vec::new(),
            resets_at: rng.chance(15).then(|| rng.below(3_000)),
            has_shut: false,
        }
    }
}

/// What one side of a connection sends: the connection's number, and bytes that follow from it.
fn stream(number: u64, side: usize) -> Vec<u8> {
    let mut rng = Rng::new(number * 2 + side as u64);
    let count = rng.pick(&[0, 10, 1_000, 5_000]);
    let bytes = (0..count).map(|_| rng.draw() as u8);
    number.to_be_bytes().into_iter().chain(bytes).collect()
}

/// Two endpoints with many connections.
struct Crowd {
    rng: Rng,
    now_us: u64,
    sides: [Endpoint; 2],
    talkers: [Vec<Talker>; 2],
    ends: [End; 2],
    /// Packets under way: when they arrive, their number, and the side that they arrive at.
    under_way: BTreeMap<(u64, u64), (usize, Vec<u8>)>,
    posted: u64,
    begun: u64,
    /// Numbers that the server has seen.
    seen: BTreeSet<u64>,
    /// Connections that have carried both streams to their end.
    complete: u64,
    loss: u32,
}

impl Crowd {
    fn new(seed: u64) -> Crowd {
        let mut rng = Rng::new(seed);
        let (client, server) = ends(rng.chance(30));
        let config = |rng: &mut Rng| Config {
            receive_log2: rng.pick(&[11, 16, 18]),
            uses_extensions: rng.chance(80),
            ack_delay_us: rng.pick(&[0, 40_000]),
            time_wait_ms: rng.pick(&[0, 1_000, 60_000]),
            connections: rng.pick(&[8, 1_000]),
            ..Config::default()
        };
        let mut sides = [
            endpoint(config(&mut rng), client, seed ^ 1),
            endpoint(config(&mut rng), server, seed ^ 2),
        ];
        sides[1].listen(SERVER);
        Crowd {
            loss: rng.pick(&[0, 5, 15]),
            rng,
            now_us: 1_000_000,
            sides,
            talkers: [Vec::new(), Vec::new()],
            ends: [client, server],
            under_way: BTreeMap::new(),
            posted: 0,
            begun: 0,
            seen: BTreeSet::new(),
            complete: 0,
        }
    }

    /// Passes packets of this side to a network in which some are very late, so that they arrive at a later connection of the same ends.
    fn post(&mut self, side: usize, packets: Vec<Vec<u8>>) {
        for packet in packets {
            for _ in 0..1 + u32::from(self.rng.chance(20)) {
                if self.rng.chance(self.loss) {
                    continue;
                }
                let late_us = match self.rng.below(10) {
                    0 => self.rng.below(20_000),
                    1 => self.rng.below(5_000_000),
                    _ => 0,
                };
                self.posted += 1;
                let due_us = self.now_us + 1_000 + late_us as u64;
                self.under_way
                    .insert((due_us, self.posted), (1 - side, packet.clone()));
            }
        }
    }

    /// Begins the next connection, if one of the ports is free.
    fn begin(&mut self) {
        let port = CLIENT + self.rng.below(PORTS.into()) as u16;
        let local = End {
            port,
            ..self.ends[0]
        };
        if let Some(conn) = self.sides[0].connect(local, self.ends[1], 0, self.now_us) {
            self.begun += 1;
            let streams = [0, 1].map(|side| stream(self.begun, side));
            let talker = Talker::new(conn, Some(streams), &mut self.rng);
            self.talkers[0].push(talker);
        }
    }

    /// One turn of one side.
    fn turn(&mut self, side: usize, packet: Option<Vec<u8>>) -> Result<(), &'static str> {
        let mut device = Packets::default();
        if let Some(packet) = packet {
            self.sides[side].receive(&packet, self.now_us, &mut device);
        }
        if side == 1 {
            while let Some(conn) = self.sides[1].accept(0, 0) {
                self.talkers[1].push(Talker::new(conn, None, &mut self.rng));
            }
        }
        let mut talkers = core::mem::take(&mut self.talkers[side]);
        let mut failed = Ok(());
        talkers.retain_mut(|talker| match self.talk(side, talker, &mut device) {
            Ok(is_over) => !is_over,
            Err(why) => {
                failed = Err(why);
                false
            }
        });
        failed?;
        self.talkers[side] = talkers;
        self.sides[side].poll(self.now_us, &mut device);
        invariants::check(&self.sides[side])?;
        self.post(side, device.list);
        Ok(())
    }

    /// One end does what it can. Returns whether it is over.
    fn talk(
        &mut self,
        side: usize,
        talker: &mut Talker,
        device: &mut Packets,
    ) -> Result<bool, &'static str> {
        let (table, now_us) = (&mut self.sides[side], self.now_us);
        let mut buffer = [0; 1_000];
        let (mut has_end, mut has_failed) = (false, false);
        loop {
            match table.read(talker.conn, &mut buffer) {
                Received::Bytes(count) => talker.got.extend_from_slice(&buffer[..count]),
                Received::End => has_end = true,
                Received::Failed(_) => has_failed = true,
                Received::Again => {}
            }
            if table.readable(talker.conn) == 0 {
                break;
            }
        }
        if talker.streams.is_none()
            && let Some(bytes) = talker.got.first_chunk()
        {
            let number = u64::from_be_bytes(*bytes);
            if !self.seen.insert(number) {
                return Err("a connection has begun twice");
            }
            talker.streams = Some([1, 0].map(|side| stream(number, side)));
        }
        let Some([sends, wanted]) = &talker.streams else {
            if has_end || has_failed {
                table.close(talker.conn, now_us, device);
            }
            return Ok(has_end || has_failed);
        };
        if !wanted.starts_with(&talker.got) {
            return Err("bytes of another connection");
        }
        if talker.resets_at.is_some_and(|at| talker.got.len() >= at) {
            table.reset(talker.conn, now_us, device);
            return Ok(true);
        }
        if has_failed {
            table.close(talker.conn, now_us, device);
            return Ok(true);
        }
        while talker.sent < sends.len() {
            let part = &sends[talker.sent..][..(sends.len() - talker.sent).min(700)];
            let shared = Shared::from(part);
            match table.send(talker.conn, Part::Shared(&shared), now_us) {
                Sent::Bytes(count) => talker.sent += count,
                Sent::Again | Sent::Failed(_) => break,
            }
        }
        if talker.sent == sends.len() && !talker.has_shut {
            table.shut_down(talker.conn, now_us);
            talker.has_shut = true;
        }
        if has_end && talker.has_shut {
            if talker.got != *wanted {
                return Err("an end before all bytes");
            }
            self.complete += u64::from(side == 1);
            table.close(talker.conn, now_us, device);
            return Ok(true);
        }
        Ok(false)
    }

    /// Goes on to the next thing that happens, or by at most `idle_us`.
    fn step(&mut self, idle_us: u64) -> Result<(), &'static str> {
        let arrival = self.under_way.first_key_value().map(|(key, _)| key.0);
        let timers = [0, 1].map(|side| self.sides[side].next_us());
        let next_us = timers
            .into_iter()
            .chain([arrival, Some(self.now_us + idle_us)])
            .flatten()
            .min();
        self.now_us = self.now_us.max(next_us.unwrap_or(0));
        match self.under_way.first_entry() {
            Some(first) if first.key().0 <= self.now_us => {
                let (side, packet) = first.remove();
                self.turn(side, Some(packet))
            }
            _ => {
                if self.begun < CONNECTIONS && self.rng.chance(30) {
                    self.begin();
                }
                self.turn(0, None)?;
                self.turn(1, None)
            }
        }
    }
}

/// Runs a seed. Returns the number of connections that have carried both streams to their end.
pub fn run(seed: u64) -> Result<u64, &'static str> {
    let mut crowd = Crowd::new(seed);
    let end_us = 3_600_000_000;
    while crowd.begun < CONNECTIONS || crowd.talkers.iter().any(|talkers| !talkers.is_empty()) {
        if crowd.now_us > end_us {
            return Err("the connections have not ended");
        }
        crowd.step(20_000)?;
    }
    // All that is remembered is forgotten.
    let end_us = crowd.now_us + 400_000_000;
    while crowd.now_us < end_us {
        crowd.step(5_000_000)?;
    }
    for side in &crowd.sides {
        if side.account.total != 0 || side.transfer_count() != 0 || !side.is_empty() {
            return Err("something is left");
        }
    }
    Ok(crowd.complete)
}

#[test]
fn connections_of_the_same_ends_never_mix() {
    let mut complete = 0;
    for seed in 0..60 {
        match run(seed) {
            Ok(count) => complete += count,
            Err(why) => panic!("seed {seed}: {why}"),
        }
    }
    assert!(complete > 60 * CONNECTIONS / 2, "{complete}");
}
