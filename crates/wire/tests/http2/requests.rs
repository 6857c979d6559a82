//! Requests: the head that the server is given, and which requests are refused.

use crore_wire::http::head::{self, Body, Head, HeadError, MAX_HEADERS, Method};
use crore_wire::http2::frame::{END_HEADERS, END_STREAM, Kind, PADDED, PRIORITY};
use crore_wire::http2::{Limits, Violation};

use crate::peer::{Fields, OwnedEvent, Peer, block, frame, get, headers, post, request, u32_at};

/// The head that the server is given for a request.
fn request_text(ends_stream: bool, fields: &[(&str, &str)]) -> String {
    let events = Peer::new().feed(&request(1, ends_stream, fields));
    match &events[..] {
        [
            OwnedEvent::Request {
                head,
                ends_stream: e,
                ..
            },
        ] if *e == ends_stream => head.clone(),
        _ => panic!("{events:?}"),
    }
}

fn parse(text: &str) -> Result<Head<'_>, HeadError> {
    Ok(head::parse(text.as_bytes(), usize::MAX)?.expect("whole"))
}

/// The violation for which a request is refused.
fn refusal(ends_stream: bool, fields: &[(&str, &str)]) -> Violation {
    let mut peer = Peer::new();
    let (violation, code) = peer.violation(&request(1, ends_stream, fields));
    assert_eq!(code, violation.code() as u32);
    assert_eq!(peer.connection.streams(), 0);
    // The connection goes on.
    peer.get(3);
    violation
}

fn with_fields<'a>(mut fields: Fields<'a>, extra: &[(&'a str, &'a str)]) -> Fields<'a> {
    fields.extend_from_slice(extra);
    fields
}

#[test]
fn request_is_translated_to_http_1() {
    let fields = with_fields(
        get(),
        &[("accept", "text/event-stream"), ("te", "trailers")],
    );
    assert_eq!(
        request_text(true, &fields),
        "GET /sub/a HTTP/1.1\r\nhost: h\r\naccept: text/event-stream\r\nte: trailers\r\n\r\n"
    );
    // The pseudo-header fields may have any order.
    let fields = [
        (":path", "/a?b=c"),
        (":authority", "h:1"),
        (":scheme", "HTTP"),
        (":method", "PUT"),
    ];
    let text = request_text(true, &fields);
    let head = parse(&text).unwrap();
    assert_eq!(
        (head.method, head.path, head.query),
        (Method::Put, &b"/a"[..], &b"b=c"[..])
    );
    assert_eq!(head.host(), Some(&b"h:1"[..]));
    assert_eq!(head.body(), Ok(Body::None));
    assert!(head.keep_alive());
}

#[test]
fn a_body_is_delimited_as_in_http_1() {
    for (ends_stream, length, body) in [
        (true, None, Body::None),
        (true, Some("0"), Body::Length(0)),
        (false, None, Body::Chunked),
        (false, Some("5"), Body::Length(5)),
        (false, Some("99999999999"), Body::Length(99_999_999_999)),
    ] {
        let length = length.map(|length| ("content-length", length));
        let fields = with_fields(post(), length.as_slice());
        assert_eq!(
            parse(&request_text(ends_stream, &fields)).unwrap().body(),
            Ok(body)
        );
    }
    let fields = with_fields(post(), &[("expect", "100-continue")]);
    assert!(
        parse(&request_text(false, &fields))
            .unwrap()
            .expects_continue()
    );
}

#[test]
fn a_websocket_is_the_upgrade_of_http_1() {
    let fields = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":authority", "h"),
        (":path", "/sub/a"),
        ("sec-websocket-version", "13"),
    ];
    let text_of = request_text(false, &fields);
    let head = parse(&text_of).unwrap();
    assert!(head.is_websocket_upgrade());
    assert_eq!((head.path, head.body()), (&b"/sub/a"[..], Ok(Body::None)));
    assert_eq!(head.header("sec-websocket-version"), Some(&b"13"[..]));
    // Another protocol is refused with the head, and a CONNECT to another host by its method.
    let mut other = fields;
    other[1].1 = "connect-udp";
    let head = request_text(false, &other);
    assert!(matches!(parse(&head), Err(HeadError::Malformed(_))));
    let head = request_text(
        false,
        &[(":method", "CONNECT"), (":authority", "other:443")],
    );
    assert_eq!(parse(&head).unwrap().method, Method::Other);
}

