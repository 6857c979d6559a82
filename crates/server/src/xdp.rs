//! Connections over `AF_XDP`: the program on the interface, and the sockets of each shard.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, bail};
use crore_broker::ShardId;
use crore_net::Fd;
use crore_net::kernel::listener::HeldPort;
use crore_net::xdp::program::{Mode, QueueSockets, Redirect};
use crore_net::xdp::{EndpointLimits, FrameSettings, Interface, TcpEndpoint};

use crate::settings::file::File;
use crate::settings::xdp::Xdp;

/// Who may open such connections.
const RIGHTS: &str = "the capabilities CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_PERFMON, and CAP_IPC_LOCK or a high limit of locked memory, are needed \
                      (docs/XDP.md)";

/// The program on the interface. It is removed when this is dropped, and when the process ends in another way.
pub struct AttachedProgram {
    redirect: Redirect,
    /// The kernel gives the ports to nobody else.
    _ports: Vec<HeldPort>,
    setup: ShardSetup,
}

/// What each shard needs to open its sockets.
#[derive(Clone)]
pub struct ShardSetup {
    interface: Interface,
    addresses: Vec<SocketAddr>,
    queues: QueueSockets,
    shards: u32,
    limits: EndpointLimits,
}

/// Attaches the program, if the settings want it.
///
/// # Errors
/// If the interface cannot be used, if its port is in use, or if the rights of the process do not allow it.
pub fn attach(file: &File) -> anyhow::Result<Option<AttachedProgram>> {
    let Some((name, port)) = file.xdp.place() else {
        return Ok(None);
    };
    let listen = &file.xdp.listen;
    let interface = find(&file.xdp)?;
    let addresses: Vec<SocketAddr> = (interface.addresses.iter().copied())
        .filter(is_usable)
        .map(|address| (address, port).into())
        .collect();
    if addresses.is_empty() {
        bail!("xdp.listen: {name} has no address but those of the link; give it one");
    }
    let hold = |address: &SocketAddr| {
        HeldPort::choose(*address).with_context(|| {
            format!("xdp.listen: {address} is in use; choose a port that `listen` does not have")
        })
    };
    let ports = addresses.iter().map(hold).collect::<Result<_, _>>()?;
    let redirect = Redirect::attach(interface.index, interface.queues, &addresses)
        .with_context(|| format!("xdp.listen: cannot attach a program to {name}: {RIGHTS}"))?;
    let where_it_runs = match redirect.mode() {
        Mode::Driver => "in the driver",
        Mode::Kernel => "in the kernel, since the driver cannot run it",
    };
    let queues = interface.queues;
    tracing::info!(
        "listening on {listen} over AF_XDP, with {queues} queues; its program runs {where_it_runs}"
    );
    let shards = file.shards as u32;
    if queues < shards {
        tracing::warn!(
            "{name} has {queues} queues for {shards} shards: the others get no connections over AF_XDP"
        );
    }
    let setup = ShardSetup {
        limits: EndpointLimits {
            connections: (file.xdp.connections_max)
                .div_ceil(queues.min(shards))
                .min(u32::try_from(file.limits.connections_per_shard).unwrap_or(u32::MAX)),
            backlog: file.backlog as usize,
            buffered_bytes: file.xdp.buffer_bytes / file.shards,
            frames: frames(&file.xdp),
        },
        queues: redirect.queue_sockets(),
        interface,
        addresses,
        shards,
    };
    Ok(Some(AttachedProgram {
        redirect,
        _ports: ports,
        setup,
    }))
}

/// The frames of each queue.
pub fn frames(settings: &Xdp) -> FrameSettings {
    FrameSettings {
        frames: settings.frames,
        ..FrameSettings::default()
    }
}

/// Whether the interface of the settings can be used.
///
/// # Errors
/// The fault.
pub fn find(settings: &Xdp) -> anyhow::Result<Interface> {
    let (name, _) = settings.place().context("xdp.listen is not set")?;
    Interface::find(name).with_context(|| format!("xdp.listen: {name} cannot be used"))
}

/// Whether an address can be bound: one of the link alone needs the name of the link with it.
fn is_usable(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    }
}

impl AttachedProgram {
    /// What each shard needs.
    pub fn shard_setup(&self) -> ShardSetup {
        self.setup.clone()
    }

    /// The descriptor that each shard's thread keeps.
    pub fn fd(&self) -> Fd {
        self.redirect.queue_sockets().fd()
    }
}

impl ShardSetup {
    /// Opens the sockets of a shard, in its thread. `None` if no queue is left for it. Returns also the descriptors that tell when frames
    /// have arrived.
    ///
    /// # Errors
    /// If the rights of the process do not allow it, or if a queue has a socket.
    pub fn open(&self, shard: ShardId) -> anyhow::Result<Option<(TcpEndpoint, Vec<Fd>)>> {
        let shard = u32::from(shard);
        if shard >= self.queues.queues() {
            return Ok(None);
        }
        let queues = (shard..self.queues.queues()).step_by(self.shards as usize);
        let queues = (self.queues, queues);
        let interface = self.interface.clone();
        let endpoint =
            TcpEndpoint::open(interface, &self.addresses, queues, self.limits.clone())
                .with_context(|| format!("xdp.listen: cannot open a socket of AF_XDP: {RIGHTS}"))?;
        Ok(Some(endpoint))
    }
}
