//! Ports of this machine for servers that are told where to listen.

use std::net::Ipv4Addr;

use anyhow::Result;
use crore_net::kernel::listener::HeldPort;

/// So many ports that nobody else gets, as long as they are held: a server may be started again where it was.
pub fn hold_ports(count: u16) -> Result<Vec<HeldPort>> {
    let chosen = (0..count).map(|_| HeldPort::choose((Ipv4Addr::LOCALHOST, 0).into()));
    Ok(chosen.collect::<Result<_, _>>()?)
}
