//! `crore cluster status`: how the cluster is, and an exit code that says whether something is wrong.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::support::program::output;
use crate::support::{Server, program, until};
use crate::two_nodes;

fn status(server: &Server, flags: &[&str]) -> Output {
    status_by(&program(), server, flags)
}

/// The same by the program of another build.
pub fn status_by(program: &Path, server: &Server, flags: &[&str]) -> Output {
    let mut command = Command::new(program);
    command
        .args(["cluster", "status", "--url"])
        .arg(format!("http://{}", server.admin()))
        .args(flags);
    output(&mut command)
}

#[test]
fn the_status_shows_all_nodes_and_fails_when_a_server_of_nats_is_away() {
    let Some((mut servers, one, other)) = two_nodes() else {
        return;
    };
    until("a whole cluster", || status(&one, &[]).status.success());
    let json =
        || -> Value { serde_json::from_slice(&status(&other, &["--json"]).stdout).expect("JSON") };
    until("both nodes", || {
        json()["nodes"]
            .as_array()
            .is_some_and(|nodes| nodes.len() == 2)
    });
    let shown = json();
    let nodes = shown["nodes"].as_array().expect("nodes");
    assert_eq!(nodes.len(), 2, "{shown:#}");
    for node in [&one, &other] {
        let admin = format!("http://{}", node.admin());
        assert!(nodes.iter().any(|it| it["admin"] == admin), "{shown:#}");
    }
    assert_eq!(shown["partitions"].as_array().expect("partitions").len(), 4);
    assert_eq!(shown["partitions"][0]["replicas_current"], 3);
    let sync = shown["engine"]["sync"].as_array().expect("a list");
    assert!(
        sync.len() == 3 && sync.iter().all(|it| it["always"] == true),
        "{shown:#}"
    );
    let text = String::from_utf8(status(&one, &[]).stdout).expect("text");
    assert!(
        text.contains("sync_interval: always at 3 of 3 servers"),
        "{text}"
    );
    servers.kill(2);
    until("the problem", || {
        let failed = status(&one, &[]);
        let text = String::from_utf8_lossy(&failed.stdout).to_string();
        failed.status.code() == Some(1) && text.contains("away or behind")
    });
    let none = Server::with_admin("");
    let failed = status(&none, &[]);
    assert_eq!(failed.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&failed.stderr).contains("no node of a cluster"));
}
