//! Reserves local ports for servers.

use std::net::Ipv4Addr;

use anyhow::Result;
use crore_net::kernel::listener::HeldPort;

/// Reserves `count` ports. While the returned values exist, no other process gets these ports, so a restarted server can use its port
/// again.
pub fn reserve_ports(count: u16) -> Result<Vec<HeldPort>> {
    let chosen = (0..count).map(|_| HeldPort::choose((Ipv4Addr::LOCALHOST, 0).into()));
    Ok(chosen.collect::<Result<_, _>>()?)
}
