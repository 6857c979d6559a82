//! Tests the limits of connections, topics and rates. A refused client is told when to try again, in the form of its protocol. Connected
//! clients are not affected.

use crate::support::http::{Conn, Response, once};
use crate::support::port::await_metric;
use crate::support::stream::Stream;
use crate::support::ws::{FIN, TEXT, Ws, handshake, line};
use crate::support::{Server, connect_from, until};
use std::io::Write as _;
use std::net::TcpStream;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

const SSE: &[(&str, &str)] = &[("Accept", "text/event-stream")];
/// The range of `Retry-After` that docs/SETTINGS.md states, in seconds.
const RETRY_S: std::ops::RangeInclusive<u32> = 5..=20;

/// The setting for the rate at which one address may create topics.
const TOPICS_RATE: &str = "limits.topics_per_address_per_s";

fn limits(text: &str) -> Server {
    Server::with(&format!("[limits]\n{text}\n"))
}

/// Checks that the response has this status, and a `Retry-After` in the documented range.
fn assert_refusal(response: &Response, status: u16) {
    assert_eq!(response.status, status, "{response:?}");
    let after = response.header("retry-after").expect("a Retry-After");
    assert!(
        RETRY_S.contains(&after.parse().expect("seconds")),
        "{after}"
    );
}

/// Checks the response to a refused `EventSource`, which makes it reconnect: status 200, a `retry:` field, and the end.
fn assert_refused_stream(mut conn: Conn, response: &Response) {
    assert_eq!(response.status, 200, "{response:?}");
    assert_eq!(
        response.header("content-type").as_deref(),
        Some("text/event-stream")
    );
    let ms: u32 = response
        .text()
        .strip_prefix("retry: ")
        .and_then(|rest| rest.strip_suffix("\n"))
        .unwrap_or_else(|| panic!("{:?} is no retry alone", response.text()))
        .parse()
        .expect("milliseconds");
    assert!(RETRY_S.contains(&(ms / 1000)), "{ms}");
    assert!(conn.ends(), "the connection must not stay");
}

/// Sends every kind of request above the connection limit, each over its own connection, and checks that all are refused.
fn assert_all_refused(server: &Server, status: u16) {
    for (method, target) in [
        ("GET", "/sub/news"),
        ("POST", "/pub/news"),
        ("GET", "/nothing"),
    ] {
        let mut conn = Conn::open(server);
        assert_refusal(&conn.request(method, target, &[], ""), status);
        assert!(
            conn.ends(),
            "{method} {target}: the connection must not stay"
        );
    }
    for target in ["/sub/news", "/pub/news", "/pubsub/news"] {
        let mut conn = Conn::open(server);
        assert_refusal(&conn.get(target, &handshake(&[])), status);
        assert!(conn.ends());
    }
    // The server refuses without waiting for the rest of the request.
    let mut conn = Conn::open(server);
    let head = conn.request_bytes("POST", "/pub/news", &[("Expect", "100-continue")], b"x");
    conn.send(&head[..head.len() - 1]);
    assert_refusal(&conn.response(), status);
    let mut conn = Conn::open(server);
    let response = conn.get("/sub/news", SSE);
    assert_refused_stream(conn, &response);
}

/// Waits until a request is accepted. The server may notice the end of a connection with a delay.
fn await_room(server: &Server) {
    until("room", || {
        once(server, "GET", "/pub/other", &[], "").status == 404
    });
}

#[test]
fn full_server_refuses_new_connections_and_serves_the_others() {
    let server = limits("connections_max = 4");
    let mut ws = Ws::open(&server, "/sub/news", &[]);
    let mut stream = Stream::open(&server, "/sub/news", SSE);
    let mut publisher = Conn::open(&server);
    let get = publisher.get("/pub/other", &[]);
    assert_eq!(get.status, 404);
    let mut poll = Conn::open(&server);
    poll.ask("GET", "/sub/news", &[], "");
    // The long-poll has the fourth place. It is admitted when it is counted as a subscriber.
    let json = [("Accept", "application/json")];
    until("three subscribers", || {
        publisher.get("/pub/news", &json).json()["subscribers"] == 3
    });
    for _ in 0..5 {
        assert_all_refused(&server, 503);
    }
    let response = publisher.request("POST", "/pub/news", &[], "still here");
    assert_eq!(response.status, 201);
    assert_eq!(ws.message().text(), "still here");
    assert_eq!(stream.data(1), ["still here"]);
    assert_eq!(poll.response().text(), "still here");
    drop(ws);
    await_room(&server); // a free place is used again
    // The connection of the answered long-poll keeps its place, whatever it requests next.
    assert_eq!(poll.get("/pub/other", &[]).status, 404);
}

