//! Tests that a command means the same as JSON and as protobuf, with and without escapes.

use crore_wire::centrifugo::Format::{Json, Protobuf};
use crore_wire::centrifugo::{Commands, Scratch};
use proptest::prelude::*;

use crate::LIMITS;
use crate::proto::{bytes, delimited, number};

/// A value of a field.
#[derive(Clone, Debug)]
enum Value {
    Text(String),
    Data(String),
    Number(u64),
    Int(i32),
    Bool(bool),
    Message(Vec<Field>),
    /// A map, whose values are texts or messages.
    Map(Vec<(String, Value)>),
}

type Field = (&'static str, u32, Value);

/// A string of JSON. With `escaped` each character is an escape.
fn json_string(text: &str, escaped: bool, out: &mut String) {
    if !escaped {
        out.push_str(&serde_json::to_string(text).expect("a string"));
        return;
    }
    out.push('"');
    for unit in text.encode_utf16() {
        out.push_str(&format!("\\u{unit:04x}"));
    }
    out.push('"');
}

fn to_json(value: &Value, escaped: bool, out: &mut String) {
    match value {
        Value::Text(text) => json_string(text, escaped, out),
        Value::Data(data) => out.push_str(data),
        Value::Number(number) => out.push_str(&number.to_string()),
        Value::Int(number) => out.push_str(&number.to_string()),
        Value::Bool(flag) => out.push_str(&flag.to_string()),
        Value::Message(fields) => {
            let members = fields.iter().map(|(name, _, value)| (*name, value));
            object(members, escaped, out);
        }
        Value::Map(entries) => {
            let members = entries.iter().map(|(name, value)| (name.as_str(), value));
            object(members, escaped, out);
        }
    }
}

fn object<'a>(
    members: impl Iterator<Item = (&'a str, &'a Value)>,
    escaped: bool,
    out: &mut String,
) {
    out.push('{');
    for (at, (name, value)) in members.enumerate() {
        if at > 0 {
            out.push_str(" , ");
        }
        json_string(name, escaped, out);
        out.push_str(": ");
        to_json(value, escaped, out);
    }
    out.push('}');
}

fn to_protobuf(field: u32, value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Text(text) | Value::Data(text) => bytes(field, text.as_bytes(), out),
        Value::Number(value) => number(field, *value, out),
        Value::Int(value) => number(field, i64::from(*value) as u64, out),
        Value::Bool(flag) => number(field, (*flag).into(), out),
        Value::Message(fields) => bytes(field, &message(fields), out),
        Value::Map(entries) => {
            for (name, value) in entries {
                let mut entry = Vec::new();
                to_protobuf(2, value, &mut entry);
                bytes(1, name.as_bytes(), &mut entry);
                bytes(field, &entry, out);
            }
        }
    }
}

fn message(fields: &[Field]) -> Vec<u8> {
    let mut out = Vec::new();
    for (_, number, value) in fields {
        to_protobuf(*number, value, &mut out);
    }
    out
}

fn text() -> impl Strategy<Value = Value> {
    any::<String>().prop_map(Value::Text)
}

fn data() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<Option<i64>>().prop_map(|number| serde_json::json!(number)),
        any::<String>().prop_map(|text| serde_json::json!({ "a": [text, {}] })),
    ]
    .prop_map(|json| Value::Data(json.to_string()))
}

fn flag() -> impl Strategy<Value = Value> {
    any::<bool>().prop_map(Value::Bool)
}

fn offset() -> impl Strategy<Value = Value> {
    any::<u64>().prop_map(Value::Number)
}

fn int() -> impl Strategy<Value = Value> {
    any::<i32>().prop_map(Value::Int)
}

