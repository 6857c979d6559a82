//! Row `webhooks`: members join and leave at a rate, and the server reports each change to an HTTP endpoint.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use memchr::memmem;
use serde_json::{Map, Value, json};

use super::probe::Probe;
use super::{Place, get};
use crate::client::link::{Link, LinkError};
use crate::report;
use crate::rig::{Directory, RunArgs, Sample};
use crate::scenario::centrifugo::clients::{Connection, open_all};
use crate::scenario::centrifugo::frames::{Command, Format};

/// Default number of joins and leaves a second.
const EVENTS_PER_S: f64 = 10_000.0;
/// Default duration of a window, in seconds.
const WINDOW_S: f64 = 20.0;
/// The number of connections whose subscriptions begin and end.
const CLIENTS: u32 = 10;
/// The time between two steps. In each step a connection begins subscriptions, and ends those of an earlier step.
const STEP_S: f64 = 0.01;
/// A member stays for this many steps of its connection: two seconds.
const STEPS_PRESENT: usize = 20;
/// The response time of the slow endpoint.
const SLOW: Duration = Duration::from_secs(1);
/// The maximum time for which a connection from the server to the endpoint may be idle.
const IDLE_MAX: Duration = Duration::from_secs(3_600);
/// The file with the secret of the signatures.
const SECRET_FILE: &str = "secret";

/// The counts of what the endpoint received.
#[derive(Default)]
struct Told {
    requests: AtomicU64,
    bytes: AtomicU64,
    events: AtomicU64,
    resyncs: AtomicU64,
}

impl Told {
    fn json(&self) -> Value {
        json!({
            "requests": self.requests.load(Relaxed),
            "bytes": self.bytes.load(Relaxed),
            "joins_and_leaves": self.events.load(Relaxed),
            "resyncs": self.resyncs.load(Relaxed),
        })
    }

    fn add(&self, body: &[u8]) {
        let count = |text: &str| memmem::find_iter(body, text).count() as u64;
        self.requests.fetch_add(1, Relaxed);
        self.bytes.fetch_add(body.len() as u64, Relaxed);
        self.events.fetch_add(count("\"member_"), Relaxed);
        self.resyncs.fetch_add(count("\"resync\""), Relaxed);
    }
}

/// Starts an endpoint that answers each request after `answers_after`. It ends with the process.
fn start_endpoint(answers_after: Duration) -> Result<(SocketAddr, Arc<Told>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let told = Arc::<Told>::default();
    let counts = told.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (link, told) = (Link::of(stream, IDLE_MAX), counts.clone());
            std::thread::spawn(move || serve(link?, &told, answers_after));
        }
    });
    Ok((address, told))
}

/// Waits for the next request, and returns its body.
fn read_request(link: &mut Link) -> Result<Vec<u8>, LinkError> {
    loop {
        if let Some(end) = memmem::find(&link.buffer, b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&link.buffer[..end]).to_lowercase();
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
            let length: usize =
                length.ok_or_else(|| LinkError::violation("a request without a length"))?;
            if link.buffer.len() >= end + 4 + length {
                let request: Vec<u8> = link.buffer.drain(..end + 4 + length).collect();
                return Ok(request[end + 4..].to_vec());
            }
        }
        link.read()?;
    }
}

/// Answers the requests of a connection until it ends.
fn serve(mut link: Link, told: &Told, answers_after: Duration) -> Result<(), LinkError> {
    loop {
        told.add(&read_request(&mut link)?);
        std::thread::sleep(answers_after);
        link.send(b"HTTP/1.1 204 No Content\r\n\r\n")?;
    }
}

/// A connection whose subscriptions begin and end.
struct Client {
    connection: Connection,
    number: u32,
    begun: u32,
    present: VecDeque<Vec<String>>,
}

impl Client {
    /// Begins `count` subscriptions, and ends those of an earlier step. Returns the number of joins and leaves.
    fn step(&mut self, count: u32) -> Result<u64> {
        let name = |topic| format!("c{}/{topic}", self.number);
        let begun: Vec<String> = (self.begun..self.begun + count).map(name).collect();
        self.begun += count;
        let ended = match self.present.len() {
            STEPS_PRESENT => self.present.pop_front().unwrap_or_default(),
            _ => Vec::new(),
        };
        let ends = ended.iter().map(|topic| Command::Unsubscribe(topic));
        let begins = begun.iter().map(|topic| Command::Subscribe(topic));
        let commands: Vec<Command<'_>> = begins.chain(ends).collect();
        self.connection.command(&commands)?;
        let changes = commands.len() as u64;
        drop(commands);
        self.present.push_back(begun);
        Ok(changes)
    }
}

