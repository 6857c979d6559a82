//! Tests that each malformed frame gets the error that names its fault.

use crore_wire::centrifugo::Error::{self, *};
use crore_wire::centrifugo::Format::{self, Json, Protobuf};
use crore_wire::json::Fault;

use crate::proto::{bytes, delimited, number};
use crate::read;

fn error(format: Format, frame: &[u8]) -> Error {
    let result = read(format, frame, |_| ());
    let error = result.expect_err(&frame.escape_ascii().to_string());
    assert!(!error.to_string().is_empty());
    error
}

#[test]
fn error_names_what_is_malformed_in_json() {
    for (frame, expected) in [
        ("", Empty),
        ("\n", Empty),
        ("{}\n\n{}", Empty),
        ("[]", WrongType("the command")),
        ("x", Error::Json(Fault::ExpectedValue)),
        ("[", Error::Json(Fault::Incomplete)),
        ("{", Error::Json(Fault::Incomplete)),
        ("{}}", Error::Json(Fault::Trailing)),
        ("{} {}", Error::Json(Fault::Trailing)),
        (r#"{"id" 1}"#, Error::Json(Fault::ExpectedColon)),
        (r#"{"id":1,}"#, Error::Json(Fault::ExpectedKey)),
        (r#"{"id":1 "ping":{}}"#, Error::Json(Fault::ExpectedComma)),
        (r#"{"id":-1}"#, BadNumber("id")),
        (r#"{"id":1.0}"#, BadNumber("id")),
        (r#"{"id":1e2}"#, BadNumber("id")),
        (r#"{"id":4294967296}"#, BadNumber("id")),
        (r#"{"id":"1"}"#, WrongType("id")),
        (r#"{"id":1}"#, NoRequest),
        (r#"{"id":1,"unknown":{}}"#, NoRequest),
        (r#"{"id":1,"ping":null}"#, NoRequest),
        (r#"{"ping":{}}"#, NoId),
        (r#"{"id":1,"ping":[]}"#, WrongType("ping")),
        (r#"{"id":1,"ping":{},"send":{}}"#, TwoRequests),
        (
            r#"{"id":1,"subscribe":{"channel":1}}"#,
            WrongType("channel"),
        ),
        (
            r#"{"id":1,"subscribe":{"offset":18446744073709551616}}"#,
            BadNumber("offset"),
        ),
        (
            r#"{"id":1,"subscribe":{"recover":1}}"#,
            WrongType("recover"),
        ),
        (
            r#"{"id":1,"subscribe":{"recover":trap}}"#,
            Error::Json(Fault::ExpectedValue),
        ),
        (
            r#"{"id":1,"history":{"limit":2147483648}}"#,
            BadNumber("limit"),
        ),
        (r#"{"id":1,"connect":{"subs":[]}}"#, WrongType("subs")),
        (r#"{"id":1,"connect":{"subs":{"a":1}}}"#, WrongType("subs")),
        (
            r#"{"id":1,"connect":{"headers":{"a":1}}}"#,
            WrongType("headers"),
        ),
        (
            r#"{"id":1,"publish":{"channel":"\ud800"}}"#,
            Error::Json(Fault::LoneSurrogate),
        ),
        (
            "{\"id\":1,\"publish\":{\"channel\":\"\t\"}}",
            Error::Json(Fault::Control),
        ),
        (
            r#"{"id":1,"publish":{"data":{"a":01}}}"#,
            Error::Json(Fault::BadNumber),
        ),
    ] {
        assert_eq!(error(Json, frame.as_bytes()), expected, "{frame}");
    }
    let frame = b"{\"id\":1,\"publish\":{\"channel\":\"\xff\"}}";
    assert_eq!(error(Json, frame), Error::Json(Fault::NotUtf8));
    let deep = format!(r#"{{"id":1,"publish":{{"data":{}"#, "[".repeat(65));
    assert_eq!(error(Json, deep.as_bytes()), Error::Json(Fault::TooDeep));
    let deep = format!(r#"{{"unknown":{}"#, "[".repeat(65));
    assert_eq!(error(Json, deep.as_bytes()), Error::Json(Fault::TooDeep));
}

#[test]
fn error_names_what_is_malformed_in_protobuf() {
    for (message, expected) in [
        (&b"\x08"[..], Truncated),
        (b"\x08\x80", Truncated),
        (b"\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x02", Varint),
        (b"\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", Varint),
        (b"\x00\x01", FieldNumber),
        (b"\x80\x80\x80\x80\x10\x01", FieldNumber),
        (b"\x0a\x01x", WrongType("id")),
        (b"\x20\x01", WrongType("connect")),
        (b"\x22\x02\x0a", Truncated),
        (b"\x22\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", Truncated),
        (b"\x22\x03\x0a\x01\xff", NotUtf8("token")),
        (b"\x22\x04\x1a\x02\x08\x01", WrongType("subs")),
        (b"\x22\x05\x32\x03\x0a\x01\xff", NotUtf8("headers")),
        // Unknown fields, cut or of a type that does not exist.
        (b"\xa1\x06\0\0\0\0\0\0\0", Truncated),
        (b"\xa5\x06\0\0\0", Truncated),
        (b"\xa6\x06", WireType),
        (b"\xa7\x06", WireType),
        (b"\xa3\x06\x08", Truncated),
        (b"\xa3\x06\xa3\x06\xa4\x06", Truncated),
        (b"\xa4\x06", GroupEnd),
        (b"\x08\x01", NoRequest),
        (b"\x5a\0", NoId),
        (b"\x08\x01\x5a\0\x62\0", TwoRequests),
    ] {
        let mut frame = Vec::new();
        delimited(message, &mut frame);
        assert_eq!(
            error(Protobuf, &frame),
            expected,
            "{}",
            message.escape_ascii()
        );
    }
    for (frame, expected) in [
        (&b""[..], Empty),
        (b"\x80", Truncated),
        (b"\x02\x08", Truncated),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", Varint),
    ] {
        assert_eq!(error(Protobuf, frame), expected, "{}", frame.escape_ascii());
    }
}

#[test]
fn unknown_fields_of_every_type_are_ignored() {
    let message = b"\xa0\x06\x01\xa1\x0612345678\xa2\x06\x01x\xa5\x061234\xa3\x06\xa3\x06\x08\x01\xa4\x06\xa4\x06\x08\x01\x5a\0";
    let mut frame = Vec::new();
    delimited(message, &mut frame);
    assert_eq!(
        read(Protobuf, &frame, |command| assert_eq!(command.id, 1)),
        Ok(())
    );
    let line =
        br#"{"a":null,"b":[{}],"c":{"id":7},"d":-1.5e3,"\u0069d":1,"e":"\n","ping":{"x":1}}"#;
    assert_eq!(
        read(Json, line, |command| assert_eq!(command.id, 1)),
        Ok(())
    );
}

#[test]
fn commands_subscriptions_and_headers_have_limits() {
    for (format, command) in [(Json, &b"{}\n"[..]), (Protobuf, b"\0")] {
        assert_eq!(read(format, &command.repeat(8), |_| ()), Ok(()));
        let mut count = 0;
        let result = read(format, &command.repeat(9), |_| count += 1);
        assert_eq!((result, count), (Err(TooManyCommands), 8));
    }
    for (count, subs, headers) in [
        (4, Ok(()), Ok(())),
        (5, Err(TooManySubs), Err(TooManyHeaders)),
    ] {
        for (name, field, expected, value) in
            [("subs", 3, subs, "{}"), ("headers", 6, headers, "\"\"")]
        {
            let entries = vec![format!("\"a\":{value}"); count].join(",");
            let line = format!(r#"{{"id":1,"connect":{{"{name}":{{{entries}}}}}}}"#);
            assert_eq!(read(Json, line.as_bytes(), |_| ()), expected);
            let (mut connect, mut command, mut frame) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..count {
                bytes(field, b"\x0a\x01a", &mut connect);
            }
            number(1, 1, &mut command);
            bytes(4, &connect, &mut command);
            delimited(&command, &mut frame);
            assert_eq!(read(Protobuf, &frame, |_| ()), expected);
        }
    }
}
