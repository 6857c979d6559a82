//! Tests clusters of real nodes with real servers of NATS. A message published at one node is read at each node. A position from one node
//! is valid at all. No answered message is lost when a node or a server of NATS dies.

#[path = "../../../nats/tests/cluster/jetstream.rs"]
mod jetstream;
#[path = "../../../nats/tests/cluster/servers.rs"]
mod servers;
#[path = "../support/mod.rs"]
mod support;

mod bench;
mod checkpoint;
mod clock;
mod counts;
mod example;
mod faults;
mod full;
mod history;
mod interest;
mod join;
mod late;
mod presence;
mod reach;
mod readiness;
mod revocations;
mod rolling;
mod server_api;
mod sessions;
mod status;
mod strangers;
mod webhooks;

use servers::Servers;
use support::Server;

/// The settings of a node.
fn settings(servers: &Servers) -> String {
    settings_at(servers, &servers.urls())
}

/// The settings of a node that reaches the servers at these URLs.
fn settings_at(servers: &Servers, urls: &[String]) -> String {
    let replicas = servers.urls().len().min(3);
    format!(
        "[cluster]\nurls = {:?}\nname = \"test\"\nreplicas = {replicas}\nmonitoring = {:?}\n[[rule]]\nmatch = \"#\"\nlog_messages = 1000\n",
        urls,
        servers.monitoring()
    )
}

/// A node, with an admin port.
fn node(servers: &Servers) -> Server {
    Server::with_admin(&settings(servers))
}

/// Three servers of NATS and two nodes. `None` if there is no nats-server on this host.
fn two_nodes() -> Option<(Servers, Server, Server)> {
    let servers = Servers::start(3)?;
    let (node_a, node_b) = (node(&servers), node(&servers));
    Some((servers, node_a, node_b))
}