#[test]
fn split_cookie_fields_are_joined_into_one() {
    let crumbs: Vec<String> = (0..100).map(|n| format!("c{n}=v")).collect();
    let mut fields = get();
    fields.extend(crumbs.iter().map(|crumb| ("cookie", crumb.as_str())));
    fields.push(("accept", "*/*"));
    let text = request_text(true, &fields);
    let head = parse(&text).unwrap();
    let cookies: Vec<&[u8]> = head.headers("cookie").collect();
    assert_eq!(cookies, [crumbs.join("; ").as_bytes()]);
}

#[test]
fn pseudo_header_fields_have_rules() {
    let without_field = |name| {
        let mut fields = get();
        fields.retain(|(other, _)| *other != name);
        fields
    };
    let replaced = |name, value| with_fields(without_field(name), &[(name, value)]);
    let connect = |extra| with_fields(vec![(":method", "CONNECT")], extra);
    for fields in [
        without_field(":method"),
        without_field(":scheme"),
        without_field(":path"),
        vec![],
        with_fields(get(), &[(":path", "/b")]),
        with_fields(get(), &[(":status", "200")]),
        with_fields(get(), &[(":made-up", "x")]),
        with_fields(vec![("accept", "*/*")], &get()),
        with_fields(
            with_fields(without_field(":path"), &[("accept", "*/*")]),
            &[(":path", "/")],
        ),
        replaced(":path", ""),
        replaced(":path", "a"),
        replaced(":path", "*"),
        replaced(":path", "http://other/"),
        replaced(":method", ""),
        replaced(":method", "GET /x HTTP/1.1"),
        replaced(":scheme", ""),
        replaced(":scheme", "file"),
        with_fields(get(), &[(":protocol", "websocket")]),
        connect(&[]),
        connect(&[(":authority", "h"), (":path", "/")]),
        connect(&[(":authority", "h"), (":scheme", "https")]),
        connect(&[(":protocol", "websocket"), (":authority", "h")]),
        connect(&[
            (":protocol", "websocket"),
            (":scheme", "https"),
            (":path", "/"),
        ]),
    ] {
        assert_eq!(
            refusal(true, &fields),
            Violation::PseudoHeader,
            "{fields:?}"
        );
    }
}

#[test]
fn fields_that_could_smuggle_are_refused() {
    for (field, violation) in [
        (("connection", "close"), Violation::ConnectionField),
        (("keep-alive", "timeout=5"), Violation::ConnectionField),
        (("proxy-connection", "x"), Violation::ConnectionField),
        (("transfer-encoding", "chunked"), Violation::ConnectionField),
        (("upgrade", "websocket"), Violation::ConnectionField),
        (("te", "gzip"), Violation::ConnectionField),
        (("te", "trailers, gzip"), Violation::ConnectionField),
        (("host", "other"), Violation::Hosts),
        (("host", ""), Violation::Hosts),
        (("Accept", "*/*"), Violation::FieldName),
        (("", "x"), Violation::FieldName),
        (("a b", "x"), Violation::FieldName),
        (("a:b", "x"), Violation::FieldName),
        (("a\r\nb", "x"), Violation::FieldName),
        (("a\u{e4}", "x"), Violation::FieldName),
        (("a", "b\r\nc: d"), Violation::FieldValue),
        (("a", "b\nc"), Violation::FieldValue),
        (("a", "b\0c"), Violation::FieldValue),
        (("a", " b"), Violation::FieldValue),
        (("a", "b\t"), Violation::FieldValue),
        (("content-length", "1"), Violation::BodyLength),
        (("content-length", "+0"), Violation::ContentLength),
        (("content-length", ""), Violation::ContentLength),
        (("content-length", "0, 0"), Violation::ContentLength),
        (
            ("content-length", "18446744073709551616"),
            Violation::ContentLength,
        ),
    ] {
        let fields = with_fields(get(), &[field]);
        assert_eq!(refusal(true, &fields), violation, "{field:?}");
    }
    let two_lengths = with_fields(post(), &[("content-length", "0"), ("content-length", "0")]);
    assert_eq!(refusal(true, &two_lengths), Violation::ContentLength);
    // In pseudo-header fields, too.
    for name in [":method", ":scheme", ":authority", ":path"] {
        let mut fields = get();
        for field in &mut fields {
            if field.0 == name {
                field.1 = "/ HTTP/1.1\r\nx: y";
            }
        }
        assert_eq!(refusal(true, &fields), Violation::FieldValue, "{name}");
    }
    let tunnel = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":authority", "h"),
        (":path", "/"),
        ("content-length", "3"),
    ];
    assert_eq!(refusal(false, &tunnel), Violation::ContentLength);
}

