//! Tests commands as clients send them.

use crore_wire::centrifugo::Format::{Json, Protobuf};
use crore_wire::centrifugo::{
    ClaimedData, ClaimedSub, Commands, Error, History, Position, Publish, Request, Scratch,
    SubRefresh, Subscribe, decode,
};

use crate::proto::{bytes, delimited, number};
use crate::{LIMITS, one, read};

const NOTHING: Subscribe<'static> = Subscribe {
    channel: "",
    token: "",
    recover: false,
    epoch: "",
    offset: 0,
    data: b"",
    positioned: false,
    recoverable: false,
    join_leave: false,
    delta: "",
    filter: false,
    reject_unrecovered: false,
    kind: 0,
};

#[test]
fn json_of_clients_is_read() {
    // The JavaScript client puts the id last, the one for Go first.
    for (line, id, expected) in [
        ("{}", 0, Request::Pong),
        (r#"{"id":3,"ping":{}}"#, 3, Request::Ping),
        (
            r#"{"subscribe":{"channel":"chat:1","recover":true,"epoch":"WHBN","offset":9007199254740991},"id":222}"#,
            222,
            Request::Subscribe(Subscribe {
                channel: "chat:1",
                recover: true,
                epoch: "WHBN",
                offset: (1 << 53) - 1,
                ..NOTHING
            }),
        ),
        (
            r#"{"id":2,"subscribe":{"channel":"a","token":"t","data":{"x":[1]},"positioned":true,"recoverable":true,"join_leave":true,"delta":"fossil","tf":{"key":"k"},"flag":3,"type":1}}"#,
            2,
            Request::Subscribe(Subscribe {
                channel: "a",
                token: "t",
                data: br#"{"x":[1]}"#,
                positioned: true,
                recoverable: true,
                join_leave: true,
                delta: "fossil",
                filter: true,
                reject_unrecovered: true,
                kind: 1,
                ..NOTHING
            }),
        ),
        (
            r#"{"unsubscribe":{"channel":"a"},"id":3}"#,
            3,
            Request::Unsubscribe("a"),
        ),
        (
            r#"{"publish":{"channel":"a","data": {"input":"\u00e9"} },"id":4}"#,
            4,
            Request::Publish(Publish {
                channel: "a",
                data: br#"{"input":"\u00e9"}"#,
                kind: 0,
            }),
        ),
        (
            r#"{"presence":{"channel":"a"},"id":5}"#,
            5,
            Request::Presence("a"),
        ),
        (
            r#"{"presence_stats":{"channel":"a"},"id":6}"#,
            6,
            Request::PresenceStats("a"),
        ),
        (
            r#"{"history":{"channel":"a","limit":-1,"since":{"offset":7,"epoch":"e"},"reverse":true},"id":7}"#,
            7,
            Request::History(History {
                channel: "a",
                limit: -1,
                since: Some(Position {
                    offset: 7,
                    epoch: "e",
                }),
                reverse: true,
            }),
        ),
        (
            r#"{"history":{"channel":"a","since":null},"id":8}"#,
            8,
            Request::History(History {
                channel: "a",
                limit: 0,
                since: None,
                reverse: false,
            }),
        ),
        (r#"{"send":{"data":"x"}}"#, 0, Request::Send(br#""x""#)),
        (
            r#"{"rpc":{"method":"m","data":null},"id":9}"#,
            9,
            Request::Rpc {
                method: "m",
                data: b"null",
            },
        ),
        (
            r#"{"refresh":{"token":"t"},"id":4294967295}"#,
            u32::MAX,
            Request::Refresh("t"),
        ),
        (
            r#"{"sub_refresh":{"channel":"a","token":"t","type":2},"id":11}"#,
            11,
            Request::SubRefresh(SubRefresh {
                channel: "a",
                token: "t",
                kind: 2,
            }),
        ),
    ] {
        one(Json, line.as_bytes(), |command| {
            assert_eq!((command.id, command.request), (id, expected), "{line}");
        });
    }
}

#[test]
fn protobuf_of_clients_is_read() {
    one(Protobuf, b"\0", |command| {
        assert_eq!((command.id, command.request), (0, Request::Pong));
    });
    // The client for JavaScript writes empty texts too.
    let subscribe =
        b"\x1b\x08\x02\x2a\x17\x0a\x04test\x12\x00\x18\x01\x32\x04WHBN\x38\xac\x02\x50\x01\x58\x00";
    one(Protobuf, subscribe, |command| {
        let expected = Subscribe {
            channel: "test",
            recover: true,
            epoch: "WHBN",
            offset: 300,
            recoverable: true,
            ..NOTHING
        };
        assert_eq!(
            (command.id, command.request),
            (2, Request::Subscribe(expected))
        );
    });
    let history = b"\x12\x08\x07\x52\x0e\x0a\x01a\x38\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
    one(Protobuf, history, |command| {
        let expected = History {
            channel: "a",
            limit: -1,
            since: None,
            reverse: false,
        };
        assert_eq!(
            (command.id, command.request),
            (7, Request::History(expected))
        );
    });
    let publish = b"\x0b\x08\x04\x3a\x07\x0a\x01a\x12\x02\xff\0";
    one(Protobuf, publish, |command| {
        let expected = Publish {
            channel: "a",
            data: b"\xff\0",
            kind: 0,
        };
        assert_eq!(command.request, Request::Publish(expected));
    });
}

#[test]
fn a_connect_has_subscriptions_and_headers_in_both_forms() {
    let line = r#"{"connect":{"token":"t","data":{},"name":"js","version":"5.4","subs":{"a":{"recover":true,"offset":3,"epoch":"e"},"b\u002f":null},"headers":{"X-\u0041":"\"1\""},"flag":0},"id":1}"#;
    let mut sub = Vec::new();
    number(3, 1, &mut sub);
    bytes(6, b"e", &mut sub);
    number(7, 3, &mut sub);
    let entry = |key: &[u8], value: Option<&[u8]>| {
        let mut entry = Vec::new();
        bytes(1, key, &mut entry);
        if let Some(value) = value {
            bytes(2, value, &mut entry);
        }
        entry
    };
    let mut connect = Vec::new();
    bytes(1, b"t", &mut connect);
    bytes(2, b"{}", &mut connect);
    bytes(3, &entry(b"a", Some(&sub)), &mut connect);
    bytes(3, &entry(b"b/", None), &mut connect);
    bytes(4, b"js", &mut connect);
    bytes(5, b"5.4", &mut connect);
    bytes(6, &entry(b"X-A", Some(b"\"1\"")), &mut connect);
    number(7, 0, &mut connect);
    let mut command = Vec::new();
    number(1, 1, &mut command);
    bytes(4, &connect, &mut command);
    let mut frame = Vec::new();
    delimited(&command, &mut frame);
    for (format, frame) in [(Json, line.as_bytes()), (Protobuf, &frame)] {
        one(format, frame, |command| {
            let Request::Connect(connect) = command.request else {
                panic!("{command:?}")
            };
            assert_eq!((connect.token, connect.data), ("t", &b"{}"[..]));
            assert_eq!((connect.name, connect.version), ("js", "5.4"));
            let a = Subscribe {
                channel: "a",
                recover: true,
                epoch: "e",
                offset: 3,
                ..NOTHING
            };
            let b = Subscribe {
                channel: "b/",
                ..NOTHING
            };
            assert_eq!(Vec::from_iter(connect.subs.iter()), [a, b]);
            assert_eq!(Vec::from_iter(connect.headers.iter()), [("X-A", "\"1\"")]);
        });
    }
    // Without a command around it, as transports that only go to the client send it.
    let line = br#"{"token":"t","data":1}"#;
    let mut scratch = Scratch::default();
    let alone = decode::connect(Json, line, &mut scratch, &LIMITS).expect("a connect");
    assert_eq!((alone.token, alone.data), ("t", &b"1"[..]));
    let mut scratch = Scratch::default();
    let alone = decode::connect(Protobuf, &connect, &mut scratch, &LIMITS).expect("a connect");
    assert_eq!((alone.token, alone.data), ("t", &b"{}"[..]));
}

#[test]
fn the_frame_of_an_emulation_is_a_string_in_json() {
    let body = br#"{"session":"s","node":"n","data":"{\"id\":1}\n{}"}"#;
    let mut scratch = Scratch::default();
    let request = decode::emulation(Json, body, &mut scratch).expect("a request");
    assert_eq!((request.session, request.node), ("s", "n"));
    assert_eq!(request.data, b"{\"id\":1}\n{}");
    let mut body = Vec::new();
    bytes(1, b"n", &mut body);
    bytes(2, b"s", &mut body);
    bytes(3, b"\x02\x08\xff", &mut body);
    let request = decode::emulation(Protobuf, &body, &mut scratch).expect("a request");
    assert_eq!((request.session, request.node), ("s", "n"));
    assert_eq!(request.data, b"\x02\x08\xff");
}

/// Frames of several commands, and the ids of these.
const SEVERAL: [(crore_wire::centrifugo::Format, &[u8]); 2] = [
    (
        Json,
        b"{\"send\":{\"data\":1}}\n{\"id\":1,\"ping\":{}}\r\n{\"ping\":{},\"id\":2}\n{}\n",
    ),
    (
        Protobuf,
        b"\x05\x62\x03\x0a\x011\x04\x08\x01\x5a\0\x04\x5a\0\x08\x02\0",
    ),
];

#[test]
fn several_commands_come_in_one_frame() {
    for (format, frame) in SEVERAL {
        let mut ids = Vec::new();
        let result = read(format, frame, |command| ids.push(command.id));
        assert_eq!((result, ids), (Ok(()), vec![0, 1, 2, 0]));
    }
}

#[test]
fn a_frame_that_is_cut_gives_its_whole_commands_and_one_error() {
    for (format, frame) in SEVERAL {
        let mut whole = Vec::new();
        read(format, frame, |command| whole.push(format!("{command:?}"))).expect("a frame");
        let mut complete = 0;
        for cut in 0..frame.len() {
            let mut got = Vec::new();
            let result = read(format, &frame[..cut], |command| {
                got.push(format!("{command:?}"))
            });
            assert!(whole.starts_with(&got), "cut at {cut}");
            assert!(result.is_err() || !got.is_empty(), "cut at {cut}");
            complete += usize::from(result.is_ok());
        }
        // At the end of each command but the last, in JSON with its line end or without.
        let ends = if format == Json { 3 * 2 + 2 } else { 3 };
        assert_eq!(complete, ends, "{format:?}");
    }
}

#[test]
fn nothing_follows_an_error() {
    let mut scratch = Scratch::default();
    let mut commands = Commands::new(Json, b"{}\n[\n{}", LIMITS);
    assert!(commands.next(&mut scratch).expect("a command").is_ok());
    assert!(commands.next(&mut scratch).expect("an error").is_err());
    assert!(commands.next(&mut scratch).is_none());
}

#[test]
fn commands_of_a_frame_are_counted_by_their_borders() {
    for (format, frame, expected) in [
        (Json, &b"{}"[..], Ok(1)),
        (Json, b"{}\n", Ok(1)),
        (Json, b"{}\nnot read\n{", Ok(3)),
        (Json, b"", Err(Error::Empty)),
        (Protobuf, b"\0\x01x", Ok(2)),
        (Protobuf, b"", Err(Error::Empty)),
        (Protobuf, b"\0\x02x", Err(Error::Truncated)),
    ] {
        assert_eq!(decode::count(format, frame), expected, "{frame:?}");
    }
}

#[test]
fn rest_of_a_frame_begins_with_the_next_command() {
    let json = b"{\"id\":1,\"ping\":{}}\n{}\n";
    let protobuf = b"\x04\x08\x01\x5a\x00\x00";
    for (format, frame, len) in [(Json, &json[..], 19), (Protobuf, protobuf, 5)] {
        let mut scratch = Scratch::default();
        let mut commands = Commands::new(format, frame, LIMITS);
        assert_eq!(commands.rest(), frame);
        assert!(commands.next(&mut scratch).is_some_and(|it| it.is_ok()));
        assert_eq!(commands.rest(), &frame[len..]);
        assert!(commands.next(&mut scratch).is_some_and(|it| it.is_ok()));
        assert_eq!(commands.rest(), b"");
    }
}

#[test]
fn the_channel_of_a_subscription_token_is_one_of_its_claims() {
    for (claims, expected) in [
        (
            r#"{"sub":"ann","channel":"a","exp":17.5,"info":{"channel":"b"}}"#,
            Ok("a"),
        ),
        (r#"{"sub":"ann"}"#, Ok("")),
        (r#"{"channel":7}"#, Err(Error::WrongType("channel"))),
    ] {
        let mut scratch = Scratch::default();
        let found = decode::channel_claim(claims.as_bytes(), &mut scratch);
        assert_eq!(found, expected, "{claims}");
    }
}

#[test]
fn claims_of_a_subscription_token_have_data_and_an_end() {
    for (claims, json, base64, expire_at) in [
        (r#"{"channel":"a","exp":17.5}"#, "", "", None),
        (
            r#"{"data":{"n":1},"expire_at":0}"#,
            r#"{"n":1}"#,
            "",
            Some(0),
        ),
        (r#"{"b64data":"AQ==","expire_at":9}"#, "", "AQ==", Some(9)),
    ] {
        let mut scratch = Scratch::default();
        let found = decode::subscription_claims(claims.as_bytes(), &mut scratch).expect("claims");
        let data = ClaimedData {
            json: json.as_bytes(),
            base64,
        };
        assert_eq!((found.data, found.expire_at), (data, expire_at), "{claims}");
    }
    for (claims, error) in [
        (r#"{"expire_at":"9"}"#, Error::WrongType("expire_at")),
        (r#"{"expire_at":-1}"#, Error::BadNumber("expire_at")),
        (r#"{"expire_at":1.5}"#, Error::BadNumber("expire_at")),
        (r#"{"b64data":{}}"#, Error::WrongType("b64data")),
        (r#"{"override":1}"#, Error::WrongType("override")),
        (
            r#"{"override":{"force_push_join_leave":true}}"#,
            Error::WrongType("force_push_join_leave"),
        ),
    ] {
        let mut scratch = Scratch::default();
        let found = decode::subscription_claims(claims.as_bytes(), &mut scratch);
        assert_eq!(found, Err(error), "{claims}");
    }
}

#[test]
fn override_of_a_token_turns_pushes_of_joins_and_leaves_on() {
    for (value, expected) in [
        (r#"{}"#, false),
        (r#"{"presence":{"value":true}}"#, false),
        (r#"{"force_push_join_leave":{"value":false}}"#, false),
        (r#"{"force_push_join_leave":{"value":true}}"#, true),
    ] {
        let claims = format!(r#"{{"override":{value},"subs":{{"a":{{"override":{value}}}}}}}"#);
        let mut scratch = Scratch::default();
        let found = decode::subscription_claims(claims.as_bytes(), &mut scratch);
        assert_eq!(found.map(|it| it.join_leave), Ok(expected), "{value}");
        let found = decode::connect_claims(claims.as_bytes(), &mut scratch, 1).expect("claims");
        assert!(
            found.subs.iter().all(|it| it.join_leave == expected),
            "{value}"
        );
        assert_eq!(found.subs.iter().count(), 1);
    }
}

#[test]
fn connection_token_has_meta_and_an_end() {
    let claims = br#"{"meta":{"tenant":[1]},"expire_at":7,"subs":{"a":{"b64data":"AQ=="}}}"#;
    let mut scratch = Scratch::default();
    let found = decode::connect_claims(claims, &mut scratch, 1).expect("claims");
    assert_eq!(found.meta, br#"{"tenant":[1]}"#);
    assert_eq!(found.expire_at, Some(7));
    let subs: Vec<_> = found
        .subs
        .iter()
        .map(|it| (it.channel, it.data.base64))
        .collect();
    assert_eq!(subs, [("a", "AQ==")]);
}

#[test]
fn server_side_channels_are_the_claims_channels_and_subs() {
    for (claims, most, expected) in [
        (r#"{"sub":"ann","exp":17.5}"#, 0, Ok("")),
        (r#"{"channels":[],"subs":{}}"#, 0, Ok("")),
        (
            r#"{"subs":{"a":{"data":{"n":1},"override":{"presence":{"value":true}}},"b":null},"channels":["c","\u0064"]}"#,
            4,
            Ok(r#"a={"n":1} b= c= d= "#),
        ),
        (r#"{"channels":["a","b"]}"#, 1, Err(Error::TooManySubs)),
        (
            r#"{"channels":["a",7]}"#,
            4,
            Err(Error::WrongType("channels")),
        ),
        (r#"{"channels":"a"}"#, 4, Err(Error::WrongType("channels"))),
        (r#"{"subs":{"a":7}}"#, 4, Err(Error::WrongType("subs"))),
    ] {
        let mut scratch = Scratch::default();
        let found = decode::connect_claims(claims.as_bytes(), &mut scratch, most).map(|found| {
            let shown = |sub: ClaimedSub<'_>| {
                let data = String::from_utf8_lossy(sub.data.json);
                format!("{}={data} ", sub.channel)
            };
            found.subs.iter().map(shown).collect::<String>()
        });
        assert_eq!(found, expected.map(String::from), "{claims}");
    }
    let mut scratch = Scratch::default();
    for cut in [
        r#"{"channels":["#,
        r#"{"channels":["a"#,
        r#"{"channels":["a","#,
        r#"{"channels":["a" "b"]}"#,
    ] {
        assert!(
            decode::connect_claims(cut.as_bytes(), &mut scratch, 4).is_err(),
            "{cut}"
        );
    }
}
