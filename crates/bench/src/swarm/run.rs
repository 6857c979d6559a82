//! Runs a swarm: the server in the swarm's namespace, the clients, the publisher, and a record of every second.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use anyhow::{Context, Result, bail, ensure};
use crore_tcp::End;
use serde_json::{Value, json};

use super::args::{Protocol, SwarmArgs};
use super::client_row::ClientRow;
use super::counts::Counts;
use super::namespace::{self, Namespace, SERVER};
use super::plan::Plan;
use super::wire::NetworkFaults;
use super::worker::RETRIES;
use super::workers::Swarm;
use crate::measure::pattern::Pattern;
use crate::publish::{self, PublishArgs, PublisherThread};
use crate::rig::{Sample, Server, ServerKind, ServerOptions, pause, topic_pattern};
use crate::{report, sys};

/// The maximum number of connections per shard. The number is well below 20,000, a possible limit of a descriptor table, because a server
/// reserves the last ninth of its connections for other addresses if one address holds all the rest.
const PER_SHARD: u32 = 17_300;
/// The default of Crore's `limits.topics_per_shard`.
const TOPICS_PER_SHARD: u32 = 2_000_000;
/// After this many seconds without a message, no more messages are expected.
const QUIET_S: u32 = 2;
/// The maximum share of segments that the kernel may retransmit. On a busy machine the kernel retransmits a few segments, also on the
/// publisher's connection. With a larger share the latencies are those of TCP's retransmissions, not of the server.
const RETRANSMITTED_MAX: f64 = 0.005;
/// The minimum interval that is recorded, in seconds.
const SECOND_LEAST_S: f64 = 0.3;
/// Takes the place of `QUIET_S` if the tool drops packets on purpose: a packet that is lost six times in a row arrives after 12.6 s.
const QUIET_WITH_LOSS_S: u32 = 16;
/// Timeout for the last messages and reconnects, in seconds: twice the time of all retries of a segment.
const REST_S: u32 = 2 << RETRIES;

/// A run in progress.
pub struct SwarmRun {
    /// The server, if this run has started it.
    pub server: Option<Server>,
    /// The clients.
    pub swarm: Swarm,
    publisher: Option<PublisherThread>,
    publish: PublishArgs,
    published: Arc<[AtomicU32]>,
    quiet: bool,
    begun_ns: u64,
    total: Counts,
    seconds: Vec<Value>,
    last: LastSample,
    is_faultless: bool,
}

/// The counters at the time of the last record.
#[derive(Clone, Copy, Default)]
struct LastSample {
    at_ns: u64,
    server_s: f64,
    tool_ns: u64,
}

/// The outcome of a run.
pub struct Outcome {
    /// The counters of the whole run.
    pub counts: Counts,
    /// The faults that make the run fail, each with its count.
    pub faults: Vec<(&'static str, u64)>,
    /// The figures for the result.
    pub json: Value,
}

impl SwarmRun {
    /// Moves this process into a new namespace and starts the server there. No client connects yet.
    pub fn begin(args: &SwarmArgs) -> Result<SwarmRun> {
        let mut namespace = Namespace::make(args.threads, args.connections)?;
        let address = SocketAddr::from((SERVER, args.server_port));
        let server = match &args.server_command {
            Some(command) => Server::start_by(command, address)?,
            None => crore(args, address)?,
        };
        SwarmRun::in_namespace(args, &mut namespace, Some(server))
    }

    /// A run in a namespace where a server already listens.
    pub fn in_namespace(
        args: &SwarmArgs,
        namespace: &mut Namespace,
        server: Option<Server>,
    ) -> Result<SwarmRun> {
        let pattern = args.topics.clone();
        let topics = Pattern::parse(&pattern.unwrap_or_else(|| topic_pattern(args.connections)))?;
        ensure!(
            topics.count() == args.connections && args.connections > 0,
            "--topics names {} topics for {} clients: each has one",
            topics.count(),
            args.connections
        );
        let published = publish::sequences(args.connections);
        let swarm = Swarm::start(
            namespace,
            Plan {
                protocol: args.protocol,
                server: End::new(SERVER, args.server_port),
                topics,
                target: args.target.clone(),
                size: args.size,
                slow_share: args.slow,
                connect_rate: args.connect_rate,
                faults: NetworkFaults {
                    loss: args.loss,
                    delay_ns: (args.delay * 1e6) as u64,
                },
                close_within_ns: (args.close_within * 1e9) as u64,
                published: published.clone(),
            },
        )?;
        Ok(SwarmRun {
            server,
            swarm,
            publisher: None,
            publish: args.publish(),
            published,
            quiet: args.quiet,
            begun_ns: sys::now_ns(),
            total: Counts::default(),
            seconds: Vec::new(),
            last: LastSample {
                at_ns: sys::now_ns(),
                server_s: 0.0,
                tool_ns: sys::process_cpu_ns(),
            },
            is_faultless: args.loss == 0.0 && args.delay == 0.0,
        })
    }

    /// Samples the server and the kernel; `None` if the run did not start the server.
    pub fn sample(&mut self) -> Result<Option<Sample>> {
        self.server.as_mut().map(Sample::of).transpose()
    }