#[test]
fn other_bad_heads_are_refused_by_the_parser_of_http_1() {
    let authority_of = |path, authority: &[(&'static str, &'static str)]| {
        let fields = [(":method", "GET"), (":scheme", "https"), (":path", path)];
        parse(&request_text(true, &[&fields[..], authority].concat()))
            .err()
            .map(|error| error.status())
    };
    assert_eq!(authority_of("/a", &[("host", "h")]), None);
    assert_eq!(
        authority_of("/a", &[(":authority", "H"), ("host", "h")]),
        None
    );
    for (path, authority) in [
        ("/a", &[][..]),
        ("/a", &[(":authority", "")]),
        ("/a", &[(":authority", "u@h")]),
        ("/a", &[(":authority", "h, i")]),
        ("/a", &[("host", "h"), ("host", "h")]),
        ("/a b", &[("host", "h")]),
        ("/a HTTP/1.1", &[("host", "h")]),
        ("/a#b", &[("host", "h")]),
        ("/\u{e4}", &[("host", "h")]),
    ] {
        assert_eq!(
            authority_of(path, authority),
            Some(400),
            "{path} {authority:?}"
        );
    }
    let many_names: Vec<String> = (0..MAX_HEADERS).map(|n| format!("x-{n}")).collect();
    let fields: Fields<'_> = many_names.iter().map(|name| (name.as_str(), "v")).collect();
    let text = request_text(true, &with_fields(get(), &fields));
    assert_eq!(parse(&text).err(), Some(HeadError::TooLarge));
}

#[test]
fn a_large_field_list_is_answered_and_not_kept() {
    let limits = Limits {
        header_list_bytes: 4 * 32 + ":method:scheme:authority:path".len() as u32 + 15 + 33,
        ..Limits::default()
    };
    // The pseudo-header fields have 3 + 5 + 1 + 6 bytes of values.
    let mut peer = Peer::with_limits(limits);
    assert_eq!(
        peer.feed(&request(1, true, &with_fields(get(), &[("a", "b")]))),
        [OwnedEvent::TooLarge(1)]
    );
    assert_eq!(peer.connection.streams(), 1);
    let events = peer.feed(&request(3, true, &with_fields(get(), &[("a", "")])));
    assert!(
        matches!(events[..], [OwnedEvent::Request { .. }]),
        "{events:?}"
    );
}

