//! The testbed of a `cluster` run: starts NATS servers and nodes, and causes and repairs their faults.
//!
//! If this process has the rights, the testbed has a network namespace of its own. There each node connects to NATS through addresses that
//! no other node uses, so that a rule of nftables can cut off one node alone.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use crore_net::kernel::listener::HeldPort;

use crate::rig::{Nats, RunArgs, Server, ServerOptions, program, reserve_ports};
use crate::sys::tun;
use strum::{IntoStaticStr, VariantArray};

/// The number of nodes.
pub const NODES: usize = 2;
/// The number of NATS servers.
pub const SERVERS: u16 = 3;

/// A fault of the testbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Fault {
    /// `kill -9` of a node.
    NodeKilled,
    /// `kill -9` of a NATS server.
    NatsKilled,
    /// Packets between a node and NATS are dropped.
    #[strum(serialize = "node_cut_off")]
    CutOff,
    /// Like `CutOff`, but so long that the other node publishes much in the same topics. Batches that the cut-off node appends afterwards come
    /// too late.
    #[strum(serialize = "node_cut_off_long")]
    LongCutOff,
    /// `kill -9` of all nodes and all NATS servers.
    AllKilled,
}

impl Fault {
    /// All faults.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// The fault's name in the result.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Whether the fault needs a firewall rule.
    pub fn is_cut(self) -> bool {
        matches!(self, Fault::CutOff | Fault::LongCutOff)
    }

    /// The number of processes among which the fault chooses. Each fault affects one of them.
    pub fn process_count(self) -> usize {
        match self {
            Fault::NodeKilled | Fault::CutOff | Fault::LongCutOff => NODES,
            Fault::NatsKilled => usize::from(SERVERS),
            Fault::AllKilled => 1,
        }
    }
}

/// The testbed: the running NATS servers and nodes.
pub struct Testbed {
    /// The nodes. This field is first, so that the nodes end before NATS.
    pub nodes: Vec<Server>,
    pub nats: Nats,
    /// The nodes' reserved admin ports.
    admin_ports: Vec<HeldPort>,
    /// The program `nft`, or why it cannot be used.
    firewall_program: Result<PathBuf, String>,
}

impl Testbed {
    /// Starts NATS and the nodes. `settings` is a node's settings file without the `[cluster]` table.
    pub fn make(args: &RunArgs, options: ServerOptions, settings: &str) -> Result<Testbed> {
        let namespace_result = tun::unshare_network().and_then(|()| tun::raise_loopback());
        let firewall_program = match &namespace_result {
            Ok(()) => program("nft")
                .map_err(|_| "nft is not there; the package nftables has it".to_string()),
            Err(reason) => Err(format!(
                "it needs a network namespace, and this process may make none ({reason}): run it as root"
            )),
        };
        let (listen, has_namespace) = match namespace_result {
            Ok(()) => (Ipv4Addr::UNSPECIFIED, true),
            Err(_) => (Ipv4Addr::LOCALHOST, false),
        };
        let nats = Nats::start(SERVERS, listen, args.nats_server.as_deref())?;
        let admin_ports = reserve_ports(NODES as u16)?;
        let node = |node: usize| {
            let mut cluster_settings = cluster_settings(&nats, has_namespace.then_some(node));
            if let Some(mib) = args.history_mib {
                cluster_settings += &format!("history_bytes = \"{mib} MiB\"\n");
            }
            let settings = format!(
                "{settings}\n{cluster_settings}\n[admin]\nlisten = \"{}\"\n",
                admin_ports[node].addr()
            );
            Server::start_with(args, options, &settings, None)
        };
        let nodes = (0..NODES).map(node).collect::<Result<_>>()?;
        Ok(Testbed {
            nodes,
            nats,
            admin_ports,
            firewall_program,
        })
    }

    /// Why no node can be cut off.
    pub fn why_no_cut(&self) -> Option<&str> {
        self.firewall_program.as_ref().err().map(String::as_str)
    }

    /// The nodes' addresses.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.addresses[0]).collect()
    }

    /// The address of a node's admin port.
    pub fn admin_address(&self, node: usize) -> SocketAddr {
        self.admin_ports[node].addr()
    }

    /// The URLs of NATS for this process.
    pub fn nats_urls(&self) -> Vec<String> {
        let ports = self.nats.ports().iter();
        ports
            .map(|port| format!("nats://127.0.0.1:{port}"))
            .collect()
    }

    /// Causes a fault at the process with this index.
    pub fn inject(&mut self, fault: Fault, process: usize) -> Result<()> {
        match fault {
            Fault::NodeKilled => self.nodes[process].kill(),
            Fault::NatsKilled => self.nats.kill(process),
            Fault::CutOff | Fault::LongCutOff => {
                let addresses = nats_addresses(process);
                self.nft(&format!(
                    "table inet crore {{ chain cut {{ type filter hook output priority 0; ip daddr {addresses} drop; ip saddr {addresses} drop; }}; }}"
                ))?;
            }
            Fault::AllKilled => {
                self.nodes.iter_mut().for_each(Server::kill);
                (0..self.nats.count()).for_each(|index| self.nats.kill(index));
            }
        }
        Ok(())
    }

    /// Repairs a fault, and waits until all processes accept connections.
    pub fn repair(&mut self, fault: Fault, process: usize) -> Result<()> {
        match fault {
            Fault::NodeKilled => self.nodes[process].restart()?,
            Fault::NatsKilled => self.nats.spawn(process)?,
            Fault::CutOff | Fault::LongCutOff => self.nft("delete table inet crore")?,
            Fault::AllKilled => {
                for index in 0..self.nats.count() {
                    self.nats.spawn(index)?;
                }
                self.nats.wait()?;
                for node in &mut self.nodes {
                    node.respawn()?;
                }
                for node in &mut self.nodes {
                    node.wait()?;
                }
            }
        }
        self.nats.wait()
    }

    /// Fails if a node has ended by itself.
    pub fn check(&mut self) -> Result<()> {
        for (number, node) in self.nodes.iter_mut().enumerate() {
            ensure!(!node.has_ended()?, "node {number} has ended by itself");
        }
        Ok(())
    }

    fn nft(&self, rule: &str) -> Result<()> {
        let nft = self
            .firewall_program
            .as_ref()
            .map_err(|reason| anyhow::anyhow!("{reason}"))?;
        let output = Command::new(nft).arg(rule).output().context("nft")?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "nft: {}", stderr.trim());
        Ok(())
    }
}

/// The addresses through which a node connects to NATS in the namespace.
fn nats_addresses(node: usize) -> String {
    format!("127.{}.0.0/16", node + 1)
}

/// The `[cluster]` settings of a node. Without a namespace all nodes use the same addresses of NATS.
fn cluster_settings(nats: &Nats, node: Option<usize>) -> String {
    let url = |(index, port): (usize, &u16)| match node {
        Some(node) => format!("nats://127.{}.0.{}:{port}", node + 1, index + 1),
        None => format!("nats://127.0.0.1:{port}"),
    };
    let urls: Vec<String> = nats.ports().iter().enumerate().map(url).collect();
    format!("[cluster]\nname = \"bench\"\nurls = {urls:?}\n")
}
