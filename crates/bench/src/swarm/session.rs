//! A run: a server in the ground of a swarm, the clients, the publisher, and a record of every second.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::alarms::RETRIES;
use super::args::{Protocol, SwarmArgs};
use super::counts::Counts;
use super::crowd::Swarm;
use super::ground::{self, Ground, SERVER};
use super::packet::End;
use super::plan::Plan;
use super::row::Row;
use super::wire::Weather;
use crate::measure::pattern::Pattern;
use crate::publish::{self, Feed, PublishArgs};
use crate::rig::{Kind, Moment, Server, Setting, pause, topics};
use crate::{report, sys};

/// Connections of a shard: a descriptor table may hold only 20,000, and a server keeps the last ninth of its places from an address that
/// has all others.
const PER_SHARD: u32 = 17_300;
/// Topics that a Crore's shard takes unless it is told otherwise.
const TOPICS_PER_SHARD: u32 = 2_000_000;
/// Seconds without a message after which nothing more is expected.
const QUIET_S: u32 = 2;
/// The share of segments that the server may send again. The kernel's count has the publisher's connection, too, where a busy machine
/// makes it send a few again; more is a storm, which the server's latency is not to blame for.
const AGAIN: f64 = 0.005;
/// Less than this is no second that could be recorded.
const SECOND_LEAST_S: f64 = 0.3;
/// The same where packets are lost on purpose: one that is lost six times in a row comes after 12.6 s.
const QUIET_FOUL_S: u32 = 16;
/// Longest time in seconds for the last messages and the last clients: twice all retries of a segment.
const REST_S: u32 = 2 << RETRIES;

/// A run that is under way.
pub struct Session {
    /// The server, if the run has started it.
    pub server: Option<Server>,
    /// The clients.
    pub swarm: Swarm,
    feed: Option<Feed>,
    publish: PublishArgs,
    published: Arc<[AtomicU32]>,
    quiet: bool,
    begun_ns: u64,
    total: Counts,
    seconds: Vec<Value>,
    last: Last,
    is_fair: bool,
}

/// The counters at the end of the last second.
#[derive(Clone, Copy, Default)]
struct Last {
    at_ns: u64,
    server_s: f64,
    tool_ns: u64,
}

/// The end of a run.
pub struct Outcome {
    /// All that was counted.
    pub counts: Counts,
    /// Everything that makes the run fail.
    pub faults: Vec<(&'static str, u64)>,
    /// For the result.
    pub json: Value,
}

impl Session {
    /// Takes this process to a ground of its own and starts the server there; no client connects yet.
    pub fn begin(args: &SwarmArgs) -> Result<Session> {
        let mut ground = Ground::make(args.threads, args.connections)?;
        let address = SocketAddr::from((SERVER, args.server_port));
        let server = match &args.server_command {
            Some(command) => Server::start_by(command, address)?,
            None => crore(args, address)?,
        };
        Session::on(args, &mut ground, Some(server))
    }

    /// The same on a ground where a server listens already.
    pub fn on(args: &SwarmArgs, ground: &mut Ground, server: Option<Server>) -> Result<Session> {
        let pattern = args.topics.clone();
        let topics = Pattern::parse(&pattern.unwrap_or_else(|| topics(args.connections)))?;
        ensure!(
            topics.count() == args.connections && args.connections > 0,
            "--topics names {} topics for {} clients: each has one",
            topics.count(),
            args.connections
        );
        let published = publish::sequences(args.connections);
        let swarm = Swarm::start(
            ground,
            Plan {
                protocol: args.protocol,
                server: End {
                    address: SERVER.into(),
                    port: args.server_port,
                },
                topics,
                target: args.target.clone(),
                size: args.size,
                slow_share: args.slow,
                connect_rate: args.connect_rate,
                weather: Weather {
                    loss: args.loss,
                    delay_ns: (args.delay * 1e6) as u64,
                },
                close_within_ns: (args.close_within * 1e9) as u64,
                published: published.clone(),
            },
        )?;
        Ok(Session {
            server,
            swarm,
            feed: None,
            publish: args.publish(),
            published,
            quiet: args.quiet,
            begun_ns: sys::now_ns(),
            total: Counts::default(),
            seconds: Vec::new(),
            last: Last {
                at_ns: sys::now_ns(),
                server_s: 0.0,
                tool_ns: sys::process_cpu_ns(),
            },
            is_fair: args.loss == 0.0 && args.delay == 0.0,
        })
    }

    /// A sample of the server and the kernel, where the run has started the server.
    pub fn moment(&mut self) -> Result<Option<Moment>> {
        self.server.as_mut().map(Moment::of).transpose()
    }

