//! `crore-bench probe`: measures the latency of messages on a running server. One process publishes to a topic at a low rate and subscribes
//! to the same topic. So both times are read from one clock, wherever the server is.
//!
//! Other subscribers of the topic receive the messages, too.

use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use crate::measure::units;
use crate::publish::{self, PublishArgs, PublisherThread};
use crate::subscribe::{Protocol, SubscribeArgs, Subscriber};
use crate::{report, sys};

/// Time between two reads of the counters.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Reads of the counters between two lines of output.
const POLLS_PER_LINE: u32 = 10;
/// Timeout for connecting, and for the last messages.
const TIMEOUT: Duration = Duration::from_secs(5);
/// `--p99-max` applies from this many messages on.
const MESSAGES_MIN: u64 = 100;

/// `crore-bench probe`
#[derive(clap::Args, Clone, Debug)]
pub struct ProbeArgs {
    /// The server and the topic, as http://, ws:// or mqtt://ADDRESS:PORT/TOPIC
    #[arg(value_name = "URL", default_value = "http://127.0.0.1:8800/probe")]
    pub url: String,
    /// How to subscribe [default: sse for http, ws for ws, mqtt for mqtt]
    #[arg(long, value_enum)]
    pub protocol: Option<Protocol>,
    /// Number of messages to publish in a second
    #[arg(long, default_value_t = 10.0, value_name = "PER_SECOND")]
    pub rate: f64,
    /// Bytes of a message
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(32..))]
    pub size: u32,
    /// Publish each message in its own request (POST /pub/TOPIC) instead of as NDJSON
    #[arg(long)]
    pub single: bool,
    /// End after this time, such as 60s [default: at Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = units::seconds)]
    pub duration: Option<f64>,
    /// End after this many messages
    #[arg(long, value_name = "COUNT")]
    pub messages: Option<u64>,
    /// End and fail when the 99th percentile of the latency is above this time, such as 20ms
    #[arg(long, value_name = "TIME", value_parser = units::milliseconds)]
    pub p99_max: Option<f64>,
    /// Write the result to a file; - for standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Print nothing during the run
    #[arg(long)]
    pub quiet: bool,
}

/// The parts of a URL.
#[derive(Debug, PartialEq)]
struct Target {
    protocol: Protocol,
    /// Host and port.
    server: String,
    topic: String,
}

/// Parses `scheme://host:port/topic`. The topic may also follow `/sub/` or `/sub?topic=`.
fn parse_url(url: &str) -> Result<Target> {
    // The error does not show the URL, which may contain a password.
    ensure!(
        !url.contains('@'),
        "a user and a password have no place in a probe's URL; leave them out"
    );
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    let (protocol, port) = match scheme {
        "http" => (Protocol::Sse, 80),
        "ws" => (Protocol::Ws, 80),
        "mqtt" => (Protocol::Mqtt, 1883),
        "https" | "wss" | "mqtts" => bail!(
            "`{url}`: the probe speaks no TLS; give the plain port, or measure behind the proxy"
        ),
        other => bail!("`{url}`: {other} is no scheme of a probe; write http, ws or mqtt"),
    };
    let (server, path) = rest.split_once('/').unwrap_or((rest, ""));
    let path = path.strip_prefix("sub/").unwrap_or(path);
    let topic = path.strip_prefix("sub?topic=").unwrap_or(path);
    ensure!(
        !topic.contains(['%', '?', '#', '+', '{']),
        "`{topic}`: write a topic without filters, ranges and escapes"
    );
    let has_port = server
        .rsplit_once(':')
        .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    Ok(Target {
        protocol,
        server: if has_port {
            server.into()
        } else {
            format!("{server}:{port}")
        },
        topic: if topic.is_empty() {
            "probe".into()
        } else {
            topic.into()
        },
    })
}

/// Runs the probe. The exit code is a failure if a message is missing or the latency is too high.
pub fn run(args: &ProbeArgs) -> Result<ExitCode> {
    sys::catch_interrupt();
    ensure!(args.rate > 0.0, "--rate is more than nothing");
    let target = parse_url(&args.url)?;
    let protocol = args.protocol.unwrap_or(target.protocol);
    let addresses = target.server.to_socket_addrs();
    let address = addresses
        .with_context(|| format!("`{}`", target.server))?
        .next();
    let address = address
        .with_context(|| format!("`{}` has no address", target.server))?
        .to_string();
    let subscriber = Subscriber::start(&SubscribeArgs {
        server: vec![address.clone()],
        connections: 1,
        protocol,
        topics: target.topic.clone(),
        topics_per_connection: 1,
        ..SubscribeArgs::default()
    })?;
    let start = Instant::now();
    while !subscriber.is_settled() && !subscriber.has_ended() {
        ensure!(
            start.elapsed() < TIMEOUT,
            "{address} does not answer the subscription"
        );
        std::thread::sleep(POLL_INTERVAL / 10);
    }
    ensure!(
        subscriber.tally().connections.given_up == 0,
        "{address}: {}",
        subscriber
            .tally()
            .connections
            .first_failure
            .unwrap_or_default()
    );
    let mut publisher = PublishArgs::of(&address, &target.topic, args.size as usize);
    publisher.single = args.single;
    if matches!(protocol, Protocol::Mqtt | Protocol::MqttWs) {
        publisher.speak_mqtt(protocol == Protocol::MqttWs);
    }
    let publisher = PublisherThread::start(&publisher, args.rate, publish::sequences(1))?;
    let probe_end = watch(args, &subscriber, &publisher);
    let published = publisher.stop()?;
    let accepted = published["accepted"].as_u64().unwrap_or(0);
    let start = Instant::now();
    while subscriber.tally().messages < accepted
        && start.elapsed() < TIMEOUT
        && !probe_end.is_too_slow
    {
        std::thread::sleep(POLL_INTERVAL);
    }
    report(args, &target, protocol, &subscriber, &published, &probe_end)
}

