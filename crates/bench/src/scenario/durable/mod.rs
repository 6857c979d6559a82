//! `durable`: measures how many publishes a second are answered after a sync to disk. They are compared with a bare loop that writes and
//! syncs the same bytes, and with programs that promise the same or somewhat less. All use the disk of the directory for temporary files
//! (`TMPDIR`) and take turns. Each figure is the median of the rounds.

mod local;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::client::link::Link;
use crate::client::mqtt::{Dialect, MqttArgs, Packet, SessionMode, client_id};
use crate::measure::stats::median;
use crate::report;
use crate::rig::{Directory, Publisher, RunArgs, Server, ServerKind, ServerOptions, bare};
use strum::{IntoStaticStr, VariantArray};

/// Default size of a message, in bytes.
const DEFAULT_MESSAGE_BYTES: usize = 512;
/// Default duration of each window, in seconds.
const DEFAULT_WINDOW_S: f64 = 2.0;
/// The topics. There are as many as the largest number of connections.
const TOPICS: &str = "/p/s{1..1024}/-";
/// The number of connections that share the MQTT messages in flight. One connection would be too slow, because brokers read only a part of
/// a connection's data in each turn of their loop.
const MQTT_CONNECTIONS: u32 = 8;
/// Default number of shards.
const SHARDS: u32 = 2;

/// The load of a row, the same for every side.
#[derive(Clone, Copy, Debug)]
pub struct PublishLoad {
    /// The load's name in results.
    name: &'static str,
    /// Publishes in flight.
    in_flight: u32,
    /// Messages in each publish.
    batch_messages: u32,
}

/// The rows.
const LOADS: [PublishLoad; 5] = [
    PublishLoad {
        name: "1 in flight",
        in_flight: 1,
        batch_messages: 1,
    },
    PublishLoad {
        name: "64 in flight",
        in_flight: 64,
        batch_messages: 1,
    },
    PublishLoad {
        name: "1,024 in flight",
        in_flight: 1024,
        batch_messages: 1,
    },
    PublishLoad {
        name: "1 batch of 256",
        in_flight: 1,
        batch_messages: 256,
    },
    PublishLoad {
        name: "4 batches of 256",
        in_flight: 4,
        batch_messages: 256,
    },
];

/// A column of the result: a server, and the protocol over which the messages are published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
enum Program {
    /// The bare loop, into a file with allocated and unwritten blocks, like the server's segments.
    Floor,
    /// The bare loop, into a file full of zeros.
    FloorOverZeros,
    /// Crore over HTTP, with a connection for each publish in flight.
    Crore,
    /// Crore over MQTT with QoS 1.
    CroreMqtt,
    /// SQLite, with the publishes in flight in one transaction.
    Sqlite,
    /// NATS JetStream.
    Nats,
    /// Mosquitto, which acknowledges first and writes periodically.
    Mosquitto,
}

impl Program {
    /// All sides.
    const ALL: &[Self] = Self::VARIANTS;

    fn name(self) -> &'static str {
        self.into()
    }

    /// Whether the side supports the load. Some sides have no batches.
    fn supports(self, load: &PublishLoad) -> bool {
        load.batch_messages == 1
            || !matches!(
                self,
                Program::CroreMqtt | Program::Nats | Program::Mosquitto
            )
    }
}

/// Publishes a second of each round, by row and column.
type Rates = BTreeMap<(usize, usize), Vec<f64>>;

