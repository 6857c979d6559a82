//! Tests counts over all nodes. Each node reports the count of the whole cluster, and the number of nodes that did not answer.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::support::http::info;
use crate::support::port::{self, get};
use crate::support::stream::Stream;
use crate::support::{Server, until};
use crate::two_nodes;

/// From the topic's info at this node: the subscribers of `a` at all nodes, and the nodes that did not answer.
fn subscribers_and_silent_nodes(server: &Server) -> (u64, u64) {
    let info = info(server, "a");
    let count = |name: &str| info[name].as_u64().unwrap_or_else(|| panic!("{info}"));
    (count("subscribers"), count("nodes_unanswered"))
}

fn topic(server: &Server) -> Value {
    get(server.admin(), "topic?name=a")
}

#[test]
fn subscribers_of_a_topic_are_counted_over_all_answering_nodes() {
    let Some((_servers, node_a, node_b)) = two_nodes() else {
        return;
    };
    until("both nodes at each", || {
        let nodes = |server| get(Server::admin(server), "cluster")["nodes"].clone();
        [&node_a, &node_b]
            .into_iter()
            .all(|server| nodes(server).as_array().is_some_and(|it| it.len() == 2))
    });
    let mut streams: Vec<Stream> = (0..2)
        .map(|_| Stream::open(&node_a, "/sub/a", &[]))
        .collect();
    streams.extend((0..3).map(|_| Stream::open(&node_b, "/sub/a", &[])));
    for (server, own_count) in [(&node_a, 2), (&node_b, 3)] {
        until("all subscribers", || {
            subscribers_and_silent_nodes(server) == (5, 0)
        });
        let topic_info = topic(server);
        assert_eq!(topic_info["subscribers"], own_count, "{topic_info}");
        assert_eq!(topic_info["cluster"]["subscribers"], 5, "{topic_info}");
        assert_eq!(topic_info["cluster"]["unanswered"], serde_json::json!([]));
    }
    until("the sums", || {
        let sum = &get(node_a.admin(), "cluster")["sum"];
        sum["subscriptions"] == 5 && sum["silent"] == serde_json::json!([])
    });
    // A suspended node does not answer. After a while the others count it as dead.
    let name = get(node_b.admin(), "cluster")["nodes"]
        .as_array()
        .and_then(|all| all.iter().find(|it| it["this"] == true))
        .map(|it| it["name"].clone());
    node_b.signal("STOP");
    assert_eq!(subscribers_and_silent_nodes(&node_a), (2, 1));
    let topic_info = topic(&node_a);
    assert_eq!(topic_info["cluster"]["subscribers"], 2, "{topic_info}");
    assert_eq!(
        topic_info["cluster"]["unanswered"][0],
        name.expect("a name")
    );
    until("a dead node", || {
        subscribers_and_silent_nodes(&node_a) == (2, 0)
    });
    node_b.signal("CONT");
    until("it lives", || {
        subscribers_and_silent_nodes(&node_a) == (5, 0)
    });
}

#[test]
fn each_node_has_the_documented_metrics_of_all_nodes() {
    let Some((_servers, node_a, node_b)) = two_nodes() else {
        return;
    };
    let clients = (0..3).map(|_| Stream::open(&node_b, "/sub/a", &[]));
    let _clients: Vec<Stream> = clients.collect();
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/OPERATIONS.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let rows = page
        .lines()
        .filter(|line| line.starts_with("| `crore_cluster_node_"));
    let documented: BTreeSet<&str> = rows.filter_map(|line| line.split('`').nth(1)).collect();
    assert!(documented.len() >= 4, "{documented:?}");
    until("all metrics of both nodes", || {
        let body = port::ask(node_a.admin(), "GET /metrics", None).body;
        let lines = body
            .lines()
            .filter(|line| line.starts_with("crore_cluster_node_"));
        let lines: Vec<&str> = lines.collect();
        let exported: BTreeSet<&str> = lines
            .iter()
            .filter_map(|line| line.split('{').next())
            .collect();
        let clients = lines
            .iter()
            .any(|line| line.starts_with("crore_cluster_node_clients{") && line.ends_with(" 3"));
        assert!(
            exported.is_subset(&documented),
            "{exported:?}, and the page has {documented:?}"
        );
        exported == documented && lines.len() == 2 * documented.len() && clients
    });
    let stats = get(node_a.admin(), "stats");
    assert_eq!(stats["cluster"], "test");
}