    /// Opens all connections and returns how long that took, in seconds. An interrupt ends the wait.
    pub fn open(&mut self) -> Result<f64> {
        let begin_ns = sys::now_ns();
        self.swarm.open();
        let mut told_ns = begin_ns;
        while !self.swarm.is_settled() && !sys::interrupted() {
            pause(0.01);
            if sys::now_ns() - told_ns >= 1_000_000_000 {
                told_ns = sys::now_ns();
                self.record_second()?;
            }
        }
        let seconds = (sys::now_ns() - begin_ns) as f64 / 1e9;
        self.record_second()?;
        Ok(seconds)
    }

    /// Makes the Crore of this run reload its settings. They differ between odd and even turns.
    pub fn reload(&self, args: &SwarmArgs, turn: usize) -> Result<()> {
        let server = self.server.as_ref();
        let server = server.context("no server was started here")?;
        server.reload(&settings(args, turn))
    }

    /// Publishes at `rate` from now on.
    pub fn publish(&mut self, rate: f64) -> Result<()> {
        match &self.publisher {
            Some(publisher) => publisher.set_rate(rate),
            None => {
                let publisher =
                    PublisherThread::start(&self.publish, rate, self.published.clone())?;
                self.publisher = Some(publisher);
            }
        }
        Ok(())
    }

    /// The largest delay of a message behind its schedule at the present rate, in milliseconds.
    pub fn late_ms(&self) -> f64 {
        self.publisher
            .as_ref()
            .map_or(0.0, PublisherThread::late_ms)
    }

    /// Waits for `seconds` and returns the counts of that time.
    pub fn window(&mut self, seconds: f64) -> Result<Counts> {
        // The counts from before this call belong to no window.
        self.record_second()?;
        let mut sum = Counts::default();
        let mut remaining_s = seconds;
        while remaining_s > 0.0 && !sys::interrupted() {
            pause(remaining_s.min(1.0));
            remaining_s -= 1.0;
            sum.merge(&self.record_second()?);
        }
        Ok(sum)
    }

    /// Records the counts since the last record.
    fn record_second(&mut self) -> Result<Counts> {
        let counts = self.swarm.take_counts();
        self.total.merge(&counts);
        let now = LastSample {
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
        if self
            .publisher
            .as_ref()
            .is_some_and(PublisherThread::has_ended)
        {
            // The publisher's result says why it ended.
            let ended = self
                .publisher
                .take()
                .map(PublisherThread::stop)
                .transpose()?;
            bail!("the publisher ended: {ended:?}");
        }
        Ok(counts)
    }

    /// Ends publishing, waits for reconnects and the last messages, and collects the faults.
    pub fn finish(mut self) -> Result<Outcome> {
        self.swarm.drop_per_s(0.0);
        let published = self
            .publisher
            .take()
            .map(PublisherThread::stop)
            .transpose()?;
        let (mut quiet, mut waited) = (0, 0);
        let quiet_max_s = if self.is_faultless {
            QUIET_S
        } else {
            QUIET_WITH_LOSS_S
        };
        while waited < REST_S && quiet < quiet_max_s {
            pause(1.0);
            waited += 1;
            let counts = self.record_second()?;
            let rests = counts.tally.messages == 0 && self.swarm.is_settled();
            quiet = if rests { quiet + 1 } else { 0 };
        }
        let away = self.swarm.connections() - self.swarm.live() - self.swarm.given_up();
        let active_max = self.swarm.active_max();
        // The workers close the devices when they end, so the counter must be read first.
        let without_room = namespace::dropped_packets()?;
        let last_counts = self.swarm.stop()?;
        let mut total = std::mem::take(&mut self.total);
        total.merge(&last_counts);
        let retransmitted = namespace::retransmitted_segments()?;
        let is_storm = self.is_faultless
            && retransmitted as f64 > RETRANSMITTED_MAX * total.traffic.received as f64;
        let mut faults = total.faults();
        let published_json = published.unwrap_or_default();
        let count = |name: &str| published_json[name].as_u64().unwrap_or(0);
        let more = [
            ("connections not open at the end", away.into()),
            ("segments that the tool had no room for", without_room),
            (
                "segments that the server sent again",
                if is_storm { retransmitted } else { 0 },
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
                "server_segments_sent_again": retransmitted,
                "server_segments_without_room": without_room,
                "not_open_at_the_end": away,
                "bytes_of_a_client": size_of::<ClientRow>(),
                "clients_with_more_at_once_max": active_max,
                "faults": named.collect::<serde_json::Map<_, _>>(),
                "seconds": self.seconds,
            }),
            counts: total,
            faults,
        })
    }
}

impl Outcome {
    /// The faults as text, one on each line, or a line that says that there are none.
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

/// Starts a Crore with room for all clients.
fn crore(args: &SwarmArgs, address: SocketAddr) -> Result<Server> {
    let setting = ServerOptions::new(ServerKind::Crore, args.shards(), args.keep);
    let binary = args.server_binary.as_deref();
    Server::start_at(binary, setting, &settings(args, 0), address)
}

/// Crore's settings. In odd turns there is one more rule, which changes the numbers of the rules after it.
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
        let topics = topics_all.unwrap_or_else(|| topic_pattern(self.connections));
        let server = format!("{SERVER}:{}", self.server_port);
        let mut args = PublishArgs::of(&server, &topics, self.size);
        args.single = self.single;
        args
    }

    /// The defaults of all flags.
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