/// Runs the scenario.
pub fn run(args: &RunArgs) -> Result<Value> {
    args.pin_tool()?;
    let directory = Directory::make(format_args!("durable-{}", std::process::id()))?;
    let mut rates = Rates::new();
    let mut left_out: BTreeMap<&str, String> = BTreeMap::new();
    for number in 0..args.rounds {
        measure_round(args, directory.path(), &mut rates, &mut left_out)?;
        report::note(&format!("round {} of {}", number + 1, args.rounds));
    }
    let mut rows = serde_json::Map::new();
    for (index, load) in LOADS.iter().enumerate() {
        rows.insert(load.name.into(), report_row(&rates, index, load));
    }
    Ok(json!({
        "rows": rows,
        "size": args.size.unwrap_or(DEFAULT_MESSAGE_BYTES),
        "window_s": args.duration.unwrap_or(DEFAULT_WINDOW_S),
        "rounds": args.rounds,
        "shards": args.shards.unwrap_or(SHARDS),
        "file_system": file_system(directory.path()),
        "left_out": left_out,
        "versions": versions(),
    }))
}

/// Starts all servers, then measures all sides in turn, row by row.
fn measure_round(
    args: &RunArgs,
    directory: &Path,
    rates: &mut Rates,
    left_out: &mut BTreeMap<&'static str, String>,
) -> Result<()> {
    let mut programs = Vec::new();
    for (column, &program) in Program::ALL.iter().enumerate() {
        match start(args, program, directory) {
            Ok(server) => programs.push((column, program, server)),
            Err(error) if !matches!(program, Program::Crore | Program::CroreMqtt) => {
                left_out.insert(program.name(), format!("{error:#}"));
            }
            Err(error) => return Err(error),
        }
    }
    for (index, load) in LOADS.iter().enumerate() {
        for (column, program, server) in &programs {
            if program.supports(load) {
                let rate = measure(args, *program, server.as_ref(), load, directory)
                    .with_context(|| format!("{}, {}", program.name(), load.name))?;
                rates.entry((index, *column)).or_default().push(rate);
            }
        }
    }
    Ok(())
}

/// Prints and returns one row of the result. A ratio to the floor is the median of the rounds' ratios, because the speed of the disk
/// varies from minute to minute.
fn report_row(rates: &Rates, index: usize, load: &PublishLoad) -> Value {
    let mut row = serde_json::Map::new();
    let mut line = format!("{}:", load.name);
    let floor = &rates[&(index, 0)];
    for (column, &program) in Program::ALL.iter().enumerate() {
        let Some(program_rates) = rates.get(&(index, column)) else {
            continue;
        };
        let rate = median(program_rates);
        let ratios: Vec<f64> = program_rates
            .iter()
            .zip(floor)
            .map(|(rate, floor)| rate / floor)
            .collect();
        let ratio = median(&ratios);
        line += &format!(" {} {rate:.0}/s ({ratio:.2})", program.name());
        let value = json!({ "per_s": rate, "of_floor": ratio, "samples": program_rates });
        row.insert(program.name().into(), value);
    }
    report::say(&line);
    Value::Object(row)
}

/// Measures publishes a second of one side under one load.
fn measure(
    args: &RunArgs,
    program: Program,
    server: Option<&Server>,
    load: &PublishLoad,
    directory: &Path,
) -> Result<f64> {
    let (size, seconds) = (
        args.size.unwrap_or(DEFAULT_MESSAGE_BYTES),
        args.duration.unwrap_or(DEFAULT_WINDOW_S),
    );
    let messages_in_flight = load.in_flight * load.batch_messages;
    match (server, program) {
        (Some(server), Program::Nats) => {
            let urls = [format!("nats://{}", server.addresses[0])];
            Ok(bare::publish(&urls, 1, 1, size, messages_in_flight.into(), seconds)?.per_s)
        }
        (Some(server), _) => publish(args, server, program, load, size, seconds),
        (None, Program::Sqlite) => local::sqlite(directory, messages_in_flight, size, seconds),
        (None, _) => {
            let has_zeros = program == Program::FloorOverZeros;
            local::floor(directory, has_zeros, messages_in_flight, size, seconds)
        }
    }
}

