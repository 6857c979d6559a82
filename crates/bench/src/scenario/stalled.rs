//! `stalled`: the effect of ten thousand subscribers that stopped reading on a thousand that read, and on the server's memory.
//!
//! Three arrangements in turn within each round: none stalled, the stalled on the topic of the healthy, and the stalled on
//! topics of their own. The publishers are the same in all of them. The stalled are load tools, half WebSocket and half
//! event streams, that are stopped by a signal once they are subscribed; then large messages fill sockets and
//! outboxes. That comes to an end only where the kernel's buffers are small: with the usual `net.ipv4.tcp_wmem` it takes up
//! to 4 MB for each socket before the server sees that the client does not read.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::measure::sample::Process;
use crate::measure::stats::median;
use crate::report;
use crate::rig::{Kind, Publisher, RunArgs, Server, Setting, Subscriber, is_clean, number, pause};

/// Subscribers that read.
const HEALTHY: u32 = 1_000;
/// Their topic.
const TOPIC: &str = "news";
/// Subscribers that do not read, unless told otherwise.
const STALLED: u32 = 10_000;
/// Messages a second to the healthy, unless told otherwise, and their bytes.
const RATE: f64 = 10.0;
const SIZE_BYTES: usize = 512;
/// Messages a second to the topics that the stalled have for themselves, with subscribers or without.
const OTHER_RATE: f64 = 500.0;
/// Messages that fill a socket and its outbox, their bytes, and how many a second the healthy get meanwhile.
const FILL: u32 = 20;
const FILL_BYTES: usize = 4_000;
const FILL_RATE: f64 = 8.0;
/// The same where each of the stalled has a topic of its own, all together.
const OWN_FILL_RATE: f64 = 20_000.0;
/// Seconds of a window, unless told otherwise.
const WINDOW_S: f64 = 10.0;
/// `limits.outbox_bytes`.
const OUTBOX_BYTES: u64 = 16 << 10;
/// `limits.log_bytes`.
const LOG_BYTES: u64 = 64 << 20;
/// Rows of a connection and its topic, with their spare room.
const ROW_BYTES: u64 = 4_000;
/// Turns under way and what one publish touches, whatever the number of subscribers.
const FIXED_BYTES: u64 = 24 << 20;
/// The latency with the stalled may be so many times that without.
const RATIO_MAX: f64 = 2.0;

/// Where the stalled are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Nowhere,
    Same,
    Own,
}

impl Place {
    const ALL: [Place; 3] = [Place::Nowhere, Place::Same, Place::Own];

    fn name(self) -> &'static str {
        match self {
            Place::Nowhere => "none_stalled",
            Place::Same => "same_topic",
            Place::Own => "own_topics",
        }
    }
}

/// The most that the server's memory may grow by: an outbox is a vector that grows by doubling.
fn bound_bytes(stalled: u32) -> u64 {
    u64::from(stalled) * (2 * OUTBOX_BYTES + ROW_BYTES) + LOG_BYTES + FIXED_BYTES
}

/// Runs the scenario.
pub fn run(args: &RunArgs) -> Result<Value> {
    ensure!(args.rounds > 0, "at least one round");
    let stalled = args.connections.unwrap_or(STALLED);
    let mut rows: [Vec<Value>; 3] = Default::default();
    for round in 1..=args.rounds {
        for (place, rows) in Place::ALL.into_iter().zip(&mut rows) {
            let row = measure(args, place, stalled)?;
            report::note(&format!(
                "round {round}, {}: p99 {:.3} ms, grown by {:.1} MB",
                place.name(),
                number(&row, "/received/latency_ms/p99"),
                number(&row, "/grown_rss_bytes") / 1e6
            ));
            rows.push(row);
        }
    }
    Ok(result(args, stalled, &rows))
}

fn result(args: &RunArgs, stalled: u32, rows: &[Vec<Value>; 3]) -> Value {
    let medians = |pointer: &str| -> Vec<f64> {
        let of = |rows: &Vec<Value>| {
            let values: Vec<f64> = rows.iter().map(|row| number(row, pointer)).collect();
            median(&values)
        };
        rows.iter().map(of).collect()
    };
    let (p99, mean) = (
        medians("/received/latency_ms/p99"),
        medians("/received/latency_ms/mean"),
    );
    let most = |rows: &[Value]| {
        let grown = rows.iter().map(|row| number(row, "/grown_rss_bytes"));
        grown.fold(0.0, f64::max)
    };
    let bound = bound_bytes(stalled);
    let held = rows.iter().all(|rows| most(rows) <= bound as f64);
    let lossless = rows.iter().flatten().all(|row| row["clean"] == true);
    let ratios: Vec<f64> = p99.iter().map(|with| with / p99[0]).collect();
    let mut places = serde_json::Map::new();
    for (index, place) in Place::ALL.into_iter().enumerate() {
        let value = json!({
            "latency_p99_ms_median": p99[index],
            "latency_mean_ms_median": mean[index],
            "p99_ratio": ratios[index],
            "grown_rss_bytes_max": most(&rows[index]),
            "rounds": rows[index],
        });
        report::say(&format!(
            "{}: p99 {:.3} ms (x{:.2}), mean {:.3} ms; the server grew by {:.1} MB at most",
            place.name(),
            p99[index],
            ratios[index],
            mean[index],
            most(&rows[index]) / 1e6
        ));
        places.insert(place.name().into(), value);
    }
    report::say(&format!(
        "bound of the growth: {:.1} MB",
        bound as f64 / 1e6
    ));
    json!({
        "clean": lossless && held,
        "healthy": HEALTHY,
        "stalled": stalled,
        "shards": args.shards.unwrap_or(2),
        "rounds": args.rounds,
        "window_s": args.duration.unwrap_or(WINDOW_S),
        "rate_per_s": args.rate.unwrap_or(RATE),
        "other_rate_per_s": OTHER_RATE,
        "bound_bytes": bound,
        "bound": "stalled x (2 x limits.outbox_bytes + 4,000) + limits.log_bytes + 24 MiB",
        "outbox_bytes": OUTBOX_BYTES,
        "log_bytes": LOG_BYTES,
        "bound_held": held,
        "p99_ratio_max": RATIO_MAX,
        "p99_within": ratios.iter().all(|ratio| *ratio <= RATIO_MAX),
        "places": places,
    })
}

