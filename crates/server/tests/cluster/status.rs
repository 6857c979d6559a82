//! Tests `crore cluster status`: the state of the cluster, and an exit code that says whether there is a problem.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::servers::Servers;
use crate::support::program::output;
use crate::support::{Server, program, until};
use crate::{node, settings, two_nodes};

fn status(server: &Server, flags: &[&str]) -> Output {
    status_by(&program(), server, flags)
}

/// Runs `crore cluster status` from the program of another build.
pub fn status_by(program: &Path, server: &Server, flags: &[&str]) -> Output {
    let mut command = Command::new(program);
    command
        .args(["cluster", "status", "--url"])
        .arg(format!("http://{}", server.admin()))
        .args(flags);
    output(&mut command)
}

#[test]
fn status_shows_all_nodes_and_fails_when_a_nats_server_is_down() {
    let Some((mut servers, node_a, node_b)) = two_nodes() else {
        return;
    };
    until("a whole cluster", || status(&node_a, &[]).status.success());
    let json =
        || -> Value { serde_json::from_slice(&status(&node_b, &["--json"]).stdout).expect("JSON") };
    until("both nodes", || {
        json()["nodes"]
            .as_array()
            .is_some_and(|nodes| nodes.len() == 2)
    });
    let status_json = json();
    let nodes = status_json["nodes"].as_array().expect("nodes");
    assert_eq!(nodes.len(), 2, "{status_json:#}");
    for node in [&node_a, &node_b] {
        let admin = format!("http://{}", node.admin());
        assert!(
            nodes.iter().any(|it| it["admin"] == admin),
            "{status_json:#}"
        );
    }
    assert_eq!(
        status_json["partitions"]
            .as_array()
            .expect("partitions")
            .len(),
        4
    );
    assert_eq!(status_json["partitions"][0]["replicas_current"], 3);
    let sync = status_json["engine"]["sync"].as_array().expect("a list");
    assert!(
        sync.len() == 3 && sync.iter().all(|it| it["always"] == true),
        "{status_json:#}"
    );
    let text = String::from_utf8(status(&node_a, &[]).stdout).expect("text");
    assert!(
        text.contains("sync_interval: always at 3 of 3 servers"),
        "{text}"
    );
    servers.kill(2);
    until("the problem", || {
        let failed = status(&node_a, &[]);
        let text = String::from_utf8_lossy(&failed.stdout).to_string();
        failed.status.code() == Some(1) && text.contains("away or behind")
    });
    let without_cluster = Server::with_admin("");
    let failed = status(&without_cluster, &[]);
    assert_eq!(failed.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&failed.stderr).contains("no node of a cluster"));
}

fn json(server: &Server) -> (Option<i32>, Value) {
    let status_json = status(server, &["--json"]);
    let json = serde_json::from_slice(&status_json.stdout).expect("JSON");
    (status_json.status.code(), json)
}

fn has_problem(status_json: &Value, words: &[&str]) -> bool {
    let problems = status_json["problems"].as_array().expect("problems");
    let mut texts = problems.iter().filter_map(Value::as_str);
    texts.any(|text| words.iter().all(|word| text.contains(word)))
}

