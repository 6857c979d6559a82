//! `hold`: holds many connections with kernel sockets, and serves them for minutes.
//!
//! The presets differ in the addresses (many local addresses, or many server ports), in the protocol and in the publishers. With
//! `comet-million` the clients are a grid, and each publishes to its neighbours over a separate connection
//! (`subscribe/worker/grid_publisher.rs`). With `tcp` the clients send MQTT's CONNECT and nothing else, and receive no messages. With the
//! other presets one tool publishes.
//!
//! Every message that the server accepts must arrive exactly once, at the right client. If the last messages of a topic are missing, the
//! sequence numbers show no gap. So the numbers of accepted and received messages are compared, too.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::measure::sample::Process;
use crate::report;
use crate::rig::args::Preset;
use crate::rig::{
    Audience, Publisher, RunArgs, Sample, Server, ServerKind, ServerOptions, bottleneck, count_at,
    is_clean, local_address_pattern, number_at, pause, per_connection, topic_pattern, watch,
};
use crate::subscribe::Protocol;
use crate::subscribe::grid::Grid;

/// Seconds after the opening before memory is read, so that the last handshakes are over.
const SETTLE_S: f64 = 5.0;
/// The maximum number of connections per server port. It is below 14,000, because the kernel first uses every second local port of its
/// range. When all of these are used, each connect searches the whole range.
const CONNECTIONS_PER_PORT_MAX: u32 = 10_000;
/// Seconds between two messages to one client, and between two requests of a grid client.
const MESSAGE_INTERVAL_S: f64 = 60.0;

/// The parameters of a run: those of the preset, with the changes by the flags.
struct HoldParameters {
    preset: Preset,
    connections: u32,
    ports: u16,
    protocol: Protocol,
    size: usize,
    /// Messages a second. 0 means that there are no messages and the clients have no topic.
    rate: f64,
    /// Seconds between two requests of a grid client, if the clients publish themselves.
    publish_interval_s: Option<f64>,
    duration_s: f64,
}

fn hold_parameters(args: &RunArgs) -> HoldParameters {
    let connections = args.connections.unwrap_or(1_000_000);
    let (is_comet, is_tcp) = (
        args.preset == Preset::CometMillion,
        args.preset == Preset::Tcp,
    );
    let ports = match args.preset {
        Preset::OneHost | Preset::Tcp => {
            connections.div_ceil(CONNECTIONS_PER_PORT_MAX).clamp(2, 200) as u16
        }
        Preset::Million | Preset::CometMillion => 1,
    };
    let size = args.size.unwrap_or(if is_comet { 64 } else { 512 });
    // The number of messages if each client receives one, or if each publishes to its neighbours once.
    let messages_per_interval = if is_comet {
        Grid::of(connections).message_count() as f64
    } else {
        f64::from(connections)
    };
    let rate = match is_tcp {
        true => 0.0,
        false => args
            .rate
            .unwrap_or(messages_per_interval / MESSAGE_INTERVAL_S),
    };
    let default_protocol = match args.preset {
        Preset::CometMillion => Protocol::Poll,
        Preset::Tcp => Protocol::Mqtt,
        Preset::Million | Preset::OneHost => Protocol::Ws,
    };
    HoldParameters {
        preset: args.preset,
        connections,
        ports,
        protocol: args.protocol.unwrap_or(default_protocol),
        size,
        rate,
        publish_interval_s: is_comet.then(|| messages_per_interval / rate),
        duration_s: args.duration.unwrap_or(if is_tcp { 60.0 } else { 600.0 }),
    }
}

/// Runs the scenario.
pub fn run(args: &RunArgs) -> Result<Value> {
    let parameters = hold_parameters(args);
    let is_mqtt = matches!(parameters.protocol, Protocol::Mqtt | Protocol::MqttWs);
    ensure!(
        parameters.rate > 0.0 || is_mqtt,
        "only MQTT's clients may be connected without a topic"
    );
    let options = ServerOptions {
        ports: parameters.ports,
        ..ServerOptions::new(
            ServerKind::Crore,
            args.shards_for(parameters.connections, parameters.ports, 2),
            args.keep(parameters.protocol),
        )
    };
    let topics = topic_pattern(parameters.connections);
    let server = Server::start(args, options)?;
    let addresses = local_address_pattern(parameters.connections);
    let mut flags = vec!["--protocol", parameters.protocol.name()];
    if parameters.ports == 1 {
        flags.extend(["--local", &addresses]);
    }
    if parameters.rate == 0.0 {
        flags.extend(["--topics-per-connection", "0"]);
    }
    let size = parameters.size.to_string();
    if parameters.publish_interval_s.is_some() {
        flags.extend(["--talk", &size]);
    }
    let mut audience = Audience::open(
        args,
        server,
        parameters.connections,
        &topics,
        &flags,
        SETTLE_S,
    )?;
    report::note(&format!(
        "{} connections open after {:.1} s, {:.0} a second",
        parameters.connections,
        audience.opening_s,
        f64::from(parameters.connections) / audience.opening_s
    ));
    let serve_result = serve(args, &parameters, &topics, &mut audience)?;
    let result = result_json(&parameters, options, &audience, serve_result)?;
    print_summary(&result);
    Ok(result)
}

/// The results of serving the connections.
struct ServeResult {
    samples: Vec<Value>,
    published: Value,
    received: Value,
    subscriber_sample: Process,
    /// Processor time of the subscriber, in seconds.
    subscriber_cpu_s: f64,
    after: Sample,
}

