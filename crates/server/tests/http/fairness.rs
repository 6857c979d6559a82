//! Requests that make the server walk far do not hold the others: while many of them are under way, an honest client's publishes
//! are answered between their steps.
//!
//! No time is asserted. The test counts how many of the honest client's round trips, one after the other, fit into the time that the
//! walk takes: if one turn did all that was asked for, only a few would.

use crate::support::Server;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Round trips of the honest client at least. A turn for each page of each request takes hundreds; one turn for the pages
/// of all of them takes fewer than this.
const ROUND_TRIPS_MIN: usize = 100;
/// No client waits for longer.
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
    let (mut head, mut body_bytes) = (String::new(), 0);
    loop {
        let mut line = String::new();
        assert!(stream.read_line(&mut line).expect("an answer comes") > 0);
        if let Some(len) = line.strip_prefix("Content-Length: ") {
            body_bytes = len.trim().parse().expect("a number");
        }
        head += &line;
        if line == "\r\n" {
            break;
        }
    }
    if !request.starts_with(b"HEAD") {
        let mut body = vec![0; body_bytes];
        stream.read_exact(&mut body).expect("the body comes");
    }
    head
}

fn post(path: &str, fields: &str, body: &str) -> Vec<u8> {
    let len = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\n{fields}Content-Length: {len}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// So many messages to one topic.
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
    let over = Arc::new(AtomicBool::new(false));
    let mut stream = BufReader::new(connect(server));
    let honest = {
        let over = over.clone();
        thread::spawn(move || {
            let mut count = 0;
            while !over.load(Ordering::SeqCst) {
                let answer = round_trip(&mut stream, &post("/pub/honest", "", "message"));
                assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
                count += 1;
            }
            count
        })
    };
    attack();
    over.store(true, Ordering::SeqCst);
    honest.join().expect("it is served")
}

/// Two hundred requests at once, each of which ends when the server has looked through all it keeps.
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
            // 304 to a conditional request.
            let ended = ["HTTP/1.1 204 ", "HTTP/1.1 304 "];
            assert!(
                ended.iter().any(|status| answer.starts_with(status)),
                "{answer}"
            );
        }
    })
}

#[test]
fn two_hundred_who_read_all_by_filter_hold_nobody() {
    let server = Server::with_shards(1, RULE);
    fill(&server, 50_000);
    let count = many_requests(&server, "", "&since=oldest");
    assert!(count >= ROUND_TRIPS_MIN, "{count} round trips");
}

#[test]
fn two_hundred_who_ask_by_filter_for_all_since_a_date_hold_nobody() {
    let server = Server::with_shards(1, RULE);
    fill(&server, 50_000);
    let date = "If-Modified-Since: Thu, 01 Jan 1970 00:00:00 GMT\r\n";
    let count = many_requests(&server, date, "");
    assert!(count >= ROUND_TRIPS_MIN, "{count} round trips");
}

/// Each SUBSCRIBE to a filter that the client has already shows the retained messages again (MQTT 3.1.1 section 3.8.4): all of
/// the server's are looked at for each.
#[test]
fn many_subscribes_to_a_filter_hold_nobody() {
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
