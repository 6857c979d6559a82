//! Honest clients of MQTT, for both versions and each QoS.

use std::sync::atomic::Ordering;
use std::time::Instant;

use crore_wire::mqtt::{
    Ack, Connect, Packet, PacketId, PacketType, Properties, Publish, Qos, ReasonCode,
    RetainHandling, SubscribeOptions, Version, decode, encode, fixed_header,
};

use super::publishers::go_on;
use super::stream::Stream;
use super::topics::{ANEW, EXACTLY, HTTP, MQTT, SOCKET};
use super::{PATIENCE, Server};
use crate::tally::{Follower, Tally};

/// The maximum size of a packet. The tests send none that is longer.
const PACKET_BYTES: usize = 1 << 20;

pub fn reads_all_shared(server: &Server, tally: &Tally) -> Result<(), String> {
    let client = Client::open(Stream::plain(server)?, Version::V311, "honest-0")?;
    let follower = Follower::new(tally, "MQTT 3.1.1, QoS 0, shared/#", &[HTTP, MQTT]);
    client.read(tally, follower, "shared/#", Qos::AtMostOnce)
}

pub fn reads_at_least_once(server: &Server, tally: &Tally) -> Result<(), String> {
    let client = Client::open(Stream::plain(server)?, Version::V5, "honest-1")?;
    let follower = Follower::new(tally, "MQTT 5, QoS 1", &[MQTT]);
    client.read(tally, follower, MQTT, Qos::AtLeastOnce)
}

pub fn reads_exactly_once(server: &Server, tally: &Tally) -> Result<(), String> {
    let client = Client::open(Stream::tls(server)?, Version::V5, "honest-2")?;
    let topics = [ANEW, SOCKET, EXACTLY];
    let follower = Follower::new(tally, "MQTT 5, QoS 2, over TLS", &topics);
    client.read(tally, follower, "own/+", Qos::ExactlyOnce)
}

pub fn publishes_at_least_once(server: &Server, tally: &Tally) -> Result<(), String> {
    let mut client = Client::open(Stream::plain(server)?, Version::V5, "honest-3")?;
    go_on(tally, MQTT, |message, in_two| {
        client.publish(MQTT, Qos::AtLeastOnce, message, in_two)?;
        client.acknowledged(PacketType::PubAck)
    })
}

pub fn publishes_exactly_once(server: &Server, tally: &Tally) -> Result<(), String> {
    let mut client = Client::open(Stream::plain(server)?, Version::V311, "honest-4")?;
    go_on(tally, EXACTLY, |message, in_two| {
        client.publish(EXACTLY, Qos::ExactlyOnce, message, in_two)?;
        client.acknowledged(PacketType::PubRec)?;
        client.acknowledge(PacketType::PubRel, client.id)?;
        client.acknowledged(PacketType::PubComp)
    })
}

/// A received packet.
struct Got {
    bytes: Vec<u8>,
    version: Version,
}

impl Got {
    fn packet(&self) -> Result<Packet<'_>, String> {
        let header = fixed_header(&self.bytes, PACKET_BYTES).map_err(|error| error.to_string())?;
        let (header, start) = header.ok_or("no packet")?;
        decode(self.version, header, &self.bytes[start..]).map_err(|error| error.to_string())
    }
}

struct Client {
    stream: Stream,
    version: Version,
    /// The packet id of the publish under way.
    id: PacketId,
}

impl Client {
    fn open(stream: Stream, version: Version, client_id: &str) -> Result<Client, String> {
        let id = PacketId::MIN;
        let mut client = Client {
            stream,
            version,
            id,
        };
        let connect = Connect {
            version,
            bridge: false,
            clean_start: true,
            keep_alive_s: 0,
            properties: Properties::default(),
            client_id,
            will: None,
            user_name: None,
            password: None,
        };
        let mut out = Vec::new();
        encode::connect(&mut out, &connect);
        client.stream.send_in_two(&out)?;
        let got = client.next()?;
        match got.packet()? {
            Packet::ConnAck(connack) if connack.reason == ReasonCode::SUCCESS => {}
            other => return Err(format!("it is refused: {other:?}")),
        }
        Ok(client)
    }

    /// Waits for the next packet.
    fn next(&mut self) -> Result<Got, String> {
        let bytes = self.stream.await_some(whole)?;
        Ok(Got {
            bytes,
            version: self.version,
        })
    }

