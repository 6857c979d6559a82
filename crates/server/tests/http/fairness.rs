//! Tests that expensive requests do not delay others. While many requests read large logs, the server answers the publishes of an honest
//! client between the pages that it reads.
//!
//! No test asserts a time. The tests count the consecutive round trips of the honest client during the reads or during a fan-out. There
//! would be only a few if the server did all reads in one turn (one round of a shard's event loop), or if an answer waited for a whole
//! fan-out.

use crate::support::http::info;
use crate::support::{Server, until};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

/// The minimum number of the honest client's round trips. There are hundreds if each page of each request has its own turn, and fewer than
/// this if one turn reads a page for all requests.
const ROUND_TRIPS_MIN: usize = 100;
/// Timeout of a read by any client.
const DEADLINE: Duration = Duration::from_secs(300);
const RULE: &str = "[[rule]]\nmatch = \"#\"\nlog_messages = 1000000\nlog_bytes = \"1 GiB\"\n";

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address()).expect("the server listens");
    stream.set_nodelay(true).expect("a socket option");
    let deadline = Some(DEADLINE);
    stream.set_read_timeout(deadline).expect("a socket option");
    stream.set_write_timeout(deadline).expect("a socket option");
    stream
}

/// Sends a request and reads the answer to its end.
fn round_trip(stream: &mut BufReader<TcpStream>, request: &[u8]) -> String {
    stream.get_mut().write_all(request).expect("it is read");
    let (head, body_bytes) = head_of(stream);
    if !request.starts_with(b"HEAD") {
        let mut body = vec![0; body_bytes];
        stream.read_exact(&mut body).expect("the body comes");
    }
    head
}

/// The head of the next answer, and the length of its body.
fn head_of(stream: &mut BufReader<TcpStream>) -> (String, usize) {
    let (mut head, mut body_bytes) = (String::new(), 0);
    loop {
        let mut line = String::new();
        assert!(stream.read_line(&mut line).expect("an answer comes") > 0);
        if let Some(len) = line.strip_prefix("Content-Length: ") {
            body_bytes = len.trim().parse().expect("a number");
        }
        head += &line;
        if line == "\r\n" {
            return (head, body_bytes);
        }
    }
}