/// Publishes for the duration, or makes the clients publish.
fn serve(
    args: &RunArgs,
    parameters: &HoldParameters,
    topics: &str,
    audience: &mut Audience,
) -> Result<ServeResult> {
    let Audience {
        server, subscriber, ..
    } = audience;
    let cpu_before_s = subscriber.sample()?.cpu_s;
    let (samples, published) = match parameters.publish_interval_s {
        Some(interval_s) => {
            subscriber.ask(&format!("talk {interval_s}"))?;
            let samples = watch(server, parameters.duration_s)?;
            (samples, subscriber.ask("talk 0")?["said"].take())
        }
        None if parameters.rate == 0.0 => (watch(server, parameters.duration_s)?, json!({})),
        None => {
            let (rate, seconds) = (
                parameters.rate.to_string(),
                parameters.duration_s.to_string(),
            );
            let flags = ["--rate", &rate, "--duration", &seconds];
            let publisher = Publisher::start(args, server, topics, parameters.size, &flags)?;
            (
                watch(server, parameters.duration_s)?,
                publisher.wait_for_result()?,
            )
        }
    };
    pause(SETTLE_S);
    let received = subscriber.ask("report")?;
    let subscriber_sample = subscriber.sample()?;
    Ok(ServeResult {
        samples,
        published,
        received,
        subscriber_sample,
        subscriber_cpu_s: subscriber_sample.cpu_s - cpu_before_s,
        after: Sample::of(server)?,
    })
}

fn result_json(
    parameters: &HoldParameters,
    options: ServerOptions,
    audience: &Audience,
    serve_result: ServeResult,
) -> Result<Value> {
    let ServeResult {
        samples,
        published,
        received,
        subscriber_sample,
        subscriber_cpu_s,
        after,
    } = serve_result;
    let arrived = count_at(&received, "/messages");
    let missing = count_at(&published, "/accepted") as i64 - arrived as i64;
    let is_clean_result = is_clean(&received)
        && missing == 0
        && count_at(&published, "/refused") + count_at(&published, "/unanswered") == 0
        && received["connections"]["closed"] == 0;
    let served_s = after.seconds_since(&audience.open);
    let server_cpu_s = after.process.cpu_s - audience.open.process.cpu_s;
    let server_busy = after.cores_since(&audience.open);
    let publisher_cpu_s = published["tool_cpu_s"].as_f64().unwrap_or(0.0);
    let tools_busy = (subscriber_cpu_s + publisher_cpu_s) / served_s;
    let cores = std::thread::available_parallelism()?.get() as f64;
    let connections = f64::from(parameters.connections);
    Ok(json!({
        "clean": is_clean_result,
        "preset": parameters.preset.name(),
        "connections": parameters.connections,
        "protocol": parameters.protocol.name(),
        "shards": options.shards,
        "ports": parameters.ports,
        "log_messages": options.log_messages,
        "size_bytes": parameters.size,
        "rate_per_s": parameters.rate,
        "talk_every_s": parameters.publish_interval_s,
        "duration_s": parameters.duration_s,
        "opening_s": audience.opening_s,
        "connects_per_s": connections / audience.opening_s,
        "missing": missing,
        "per_connection_open": audience.cost_open(),
        "per_connection_after": per_connection(parameters.connections, &audience.empty, &after),
        "server_cores_busy": server_busy,
        "server_cpu_us_per_delivery": server_cpu_s * 1e6 / arrived as f64,
        "tools_cores_busy": tools_busy,
        // The tools are at their limit if they use all the processor time that the server leaves.
        "bottleneck": bottleneck(server_busy, cores.min(options.shards.into()), tools_busy, cores - server_busy),
        "subscriber_rss_bytes_per_connection": subscriber_sample.rss_bytes as f64 / connections,
        "empty": audience.empty.json(),
        "open": audience.open.json(),
        "after": after.json(),
        "samples": samples,
        "published": published,
        "received": received,
    }))
}

/// Prints the main figures.
fn print_summary(result: &Value) {
    let (published, received) = (&result["published"], &result["received"]);
    let after = &result["per_connection_after"];
    report::say(&format!(
        "{} {} connections, {} shards, log of {}: PSS {:.1} B a connection when open, {:.1} B after {:.0} s; \
         kernel {:.0} B (both ends)\n\
         published {}, arrived {}, missing {}, lost {}, doubled {}, misdelivered {}\n\
         latency ms: mean {:.3}, deviation {:.3}, p99 {:.3}, p99.9 {:.3}, max {:.3}; server {:.2} cores",
        result["connections"],
        result["protocol"].as_str().unwrap_or_default(),
        result["shards"],
        result["log_messages"],
        number_at(result, "/per_connection_open/server_pss_bytes"),
        number_at(after, "/server_pss_bytes"),
        number_at(result, "/duration_s"),
        number_at(after, "/kernel_both_ends_slab_bytes")
            + number_at(after, "/kernel_both_ends_buffer_bytes"),
        count_at(published, "/accepted"),
        count_at(received, "/messages"),
        result["missing"],
        received["lost"],
        received["doubled"],
        received["misdelivered"],
        number_at(received, "/latency_ms/mean"),
        number_at(received, "/latency_ms/standard_deviation"),
        number_at(received, "/latency_ms/p99"),
        number_at(received, "/latency_ms/p99_9"),
        number_at(received, "/latency_ms/max"),
        number_at(result, "/server_cores_busy"),
    ));
    if !result["talk_every_s"].is_null() {
        report::say(&format!(
            "the clients made {} requests, answered after {:.3} ms in the mean, p99 {:.3} ms; refused {}, unanswered {}; \
             turned away and made again {}, at most {:.1} ms late",
            published["requests"],
            number_at(published, "/answered_ms/mean"),
            number_at(published, "/answered_ms/p99"),
            published["refused"],
            published["unanswered"],
            published["turned_away"],
            number_at(published, "/late_ms_max"),
        ));
    }
}
