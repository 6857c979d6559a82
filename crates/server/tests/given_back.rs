//! Tests that the server returns memory to the system: many buffers are filled and emptied, and all clients stay connected.
//!
//! The test has a process of its own, so that no other test uses memory at the same time.

#[path = "support/mod.rs"]
mod support;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;

use support::port::metric;
use support::{Server, connect, until};

/// Number of subscribers that do not read for a while.
const READERS: usize = 800;
/// Bytes sent to each subscriber, in messages of different lengths.
const EACH_BYTES: usize = 600_000;
/// Bytes that must wait in all outboxes together before the test goes on.
const RUSH_BYTES: f64 = (300 << 20) as f64;
/// How much more memory than before the server may keep.
const KEPT_BYTES: u64 = 32 << 20;

fn subscriber(server: &Server, topic: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address()).expect("a connection");
    let request = format!(
        "GET /sub/{topic} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).expect("a request");
    stream.set_nonblocking(true).expect("non-blocking");
    stream
}

fn publish(publisher: &mut TcpStream, topic: &str, bytes: usize) {
    let head =
        format!("POST /pub/{topic} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {bytes}\r\n\r\n");
    let body = vec![b'x'; bytes];
    publisher
        .write_all(&[head.as_bytes(), &body].concat())
        .expect("a request");
    let mut answer = [0; 4096];
    let count = publisher.read(&mut answer).expect("an answer");
    assert!(
        answer[..count].starts_with(b"HTTP/1.1 20"),
        "{}",
        String::from_utf8_lossy(&answer[..count])
    );
}

/// Reads all that has arrived. Returns the number of bytes.
fn read_all(streams: &mut [TcpStream]) -> usize {
    let mut buffer = vec![0; 1 << 20];
    let mut sum = 0;
    for stream in streams {
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => panic!("a subscriber was ended"),
                Ok(count) => sum += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    sum
}

#[test]
fn memory_of_a_burst_is_returned_to_the_system() {
    let server = Server::with_admin(
        "[limits]\noutbox_bytes = '2 MiB'\nmemory_bytes = '512 MiB'\nsend_buffer_bytes = 16384\n",
    );
    let mut readers: Vec<TcpStream> = (0..READERS).map(|_| subscriber(&server, "rush")).collect();
    let subscribed =
        || metric(server.admin(), "crore_connections{transport=\"sse\"}").expect("a metric");
    until("subscribers", || subscribed() >= READERS as f64);
    let mut publisher = connect(server.address());
    // First some messages, so that the server has allocated what it keeps for good.
    (0..20).for_each(|_| publish(&mut publisher, "rush", 2_000));
    let mut read = 0;
    until("the first messages", || {
        read += read_all(&mut readers);
        read >= READERS * 20 * 2_000
    });
    let outbox_metric = "crore_table_memory_bytes{table=\"outboxes\"}";
    let waiting = || metric(server.admin(), outbox_metric).expect("a metric");
    // The allocator maps long pieces one by one at first, and stops doing so after some. That happens here, before the measurement.
    let warm_up_clients: Vec<TcpStream> = (0..20).map(|_| subscriber(&server, "warm")).collect();
    until("subscribers", || {
        subscribed() >= (READERS + warm_up_clients.len()) as f64
    });
    (0..200).for_each(|_| publish(&mut publisher, "warm", 7_000));
    drop(warm_up_clients);
    until("their end", || waiting() == 0.0);
    let bytes_before = server.pss_bytes();
    let (mut n, mut sent) = (0, 0);
    while sent < EACH_BYTES {
        // Different lengths, below the size at which a message is stored once for all subscribers.
        let bytes = 1_000 + n * 7_919 % 6_000;
        publish(&mut publisher, "rush", bytes);
        // Messages that stay lie in memory after those that go. So the allocator gives nothing back by itself.
        publish(&mut publisher, &format!("stays/{n}"), 10_000);
        (n, sent) = (n + 1, sent + bytes);
    }
    until("a rush", || waiting() > RUSH_BYTES);
    assert!(server.pss_bytes() > bytes_before + RUSH_BYTES as u64);
    until("the end of the rush", || {
        read_all(&mut readers);
        waiting() == 0.0
    });
    until("memory given back", || {
        server.pss_bytes() < bytes_before + KEPT_BYTES
    });
    // The clients of the warm-up leave the count in the next seconds.
    until("the readers alone", || subscribed() == READERS as f64);
}
