//! Fuzz target for the JSON lines of a batch publish, whose parser is compared with another JSON parser.

use crore_wire::json::Fault;
use crore_wire::ndjson::{self as lines, Line, LineError, Scratch};
use serde_json::Value;

use crate::Input;

pub const WORDS: &[&str] = &[
    "{\"topic\":\"a\",\"data\":\"x\"}",
    "\n",
    "\"topic\"",
    "\"data\"",
    "\"data_base64\"",
    "\"content_type\"",
    "\"event\"",
    "\"key\"",
    "\"idempotency_key\"",
    "\"ttl_s\"",
    ":",
    ",",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\\u00e9",
    "\\ud83d\\ude00",
    "\\ud83d",
    "\\n",
    "1.5e-3",
    "-0",
    "4294967296",
    "true",
    "null",
    "eHg=",
    " ",
    "\u{e9}",
];

/// Parses the lines of a batch. Checked: accepted lines are JSON and mean the same to another parser. Lines refused as not JSON are not
/// JSON.
pub fn ndjson(data: &[u8]) {
    let Some(input) = Input::of(data) else { return };
    let mut scratch = Scratch::default();
    let mut rest = input.bytes;
    while !rest.is_empty() {
        let before = rest.len();
        let (line, after) = lines::split_line(rest);
        assert!(after.len() < before, "every line is an end nearer");
        rest = after;
        let theirs = serde_json::from_slice::<Value>(line);
        match lines::parse(line, &mut scratch) {
            Ok(ours) => agrees(line, &ours, theirs),
            Err(error) if is_about_json(error) => {
                assert!(theirs.is_err(), "{error:?} of what others read");
            }
            Err(error) => assert!(!error.reason().is_empty()),
        }
        lines::leading_topic(line);
    }
}

/// Whether the error says that the line is not JSON.
fn is_about_json(error: LineError) -> bool {
    matches!(error, LineError::Json(fault) if fault != Fault::TooDeep)
}

fn agrees(line: &[u8], ours: &Line<'_>, theirs: serde_json::Result<Value>) {
    let theirs = match theirs {
        Ok(theirs) => theirs,
        // The other parser rejects numbers that are too large for floating point, which JSON permits.
        Err(error) if error.to_string().contains("out of range") => return,
        Err(error) => panic!("{error} in {:?}", String::from_utf8_lossy(line)),
    };
    // An optional field that is null counts as absent.
    let given = |name: &str| theirs.get(name).filter(|value| !value.is_null());
    let text = |name: &str| given(name).map_or("", |value| value.as_str().expect("a string"));
    assert_eq!(ours.topic, text("topic").as_bytes());
    assert_eq!(ours.content_type, text("content_type").as_bytes());
    assert_eq!(ours.event, text("event").as_bytes());
    assert_eq!(ours.key, text("key").as_bytes());
    let key = given("idempotency_key").map(|_| text("idempotency_key"));
    assert_eq!(ours.idempotency_key, key.map(str::as_bytes));
    assert_eq!(ours.ttl_s.is_some(), given("ttl_s").is_some());
    if let (Some(ours), Some(theirs)) = (ours.ttl_s, theirs["ttl_s"].as_u64()) {
        assert_eq!(u64::from(ours), theirs.min(u32::MAX.into()));
    }
    match theirs.get("data") {
        Some(Value::String(text)) => assert_eq!(ours.data, text.as_bytes()),
        Some(value) => {
            let again: Value = serde_json::from_slice(ours.data).expect("the value's own text");
            assert_eq!(again, *value);
        }
        None => assert!(ours.binary && ours.data.len() <= text("data_base64").len()),
    }
    assert!(ours.binary || std::str::from_utf8(ours.data).is_ok());
}
