//! `tcp`: the row of 2014. Raw TCP connections that have said CONNECT and nothing else; what does each cost the
//! server and the kernel at both ends?

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::rig::{Kind, Server, Setting, Subscriber, shards_for};
use super::{Moment, RunArgs, pause, per_connection, protocol_name, watch};
use crate::report;
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
        kind: Kind::Crore,
        shards: args.shards.unwrap_or(shards_for(connections, ports, 2)),
        ports,
        keep: args.keep(protocol),
    };
    let mut server = Server::start(args, setting)?;
    let name = protocol_name(protocol);
    let rest = ["--protocol", name, "--topics-per-connection", "0"];
    let mut subscriber =
        Subscriber::start(args, &server, setting.kind, connections, "none", &rest)?;
    let empty = Moment::of(&mut server)?;
    let opening_s = subscriber.open()?;
    pause(REST_S);
    let open = Moment::of(&mut server)?;
    let samples = watch(&mut server, args.duration.unwrap_or(HOLD_S))?;
    let after = Moment::of(&mut server)?;
    let received = subscriber.ask("report")?;
    let clean = received["connections"]["closed"] == 0 && received["connections"]["failed"] == 0;
    let cost = per_connection(connections, &empty, &open);
    let number = |name: &str| cost[name].as_f64().unwrap_or(f64::NAN);
    let kernel = number("kernel_both_ends_slab_bytes") + number("kernel_both_ends_buffer_bytes");
    report::say(&format!(
        "{connections} {name} connections without a subscription: PSS {:.1} B each, kernel {kernel:.0} B (both ends); \
         opened in {opening_s:.1} s, closed {}",
        number("server_pss_bytes"),
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
        "per_connection_after": per_connection(connections, &empty, &after),
        "empty": empty.json(),
        "open": open.json(),
        "after": after.json(),
        "samples": samples,
        "received": received,
    }))
}
