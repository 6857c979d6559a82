//! Tests replies and pushes: the bytes of Centrifugo, and that both forms mean the same.

use crore_wire::centrifugo::Format::{Json, Protobuf};
use crore_wire::centrifugo::codes::{Disconnect, ErrorCode};
use crore_wire::centrifugo::{
    Answer, ClientInfo, ConnectResult, ErrorReply, Format, HistoryResult, NotJson, Payload,
    Publication, Push, Reply, SubscribeResult, encode,
};
use proptest::prelude::*;
use serde_json::Value;

use crate::proto::{Kind, read_bytes, to_json};

const NO_DATA: Payload<'static> = Payload::Value(b"");

const PUBLICATION: Publication<'static> = Publication {
    data: Payload::Value(br#"{"input":"x"}"#),
    info: None,
    offset: 7,
    tags: &[],
    delta: false,
};

type Fields = &'static [(u32, &'static str, Kind)];

const INFO: Fields = &[
    (1, "user", Kind::Text),
    (2, "client", Kind::Text),
    (3, "conn_info", Kind::Data),
    (4, "chan_info", Kind::Data),
];
const PUB: Fields = &[
    (4, "data", Kind::Data),
    (5, "info", Kind::Message(INFO)),
    (6, "offset", Kind::Number),
    (7, "tags", Kind::Texts),
    (8, "delta", Kind::Flag),
];
const SUBSCRIBED: Fields = &[
    (1, "expires", Kind::Flag),
    (2, "ttl", Kind::Number),
    (3, "recoverable", Kind::Flag),
    (6, "epoch", Kind::Text),
    (7, "publications", Kind::List(PUB)),
    (8, "recovered", Kind::Flag),
    (9, "offset", Kind::Number),
    (10, "positioned", Kind::Flag),
    (11, "data", Kind::Data),
    (12, "was_recovering", Kind::Flag),
    (13, "delta", Kind::Flag),
];
const DATA: Fields = &[(1, "data", Kind::Data)];
const WITH_INFO: Fields = &[(1, "info", Kind::Message(INFO))];
const UNTIL: Fields = &[(1, "expires", Kind::Flag), (2, "ttl", Kind::Number)];
const PUSH: Fields = &[
    (2, "channel", Kind::Text),
    (4, "pub", Kind::Message(PUB)),
    (5, "join", Kind::Message(WITH_INFO)),
    (6, "leave", Kind::Message(WITH_INFO)),
    (
        7,
        "unsubscribe",
        Kind::Message(&[(2, "code", Kind::Number), (3, "reason", Kind::Text)]),
    ),
    (8, "message", Kind::Message(DATA)),
    (
        9,
        "subscribe",
        Kind::Message(&[
            (1, "recoverable", Kind::Flag),
            (4, "epoch", Kind::Text),
            (5, "offset", Kind::Number),
            (6, "positioned", Kind::Flag),
            (7, "data", Kind::Data),
        ]),
    ),
    (
        10,
        "connect",
        Kind::Message(&[
            (1, "client", Kind::Text),
            (2, "version", Kind::Text),
            (3, "data", Kind::Data),
            (4, "subs", Kind::Map(SUBSCRIBED)),
            (5, "expires", Kind::Flag),
            (6, "ttl", Kind::Number),
            (7, "ping", Kind::Number),
            (8, "pong", Kind::Flag),
            (9, "session", Kind::Text),
            (10, "node", Kind::Text),
        ]),
    ),
    (
        11,
        "disconnect",
        Kind::Message(&[
            (1, "code", Kind::Number),
            (2, "reason", Kind::Text),
            (3, "reconnect", Kind::Flag),
        ]),
    ),
    (12, "refresh", Kind::Message(UNTIL)),
];
const REPLY: Fields = &[
    (1, "id", Kind::Number),
    (
        2,
        "error",
        Kind::Message(&[
            (1, "code", Kind::Number),
            (2, "message", Kind::Text),
            (3, "temporary", Kind::Flag),
        ]),
    ),
    (4, "push", Kind::Message(PUSH)),
    (
        5,
        "connect",
        Kind::Message(&[
            (1, "client", Kind::Text),
            (2, "version", Kind::Text),
            (3, "expires", Kind::Flag),
            (4, "ttl", Kind::Number),
            (5, "data", Kind::Data),
            (6, "subs", Kind::Map(SUBSCRIBED)),
            (7, "ping", Kind::Number),
            (8, "pong", Kind::Flag),
            (9, "session", Kind::Text),
            (10, "node", Kind::Text),
        ]),
    ),
    (6, "subscribe", Kind::Message(SUBSCRIBED)),
    (7, "unsubscribe", Kind::Message(&[])),
    (8, "publish", Kind::Message(&[])),
    (
        9,
        "presence",
        Kind::Message(&[(1, "presence", Kind::Map(INFO))]),
    ),
    (
        10,
        "presence_stats",
        Kind::Message(&[
            (1, "num_clients", Kind::Number),
            (2, "num_users", Kind::Number),
        ]),
    ),
    (
        11,
        "history",
        Kind::Message(&[
            (1, "publications", Kind::List(PUB)),
            (2, "epoch", Kind::Text),
            (3, "offset", Kind::Number),
        ]),
    ),
    (12, "ping", Kind::Message(&[])),
    (13, "rpc", Kind::Message(DATA)),
    (
        14,
        "refresh",
        Kind::Message(&[
            (1, "client", Kind::Text),
            (2, "version", Kind::Text),
            (3, "expires", Kind::Flag),
            (4, "ttl", Kind::Number),
        ]),
    ),
    (15, "sub_refresh", Kind::Message(UNTIL)),
];

