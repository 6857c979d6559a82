//! `crore-bench probe`: how long messages take on a server that runs. It publishes to a topic at a low rate, and is a subscriber of the
//! same topic; so one clock measures, wherever the server is.
//!
//! Other subscribers of the topic get the messages, too.

use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use crate::measure::units;
use crate::publish::{self, Feed, PublishArgs};
use crate::subscribe::{Protocol, SubscribeArgs, Subscriber};
use crate::{report, sys};

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(100);
/// Looks between two lines.
const LOOKS_PER_LINE: u32 = 10;
/// Time for the connection, and for the last messages.
const REST: Duration = Duration::from_secs(5);
/// Messages before which no percentile ends the probe.
const MESSAGES_LEAST: u64 = 100;

/// `crore-bench probe`
#[derive(clap::Args, Clone, Debug)]
pub struct ProbeArgs {
    /// A server and a topic: http://, ws:// or mqtt://ADDRESS:PORT/TOPIC
    #[arg(value_name = "URL", default_value = "http://127.0.0.1:8800/probe")]
    pub url: String,
    /// How to subscribe [default: sse for http, ws for ws, mqtt for mqtt]
    #[arg(long, value_enum)]
    pub protocol: Option<Protocol>,
    /// Messages a second
    #[arg(long, default_value_t = 10.0, value_name = "PER_SECOND")]
    pub rate: f64,
    /// Bytes of a message
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(32..))]
    pub size: u32,
    /// Publish by a POST /pub/TOPIC for each message, not by NDJSON
    #[arg(long)]
    pub single: bool,
    /// End after this time, such as 60s [default: at Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = units::seconds)]
    pub duration: Option<f64>,
    /// End after so many messages
    #[arg(long, value_name = "COUNT")]
    pub messages: Option<u64>,
    /// End, with a failure, when p99 is longer
    #[arg(long, value_name = "TIME", value_parser = units::milliseconds)]
    pub p99_max: Option<f64>,
    /// Keep the result in a file; - is standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Print nothing while it runs
    #[arg(long)]
    pub quiet: bool,
}

/// The parts of a URL.
#[derive(Debug, PartialEq)]
struct Place {
    protocol: Protocol,
    /// Host and port.
    server: String,
    topic: String,
}

/// Reads `scheme://host:port/topic`; the topic may stand behind `/sub/`, or be the parameter of the query as Crore has it.
fn place(url: &str) -> Result<Place> {
    // Not shown: it holds a password.
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
    Ok(Place {
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

/// Runs the probe; fails when a message did not come, or when messages took too long.
pub fn run(args: &ProbeArgs) -> Result<ExitCode> {
    sys::catch_interrupt();
    ensure!(args.rate > 0.0, "--rate is more than nothing");
    let place = place(&args.url)?;
    let protocol = args.protocol.unwrap_or(place.protocol);
    let addresses = place.server.to_socket_addrs();
    let address = addresses
        .with_context(|| format!("`{}`", place.server))?
        .next();
    let address = address
        .with_context(|| format!("`{}` has no address", place.server))?
        .to_string();
    let subscriber = Subscriber::start(&SubscribeArgs {
        server: vec![address.clone()],
        connections: 1,
        protocol,
        topics: place.topic.clone(),
        topics_per_connection: 1,
        ..SubscribeArgs::default()
    })?;
    let begin = Instant::now();
    while !subscriber.is_settled() && !subscriber.is_over() {
        ensure!(
            begin.elapsed() < REST,
            "{address} does not answer the subscription"
        );
        std::thread::sleep(LOOK / 10);
    }
    ensure!(
        subscriber.tally().life.given_up == 0,
        "{address}: {}",
        subscriber.tally().life.first_failure.unwrap_or_default()
    );
    let mut publisher = PublishArgs::of(&address, &place.topic, args.size as usize);
    publisher.single = args.single;
    if matches!(protocol, Protocol::Mqtt | Protocol::MqttWs) {
        publisher.speak_mqtt(protocol == Protocol::MqttWs);
    }
    let feed = Feed::start(&publisher, args.rate, publish::sequences(1))?;
    let over = watch(args, &subscriber, &feed);
    let published = feed.stop()?;
    let accepted = published["accepted"].as_u64().unwrap_or(0);
    let begin = Instant::now();
    while subscriber.tally().messages < accepted && begin.elapsed() < REST && !over.slow {
        std::thread::sleep(LOOK);
    }
    report(args, &place, protocol, &subscriber, &published, &over)
}

/// Why the probe has ended.
struct Over {
    slow: bool,
}

/// Shows a line each second until the probe ends.
fn watch(args: &ProbeArgs, subscriber: &Subscriber, feed: &Feed) -> Over {
    let begin = Instant::now();
    for look in 1u32.. {
        std::thread::sleep(LOOK);
        let tally = subscriber.tally();
        let summary = tally.latency.summary();
        if look % LOOKS_PER_LINE == 0 && !args.quiet {
            report::live(&format!(
                "{:.0} s  {} messages  ms: last {:.3}, p50 {:.3}, p99 {:.3}, max {:.3}  lost {}",
                begin.elapsed().as_secs_f64(),
                tally.messages,
                tally.latency.last_ms(),
                summary.p50_ms,
                summary.p99_ms,
                summary.max_ms,
                tally.lost + tally.told_lost,
            ));
        }
        let slow = summary.count >= MESSAGES_LEAST
            && args.p99_max.is_some_and(|most| summary.p99_ms > most);
        let enough = args.messages.is_some_and(|most| tally.messages >= most)
            || args
                .duration
                .is_some_and(|most| begin.elapsed().as_secs_f64() >= most);
        if slow || enough || subscriber.is_over() || feed.has_ended() {
            if !args.quiet {
                report::end_live();
            }
            return Over { slow };
        }
    }
    Over { slow: false }
}

/// Tells the end.
fn report(
    args: &ProbeArgs,
    place: &Place,
    protocol: Protocol,
    subscriber: &Subscriber,
    published: &serde_json::Value,
    over: &Over,
) -> Result<ExitCode> {
    let tally = subscriber.tally();
    let count = |name: &str| published[name].as_u64().unwrap_or(0);
    let missing = count("accepted").saturating_sub(tally.messages);
    let faults = missing
        + tally.doubled
        + tally.misdelivered
        + count("refused")
        + count("unanswered")
        + tally.life.closed;
    let clean = faults == 0 && tally.messages > 0 && !over.slow;
    let summary = tally.latency.summary();
    if !args.quiet {
        report::say(&format!(
            "{} over {}: {} published, {missing} missing, {} doubled; ms: p50 {:.3}, p99 {:.3}, p99.9 {:.3}, max {:.3}{}",
            place.topic,
            protocol.name(),
            count("accepted"),
            tally.doubled,
            summary.p50_ms,
            summary.p99_ms,
            summary.p999_ms,
            summary.max_ms,
            if over.slow { "; p99 IS TOO LONG" } else { "" },
        ));
    }
    if let Some(path) = &args.json {
        let of_this_run = json!({
            "published": published,
            "clean": clean,
            "missing": missing,
            "protocol": protocol.name(),
        });
        let result = report::with(subscriber.json(), of_this_run);
        let result = json!({ "url": args.url, "result": result });
        report::keep(path, &report::record("Probe", result))?;
    }
    Ok(ExitCode::from(u8::from(!clean)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_server_a_topic_and_a_protocol() {
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
            let read = place(url).unwrap();
            assert_eq!(
                (read.protocol, &*read.server, &*read.topic),
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
            assert!(place(url).is_err(), "{url}");
        }
    }
}