/// Why the probe has ended: because the latency was too high, or for another reason.
struct ProbeEnd {
    is_too_slow: bool,
}

/// Prints a line each second until the probe must end. Returns why.
fn watch(args: &ProbeArgs, subscriber: &Subscriber, publisher: &PublisherThread) -> ProbeEnd {
    let start = Instant::now();
    for poll in 1u32.. {
        std::thread::sleep(POLL_INTERVAL);
        let tally = subscriber.tally();
        let summary = tally.latency.summary();
        if poll % POLLS_PER_LINE == 0 && !args.quiet {
            report::live(&format!(
                "{:.0} s  {} messages  ms: last {:.3}, p50 {:.3}, p99 {:.3}, max {:.3}  lost {}",
                start.elapsed().as_secs_f64(),
                tally.messages,
                tally.latency.last_ms(),
                summary.p50_ms,
                summary.p99_ms,
                summary.max_ms,
                tally.lost + tally.announced_lost,
            ));
        }
        let is_too_slow = summary.count >= MESSAGES_MIN
            && args.p99_max.is_some_and(|p99_max| summary.p99_ms > p99_max);
        let is_limit_reached = args.messages.is_some_and(|count| tally.messages >= count)
            || args
                .duration
                .is_some_and(|seconds| start.elapsed().as_secs_f64() >= seconds);
        if is_too_slow || is_limit_reached || subscriber.has_ended() || publisher.has_ended() {
            if !args.quiet {
                report::end_live();
            }
            return ProbeEnd { is_too_slow };
        }
    }
    ProbeEnd { is_too_slow: false }
}

/// Prints and stores the result.
fn report(
    args: &ProbeArgs,
    target: &Target,
    protocol: Protocol,
    subscriber: &Subscriber,
    published: &serde_json::Value,
    probe_end: &ProbeEnd,
) -> Result<ExitCode> {
    let tally = subscriber.tally();
    let count = |name: &str| published[name].as_u64().unwrap_or(0);
    let missing = count("accepted").saturating_sub(tally.messages);
    let faults = missing
        + tally.doubled
        + tally.misdelivered
        + count("refused")
        + count("unanswered")
        + tally.connections.closed;
    let is_clean = faults == 0 && tally.messages > 0 && !probe_end.is_too_slow;
    let summary = tally.latency.summary();
    if !args.quiet {
        report::say(&format!(
            "{} over {}: {} published, {missing} missing, {} doubled; ms: p50 {:.3}, p99 {:.3}, p99.9 {:.3}, max {:.3}{}",
            target.topic,
            protocol.name(),
            count("accepted"),
            tally.doubled,
            summary.p50_ms,
            summary.p99_ms,
            summary.p999_ms,
            summary.max_ms,
            if probe_end.is_too_slow {
                "; p99 IS TOO LONG"
            } else {
                ""
            },
        ));
    }
    if let Some(path) = &args.json {
        let of_this_run = json!({
            "published": published,
            "clean": is_clean,
            "missing": missing,
            "protocol": protocol.name(),
        });
        let result = report::merge(subscriber.json(), of_this_run);
        let result = json!({ "url": args.url, "result": result });
        report::write_result(path, &report::record("Probe", result))?;
    }
    Ok(ExitCode::from(u8::from(!is_clean)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_contains_server_topic_and_protocol() {
        for (url, protocol, server, topic) in [
            (
                "http://127.0.0.1:8800/news/7",
                Protocol::Sse,
                "127.0.0.1:8800",
                "news/7",
            ),
            ("ws://host:1/sub/a", Protocol::Ws, "host:1", "a"),
            (
                "ws://host/sub?topic=/p/s1/-",
                Protocol::Ws,
                "host:80",
                "/p/s1/-",
            ),
            ("mqtt://[::1]/t", Protocol::Mqtt, "[::1]:1883", "t"),
            ("127.0.0.1:8800", Protocol::Sse, "127.0.0.1:8800", "probe"),
        ] {
            let target = parse_url(url).unwrap();
            assert_eq!(
                (target.protocol, &*target.server, &*target.topic),
                (protocol, server, topic),
                "{url}"
            );
        }
        for url in [
            "https://a/b",
            "gopher://a/b",
            "ws://a/b/+",
            "ws://a/{1..2}",
            "ws://a/%20",
        ] {
            assert!(parse_url(url).is_err(), "{url}");
        }
    }
}