fn reply(format: Format, reply: &Reply<'_>) -> Vec<u8> {
    let mut out = b"before".to_vec();
    encode::reply(format, reply, &mut out).expect("JSON");
    out.split_off(6)
}

fn push(format: Format, push: &Push<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    encode::push(format, push, &mut out).expect("JSON");
    out
}

#[test]
fn replies_have_the_bytes_of_centrifugo() {
    let connect = ConnectResult {
        client: "c1",
        version: "1",
        ttl: Some(60),
        data: Payload::Value(b"{ }"),
        subs: &[],
        ping: 25,
        pong: true,
        session: "s",
        node: "n",
    };
    let info = ClientInfo {
        user: "",
        client: "c1",
        conn_info: Payload::Value(b"[1]"),
        chan_info: NO_DATA,
    };
    for (id, answer, json, protobuf) in [
        (
            1,
            Answer::Connect(connect),
            r#"{"id":1,"connect":{"client":"c1","version":"1","expires":true,"ttl":60,"data":{ },"ping":25,"pong":true,"session":"s","node":"n"}}"#,
            &b"\x1e\x08\x01\x2a\x1a\x0a\x02c1\x12\x011\x18\x01\x20\x3c\x2a\x03{ }\x38\x19\x40\x01\x4a\x01s\x52\x01n"[..],
        ),
        (
            2,
            Answer::Error(ErrorReply::from(ErrorCode::INTERNAL)),
            r#"{"id":2,"error":{"code":100,"message":"internal server error","temporary":true}}"#,
            b"\x1f\x08\x02\x12\x1b\x08\x64\x12\x15internal server error\x18\x01",
        ),
        (
            3,
            Answer::Unsubscribe,
            r#"{"id":3,"unsubscribe":{}}"#,
            b"\x04\x08\x03\x3a\0",
        ),
        (
            300,
            Answer::Publish,
            r#"{"id":300,"publish":{}}"#,
            b"\x05\x08\xac\x02\x42\0",
        ),
        (
            4,
            Answer::Presence(&[("c1", info)]),
            r#"{"id":4,"presence":{"presence":{"c1":{"user":"","client":"c1","conn_info":[1]}}}}"#,
            b"\x15\x08\x04\x4a\x11\x0a\x0f\x0a\x02c1\x12\x09\x12\x02c1\x1a\x03[1]",
        ),
        (
            5,
            Answer::Rpc(Payload::Value(b"{\n\"a\":\r\n1}")),
            r#"{"id":5,"rpc":{"data":{"a":1}}}"#,
            b"\x0f\x08\x05\x6a\x0b\x0a\x0a{\n\"a\":\r\n1}",
        ),
        (
            6,
            Answer::SubRefresh(None),
            r#"{"id":6,"sub_refresh":{}}"#,
            b"\x04\x08\x06\x7a\0",
        ),
    ] {
        let got = Reply { id, answer };
        assert_eq!(String::from_utf8(reply(Json, &got)).as_deref(), Ok(json));
        if id != 5 {
            assert_eq!(reply(Protobuf, &got).escape_ascii().to_string(), protobuf.escape_ascii().to_string());
        }
    }
}