    fn publish(
        &mut self,
        topic: &str,
        qos: Qos,
        message: &str,
        in_two: bool,
    ) -> Result<(), String> {
        self.id = self.id.checked_add(1).unwrap_or(PacketId::MIN);
        let publish = Publish {
            dup: false,
            qos,
            retain: false,
            topic,
            packet_id: Some(self.id),
            properties: Properties::default(),
            payload: message.as_bytes(),
        };
        let mut out = Vec::new();
        encode::publish(&mut out, self.version, &publish);
        match in_two {
            true => self.stream.send_in_two(&out),
            false => self.stream.send(&out),
        }
    }

    fn acknowledge(&mut self, kind: PacketType, id: PacketId) -> Result<(), String> {
        let ack = Ack {
            packet_id: id,
            reason: ReasonCode::SUCCESS,
            properties: Properties::default(),
        };
        let mut out = Vec::new();
        match kind {
            PacketType::PubAck => encode::puback(&mut out, self.version, &ack),
            PacketType::PubRec => encode::pubrec(&mut out, self.version, &ack),
            PacketType::PubRel => encode::pubrel(&mut out, self.version, &ack),
            _ => encode::pubcomp(&mut out, self.version, &ack),
        }
        self.stream.send(&out)
    }

    /// Waits for this kind of acknowledgement of the publish under way.
    fn acknowledged(&mut self, kind: PacketType) -> Result<(), String> {
        let got = self.next()?;
        let packet = got.packet()?;
        match packet {
            Packet::PubAck(ack) | Packet::PubRec(ack) | Packet::PubComp(ack)
                if packet.kind() == kind && ack.packet_id == self.id && !ack.reason.is_error() =>
            {
                Ok(())
            }
            other => Err(format!("{kind:?} {} is due, {other:?} came", self.id)),
        }
    }

    /// Subscribes, and reads until all messages have arrived.
    fn read(
        mut self,
        tally: &Tally,
        mut follower: Follower<'_>,
        filter: &str,
        qos: Qos,
    ) -> Result<(), String> {
        let options = SubscribeOptions {
            max_qos: qos,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::Send,
        };
        let mut out = Vec::new();
        let filters = [(filter, options)];
        let none = Properties::default();
        encode::subscribe(
            &mut out,
            self.version,
            PacketId::MIN,
            &none,
            filters.into_iter(),
        );
        self.stream.send(&out)?;
        let got = self.next()?;
        match got.packet()? {
            Packet::SubAck(suback) if suback.reasons.iter().all(|reason| !reason.is_error()) => {}
            other => return Err(format!("it is refused: {other:?}")),
        }
        tally.ready.fetch_add(1, Ordering::Relaxed);
        let mut finishing: Option<Instant> = None;
        while !follower.is_done() {
            self.stream.more()?;
            while let Some((bytes, length)) = whole(&self.stream.held)? {
                self.stream.held.drain(..length);
                let version = self.version;
                self.take(&Got { bytes, version }, &mut follower)?;
            }
            if tally.finish.load(Ordering::Relaxed)
                && finishing.get_or_insert_with(Instant::now).elapsed() > PATIENCE
            {
                let missing = follower.missing().unwrap_or_default();
                return Err(format!("lost at the end: {missing}"));
            }
        }
        Ok(())
    }

    fn take(&mut self, got: &Got, follower: &mut Follower<'_>) -> Result<(), String> {
        match got.packet()? {
            Packet::Publish(publish) => {
                follower.take(publish.payload);
                match (publish.qos, publish.packet_id) {
                    (Qos::AtLeastOnce, Some(id)) => self.acknowledge(PacketType::PubAck, id),
                    (Qos::ExactlyOnce, Some(id)) => self.acknowledge(PacketType::PubRec, id),
                    _ => Ok(()),
                }
            }
            Packet::PubRel(ack) => self.acknowledge(PacketType::PubComp, ack.packet_id),
            other => Err(format!("{other:?} came")),
        }
    }
}

/// The first complete packet in these bytes, and its length.
fn whole(held: &[u8]) -> Result<Option<(Vec<u8>, usize)>, String> {
    let header = fixed_header(held, PACKET_BYTES).map_err(|error| error.to_string())?;
    let Some((header, start)) = header else {
        return Ok(None);
    };
    let end = start + header.body_bytes();
    Ok(held.get(..end).map(|packet| (packet.to_vec(), end)))
}