    /// Opens all connections and returns how long it took, in seconds. The time ends with an interrupt, too.
    pub fn open(&mut self) -> Result<f64> {
        let begin_ns = sys::now_ns();
        self.swarm.open();
        let mut told_ns = begin_ns;
        while !self.swarm.is_settled() && !sys::interrupted() {
            pause(0.01);
            if sys::now_ns() - told_ns >= 1_000_000_000 {
                told_ns = sys::now_ns();
                self.second()?;
            }
        }
        let seconds = (sys::now_ns() - begin_ns) as f64 / 1e9;
        self.second()?;
        Ok(seconds)
    }

    /// Has the Crore that the run has started read its settings again, which are others in each odd turn.
    pub fn reload(&self, args: &SwarmArgs, turn: usize) -> Result<()> {
        let server = self.server.as_ref();
        let server = server.context("no server was started here")?;
        server.reload(&settings(args, turn))
    }

    /// Publishes at `rate` from now on.
    pub fn publish(&mut self, rate: f64) -> Result<()> {
        match &self.feed {
            Some(feed) => feed.set_rate(rate),
            None => {
                let feed = Feed::start(&self.publish, rate, self.published.clone())?;
                self.feed = Some(feed);
            }
        }
        Ok(())
    }

    /// The longest that a message was late at the present rate, in milliseconds.
    pub fn late_ms(&self) -> f64 {
        self.feed.as_ref().map_or(0.0, Feed::late_ms)
    }

    /// Lets `seconds` go by, and returns their counts.
    pub fn window(&mut self, seconds: f64) -> Result<Counts> {
        // The counters until now belong to no window.
        self.second()?;
        let mut sum = Counts::default();
        let mut left = seconds;
        while left > 0.0 && !sys::interrupted() {
            pause(left.min(1.0));
            left -= 1.0;
            sum.merge(&self.second()?);
        }
        Ok(sum)
    }

    /// Records the counts since the last record.
    fn second(&mut self) -> Result<Counts> {
        let counts = self.swarm.take();
        self.total.merge(&counts);
        let now = Last {
            at_ns: sys::now_ns(),
            server_s: self.server.as_mut().map_or(Ok(0.0), Server::cpu_s)?,
            tool_ns: sys::process_cpu_ns(),
        };
        let passed_s = (now.at_ns - self.last.at_ns) as f64 / 1e9;
        if passed_s < SECOND_LEAST_S {
            return Ok(counts);
        }
        let server = (now.server_s - self.last.server_s) / passed_s;
        let tool = (now.tool_ns - self.last.tool_ns) as f64 / 1e9 / passed_s;
        self.last = now;
        let (latency, life) = (counts.tally.latency.summary(), &counts.tally.life);
        let live = self.swarm.live();
        self.seconds.push(json!({
            "at_s": (now.at_ns - self.begun_ns) as f64 / 1e9,
            "live": live,
            "opened_per_s": life.opened as f64 / passed_s,
            "messages_per_s": counts.tally.messages as f64 / passed_s,
            "mean_ms": latency.mean_ms, "p50_ms": latency.p50_ms, "p99_ms": latency.p99_ms, "max_ms": latency.max_ms,
            "server_cores": server, "tool_cores": tool,
        }));
        if !self.quiet {
            let total = &self.total;
            report::note(&format!(
                "{:>5.0} s  open {live}/{} +{:.0}/s  messages {:.0}/s  ms p50 {:.2} p99 {:.2} max {:.2}  \
                 cores {server:.2}+{tool:.2}  lost {} doubled {} failed {} sent again {}",
                (now.at_ns - self.begun_ns) as f64 / 1e9,
                self.swarm.connections(),
                life.opened as f64 / passed_s,
                counts.tally.messages as f64 / passed_s,
                latency.p50_ms,
                latency.p99_ms,
                latency.max_ms,
                total.tally.lost,
                total.tally.doubled,
                total.tally.life.failed,
                total.retransmitted,
            ));
        }
        if self.feed.as_ref().is_some_and(Feed::has_ended) {
            // Why it ended is its result.
            let ended = self.feed.take().map(Feed::stop).transpose()?;
            bail!("the publisher ended: {ended:?}");
        }
        Ok(counts)
    }

