//! Tests the basics of HTTP: methods, versions, bodies, limits and timeouts.

use crate::support::http::{Conn, info, once, publish};
use crate::support::port::ask;
use crate::support::{Server, until};

#[test]
fn wrong_method_is_405_and_the_answer_lists_the_right_ones() {
    let server = Server::start();
    let table: [(&str, &str, &[&str]); 5] = [
        ("PATCH", "/pub/a", &["GET", "POST", "PUT", "DELETE"]),
        ("POST", "/sub/a", &["GET"]),
        ("DELETE", "/sub/a", &["GET"]),
        ("PUT", "/sub/a", &["GET"]),
        ("PATCH", "/sub/a", &["GET"]),
    ];
    for (method, target, allowed) in table {
        let response = once(&server, method, target, &[], "");
        assert_eq!(response.status, 405, "{method} {target}");
        let text = response.text();
        for method in allowed {
            assert!(
                response.lists("allow", method) && text.contains(method),
                "{method} {target}: {method} in {response:?}"
            );
        }
        // The answer to a POST on a subscriber path names the publisher path.
        assert_eq!(text.contains("/pub/{topic}"), method == "POST", "{text}");
        assert!(
            !response.lists("allow", method),
            "{method} {target}: {response:?}"
        );
    }
}

/// OPTIONS and unknown methods are answered without credentials. A browser sends none with OPTIONS, and no right allows a method such as
/// TRACE.
#[test]
fn methods_are_answered_alike_with_and_without_credentials() {
    let access = "[[access.key]]\nalg = 'HS256'\nsecret = '0123456789abcdef0123456789abcdef'\n";
    for server in [Server::start(), Server::with(access)] {
        for credentials in ["", "Bearer eyJ0.e30.x", "Basic YTpi", "Negotiate x"] {
            let headers = [("Authorization", credentials)];
            let headers = &headers[usize::from(credentials.is_empty())..];
            for method in ["TRACE", "PATCH", "FROBNICATE", "get"] {
                for target in ["/pub/a", "/sub/a", "/pubsub/a", "/interest", "/nothing"] {
                    let answer = once(&server, method, target, headers, "");
                    assert_eq!(answer.status, 405, "{method} {target} {credentials}");
                    assert!(answer.lists("allow", "GET"), "{answer:?}");
                }
            }
            let answer = once(&server, "CONNECT", "localhost:443", headers, "");
            assert_eq!(answer.status, 405, "CONNECT {credentials}");
            for target in ["*", "/", "/pub/a", "/sub/a?token=x", "/interest"] {
                let answer = once(&server, "OPTIONS", target, headers, "");
                assert_eq!(answer.status, 204, "OPTIONS {target} {credentials}");
            }
        }
    }
}

#[test]
fn request_for_the_other_port_is_refused_with_that_port() {
    let server = Server::with_admin("");
    for path in ["/api/v1/stats", "/metrics", "/healthz", "/health"] {
        let answer = once(&server, "GET", path, &[], "");
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.text().contains("admin.listen"), "{answer:?}");
    }
    let no_topic = once(&server, "GET", "/news", &[], "");
    assert!(no_topic.text().contains("/sub/{topic}"), "{no_topic:?}");
    for request in ["POST /pub/news", "GET /sub/news"] {
        let answer = ask(server.admin(), request, None);
        assert_eq!(answer.status, 404, "{request}");
        let text = answer.body.to_string();
        assert!(text.contains("data port (listen"), "{text}");
    }
}

#[test]
fn load_balancer_may_check_health_at_the_root() {
    let server = Server::start();
    // The request of HAProxy's `option httpchk`, and the same with a version and a host.
    for request in [
        "OPTIONS / HTTP/1.0\r\n\r\n",
        "OPTIONS / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        "OPTIONS http://localhost HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ] {
        let mut conn = Conn::open(&server);
        conn.send(request);
        let answer = conn.response();
        assert_eq!(answer.status, 204, "{request:?}");
        assert!(answer.lists("allow", "POST"), "{answer:?}");
    }
    assert_eq!(once(&server, "OPTIONS", "/nothing", &[], "").status, 404);
}

#[test]
fn other_versions_are_505() {
    let server = Server::start();
    for version in ["HTTP/2.0", "HTTP/3.0", "HTTP/0.9"] {
        let mut conn = Conn::open(&server);
        conn.send(format!("GET /pub/a {version}\r\nHost: localhost\r\n\r\n"));
        assert_eq!(conn.response().status, 505, "{version}");
    }
}

#[test]
fn http_1_0_is_answered_and_closed() {
    let server = Server::start();
    let mut conn = Conn::open(&server);
    conn.send("POST /pub/news HTTP/1.0\r\nContent-Length: 3\r\n\r\nold");
    let response = conn.response();
    assert_eq!(response.status, 202);
    assert!(conn.ends(), "no keep-alive was asked for");
    let mut conn = Conn::open(&server);
    conn.send("GET /sub/news HTTP/1.0\r\n\r\n");
    assert_eq!(conn.response().text(), "old");
    assert!(conn.ends());
}

