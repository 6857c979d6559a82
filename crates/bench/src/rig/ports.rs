//! Ports of this machine that nobody has.

use std::net::{SocketAddr, TcpListener};

use anyhow::Result;

/// Ports without a listener. Each is held until all of them are found, so that none is found twice.
pub fn free_ports(count: u16) -> Result<Vec<SocketAddr>> {
    let listeners: Vec<TcpListener> = (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0"))
        .collect::<Result<_, _>>()?;
    Ok(listeners
        .iter()
        .map(TcpListener::local_addr)
        .collect::<Result<_, _>>()?)
}
