//! The clients of `filters`: a publisher and subscribers that speak MQTT 3.1.1 with QoS 0, all on the calling thread.
//!
//! The publisher sends a batch of messages and a ping, and waits for the answer to the ping, which shows that the server has read the whole batch. So the
//! server always reads the same number of publishes at a time, and sockets are never full. Each message contains its number and its owner (the client that
//! must receive it), so every delivery can be checked.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use crore_wire::mqtt::FILTERS_MAX;

use crate::client::mqtt::{Dialect, MqttArgs, Packet, client_id};
use crate::sys::{Epoll, Interest};

/// The number of publishes between two pings.
const MESSAGES_PER_PING: usize = 64;
/// Bytes of a message.
const PAYLOAD_BYTES: usize = 64;
/// The owner of a message that no client may receive.
pub const NOBODY: u32 = u32::MAX;
/// Timeout for an expected packet.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long to wait for messages that must not arrive.
const LISTEN_TIME: Duration = Duration::from_millis(100);
/// The publisher's epoll key.
const PUBLISHER_KEY: u64 = u64::MAX;

/// A message and the client that must receive it.
pub struct Message {
    /// The topic.
    pub topic: String,
    /// A client's number, or [`NOBODY`].
    pub owner: u32,
}

/// The numbers of granted and refused filters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Grants {
    /// Filters to which clients are subscribed.
    pub granted: u32,
    /// Filters that a SUBACK refused.
    pub refused: u32,
}

/// The counts of received messages.
#[derive(Debug, Default)]
pub struct Tally {
    received: Vec<bool>,
    /// Messages that their owner received for the first time.
    pub arrived: usize,
    /// Messages that their owner received again.
    pub doubled: usize,
    /// Messages that another client received.
    pub misdelivered: usize,
}

impl Tally {
    fn record_message(&mut self, client: u32, payload: &[u8]) -> Result<()> {
        let (number, owner) = parse_payload(payload).context("a message that nobody published")?;
        let received = self.received.get_mut(number as usize);
        let received = received.context("a message that was never sent")?;
        if owner != client {
            self.misdelivered += 1;
        } else if std::mem::replace(received, true) {
            self.doubled += 1;
        } else {
            self.arrived += 1;
        }
        Ok(())
    }
}

fn payload(number: u32, owner: u32) -> [u8; PAYLOAD_BYTES] {
    let mut bytes = [b'.'; PAYLOAD_BYTES];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    bytes[4..8].copy_from_slice(&owner.to_be_bytes());
    bytes
}

/// Number and owner of a message.
fn parse_payload(payload: &[u8]) -> Option<(u32, u32)> {
    let (number, rest) = payload.split_first_chunk()?;
    let (owner, _) = rest.split_first_chunk()?;
    Some((u32::from_be_bytes(*number), u32::from_be_bytes(*owner)))
}

struct Client {
    dialect: Dialect,
    stream: TcpStream,
    received: Vec<u8>,
}

impl Client {
    /// Connects, subscribes if there are filters, and waits for the answers.
    fn open(
        server: SocketAddr,
        client_name: &str,
        filters: &[String],
        grants: &mut Grants,
    ) -> Result<Client> {
        let stream = TcpStream::connect(server)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let mut client = Client {
            dialect: Dialect::new(&MqttArgs::default(), false),
            stream,
            received: Vec::new(),
        };
        let mut out = Vec::new();
        client.dialect.write_connect(client_name, filters, &mut out);
        client.stream.write_all(&out)?;
        let mut answers_due = 1 + filters.len().div_ceil(FILTERS_MAX);
        while answers_due > 0 {
            ensure!(client.read()?, "the server is silent");
            client.handle_packets(|packet| {
                match packet {
                    Packet::Connack { .. } => {}
                    Packet::Suback { granted, refused } => {
                        grants.granted += granted;
                        grants.refused += refused;
                    }
                    other => bail!("the server sent {other:?}"),
                }
                answers_due -= 1;
                Ok(())
            })?;
        }
        client.stream.set_nonblocking(true)?;
        Ok(client)
    }

