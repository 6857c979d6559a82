//! Reads the logs of each node from the beginning, as a new subscriber.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use crate::client::link::Link;
use crate::scenario::chaos::{
    Client, ClientPlan, ClientTotals, Protocol, Retention, SharedState, Transport,
};

/// Timeout for the next bytes.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Reads every topic that keeps everything, at each node. All messages must be present, with the positions that other subscribers received.
pub fn read(shared: &SharedState, addresses: &[SocketAddr]) -> Result<ClientTotals> {
    let mut totals = ClientTotals::default();
    for (topic, log_topic) in (0..).zip(&shared.topics) {
        if log_topic.retention == Retention::Deep {
            for (node, address) in addresses.iter().enumerate() {
                read_log(shared, topic, *address, &mut totals)
                    .with_context(|| format!("the log of {} at node {node}", log_topic.name))?;
            }
        }
    }
    Ok(totals)
}

fn read_log(
    shared: &SharedState,
    topic: u32,
    address: SocketAddr,
    totals: &mut ClientTotals,
) -> Result<()> {
    let plan = ClientPlan {
        number: topic,
        protocol: Protocol::Http(Transport::Sse),
        starts_live: false,
        topics: vec![topic],
    };
    let mut client = Client::new(plan, shared);
    client.start_connection();
    let mut link = Link::open(address, TIMEOUT)?;
    link.send(client.connection.outgoing())?;
    while !client.is_complete(shared) {
        link.read()?;
        let bytes = std::mem::take(&mut link.buffer);
        client
            .handle_bytes(&bytes, shared, totals)
            .map_err(|reason| anyhow!(reason))?;
    }
    client.check_missing(shared, totals);
    Ok(())
}
