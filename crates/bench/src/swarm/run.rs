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
use super::veth;
use super::wire::NetworkFaults;
use super::worker::RETRIES;
use super::workers::Swarm;
use crate::measure::pattern::Pattern;
use crate::publish::{self, PublishArgs, PublisherThread};
use crate::rig::{Sample, Server, ServerKind, ServerOptions, Transport, pause, topic_pattern};
use crate::{report, sys};

/// The maximum number of connections per shard. A descriptor table may be limited to 20,000. This number is well below that, because a server
/// reserves the last ninth of its connections for other addresses if one address holds all the rest.
const CONNECTIONS_PER_SHARD_MAX: u32 = 17_300;
/// The default of Crore's `limits.topics_per_shard`.
const DEFAULT_TOPICS_PER_SHARD: u32 = 2_000_000;
/// After this many seconds without a message the run expects no more messages.
const SILENCE_S: u32 = 2;
/// The maximum share of segments that the kernel may retransmit. On a busy machine the kernel retransmits a few segments, also on the
/// publisher's connection. With a larger share the latencies are those of TCP's retransmissions, not of the server.
const RETRANSMITTED_MAX: f64 = 0.005;
/// The minimum interval between two records, in seconds.
const RECORD_INTERVAL_MIN_S: f64 = 0.3;
/// Takes the place of `SILENCE_S` if the tool loses or delays packets: a packet that is lost six times in a row arrives after 12.6 s.
const SILENCE_WITH_FAULTS_S: u32 = 16;
/// Timeout for the last messages and reconnects, in seconds: twice the time of all retries of a segment.
const FINISH_TIMEOUT_S: u32 = 2 << RETRIES;

/// A run in progress.
pub struct SwarmRun {
    /// The server, if this run has started it.
    pub server: Option<Server>,
    /// The clients.
    pub swarm: Swarm,
    publisher: Option<PublisherThread>,
    publish_args: PublishArgs,
    published: Arc<[AtomicU32]>,
    is_quiet: bool,
    start_ns: u64,
    total_counts: Counts,
    seconds: Vec<Value>,
    last_sample: CpuSample,
    is_faultless: bool,
}

