//! Reads the logs of each node from their beginnings, as a subscriber that has never been there.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use crate::client::link::Link;
use crate::scenario::chaos::{Client, Kept, Met, Part, Transport, World};

/// How long the next bytes may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Reads every topic that keeps everything, at each node. All messages must be there, where other subscribers saw them.
pub fn read(world: &World, addresses: &[SocketAddr]) -> Result<Met> {
    let mut met = Met::default();
    for (topic, of) in (0..).zip(&world.topics) {
        if of.kind == Kept::Deep {
            for (node, address) in addresses.iter().enumerate() {
                topic_at(world, topic, *address, &mut met)
                    .with_context(|| format!("the log of {} at node {node}", of.name))?;
            }
        }
    }
    Ok(met)
}

fn topic_at(world: &World, topic: u32, address: SocketAddr, met: &mut Met) -> Result<()> {
    let part = Part {
        number: topic,
        transport: Transport::Sse,
        live: false,
        topics: vec![topic],
    };
    let mut client = Client::new(part, world);
    client.connected();
    let mut link = Link::open(address, PATIENCE)?;
    link.send(&client.subscription.out)?;
    while !client.is_complete(world) {
        link.read()?;
        let bytes = std::mem::take(&mut link.held);
        client
            .received(&bytes, world, met)
            .map_err(|why| anyhow!(why))?;
    }
    client.close(world, met);
    Ok(())
}
