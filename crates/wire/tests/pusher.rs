//! Tests the codec of the Pusher Channels protocol: events of clients and of the server, names of channels, and codes.

use crore_wire::pusher::{
    CHANNEL_BYTES_MAX, ChannelKind, Data, Error, ErrorCode, EventData, Request, User,
    is_channel_name, is_socket_id, write_event,
};
use serde_json::{Value, json};

fn read(frame: &str) -> Result<Request<'_>, Error> {
    Request::read(frame.as_bytes())
}

fn subscribe<'a>(channel: &'a str, auth: &'a str, channel_data: &'a str) -> Request<'a> {
    Request::Subscribe {
        channel: channel.into(),
        auth: auth.into(),
        channel_data: channel_data.into(),
        since: None,
    }
}

#[test]
fn events_of_clients_are_read_in_every_form_that_libraries_send() {
    for (frame, expected) in [
        (r#"{"event":"pusher:ping","data":{}}"#, Request::Ping),
        (r#"{"event":"pusher:ping"}"#, Request::Ping),
        (r#" {"data":"{}","event":"pusher:pong"} "#, Request::Pong),
        (
            r#"{"event":"pusher:subscribe","data":{"channel":"news"}}"#,
            subscribe("news", "", ""),
        ),
        (
            r#"{"event":"pusher:subscribe","data":{"auth":null,"channel":"news","more":[1,{}]}}"#,
            subscribe("news", "", ""),
        ),
        (
            r#"{"event":"pusher:subscribe","data":"{\"channel\":\"private-a\",\"auth\":\"k:00\"}"}"#,
            subscribe("private-a", "k:00", ""),
        ),
        (
            r#"{"event":"pusher:subscribe","data":{"auth":"k:00","channel":"presence-a","channel_data":"{\"user_id\":\"1\"}"}}"#,
            subscribe("presence-a", "k:00", r#"{"user_id":"1"}"#),
        ),
        (
            r#"{"event":"pusher:unsubscribe","data":{"channel":"news"}}"#,
            Request::Unsubscribe {
                channel: "news".into(),
            },
        ),
        (
            r#"{"event":"pusher:signin","data":{"auth":"k:00","user_data":"{}"}}"#,
            Request::Signin {
                auth: "k:00".into(),
                user_data: "{}".into(),
            },
        ),
        (
            r#"{"event":"client-typing","channel":"private-a","data":{"on": true}}"#,
            Request::ClientEvent {
                event: "client-typing".into(),
                channel: "private-a".into(),
                data: Data::Value(br#"{"on": true}"#),
            },
        ),
        (
            r#"{"event":"client-\u0061","channel":"private-a","data":"\u00e9"}"#,
            Request::ClientEvent {
                event: "client-a".into(),
                channel: "private-a".into(),
                data: Data::Text("é".into()),
            },
        ),
        (
            r#"{"event":"client-a","channel":"private-a"}"#,
            Request::ClientEvent {
                event: "client-a".into(),
                channel: "private-a".into(),
                data: Data::Value(b"null"),
            },
        ),
    ] {
        assert_eq!(read(frame), Ok(expected), "{frame}");
    }
}

#[test]
fn bad_event_is_refused_with_the_field_that_is_wrong() {
    for (frame, expected) in [
        ("[]", Error::WrongType("the event")),
        ("{}", Error::Missing("event")),
        (r#"{"event":7}"#, Error::WrongType("event")),
        (r#"{"event":"news"}"#, Error::UnknownEvent),
        (
            r#"{"event":"pusher_internal:member_added"}"#,
            Error::UnknownEvent,
        ),
        (r#"{"event":"pusher:subscribe"}"#, Error::WrongType("data")),
        (
            r#"{"event":"pusher:subscribe","data":{}}"#,
            Error::Missing("data.channel"),
        ),
        (
            r#"{"event":"pusher:subscribe","data":{"channel":["a"]}}"#,
            Error::WrongType("channel"),
        ),
        (
            r#"{"event":"pusher:signin","data":{"auth":"k:00"}}"#,
            Error::Missing("data.user_data"),
        ),
        (
            r#"{"event":"client-a","data":1}"#,
            Error::Missing("channel"),
        ),
    ] {
        assert_eq!(read(frame), Err(expected), "{frame}");
    }
    for frame in [
        "",
        "{",
        r#"{"event":"pusher:ping"} x"#,
        "{\"event\":\"\u{1}\"}",
    ] {
        assert!(matches!(read(frame), Err(Error::Json(_))), "{frame}");
    }
    let not_utf8 = b"{\"event\":\"client-\xff\",\"channel\":\"a\"}";
    assert!(matches!(Request::read(not_utf8), Err(Error::Json(_))));
}

#[test]
fn written_event_is_the_intended_json() {
    let write_event = |channel: Option<&str>, data, user: &str| {
        let mut out = Vec::new();
        let channel = channel.map(str::as_bytes);
        write_event("a\"b".as_bytes(), channel, data, user.as_bytes(), &mut out);
        serde_json::from_slice::<Value>(&out).unwrap()
    };
    assert_eq!(
        write_event(Some("news"), EventData::Text(b"{\"a\":1}"), ""),
        json!({"event": "a\"b", "channel": "news", "data": "{\"a\":1}"})
    );
    assert_eq!(
        write_event(None, EventData::Value(b"{\"a\":1}"), "ann"),
        json!({"event": "a\"b", "data": {"a": 1}, "user_id": "ann"})
    );
}

#[test]
fn channels_have_the_kind_of_their_prefix() {
    let kind = |name| {
        let kind = ChannelKind::of(name);
        let flags = [
            (kind.is_private, 'p'),
            (kind.is_presence, 'm'),
            (kind.is_encrypted, 'e'),
            (kind.is_cache, 'c'),
        ];
        flags
            .iter()
            .filter(|(is_set, _)| *is_set)
            .map(|(_, letter)| letter)
            .collect::<String>()
    };
    for (name, expected) in [
        ("news", ""),
        ("privat-a", ""),
        ("private-a", "p"),
        ("presence-a", "pm"),
        ("private-encrypted-a", "pe"),
        ("cache-a", "c"),
        ("private-cache-a", "pc"),
        ("presence-cache-a", "pmc"),
        ("private-encrypted-cache-a", "pec"),
        ("private-encrypted", "p"),
    ] {
        assert_eq!(kind(name), expected, "{name}");
    }
}

#[test]
fn names_with_other_characters_are_no_channels_and_no_socket_ids() {
    assert!(is_channel_name("presence-a_b=c@d,e.f;g-9"));
    assert!(is_channel_name(&"a".repeat(CHANNEL_BYTES_MAX)));
    for name in ["", "a b", "a/b", "a\nb", "a\0", "#a", "a+", "é", "a:b"] {
        assert!(!is_channel_name(name), "{name:?}");
    }
    assert!(!is_channel_name(&"a".repeat(CHANNEL_BYTES_MAX + 1)));
    assert!(is_socket_id("1.2") && is_socket_id("4294967295.18446744073709551615"));
    for id in ["", ".", "1", "1.", ".2", "1.2.3", "1.x", "-1.2", "1.2\n"] {
        assert!(!is_socket_id(id), "{id:?}");
    }
}

#[test]
fn codes_are_in_the_order_of_their_numbers() {
    assert!(ErrorCode::ALL.is_sorted_by_key(|code| code.code));
    assert_eq!(
        ErrorCode::UNAUTHORIZED.to_string(),
        "4009: Connection is unauthorized"
    );
}

#[test]
fn users_are_read_with_ids_that_are_texts_or_numbers() {
    let user = |id: &'static str, info: &'static str| {
        Ok(User {
            id: id.into(),
            info: info.as_bytes(),
        })
    };
    for (json, expected) in [
        (r#"{"user_id":"ann"}"#, user("ann", "")),
        (
            r#"{"user_info": {"name":"Ann"} ,"user_id":10}"#,
            user("10", r#"{"name":"Ann"}"#),
        ),
        (
            r#"{"user_id":""}"#,
            Err(Error::Missing("channel_data.user_id")),
        ),
        (
            r#"{"user_id":null}"#,
            Err(Error::WrongType("channel_data.user_id")),
        ),
        (
            r#"{"id":"ann"}"#,
            Err(Error::Missing("channel_data.user_id")),
        ),
        ("[]", Err(Error::WrongType("the user"))),
    ] {
        assert_eq!(User::read_member(json), expected, "{json}");
    }
    assert_eq!(
        User::read_signed_in(r#"{"id":"ann","x":1}"#),
        user("ann", "")
    );
}
