//! Tests nodes that join a cluster, and nodes that are refused.

use crate::servers::Servers;
use crate::support::http::publish;
use crate::support::stream::Stream;
use crate::support::{Server, port, program};
use crate::{node, settings};

#[test]
fn joined_node_has_the_earlier_messages() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let node_a = node(&servers);
    let texts: Vec<String> = (0..50).map(|n| n.to_string()).collect();
    for text in &texts {
        publish(&node_a, "a", text);
    }
    let late_node = node(&servers);
    late_node.await_log("in the log of the cluster `test`");
    assert_eq!(
        Stream::open(&late_node, "/sub/a?since=oldest", &[]).data(50),
        texts
    );
    node_a.stop();
    late_node.stop();
    // The log outlives all nodes.
    let restarted = node(&servers);
    assert_eq!(
        Stream::open(&restarted, "/sub/a?since=oldest", &[]).data(50),
        texts
    );
}

#[test]
fn node_that_cannot_join_reports_the_reason() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let node_a = node(&servers);
    let wrong_settings = [
        (
            format!(
                "{}\n[limits]\nmessage_bytes = \"4MiB\"\n",
                settings(&servers)
            ),
            vec!["limits.message_bytes", "max_payload"],
        ),
        (
            settings(&servers).replace("replicas = 1", "replicas = 3"),
            vec!["num_replicas is 1", "cluster.replicas"],
        ),
        (
            format!("partitions = 8\n{}", settings(&servers)),
            vec!["partitions = 8", "partitions = 4"],
        ),
    ];
    for (settings, words) in wrong_settings {
        let log = refusal(&settings);
        for word in words {
            assert!(log.contains(word), "{word:?} is not in: {log}");
        }
    }
    drop(node_a);
}

#[test]
fn a_node_takes_the_number_of_partitions_that_its_cluster_has() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let first = format!("partitions = 8\n{}", settings(&servers));
    let nodes = [Server::with_admin(&first), node(&servers)];
    for node in &nodes {
        let status = port::get(node.admin(), "cluster");
        assert_eq!(status["partitions"].as_array().map(Vec::len), Some(8));
    }
}

#[test]
fn settings_of_a_disk_are_refused_in_a_cluster() {
    let refusal_with = |extra_settings: &str| {
        refusal(&format!(
            "{extra_settings}\n[cluster]\nurls = [\"nats://127.0.0.1:1\"]\n"
        ))
    };
    for (extra_settings, word) in [
        ("[state]\ndirectory = \"/tmp/x\"", "state.directory"),
        ("[state]\ndurable = false", "state.durable"),
        (
            "[[rule]]\nmatch = \"a\"\ndurable = false",
            "rule[1].durable",
        ),
    ] {
        let log = refusal_with(extra_settings);
        assert!(
            log.contains(word) && log.contains("in a cluster") | log.contains("[cluster]"),
            "{log}"
        );
    }
}

/// The log of a server that must not start with these settings.
pub fn refusal(settings: &str) -> String {
    let directory = std::env::temp_dir().join(format!("crore-test-refused-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let file = directory.join(format!(
        "{:x}.toml",
        settings.len() * 31 + settings.bytes().map(usize::from).sum::<usize>()
    ));
    std::fs::write(&file, settings).expect("a file");
    let mut command = std::process::Command::new(program());
    command
        .args(["serve", "--listen", "127.0.0.1:0", "--no-admin", "--config"])
        .arg(&file);
    let output = program::output(&mut command);
    std::fs::remove_file(&file).expect("a file");
    assert!(!output.status.success());
    String::from_utf8(output.stderr).expect("text")
}
