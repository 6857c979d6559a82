//! `crore log dump`: prints a line for each record of a log on disk.

use std::io::{self, BufWriter, ErrorKind, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crore_broker::ControlRecord;
use crore_broker::batch::{self, Header, LogRecord};
use crore_broker::mail::session_record::SessionChange;
use crore_broker::mail::{Change, Fact};
use crore_disk::{BatchPlace, ScanEvent};
use crore_wire::topic;
use serde_json::{Map, Value, json};

use super::source::Source;
use super::survey::hex;

/// Suffix of the names of fields that contain base64, because a client chose their bytes and these are not UTF-8.
const BASE64: &str = "_base64";

/// Prints the records that match the filter and the partition. Returns whether the log is undamaged.
pub fn dump(
    source: &Source,
    filter: Option<&str>,
    partition: Option<u16>,
    as_json: bool,
) -> anyhow::Result<bool> {
    let mut out = BufWriter::new(io::stdout().lock());
    let (mut written, mut is_good) = (Ok(()), true);
    let mut damage = |message: String| {
        is_good = false;
        // If stderr is closed, the exit code still reports the damage.
        let _ = writeln!(io::stderr(), "crore: damage: {message}");
    };
    let recovered = source.walk(|found| {
        let (place, bytes) = match found {
            _ if written.is_err() => return,
            ScanEvent::Damage(message) => return damage(message.to_string()),
            ScanEvent::Batch(place, bytes) => (place, bytes),
        };
        let header = Header::read(bytes);
        let read = header.and_then(|header| {
            if partition.is_some_and(|partition| partition != header.partition) {
                return Ok(());
            }
            let each = |offset, entry: LogRecord<'_>| {
                if written.is_ok() && is_wanted(&entry, filter) {
                    let row = row(&place, &header, offset, &entry);
                    let line = if as_json {
                        Value::Object(row).to_string()
                    } else {
                        line(&row)
                    };
                    written = writeln!(out, "{line}");
                }
            };
            batch::for_each_record(bytes, each).map(|_| ())
        });
        if let Err(reason) = read {
            damage(format!(
                "a batch in segment {} at byte {} cannot be read: {reason}",
                place.segment, place.batch_offset
            ));
        }
    })?;
    match written.and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            anyhow::bail!("stdout: {error}");
        }
        _ => {}
    }
    if let Some(torn) = recovered.torn_group {
        let _ = writeln!(
            io::stderr(),
            "crore: the log is torn in segment {} at byte {}: a group was being written; it is no damage",
            torn.segment,
            torn.offset
        );
    }
    Ok(is_good)
}

fn is_wanted(entry: &LogRecord<'_>, filter: Option<&str>) -> bool {
    match (filter, entry) {
        (None, _) => true,
        (Some(filter), LogRecord::Fact(fact)) => {
            topic::matches(filter.as_bytes(), fact.topic().name)
        }
        (Some(_), LogRecord::Control(_) | LogRecord::Session(_)) => false,
    }
}

