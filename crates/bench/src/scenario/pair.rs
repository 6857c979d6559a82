//! `pair`: the floor (a minimal reference server), Crore and the chosen peers (other products) do the same work in turn. The result is the
//! ratios of the medians.
//!
//! On a shared machine a server can be compared only with others that run on the same machine at the same time, because then other work
//! slows all of them alike. In most rows a measurement starts new processes, and the measured server has the machine alone. In rows where
//! the servers differ little, all servers run at the same time instead, and a round measures each in several short windows, in turn.
//! `--pin` gives the server and the tools a core each.
//!
//! The floor always speaks WebSocket, and Mosquitto always MQTT. The others speak `--protocol`. MQTT has its own rows, with Mosquitto as the reference and
//! without the floor. `--transport` compares Crore over two kinds of TCP instead (`transports`). The result includes faults of the peers, but only faults
//! of Crore make the run fail.

mod fan_out;
mod measure;
mod transports;

use anyhow::{Result, ensure};
use serde_json::{Map, Value, json};

use crate::measure::stats::median;
use crate::report;
use crate::rig::{RunArgs, ServerKind, Transport, versions};
use crate::subscribe::Protocol;
use fan_out::fan_out_with;
use measure::WindowResults;

/// A server counts as saturated if it needs at least this share of its core, in the median of the rounds.
const SATURATED: f64 = 0.95;

/// How a round of a row is measured.
enum Measure {
    /// One server after another, each alone on the machine.
    Alone(fn(&RunArgs, ServerKind) -> Result<Value>),
    /// All servers run at the same time, and are measured in turn, in short windows.
    SideBySide(fn(&RunArgs, &[ServerKind]) -> Vec<WindowResults>),
}

/// A row: its name, how it is measured, and which values are compared.
struct Row {
    name: &'static str,
    measure: Measure,
    values: RowValues,
}

type RowValues = &'static [&'static str];

impl Row {
    const fn alone(
        name: &'static str,
        measure: fn(&RunArgs, ServerKind) -> Result<Value>,
        values: RowValues,
    ) -> Row {
        Row {
            name,
            measure: Measure::Alone(measure),
            values,
        }
    }

    const fn at_rate(values: RowValues) -> Row {
        Row {
            name: "rate",
            measure: Measure::SideBySide(measure::at_rate),
            values,
        }
    }
}

const ROWS: [Row; 12] = [
    Row::alone("unicast", measure::unicast, &["deliveries_per_s"]),
    Row::alone("unicast-log", measure::logged, &["share_of_no_log"]),
    Row::alone("post", measure::post, &[CPU]),
    Row::alone("fan-out", measure::fan_out, &["deliveries_per_s"]),
    Row::alone(
        "fan-out-1",
        |args, kind| fan_out_with(args, kind, 1),
        &FAN_OUT,
    ),
    Row::alone(
        "fan-out-4",
        |args, kind| fan_out_with(args, kind, 4),
        &FAN_OUT,
    ),
    Row::alone(
        "fan-out-16",
        |args, kind| fan_out_with(args, kind, 16),
        &FAN_OUT,
    ),
    Row::alone(
        "fan-out-64",
        |args, kind| fan_out_with(args, kind, 64),
        &FAN_OUT,
    ),
    Row::alone(
        "fan-out-256",
        |args, kind| fan_out_with(args, kind, 256),
        &FAN_OUT,
    ),
    Row::alone("broadcast", measure::broadcasts, &["last_has_it_ms"]),
    Row::at_rate(&["p99_ms", CPU]),
    Row::alone("idle", measure::idle, &IDLE),
];

/// The rows over MQTT.
const MQTT_ROWS: [Row; 7] = [
    Row::alone("unicast", measure::unicast, &FLOW),
    Row::alone("fan-out", measure::fan_out, &FLOW),
    Row::alone("acknowledged", measure::acknowledged, &FLOW),
    Row::alone("quality-1", measure::quality_1, &FLOW),
    Row::alone("broadcast", measure::broadcasts, &["last_has_it_ms"]),
    Row::at_rate(&["p99_ms", CPU]),
    Row::alone("idle", measure::idle, &IDLE),
];