/// The processor times at the time of the last record.
#[derive(Clone, Copy, Default)]
struct CpuSample {
    at_ns: u64,
    server_cpu_s: f64,
    tool_cpu_ns: u64,
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
    pub fn start(args: &SwarmArgs) -> Result<SwarmRun> {
        let mut namespace = Namespace::make(args.transport, args.threads, args.connections)?;
        let address = SocketAddr::from((SERVER, args.server_port));
        let server = match &args.server_command {
            Some(command) => Server::start_by(command, address)?,
            None => start_server(args, address)?,
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
                server: End::new(SERVER, args.client_port()),
                topics,
                target: args.target.clone(),
                message_bytes: args.message_bytes,
                slow_share: args.slow_share,
                connect_rate: args.connect_rate,
                faults: NetworkFaults {
                    loss_share: args.loss_share,
                    delay_max_ns: (args.delay_max_ms * 1e6) as u64,
                },
                close_within_ns: (args.close_within_s * 1e9) as u64,
                published: published.clone(),
            },
        )?;
        Ok(SwarmRun {
            server,
            swarm,
            publisher: None,
            publish_args: args.publish_args(),
            published,
            is_quiet: args.quiet,
            start_ns: sys::now_ns(),
            total_counts: Counts::default(),
            seconds: Vec::new(),
            last_sample: CpuSample {
                at_ns: sys::now_ns(),
                server_cpu_s: 0.0,
                tool_cpu_ns: sys::process_cpu_ns(),
            },
            is_faultless: args.loss_share == 0.0 && args.delay_max_ms == 0.0,
        })
    }

    /// Samples the server and the kernel; `None` if the run did not start the server.
    pub fn sample(&mut self) -> Result<Option<Sample>> {
        self.server.as_mut().map(Sample::of).transpose()
    }

    /// Opens all connections and returns how long that took, in seconds. An interrupt ends the wait.
    pub fn connect(&mut self) -> Result<f64> {
        let begin_ns = sys::now_ns();
        self.swarm.connect();
        let mut recorded_ns = begin_ns;
        while !self.swarm.is_settled() && !sys::interrupted() {
            pause(0.01);
            if sys::now_ns() - recorded_ns >= 1_000_000_000 {
                recorded_ns = sys::now_ns();
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
    pub fn set_publish_rate(&mut self, rate: f64) -> Result<()> {
        match &self.publisher {
            Some(publisher) => publisher.set_rate(rate),
            None => {
                let publisher =
                    PublisherThread::start(&self.publish_args, rate, self.published.clone())?;
                self.publisher = Some(publisher);
            }
        }
        Ok(())
    }

    /// The longest time by which the publisher sent a message too late at the present rate, in milliseconds.
    pub fn late_ms(&self) -> f64 {
        self.publisher
            .as_ref()
            .map_or(0.0, PublisherThread::lateness_ms)
    }

    /// Waits for `seconds` and returns the counts of that time.
    pub fn run_window(&mut self, seconds: f64) -> Result<Counts> {
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

    /// Takes the counts since the last call, and records them unless the last record is too recent.
    fn record_second(&mut self) -> Result<Counts> {
        let counts = self.swarm.take_counts();
        self.total_counts.merge(&counts);
        let now = CpuSample {
            at_ns: sys::now_ns(),
            server_cpu_s: self.server.as_mut().map_or(Ok(0.0), Server::cpu_s)?,
            tool_cpu_ns: sys::process_cpu_ns(),
        };
        let elapsed_s = (now.at_ns - self.last_sample.at_ns) as f64 / 1e9;
        if elapsed_s < RECORD_INTERVAL_MIN_S {
            return Ok(counts);
        }
        let server = (now.server_cpu_s - self.last_sample.server_cpu_s) / elapsed_s;
        let tool = (now.tool_cpu_ns - self.last_sample.tool_cpu_ns) as f64 / 1e9 / elapsed_s;
        self.last_sample = now;
        let (latency, connections) = (counts.tally.latency.summary(), &counts.tally.connections);
        let open_clients = self.swarm.open_count();
        self.seconds.push(json!({
            "at_s": (now.at_ns - self.start_ns) as f64 / 1e9,
            "live": open_clients,
            "opened_per_s": connections.opened as f64 / elapsed_s,
            "messages_per_s": counts.tally.messages as f64 / elapsed_s,
            "mean_ms": latency.mean_ms, "p50_ms": latency.p50_ms, "p99_ms": latency.p99_ms, "max_ms": latency.max_ms,
            "server_cores": server, "tool_cores": tool,
        }));
        if !self.is_quiet {
            let total_counts = &self.total_counts;
            report::note(&format!(
                "{:>5.0} s  open {open_clients}/{} +{:.0}/s  messages {:.0}/s  ms p50 {:.2} p99 {:.2} max {:.2}  \
                 cores {server:.2}+{tool:.2}  lost {} doubled {} failed {} sent again {}",
                (now.at_ns - self.start_ns) as f64 / 1e9,
                self.swarm.connections(),
                connections.opened as f64 / elapsed_s,
                counts.tally.messages as f64 / elapsed_s,
                latency.p50_ms,
                latency.p99_ms,
                latency.max_ms,
                total_counts.tally.lost,
                total_counts.tally.doubled,
                total_counts.tally.connections.failed,
                total_counts.retransmitted,
            ));
        }
        if self
            .publisher
            .as_ref()
            .is_some_and(PublisherThread::has_ended)
        {
            // The publisher's result says why it ended.
            let result = self
                .publisher
                .take()
                .map(PublisherThread::stop)
                .transpose()?;
            bail!("the publisher ended: {result:?}");
        }
        Ok(counts)
    }

    /// Ends publishing, waits for reconnects and the last messages, and collects the faults.
    pub fn finish(mut self) -> Result<Outcome> {
        self.swarm.set_drop_rate(0.0);
        let published = self
            .publisher
            .take()
            .map(PublisherThread::stop)
            .transpose()?;
        let (mut silence_s, mut waited_s) = (0, 0);
        let silence_max_s = if self.is_faultless {
            SILENCE_S
        } else {
            SILENCE_WITH_FAULTS_S
        };
        while waited_s < FINISH_TIMEOUT_S && silence_s < silence_max_s {
            pause(1.0);
            waited_s += 1;
            let counts = self.record_second()?;
            let is_silent = counts.tally.messages == 0 && self.swarm.is_settled();
            silence_s = if is_silent { silence_s + 1 } else { 0 };
        }
        let not_open =
            self.swarm.connections() - self.swarm.open_count() - self.swarm.given_up_count();
        let active_max = self.swarm.active_max();
        // The workers close the devices when they end, so the counter must be read first.
        let dropped_packets = namespace::dropped_packets()?;
        let last_counts = self.swarm.stop()?;
        let mut total_counts = std::mem::take(&mut self.total_counts);
        total_counts.merge(&last_counts);
        let retransmitted = namespace::retransmitted_segments()?;
        let has_too_many_retransmissions = self.is_faultless
            && retransmitted as f64 > RETRANSMITTED_MAX * total_counts.traffic.received as f64;
        let mut faults = total_counts.faults();
        let published_json = published.unwrap_or_default();
        let count = |name: &str| published_json[name].as_u64().unwrap_or(0);
        let other_faults = [
            ("connections not open at the end", not_open.into()),
            ("segments that the tool had no room for", dropped_packets),
            (
                "segments that the server sent again",
                if has_too_many_retransmissions {
                    retransmitted
                } else {
                    0
                },
            ),
            ("messages that the server refused", count("refused")),
            (
                "messages that the server did not answer",
                count("unanswered"),
            ),
        ];
        faults.extend(other_faults.into_iter().filter(|(_, count)| *count > 0));
        let faults_json = faults
            .iter()
            .map(|(name, count)| ((*name).to_string(), json!(count)));
        Ok(Outcome {
            json: json!({
                "received": total_counts.json(),
                "published": published_json,
                "server_segments_sent_again": retransmitted,
                "server_segments_without_room": dropped_packets,
                "not_open_at_the_end": not_open,
                "bytes_of_a_client": size_of::<ClientRow>(),
                "clients_with_more_at_once_max": active_max,
                "faults": faults_json.collect::<serde_json::Map<_, _>>(),
                "seconds": self.seconds,
            }),
            counts: total_counts,
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
        let connections = &self.counts.tally.connections;
        let reasons = [&self.counts.first_violation, &connections.first_failure];
        lines.extend(
            reasons
                .into_iter()
                .flatten()
                .map(|reason| format!("first: {reason}")),
        );
        lines.join("\n")
    }
}

/// Starts a server of the wanted kind with room for all clients.
fn start_server(args: &SwarmArgs, address: SocketAddr) -> Result<Server> {
    let options = ServerOptions::new(args.kind, args.shards(), args.log_messages);
    let binary = args.server_binary.as_deref();
    Server::start_at(binary, options, &settings(args, 0), address)
}

/// Crore's settings. In odd turns there is one more rule, which changes the numbers of the rules after it.
fn settings(args: &SwarmArgs, turn: usize) -> String {
    let extra_rule = if turn % 2 == 1 {
        "[[rule]]\nmatch = \"unused/#\"\nkeep = \"latest\"\n\n"
    } else {
        ""
    };
    format!(
        "[limits]\naccepts_per_s = 1000000\nconnections_max = {}\ntopics_per_shard = {}\n\n\
         {}[heartbeat]\ninterval_s = {}\n\n{extra_rule}[[rule]]\nmatch = \"#\"\nlog_messages = {}\n",
        u32::MAX - 1,
        args.connections.max(DEFAULT_TOPICS_PER_SHARD),
        args.xdp_settings(),
        args.heartbeat_s,
        args.log_messages,
    )
}

impl SwarmArgs {
    /// Messages a second.
    pub fn publish_rate(&self) -> f64 {
        self.publish_rate
            .unwrap_or(f64::from(self.connections) / 60.0)
    }

    /// The port that clients connect to. Over `AF_XDP` the publisher uses another port, because it runs on the server's machine.
    fn client_port(&self) -> u16 {
        self.server_port + u16::from(self.transport == Transport::Xdp)
    }

    /// Crore's settings for connections over `AF_XDP`, and the limits that other transports derive from the number of descriptors.
    fn xdp_settings(&self) -> String {
        if self.transport != Transport::Xdp {
            return String::new();
        }
        // A server reserves some of its connections for other addresses.
        let connections = u64::from(self.connections) * 5 / 4 + 1_024;
        format!(
            "connections_per_shard = {connections}\n\n[xdp]\nlisten = \"{}:{}\"\nconnections_max = {connections}\nframes = {}\n\n",
            veth::SERVER_END,
            self.client_port(),
            veth::FRAMES,
        )
    }

    /// The number of Crore's shards.
    pub fn shards(&self) -> u32 {
        if self.transport == Transport::Xdp {
            return self.shards.unwrap_or(self.threads.into());
        }
        let needed = self.connections.div_ceil(CONNECTIONS_PER_SHARD_MAX).max(2);
        self.shards.unwrap_or(needed)
    }

    /// The flags of the publisher.
    fn publish_args(&self) -> PublishArgs {
        let pattern = self.topics.clone();
        let topics = pattern.unwrap_or_else(|| topic_pattern(self.connections));
        let server = format!("{SERVER}:{}", self.server_port);
        let mut args = PublishArgs::of(&server, &topics, self.message_bytes);
        args.floor = self.kind == ServerKind::Floor;
        args.single = self.publishes_singly || self.kind == ServerKind::Nchan;
        args
    }

    /// The defaults of all flags except these two.
    pub fn with_defaults(connections: u32, protocol: Protocol) -> SwarmArgs {
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
