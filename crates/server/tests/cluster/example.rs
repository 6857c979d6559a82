//! Tests the script `examples/cluster/run` as the page about it says.

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::servers::program as nats_server;
use crate::support::{port, program};

/// The running script. Dropping it ends the script and all that it has started.
struct Example(Child, PathBuf);

impl Drop for Example {
    fn drop(&mut self) {
        let pid = self.0.id().to_string();
        let status = Command::new("kill").arg(pid).status();
        if status.is_ok_and(|status| status.success()) {
            let _ = self.0.wait();
        }
        let _ = std::fs::remove_dir_all(&self.1);
    }
}

fn local(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// The first port for the nodes and the first port for NATS. All ports that the script derives from them are free.
fn ports() -> (u16, u16) {
    let is_free = |port: u16| TcpListener::bind(local(port)).is_ok();
    let nodes = (20_000..21_000).step_by(20).find(|first| {
        let all = [0, 1, 10, 11].map(|n| first + n);
        all.into_iter().all(is_free)
    });
    let nats = (22_000..24_000).step_by(4).find(|first| {
        let is_free_for_nodes = |first: u16| (1..=3).all(|n| is_free(first + n));
        [0, 2_000, 4_000]
            .into_iter()
            .all(|offset| is_free_for_nodes(first + offset))
    });
    (nodes.expect("free ports"), nats.expect("free ports"))
}

#[test]
fn example_reports_a_ready_cluster_on_the_chosen_ports() {
    let Some(nats) = nats_server() else {
        return;
    };
    let (nodes, nats_port) = ports();
    let name = format!("crore-test-example-{}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/cluster/run");
    let mut child = Command::new(script)
        .args(["--port", &nodes.to_string()])
        .args(["--nats-port", &nats_port.to_string()])
        .arg(&directory)
        .env("CRORE", program())
        .env("CRORE_NATS_SERVER", nats)
        .stderr(Stdio::piped())
        .spawn()
        .expect("bash");
    let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
    let _example = Example(child, directory);
    let mut lines_before = String::new();
    let ready_line = stderr.lines().map_while(Result::ok).find(|line| {
        lines_before.push_str(line);
        lines_before.push('\n');
        line.starts_with("The cluster is ready")
    });
    let ready_line = ready_line.unwrap_or_else(|| panic!("it is not ready:\n{lines_before}"));
    for (base, other_port) in [(nodes, nodes + 10), (nodes + 10, nodes)] {
        assert!(
            ready_line.contains(&format!("http://127.0.0.1:{base}")),
            "{ready_line}"
        );
        assert_eq!(port::ask(local(base + 1), "GET /readyz", None).status, 200);
        let answer = port::ask(local(base), &format!("PUT /pub/of-{base}"), None);
        assert_eq!(answer.status, 201, "{}", answer.body);
        let readiness = port::ask(local(other_port), "GET /readyz", None);
        assert_eq!(readiness.status, 404, "the data port has no such path");
    }
}

#[test]
fn example_refuses_an_invalid_port_and_prints_its_usage() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/cluster/run");
    let run = |arguments: &[&str]| Command::new(script).args(arguments).output().expect("bash");
    let refused = run(&["--port", "http"]);
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--port takes the number of a port"));
    let help = run(&["--help"]);
    assert!(help.status.success());
    assert!(String::from_utf8_lossy(&help.stdout).contains("--nats-port PORT"));
}
