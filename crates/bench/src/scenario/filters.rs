//! `filters`: measures the cost of a publish with a thousand filters, with a million, and with filters that are chosen to be expensive.
//!
//! Each set of filters has its own server. All servers run at the same time, but in a round their windows follow one another, so that only
//! one server has load. Sets are compared by the processor time of a publish, with one shard. In a `hit` window each publish matches one
//! filter and is delivered to one of a thousand clients. In a `miss` window no filter matches, and the server finds this out only at the last
//! level. So a `miss` is the cost of matching without delivery. The large and the small set have equally many clients; in the small set
//! some clients have no filter.

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
use set::{FILTERS_PER_CLIENT, Set};

/// The number of filters in the small set, which is the reference for the others.
const FEW_FILTERS: u32 = 1_000;
/// Default number of filters in the large set.
const MANY_FILTERS: u32 = 1_000_000;
/// The number of publishes in a window of a flat set. They take at least half a second of the server's time, since some times are measured only in
/// hundredths of a second.
const HITS_PER_WINDOW: u32 = 200_000;
const MISSES_PER_WINDOW: u32 = 500_000;
/// The deep sets: the number of levels, the number of publishes in a window, and the name. The number of publishes is smaller if each of
/// them is more expensive.
const DEEP_SETS: [(u32, u32, &str); 2] = [(8, 100_000, "deep_8"), (16, 10_000, "deep_16")];
/// Seconds after subscribing before memory is read.
const SETTLE_S: f64 = 2.0;

/// A set of filters with its server.
struct MeasuredSet {
    name: &'static str,
    set: Set,
    /// The number of publishes in a `miss` window.
    misses_per_window: u32,
    server: Server,
    clients: Clients,
    /// The cost of subscribing.
    opening: Value,
    hit_us: Vec<f64>,
    miss_us: Vec<f64>,
    windows: Vec<Value>,
}

/// Runs the scenario.
pub fn run(args: &RunArgs) -> Result<Value> {
    ensure!(args.rounds > 0, "at least one round");
    args.pin_tool()?;
    let filter_count = args.filters.unwrap_or(MANY_FILTERS);
    let clients = args
        .connections
        .unwrap_or(filter_count.div_ceil(FILTERS_PER_CLIENT).max(1));
    let flat = |filters: u32| Set::Flat {
        filters,
        clients: clients.max(1),
    };
    let mut measured_sets = vec![
        MeasuredSet::open(args, "few", flat(FEW_FILTERS), MISSES_PER_WINDOW)?,
        MeasuredSet::open(args, "many", flat(filter_count), MISSES_PER_WINDOW)?,
    ];
    for (levels, publishes, name) in DEEP_SETS {
        measured_sets.push(MeasuredSet::open(
            args,
            name,
            Set::Deep { levels },
            publishes,
        )?);
    }
    let mut random = Random::new(args.seed);
    for round in 1..=args.rounds {
        for measured_set in &mut measured_sets {
            if matches!(measured_set.set, Set::Flat { .. }) {
                let hits =
                    measured_set.run_window("hit", |set| set.matching_message(&mut random))?;
                measured_set.hit_us.push(hits);
            }
            let misses =
                measured_set.run_window("miss", |set| set.unmatched_message(&mut random))?;
            measured_set.miss_us.push(misses);
        }
        report::note(&format!("round {round} of {} is done", args.rounds));
    }
    Ok(result_json(args, &measured_sets))
}

fn result_json(args: &RunArgs, measured_sets: &[MeasuredSet]) -> Value {
    let few_set = &measured_sets[0];
    let reference_us = (median(&few_set.hit_us), median(&few_set.miss_us));
    let mut sets = Map::new();
    for measured_set in measured_sets {
        let (hit, miss) = (median(&measured_set.hit_us), median(&measured_set.miss_us));
        let (hit_ratio, miss_ratio) = (hit / reference_us.0, miss / reference_us.1);
        let hits = if measured_set.hit_us.is_empty() {
            String::new()
        } else {
            format!("hit {hit:.2} us a publish (x{hit_ratio:.2}), ")
        };
        report::say(&format!(
            "{}: {} filters, {} refused; {hits}miss {miss:.2} us a publish (x{miss_ratio:.2})",
            measured_set.name,
            measured_set.clients.grants.granted,
            measured_set.clients.grants.refused
        ));
        // A value that was not measured is NaN, which becomes null in JSON.
        let value = json!({
            "offered": measured_set.set.filter_count(),
            "granted": measured_set.clients.grants.granted,
            "refused": measured_set.clients.grants.refused,
            "clients": measured_set.set.client_count(),
            "opening": measured_set.opening,
            "hit_cpu_us_median": hit,
            "hit_ratio": hit_ratio,
            "hit_user_us_median": median(&measured_set.user_us("hit")),
            "miss_cpu_us_median": miss,
            "miss_ratio": miss_ratio,
            "miss_user_us_median": median(&measured_set.user_us("miss")),
            "windows": measured_set.windows,
        });
        sets.insert(measured_set.name.into(), value);
    }
    let are_all_granted = measured_sets[..2]
        .iter()
        .all(|measured_set| measured_set.clients.grants.refused == 0);
    let mut windows = measured_sets
        .iter()
        .flat_map(|measured_set| &measured_set.windows);
    json!({
        "clean": are_all_granted && windows.all(|window| window["clean"] == true),
        "rounds": args.rounds,
        "shards": args.shards.unwrap_or(1),
        "keep": args.keep.unwrap_or(0),
        "sets": sets,
    })
}

