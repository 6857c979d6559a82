//! Tests too many clients on the admin port, and clients that never send a request.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::support::port::{ask, line, metric, raw, stream, stream_with};
use crate::support::{Server, connect, connect_from, eventually, until};

/// Waits until the port closes the connection without an answer.
fn assert_closed_without_answer(mut stream: TcpStream) {
    let mut response = Vec::new();
    let end = stream.read_to_end(&mut response);
    assert!(end.is_ok() && response.is_empty(), "{end:?} {response:?}");
}

#[test]
fn admin_port_refuses_connections_beyond_its_limit_and_still_answers_health_checks() {
    let server = Server::with_admin("[admin]\nconnections_max = 3\nhead_s = 3600\n");
    let admin = server.admin();
    let mut streams: Vec<_> = (0..3).map(|_| stream(admin, "/api/v1/stats")).collect();
    for path in ["/metrics", "/", "/api/v1/stats", "/nowhere"] {
        let answer = ask(admin, &format!("GET {path}"), None);
        assert_eq!(answer.status, 503, "{path}: {}", answer.body);
        let reason = answer.json()["error"].to_string();
        assert!(
            reason.contains("admin.connections_max") && reason.contains("raise it"),
            "{reason}"
        );
        assert!(
            answer.head.to_lowercase().contains("retry-after:"),
            "{}",
            answer.head
        );
    }
    // More silent connections than the server keeps above the limit.
    let silent: Vec<_> = (0..40).map(|_| connect(admin)).collect();
    for path in ["/healthz", "/readyz"] {
        let answer = ask(admin, &format!("GET {path}"), None);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }
    for (path, expected) in [("/healthz", 200), ("/metrics", 403)] {
        let line = format!("GET {path}");
        let rebound = raw(admin, &line, "Host: rebound.example\r\n", None);
        assert_eq!(rebound.status, expected, "the gate stands here too: {path}");
    }
    silent
        .into_iter()
        .take(20)
        .for_each(assert_closed_without_answer);
    drop(streams.pop());
    until("room again", || {
        ask(admin, "GET /metrics", None).status == 200
    });
    let refused = metric(admin, "crore_admin_refused_connections_total").expect("a metric");
    assert!(refused >= 48.0, "{refused}");
    let used = "crore_limit_used{name=\"admin.connections_max\",unit=\"connections\"}";
    assert_eq!(metric(admin, used), Some(3.0), "two streams, and who asks");
    let full = "the admin port is full: 3 connections are open";
    until("its words in the log", || server.log().contains(full));
    assert_eq!(server.log().matches(full).count(), 1, "{}", server.log());
}

/// Opens connections from three addresses, each with one of these requests. All stay open.
fn strangers(admin: SocketAddr, requests: &[String]) -> Vec<TcpStream> {
    let all = (0..).zip(requests.iter().cycle()).take(30);
    let opened = all.map(|(n, request)| {
        let mut stranger = connect_from(2 + n % 3, admin);
        stranger.write_all(request.as_bytes()).expect("it is read");
        if request.ends_with("\r\n\r\n") {
            let count = stranger.read(&mut [0; 4096]).expect("an answer");
            assert!(count > 0, "{request}");
        }
        stranger
    });
    opened.collect()
}

#[test]
fn connections_of_strangers_do_not_block_the_operator() {
    let token = "0123456789abcdef";
    let authorization = format!("Authorization: Bearer {token}\r\n");
    let closed = format!("[admin]\ntoken = \"{token}\"\n");
    for (settings, operator) in [(closed.as_str(), authorization.as_str()), ("[admin]\n", "")] {
        let server = Server::with_admin(&format!("{settings}connections_max = 8\nhead_s = 3600\n"));
        let admin = server.admin();
        let operator = format!("Host: {admin}\r\n{operator}");
        let mut events = stream_with(admin, "/api/v1/stats", &operator);
        // No bytes, a part of a head, a probe of a load balancer, and requests that are refused.
        let get = |path: &str, host: &str, extra_headers: &str| {
            format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{extra_headers}\r\n")
        };
        let own_host = admin.to_string();
        let mut requests = vec![
            String::new(),
            "GET /metrics HTTP/1.1\r\nHost: ".into(),
            get("/healthz", &own_host, ""),
            get("/metrics", "rebound.example", ""),
            get("/metrics", &own_host, "Origin: https://evil.example\r\n"),
        ];
        if !settings.ends_with("]\n") {
            requests.push(get("/metrics", &own_host, ""));
            requests.push(get(
                "/metrics",
                &own_host,
                "Authorization: Bearer guessed\r\n",
            ));
            requests.push(get("/", &own_host, ""));
        }
        let stalled = strangers(admin, &requests);
        for n in 0..20 {
            let answer = raw(admin, "GET /metrics", &operator, None);
            assert_eq!(answer.status, 200, "{n}: {}", answer.head);
        }
        // The operator's event stream goes on, whatever strangers do.
        for _ in 0..2 {
            while line(&mut events).is_empty() {}
        }
        drop(stalled);
        assert!(
            server.log().contains("the admin port is full"),
            "{}",
            server.log()
        );
    }
}