#[test]
fn dead_node_stays_in_the_status_until_another_has_its_name() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let (node_a, node_b) = (node(&servers), node(&servers));
    until("a whole cluster", || {
        let (code, status_json) = json(&node_a);
        code == Some(0) && status_json["nodes"].as_array().map(Vec::len) == Some(2)
    });
    let address = node_b.address().to_string();
    let name = json(&node_b).1["nodes"]
        .as_array()
        .and_then(|all| all.iter().find(|it| it["this"] == true))
        .map(|it| it["name"].as_str().expect("a name").to_string())
        .expect("its name");
    node_b.kill();
    let row_of = |status_json: &Value| {
        let all = status_json["nodes"].as_array().expect("nodes");
        all.iter().find(|it| it["name"] == name[..]).cloned()
    };
    until("its death", || {
        let (code, status_json) = json(&node_a);
        let dead_row = row_of(&status_json).expect("it is shown");
        // The dead node shows as live (and silent) first.
        let is_live = dead_row["state"] == "live";
        assert_eq!(code == Some(0), is_live, "{status_json:#}");
        assert!(
            is_live || has_problem(&status_json, &["node", &name]),
            "{status_json:#}"
        );
        dead_row["state"] == "dead"
    });
    let dead_row = row_of(&json(&node_a).1).expect("it is shown");
    assert!(dead_row["age_s"].as_u64() >= Some(3), "{dead_row}");
    assert!(
        dead_row["last_seen_unix_s"].as_u64() > Some(1_700_000_000),
        "{dead_row}"
    );
    let text = String::from_utf8(status(&node_a, &[]).stdout).expect("text");
    assert!(text.contains("dead") && text.contains(&name), "{text}");
    // A node that starts now has read of the death in the log.
    let third = node(&servers);
    until("the node is known", || row_of(&json(&third).1).is_some());
    assert_eq!(json(&third).0, Some(1));
    drop(third);
    let listen = format!("listen = ['{address}']\n{}", settings(&servers));
    let again = Server::listening(&listen, "127.0.0.1:0");
    until("its successor", || {
        let status_json = json(&node_a).1;
        row_of(&status_json).is_some_and(|it| it["state"] == "live")
            && !has_problem(&status_json, &[&name])
    });
    drop(again);
}

#[test]
fn nodes_with_different_rules_are_named_in_the_status_and_in_the_log() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let (node_a, alike) = (node(&servers), node(&servers));
    until("both nodes", || {
        let (code, status_json) = json(&node_a);
        let nodes = status_json["nodes"].as_array().expect("nodes");
        code == Some(0) && nodes.len() == 2 && nodes.iter().all(|it| it["told"].is_object())
    });
    assert!(!has_problem(&json(&node_a).1, &["different rules"]));
    let changed = settings(&servers).replace("log_messages = 1000", "log_messages = 999");
    let node_b = Server::with_admin(&changed);
    let name = |node: &Server| format!(":{}", node.address().port());
    for node in [&node_a, &alike, &node_b] {
        until("the problem", || {
            let (code, status_json) = json(node);
            let is_told = has_problem(
                &status_json,
                &["different rules", &name(node), &name(&node_b)],
            );
            is_told && code == Some(1)
        });
        node.await_log("have different rules");
    }
    // The operator gives the node the same settings again.
    node_b.reload(&settings(&servers));
    until("the same rules", || {
        !has_problem(&json(&node_a).1, &["different rules"])
    });
}

#[test]
fn servers_of_nats_that_are_dead_are_not_shown_as_current() {
    let Some((mut servers, node_a, _other)) = two_nodes() else {
        return;
    };
    until("a whole cluster", || json(&node_a).0 == Some(0));
    // More than half of the NATS servers are gone, so no stream has a leader.
    servers.kill(1);
    servers.kill(2);
    until("what is known", || {
        let (code, status_json) = json(&node_a);
        let partitions = status_json["partitions"].as_array().expect("partitions");
        let always_rows = status_json["engine"]["sync"].as_array().expect("a list");
        let always_rows = always_rows.iter().filter(|it| it["always"] == true).count();
        let is_missing_replica = |it: &Value| it["replicas_current"].as_u64() <= Some(1);
        code == Some(1)
            && always_rows == 1
            && has_problem(&status_json, &["4 partitions take nothing"])
            && partitions.iter().all(is_missing_replica)
    });
}

#[test]
fn new_node_is_unhealthy_until_it_sees_itself() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let node_a = node(&servers);
    let at_start = json(&node_a);
    let knows_itself = |status_json: &Value| {
        let nodes = status_json["nodes"].as_array().expect("nodes");
        nodes.iter().any(|it| it["this"] == true)
    };
    assert_eq!(
        at_start.0 == Some(0),
        knows_itself(&at_start.1),
        "{:#}",
        at_start.1
    );
    until("it knows itself", || knows_itself(&json(&node_a).1));
    until("it is well", || json(&node_a).0 == Some(0));
}
