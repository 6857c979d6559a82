//! Idle MQTT clients, for comparison.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use crate::client::mqtt::{Dialect, MqttArgs, Packet, client_id};

/// Opens clients with these topics. Each waits until its subscriptions are granted.
pub fn open_all(
    server: SocketAddr,
    topics: impl Iterator<Item = Vec<String>>,
) -> Result<Vec<TcpStream>> {
    let numbered = topics.enumerate();
    numbered
        .map(|(number, topics)| open(server, number as u32, &topics))
        .collect()
}

fn open(server: SocketAddr, number: u32, topics: &[String]) -> Result<TcpStream> {
    let dialect = Dialect::new(&MqttArgs::default(), false);
    let mut socket = TcpStream::connect(server)?;
    socket.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut out = Vec::new();
    dialect.write_connect(
        &client_id(std::process::id(), 'i', number),
        topics,
        &mut out,
    );
    socket.write_all(&out)?;
    let (mut received, mut granted_topics) = (Vec::new(), 0);
    while granted_topics < topics.len() {
        let mut bytes = [0; 4096];
        let size = socket.read(&mut bytes)?;
        ensure!(size > 0, "the server closed a connection");
        received.extend_from_slice(&bytes[..size]);
        let mut handled = 0;
        while let Some((packet, bytes)) = dialect.parse_packet(&received[handled..])? {
            handled += bytes;
            match packet {
                Packet::Connack { .. } => {}
                Packet::Suback {
                    granted,
                    refused: 0,
                } => granted_topics += granted as usize,
                other => bail!("the server sent {other:?}"),
            }
        }
        received.drain(..handled);
    }
    Ok(socket)
}