#[test]
fn admin_client_without_a_request_in_time_is_ended() {
    let server = Server::with_admin("[admin]\nhead_s = 1\n");
    let admin = server.admin();
    let silent = connect(admin);
    let mut incomplete = connect(admin);
    incomplete
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: ")
        .expect("it is read");
    let mut dripping = connect(admin);
    let drips = std::thread::spawn(move || {
        // Each byte comes in time, but the whole head does not.
        for byte in b"GET /healthz HTTP/1.1\r\nX: "
            .iter()
            .chain(std::iter::repeat(&b'x'))
        {
            if dripping.write_all(&[*byte]).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50)); // the pace of the load
        }
    });
    assert_closed_without_answer(silent);
    assert_closed_without_answer(incomplete);
    drips.join().expect("it ends");
    let slow_count = || metric(admin, "crore_admin_slow_connections_total");
    eventually("three slow ones", || {
        slow_count().filter(|slow_count| *slow_count == 3.0)
    });
    // A connection that has already sent a request may wait as long, and does not count as slow. A stream goes on.
    let _events = stream(admin, "/api/v1/stats");
    let mut idle = connect(admin);
    let request = format!("GET /healthz HTTP/1.1\r\nHost: {admin}\r\n\r\n");
    idle.write_all(request.as_bytes()).expect("it is read");
    let mut response = String::new();
    idle.read_to_string(&mut response)
        .expect("an answer, then the end");
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    assert_eq!(slow_count(), Some(3.0));
    assert!(
        server.log().contains("raise admin.head_s"),
        "{}",
        server.log()
    );
}

/// Sends a head and then pieces of its body: each piece comes in time, but the whole body does not. Returns everything that the server
/// says until the end.
fn said_to_drips(mut stream: TcpStream, head: &str, drip: &'static str) -> String {
    stream.write_all(head.as_bytes()).expect("it is read");
    let mut answer = stream.try_clone().expect("a clone");
    let dripping = std::thread::spawn(move || {
        // These pieces are too few to complete the body.
        for _ in 0..20 {
            if stream.write_all(drip.as_bytes()).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100)); // the pace of the load
        }
    });
    let mut response = Vec::new();
    let mut piece = [0; 4096];
    // A client that still sends at the end may find the connection reset after the answer.
    while let Ok(count @ 1..) = answer.read(&mut piece) {
        response.extend_from_slice(&piece[..count]);
    }
    dripping.join().expect("it ends");
    String::from_utf8(response).expect("text")
}

#[test]
fn slow_request_body_is_refused_at_its_deadline() {
    let server = Server::with_admin("[admin]\nbody_s = 1\nhead_s = 3600\n");
    let admin = server.admin();
    let slow_count = || metric(admin, "crore_admin_slow_connections_total");
    let body = r#"{"topic":"a","data":"x"}"#;
    let head = |extra_headers: &str| {
        format!(
            "POST /api/v1/publish HTTP/1.1\r\nHost: {admin}\r\nContent-Type: application/json\r\n{extra_headers}\r\n\r\n"
        )
    };
    let sized = head(&format!("Content-Length: {}", body.len()));
    let chunked = head("Transfer-Encoding: chunked");
    for (head, drip) in [
        (&sized, ""),
        (&sized, " "),
        (&chunked, ""),
        (&chunked, "1\r\n \r\n"),
    ] {
        let slow_before = slow_count();
        let response = said_to_drips(connect(admin), head, drip);
        assert!(
            response.starts_with("HTTP/1.1 408"),
            "{head}{drip}: {response}"
        );
        assert!(response.contains("admin.body_s"), "{response}");
        assert_eq!(slow_count(), slow_before.map(|count| count + 1.0));
    }
    assert!(
        server.log().contains("raise admin.body_s"),
        "{}",
        server.log()
    );
    // A body in pieces that completes in time. Its connection then stays open for longer than a body may take.
    let mut stream = connect(admin);
    stream.set_nodelay(true).expect("no delay");
    let (first, rest) = body.split_at(5);
    for piece in [&sized, first, rest] {
        stream.write_all(piece.as_bytes()).expect("it is read");
    }
    let mut answer = [0; 4096];
    let count = stream.read(&mut answer).expect("an answer");
    assert!(
        answer[..count].starts_with(b"HTTP/1.1 200"),
        "{:?}",
        &answer[..count]
    );
    // The deadline of another request, which began later, has passed.
    let mut other = connect(admin);
    other.write_all(sized.as_bytes()).expect("it is read");
    let mut response = String::new();
    other.read_to_string(&mut response).expect("an answer");
    assert!(response.starts_with("HTTP/1.1 408"), "{response}");
    stream
        .write_all(format!("{sized}{body}").as_bytes())
        .expect("it is open");
    let count = stream.read(&mut answer).expect("an answer");
    assert!(
        answer[..count].starts_with(b"HTTP/1.1 200"),
        "{:?}",
        &answer[..count]
    );
    assert_eq!(slow_count(), Some(5.0));
}