    /// Ends the publishing, waits until the clients are back and the last messages have come, and compares.
    pub fn finish(mut self) -> Result<Outcome> {
        self.swarm.drop_per_s(0.0);
        let published = self.feed.take().map(Feed::stop).transpose()?;
        let (mut quiet, mut waited) = (0, 0);
        let enough = if self.is_fair { QUIET_S } else { QUIET_FOUL_S };
        while waited < REST_S && quiet < enough {
            pause(1.0);
            waited += 1;
            let counts = self.second()?;
            let rests = counts.tally.messages == 0 && self.swarm.is_settled();
            quiet = if rests { quiet + 1 } else { 0 };
        }
        let away = self.swarm.connections() - self.swarm.live() - self.swarm.given_up();
        let sides = self.swarm.sides();
        // The devices go with the workers.
        let without_room = ground::without_room()?;
        let rest = self.swarm.stop()?;
        let mut total = std::mem::take(&mut self.total);
        total.merge(&rest);
        let sent_again = ground::sent_again()?;
        let is_storm = self.is_fair && sent_again as f64 > AGAIN * total.traffic.received as f64;
        let mut faults = total.faults();
        let published_json = published.unwrap_or_default();
        let count = |name: &str| published_json[name].as_u64().unwrap_or(0);
        let more = [
            ("connections not open at the end", away.into()),
            ("segments that the tool had no room for", without_room),
            (
                "segments that the server sent again",
                if is_storm { sent_again } else { 0 },
            ),
            ("messages that the server refused", count("refused")),
            (
                "messages that the server did not answer",
                count("unanswered"),
            ),
        ];
        faults.extend(more.into_iter().filter(|(_, count)| *count > 0));
        let named = faults
            .iter()
            .map(|(name, count)| ((*name).to_string(), json!(count)));
        Ok(Outcome {
            json: json!({
                "received": total.json(),
                "published": published_json,
                "server_segments_sent_again": sent_again,
                "server_segments_without_room": without_room,
                "not_open_at_the_end": away,
                "bytes_of_a_client": size_of::<Row>(),
                "clients_with_more_at_once_max": sides,
                "faults": named.collect::<serde_json::Map<_, _>>(),
                "seconds": self.seconds,
            }),
            counts: total,
            faults,
        })
    }
}

impl Outcome {
    /// The faults in words.
    pub fn verdict(&self) -> String {
        if self.faults.is_empty() {
            return "no fault".into();
        }
        let each = self.faults.iter();
        let mut lines: Vec<String> = each
            .map(|(name, count)| format!("FAULT: {count} {name}"))
            .collect();
        let life = &self.counts.tally.life;
        let reasons = [&self.counts.first_violation, &life.first_failure];
        lines.extend(
            reasons
                .into_iter()
                .flatten()
                .map(|why| format!("first: {why}")),
        );
        lines.join("\n")
    }
}

/// A Crore with room for all clients.
fn crore(args: &SwarmArgs, address: SocketAddr) -> Result<Server> {
    let setting = Setting::new(Kind::Crore, args.shards(), args.keep);
    let binary = args.server_binary.as_deref();
    Server::start_at(binary, setting, &settings(args, 0), address)
}

/// Its settings; in each odd turn there are more rules, and others have other numbers.
fn settings(args: &SwarmArgs, turn: usize) -> String {
    let more = if turn % 2 == 1 {
        "[[rule]]\nmatch = \"unused/#\"\nkeep = \"latest\"\n\n"
    } else {
        ""
    };
    format!(
        "[limits]\naccepts_per_s = 1000000\nconnections_max = {}\ntopics_per_shard = {}\n\n\
         [heartbeat]\ninterval_s = {}\n\n{more}[[rule]]\nmatch = \"#\"\nlog_messages = {}\n",
        u32::MAX - 1,
        args.connections.max(TOPICS_PER_SHARD),
        args.heartbeat,
        args.keep,
    )
}

impl SwarmArgs {
    /// Messages a second.
    pub fn rate(&self) -> f64 {
        self.rate.unwrap_or(f64::from(self.connections) / 60.0)
    }

    /// Shards of Crore.
    pub fn shards(&self) -> u32 {
        let needed = self.connections.div_ceil(PER_SHARD).max(2);
        self.shards.unwrap_or(needed)
    }

    /// The flags of the publisher.
    fn publish(&self) -> PublishArgs {
        let topics_all = self.topics.clone();
        let topics = topics_all.unwrap_or_else(|| topics(self.connections));
        let server = format!("{SERVER}:{}", self.server_port);
        let mut args = PublishArgs::of(&server, &topics, self.size);
        args.single = self.single;
        args
    }

    /// The defaults.
    pub fn new(connections: u32, protocol: Protocol) -> SwarmArgs {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: SwarmArgs,
        }
        let args = <Line as clap::Parser>::parse_from(["swarm"]).args;
        SwarmArgs {
            connections,
            protocol,
            ..args
        }
    }
}