/// Topics of the stalled alone.
fn own_topics(first: u32, last: u32) -> String {
    format!("own/{{{first}..{last}}}")
}

/// One arrangement with a server of its own.
fn measure(args: &RunArgs, place: Place, stalled: u32) -> Result<Value> {
    let setting = Setting::new(Kind::Crore, args.shards.unwrap_or(2), 10);
    // By default the server resets a connection that takes nothing for so long; the stalled must stay connected.
    let settings = format!(
        "[limits]\naccepts_per_s = {}\noutbox_bytes = {OUTBOX_BYTES}\nlog_bytes = {LOG_BYTES}\n\n\
         [timeouts]\nbody_s = 600\n\n[heartbeat]\ninterval_s = 0\n\n\
         [[rule]]\nmatch = \"#\"\nlog_messages = 10\nslow = \"skip\"\n",
        args.accepts()
    );
    let mut server = Server::start_with(args, setting, &settings, None)?;
    let mut healthy = Subscriber::start(args, &server, HEALTHY, TOPIC, &["--protocol", "ws"])?;
    healthy.open()?;
    pause(1.0);
    let before = server.sample()?;

    let own = own_topics(1, stalled);
    let crowd = stall(args, &server, place, stalled)?;
    let open = server.sample()?;
    fill(args, &server, place, stalled, &own)?;
    let filled = server.sample()?;

    let other = OTHER_RATE.to_string();
    let others = Publisher::start(args, &server, &own, SIZE_BYTES, &["--rate", &other])?;
    let rate = args.rate.unwrap_or(RATE).to_string();
    let publisher = Publisher::start(args, &server, TOPIC, SIZE_BYTES, &["--rate", &rate])?;
    pause(1.0);
    healthy.ask("restart")?;
    let (begin, cpu_s) = (std::time::Instant::now(), server.sample()?.cpu_s);
    pause(args.duration.unwrap_or(WINDOW_S));
    let received = healthy.ask("report")?;
    let after = server.sample()?;
    let busy = (after.cpu_s - cpu_s) / begin.elapsed().as_secs_f64();
    let (published, others) = (publisher.stop()?, others.stop()?);
    drop(crowd);

    let most = |of: fn(&Process) -> u64| [open, filled, after].iter().map(of).max().unwrap_or(0);
    let grown = |of: fn(&Process) -> u64| most(of).saturating_sub(of(&before));
    Ok(json!({
        "clean": is_clean(&received) && received["connections"]["closed"] == 0,
        "grown_rss_bytes": grown(|process| process.rss_bytes),
        "grown_pss_bytes": grown(|process| process.pss_bytes),
        "server_cores_busy": busy,
        "before": before.json(),
        "open": open.json(),
        "filled": filled.json(),
        "after": after.json(),
        "received": received,
        "published": published,
        "published_to_others": others,
    }))
}

/// The subscribers that stop reading, once they are subscribed.
fn stall(args: &RunArgs, server: &Server, place: Place, stalled: u32) -> Result<Vec<Subscriber>> {
    let topics = match place {
        Place::Nowhere => return Ok(Vec::new()),
        Place::Same => [TOPIC.to_string(), TOPIC.to_string()],
        Place::Own => [
            own_topics(1, stalled / 2),
            own_topics(stalled / 2 + 1, stalled),
        ],
    };
    ensure!(stalled >= 2, "at least two that stall");
    let mut crowd = Vec::new();
    for (protocol, topics) in ["ws", "sse"].into_iter().zip(topics) {
        let rest = ["--protocol", protocol, "--receive-buffer", "2048"];
        let mut tool = Subscriber::start(args, server, stalled / 2, &topics, &rest)?;
        tool.open()?;
        pause(0.5);
        tool.stop_reading();
        crowd.push(tool);
    }
    Ok(crowd)
}

/// Publishes what fills the sockets and outboxes of the stalled; the same work is done when there are none.
fn fill(args: &RunArgs, server: &Server, place: Place, stalled: u32, own: &str) -> Result<()> {
    let (topics, count, rate) = match place {
        Place::Own => (own, FILL * stalled, OWN_FILL_RATE),
        _ => (TOPIC, FILL, FILL_RATE),
    };
    let (count, rate) = (count.to_string(), rate.to_string());
    let how = ["--cycle", "--messages", &count, "--rate", &rate];
    Publisher::start(args, server, topics, FILL_BYTES, &how)?.result()?;
    pause(1.0);
    Ok(())
}