/// Measures the row.
pub fn measure(args: &RunArgs) -> Result<Value> {
    let mut row = Map::new();
    for (name, answers_after) in [
        ("none", None),
        ("fast", Some(Duration::ZERO)),
        ("slow", Some(SLOW)),
    ] {
        row.insert(name.into(), measure_window(args, name, answers_after)?);
    }
    row.insert("slow_answers_after_s".into(), json!(SLOW.as_secs_f64()));
    Ok(row.into())
}

fn measure_window(args: &RunArgs, name: &str, answers_after: Option<Duration>) -> Result<Value> {
    let rate = args.rate.unwrap_or(EVENTS_PER_S);
    let seconds = args.duration.unwrap_or(WINDOW_S);
    let directory = Directory::make(format_args!("webhook-{}", std::process::id()))?;
    let endpoint = answers_after.map(start_endpoint).transpose()?;
    let settings = match &endpoint {
        None => String::new(),
        Some((address, _)) => {
            let secret = directory.write(SECRET_FILE, "the secret of a webhook in a benchmark")?;
            format!(
                "[[webhook]]\nurl = \"http://{address}/\"\nprivate = true\nevents = [\"member_added\", \"member_removed\"]\n\
                 secret_file = \"{}\"\n",
                secret.display()
            )
        }
    };
    let mut place = Place::start(args, true, &settings)?;
    let open = open_all(
        place.address(),
        Format::Protobuf,
        (0..CLIENTS).map(|_| Vec::new()),
    )?;
    let mut clients: Vec<Client> = open
        .into_iter()
        .zip(0..)
        .map(|(connection, number)| Client {
            connection,
            number,
            begun: 0,
            present: VecDeque::new(),
        })
        .collect();
    // Half of the changes are joins.
    let count = (rate * STEP_S / 2.0).round().max(1.0) as u32;
    let probe = Probe::start(place.address())?;
    let before = Sample::of(&mut place.server)?;
    let (start, mut changes, mut pss_max) = (Instant::now(), 0, before.process.pss_bytes);
    for step in 0..(seconds / STEP_S) as u32 {
        let due = start + Duration::from_secs_f64(f64::from(step) * STEP_S);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let client = step as usize % clients.len();
        changes += clients[client].step(count)?;
        if step % 50 == 0 {
            pss_max = pss_max.max(place.server.sample()?.pss_bytes);
        }
    }
    let took_s = start.elapsed().as_secs_f64();
    let after = Sample::of(&mut place.server)?;
    let others = probe.finish()?.summary();
    let counts: Value = serde_json::from_str(&get(place.admin.addr(), "/api/v1/webhooks")?)
        .context("what the server says of its webhooks")?;
    let grown = pss_max.saturating_sub(before.process.pss_bytes);
    let cores = after.cores_since(&before);
    let told = endpoint.map(|(_, told)| told.json());
    report::say(&format!(
        "webhooks, {name}: {:.0} joins and leaves a second, {cores:.2} cores busy, PSS grew by {:.1} MiB at most; a message of another topic took {:.3} ms \
         (p99 {:.3} ms, max {:.3} ms); told {}",
        changes as f64 / took_s,
        grown as f64 / f64::from(1 << 20),
        others.mean_ms,
        others.p99_ms,
        others.max_ms,
        told.clone().unwrap_or_default()
    ));
    Ok(json!({
        "joins_and_leaves": changes,
        "took_s": took_s,
        "server_cores_busy": cores,
        "server_pss_grew_bytes": grown,
        "others_ms": others.json(),
        "told": told,
        "server_says": counts["webhooks"],
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_a_request_are_counted() {
        let told = Told::default();
        told.add(br#"{"events":[{"event":"resync"},{"event":"member_added"},{"event":"member_removed"},{"event":"resync_end"}]}"#);
        let counts = told.json();
        assert_eq!(
            (&counts["joins_and_leaves"], &counts["resyncs"]),
            (&json!(2), &json!(1))
        );
    }
}