impl MeasuredSet {
    /// Starts the server and subscribes.
    fn open(
        args: &RunArgs,
        name: &'static str,
        set: Set,
        misses_per_window: u32,
    ) -> Result<MeasuredSet> {
        let keep = args.keep.unwrap_or(0);
        let options = ServerOptions::new(ServerKind::Crore, args.shards.unwrap_or(1), keep);
        let settings = format!(
            "[limits]\naccepts_per_s = {}\ntopics_per_connection = 1000\nfilters_per_shard = {}\n\n\
             [heartbeat]\ninterval_s = 0\n\n[[rule]]\nmatch = \"#\"\nlog_messages = {}\n",
            args.accepts(),
            set.filter_count(),
            keep
        );
        let mut server = Server::start_with(args, options, &settings, None)?;
        let filters_of = set.filters_of();
        // The same clients first connect without filters, so that the cost of their connections can be subtracted.
        let empty_sample = Sample::of(&mut server)?;
        let idle_clients = Clients::open(server.addresses[0], set.client_count(), |_| Vec::new())?;
        pause(SETTLE_S);
        let before_sample = Sample::of(&mut server)?;
        drop(idle_clients);
        pause(SETTLE_S);
        let (start, cpu_before_s) = (Instant::now(), server.sample()?.cpu_s);
        let clients = Clients::open(server.addresses[0], set.client_count(), filters_of)?;
        let elapsed_s = start.elapsed().as_secs_f64();
        let cpu_s = server.sample()?.cpu_s - cpu_before_s;
        pause(SETTLE_S);
        let after_sample = Sample::of(&mut server)?;
        let growth = after_sample.process.pss_bytes as f64 - before_sample.process.pss_bytes as f64;
        let bytes_per_filter = growth / f64::from(clients.grants.granted.max(1));
        report::note(&format!(
            "{name}: {} filters of {} clients subscribed in {elapsed_s:.1} s ({cpu_s:.1} s of the server), {bytes_per_filter:.0} B each",
            clients.grants.granted,
            set.client_count()
        ));
        let opening = json!({
            "subscribed_s": elapsed_s,
            "server_cpu_s": cpu_s,
            "pss_bytes_per_filter": bytes_per_filter,
            "empty": empty_sample.json(),
            "connected": before_sample.json(),
            "subscribed": after_sample.json(),
        });
        Ok(MeasuredSet {
            name,
            set,
            misses_per_window,
            server,
            clients,
            opening,
            hit_us: Vec::new(),
            miss_us: Vec::new(),
            windows: Vec::new(),
        })
    }

    /// The server's processor time in user space for a publish, in microseconds, for every window of this kind.
    fn user_us(&self, kind: &str) -> Vec<f64> {
        let windows_of_kind = self.windows.iter().filter(|window| window["kind"] == kind);
        let user_times = windows_of_kind.filter_map(|window| window["user_us"].as_f64());
        user_times.collect()
    }

    /// Publishes the messages of a window. Returns the server's processor time of a publish in microseconds.
    fn run_window(
        &mut self,
        kind: &str,
        mut draw_message: impl FnMut(&Set) -> Message,
    ) -> Result<f64> {
        let count = if kind == "hit" {
            HITS_PER_WINDOW
        } else {
            self.misses_per_window
        };
        let messages: Vec<Message> = (0..count).map(|_| draw_message(&self.set)).collect();
        let (start, before_sample) = (Instant::now(), self.server.sample()?);
        let tally = self.clients.publish(&messages)?;
        let (elapsed_s, after_sample) = (start.elapsed().as_secs_f64(), self.server.sample()?);
        let expected = if kind == "hit" { messages.len() } else { 0 };
        let is_clean = tally.arrived == expected && tally.doubled == 0 && tally.misdelivered == 0;
        let us_per_publish = |seconds: f64| seconds * 1e6 / f64::from(count);
        let cpu_us = us_per_publish(after_sample.cpu_s - before_sample.cpu_s);
        self.windows.push(json!({
            "kind": kind,
            "clean": is_clean,
            "published": messages.len(),
            "arrived": tally.arrived,
            "doubled": tally.doubled,
            "misdelivered": tally.misdelivered,
            "took_s": elapsed_s,
            "server_cpu_us_per_publish": cpu_us,
            "user_us": us_per_publish(after_sample.user_s - before_sample.user_s),
            "system_us": us_per_publish(after_sample.system_s - before_sample.system_s),
            "pss_bytes": after_sample.pss_bytes,
        }));
        Ok(cpu_us)
    }
}
