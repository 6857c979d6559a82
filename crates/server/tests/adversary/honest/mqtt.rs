//! Honest clients of MQTT, for both versions and each QoS.

use std::sync::atomic::Ordering;
use std::time::Instant;

use crore_wire::mqtt::{
    Ack, Connect, Packet, PacketId, PacketType, Properties, Publish, Qos, ReasonCode,
    RetainHandling, SubscribeOptions, Version, decode, encode, fixed_header,
};

use super::publishers::publish_until_stopped;
use super::stream::Stream;
use super::topics::{ANEW, EXACTLY, HTTP, MQTT, SOCKET};
use super::{ANSWER_TIMEOUT, Server};
use crate::tally::{SequenceCheck, Tally};

/// The maximum size of a packet. The tests send none that is longer.
const PACKET_BYTES: usize = 1 << 20;

pub fn reads_all_shared(server: &Server, tally: &Tally) -> Result<(), String> {
    let client = Client::open(Stream::plain(server)?, Version::V311, "honest-0")?;
    let check = SequenceCheck::new(tally, "MQTT 3.1.1, QoS 0, shared/#", &[HTTP, MQTT]);
    client.subscribe_and_read(tally, check, "shared/#", Qos::AtMostOnce)
}

pub fn reads_at_least_once(server: &Server, tally: &Tally) -> Result<(), String> {
    let client = Client::open(Stream::plain(server)?, Version::V5, "honest-1")?;
    let check = SequenceCheck::new(tally, "MQTT 5, QoS 1", &[MQTT]);
    client.subscribe_and_read(tally, check, MQTT, Qos::AtLeastOnce)
}

pub fn reads_exactly_once(server: &Server, tally: &Tally) -> Result<(), String> {
    let client = Client::open(Stream::tls(server)?, Version::V5, "honest-2")?;
    let topics = [ANEW, SOCKET, EXACTLY];
    let check = SequenceCheck::new(tally, "MQTT 5, QoS 2, over TLS", &topics);
    client.subscribe_and_read(tally, check, "own/+", Qos::ExactlyOnce)
}

pub fn publishes_at_least_once(server: &Server, tally: &Tally) -> Result<(), String> {
    let mut client = Client::open(Stream::plain(server)?, Version::V5, "honest-3")?;
    publish_until_stopped(tally, MQTT, |message, in_two| {
        client.publish(MQTT, Qos::AtLeastOnce, message, in_two)?;
        client.await_acknowledgement(PacketType::PubAck)
    })
}

pub fn publishes_exactly_once(server: &Server, tally: &Tally) -> Result<(), String> {
    let mut client = Client::open(Stream::plain(server)?, Version::V311, "honest-4")?;
    publish_until_stopped(tally, EXACTLY, |message, in_two| {
        client.publish(EXACTLY, Qos::ExactlyOnce, message, in_two)?;
        client.await_acknowledgement(PacketType::PubRec)?;
        client.acknowledge(PacketType::PubRel, client.packet_id)?;
        client.await_acknowledgement(PacketType::PubComp)
    })
}

/// A received packet.
struct ReceivedPacket {
    bytes: Vec<u8>,
    version: Version,
}

impl ReceivedPacket {
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
    packet_id: PacketId,
}

impl Client {
    fn open(stream: Stream, version: Version, client_id: &str) -> Result<Client, String> {
        let packet_id = PacketId::MIN;
        let mut client = Client {
            stream,
            version,
            packet_id,
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
        let received = client.next_packet()?;
        match received.packet()? {
            Packet::ConnAck(connack) if connack.reason == ReasonCode::SUCCESS => {}
            other => return Err(format!("it is refused: {other:?}")),
        }
        Ok(client)
    }

    /// Waits for the next packet.
    fn next_packet(&mut self) -> Result<ReceivedPacket, String> {
        let bytes = self.stream.read_until_found(first_packet)?;
        Ok(ReceivedPacket {
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
        self.packet_id = self.packet_id.checked_add(1).unwrap_or(PacketId::MIN);
        let publish = Publish {
            dup: false,
            qos,
            retain: false,
            topic,
            packet_id: Some(self.packet_id),
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

    fn acknowledge(&mut self, kind: PacketType, packet_id: PacketId) -> Result<(), String> {
        let ack = Ack {
            packet_id,
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
    fn await_acknowledgement(&mut self, kind: PacketType) -> Result<(), String> {
        let received = self.next_packet()?;
        let packet = received.packet()?;
        match packet {
            Packet::PubAck(ack) | Packet::PubRec(ack) | Packet::PubComp(ack)
                if packet.kind() == kind
                    && ack.packet_id == self.packet_id
                    && !ack.reason.is_error() =>
            {
                Ok(())
            }
            other => Err(format!(
                "{kind:?} {} is due, {other:?} came",
                self.packet_id
            )),
        }
    }

    /// Subscribes, and reads until all messages have arrived.
    fn subscribe_and_read(
        mut self,
        tally: &Tally,
        mut check: SequenceCheck<'_>,
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
        let received = self.next_packet()?;
        match received.packet()? {
            Packet::SubAck(suback) if suback.reasons.iter().all(|reason| !reason.is_error()) => {}
            other => return Err(format!("it is refused: {other:?}")),
        }
        tally.ready_readers.fetch_add(1, Ordering::Relaxed);
        let mut finishing: Option<Instant> = None;
        while !check.is_done() {
            self.stream.read_available()?;
            while let Some((bytes, length)) = first_packet(&self.stream.unparsed)? {
                self.stream.unparsed.drain(..length);
                let version = self.version;
                self.receive(&ReceivedPacket { bytes, version }, &mut check)?;
            }
            if tally.must_finish.load(Ordering::Relaxed)
                && finishing.get_or_insert_with(Instant::now).elapsed() > ANSWER_TIMEOUT
            {
                let missing = check.missing().unwrap_or_default();
                return Err(format!("lost at the end: {missing}"));
            }
        }
        Ok(())
    }

    fn receive(
        &mut self,
        received: &ReceivedPacket,
        check: &mut SequenceCheck<'_>,
    ) -> Result<(), String> {
        match received.packet()? {
            Packet::Publish(publish) => {
                check.receive(publish.payload);
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
fn first_packet(unparsed: &[u8]) -> Result<Option<(Vec<u8>, usize)>, String> {
    let header = fixed_header(unparsed, PACKET_BYTES).map_err(|error| error.to_string())?;
    let Some((header, start)) = header else {
        return Ok(None);
    };
    let end = start + header.body_bytes();
    Ok(unparsed.get(..end).map(|packet| (packet.to_vec(), end)))
}
