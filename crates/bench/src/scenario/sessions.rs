//! `sessions`: MQTT clients that subscribe to a topic of their own and go away; what does a session cost whose
//! client is not there?
//!
//! They come in waves, so that a few shards hold all of them. A first wave of clean sessions is not
//! counted: it leaves the tables of connections as large as they will be.

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::rig::{Kind, Server, Setting, Subscriber, versions};
use super::{Moment, RunArgs, locals, pause, per_connection};
use crate::mqtt::{MqttArgs, Session};
use crate::report;
use crate::subscribe::Protocol;

/// Clients of a wave: below the descriptors of one process where that limit cannot be raised.
const WAVE: u32 = 15_000;
/// Seconds after a wave, so that the server has seen the last of it.
const REST_S: f64 = 2.0;

/// Measures this server, and Mosquitto when it is asked for.
pub fn run(args: &RunArgs) -> Result<Value> {
    let mut kinds = vec![Kind::Crore];
    if args.peer.contains(&Kind::Mosquitto) {
        kinds.push(Kind::Mosquitto);
    }
    let mut sides = Map::new();
    for kind in kinds {
        sides.insert(kind.name().into(), measure(args, kind)?);
    }
    Ok(json!({
        "clean": sides.values().all(|side| side["clean"] == true),
        "packages": versions(),
        "sides": sides,
    }))
}

fn measure(args: &RunArgs, kind: Kind) -> Result<Value> {
    let sessions = args.connections.unwrap_or(1_000_000);
    let setting = Setting {
        kind,
        shards: args.shards.unwrap_or(2),
        ports: 1,
        keep: args.keep(Protocol::Mqtt),
    };
    let mut server = Server::start(args, setting)?;
    wave(args, &server, kind, Session::Clean, 0, sessions.min(WAVE))?;
    let empty = Moment::of(&mut server)?;
    let (mut begun, mut clean) = (0, true);
    let mut growth = Vec::new();
    while begun < sessions {
        let count = (sessions - begun).min(WAVE);
        let left = wave(args, &server, kind, Session::Persistent, begun, count)?;
        clean &= left["connections"]["failed"] == 0;
        begun += count;
        let now = Moment::of(&mut server)?;
        growth.push(json!({
            "sessions": begun,
            "per_session": per_connection(begun, &empty, &now)["server_pss_bytes"],
        }));
    }
    pause(REST_S);
    let after = Moment::of(&mut server)?;
    let cost = per_connection(sessions, &empty, &after);
    report::say(&format!(
        "{}: {sessions} sessions of absent clients with a subscription each: PSS {:.1} B a session",
        kind.name(),
        cost["server_pss_bytes"].as_f64().unwrap_or(f64::NAN),
    ));
    Ok(json!({
        "clean": clean,
        "sessions": sessions,
        "shards": setting.shards,
        "complaints": server.complaints(),
        "per_session": cost,
        "growth": growth,
        "empty": empty.json(),
        "after": after.json(),
    }))
}

/// Connects `count` clients to topics from number `from` on, and lets them go in good order.
fn wave(
    args: &RunArgs,
    server: &Server,
    kind: Kind,
    session: Session,
    from: u32,
    count: u32,
) -> Result<Value> {
    let mqtt = MqttArgs {
        session,
        qos: args.mqtt.qos.max(1),
        ..args.mqtt
    };
    let args = &RunArgs {
        mqtt,
        ..args.clone()
    };
    let first = 1_000_001 + from;
    let topics = format!("/p/s{{{first}..{}}}/-", first + count - 1);
    let addresses = locals(count);
    let rest = ["--protocol", "mqtt", "--local", &addresses];
    let mut subscriber = Subscriber::start(args, server, kind, count, &topics, &rest)?;
    subscriber.open()?;
    let left = subscriber.ask("part")?;
    pause(REST_S);
    Ok(left)
}
