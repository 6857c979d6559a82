//! A writer and a reader of protobuf that know nothing of the codec.

use serde_json::{Map, Value, json};

pub fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub fn number(field: u32, value: u64, out: &mut Vec<u8>) {
    varint(u64::from(field) << 3, out);
    varint(value, out);
}

pub fn bytes(field: u32, value: &[u8], out: &mut Vec<u8>) {
    varint(u64::from(field) << 3 | 2, out);
    delimited(value, out);
}

pub fn delimited(value: &[u8], out: &mut Vec<u8>) {
    varint(value.len() as u64, out);
    out.extend_from_slice(value);
}

/// The type of a field, to turn protobuf into JSON.
#[derive(Clone, Copy)]
pub enum Kind {
    Number,
    Flag,
    Text,
    Data,
    Message(&'static [(u32, &'static str, Kind)]),
    List(&'static [(u32, &'static str, Kind)]),
    Map(&'static [(u32, &'static str, Kind)]),
    Texts,
}

fn read_varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        value |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

pub fn read_bytes<'a>(bytes: &mut &'a [u8]) -> &'a [u8] {
    let len = read_varint(bytes) as usize;
    let (value, rest) = bytes.split_at(len);
    *bytes = rest;
    value
}

/// The JSON that means the same as a message with these fields.
pub fn to_json(mut bytes: &[u8], fields: &[(u32, &'static str, Kind)]) -> Value {
    let mut object = Map::new();
    while !bytes.is_empty() {
        let tag = read_varint(&mut bytes);
        let (_, name, kind) = fields
            .iter()
            .find(|field| u64::from(field.0) == tag >> 3)
            .unwrap_or_else(|| panic!("field {} is unknown", tag >> 3));
        if matches!(kind, Kind::Number | Kind::Flag) {
            assert_eq!(tag & 7, 0, "{name}");
            let value = read_varint(&mut bytes);
            let value = match kind {
                Kind::Flag => json!(value == 1),
                _ => json!(value),
            };
            assert!(object.insert(name.to_string(), value).is_none(), "{name}");
            continue;
        }
        assert_eq!(tag & 7, 2, "{name}");
        let value = read_bytes(&mut bytes);
        match kind {
            Kind::Text => {
                let text = std::str::from_utf8(value).expect("UTF-8");
                object.insert(name.to_string(), json!(text));
            }
            Kind::Data => {
                let data = serde_json::from_slice(value).expect("JSON");
                object.insert(name.to_string(), data);
            }
            Kind::Message(fields) => {
                object.insert(name.to_string(), to_json(value, fields));
            }
            Kind::List(fields) => {
                let list = object.entry(*name).or_insert(json!([]));
                list.as_array_mut()
                    .expect("a list")
                    .push(to_json(value, fields));
            }
            Kind::Map(fields) => {
                let entry = to_json(
                    value,
                    &[(1, "key", Kind::Text), (2, "value", Kind::Data)].map(
                        |(number, name, kind)| match number {
                            2 => (number, name, Kind::Message(fields)),
                            _ => (number, name, kind),
                        },
                    ),
                );
                insert(&mut object, name, &entry, json!({}));
            }
            Kind::Texts => {
                let entry = to_json(value, &[(1, "key", Kind::Text), (2, "value", Kind::Text)]);
                insert(&mut object, name, &entry, json!(""));
            }
            Kind::Number | Kind::Flag => unreachable!("handled above"),
        }
    }
    Value::Object(object)
}

fn insert(object: &mut Map<String, Value>, name: &str, entry: &Value, absent: Value) {
    let map = object.entry(name).or_insert(json!({}));
    let key = entry["key"].as_str().unwrap_or_default();
    let value = entry.get("value").cloned().unwrap_or(absent);
    map[key] = value;
}