#[test]
fn pushes_have_the_bytes_of_centrifugo() {
    for (value, json, protobuf) in [
        (
            Push::Publication("chat", PUBLICATION),
            r#"{"push":{"channel":"chat","pub":{"data":{"input":"x"},"offset":7}}}"#,
            &b"\x1b\x22\x19\x12\x04chat\x22\x11\x22\x0d{\"input\":\"x\"}\x30\x07"[..],
        ),
        (
            Push::Disconnect {
                code: Disconnect::SHUTDOWN.code,
                reason: Disconnect::SHUTDOWN.text,
                reconnect: true,
            },
            r#"{"push":{"disconnect":{"code":3001,"reason":"shutdown","reconnect":true}}}"#,
            b"\x13\x22\x11\x5a\x0f\x08\xb9\x17\x12\x08shutdown\x18\x01",
        ),
        (
            Push::Unsubscribe {
                channel: "a",
                code: 2500,
                reason: "",
            },
            r#"{"push":{"channel":"a","unsubscribe":{"code":2500}}}"#,
            b"\x0a\x22\x08\x12\x01a\x3a\x03\x10\xc4\x13",
        ),
    ] {
        assert_eq!(String::from_utf8(push(Json, &value)).as_deref(), Ok(json));
        assert_eq!(
            push(Protobuf, &value).escape_ascii().to_string(),
            protobuf.escape_ascii().to_string()
        );
        let mut bare = Vec::new();
        encode::bare_push(Json, &value, &mut bare).expect("JSON");
        assert_eq!([b"{\"push\":", &bare[..], b"}"].concat(), json.as_bytes());
        bare.clear();
        encode::bare_push(Protobuf, &value, &mut bare).expect("bytes");
        assert_eq!(bare[..], protobuf[2..]);
    }
    let mut out = Vec::new();
    encode::ping(Json, &mut out);
    out.extend_from_slice(encode::delimiter(Json));
    encode::ping(Protobuf, &mut out);
    assert_eq!(out, b"{}\n\0");
}

#[test]
fn data_that_is_not_json_is_refused_in_json_only() {
    for data in [
        Payload::Value(b"hello"),
        Payload::Value(b"\xff"),
        Payload::Value(b"1 2"),
        Payload::Value(b"{\"a\":1"),
        Payload::Value(b"\"\xff\""),
        Payload::Value(b"\"\n\""),
        Payload::Value(b" "),
        Payload::Text(b"\xff"),
    ] {
        let value = Push::Publication(
            "a",
            Publication {
                data,
                ..PUBLICATION
            },
        );
        let mut out = b"before".to_vec();
        assert_eq!(encode::push(Json, &value, &mut out), Err(NotJson));
        assert_eq!(out, b"before");
        let (Payload::Value(bytes) | Payload::Text(bytes)) = data;
        let protobuf = push(Protobuf, &value);
        assert!(protobuf.windows(bytes.len()).any(|window| window == bytes));
    }
}

