//! Tests request heads: which are accepted, which are refused and with which status. No split of the stream changes the result, and no
//! bytes make the parser panic.

use crore_wire::http::body::{BodyError, ChunkedDecoder};
use crore_wire::http::head::{self, Accept, Body, Head, HeadError, Method};
use proptest::prelude::*;

const LIMIT: usize = 1024;

fn parse(text: &str) -> Result<Option<Head<'_>>, HeadError> {
    head::parse(text.as_bytes(), LIMIT)
}

fn complete_head(text: &str) -> Head<'_> {
    parse(text).expect("acceptable").expect("whole")
}

/// The status with which a request is refused, because of its head or of how its body is delimited.
fn refusal(text: &str) -> Option<u16> {
    match parse(text) {
        Ok(head) => head.expect("whole").body().err().map(|e| e.status()),
        Err(e) => Some(e.status()),
    }
}

#[test]
fn head_is_parsed_into_its_parts() {
    let text = "\r\n\r\nPOST /pub/a%2Fb?since=-1&x HTTP/1.1\r\nHost: h:1\r\nX-A: \t one \t\r\nx-a:two\r\n\r\nrest";
    let head = complete_head(text);
    assert_eq!(head.method, Method::Post);
    assert_eq!(
        (head.path, head.query, head.minor),
        (&b"/pub/a%2Fb"[..], &b"since=-1&x"[..], 1)
    );
    assert_eq!(head.len, text.len() - 4);
    assert_eq!(head.header("HOST"), Some(&b"h:1"[..]));
    assert_eq!(head.header("x-A"), Some(&b"one"[..]));
    assert_eq!(head.headers("X-a").collect::<Vec<_>>(), [b"one", b"two"]);
    assert_eq!(head.header("x"), None);
    assert_eq!(head.body(), Ok(Body::None));
    assert!(head.keep_alive());
}

#[test]
fn an_absolute_target_overrides_the_host() {
    let head = complete_head("GET HTTP://Example.com:80/a?b HTTP/1.1\r\nHost: other\r\n\r\n");
    assert_eq!((head.path, head.query), (&b"/a"[..], &b"b"[..]));
    assert_eq!(head.host(), Some(&b"Example.com:80"[..]));
    let head = complete_head("GET http://e?b HTTP/1.1\r\nHost:\r\n\r\n");
    assert_eq!(
        (head.path, head.query, head.host()),
        (&b"/"[..], &b"b"[..], Some(&b"e"[..]))
    );
    assert_eq!(
        complete_head("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n").path,
        b"*"
    );
}

#[test]
fn http_1_0_is_accepted_and_closes() {
    let head = complete_head("GET / HTTP/1.0\r\n\r\n");
    assert_eq!(
        (head.minor, head.host(), head.keep_alive()),
        (0, None, false)
    );
    assert!(complete_head("GET / HTTP/1.0\r\nConnection: x, Keep-Alive\r\n\r\n").keep_alive());
    assert!(
        !complete_head(
            "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nConnection: Close\r\n\r\n"
        )
        .keep_alive()
    );
    assert_eq!(complete_head("GET / HTTP/1.7\r\nHost: h\r\n\r\n").minor, 1);
}