const FLOW: [&str; 2] = ["deliveries_per_s", CPU];
/// The values of a fan-out with a fixed number of messages in flight. The row's name ends with that number.
const FAN_OUT: [&str; 3] = ["deliveries_per_s", "p50_ms", "messages_per_read"];
const IDLE: [&str; 2] = ["handshake_cpu_us", "pss_bytes"];
const CPU: &str = "server_cpu_us_per_delivery";

fn is_mqtt(args: &RunArgs) -> bool {
    matches!(args.subscribe_protocol(), Protocol::Mqtt | Protocol::MqttWs)
}

/// The measured servers. Over MQTT these are only the servers that speak it.
fn kinds(args: &RunArgs) -> Vec<ServerKind> {
    if is_mqtt(args) {
        return vec![ServerKind::Crore, ServerKind::Mosquitto];
    }
    let mut kinds = vec![ServerKind::Floor, ServerKind::Crore];
    for peer in &args.peer {
        if !kinds.contains(peer) {
            kinds.push(*peer);
        }
    }
    kinds
}

/// Runs the rows, each `--rounds` times.
pub fn run(args: &RunArgs) -> Result<Value> {
    if let Some(transport) = args.transport {
        ensure!(
            transport == Transport::Xdp,
            "pair compares Crore over the kernel's TCP with Crore over its own: --transport xdp"
        );
        return transports::run(args);
    }
    let known_rows: &[Row] = if is_mqtt(args) { &MQTT_ROWS } else { &ROWS };
    let is_known = |name: &String| known_rows.iter().any(|row| row.name == *name);
    let names: Vec<&str> = known_rows.iter().map(|row| row.name).collect();
    ensure!(
        args.rows.iter().all(is_known),
        "rows are {}",
        names.join(", ")
    );
    ensure!(args.rounds > 0, "at least one round");
    let kinds = kinds(args);
    let mut rows = Map::new();
    for row in known_rows {
        if args.rows.is_empty() || args.rows.iter().any(|name| name == row.name) {
            rows.insert(row.name.into(), measure_row(args, row, &kinds)?);
        }
    }
    let clean = rows.values().all(|row| row["clean"] == true);
    let sides: Map<String, Value> = kinds
        .iter()
        .map(|kind| {
            let protocol = kind.protocol(args.subscribe_protocol()).name();
            let side = json!({ "subscribers": protocol, "publisher": kind.publish_flags(args.publish_protocol()).1 });
            (kind.name().into(), side)
        })
        .collect();
    Ok(json!({
        "clean": clean,
        "rounds": args.rounds,
        "protocol": args.subscribe_protocol().name(),
        "mqtt": is_mqtt(args).then(|| args.mqtt.flags().join(" ")),
        "sides": sides,
        "packages": versions(),
        "rows": rows,
    }))
}

/// The results of one side of a row in all rounds.
struct Side {
    kind: ServerKind,
    runs: Vec<Value>,
    faults: Vec<String>,
}

impl Side {
    /// Adds the result of a measurement. A failure of a peer is only recorded; a failure of Crore or the floor ends the run.
    fn record(&mut self, row: &str, run: Result<Value>) -> Result<()> {
        let number = self.runs.len() + 1;
        let is_peer = !matches!(self.kind, ServerKind::Floor | ServerKind::Crore);
        let run = match run {
            Ok(run) => run,
            Err(error) if is_peer => json!({ "clean": false, "error": format!("{error:#}") }),
            Err(error) => return Err(error.context(format!("{row}: {}", self.kind.name()))),
        };
        if let Some(trouble) = describe_faults(&run) {
            let text = format!("run {number}: {trouble}");
            report::say(&format!("{row:<10} {}: {text}", self.kind.name()));
            self.faults.push(text);
        }
        self.runs.push(run);
        Ok(())
    }