#[test]
fn address_gets_no_more_connections_than_its_share() {
    let server = limits("connections_per_address_max = 3");
    let mut subscribers: Vec<Ws> = (0..3)
        .map(|_| Ws::open(&server, "/sub/news", &[]))
        .collect();
    for _ in 0..5 {
        assert_all_refused(&server, 429);
    }
    subscribers.pop();
    await_room(&server);
}

#[test]
fn refused_connections_that_send_nothing_are_closed_soon() {
    let server = limits("connections_max = 1\nconnections_per_address_max = 1");
    let mut client = Ws::open(&server, "/pubsub/news", &[]);
    for mut conn in (0..50).map(|_| Conn::open(&server)).collect::<Vec<_>>() {
        conn.read_to_end();
    }
    client.send(FIN | TEXT, "undisturbed");
    assert_eq!(client.message().text(), "undisturbed");
}

#[test]
fn new_connections_go_to_the_shard_that_has_room() {
    let server = limits("connections_per_shard = 50");
    let mut connections: Vec<Conn> = Vec::new();
    for number in 0..100 {
        // The connections come from many addresses, since each address may have only a share of the last places.
        let host = 2 + (number % 25) as u8;
        let mut conn = Conn::from_stream(connect_from(host, server.address()), &server);
        let status = conn.get("/pub/other", &[]).status;
        assert_eq!(status, 404, "connection {number} of two shards of 50");
        connections.push(conn);
    }
    assert_all_refused(&server, 503);
    connections.truncate(80);
    await_room(&server);
    for conn in &mut connections {
        assert_eq!(conn.get("/pub/other", &[]).status, 404);
    }
}

/// The number of open descriptors of all threads of the server. Each shard has a table of its own.
fn open_descriptors(server: &Server) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid())).expect("the threads");
    tasks
        .map(|task| task.expect("a thread").path().join("fd"))
        .map(|table| std::fs::read_dir(table).map_or(0, Iterator::count))
        .sum()
}

#[test]
fn without_descriptors_a_request_is_still_read_before_it_is_refused() {
    let server = Server::with_descriptors("", 200);
    let mut connections: Vec<Conn> = Vec::new();
    let refusal = loop {
        // The connections come from many addresses, since each address may have only a share of the last places.
        let host = 2 + (connections.len() % 100) as u8;
        let mut conn = Conn::from_stream(connect_from(host, server.address()), &server);
        let response = conn.get("/pub/other", &[]);
        if response.status != 404 {
            break response;
        }
        connections.push(conn);
        assert!(connections.len() < 400, "two shards of 200 descriptors");
    };
    assert!(
        connections.len() > 340,
        "only {} of some 380",
        connections.len()
    );
    assert_refusal(&refusal, 503);
    let descriptors = open_descriptors(&server);
    for _ in 0..5 {
        assert_all_refused(&server, 503);
        // A few descriptors are kept for refusals. Without one, the server refuses before it has the request. So the refused connections must have ended
        // before the next ones come.
        until("the refused connections have ended", || {
            open_descriptors(&server) <= descriptors
        });
    }
    server.await_log("turned away");
    connections.truncate(300);
    await_room(&server);
    let count = server.log().matches("turned away").count();
    assert!(count <= 2, "each shard once: {}", server.log());
}

#[test]
fn topics_beyond_the_limit_of_the_process_are_refused() {
    let server = limits("topics_max = 20");
    let statuses: Vec<u16> = (0..200)
        .map(|number| once(&server, "POST", &format!("/pub/t/{number}"), &[], "x").status)
        .collect();
    let created = statuses.iter().filter(|status| **status == 202).count();
    assert!((10..=20).contains(&created), "{created} of 20");
    let refused = (0..200).find(|number| statuses[*number] == 503);
    let refused = format!("/sub/t/{}", refused.expect("a refusal"));
    assert_refusal(&once(&server, "GET", &refused, &[], ""), 503);
    let response = once(&server, "GET", &refused, &handshake(&[]), "");
    assert_refusal(&response, 503);
    let mut conn = Conn::open(&server);
    let response = conn.get(&refused, &[SSE[0], ("Connection", "close")]);
    assert_refused_stream(conn, &response);
}

