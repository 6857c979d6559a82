//! Fuzz target for Centrifugo's client protocol: the commands of a frame in both forms, the claims of tokens, the names of channels, and deltas.

use crore_wire::centrifugo::{
    ChannelNames, Commands, Error, Format, Limits, Request, Scratch, decode, fossil,
};
use serde_json::Value;

use crate::Input;

/// Commands and parts of them. Words are text, so they have no byte over 0x7f.
pub const WORDS: &[&str] = &[
    "{}",
    "{\"connect\":{\"name\":\"js\",\"token\":\"t\",\"subs\":{\"a\":{\"recover\":true}},\"headers\":{\"b\":\"c\"}},\"id\":1}\n",
    "{\"subscribe\":{\"channel\":\"a\",\"recover\":true,\"epoch\":\"e\",\"offset\":7},\"id\":2}\n",
    "{\"publish\":{\"channel\":\"a\",\"data\":{\"x\":1}},\"id\":3}\n",
    "{\"history\":{\"channel\":\"a\",\"since\":{\"offset\":1},\"limit\":-1},\"id\":4}\n",
    "{\"send\":{\"data\":1}}\n",
    "{\"session\":\"s\",\"node\":\"n\",\"data\":\"{}\"}",
    "{\"sub\":\"u\",\"channels\":[\"a:b\"],\"subs\":{\"c/d\":{\"data\":[1],\"b64data\":\"AQ==\"}},\"meta\":{},\"expire_at\":0}",
    "\"channel\":\"a:b\"",
    "\"id\"",
    "\"\\u0069d\"",
    "\"presence\"",
    "\"rpc\"",
    "\"refresh\"",
    "\"sub_refresh\"",
    "\"unsubscribe\"",
    ":",
    ",",
    "{",
    "}",
    "[",
    "null",
    "\"\\ud83d\\ude00\"",
    "\n",
    "\u{b}\u{8}\u{1}\"\u{7}\"\u{2}go*\u{1}1",
    "\u{9}\u{8}\u{2}*\u{5}\n\u{1}a\u{18}\u{1}",
    "\u{c}\u{8}\u{1}\"\u{8}\u{1a}\u{6}\n\u{1}a\u{12}\u{1}8",
    "\u{4}\u{8}\u{1}Z\0",
    "\u{8}\u{1}",
    "b\u{3}\n\u{1}x",
    "C",
    "D",
];

const LIMITS: Limits = Limits {
    commands: 20,
    subs: 3,
    headers: 3,
};

/// Reads a frame. Checked: the lists stay within their limits, nothing follows an error, data in JSON is JSON, and a line that is read or
/// refused as not JSON is the same to another parser.
pub fn centrifugo(data: &[u8]) {
    let Some(input) = Input::of(data) else { return };
    let format = match input.options & 1 {
        0 => Format::Json,
        _ => Format::Protobuf,
    };
    let mut scratch = Scratch::default();
    let mut commands = Commands::new(format, input.bytes, LIMITS);
    let mut lines = input.bytes.split(|byte| *byte == b'\n');
    for count in 0.. {
        let Some(command) = commands.next(&mut scratch) else {
            break;
        };
        assert!(count <= LIMITS.commands);
        let line = lines.next().unwrap_or_default();
        let theirs = serde_json::from_slice::<Value>(line);
        match command {
            Ok(command) => {
                check(format, &command.request);
                if format == Format::Json {
                    agrees(command.id, theirs);
                }
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                let not_json = matches!(error, Error::Json(fault) if fault != crore_wire::json::Fault::TooDeep);
                assert!(!not_json || theirs.is_err(), "{error} of what others read");
                assert!(commands.next(&mut scratch).is_none());
                break;
            }
        }
    }
    if let Ok(connect) = decode::connect(format, input.bytes, &mut scratch, &LIMITS) {
        check(format, &Request::Connect(connect));
    }
    if let Ok(emulation) = decode::emulation(format, input.bytes, &mut scratch) {
        assert!(emulation.data.len() <= input.bytes.len());
    }
    if let Ok(claims) = decode::connect_claims(input.bytes, &mut scratch, LIMITS.subs) {
        assert!(claims.subs.iter().count() <= LIMITS.subs);
        for sub in claims.subs.iter() {
            check_json(sub.data.json);
        }
        check_json(claims.meta);
    }
    if let Ok(claims) = decode::subscription_claims(input.bytes, &mut scratch) {
        check_json(claims.data.json);
    }
    names(format, input.bytes);
    // Old and new text of a delta: the halves of the input, which repeats where it is grown.
    let (old, new) = input.bytes.split_at(input.bytes.len() / 2);
    let mut delta = Vec::new();
    fossil::create(old, new, &mut Vec::new(), &mut delta);
    assert!(delta.len() <= new.len() + 24);
    if std::str::from_utf8(new).is_ok() {
        assert!(std::str::from_utf8(&delta).is_ok(), "a delta of text");
    }
}

/// Reads the commands twice, with channels and with their topics. Checked: both are the same commands, whose channels and topics lead to each other.
fn names(format: Format, frame: &[u8]) {
    let names = ChannelNames::ColonForSlash;
    let (mut channels, mut topics) = (Scratch::default(), Scratch::new(names));
    let mut with_channels = Commands::new(format, frame, LIMITS);
    let mut with_topics = Commands::new(format, frame, LIMITS);
    loop {
        let found = (
            with_channels.next(&mut channels),
            with_topics.next(&mut topics),
        );
        let (channel, topic) = match found {
            (Some(Ok(one)), Some(Ok(other))) => {
                (channel_of(&one.request), channel_of(&other.request))
            }
            (one, other) => return assert_eq!(one, other),
        };
        assert_eq!(names.exchange(channel), topic);
        assert_eq!(names.exchange(topic), channel);
    }
}

fn channel_of<'a>(request: &Request<'a>) -> &'a str {
    match request {
        Request::Subscribe(subscribe) => subscribe.channel,
        Request::Publish(publish) => publish.channel,
        Request::History(history) => history.channel,
        Request::SubRefresh(refresh) => refresh.channel,
        Request::Unsubscribe(channel)
        | Request::Presence(channel)
        | Request::PresenceStats(channel) => channel,
        _ => "",
    }
}

/// Data of claims is JSON, also if a client speaks protobuf.
fn check_json(data: &[u8]) {
    assert!(data.is_empty() || crore_wire::json::is_json(data));
}

fn check(format: Format, request: &Request<'_>) {
    let data = match request {
        Request::Connect(connect) => {
            assert!(connect.subs.iter().count() <= LIMITS.subs);
            assert!(connect.headers.iter().count() <= LIMITS.headers);
            connect.data
        }
        Request::Subscribe(subscribe) => subscribe.data,
        Request::Publish(publish) => publish.data,
        Request::Send(data) | Request::Rpc { data, .. } => data,
        _ => return,
    };
    if format == Format::Json && !data.is_empty() {
        assert!(crore_wire::json::is_json(data));
    }
}

fn agrees(id: u32, theirs: serde_json::Result<Value>) {
    match theirs {
        Ok(Value::Object(theirs)) => {
            if let Some(theirs) = theirs.get("id").and_then(Value::as_u64) {
                assert_eq!(u64::from(id), theirs);
            }
        }
        Ok(other) => panic!("read {other} as a command"),
        // The other parser rejects numbers that are too large for floating point, which JSON permits.
        Err(error) => assert!(error.to_string().contains("out of range"), "{error}"),
    }
}
