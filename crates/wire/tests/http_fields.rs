//! Tests the small grammars: dates, entity tags, forwarded addresses, the PROXY header, and response heads.

use std::net::{IpAddr, SocketAddr};

use crore_wire::http::response::{ResponseHead, status_text};
use crore_wire::http::{date, etag, forwarded, is_field_value, origin, proxy};
use proptest::prelude::*;

fn date_of(unix_s: u64) -> String {
    let mut out = Vec::new();
    date::write_date(&mut out, unix_s);
    String::from_utf8(out).expect("dates are ASCII")
}

#[test]
fn dates_are_written_and_read() {
    assert_eq!(date_of(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
    assert_eq!(date_of(0), "Thu, 01 Jan 1970 00:00:00 GMT");
    assert_eq!(date_of(1_709_164_800), "Thu, 29 Feb 2024 00:00:00 GMT");
    assert_eq!(date_of(u64::MAX), "Fri, 31 Dec 9999 23:59:59 GMT");
    for text in [
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov  6 08:49:37 1994",
        // The forms that libraries for dates in mail write.
        "Sun, 06 Nov 1994 08:49:37 -0000",
        "Sun, 06 Nov 1994 08:49:37 +0000",
        "Sun, 06 Nov 1994 08:49:37 utc",
        "Sunday, 06-Nov-94 08:49:37 Z",
    ] {
        assert_eq!(
            date::parse_date(text.as_bytes()),
            Some(784_111_777),
            "{text}"
        );
    }
    assert_eq!(
        date::parse_date(b"Sat, 31 Dec 2016 23:59:60 GMT"),
        Some(1_483_228_800)
    );
    for text in [
        "",
        ",",
        "Sun,",
        "Sun, 06 Nov 1994 08:49:37",
        "Sun, 06 Nov 1994 08:49:37 CET",
        "Sun, 06 Nov 1994 08:49:37 +0100",
        "Sun, 6 Nov 1994 08:49:37 GMT",
        "Sun, 31 Feb 1994 08:49:37 GMT",
        "Sun, 29 Feb 2100 00:00:00 GMT",
        "Sun, 00 Nov 1994 08:49:37 GMT",
        "Sun, 06 Nov 1969 08:49:37 GMT",
        "Sun, 06 nov 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 24:00:00 GMT",
        "Sun Nov 66 08:49:37 1994",
        "1994-11-06T08:49:37Z",
    ] {
        assert_eq!(date::parse_date(text.as_bytes()), None, "{text}");
    }
}

#[test]
fn entity_tags_are_parsed_without_quotes_and_prefix() {
    let table: &[(&str, &[&str])] = &[
        ("\"1-ab\"", &["1-ab"]),
        ("W/\"1-ab\"", &["1-ab"]),
        ("w/\"1-ab\"", &["1-ab"]),
        (" 1-ab ", &["1-ab"]),
        ("W/1-ab", &["1-ab"]),
        ("\"W/1-ab\"", &["1-ab"]),
        ("\"1-ab", &["1-ab"]),
        ("'1-ab'", &["1-ab"]),
        ("\\\"1-ab\\\"", &["1-ab"]),
        ("\"1-ab-gzip\"", &["1-ab-gzip"]),
        ("\"1-ab\"-gzip", &["1-ab\"-gzip"]),
        ("\"a\", W/\"b\" ,,c", &["a", "b", "c"]),
        ("Walter", &["Walter"]),
        ("*", &["*"]),
        ("", &[]),
        ("\"\"", &[]),
        (", W/\"\",", &[]),
    ];
    for (value, expected) in table {
        let tags: Vec<&[u8]> = etag::entity_tags(value.as_bytes()).collect();
        let expected: Vec<&[u8]> = expected.iter().map(|tag| tag.as_bytes()).collect();
        assert_eq!(tags, expected, "{value}");
    }
}

fn client(fields: &[&str], peer: &str, trusted: &[&str]) -> String {
    let network = |text: &&str| {
        let (ip, prefix) = text.split_once('/').expect("a prefix");
        (
            ip.parse().expect("an address"),
            prefix.parse().expect("a number"),
        )
    };
    let trusted: Vec<(IpAddr, u8)> = trusted.iter().map(network).collect();
    let fields = fields.iter().map(|f| f.as_bytes());
    forwarded::client_address(fields, peer.parse().expect("an address"), &trusted).to_string()
}

#[test]
fn the_rightmost_untrusted_address_is_the_client() {
    let trusted = &["10.0.0.0/8", "fd00::/8"];
    assert_eq!(
        client(&["1.1.1.1"], "9.9.9.9", trusted),
        "9.9.9.9",
        "the peer itself is a stranger"
    );
    assert_eq!(client(&[], "10.0.0.1", trusted), "10.0.0.1");
    assert_eq!(client(&["1.1.1.1"], "10.0.0.1", trusted), "1.1.1.1");
    assert_eq!(
        client(&["6.6.6.6, 1.1.1.1, 10.0.0.2"], "10.0.0.1", trusted),
        "1.1.1.1"
    );
    assert_eq!(
        client(&["6.6.6.6", "1.1.1.1 ,,", "10.0.0.2"], "10.0.0.1", trusted),
        "1.1.1.1"
    );
    assert_eq!(
        client(&["10.0.0.3, 10.0.0.2"], "10.0.0.1", trusted),
        "10.0.0.3",
        "all are ours"
    );
    assert_eq!(
        client(&["6.6.6.6, unknown, 10.0.0.2"], "10.0.0.1", trusted),
        "10.0.0.2"
    );
    assert_eq!(
        client(&["6.6.6.6, unknown"], "10.0.0.1", trusted),
        "10.0.0.1"
    );
    assert_eq!(
        client(&["1.1.1.1:80"], "::ffff:10.0.0.1", trusted),
        "1.1.1.1"
    );
    assert_eq!(
        client(&["[2001:db8::1]:80, [fd00::2]"], "fd00::1", trusted),
        "2001:db8::1"
    );
    assert_eq!(client(&["1.1.1.1"], "10.0.0.1", &["0.0.0.0/0"]), "1.1.1.1");
    assert_eq!(
        client(&["1.1.1.1"], "10.0.0.1", &["10.0.0.2/32"]),
        "10.0.0.1"
    );
}

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

fn header(version_command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let len = u16::try_from(rest.len()).expect("short");
    [
        SIGNATURE,
        &[version_command, family],
        &len.to_be_bytes(),
        rest,
    ]
    .concat()
}

#[test]
fn the_proxy_header_names_the_client() {
    let v4 = header(
        0x21,
        0x11,
        &[192, 0, 2, 1, 10, 0, 0, 1, 0x1f, 0x90, 0, 80, 3, 0, 1, 9],
    );
    let client: SocketAddr = "192.0.2.1:8080".parse().unwrap();
    let followed = [&v4[..], b"GET /"].concat();
    assert_eq!(
        proxy::parse_v2(&followed),
        Ok(Some((Some(client), v4.len())))
    );
    for at in 0..v4.len() {
        assert_eq!(proxy::parse_v2(&v4[..at]), Ok(None), "cut at {at}");
    }

    let mut block = [0; 36];
    block[..16].copy_from_slice(
        &"2001:db8::1"
            .parse::<std::net::Ipv6Addr>()
            .unwrap()
            .octets(),
    );
    block[32..34].copy_from_slice(&443u16.to_be_bytes());
    let client: SocketAddr = "[2001:db8::1]:443".parse().unwrap();
    assert_eq!(
        proxy::parse_v2(&header(0x21, 0x21, &block)),
        Ok(Some((Some(client), 52)))
    );

    assert_eq!(
        proxy::parse_v2(&header(0x20, 0x00, &[])),
        Ok(Some((None, 16))),
        "a health check"
    );
    assert_eq!(
        proxy::parse_v2(&header(0x21, 0x31, &[0; 216])),
        Ok(Some((None, 232))),
        "a local socket"
    );
}

#[test]
fn bytes_that_are_no_proxy_header_are_refused() {
    use proxy::ProxyError::*;
    assert_eq!(proxy::parse_v2(b"GET / HTTP/1.1\r\n"), Err(Missing));
    assert_eq!(proxy::parse_v2(b"\r\n\r\nGET"), Err(Missing));
    assert_eq!(proxy::parse_v2(b"PROXY TCP4 "), Err(Version));
    assert_eq!(proxy::parse_v2(b"PRO"), Ok(None));
    assert_eq!(proxy::parse_v2(&header(0x11, 0x11, &[0; 12])), Err(Version));
    assert_eq!(
        proxy::parse_v2(&header(0x22, 0x11, &[0; 12])),
        Err(Malformed)
    );
    assert_eq!(
        proxy::parse_v2(&header(0x21, 0x12, &[0; 12])),
        Err(Malformed),
        "UDP does not come here"
    );
    assert_eq!(
        proxy::parse_v2(&header(0x21, 0x11, &[0; 11])),
        Err(Malformed)
    );
    assert_eq!(
        proxy::parse_v2(&header(0x21, 0x11, &[0; proxy::MAX_REST_BYTES + 1])),
        Err(TooLarge)
    );
}

#[test]
fn a_response_head_is_written_line_by_line() {
    let mut out = b"before".to_vec();
    ResponseHead::new(&mut out, 201)
        .header("Content-Type", b"text/plain")
        .header_parts("ETag", &[b"\"", b"1-2", b"\""])
        .date("Last-Modified", 0)
        .lines(b"Vary: Accept\r\nX: y\r\n")
        .content(b"hello");
    let expected = "beforeHTTP/1.1 201 Created\r\nContent-Type: text/plain\r\nETag: \"1-2\"\r\n\
        Last-Modified: Thu, 01 Jan 1970 00:00:00 GMT\r\nVary: Accept\r\nX: y\r\nContent-Length: 5\r\n\r\nhello";
    assert_eq!(String::from_utf8(out).unwrap(), expected);

    let mut out = Vec::new();
    ResponseHead::new(&mut out, 204)
        .number("A", u64::MAX)
        .number("B", 0)
        .end();
    assert_eq!(
        out,
        b"HTTP/1.1 204 No Content\r\nA: 18446744073709551615\r\nB: 0\r\n\r\n"
    );
    assert_eq!(status_text(431), "Request Header Fields Too Large");
}

#[test]
fn field_values_have_no_control_characters() {
    assert!(is_field_value("text/plain; ä\t".as_bytes()));
    for bad in ["a\r\nSet-Cookie: x", "a\n", "\0", "\x1b", "\x7f"] {
        assert!(!is_field_value(bad.as_bytes()), "{bad:?}");
    }
}

#[test]
fn header_field_with_a_line_break_is_left_out_of_a_response() {
    let mut out = Vec::new();
    ResponseHead::new(&mut out, 200)
        .header("A", b"b\r\nC: d")
        .header_parts("ETag", &[b"\"", b"1\n", b"\""])
        .header("B", b"b")
        .end();
    assert_eq!(out, b"HTTP/1.1 200 OK\r\nB: b\r\n\r\n");
}

proptest! {
    #[test]
    fn every_date_reads_back(unix_s in 0..=date::MAX_UNIX_S) {
        prop_assert_eq!(date::parse_date(date_of(unix_s).as_bytes()), Some(unix_s));
    }

    #[test]
    fn dates_of_successive_days_are_successive(day in 0u64..2_932_896) {
        let (today, tomorrow) = (date_of(day * 86_400), date_of((day + 1) * 86_400));
        let number = |text: &str| text[5..7].parse::<u32>().unwrap();
        prop_assert!(number(&tomorrow) == number(&today) + 1 || (number(&tomorrow) == 1 && number(&today) >= 28));
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..64), other in prop::collection::vec(any::<u8>(), 0..16)) {
        let _ = date::parse_date(&bytes);
        let _ = etag::entity_tags(&bytes).count();
        let _ = origin::is_loopback_host(&bytes);
        let _ = origin::normalize(&[b"http://", &bytes[..]].concat());
        let _ = origin::same_origin(&[b"http://", &bytes[..]].concat(), &other);
        let _ = forwarded::client_address([&bytes[..]].into_iter(), IpAddr::from([10, 0, 0, 1]), &[(IpAddr::from([10, 0, 0, 0]), 8)]);
        let _ = proxy::parse_v2(&bytes);
        let _ = proxy::parse_v2(&[SIGNATURE, &bytes[..]].concat());
    }

    #[test]
    fn date_shapes_do_not_panic(text in "[A-Za-z]{3,9},? ?[ 0-9][0-9][- ](Nov|Feb|XYZ)[- ][0-9]{0,5} [0-9]{2}:[0-9:]{3,6}( GMT)?") {
        let _ = date::parse_date(text.as_bytes());
    }
}
