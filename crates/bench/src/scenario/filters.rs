//! `filters`: measures the cost of a publish with a thousand filters, with a million, and with filters that are chosen to be expensive.
//!
//! Each set of filters has its own server. All servers run at the same time, but in a round their windows follow one another, so that only
//! one server has load. Sets are compared by the processor time of a publish, with one shard. In a `hit`, each publish matches one filter
//! and is delivered to one of a thousand clients. In a `miss`, no filter matches, and the server finds this out only at the last level. So
//! a `miss` is the cost of matching without delivery. The large and the small set have equally many clients; in the small set some clients
//! have no filter.

mod clients;
mod set;

use std::time::Instant;

use anyhow::{Result, ensure};
use serde_json::{Map, Value, json};

use crate::measure::payload::Random;
use crate::measure::stats::median;
use crate::report;
use crate::rig::{RunArgs, Sample, Server, ServerKind, ServerOptions, pause};
use clients::{Clients, Message};
use set::{PER_CLIENT, Set};

/// Filters of the small set, the reference for the others.
const FEW: u32 = 1_000;
/// Default number of filters in the large set.
const MANY: u32 = 1_000_000;
/// Publishes in a window of a flat set. They take at least half a second of the server's time, since some times are measured only in
/// hundredths of a second.
const HITS: u32 = 200_000;
const MISSES: u32 = 500_000;
/// The deep sets: the number of levels, the number of publishes in a window, and the name. The number of publishes is smaller if each of
/// them is more expensive.
const DEEP: [(u32, u32, &str); 2] = [(8, 100_000, "deep_8"), (16, 10_000, "deep_16")];
/// Seconds after subscribing before memory is read.
const REST_S: f64 = 2.0;

/// A set of filters with its server.
struct Side {
    name: &'static str,
    set: Set,
    /// Publishes in a `miss` window.
    misses_each: u32,
    server: Server,
    clients: Clients,
    /// The cost of subscribing.
    opening: Value,
    hits: Vec<f64>,
    misses: Vec<f64>,
    windows: Vec<Value>,
}

/// Runs the scenario.
pub fn run(args: &RunArgs) -> Result<Value> {
    ensure!(args.rounds > 0, "at least one round");
    args.pin_tool()?;
    let many = args.filters.unwrap_or(MANY);
    let clients = args.connections.unwrap_or(many.div_ceil(PER_CLIENT).max(1));
    let flat = |filters: u32| Set::Flat {
        filters,
        clients: clients.max(1),
    };
    let mut sides = vec![
        Side::open(args, "few", flat(FEW), MISSES)?,
        Side::open(args, "many", flat(many), MISSES)?,
    ];
    for (levels, publishes, name) in DEEP {
        sides.push(Side::open(args, name, Set::Deep { levels }, publishes)?);
    }
    let mut random = Random::new(args.seed);
    for round in 1..=args.rounds {
        for side in &mut sides {
            if matches!(side.set, Set::Flat { .. }) {
                let hits = side.window("hit", |set| set.hit(&mut random))?;
                side.hits.push(hits);
            }
            let misses = side.window("miss", |set| set.miss(&mut random))?;
            side.misses.push(misses);
        }
        report::note(&format!("round {round} of {} is done", args.rounds));
    }
    Ok(result(args, &sides))
}

fn result(args: &RunArgs, sides: &[Side]) -> Value {
    let few = &sides[0];
    let base = (median(&few.hits), median(&few.misses));
    let mut sets = Map::new();
    for side in sides {
        let (hit, miss) = (median(&side.hits), median(&side.misses));
        let (hit_ratio, miss_ratio) = (hit / base.0, miss / base.1);
        let hits = if side.hits.is_empty() {
            String::new()
        } else {
            format!("hit {hit:.2} us a publish (x{hit_ratio:.2}), ")
        };
        report::say(&format!(
            "{}: {} filters, {} refused; {hits}miss {miss:.2} us a publish (x{miss_ratio:.2})",
            side.name, side.clients.grants.granted, side.clients.grants.refused
        ));
        // A value that was not measured is NaN, which becomes null in JSON.
        let value = json!({
            "offered": side.set.offered(),
            "granted": side.clients.grants.granted,
            "refused": side.clients.grants.refused,
            "clients": side.set.clients(),
            "opening": side.opening,
            "hit_cpu_us_median": hit,
            "hit_ratio": hit_ratio,
            "hit_user_us_median": median(&side.user_us("hit")),
            "miss_cpu_us_median": miss,
            "miss_ratio": miss_ratio,
            "miss_user_us_median": median(&side.user_us("miss")),
            "windows": side.windows,
        });
        sets.insert(side.name.into(), value);
    }
    let all_granted = sides[..2]
        .iter()
        .all(|side| side.clients.grants.refused == 0);
    let mut windows = sides.iter().flat_map(|side| &side.windows);
    json!({
        "clean": all_granted && windows.all(|window| window["clean"] == true),
        "rounds": args.rounds,
        "shards": args.shards.unwrap_or(1),
        "keep": args.keep.unwrap_or(0),
        "sets": sets,
    })
}