#[test]
fn connection_persists_until_one_side_closes_it() {
    let server = Server::start();
    let mut conn = Conn::open(&server);
    for _ in 0..5 {
        assert_eq!(conn.request("POST", "/pub/news", &[], "x").status, 202);
    }
    let last = conn.request("POST", "/pub/news", &[("Connection", "close")], "x");
    assert!(
        last.status == 202 && last.lists("connection", "close"),
        "{last:?}"
    );
    assert!(conn.ends());
}

#[test]
fn request_that_arrives_byte_by_byte_is_answered() {
    let server = Server::start();
    let mut conn = Conn::open(&server);
    let post = conn.request_bytes(
        "POST",
        "/pub/slow%20topic",
        &[("Content-Type", "text/x")],
        b"one body",
    );
    conn.dribble(post);
    assert_eq!(conn.response().status, 202);
    let chunked = "POST /pub/slow%20topic HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n\
                   4\r\ntwo \r\n6;x=y\r\nbodies\r\n0\r\nTrailer: z\r\n\r\n";
    conn.dribble(chunked);
    assert_eq!(conn.response().status, 202);
    let get = conn.request_bytes("GET", "/sub/slow%20topic?since=-1", &[], b"");
    conn.dribble(get);
    assert_eq!(conn.response().text(), "two bodies");
}

#[test]
fn chunked_body_with_extensions_and_trailers_is_joined() {
    let server = Server::start();
    let mut conn = Conn::open(&server);
    conn.ask(
        "POST",
        "/pub/news",
        &[("Transfer-Encoding", "chunked"), ("Content-Type", "text/x")],
        "",
    );
    // `ask` adds a Content-Length to a POST, so this connection cannot be used any more.
    assert_eq!(
        conn.response().status,
        400,
        "a length and a coding together"
    );
    let mut conn = Conn::open(&server);
    conn.send(
        "POST /pub/news HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: Chunked\r\n\r\n\
         3\r\nabc\r\n00A;name=\"value; \"\r\n0123456789\r\n0\r\nX-Trailer: 1\r\n\r\n\
         GET /sub/news HTTP/1.1\r\nHost: localhost\r\n\r\n",
    );
    assert_eq!(conn.response().status, 202);
    assert_eq!(conn.response().text(), "abc0123456789");
}