/// A part of these fields, in this order.
fn some_fields(fields: Vec<(&'static str, u32, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    let fields: Vec<_> = fields
        .into_iter()
        .map(|(name, number, value)| {
            prop::option::of(value.prop_map(move |value| (name, number, value)))
        })
        .collect();
    fields
        .prop_map(|fields| Value::Message(fields.into_iter().flatten().collect()))
        .boxed()
}

fn subscribe() -> BoxedStrategy<Value> {
    some_fields(vec![
        ("channel", 1, text().boxed()),
        ("token", 2, text().boxed()),
        ("recover", 3, flag().boxed()),
        ("epoch", 6, text().boxed()),
        ("offset", 7, offset().boxed()),
        ("data", 8, data().boxed()),
        ("positioned", 9, flag().boxed()),
        ("recoverable", 10, flag().boxed()),
        ("join_leave", 11, flag().boxed()),
        ("delta", 12, text().boxed()),
        ("tf", 13, some_fields(vec![("key", 2, text().boxed())])),
        ("flag", 14, offset().boxed()),
        ("type", 15, int().boxed()),
    ])
}

fn map(value: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    prop::collection::vec((any::<String>(), value), 0..4)
        .prop_map(Value::Map)
        .boxed()
}

fn request() -> BoxedStrategy<Field> {
    let channel = || ("channel", 1, text().boxed());
    let connect = some_fields(vec![
        ("token", 1, text().boxed()),
        ("data", 2, data().boxed()),
        ("subs", 3, map(subscribe())),
        ("name", 4, text().boxed()),
        ("version", 5, text().boxed()),
        ("headers", 6, map(text().boxed())),
        ("flag", 7, offset().boxed()),
    ]);
    let since = some_fields(vec![
        ("offset", 1, offset().boxed()),
        ("epoch", 2, text().boxed()),
    ]);
    let history = some_fields(vec![
        channel(),
        ("limit", 7, int().boxed()),
        ("since", 8, since),
        ("reverse", 9, flag().boxed()),
    ]);
    let publish = some_fields(vec![
        channel(),
        ("data", 2, data().boxed()),
        ("type", 3, int().boxed()),
        ("key", 4, text().boxed()),
    ]);
    let rpc = some_fields(vec![
        ("data", 1, data().boxed()),
        ("method", 2, text().boxed()),
    ]);
    let sub_refresh = some_fields(vec![
        channel(),
        ("token", 2, text().boxed()),
        ("type", 3, int().boxed()),
    ]);
    let kinds = vec![
        ("connect", 4, connect),
        ("subscribe", 5, subscribe()),
        ("unsubscribe", 6, some_fields(vec![channel()])),
        ("publish", 7, publish),
        ("presence", 8, some_fields(vec![channel()])),
        ("presence_stats", 9, some_fields(vec![channel()])),
        ("history", 10, history),
        ("ping", 11, some_fields(vec![])),
        ("send", 12, some_fields(vec![("data", 1, data().boxed())])),
        ("rpc", 13, rpc),
        (
            "refresh",
            14,
            some_fields(vec![("token", 1, text().boxed())]),
        ),
        ("sub_refresh", 15, sub_refresh),
    ];
    let kinds = kinds
        .into_iter()
        .map(|(name, number, value)| value.prop_map(move |value| (name, number, value)).boxed());
    proptest::strategy::Union::new(kinds).boxed()
}

proptest! {
    #[test]
    fn json_and_protobuf_of_a_command_mean_the_same(id in 1..=u32::MAX, request in request(), escaped in any::<bool>()) {
        let command = vec![("id", 1, Value::Number(id.into())), request];
        let mut line = String::new();
        to_json(&Value::Message(command.clone()), escaped, &mut line);
        let mut frame = Vec::new();
        delimited(&message(&command), &mut frame);
        let (mut json_scratch, mut protobuf_scratch) = (Scratch::default(), Scratch::default());
        let json = Commands::new(Json, line.as_bytes(), LIMITS).next(&mut json_scratch);
        let json = json.expect("a command").expect("valid");
        let protobuf = Commands::new(Protobuf, &frame, LIMITS).next(&mut protobuf_scratch);
        let protobuf = protobuf.expect("a command").expect("valid");
        prop_assert_eq!(json, protobuf);
        prop_assert_eq!(json.id, id);
    }
}