#[test]
fn body_has_exactly_one_delimiter() {
    for (fields, body) in [
        ("", Body::None),
        ("Content-Length: 0\r\n", Body::Length(0)),
        (
            "content-length:  18446744073709551615 \r\n",
            Body::Length(u64::MAX),
        ),
        ("Transfer-Encoding: Chunked\r\n", Body::Chunked),
    ] {
        let text = format!("POST / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        assert_eq!(complete_head(&text).body(), Ok(body), "{fields:?}");
    }
}

#[test]
fn smuggling_forms_are_refused() {
    for (fields, status) in [
        ("Content-Length: 3\r\nTransfer-Encoding: chunked", 400),
        ("Transfer-Encoding: chunked\r\nContent-Length: 0", 400),
        ("Content-Length: 3\r\nContent-Length: 3", 400),
        ("Content-Length: 3\r\nContent-Length: 4", 400),
        ("Content-Length: 3, 3", 400),
        ("Content-Length: +1", 400),
        ("Content-Length: -1", 400),
        ("Content-Length: 0x10", 400),
        ("Content-Length: 1 0", 400),
        ("Content-Length:", 400),
        ("Content-Length: 18446744073709551616", 400),
        ("Content-Length: 99999999999999999999999999", 400),
        ("Content-Length : 3", 400),
        ("Content-Length\t: 3", 400),
        ("Transfer-Encoding : chunked", 400),
        ("Transfer-Encoding: chunked, chunked", 400),
        (
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            400,
        ),
        ("Transfer-Encoding:", 400),
        ("Transfer-Encoding: ,chunked", 400),
        ("Transfer-Encoding: xchunked", 400),
        ("Transfer-Encoding: identity", 400),
        ("Transfer-Encoding: gzip, chunked", 501),
        (
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
            400,
        ),
        ("Transfer-Encoding: \"chunked\"", 400),
        ("Transfer-Encoding: \x0bchunked", 400),
        ("Transfer-Encoding:\x00chunked", 400),
        ("A: b\nContent-Length: 3", 400),
        ("A: b\rContent-Length: 3", 400),
        ("A: b\r\n continued", 400),
        ("A: b\r\n\tcontinued", 400),
        (" A: b", 400),
        ("A: b\x7f", 400),
        ("A\u{e4}: b", 400),
        ("no colon", 400),
        (": nameless", 400),
        ("Host: h", 400),
        ("Expect: 200-ok", 417),
        ("Expect: 100-continue, x", 417),
    ] {
        let text = format!("POST / HTTP/1.1\r\nHost: h\r\n{fields}\r\n\r\n");
        assert_eq!(refusal(&text), Some(status), "{fields:?}");
    }
    assert_eq!(
        refusal("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"),
        Some(400)
    );
    assert_eq!(refusal("GET / HTTP/1.1\r\n\r\n"), Some(400), "no host");
    for host in [
        "a, b", "u@h", "a/b", "a b", "a?b", "", ":80", "name:abc", "name:80a", "name:-1", "a:1:2",
        "[::1", "[]", "[::1]a", "[::1]:x", "[g/]", "a[b]",
    ] {
        let text = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert_eq!(refusal(&text), Some(400), "{host}");
    }
    for host in [
        "a",
        "a:",
        "a:80",
        "127.0.0.1:8800",
        "[::1]",
        "[::1]:8800",
        "[v1.x]",
        "a%20b",
        "a_b",
    ] {
        let text = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert_eq!(complete_head(&text).host(), Some(host.as_bytes()), "{host}");
    }
    for target in ["http://", "http:///a", "http://:80/a", "http://a:b/"] {
        let text = format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(refusal(&text), Some(400), "{target}");
    }
}

#[test]
fn bad_request_lines_are_refused() {
    for (line, status) in [
        ("GET / HTTP/2.0", 505),
        ("PRI * HTTP/2.0", 505),
        ("GET / HTTP/0.9", 505),
        ("GET / HTTP/1.10", 400),
        ("GET / http/1.1", 400),
        ("GET / HTTP/1", 400),
        ("GET /", 400),
        ("GET", 400),
        ("GET  / HTTP/1.1", 400),
        ("GET / a HTTP/1.1", 400),
        ("GET / HTTP/1.1 ", 400),
        ("GET\t/\tHTTP/1.1", 400),
        ("G(T / HTTP/1.1", 400),
        ("GET /a#b HTTP/1.1", 400),
        ("GET /a\tb HTTP/1.1", 400),
        ("GET /a\x7f HTTP/1.1", 400),
        ("GET a HTTP/1.1", 400),
        ("GET * HTTP/1.1", 400),
        ("GET ftp://h/ HTTP/1.1", 400),
        ("GET http:///a HTTP/1.1", 400),
        ("GET http://u@h/a HTTP/1.1", 400),
        ("CONNECT /a HTTP/1.1", 400),
        ("CONNECT http://h:443/ HTTP/1.1", 400),
        ("CONNECT  HTTP/1.1", 400),
    ] {
        let text = format!("{line}\r\nHost: h\r\n\r\n");
        assert_eq!(refusal(&text), Some(status), "{line:?}");
    }
    assert_eq!(
        complete_head("get / HTTP/1.1\r\nHost: h\r\n\r\n").method,
        Method::Other
    );
    assert_eq!(refusal("\n\nGET / HTTP/1.1\r\nHost: h\r\n\r\n"), Some(400));
    assert!(
        parse("\x16\x03\x01").is_err(),
        "a TLS hello needs no second look"
    );
}

#[test]
fn heads_have_a_limit() {
    let head = format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", "a".repeat(200));
    let bytes = head.as_bytes();
    assert!(head::parse(bytes, bytes.len()).unwrap().is_some());
    assert_eq!(
        head::parse(bytes, bytes.len() - 1).unwrap_err(),
        HeadError::TooLarge
    );
    assert!(head::parse(&bytes[..99], 100).unwrap().is_none());
    assert_eq!(head::parse(&bytes[..100], 100).unwrap_err().status(), 431);
    assert_eq!(
        head::parse(&b"\r\n".repeat(50), 100).unwrap_err(),
        HeadError::TooLarge
    );
    assert_eq!(head::blank_lines(b"\r\n\r\n\r"), 4);

    let with_fields = |n: usize| {
        format!(
            "GET / HTTP/1.1\r\nHost: h\r\n{}\r\n",
            "a: b\r\n".repeat(n - 1)
        )
    };
    assert_eq!(
        complete_head(&with_fields(head::MAX_HEADERS))
            .headers("a")
            .count(),
        head::MAX_HEADERS - 1
    );
    assert_eq!(refusal(&with_fields(head::MAX_HEADERS + 1)), Some(431));
    // The parser stores few fields in another place than many. The result is the same.
    for n in 20..30 {
        assert_eq!(complete_head(&with_fields(n)).headers("a").count(), n - 1);
        let malformed = with_fields(n).replace("\r\n\r\n", "\r\nb d: e\r\n\r\n");
        assert_eq!(refusal(&malformed), Some(400), "{n}");
    }
}

#[test]
fn an_upgrade_needs_all_its_parts() {
    let is_upgrade = |method: &str, minor: u8, fields: &str| {
        let text = format!("{method} / HTTP/1.{minor}\r\nHost: h\r\n{fields}\r\n\r\n");
        complete_head(&text).is_websocket_upgrade()
    };
    let both = "Connection: keep-alive, Upgrade\r\nUpgrade: WebSocket";
    assert!(is_upgrade("GET", 1, both));
    assert!(!is_upgrade("POST", 1, both));
    assert!(!is_upgrade("GET", 0, both));
    assert!(!is_upgrade("GET", 1, "Upgrade: websocket"));
    assert!(!is_upgrade("GET", 1, "Connection: upgrade\r\nUpgrade: h2c"));
}

#[test]
fn an_expectation_is_met_only_where_a_body_follows() {
    let expects_continue = |minor: u8, fields: &str| {
        let text =
            format!("POST / HTTP/1.{minor}\r\nHost: h\r\nExpect: 100-Continue\r\n{fields}\r\n");
        complete_head(&text).expects_continue()
    };
    assert!(expects_continue(1, "Content-Length: 1\r\n"));
    // `Expect` is a list, whose empty members are ignored (RFC 9110 sections 5.6.1.2 and 10.1.1).
    for empty in ["", ",", "100-continue,"] {
        let text = format!("POST / HTTP/1.1\r\nHost: h\r\nExpect: {empty}\r\n\r\n");
        assert_eq!(refusal(&text), None, "{empty}");
    }
    assert!(expects_continue(1, "Transfer-Encoding: chunked\r\n"));
    assert!(!expects_continue(1, "Content-Length: 0\r\n"));
    assert!(!expects_continue(1, ""));
    assert!(!expects_continue(0, "Content-Length: 1\r\n"));
}

#[test]
fn accept_header_is_parsed_in_all_its_forms() {
    for (accept, events, json) in [
        ("", false, false),
        ("text/event-stream", true, false),
        ("TEXT/Event-Stream; charset=utf-8", true, false),
        ("*/*, text/event-stream", true, false),
        (", text/event-stream", true, false),
        ("*/*;q=1, text/event-stream;q=0.999", true, false),
        ("text/html, text/event-stream ; q=0.001", true, false),
        ("text/event-stream-x", false, false),
        ("text/*", false, false),
        ("text/event-stream;q=0, */*", false, false),
        ("*/*, text/event-stream;Q=0.000", false, false),
        ("text/event-stream;q=nonsense", false, false),
        // Clients of the Model Context Protocol accept both.
        ("application/json, text/event-stream", true, true),
        ("text/event-stream, application/json", true, true),
        (
            "application/json, text/event-stream, text/plain",
            true,
            true,
        ),
        (
            "text/plain, application/json, text/event-stream",
            true,
            false,
        ),
        // Text within quotes is neither a member of the list nor a parameter.
        (r#"text/plain; x="text/event-stream""#, false, false),
        (r#"text/plain; x="a, text/event-stream""#, false, false),
        (r#"text/plain; x="a\", text/event-stream""#, false, false),
        (r#"text/plain; x="a\\", text/event-stream"#, true, false),
        (r#"text/event-stream; x="; q=0""#, true, false),
        (r#"application/json; x=";q=0", text/plain"#, false, true),
        (
            r#"text/plain; x="not closed, text/event-stream"#,
            false,
            false,
        ),
        (
            "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
            false,
            false,
        ),
        ("text/plain;q=0.5, application/json;q=0.75", false, true),
        ("text/json, text/plain", false, true),
        ("text/plain, text/json", false, false),
        ("application/json, text/plain, */*", false, true),
        ("application/*", false, true),
        ("application/json;q=0, text/plain", false, false),
        ("application/json;q=0.5, */*", false, false),
        ("*/*;q=0.5, application/json;q=0.5", false, true),
        (
            "text/event-stream;q=0, application/json;q=0.001",
            false,
            true,
        ),
        ("image/png", false, false),
    ] {
        let text = format!("GET / HTTP/1.1\r\nHost: h\r\nAccept: {accept}\r\n\r\n");
        assert_eq!(
            complete_head(&text).accept(),
            Accept { events, json },
            "{accept:?}"
        );
    }
    let several = "GET / HTTP/1.1\r\nHost: h\r\nAccept: application/json\r\nAccept: text/event-stream\r\n\r\n";
    assert!(complete_head(several).accept().events);
}

#[test]
fn field_of_an_invalid_head_is_found_in_its_complete_lines() {
    for (bytes, expected) in [
        (
            "GET / HTTP/1.1\r\nOrigin: https://a\r\n\r\n",
            Some("https://a"),
        ),
        ("\r\nnonsense\r\norigin:\thttps://a \r\n", Some("https://a")),
        // The rest of the line may still come, so the value is not known yet.
        ("GET / HTTP/1.1\r\nOrigin: https://a", None),
        (
            "GET / HTTP/1.1\r\nOrigin: https://a\r\nOrigin: https://a\r\n",
            None,
        ),
        ("GET / HTTP/1.1\r\nX-Origin: https://a\r\n", None),
        ("POST / HTTP/1.1\r\n\r\nOrigin: https://a\r\n", None),
        ("", None),
    ] {
        let value = head::field_in(bytes.as_bytes(), "origin");
        assert_eq!(value, expected.map(str::as_bytes), "{bytes:?}");
    }
}

/// Everything that a connection learns from a stream of requests.
#[derive(Clone, Debug, PartialEq)]
enum Event {
    Head(Method, Vec<u8>, Vec<u8>, Body, Option<Vec<u8>>),
    Data(Vec<u8>),
    BadHead(HeadError),
    BadBody(BodyError),
}

/// A minimal connection: it keeps incomplete bytes, and stops at the first error.
#[derive(Default)]
struct Reader {
    buf: Vec<u8>,
    events: Vec<Event>,
    body: Option<Body>,
    body_bytes_left: u64,
    chunked: ChunkedDecoder,
    data: Vec<u8>,
    has_failed: bool,
}

impl Reader {
    fn feed(&mut self, bytes: &[u8]) {
        self.buf.extend_from_slice(bytes);
        while !self.has_failed && self.step() {}
    }

    /// Does one step. Returns whether more may follow.
    fn step(&mut self) -> bool {
        match self.body {
            None => self.head(),
            Some(Body::Chunked) => match self.chunked.decode(&mut self.buf, 64) {
                Ok(p) => {
                    assert!(p.written <= p.consumed && (p.done || p.consumed == self.buf.len()));
                    self.data.extend_from_slice(&self.buf[..p.written]);
                    self.buf.drain(..p.consumed);
                    if p.done {
                        self.finish();
                    }
                    p.done
                }
                Err(e) => self.fail(Event::BadBody(e)),
            },
            Some(_) => {
                let accepted = self
                    .buf
                    .len()
                    .min(usize::try_from(self.body_bytes_left).unwrap_or(usize::MAX));
                self.data.extend(self.buf.drain(..accepted));
                self.body_bytes_left -= accepted as u64;
                if self.body_bytes_left == 0 {
                    self.finish();
                }
                self.body.is_none()
            }
        }
    }

    fn head(&mut self) -> bool {
        let parsed = head::parse(&self.buf, LIMIT).and_then(|head| {
            let Some(head) = head else { return Ok(None) };
            let body = head.body()?;
            let (path, query) = (head.path.to_vec(), head.query.to_vec());
            let host = head.host().map(<[u8]>::to_vec);
            let event = Event::Head(head.method, path, query, body, host);
            Ok(Some((event, body, head.len)))
        });
        let (event, body, len) = match parsed {
            Ok(Some(parsed)) => parsed,
            Ok(None) => return false,
            Err(e) => return self.fail(Event::BadHead(e)),
        };
        self.events.push(event);
        self.buf.drain(..len);
        self.body_bytes_left = if let Body::Length(n) = body { n } else { 0 };
        self.body = Some(body);
        true
    }

    fn finish(&mut self) {
        self.events
            .push(Event::Data(std::mem::take(&mut self.data)));
        self.body = None;
        self.chunked = ChunkedDecoder::default();
    }

    fn fail(&mut self, event: Event) -> bool {
        self.events.push(event);
        // The data of an incomplete body does not count: after an error it may still be in the buffer or not, depending on the cuts.
        self.data.clear();
        self.has_failed = true;
        false
    }
}

fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Event>, Vec<u8>) {
    let mut reader = Reader::default();
    for piece in pieces {
        reader.feed(piece);
    }
    (reader.events, reader.data)
}

/// Requests as clients send them.
fn request() -> impl Strategy<Value = Vec<u8>> {
    let target = prop_oneof![
        "/[a-z%+]{0,8}(\\?[a-z=&]{0,8})?",
        Just("http://other/x?y".to_owned()),
        "/(%[c-e][0-9a-f]%[89ab][0-9a-f]){1,3}",
    ];
    let body = prop_oneof![
        Just(String::from("\r\n")),
        "[ -~\r\n]{0,20}".prop_map(|b| format!("Content-Length: {}\r\n\r\n{b}", b.len())),
        prop::collection::vec(("[ -~\r\n]{1,12}", "(;x=y)?"), 0..4).prop_map(|chunks| {
            let chunks: String = chunks
                .iter()
                .map(|(c, ext)| format!("{:x}{ext}\r\n{c}\r\n", c.len()))
                .collect();
            format!("Transfer-Encoding: chunked\r\n\r\n{chunks}0\r\nTrailer: x\r\n\r\n")
        }),
    ];
    (
        "(\r\n){0,2}",
        "GET|POST|PATCH",
        target,
        "(X-[a-z]{1,4}: [ -~]{0,9}\r\n){0,3}",
        body,
    )
        .prop_map(|(blank, method, target, fields, body)| {
            format!("{blank}{method} {target} HTTP/1.1\r\nHost: h\r\n{fields}{body}").into_bytes()
        })
}

/// A stream of requests, in which a few bytes may be replaced by significant ones.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let harm = (
        any::<prop::sample::Index>(),
        prop::sample::select(b"\r\n :;,0fG\0\x7f/#?\xff".to_vec()),
    );
    (
        prop::collection::vec(request(), 1..4),
        prop::collection::vec(harm, 0..3),
    )
        .prop_map(|(requests, harms)| {
            let mut bytes = requests.concat();
            for (at, byte) in harms {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes
        })
}

proptest! {
    #[test]
    fn any_split_gives_the_same_requests(bytes in stream(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6)) {
        let expected = read([&bytes[..]]);
        prop_assert_eq!(&read(bytes.chunks(1)), &expected, "byte by byte");
        for at in 0..=bytes.len() {
            let (a, b) = bytes.split_at(at);
            prop_assert_eq!(&read([a, b]), &expected, "split at {}", at);
        }
        let mut cuts: Vec<usize> = cuts.iter().map(|i| i.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        prop_assert_eq!(&read(cuts.windows(2).map(|w| &bytes[w[0]..w[1]])), &expected);
    }

    #[test]
    fn complete_requests_are_all_read(requests in prop::collection::vec(request(), 1..4)) {
        let (events, rest) = read([&requests.concat()[..]]);
        prop_assert_eq!(events.len(), 2 * requests.len());
        prop_assert!(rest.is_empty());
        for event in events {
            prop_assert!(matches!(event, Event::Head(..) | Event::Data(_)), "{:?}", event);
        }
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), limit in 0usize..300) {
        if let Ok(Some(head)) = head::parse(&bytes, limit) {
            prop_assert!(head.len <= bytes.len());
            let _ = head.body();
        }
        let after = [b"GET / HTTP/1.1\r\nHost: h\r\nAccept: ", &bytes[..], b"\r\n\r\n"].concat();
        if let Ok(Some(head)) = head::parse(&after, LIMIT) {
            let _ = (head.body(), head.accept(), head.keep_alive(), head.expects_continue());
        }
    }
}