    /// Reads once. Returns false if there is nothing to read.
    fn read(&mut self) -> Result<bool> {
        let mut bytes = [0; 16 << 10];
        match self.stream.read(&mut bytes) {
            Ok(0) => bail!("the server closed a connection"),
            Ok(size) => self.received.extend_from_slice(&bytes[..size]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        Ok(true)
    }

    fn handle_packets(
        &mut self,
        mut on_packet: impl FnMut(Packet<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut handled_bytes = 0;
        while let Some((packet, bytes)) =
            self.dialect.parse_packet(&self.received[handled_bytes..])?
        {
            handled_bytes += bytes;
            on_packet(packet)?;
        }
        self.received.drain(..handled_bytes);
        Ok(())
    }
}

/// The publisher and the subscribers.
pub struct Clients {
    publisher: Client,
    subscribers: Vec<Client>,
    epoll: Epoll,
    /// The numbers of granted and refused filters.
    pub grants: Grants,
}

impl Clients {
    /// Connects this many clients, each with the filters that `filters_of` returns.
    pub fn open(
        server: SocketAddr,
        clients: u32,
        filters_of: impl Fn(u32) -> Vec<String>,
    ) -> Result<Clients> {
        let epoll = Epoll::new(1024)?;
        let mut grants = Grants::default();
        let publisher = Client::open(
            server,
            &client_id(std::process::id(), 'p', 0),
            &[],
            &mut grants,
        )?;
        epoll.add(publisher.stream.as_raw_fd(), Interest::IN, PUBLISHER_KEY)?;
        let mut subscribers = Vec::with_capacity(clients as usize);
        for number in 0..clients {
            let client_name = client_id(std::process::id(), 's', number);
            let client = Client::open(server, &client_name, &filters_of(number), &mut grants)?;
            epoll.add(client.stream.as_raw_fd(), Interest::IN, number.into())?;
            subscribers.push(client);
        }
        Ok(Clients {
            publisher,
            subscribers,
            epoll,
            grants,
        })
    }

    /// Publishes all messages, and waits until every message with an owner has arrived.
    pub fn publish(&mut self, messages: &[Message]) -> Result<Tally> {
        let mut tally = Tally {
            received: vec![false; messages.len()],
            ..Tally::default()
        };
        let (dialect, mut number) = (self.publisher.dialect, 0);
        for batch in messages.chunks(MESSAGES_PER_PING) {
            let mut out = Vec::new();
            for message in batch {
                dialect.write_publish_head(&message.topic, None, false, PAYLOAD_BYTES, &mut out);
                out.extend_from_slice(&payload(number, message.owner));
                number += 1;
            }
            dialect.write_ping(&mut out);
            // The server has read everything that was sent before, so the socket has room.
            self.publisher.stream.write_all(&out)?;
            let start = Instant::now();
            while !self.handle_events(TIMEOUT, &mut tally)? {
                ensure!(start.elapsed() < TIMEOUT, "a ping has no answer");
            }
        }
        let owned_count = messages.iter().filter(|message| message.owner != NOBODY);
        let (owned_count, start) = (owned_count.count(), Instant::now());
        while tally.arrived < owned_count && start.elapsed() < TIMEOUT {
            self.handle_events(LISTEN_TIME, &mut tally)?;
        }
        self.handle_events(LISTEN_TIME, &mut tally)?;
        Ok(tally)
    }

    /// Handles the packets that arrive within `timeout`. Returns whether a ping was answered.
    fn handle_events(&mut self, timeout: Duration, tally: &mut Tally) -> Result<bool> {
        let mut is_ping_answered = false;
        for index in 0..self.epoll.wait(timeout)? {
            let key = self.epoll.ready(index).key;
            let client = match key {
                PUBLISHER_KEY => &mut self.publisher,
                number => &mut self.subscribers[number as usize],
            };
            client.read()?;
            client.handle_packets(|packet| {
                match packet {
                    Packet::Pingresp => is_ping_answered = true,
                    Packet::Publish(_, payload) => tally.record_message(key as u32, payload)?,
                    other => bail!("the server sent {other:?}"),
                }
                Ok(())
            })?;
        }
        Ok(is_ping_answered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delivery_counts_once_and_only_for_its_owner() {
        let mut tally = Tally {
            received: vec![false; 3],
            ..Tally::default()
        };
        tally.record_message(7, &payload(1, 7)).unwrap();
        tally.record_message(7, &payload(1, 7)).unwrap();
        tally.record_message(8, &payload(2, 7)).unwrap();
        tally.record_message(8, &payload(0, NOBODY)).unwrap();
        assert_eq!(
            (tally.arrived, tally.doubled, tally.misdelivered),
            (1, 1, 2)
        );
        assert!(tally.record_message(7, &payload(3, 7)).is_err());
        assert!(tally.record_message(7, b"short").is_err());
    }
}