/// The fields of a record, by name.
fn row(
    place: &BatchPlace,
    header: &Header,
    offset: u64,
    entry: &LogRecord<'_>,
) -> Map<String, Value> {
    let mut row = Map::new();
    let mut put = |name: &str, value: Value| _ = row.insert(name.to_string(), value);
    put("segment", json!(place.segment));
    put("group", json!(place.group));
    put("partition", json!(header.partition));
    put("offset", json!(offset));
    put("unix_s", json!(header.unix_s));
    put("writer", json!(hex(header.writer)));
    put("kind", json!(entry.kind().name()));
    let fact = match entry {
        LogRecord::Control(control) => {
            match control {
                ControlRecord::Mark(until) => put("until", json!(until)),
                ControlRecord::Heartbeat(_) | ControlRecord::Start => {}
                ControlRecord::Dead(of) | ControlRecord::Steward(of) => put("of", json!(hex(*of))),
                ControlRecord::Group(group) => {
                    put_bytes(&mut put, "filter", group.filter);
                    put_bytes(&mut put, "share", group.name);
                    put("until", json!(group.offset));
                }
                ControlRecord::Release(release) => {
                    put("of", json!(hex(release.key.session.number())));
                    put("packet_id", json!(release.key.packet_id));
                }
            }
            return row;
        }
        LogRecord::Session(session) => {
            put_bytes(&mut put, "session", session.name);
            match &session.change {
                SessionChange::Claim {
                    clean, expiry_s, ..
                } => {
                    put("clean", json!(clean));
                    put("expiry_s", json!(expiry_s));
                }
                SessionChange::State(state) => {
                    put("held", json!(state.terms.is_held));
                    put("expiry_s", json!(state.terms.expiry_s));
                    put("bytes", json!(state.bytes.len()));
                }
                SessionChange::Patch(parts) => {
                    if let Some(terms) = &parts.terms {
                        put("held", json!(terms.is_held));
                        put("expiry_s", json!(terms.expiry_s));
                    }
                    put("bytes", json!(parts.changes.len()));
                }
                SessionChange::End { .. } => {}
            }
            return row;
        }
        LogRecord::Fact(fact) => fact,
    };
    put_bytes(&mut put, "topic", fact.topic().name);
    match fact {
        Fact::Topic {
            change: Change::PurgeSome(until, most),
            ..
        } => {
            put("until", json!(until));
            put("most", json!(most));
        }
        Fact::Topic { .. } => {}
        Fact::Publish(message) => {
            let headers = &message.headers;
            put("bytes", json!(message.data.len()));
            let named = ["content_type", "event", "key"];
            for (name, field) in named.into_iter().zip(headers.fields()) {
                if !field.is_empty() {
                    put_bytes(&mut put, name, field);
                }
            }
            if !headers.attributes.is_empty() {
                put(
                    "attributes_base64",
                    json!(STANDARD.encode(headers.attributes)),
                );
            }
            put("qos", json!(headers.qos));
            put("retain", json!(headers.retain));
            if let Some(ttl_s) = headers.ttl_s {
                put("ttl_s", json!(ttl_s));
            }
            if let Some(dedup) = &message.dedup {
                put_bytes(&mut put, "idempotency_key", dedup.key);
            }
            put_bytes(&mut put, "data", message.data);
        }
    }
    row
}

/// Adds a field whose bytes a client chose: as text if the bytes are UTF-8, otherwise in base64.
fn put_bytes(put: &mut impl FnMut(&str, Value), name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => put(name, json!(text)),
        Err(_) => put(&format!("{name}{BASE64}"), json!(STANDARD.encode(bytes))),
    }
}

/// The fields as a line of text, without the message's data.
fn line(row: &Map<String, Value>) -> String {
    /// The first fields of the line, in this order.
    const FIRST: [&str; 8] = [
        "segment",
        "group",
        "partition",
        "offset",
        "unix_s",
        "kind",
        "topic",
        "bytes",
    ];
    const LEFT_OUT: [&str; 4] = ["writer", "data", "data_base64", "attributes_base64"];
    let first = FIRST.into_iter().filter_map(|name| row.get_key_value(name));
    let first = first.map(|(name, value)| (name.as_str(), value));
    let rest = row.iter().map(|(name, value)| (name.as_str(), value));
    let rest = rest.filter(|(name, _)| !FIRST.contains(name) && !LEFT_OUT.contains(name));
    let field = |(name, value): (&str, &Value)| match value {
        // Text is quoted, so that text from a client cannot control the terminal or look like a field.
        Value::String(text) if name != "kind" => format!("{name}={text:?}"),
        Value::String(text) => format!("{name}={text}"),
        value => format!("{name}={value}"),
    };
    first.chain(rest).map(field).collect::<Vec<_>>().join(" ")
}