#[test]
fn refused_frame_without_acknowledgement_closes_its_connection() {
    let server = limits("topics_max = 20");
    let closed = (0..200).find_map(|number| {
        let mut publisher = Ws::open(&server, &format!("/pub/t/{number}"), &[]);
        publisher.send(FIN | TEXT, "x");
        // If the frame was accepted, the server answers the Close frame with the same code.
        publisher.send(FIN | 8, 1000_u16.to_be_bytes());
        publisher.closed().filter(|code| *code != 1000)
    });
    assert_eq!(closed, Some(1013));
}

/// Publishes as fast as it can. Returns how many publishes were accepted, and the first refusal.
fn publish_until_refused(server: &Server) -> (usize, Response) {
    let mut conn = Conn::open(server);
    for accepted in 0..1_000 {
        let response = conn.request("POST", "/pub/news", &[], "x");
        if ![201, 202].contains(&response.status) {
            return (accepted, response);
        }
    }
    panic!("no limit was met");
}

#[test]
fn publishes_have_a_rate_and_a_burst() {
    for (name, status) in [("publishes", 503), ("publishes_per_address", 429)] {
        let settings = format!("[limits]\n{name}_per_s = 20\n{name}_burst = 50\n");
        let server = Server::with_admin(&settings);
        let mut subscriber = Ws::open(&server, "/sub/other", &[]);
        let (accepted, refusal) = publish_until_refused(&server);
        assert_refusal(&refusal, status);
        assert!(accepted >= 50, "{name}: {accepted}");

        // Each line of a batch counts as a publish.
        let lines = "{\"topic\": \"news\", \"data\": \"x\"}\n".repeat(200);
        let ndjson = [("Content-Type", "application/x-ndjson")];
        let answer = once(&server, "POST", "/pub", &ndjson, &lines).json();
        let failed = answer["failed"].as_array().expect("a list");
        assert!(failed.len() >= 100, "{answer}");
        let reason = failed[0]["reason"].as_str().expect("a reason");
        assert!(reason.contains(&format!("limits.{name}_per_s")), "{reason}");
        let count = answer["published"].as_u64().expect("a number");
        assert_eq!(count + failed.len() as u64, 200);
        let refused = 1.0 + failed.len() as f64;
        await_metric(server.admin(), "crore_refused_rates_total", refused);

        // With acknowledgements the server refuses the frame in its acknowledgement, and the connection stays.
        let mut meta = Ws::meta(&server, "/pub/news");
        let mut refused = false;
        for _ in 0..100 {
            meta.send(FIN | TEXT, "x");
            let (lines, _) = meta.meta_message();
            refused |= line(&lines, "status") == status.to_string();
        }
        assert!(refused, "{name}");
        let mut plain = Ws::open(&server, "/pub/news", &[]);
        (0..100).for_each(|_| plain.send(FIN | TEXT, "x"));
        assert_eq!(plain.closed(), Some(1013));

        server.await_subscribers("other", 1);
        let later = || once(&server, "POST", "/pub/other", &[], "later").status;
        until("a later publish", || later() == 201);
        assert_eq!(subscriber.message().text(), "later");
    }
}

/// Makes requests with new names until one is refused. Returns that name and its answer.
fn first_refused<T>(mut send_request: impl FnMut(&str) -> Option<T>) -> (String, T) {
    static NAMES: AtomicU32 = AtomicU32::new(0);
    let mut names = (0..50).map(|_| format!("new/{}", NAMES.fetch_add(1, Relaxed)));
    let refused = names.find_map(|name| Some((name.clone(), send_request(&name)?)));
    refused.expect("an address may make no topics for ever")
}

/// Checks that subscribing by event stream and by WebSocket handshake is refused if it would create a topic, and that lines of a batch are
/// refused too.
fn assert_subscribing_and_batches_refused(server: &Server, address: (&str, &str)) {
    first_refused(|name| {
        let mut conn = Conn::open(server);
        conn.ask("GET", &format!("/sub/{name}"), &[SSE[0], address], "");
        let head = conn.head();
        let is_stream = head.header("content-length").is_none();
        (!is_stream).then(|| assert_eq!(head.status, 200, "it is shed"))
    });
    let (_, refusal) = first_refused(|name| {
        let mut conn = Conn::open(server);
        conn.ask(
            "GET",
            &format!("/sub/{name}"),
            &[handshake(&[]), vec![address]].concat(),
            "",
        );
        let head = conn.head();
        (head.status != 101).then_some(head)
    });
    assert_eq!(refusal.status, 429);
    let ndjson = [address, ("Content-Type", "application/x-ndjson")];
    let lines = (0..50).map(|n| format!("{{\"topic\": \"batch/{n}\", \"data\": \"x\"}}\n"));
    let lines: String = lines.collect();
    let answer = once(server, "POST", "/pub", &ndjson, &lines).json();
    let failed = answer["failed"].as_array().expect("a list");
    assert!(failed.len() >= 40, "{answer}");
    assert!(
        failed[0]["reason"]
            .as_str()
            .expect("a reason")
            .contains(TOPICS_RATE)
    );
}