fn post(path: &str, fields: &str, body: &str) -> Vec<u8> {
    let len = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\n{fields}Content-Length: {len}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// Publishes this many messages to one topic.
fn fill(server: &Server, messages: usize) {
    let mut stream = BufReader::new(connect(server));
    let lines = "{\"topic\":\"full\",\"data\":\"x\"}\n".repeat(5_000);
    for _ in 0..messages / 5_000 {
        let batch = post("/pub", "Content-Type: application/x-ndjson\r\n", &lines);
        assert!(round_trip(&mut stream, &batch).starts_with("HTTP/1.1 200 "));
    }
}

/// Counts an honest client's round trips while `attack` runs.
fn round_trips_during(server: &Server, attack: impl FnOnce()) -> usize {
    let is_over = Arc::new(AtomicBool::new(false));
    let mut stream = BufReader::new(connect(server));
    let honest = {
        let is_over = is_over.clone();
        thread::spawn(move || {
            let mut count = 0;
            while !is_over.load(Ordering::SeqCst) {
                let answer = round_trip(&mut stream, &post("/pub/honest", "", "message"));
                assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
                count += 1;
            }
            count
        })
    };
    attack();
    is_over.store(true, Ordering::SeqCst);
    honest.join().expect("it is served")
}

/// Sends two hundred requests at once. For each, the server reads all messages that it keeps. Returns the number of round trips of an
/// honest client meanwhile.
fn many_requests(server: &Server, fields: &str, query: &str) -> usize {
    let request =
        format!("HEAD /sub?filter=zz/%23{query} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
    let mut streams: Vec<_> = (0..200).map(|_| BufReader::new(connect(server))).collect();
    round_trips_during(server, || {
        for stream in &mut streams {
            stream
                .get_mut()
                .write_all(request.as_bytes())
                .expect("it is read");
        }
        for stream in &mut streams {
            let answer = round_trip(stream, b"HEAD");
            // A conditional request is answered with 304.
            let statuses = ["HTTP/1.1 204 ", "HTTP/1.1 304 "];
            assert!(
                statuses.iter().any(|status| answer.starts_with(status)),
                "{answer}"
            );
        }
    })
}

#[test]
fn reads_of_all_topics_by_filter_delay_nobody() {
    let server = Server::with_shards(1, RULE);
    fill(&server, 50_000);
    let count = many_requests(&server, "", "&since=oldest");
    assert!(count >= ROUND_TRIPS_MIN, "{count} round trips");
}

#[test]
fn reads_by_filter_since_a_date_delay_nobody() {
    let server = Server::with_shards(1, RULE);
    fill(&server, 50_000);
    let date = "If-Modified-Since: Thu, 01 Jan 1970 00:00:00 GMT\r\n";
    let count = many_requests(&server, date, "");
    assert!(count >= ROUND_TRIPS_MIN, "{count} round trips");
}

/// Each SUBSCRIBE to a filter that the client already has brings the retained messages again (MQTT 3.1.1 section 3.8.4). For each, the
/// server looks at all retained messages.
#[test]
fn repeated_subscribes_to_a_filter_delay_nobody() {
    const SUBSCRIBES: usize = 3_000;
    let server = Server::with_shards(1, "");
    let mut stream = BufReader::new(connect(&server));
    for n in 0..3_000 {
        let message = post(&format!("/pub/r/{n}"), "Crore-Retain: true\r\n", "x");
        assert!(round_trip(&mut stream, &message).starts_with("HTTP/1.1 202 "));
    }
    let mut client = connect(&server);
    client
        .write_all(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01c")
        .expect("it is read");
    let mut connack = [0; 4];
    client.read_exact(&mut connack).expect("a CONNACK");
    assert_eq!(connack, [0x20, 2, 0, 0]);
    let packets: Vec<u8> = (1..=SUBSCRIBES as u16)
        .flat_map(|id| {
            let [high, low] = id.to_be_bytes();
            [0x82, 9, high, low, 0, 4, b'z', b'z', b'/', b'+', 0]
        })
        .collect();
    let count = round_trips_during(&server, || {
        client.write_all(&packets).expect("it is read");
        let mut subacks = vec![0; 5 * SUBSCRIBES];
        client.read_exact(&mut subacks).expect("a SUBACK for each");
        assert!(
            subacks
                .chunks(5)
                .all(|suback| suback[0] == 0x90 && suback[4] == 0)
        );
    });
    assert!(count >= ROUND_TRIPS_MIN, "{count} round trips");
}

/// Number of deaf clients: they wait for a message in the topic `large`, and read nothing.
const DEAF_CLIENTS: usize = 400;

/// Opens the deaf clients. Each sends a request with `fields`, and `take` reads its first response.
fn open_deaf_clients(
    server: &Server,
    fields: &str,
    read_response: impl Fn(&mut BufReader<TcpStream>),
) -> Vec<TcpStream> {
    let request = format!("GET /sub/large?since=live HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
    let mut streams: Vec<_> = (0..DEAF_CLIENTS)
        .map(|_| BufReader::new(connect(server)))
        .collect();
    for stream in &mut streams {
        let socket = stream.get_mut();
        socket.write_all(request.as_bytes()).expect("it is read");
        read_response(stream);
        let nonblocking = stream.get_mut().set_nonblocking(true);
        nonblocking.expect("a socket option");
    }
    until("all of them", || {
        info(server, "large")["subscribers"] == DEAF_CLIENTS
    });
    streams.into_iter().map(BufReader::into_inner).collect()
}

/// Publishes a large message to the deaf clients. The kernel copies it for each of them, and meanwhile each honest client repeats a
/// request. Returns the lowest number of responses to an honest client during the copies.
fn answers_during_a_fan_out(
    server: &Server,
    deaf: &[TcpStream],
    (request, status): (impl Fn(usize) -> Vec<u8> + Sync, &str),
) -> usize {
    /// Number of honest clients. With this many, some are on another shard than the topic of their request.
    const HONEST: usize = 12;
    // On each shard, the clients that connected first receive the message first.
    let have_received =
        |clients: &[TcpStream]| clients.iter().all(|client| client.peek(&mut [0]).is_ok());
    let is_begun = || have_received(&deaf[..8]);
    let is_over = || have_received(&deaf[DEAF_CLIENTS - 8..]);
    let (all_here, failed) = (Barrier::new(HONEST + 1), AtomicBool::new(false));
    let answers = |n: usize| {
        let mut stream = BufReader::new(connect(server));
        let request = request(n);
        let mut count = 0;
        all_here.wait();
        while !is_over() && !failed.load(Ordering::SeqCst) {
            let answer = round_trip(&mut stream, &request);
            assert!(answer.starts_with(status), "{answer}");
            count += usize::from(is_begun() && !is_over());
        }
        count
    };
    let answers = &answers;
    thread::scope(|scope| {
        let honest: Vec<_> = (0..HONEST)
            .map(|n| scope.spawn(move || answers(n)))
            .collect();
        all_here.wait();
        let message = post("/pub/large", "", &"x".repeat(1_000_000));
        let published = round_trip(&mut BufReader::new(connect(server)), &message);
        failed.store(!published.starts_with("HTTP/1.1 201 "), Ordering::SeqCst);
        let counts = honest
            .into_iter()
            .map(|client| client.join().expect("it is served"));
        let counts: Vec<usize> = counts.collect();
        assert!(!failed.load(Ordering::SeqCst), "{published}");
        *counts.iter().min().expect("some are honest")
    })
}

/// The copies take dozens of turns. If answers waited for all copies, an honest client would get only one or two of them. The test counts
/// over several fan-outs, since on a busy machine an honest client may miss one.
const FAN_OUTS: usize = 3;
/// With this setting the kernel accepts a whole message for each deaf client.
const COPIES: &str = "[limits]\nsend_buffer_bytes = 0\n";
const ANSWERS_MIN: usize = 3 * FAN_OUTS;

#[test]
fn fan_out_to_deaf_websockets_delays_no_answer_of_another_shard() {
    let fields = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let upgraded = |stream: &mut BufReader<TcpStream>| {
        let answer = head_of(stream).0;
        assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
    };
    let request = |n| format!("GET /pub/none/{n} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes();
    let counts = [(); FAN_OUTS].map(|()| {
        let server = Server::with_shards(2, COPIES);
        let deaf = open_deaf_clients(&server, fields, upgraded);
        answers_during_a_fan_out(&server, &deaf, (request, "HTTP/1.1 404 "))
    });
    let count: usize = counts.iter().sum();
    assert!(count >= ANSWERS_MIN, "{counts:?} answers");
}

#[test]
fn fan_out_to_deaf_long_polls_delays_no_publisher_of_another_shard() {
    let publish = |n| post(&format!("/pub/other/{n}"), "", "message");
    let counts = [(); FAN_OUTS].map(|()| {
        let server = Server::with_shards(2, COPIES);
        let deaf = open_deaf_clients(&server, "", |_| {});
        answers_during_a_fan_out(&server, &deaf, (publish, "HTTP/1.1 202 "))
    });
    let count: usize = counts.iter().sum();
    assert!(count >= ANSWERS_MIN, "{counts:?} answers");
}