    /// Whether the server was saturated. `None` if the row does not try to saturate it.
    fn is_saturated(&self) -> Option<bool> {
        let is_wanted = self.runs.iter().any(|run| run["is_saturating"] == true);
        is_wanted.then(|| self.core_demand() >= SATURATED)
    }

    /// The share of its core that the server wanted: the time in which the server ran, plus the time in which it waited because other
    /// processes had the core.
    fn core_demand(&self) -> f64 {
        let (busy, waited) = ("server_cores_busy", "server_cores_waited_for");
        self.median_by(|run| Some(run[busy].as_f64()? + run[waited].as_f64()?))
    }

    /// The median of a value over the rounds that have it. NaN if no round has it.
    fn median(&self, name: &str) -> f64 {
        self.median_by(|run| run[name].as_f64())
    }

    fn median_by(&self, value: impl Fn(&Value) -> Option<f64>) -> f64 {
        let values: Vec<f64> = self.runs.iter().filter_map(value).collect();
        median(&values)
    }
}

/// The faults of a run, in words.
fn describe_faults(run: &Value) -> Option<String> {
    let mut parts = Vec::new();
    if let Some(error) = run["error"].as_str() {
        parts.push(error.to_string());
    }
    let counts = [
        ("lost", "lost without a word"),
        ("told_lost", "lost, and told so"),
        ("doubled", "doubled"),
        ("misdelivered", "misdelivered"),
    ];
    for (name, words) in counts {
        if run[name].as_u64() > Some(0) {
            parts.push(format!("{} messages {words}", run[name]));
        }
    }
    let published = &run["published"];
    if published["refused"].as_u64() > Some(0) {
        parts.push(format!("{} messages refused", published["refused"]));
    }
    if run["incomplete"].as_u64() > Some(0) {
        parts.push(format!(
            "{} broadcasts did not reach all",
            run["incomplete"]
        ));
    }
    if let Some(text) = run["complaints"].as_str() {
        parts.push(format!("its log says: {text}"));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Measures all servers in all rounds, and returns the medians, their ratios and the runs.
fn measure_row(args: &RunArgs, row: &Row, kinds: &[ServerKind]) -> Result<Value> {
    let mut sides: Vec<Side> = kinds
        .iter()
        .map(|kind| Side {
            kind: *kind,
            runs: Vec::new(),
            faults: Vec::new(),
        })
        .collect();
    for _ in 0..args.rounds {
        match row.measure {
            Measure::Alone(measure) => {
                for side in &mut sides {
                    side.record(row.name, measure(args, side.kind))?;
                }
            }
            Measure::SideBySide(measure) => {
                for (side, runs) in sides.iter_mut().zip(measure(args, kinds)) {
                    runs.into_iter()
                        .try_for_each(|run| side.record(row.name, run))?;
                }
            }
        }
    }
    let values: Map<String, Value> = row
        .values
        .iter()
        .map(|name| ((*name).into(), compare(args, row.name, name, &sides)))
        .collect();
    tell_bottleneck(row.name, &sides);
    let saturated: Map<String, Value> = sides
        .iter()
        .filter_map(|side| Some((side.kind.name().into(), side.is_saturated()?.into())))
        .collect();
    let clean = sides
        .iter()
        .filter(|side| side.kind == ServerKind::Crore)
        .all(|side| side.runs.iter().all(|run| run["clean"] == true));
    let by_server = |value_of: fn(&Side) -> Value| -> Map<String, Value> {
        let pairs = sides
            .iter()
            .map(|side| (side.kind.name().into(), value_of(side)));
        pairs.filter(|(_, value)| *value != json!([])).collect()
    };
    Ok(json!({
        "clean": clean,
        "protocol": args.subscribe_protocol().name(),
        "values": values,
        "saturated": saturated,
        "troubles": by_server(|side| json!(side.faults)),
        "runs": by_server(|side| json!(side.runs)),
    }))
}

/// Prints and returns the medians of one value and their ratios to the reference: the floor, or Mosquitto over MQTT.
fn compare(args: &RunArgs, row: &str, name: &str, sides: &[Side]) -> Value {
    let reference = [ServerKind::Floor, ServerKind::Mosquitto][usize::from(is_mqtt(args))];
    let reference_side = sides.iter().find(|side| side.kind == reference);
    let reference_median = reference_side.map_or(f64::NAN, |side| side.median(name));
    let (mut medians, mut ratios, mut texts) = (Map::new(), Map::new(), Vec::new());
    for side in sides {
        let (server, value) = (side.kind.name(), side.median(name));
        medians.insert(server.into(), json!(value));
        if side.kind != reference {
            ratios.insert(server.into(), json!(value / reference_median));
        }
        texts.push(match side.kind {
            kind if kind == reference => format!("{server} {value:.3}"),
            _ if value.is_nan() => format!("{server} not measured"),
            _ => format!("{server} {value:.3} ({:.3})", value / reference_median),
        });
    }
    report::say(&format!(
        "{row:<10} {name} over {}: {}",
        args.subscribe_protocol().name(),
        texts.join(", "),
    ));
    let name = format!("ratios_to_{}", reference.name());
    json!({ "medians": medians, name: ratios })
}

/// Prints for which servers the load tool was the bottleneck, and which servers were not saturated.
fn tell_bottleneck(row: &str, sides: &[Side]) {
    for side in sides {
        let bottleneck = |run: &Value| run["bottleneck"].as_str().map(str::to_string);
        let is_tool = |text: &String| text.starts_with("TOOL");
        if side
            .runs
            .iter()
            .filter_map(bottleneck)
            .any(|text| is_tool(&text))
        {
            let server = side.kind.name();
            report::say(&format!(
                "{row:<10} {server}: the load tool was the bottleneck in some runs"
            ));
        }
        if side.is_saturated() == Some(false) {
            report::say(&format!(
                "{row:<10} {}: it wanted {:.2} of its core only, and could do more",
                side.kind.name(),
                side.core_demand()
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_failures_have_texts() {
        assert_eq!(describe_faults(&json!({ "clean": true, "lost": 0 })), None);
        let run = json!({ "lost": 3, "published": { "refused": 1 }, "complaints": "no memory" });
        assert_eq!(
            describe_faults(&run).unwrap(),
            "3 messages lost without a word; 1 messages refused; its log says: no memory"
        );
    }

    #[test]
    fn a_round_without_the_value_does_not_count() {
        let runs = vec![
            json!({ "x": 1.0 }),
            json!({ "error": "e" }),
            json!({ "x": 3.0 }),
        ];
        let side = Side {
            kind: ServerKind::Nchan,
            runs,
            faults: vec![],
        };
        assert_eq!(side.median("x"), 2.0);
        assert!(side.median("y").is_nan());
    }

    #[test]
    fn a_server_is_saturated_by_the_median_of_the_rows_that_fill_it() {
        let side = |busy: &[f64], fills: bool| {
            let run = |wanted: &f64| {
                json!({
                    "server_cores_busy": wanted - 0.125,
                    "server_cores_waited_for": 0.125,
                    "is_saturating": fills,
                })
            };
            Side {
                kind: ServerKind::Crore,
                runs: busy.iter().map(run).collect(),
                faults: vec![],
            }
        };
        assert_eq!(side(&[0.97, 0.6, 0.96], true).is_saturated(), Some(true));
        assert_eq!(side(&[0.97, 0.6, 0.7], true).is_saturated(), Some(false));
        assert_eq!(side(&[0.1], false).is_saturated(), None);
    }
}