/// Checks that a WebSocket frame is refused in its acknowledgement, or by closing the connection if there are no acknowledgements.
fn assert_frames_refused(server: &Server, header: (&str, &str)) {
    let meta = ("Sec-WebSocket-Protocol", "ws+meta.nchan");
    let (_, status) = first_refused(|name| {
        let mut ws = Ws::open(server, &format!("/pub/{name}"), &[header, meta]);
        ws.send(FIN | TEXT, "x");
        let (lines, _) = ws.meta_message();
        let status = line(&lines, "status").to_string();
        (status != "202").then_some(status)
    });
    assert_eq!(status, "429");
    let (_, code) = first_refused(|name| {
        let mut ws = Ws::open(server, &format!("/pub/{name}"), &[header]);
        ws.send(FIN | TEXT, "x");
        ws.send(FIN | 8, 1000_u16.to_be_bytes());
        ws.closed().filter(|code| *code != 1000)
    });
    assert_eq!(code, 1013);
}

#[test]
fn topics_that_one_address_makes_have_a_rate_and_a_burst() {
    let server = Server::with(
        "[limits]\ntopics_per_address_per_s = 1\ntopics_per_address_burst = 20\n\
         [http]\ntrusted_proxies = [\"127.0.0.1/32\"]\n",
    );
    let header = ("X-Forwarded-For", "192.0.2.1");
    let mut conn = Conn::open(&server);
    let mut create_topic = |method: &str, name: &str, target: &str| {
        let body = if method == "POST" { "x" } else { "" };
        let response = conn.request(method, &format!("{target}/{name}"), &[header], body);
        (![201, 202].contains(&response.status)).then_some(response)
    };
    let created = (0..200).take_while(|n| create_topic("POST", &n.to_string(), "/pub").is_none());
    let created = created.count();
    assert!((20..200).contains(&created), "{created}");

    // Both methods are refused, and the refused topic does not exist.
    for method in ["POST", "PUT"] {
        let (name, refusal) = first_refused(|name| create_topic(method, name, "/pub"));
        assert_refusal(&refusal, 429);
        assert!(refusal.text().contains(TOPICS_RATE), "{refusal:?}");
        let info = once(&server, "GET", &format!("/pub/{name}"), &[header], "");
        assert_eq!(info.status, 404, "{method} {name}");
    }
    assert_subscribing_and_batches_refused(&server, header);
    assert_frames_refused(&server, header);

    // An existing topic costs nothing. Other clients may still create topics, and a client that waits may create one again.
    for _ in 0..50 {
        assert_eq!(once(&server, "POST", "/pub/0", &[header], "x").status, 202);
    }
    let other_header = [("X-Forwarded-For", "192.0.2.2")];
    assert_eq!(
        once(&server, "POST", "/pub/other", &other_header, "x").status,
        202
    );
    let later = || once(&server, "POST", "/pub/later", &[header], "x").status;
    until("a later topic", || later() == 202);
}

