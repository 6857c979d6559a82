//! The testbed of a run: the servers of NATS, the nodes, and the faults that are done to them.
//!
//! Where this process may, all of it lies in a network namespace of its own. There each node reaches NATS by addresses that no other has, so
//! that a rule of nftables cuts one node off and no other.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use crore_net::kernel::listener::HeldPort;

use crate::rig::{Nats, RunArgs, Server, Setting, hold_ports, program};
use crate::sys::tun;
use strum::{IntoStaticStr, VariantArray};

/// Nodes.
pub const NODES: usize = 2;
/// Servers of NATS.
pub const SERVERS: u16 = 3;

/// A fault of the testbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Fault {
    /// `kill -9` of a node.
    NodeKilled,
    /// `kill -9` of a server of NATS.
    NatsKilled,
    /// No packet goes from a node to NATS, nor back.
    #[strum(serialize = "node_cut_off")]
    CutOff,
    /// The same for so long that the other node has gone far ahead in the same topics: what the first one sends then comes too late.
    #[strum(serialize = "node_cut_off_long")]
    LongCutOff,
    /// `kill -9` of all nodes and all servers of NATS.
    AllKilled,
}

impl Fault {
    /// All of them.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// Its name in the result.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Whether it needs a rule of the firewall.
    pub fn is_cut(self) -> bool {
        matches!(self, Fault::CutOff | Fault::LongCutOff)
    }

    /// Of how many it takes one.
    pub fn choice(self) -> usize {
        match self {
            Fault::NodeKilled | Fault::CutOff | Fault::LongCutOff => NODES,
            Fault::NatsKilled => usize::from(SERVERS),
            Fault::AllKilled => 1,
        }
    }
}

/// Servers of NATS and nodes that run.
pub struct Testbed {
    /// They end before NATS does.
    pub nodes: Vec<Server>,
    pub nats: Nats,
    /// Where the nodes' admin ports are, where they have some.
    admin: Vec<HeldPort>,
    /// The program that cuts, or why there is none.
    cutter: Result<PathBuf, String>,
}

impl Testbed {
    /// Starts all. `settings` are those of a node, without where NATS is.
    pub fn make(args: &RunArgs, setting: Setting, settings: &str) -> Result<Testbed> {
        let apart = tun::part_network().and_then(|()| tun::raise_loopback());
        let cutter = match &apart {
            Ok(()) => program("nft")
                .map_err(|_| "nft is not there; the package nftables has it".to_string()),
            Err(why) => Err(format!(
                "it needs a network namespace, and this process may make none ({why}): run it as root"
            )),
        };
        let (listen, apart) = match apart {
            Ok(()) => (Ipv4Addr::UNSPECIFIED, true),
            Err(_) => (Ipv4Addr::LOCALHOST, false),
        };
        let nats = Nats::start(SERVERS, listen, args.nats_server.as_deref())?;
        let admin = hold_ports(NODES as u16)?;
        let node = |node: usize| {
            let mut cluster = cluster(&nats, apart.then_some(node));
            if let Some(mib) = args.history_mib {
                cluster += &format!("history_bytes = \"{mib} MiB\"\n");
            }
            let settings = format!(
                "{settings}\n{cluster}\n[admin]\nlisten = \"{}\"\n",
                admin[node].addr()
            );
            Server::start_with(args, setting, &settings, None)
        };
        let nodes = (0..NODES).map(node).collect::<Result<_>>()?;
        Ok(Testbed {
            nodes,
            nats,
            admin,
            cutter,
        })
    }

    /// Why no node can be cut off.
    pub fn why_no_cut(&self) -> Option<&str> {
        self.cutter.as_ref().err().map(String::as_str)
    }

    /// Where the nodes are.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.addresses[0]).collect()
    }

    /// Where the admin port of a node is.
    pub fn admin(&self, node: usize) -> SocketAddr {
        self.admin[node].addr()
    }

    /// Where NATS is for this process.
    pub fn urls(&self) -> Vec<String> {
        let ports = self.nats.ports().iter();
        ports
            .map(|port| format!("nats://127.0.0.1:{port}"))
            .collect()
    }

    /// Does it to this one.
    pub fn inject(&mut self, fault: Fault, of: usize) -> Result<()> {
        match fault {
            Fault::NodeKilled => self.nodes[of].kill(),
            Fault::NatsKilled => self.nats.kill(of),
            Fault::CutOff | Fault::LongCutOff => {
                let addresses = addresses(of);
                self.nft(&format!(
                    "table inet crore {{ chain cut {{ type filter hook output priority 0; ip daddr {addresses} drop; ip saddr {addresses} drop; }}; }}"
                ))?;
            }
            Fault::AllKilled => {
                self.nodes.iter_mut().for_each(Server::kill);
                (0..self.nats.count()).for_each(|at| self.nats.kill(at));
            }
        }
        Ok(())
    }

    /// Mends it, and waits until all processes accept.
    pub fn mend(&mut self, fault: Fault, of: usize) -> Result<()> {
        match fault {
            Fault::NodeKilled => self.nodes[of].start_again()?,
            Fault::NatsKilled => self.nats.spawn(of)?,
            Fault::CutOff | Fault::LongCutOff => self.nft("delete table inet crore")?,
            Fault::AllKilled => {
                for at in 0..self.nats.count() {
                    self.nats.spawn(at)?;
                }
                self.nats.wait()?;
                for node in &mut self.nodes {
                    node.spawn_again()?;
                }
                for node in &mut self.nodes {
                    node.wait()?;
                }
            }
        }
        self.nats.wait()
    }

    /// An error when a node has ended by itself.
    pub fn check(&mut self) -> Result<()> {
        for (number, node) in self.nodes.iter_mut().enumerate() {
            ensure!(!node.has_ended()?, "node {number} has ended by itself");
        }
        Ok(())
    }

    fn nft(&self, rule: &str) -> Result<()> {
        let nft = self
            .cutter
            .as_ref()
            .map_err(|why| anyhow::anyhow!("{why}"))?;
        let output = Command::new(nft).arg(rule).output().context("nft")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "nft: {}", said.trim());
        Ok(())
    }
}

/// The addresses by which a node reaches NATS in the namespace of the run.
fn addresses(node: usize) -> String {
    format!("127.{}.0.0/16", node + 1)
}

/// Where NATS is for a node; without a namespace at the same addresses for all.
fn cluster(nats: &Nats, node: Option<usize>) -> String {
    let url = |(at, port): (usize, &u16)| match node {
        Some(node) => format!("nats://127.{}.0.{}:{port}", node + 1, at + 1),
        None => format!("nats://127.0.0.1:{port}"),
    };
    let urls: Vec<String> = nats.ports().iter().enumerate().map(url).collect();
    format!("[cluster]\nname = \"bench\"\nurls = {urls:?}\n")
}