#[test]
fn a_delta_is_a_string_in_json() {
    let publication = Publication {
        data: Payload::Text(b"3\n3:\"\"a;"),
        delta: true,
        ..PUBLICATION
    };
    let json = push(Json, &Push::Publication("a", publication));
    assert_eq!(
        String::from_utf8(json).as_deref(),
        Ok(r#"{"push":{"channel":"a","pub":{"data":"3\n3:\"\"a;","offset":7,"delta":true}}}"#)
    );
}

/// Values from which all replies and pushes are made.
#[derive(Debug)]
struct Seed {
    texts: Vec<String>,
    data: Vec<String>,
    numbers: Vec<u64>,
    flags: [bool; 6],
    ttl: Option<u32>,
}

fn seed() -> impl Strategy<Value = Seed> {
    let data = prop_oneof![
        Just(String::new()),
        any::<f64>().prop_map(|number| serde_json::json!(number).to_string()),
        any::<String>().prop_map(|text| serde_json::json!({ "a": [text] }).to_string()),
    ];
    (
        prop::collection::vec(any::<String>(), 6),
        prop::collection::vec(data, 3),
        prop::collection::vec(prop_oneof![0..300_u64, any::<u64>()], 3),
        any::<[bool; 6]>(),
        any::<Option<u32>>(),
    )
        .prop_map(|(texts, data, numbers, flags, ttl)| Seed {
            texts,
            data,
            numbers,
            flags,
            ttl,
        })
}

/// Both forms must mean the same.
fn assert_same_reply(value: &Reply<'_>) {
    let json: Value = serde_json::from_slice(&reply(Json, value)).expect("JSON");
    let protobuf = reply(Protobuf, value);
    let mut rest = &protobuf[..];
    let mut expected = to_json(read_bytes(&mut rest), REPLY);
    assert!(rest.is_empty());
    name_enums(&mut expected);
    if let Some(presence) = expected.get_mut("presence") {
        let presence = presence.as_object_mut().expect("an object");
        presence
            .entry("presence")
            .or_insert_with(|| Value::Object(Default::default()));
    }
    if let Some(stats) = expected.get_mut("presence_stats") {
        let stats = stats.as_object_mut().expect("an object");
        for required in ["num_clients", "num_users"] {
            stats.entry(required).or_insert_with(|| 0.into());
        }
    }
    assert_eq!(json, expected);
}

fn assert_same_push(value: &Push<'_>) {
    let json: Value = serde_json::from_slice(&push(Json, value)).expect("JSON");
    let protobuf = push(Protobuf, value);
    let mut rest = &protobuf[..];
    let mut expected = to_json(read_bytes(&mut rest), REPLY);
    assert!(rest.is_empty());
    name_enums(&mut expected);
    assert_eq!(json, expected);
}

/// Adds the empty texts that only JSON has.
fn name_enums(value: &mut Value) {
    match value {
        Value::Object(object) => {
            for (name, value) in object.iter_mut() {
                if name == "info" {
                    for required in ["user", "client"] {
                        let value = value.as_object_mut().expect("an object");
                        value.entry(required).or_insert_with(|| "".into());
                    }
                }
                name_enums(value);
            }
        }
        Value::Array(list) => list.iter_mut().for_each(name_enums),
        _ => {}
    }
}

proptest! {
    #[test]
    fn json_and_protobuf_of_a_reply_mean_the_same(seed in seed()) {
        let text = |at: usize| seed.texts[at].as_str();
        let data = |at: usize| Payload::Value(seed.data[at].as_bytes());
        let info = ClientInfo { user: text(0), client: text(1), conn_info: data(0), chan_info: data(1) };
        let tags = [("k", text(3)), (text(4), text(5))];
        let publication = Publication {
            data: data(2),
            info: seed.flags[0].then_some(info),
            offset: seed.numbers[0],
            tags: if seed.flags[1] { &tags } else { &[] },
            delta: seed.flags[2],
        };
        let publications = [publication, PUBLICATION];
        let subscribed = SubscribeResult {
            ttl: seed.ttl,
            recoverable: seed.flags[3],
            epoch: text(2),
            publications: if seed.flags[4] { &publications } else { &[] },
            recovered: seed.flags[5],
            offset: seed.numbers[1],
            positioned: seed.flags[0],
            data: data(0),
            was_recovering: seed.flags[1],
            delta: seed.flags[2],
        };
        let subs = [("a", subscribed), ("", subscribed)];
        let connect = ConnectResult {
            client: text(0),
            version: text(1),
            ttl: seed.ttl,
            data: data(1),
            subs: if seed.flags[3] { &subs } else { &[] },
            ping: seed.numbers[2] as u32,
            pong: seed.flags[4],
            session: text(2),
            node: text(3),
        };
        let without_info = ClientInfo { user: "u", client: "c", ..info };
        for answer in [
            Answer::Error(ErrorReply { code: 1000, message: text(0), temporary: seed.flags[0] }),
            Answer::Connect(connect),
            Answer::Subscribe(subscribed),
            Answer::Unsubscribe,
            Answer::Publish,
            Answer::Presence(&[("x", without_info), ("y", without_info)]),
            Answer::PresenceStats { clients: seed.numbers[0] as u32, users: seed.numbers[1] as u32 },
            Answer::History(HistoryResult { publications: &publications, epoch: text(0), offset: seed.numbers[0] }),
            Answer::Ping,
            Answer::Rpc(data(0)),
            Answer::Refresh { client: text(0), version: text(1), ttl: seed.ttl },
            Answer::SubRefresh(seed.ttl),
        ] {
            assert_same_reply(&Reply { id: seed.numbers[2] as u32, answer });
        }
        for value in [
            Push::Publication(text(0), publication),
            Push::Join(text(0), info),
            Push::Leave(text(0), info),
            Push::Unsubscribe { channel: text(0), code: seed.numbers[0] as u32, reason: text(1) },
            Push::Message(data(0)),
            Push::Subscribe { channel: text(0), recoverable: seed.flags[0], epoch: text(1), offset: seed.numbers[0], positioned: seed.flags[1], data: data(1) },
            Push::Connect(connect),
            Push::Disconnect { code: seed.numbers[0] as u32, reason: text(1), reconnect: seed.flags[0] },
            Push::Refresh(seed.ttl),
        ] {
            assert_same_push(&value);
        }
    }
}