#[test]
fn log_bytes_of_one_address_have_a_limit() {
    const SETTING: &str = "limits.log_bytes_per_address_max";
    let server = Server::with(
        "[limits]\nmessage_bytes = \"2 KiB\"\nlog_bytes_per_address_max = \"64 KiB\"\n\
         [http]\ntrusted_proxies = [\"127.0.0.1/32\"]\n\
         [[rule]]\nmatch = \"off/#\"\nlog_messages = 0\n\
         [[rule]]\nmatch = \"last/#\"\nlog_messages = 1\n\
         [[rule]]\nmatch = \"#\"\nlog_messages = 1000\n",
    );
    let (first_address, second_address) = (
        ("X-Forwarded-For", "192.0.2.1"),
        ("X-Forwarded-For", "192.0.2.2"),
    );
    let body = "x".repeat(1 << 10);
    let mut conn = Conn::open(&server);
    let mut post = |address: (&str, &str), name: &str| {
        conn.request("POST", &format!("/pub/{name}"), &[address], &body)
    };

    // Each message replaces the one before, so this topic uses few bytes.
    for _ in 0..200 {
        assert_eq!(post(first_address, "last/a").status, 202);
    }
    let (count, refusal) = (0..200)
        .find_map(|n| {
            Some((n, post(first_address, &format!("kept/{}", n % 4))))
                .filter(|result| result.1.status != 202)
        })
        .expect("an address may keep no more for ever");
    // The limit is 64 KiB: messages of about 1,100 bytes each, and a table row of 48 bytes for each topic.
    assert!((50..=62).contains(&count), "{count}");
    assert_refusal(&refusal, 429);
    assert!(refusal.text().contains(SETTING), "{refusal:?}");
    assert_eq!(post(first_address, "new").status, 429);
    assert_eq!(once(&server, "GET", "/pub/new", &[], "").status, 404);

    // Messages that are not kept may still be published. Other clients may keep theirs, and those of the full address stay.
    let mut subscriber = Ws::open(&server, "/sub/off/a", &[]);
    assert_eq!(post(first_address, "off/a").status, 201);
    assert_eq!(subscriber.message().text(), body);
    assert_eq!(post(second_address, "kept/0").status, 202);
    let info = once(&server, "GET", "/pub/kept/1", &[], "");
    assert!(
        info.text()
            .contains(&format!("queued messages: {}", (count + 2) / 4)),
        "{info:?}"
    );

    // The limit holds for every way to publish. A batch keeps as many of its lines as there is room for.
    let ndjson = [first_address, ("Content-Type", "application/x-ndjson")];
    let lines = format!("{{\"topic\": \"batch\", \"data\": \"{body}\"}}\n").repeat(3);
    let answer = once(&server, "POST", "/pub", &ndjson, &lines).json();
    assert_eq!(
        answer["failed"].as_array().map(Vec::len),
        Some(3),
        "{answer}"
    );
    assert!(
        answer["failed"][0]["reason"]
            .as_str()
            .expect("a reason")
            .contains(SETTING)
    );
    let meta = ("Sec-WebSocket-Protocol", "ws+meta.nchan");
    let mut ws = Ws::open(&server, "/pub/kept/0", &[first_address, meta]);
    ws.send(FIN | TEXT, &body);
    assert_eq!(line(&ws.meta_message().0, "status"), "429");

    // Deleting a topic makes room.
    assert_eq!(once(&server, "DELETE", "/pub/kept/1", &[], "").status, 200);
    assert_eq!(post(first_address, "kept/0").status, 202);
}

/// Two addresses may share a queue by chance, so several other addresses connect.
#[test]
fn crowd_of_one_address_is_let_in_after_a_newcomer_of_another() {
    let server = Server::with_shards(1, "[limits]\naccepts_per_s = 1\n");
    let send_request = |host: u8| {
        let mut stream = connect_from(host, server.address());
        let request = b"GET /pub/none HTTP/1.1\r\nHost: localhost\r\n\r\n";
        stream.write_all(request).expect("it is taken");
        stream.set_nonblocking(true).expect("a socket option");
        stream
    };
    let is_unanswered = |stream: &&TcpStream| stream.peek(&mut [0]).is_err();
    let crowd: Vec<TcpStream> = (0..100).map(|_| send_request(2)).collect();
    let newcomers = [3, 4, 5, 6].map(send_request);
    until("an answer to a newcomer", || {
        !newcomers.iter().all(|stream| is_unanswered(&stream))
    });
    let unanswered = crowd.iter().filter(is_unanswered).count();
    assert!(unanswered > 80, "{unanswered} of the crowd wait");
}

#[test]
fn crowd_is_admitted_at_the_rate_and_nobody_is_refused() {
    let server = limits("accepts_per_s = 100");
    let mut subscriber = Ws::open(&server, "/pubsub/news", &[]);
    let began = Instant::now();
    let mut clients: Vec<Conn> = (0..200)
        .map(|_| {
            let mut conn = Conn::open(&server);
            conn.ask("GET", "/pub/other", &[], "");
            conn
        })
        .collect();
    // A client that is already connected goes on meanwhile.
    for _ in 0..50 {
        subscriber.send(FIN | TEXT, "quick");
        assert_eq!(subscriber.message().text(), "quick");
    }
    for conn in &mut clients {
        assert_eq!(conn.response().status, 404);
    }
    let took = began.elapsed();
    // Each shard has half of the rate and may admit a twentieth of a second's worth at once; by chance it has more or less than half of
    // the crowd. A busy machine only takes longer.
    assert!(took > Duration::from_millis(1_500), "{took:?}");
}