/// Starts the server of this side; `None` if the side has no server.
fn start(args: &RunArgs, program: Program, directory: &Path) -> Result<Option<Server>> {
    let kind = match program {
        Program::Floor | Program::FloorOverZeros => return Ok(None),
        Program::Sqlite => {
            local::version("sqlite3").context("sqlite3 is not there")?;
            return Ok(None);
        }
        Program::Crore | Program::CroreMqtt => ServerKind::Crore,
        Program::Nats => ServerKind::Nats,
        Program::Mosquitto => ServerKind::Mosquitto,
    };
    let state = directory.join(program.name());
    let _ = std::fs::remove_dir_all(&state);
    let settings = format!(
        "[limits]\naccepts_per_s = {}\n\n[state]\ndirectory = \"{}\"\n",
        args.accepts(),
        state.display()
    );
    let options = ServerOptions {
        durable: true,
        ..ServerOptions::new(kind, args.shards.unwrap_or(SHARDS), 0)
    };
    let server = Server::start_with(args, options, &settings, None)?;
    if kind == ServerKind::Mosquitto {
        make_absent_session(&server)?;
    }
    Ok(Some(server))
}

/// Creates a persistent session without a connection. Without such a session Mosquitto would have nothing to store.
fn make_absent_session(server: &Server) -> Result<()> {
    let args = MqttArgs {
        qos: 1,
        session: SessionMode::Persistent,
        ..MqttArgs::default()
    };
    let dialect = Dialect::new(&args, false);
    let mut link = Link::open(server.addresses[0], TIMEOUT)?;
    let mut out = Vec::new();
    dialect.write_connect(&client_id(0, 'a', 0), &["#".into()], &mut out);
    link.send(&out)?;
    while !link.read_packet(dialect, |packet| matches!(packet, Packet::Suback { .. }))? {}
    Ok(())
}

/// Timeout for an answer.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(20);

/// Publishes with `crore-bench publish`.
fn publish(
    args: &RunArgs,
    server: &Server,
    program: Program,
    load: &PublishLoad,
    size: usize,
    seconds: f64,
) -> Result<f64> {
    let is_mqtt = program != Program::Crore;
    let connections = if is_mqtt {
        load.in_flight.min(MQTT_CONNECTIONS)
    } else {
        load.in_flight
    };
    let in_flight = (load.in_flight / connections).to_string();
    let (connections, seconds) = (connections.to_string(), seconds.to_string());
    let batch = load.batch_messages.to_string();
    let mut flags = vec![
        "--saturate",
        "--connections",
        &connections,
        "--in-flight",
        &in_flight,
    ];
    flags.extend(["--duration", &seconds]);
    match (is_mqtt, load.batch_messages) {
        (true, _) => flags.extend(["--protocol", "mqtt"]),
        (false, 1) => flags.push("--single"),
        (false, _) => flags.extend(["--batch", &batch]),
    }
    let args = &args.at_qos(u8::from(is_mqtt));
    let result = Publisher::start_with(args, server, TOPICS, size, &flags)?.wait_for_result()?;
    ensure!(
        result["refused"] == 0 && result["unanswered"] == 0,
        "{} refused publishes: {result}",
        server.kind.name()
    );
    let accepted = result["accepted"].as_f64().context("a count")?;
    let seconds = result["seconds"].as_f64().context("a time")?;
    Ok(accepted / seconds)
}

/// The device and the kind of the file system of a path.
fn file_system(path: &Path) -> String {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let fields = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        Some((
            fields.next()?,
            fields.next()?,
            fields.next()?,
            fields.next()?,
        ))
    });
    let mounts_above = fields.filter(|(_, mount, ..)| path.starts_with(mount));
    // If there are several mounts on the same path, the last one is visible.
    let deepest_mount = mounts_above.max_by_key(|(_, mount, ..)| mount.len());
    deepest_mount.map_or("unknown".into(), |(device, _, kind, options)| {
        format!("{kind} on {device} ({options})")
    })
}

fn versions() -> Value {
    json!({
        "sqlite": local::version("sqlite3"),
        "nats": local::version("nats-server"),
        "mosquitto": crate::rig::versions(),
    })
}