#[test]
fn padding_and_priority_are_skipped() {
    let block = block(&get());
    let priority = [0x80, 0, 0, 7, 255];
    let padded = [&[3][..], &block, b"pad"].concat();
    let padded_with_priority = [&[2][..], &priority, &block, b"xx"].concat();
    let flags = END_HEADERS | END_STREAM;
    for (flags, payload) in [
        (flags | PADDED, padded),
        (flags | PRIORITY, [&priority[..], &block].concat()),
        (flags | PADDED | PRIORITY, padded_with_priority),
        (flags | 0x40, block.clone()),
    ] {
        let events = Peer::new().send(Kind::Headers, flags, 1, &payload);
        assert!(
            matches!(
                events[..],
                [OwnedEvent::Request {
                    ends_stream: true,
                    ..
                }]
            ),
            "{events:?}"
        );
    }
    for (flags, payload, violation) in [
        (PADDED, &[][..], Violation::Padding),
        (PADDED, &[1], Violation::Padding),
        (PADDED, &[255, 0, 0], Violation::Padding),
        (PRIORITY, &[0, 0, 0, 3], Violation::FrameLength),
        (
            PRIORITY | PADDED,
            &[1, 0, 0, 0, 3, 1],
            Violation::FrameLength,
        ),
        (PRIORITY, &[0, 0, 0, 1, 1], Violation::SelfDependency),
    ] {
        let bytes = frame(Kind::Headers, END_HEADERS | flags, 1, payload);
        assert_eq!(Peer::new().violation(&bytes).0, violation, "{payload:?}");
    }
}

#[test]
fn a_block_may_come_in_several_frames() {
    let block = block(&with_fields(get(), &[("a", "b")]));
    let mut peer = Peer::new();
    let mut bytes = frame(Kind::Headers, END_STREAM, 1, &block[..10]);
    bytes.extend(frame(Kind::Continuation, 0, 1, &[]));
    bytes.extend(frame(Kind::Continuation, 0, 1, &block[10..11]));
    bytes.extend(frame(Kind::Continuation, END_HEADERS, 1, &block[11..]));
    let whole = peer.feed(&bytes);
    let expected = Peer::new().feed(&headers(1, true, &block));
    assert_eq!(whole, expected);
    for (between, violation) in [
        (
            frame(Kind::Ping, 0, 0, &[0; 8]),
            Violation::BlockInterrupted,
        ),
        (
            frame(Kind::Continuation, END_HEADERS, 3, &[]),
            Violation::BlockInterrupted,
        ),
        (
            frame(Kind::Headers, END_HEADERS, 1, &[]),
            Violation::BlockInterrupted,
        ),
    ] {
        let begun = frame(Kind::Headers, END_STREAM, 1, &block);
        let events = Peer::new().violation(&[begun, between].concat());
        assert_eq!(events, (violation, 1));
    }
    let alone = frame(Kind::Continuation, END_HEADERS, 1, &block);
    assert_eq!(
        Peer::new().violation(&alone).0,
        Violation::NothingToContinue
    );
}

#[test]
fn a_block_that_cannot_be_decoded_ends_the_connection() {
    let mut peer = Peer::new();
    peer.get(1);
    assert_eq!(
        peer.violation(&headers(3, true, &[0xff])),
        (Violation::Compression, 9)
    );
    let bytes = headers(1, true, &[0x82, 0x3f, 0x01]);
    assert_eq!(Peer::new().violation(&bytes), (Violation::TableSize, 9));
    // GOAWAY names the last stream.
    let mut peer = Peer::new();
    peer.get(5);
    peer.out.clear();
    peer.feed(&headers(7, true, &[0xff]));
    assert_eq!(u32_at(&peer.take_written_frames()[0].1, 0), 7);
}

#[test]
fn trailers_end_a_body_and_are_checked() {
    let send = |ends_stream, fields: &[(&str, &str)]| {
        let mut peer = Peer::new();
        peer.post(1);
        peer.send(Kind::Data, 0, 1, b"abc");
        peer.out.clear();
        peer.feed(&headers(1, ends_stream, &block(fields)))
    };
    let end = OwnedEvent::Data {
        stream: 1,
        data: vec![],
        ends_stream: true,
    };
    assert_eq!(send(true, &[("checksum", "x")]), [end]);
    for (ends_stream, fields, violation) in [
        (false, [("checksum", "x")], Violation::Trailers),
        (true, [(":method", "GET")], Violation::Trailers),
        (true, [("Checksum", "x")], Violation::FieldName),
        (true, [("checksum", "x\n")], Violation::FieldValue),
    ] {
        assert_eq!(
            send(ends_stream, &fields),
            [OwnedEvent::Refused(1, violation)]
        );
    }
}
