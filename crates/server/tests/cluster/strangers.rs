//! Tests foreign writers: other programs that write to the subjects of a cluster in NATS. They must not let a node crash, or keep one from
//! starting.

use crore_wire::topic;

use crate::jetstream::JetStream;
use crate::servers::Servers;
use crate::support::http::{Conn, publish};
use crate::support::stream::Stream;
use crate::support::{port, until};
use crate::{node, settings};

/// The partition of a topic among four.
fn partition(name: &str) -> u64 {
    u64::from(topic::slot(name.as_bytes()) % 4)
}

/// A batch of the writer 77 for the topic `a`: a header, then one record after its length.
fn batch(record: &[u8]) -> Vec<u8> {
    let mut out = vec![1, 0, partition("a") as u8, 0];
    out.extend(77u64.to_le_bytes());
    out.extend(1u64.to_le_bytes());
    out.extend([0; 8]);
    out.extend((crore_net::clock::unix_s() as u32).to_le_bytes());
    out.extend(1u32.to_le_bytes());
    out.push(record.len() as u8);
    out.extend(record);
    out
}

/// The record of a message on `a` with this content type.
fn message(content_type: &str) -> Vec<u8> {
    let mut out = vec![1, 0, 1, b'a', 0, content_type.len() as u8];
    out.extend(content_type.as_bytes());
    out.extend([0, 0, 0, 8]);
    out.extend(b"stranger");
    out
}

#[test]
fn foreign_batches_stop_no_node_and_no_start() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let node_a = node(&servers);
    publish(&node_a, "a", "before");
    let mut stream = Stream::open(&node_a, "/sub/a?since=oldest", &[]);
    assert_eq!(stream.data(1), ["before"]);
    let mut poll = Conn::open(&node_a);
    poll.ask("GET", "/sub/a?since=live", &[], "");
    node_a.await_subscribers("a", 2);
    let stranger = JetStream::of(&servers);
    let valid = batch(&message("text/plain"));
    for invalid in [
        batch(&message("text/plain\r\nSet-Cookie: a=b")),
        valid[..valid.len() - 1].to_vec(),
        [&valid[..], b"junk"].concat(),
        batch(&[100, 0, 9]),
        b"no batch".to_vec(),
        Vec::new(),
    ] {
        stranger.write(partition("a"), &invalid);
    }
    publish(&node_a, "a", "after");
    assert_eq!(stream.data(1), ["after"]);
    assert_eq!(poll.response().text(), "after");
    let late_node = node(&servers);
    for server in [&node_a, &late_node] {
        let mut stream = Stream::open(server, "/sub/a?since=oldest", &[]);
        assert_eq!(stream.data(2), ["before", "after"]);
    }
    publish(&late_node, "a", "more");
    assert_eq!(stream.data(1), ["more"]);
}

#[test]
fn foreign_batches_do_not_flood_the_log_of_a_node() {
    const MESSAGES: u32 = 300;
    let Some(servers) = Servers::with(1, "", "max_payload: 2MB") else {
        return;
    };
    let node_a = node(&servers);
    let stranger = JetStream::of(&servers);
    for n in 0..MESSAGES {
        stranger.write(u64::from(n % 4), b"no batch");
    }
    let is_counted = |server: &crate::Server| {
        let name = "crore_cluster_void_messages_total";
        port::metric(server.admin(), name) == Some(MESSAGES.into())
    };
    until("the count", || is_counted(&node_a));
    // A node that reads such batches at its start does not log each of them either.
    let late_node = crate::Server::with_admin(&settings(&servers));
    until("the count", || is_counted(&late_node));
    for server in [node_a, late_node] {
        let log = server.stop();
        assert_eq!(log.matches("is no batch").count(), 1, "{log}");
    }
}
