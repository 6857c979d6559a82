//! Row `join`: members join one topic at a rate, and clients watch the topic.

use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use serde_json::{Value, json};

use super::probe::Probe;
use super::{Place, SETTLE_S, TIMEOUT, get};
use crate::client::link::Link;
use crate::client::request::upgrade;
use crate::measure::stats::Latency;
use crate::report;
use crate::rig::{RunArgs, Sample, pause};
use crate::scenario::centrifugo::frames::read_frame;

/// The topic.
const TOPIC: &str = "room";
/// Default number of members, and the number of joins a second.
const MEMBERS: u32 = 10_000;
const JOINS_PER_S: f64 = 1_000.0;
/// Number of watchers.
const WATCHERS: usize = 10;
/// Default duration of the window without joins, in seconds.
const CALM_S: f64 = 5.0;

/// Opens a WebSocket, and waits for the response to the handshake.
fn open(server: SocketAddr, target: &str) -> Result<Link> {
    let mut link = Link::open(server, TIMEOUT)?;
    link.send(&upgrade("localhost", target, None))?;
    loop {
        let end = link.buffer.windows(4).position(|it| it == b"\r\n\r\n");
        let Some(end) = end else {
            link.read()?;
            continue;
        };
        let head = String::from_utf8_lossy(&link.buffer[..end]).into_owned();
        ensure!(head.starts_with("HTTP/1.1 101 "), "{target}: {head}");
        link.buffer.drain(..end + 4);
        return Ok(link);
    }
}

/// A client that watches the topic, with the time at which it learned of each number of members.
#[derive(Default)]
struct Watcher {
    members: usize,
    known: Vec<Instant>,
}

impl Watcher {
    /// Handles the events that have arrived.
    fn handle(&mut self, received: &mut Vec<u8>) -> Result<()> {
        let mut handled = 0;
        while let Some((payload, bytes)) = read_frame(&received[handled..])? {
            handled += bytes;
            let begins =
                |event: &str| payload.starts_with(format!("{{\"event\":\"{event}\"").as_bytes());
            ensure!(!begins("leave"), "a member has left");
            if begins("reset") {
                self.members = 0;
            }
            if begins("join") {
                self.members += 1;
                if self.members > self.known.len() {
                    self.known.push(Instant::now());
                }
            }
        }
        received.drain(..handled);
        Ok(())
    }
}

/// Watches until the topic has this many members. Returns when the watcher learned of each number of members.
fn watch(server: SocketAddr, members: usize) -> Result<JoinHandle<Result<Vec<Instant>>>> {
    let mut link = open(server, &format!("/presence/{TOPIC}"))?;
    Ok(std::thread::spawn(move || {
        let mut watcher = Watcher::default();
        watcher.handle(&mut link.buffer)?;
        while watcher.known.len() < members {
            link.read()?;
            watcher.handle(&mut link.buffer)?;
        }
        Ok(watcher.known)
    }))
}

/// Measures the row.
pub fn measure(args: &RunArgs) -> Result<Value> {
    let members = args.connections.unwrap_or(MEMBERS);
    let rate = args.rate.unwrap_or(JOINS_PER_S);
    let mut place = Place::start(args, true, "")?;
    let server = place.address();
    // Creates the topic before the watchers subscribe.
    let first = open(server, &format!("/sub/{TOPIC}"))?;
    let watchers = (0..WATCHERS).map(|_| watch(server, members as usize));
    let watchers: Vec<_> = watchers.collect::<Result<_>>()?;
    let probe = Probe::start(server)?;
    pause(args.duration.unwrap_or(CALM_S));
    let calm = probe.finish()?;
    let before = Sample::of(&mut place.server)?;
    let probe = Probe::start(server)?;
    let start = Instant::now();
    let mut subscribers = vec![first];
    let mut joined = vec![start];
    for number in 1..members {
        let due = start + Duration::from_secs_f64(f64::from(number) / rate);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        subscribers.push(open(server, &format!("/sub/{TOPIC}"))?);
        joined.push(Instant::now());
    }
    let took_s = start.elapsed().as_secs_f64();
    let mut delay = Latency::default();
    for watcher in watchers {
        let known = watcher.join();
        let known = known.map_err(|_| anyhow!("a watcher ended with a panic"))??;
        // The first member joined before the watchers subscribed.
        for (known, joined) in known.iter().zip(&joined).skip(1) {
            delay.add(known.saturating_duration_since(*joined).as_nanos() as u64);
        }
    }
    let during = probe.finish()?;
    let after = Sample::of(&mut place.server)?;
    pause(SETTLE_S);
    let told: Value = serde_json::from_str(&get(server, &format!("/presence/{TOPIC}?stats=1"))?)?;
    ensure!(
        told["listed"] == members && told["clients"] == members,
        "the server tells of {told}"
    );
    drop(subscribers);
    let cores = after.cores_since(&before);
    let (delay, calm, during) = (delay.summary(), calm.summary(), during.summary());
    report::say(&format!(
        "join: {members} members in {took_s:.1} s, {cores:.2} cores busy; {WATCHERS} watchers knew of each after {:.1} ms (p99 {:.1} ms, max {:.1} ms); \
         a message of another topic took {:.3} ms (p99 {:.3} ms, max {:.3} ms), before that {:.3} ms (p99 {:.3} ms, max {:.3} ms)",
        delay.mean_ms,
        delay.p99_ms,
        delay.max_ms,
        during.mean_ms,
        during.p99_ms,
        during.max_ms,
        calm.mean_ms,
        calm.p99_ms,
        calm.max_ms
    ));
    Ok(json!({
        "members": members,
        "watchers": WATCHERS,
        "took_s": took_s,
        "server_cores_busy": cores,
        "known_after_ms": delay.json(),
        "others_ms": { "calm": calm.json(), "during": during.json() },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshot_that_begins_again_counts_its_members_again() {
        let mut received = Vec::new();
        for event in ["reset", "join", "join", "reset", "join", "join", "join"] {
            let text = format!(r#"{{"event":"{event}"}}"#);
            received.extend_from_slice(&[0x81, text.len() as u8]);
            received.extend_from_slice(text.as_bytes());
        }
        let mut watcher = Watcher::default();
        watcher.handle(&mut received).expect("no leave");
        assert_eq!((watcher.members, watcher.known.len()), (3, 3));
        assert!(received.is_empty());
    }
}
