//! `tcp`: the row of 2014. Raw TCP connections that have said CONNECT and nothing else; what does each cost the
//! server and the kernel at both ends?

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::report;
use crate::rig::{Audience, Kind, Moment, RunArgs, Server, Setting, number, per_connection, watch};
use crate::subscribe::Protocol;

/// Connections for each port, as in `one-host`.
const PER_PORT: u32 = 10_000;
/// Seconds after the opening before memory is read, so that the last handshakes are over.
const REST_S: f64 = 5.0;
/// Seconds that they are held, unless told otherwise.
const HOLD_S: f64 = 60.0;

/// Opens the connections, holds them and tells their cost.
pub fn run(args: &RunArgs) -> Result<Value> {
    let connections = args.connections.unwrap_or(1_000_000);
    let protocol = args.protocol.unwrap_or(Protocol::Mqtt);
    ensure!(
        matches!(protocol, Protocol::Mqtt | Protocol::MqttWs),
        "only MQTT's clients may be connected without a topic"
    );
    let ports = connections.div_ceil(PER_PORT).clamp(2, 200) as u16;
    let setting = Setting {
        ports,
        ..Setting::new(
            Kind::Crore,
            args.shards_for(connections, ports, 2),
            args.keep(protocol),
        )
    };
    let server = Server::start(args, setting)?;
    let name = protocol.name();
    let flags = ["--protocol", name, "--topics-per-connection", "0"];
    let mut audience = Audience::open(args, server, connections, "none", &flags, REST_S)?;
    let samples = watch(&mut audience.server, args.duration.unwrap_or(HOLD_S))?;
    let after = Moment::of(&mut audience.server)?;
    let received = audience.subscriber.ask("report")?;
    let clean = received["connections"]["closed"] == 0 && received["connections"]["failed"] == 0;
    let (cost, opening_s) = (audience.cost_open(), audience.opening_s);
    let kernel = number(&cost, "/kernel_both_ends_slab_bytes")
        + number(&cost, "/kernel_both_ends_buffer_bytes");
    report::say(&format!(
        "{connections} {name} connections without a subscription: PSS {:.1} B each, kernel {kernel:.0} B (both ends); \
         opened in {opening_s:.1} s, closed {}",
        number(&cost, "/server_pss_bytes"),
        received["connections"]["closed"],
    ));
    Ok(json!({
        "clean": clean,
        "connections": connections,
        "protocol": name,
        "shards": setting.shards,
        "ports": ports,
        "opening_s": opening_s,
        "per_connection_open": cost,
        "per_connection_after": per_connection(connections, &audience.empty, &after),
        "empty": audience.empty.json(),
        "open": audience.open.json(),
        "after": after.json(),
        "samples": samples,
        "received": received,
    }))
}
