//! Tests a node that has not read its log yet: it tells load balancers that it is not ready, and accepts no clients.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use crate::servers::Servers;
use crate::settings;
use crate::support::{hold_port, port, program, until};

/// A server process that ends with the test, also if the test fails.
struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn node_that_has_not_read_its_log_is_alive_but_not_ready() {
    let Some(mut servers) = Servers::start(1) else {
        return;
    };
    // No server of NATS answers, so the node cannot read the log.
    servers.kill(0);
    let name = format!("crore-test-readiness-{}.toml", std::process::id());
    let file = std::env::temp_dir().join(name);
    std::fs::write(&file, settings(&servers)).expect("a file");
    let (data, admin) = (hold_port(), hold_port());
    let node = Command::new(program())
        .args(["serve", "--listen", &data.addr().to_string()])
        .args(["--admin-listen", &admin.addr().to_string()])
        .arg("--config")
        .arg(&file)
        .stderr(Stdio::null())
        .spawn();
    let node = Node(node.expect("it starts"));
    until("the admin port", || {
        TcpStream::connect(admin.addr()).is_ok()
    });
    let get = |path: &str| port::ask(admin.addr(), &format!("GET {path}"), None);
    assert_eq!(get("/healthz").status, 200);
    let readiness = get("/readyz");
    assert_eq!(
        (readiness.status, readiness.body.contains("reads its log")),
        (503, true)
    );
    let status = get("/api/v1/cluster");
    assert_eq!(status.status, 503);
    assert!(status.head.to_lowercase().contains("retry-after: 1"));
    assert!(status.json()["error"].is_string());
    // A request with a foreign Host name learns nothing here either.
    let rebound = port::raw(
        admin.addr(),
        "GET /api/v1/cluster",
        "Host: evil.example\r\n",
        None,
    );
    assert_eq!(rebound.status, 403);
    let refused = TcpStream::connect(data.addr()).expect_err("nobody listens");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    servers.run(0);
    until("ready", || get("/readyz").status == 200);
    assert!(TcpStream::connect(data.addr()).is_ok());
    assert_eq!(get("/api/v1/cluster").status, 200);
    drop(node);
    std::fs::remove_file(&file).expect("a file");
}