#[test]
fn expect_100_continue_is_answered() {
    let server = Server::start();
    let mut conn = Conn::open(&server);
    conn.send("POST /pub/news HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
    assert_eq!(conn.response().status, 100);
    conn.send("body");
    assert_eq!(conn.response().status, 202);
    // A request whose head is refused is answered before the server asks for the body.
    conn.send("POST /pub/news HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 99999999\r\n\r\n");
    assert_eq!(conn.response().status, 413);
    // RFC 9110 section 10.1.1: a server may leave out the 100 if the body has already arrived.
    let mut conn = Conn::open(&server);
    conn.send("POST /pub/news HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\nbody");
    let first = conn.response().status;
    assert_eq!(
        if first == 100 {
            conn.response().status
        } else {
            first
        },
        202
    );
}

#[test]
fn a_large_head_is_431() {
    let server = Server::start();
    let long = "x".repeat(9000);
    let headers = "X-A: 1\r\n".repeat(1100);
    for head in [
        format!("GET /pub/a HTTP/1.1\r\nHost: localhost\r\nX-Long: {long}\r\n\r\n"),
        format!("GET /pub/a HTTP/1.1\r\nHost: localhost\r\nX-Long: {long}"),
        format!("GET /pub/a HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n"),
    ] {
        let mut conn = Conn::open(&server);
        conn.send(head);
        assert_eq!(conn.response().status, 431);
        assert!(conn.ends());
    }
    // A long target gets 431 too, by the project's own table of statuses.
    let mut conn = Conn::open(&server);
    conn.send(format!(
        "GET /pub/{long} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    ));
    assert_eq!(conn.response().status, 431);
    let header_value = "x".repeat(7000);
    let response = once(&server, "POST", "/pub/a", &[("X-Long", &header_value)], "x");
    assert_eq!(response.status, 202);
}

#[test]
fn a_large_body_is_413_by_length_or_by_count() {
    let server = Server::with("[limits]\nmessage_bytes = 1000\n");
    let mut conn = Conn::open(&server);
    assert_eq!(
        conn.request("POST", "/pub/news", &[], "x".repeat(1000))
            .status,
        202
    );
    conn.send("POST /pub/news HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1001\r\n\r\n");
    assert_eq!(conn.response().status, 413, "before the body comes");
    let mut conn = Conn::open(&server);
    let chunk = format!("{:x}\r\n{}\r\n", 600, "x".repeat(600));
    conn.send("POST /pub/news HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
    conn.send(chunk.repeat(2));
    assert_eq!(conn.response().status, 413);
    assert_eq!(info(&server, "news")["messages"], 1);
}

#[test]
fn slow_senders_are_timed_out() {
    let server =
        Server::with("[timeouts]\nhead_s = 1\nbody_s = 1\nkeep_alive_s = 1\ndrain_s = 1\n");
    let mut head = Conn::open(&server);
    head.send("GET /pub/a HTTP/1.1\r\nHost: loc");
    let mut body = Conn::open(&server);
    body.send("POST /pub/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nhalf");
    let mut idle = Conn::open(&server);
    assert_eq!(idle.request("POST", "/pub/b", &[], "x").status, 202);
    let mut mute = Conn::open(&server);
    assert_eq!(head.response().status, 408);
    assert!(head.ends());
    assert_eq!(body.response().status, 408);
    assert!(body.ends());
    assert!(
        idle.ends(),
        "a keep-alive connection without a request closes in silence"
    );
    assert_eq!(mute.response().status, 408);
    assert!(mute.ends());
    // A head that comes byte by byte is limited by its total time, not by the pause between two bytes.
    let mut trickle = Conn::open(&server);
    until("the end of a head that trickles", || {
        trickle.send("G");
        !trickle.is_silent_for(std::time::Duration::from_millis(200))
    });
    assert_eq!(trickle.response().status, 408);
}

#[test]
fn head_has_the_fields_of_get_and_no_body() {
    let server = Server::start();
    publish(&server, "news", "one");
    let mut conn = Conn::open(&server);
    let get = conn.get("/pub/news", &[]);
    let head = conn.request("HEAD", "/pub/news", &[], "");
    assert_eq!(
        (head.status, head.header("content-type")),
        (get.status, get.header("content-type"))
    );
    assert!(
        head.header("content-length")
            .is_none_or(|length| length == get.body.len().to_string()),
        "{head:?}"
    );
    assert_eq!(conn.request("HEAD", "/pub/nothing", &[], "").status, 404);
    assert_eq!(conn.get("/pub/news", &[]).status, 200);
}

#[test]
fn an_absolute_target_and_a_leading_empty_line_are_understood() {
    let server = Server::start();
    let host = server.address();
    let mut conn = Conn::open(&server);
    // RFC 9112 section 3.2.2: a server must accept the absolute form. Section 2.2: it ignores an empty line before the request.
    conn.send(format!(
        "POST http://{host}/pub/news HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1\r\n\r\nx"
    ));
    assert_eq!(conn.response().status, 202);
    conn.send(format!(
        "\r\nGET /sub/news HTTP/1.1\r\nHost: {host}\r\n\r\n"
    ));
    assert_eq!(conn.response().text(), "x");
}

#[test]
fn every_answer_has_a_date_and_the_safety_headers() {
    let server = Server::with("[[rule]]\nmatch = \"#\"\npoll_timeout_s = 1\n");
    publish(&server, "news", "<script>alert(1)</script>");
    let table: [(&str, &str, u16); 9] = [
        ("GET", "/sub/news", 200),
        ("POST", "/pub/other", 202),
        ("GET", "/pub/nothing", 404),
        ("GET", "/elsewhere", 404),
        ("POST", "/pub/a%00", 400),
        ("PATCH", "/pub/news", 405),
        ("GET", "/sub/silent", 204),
        ("PUT", "/pub/new", 201),
        ("DELETE", "/pub/new", 200),
    ];
    for (method, target, status) in table {
        let response = once(&server, method, target, &[], "");
        assert_eq!(response.status, status, "{method} {target}");
        assert_eq!(
            response.header("x-content-type-options").as_deref(),
            Some("nosniff"),
            "{method} {target}"
        );
        let policy = response
            .header("content-security-policy")
            .unwrap_or_default();
        assert!(policy.contains("sandbox"), "{method} {target}: {policy:?}");
        assert!(
            response.header("date").is_some(),
            "{method} {target}: {response:?}"
        );
    }
    let stream = crate::support::stream::Stream::open(&server, "/sub/news", &[]);
    assert_eq!(
        stream.head.header("x-content-type-options").as_deref(),
        Some("nosniff")
    );
    assert!(
        stream
            .head
            .header("content-security-policy")
            .is_some_and(|policy| policy.contains("sandbox"))
    );
    let mut malformed = Conn::open(&server);
    malformed.send("nonsense\r\n\r\n");
    assert_eq!(
        malformed
            .response()
            .header("x-content-type-options")
            .as_deref(),
        Some("nosniff")
    );
}