impl Side {
    /// Starts the server and subscribes.
    fn open(args: &RunArgs, name: &'static str, set: Set, misses_each: u32) -> Result<Side> {
        let keep = args.keep.unwrap_or(0);
        let setting = ServerOptions::new(ServerKind::Crore, args.shards.unwrap_or(1), keep);
        let settings = format!(
            "[limits]\naccepts_per_s = {}\ntopics_per_connection = 1000\nfilters_per_shard = {}\n\n\
             [heartbeat]\ninterval_s = 0\n\n[[rule]]\nmatch = \"#\"\nlog_messages = {}\n",
            args.accepts(),
            set.offered(),
            keep
        );
        let mut server = Server::start_with(args, setting, &settings, None)?;
        let deal = set.deal();
        // The same clients first connect without filters, so that the cost of their connections can be subtracted.
        let bare = Sample::of(&mut server)?;
        let idle = Clients::open(server.addresses[0], set.clients(), |_| Vec::new())?;
        pause(REST_S);
        let before = Sample::of(&mut server)?;
        drop(idle);
        pause(REST_S);
        let begin = (Instant::now(), server.sample()?.cpu_s);
        let clients = Clients::open(server.addresses[0], set.clients(), deal)?;
        let took_s = begin.0.elapsed().as_secs_f64();
        let cpu_s = server.sample()?.cpu_s - begin.1;
        pause(REST_S);
        let after = Sample::of(&mut server)?;
        let growth = after.process.pss_bytes as f64 - before.process.pss_bytes as f64;
        let bytes_per_filter = growth / f64::from(clients.grants.granted.max(1));
        report::note(&format!(
            "{name}: {} filters of {} clients subscribed in {took_s:.1} s ({cpu_s:.1} s of the server), {bytes_per_filter:.0} B each",
            clients.grants.granted,
            set.clients()
        ));
        let opening = json!({
            "subscribed_s": took_s,
            "server_cpu_s": cpu_s,
            "pss_bytes_per_filter": bytes_per_filter,
            "empty": bare.json(),
            "connected": before.json(),
            "subscribed": after.json(),
        });
        Ok(Side {
            name,
            set,
            misses_each,
            server,
            clients,
            opening,
            hits: Vec::new(),
            misses: Vec::new(),
            windows: Vec::new(),
        })
    }

    /// The server's processor time in user space for a publish, in microseconds, for every window of this kind.
    fn user_us(&self, kind: &str) -> Vec<f64> {
        let of_kind = self.windows.iter().filter(|window| window["kind"] == kind);
        let user = of_kind.filter_map(|window| window["user_us"].as_f64());
        user.collect()
    }

    /// Publishes the messages of a window. Returns the server's processor time of a publish in microseconds.
    fn window(&mut self, kind: &str, mut draw: impl FnMut(&Set) -> Message) -> Result<f64> {
        let count = if kind == "hit" {
            HITS
        } else {
            self.misses_each
        };
        let messages: Vec<Message> = (0..count).map(|_| draw(&self.set)).collect();
        let (begin, before) = (Instant::now(), self.server.sample()?);
        let tally = self.clients.publish(&messages)?;
        let (took_s, after) = (begin.elapsed().as_secs_f64(), self.server.sample()?);
        let expected = if kind == "hit" { messages.len() } else { 0 };
        let clean = tally.arrived == expected && tally.doubled == 0 && tally.misdelivered == 0;
        let us_per_publish = |seconds: f64| seconds * 1e6 / f64::from(count);
        let cpu_us = us_per_publish(after.cpu_s - before.cpu_s);
        self.windows.push(json!({
            "kind": kind,
            "clean": clean,
            "published": messages.len(),
            "arrived": tally.arrived,
            "doubled": tally.doubled,
            "misdelivered": tally.misdelivered,
            "took_s": took_s,
            "server_cpu_us_per_publish": cpu_us,
            "user_us": us_per_publish(after.user_s - before.user_s),
            "system_us": us_per_publish(after.system_s - before.system_s),
            "pss_bytes": after.pss_bytes,
        }));
        Ok(cpu_us)
    }
}
