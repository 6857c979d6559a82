//! The client's side of MQTT 3.1.1 and 5 for the load tools: every QoS, clean and persistent sessions, and wills, without credentials.
//! A client has no keep-alive, so an idle connection sends nothing. `crore_wire` decodes and encodes the packets.
//!
//! The parser takes a slice and returns a packet only if it is complete. The caller keeps the bytes of an incomplete packet, so the result
//! does not depend on how the bytes are split. A packet that a server must not send to a client of the load tools is an error.

use crore_wire::mqtt::{
    self, Ack, Connect, Disconnect, PacketId, PacketType, Properties, PropertyWriter, ReasonCode,
    SubscribeOptions, Will,
};
use crore_wire::websocket::frame::{HEADER_MAX, Opcode, write_header};

use super::request::NO_MASK;

/// The maximum size of a packet, in bytes. A longer packet is an error.
const PACKET_BYTES_MAX: usize = 16 << 20;
/// Session expiry interval in MQTT 5, in seconds. In 3.1.1 sessions do not expire.
const SESSION_S: u32 = 24 * 3600;

/// The version of the specification.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Version {
    /// MQTT 3.1.1.
    #[default]
    #[value(name = "3.1.1")]
    V311,
    /// MQTT 5.
    #[value(name = "5")]
    V5,
}

/// What happens to the session when the connection ends.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SessionMode {
    /// It ends.
    #[default]
    Clean,
    /// It is kept, with its subscriptions.
    Persistent,
}

/// The MQTT flags of both load tools.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct MqttArgs {
    /// MQTT: version of the protocol
    #[arg(long, value_enum, default_value_t)]
    pub mqtt_version: Version,
    /// MQTT: quality of service (QoS)
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    pub qos: u8,
    /// MQTT: what happens to the session when the connection ends
    #[arg(long, value_enum, default_value_t)]
    pub session: SessionMode,
}

impl MqttArgs {
    /// These flags as arguments for a child process.
    pub fn flags(&self) -> Vec<String> {
        let flags = [
            ("--mqtt-version", value_name(self.mqtt_version)),
            ("--qos", self.qos.to_string()),
            ("--session", value_name(self.session)),
        ];
        let each = flags.into_iter();
        each.flat_map(|(flag, value)| [flag.to_string(), value])
            .collect()
    }
}

/// The name of a flag's value.
fn value_name(value: impl clap::ValueEnum) -> String {
    let value = value.to_possible_value().expect("no value is skipped");
    value.get_name().to_string()
}

/// The MQTT version and options of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Dialect {
    version: mqtt::Version,
    /// The requested QoS.
    pub qos: mqtt::Qos,
    is_persistent: bool,
    /// Whether each write is wrapped into a WebSocket frame.
    pub is_framed: bool,
}

/// A packet that a server sends to a client that publishes and subscribes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet<'a> {
    /// CONNACK with success.
    Connack {
        /// The server's Receive Maximum.
        receive_max: u16,
        /// Whether the server had a session (Session Present).
        session_present: bool,
    },
    /// SUBACK.
    Suback {
        /// The number of filters that were granted with the requested QoS.
        granted: u32,
        /// The number of filters that were refused, or granted with a lower QoS.
        refused: u32,
    },
    /// PUBLISH: the kind and packet id of the acknowledgement that it requires, if any, and the payload.
    Publish(Option<(PacketType, PacketId)>, &'a [u8]),
    /// PUBACK, PUBREC, PUBREL or PUBCOMP: the kind, the packet id, and whether it reports a failure.
    Ack(PacketType, PacketId, bool),
    /// PINGRESP.
    Pingresp,
}

/// Why a packet of the server is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The packet is malformed.
    #[error("not a packet of an MQTT server: {0}")]
    Malformed(mqtt::Error),
    /// The packet is a CONNACK or DISCONNECT with a failure.
    #[error("the server refused: {0}")]
    Refused(ReasonCode),
    /// A server must not send this packet to a client of the load tools.
    #[error("the server sent {0:?}")]
    Unexpected(PacketType),
}

impl From<Error> for String {
    fn from(error: Error) -> String {
        error.to_string()
    }
}

impl Dialect {
    /// The dialect for these flags.
    pub fn new(args: &MqttArgs, is_framed: bool) -> Dialect {
        Dialect {
            version: match args.mqtt_version {
                Version::V311 => mqtt::Version::V311,
                Version::V5 => mqtt::Version::V5,
            },
            qos: mqtt::Qos::from_repr(args.qos).expect("the flag's range"),
            is_persistent: args.session == SessionMode::Persistent,
            is_framed,
        }
    }

    /// Appends the bytes that `write` writes, in a WebSocket frame if [`Dialect::is_framed`].
    pub fn write_framed(&self, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
        let start = out.len();
        write(out);
        if self.is_framed {
            let size = out.len() - start;
            let mut head = Vec::with_capacity(HEADER_MAX);
            write_header(&mut head, Opcode::Binary, true, false, size, Some(NO_MASK));
            out.splice(start..start, head);
        }
    }

    /// Appends a CONNECT and SUBSCRIBE packets for these filters. They may be sent before the CONNACK
    /// arrives (§3.1.4).
    pub fn write_connect(&self, client: &str, filters: &[String], out: &mut Vec<u8>) {
        self.write_connect_with_will(client, None, filters, out);
    }

    /// Like [`Dialect::write_connect`], with a will. Its properties are sent in MQTT 5 only.
    pub fn write_connect_with_will(
        &self,
        client: &str,
        will: Option<Will<'_>>,
        filters: &[String],
        out: &mut Vec<u8>,
    ) {
        let mut properties = PropertyWriter::new();
        if self.version == mqtt::Version::V5 && self.is_persistent {
            properties.session_expiry_interval_s(SESSION_S);
        }
        let connect = Connect {
            version: self.version,
            bridge: false,
            clean_start: !self.is_persistent,
            keep_alive_s: 0,
            properties: properties.properties(),
            client_id: client,
            will,
            user_name: None,
            password: None,
        };
        let options = SubscribeOptions::of(self.qos);
        let none = Properties::default();
        self.write_framed(out, |out| {
            mqtt::encode::connect(out, &connect);
            for (filters, id) in filters.chunks(mqtt::FILTERS_MAX).zip(1..) {
                let id = PacketId::new(id).expect("counted from 1");
                let filters = filters.iter().map(|filter| (filter.as_str(), options));
                mqtt::encode::subscribe(out, self.version, id, &none, filters);
            }
        });
    }

    /// Appends the head of a PUBLISH. The caller appends `size` bytes of payload.
    pub fn write_publish_head(
        &self,
        topic: &str,
        id: Option<PacketId>,
        retain: bool,
        size: usize,
        out: &mut Vec<u8>,
    ) {
        let publish = mqtt::Publish {
            dup: false,
            qos: self.qos,
            retain,
            topic,
            packet_id: id,
            properties: Properties::default(),
            payload: &[],
        };
        mqtt::encode::publish_head(out, self.version, &publish, size);
    }

    /// Appends an acknowledgement with success.
    pub fn write_acknowledgement(&self, kind: PacketType, id: PacketId, out: &mut Vec<u8>) {
        let ack = Ack {
            packet_id: id,
            reason: ReasonCode::SUCCESS,
            properties: Properties::default(),
        };
        let encode = match kind {
            PacketType::PubAck => mqtt::encode::puback,
            PacketType::PubRec => mqtt::encode::pubrec,
            PacketType::PubRel => mqtt::encode::pubrel,
            _ => mqtt::encode::pubcomp,
        };
        self.write_framed(out, |out| encode(out, self.version, &ack));
    }

    /// Appends a PINGREQ (§3.12). A server handles a connection's packets in order. So when it answers the ping, it has read all packets
    /// before the ping.
    pub fn write_ping(&self, out: &mut Vec<u8>) {
        self.write_framed(out, mqtt::encode::pingreq);
    }

    /// Appends a DISCONNECT, which does not change the session's expiry.
    pub fn write_disconnect(&self, out: &mut Vec<u8>) {
        let disconnect = Disconnect {
            reason: ReasonCode::NORMAL_DISCONNECTION,
            properties: Properties::default(),
        };
        self.write_framed(out, |out| {
            mqtt::encode::disconnect(out, self.version, &disconnect);
        });
    }

    /// Parses the packet at the start of `bytes`, if it is complete. Returns the packet with its length.
    #[inline]
    pub fn parse_packet<'a>(&self, bytes: &'a [u8]) -> Result<Option<(Packet<'a>, usize)>, Error> {
        let header = mqtt::fixed_header(bytes, PACKET_BYTES_MAX).map_err(Error::Malformed)?;
        let Some((header, start)) = header else {
            return Ok(None);
        };
        let end = start + header.body_bytes();
        let Some(body) = bytes.get(start..end) else {
            return Ok(None);
        };
        let packet = mqtt::decode(self.version, header, body).map_err(Error::Malformed)?;
        Ok(Some((self.check_packet(packet)?, end)))
    }

    /// Checks that a server may send this packet to a client of the load tools.
    fn check_packet<'a>(&self, packet: mqtt::Packet<'a>) -> Result<Packet<'a>, Error> {
        let kind = packet.kind();
        Ok(match packet {
            mqtt::Packet::ConnAck(ack) if ack.reason.is_error() => {
                return Err(Error::Refused(ack.reason));
            }
            mqtt::Packet::ConnAck(ack) => Packet::Connack {
                receive_max: ack.properties.receive_maximum(),
                session_present: ack.session_present,
            },
            mqtt::Packet::SubAck(ack) => {
                let requested = ReasonCode::granted(self.qos);
                let granted = ack.reasons.iter().filter(|reason| *reason == requested);
                let granted = granted.count() as u32;
                Packet::Suback {
                    granted,
                    refused: ack.reasons.iter().count() as u32 - granted,
                }
            }
            // Duplicates and retained messages count as messages. The QoS must not be higher than the requested one.
            mqtt::Packet::Publish(publish) if publish.qos <= self.qos => {
                let answer = match publish.qos {
                    mqtt::Qos::ExactlyOnce => PacketType::PubRec,
                    _ => PacketType::PubAck,
                };
                Packet::Publish(publish.packet_id.map(|id| (answer, id)), publish.payload)
            }
            mqtt::Packet::PubAck(ack)
            | mqtt::Packet::PubRec(ack)
            | mqtt::Packet::PubRel(ack)
            | mqtt::Packet::PubComp(ack) => Packet::Ack(kind, ack.packet_id, ack.reason.is_error()),
            mqtt::Packet::PingResp => Packet::Pingresp,
            mqtt::Packet::Disconnect(disconnect) => return Err(Error::Refused(disconnect.reason)),
            _ => return Err(Error::Unexpected(kind)),
        })
    }
}

/// A client id of 23 bytes, the longest that every MQTT 3.1.1 server accepts (§3.1.3.1). It contains the process id, because two
/// tools at one server must not use the same ids.
pub fn client_id(process: u32, role: char, number: u32) -> String {
    format!("{role}{process:010}-{number:011}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn dialect(mqtt_version: Version, qos: u8, is_framed: bool) -> Dialect {
        let session = SessionMode::Clean;
        let args = MqttArgs {
            mqtt_version,
            qos,
            session,
        };
        Dialect::new(&args, is_framed)
    }

    #[test]
    fn subscribe_follows_connect_only_if_there_are_filters() {
        let mqtt_3 = dialect(Version::V311, 1, false);
        let mut out = Vec::new();
        mqtt_3.write_connect("ab", &["t".into(), "u/v".into()], &mut out);
        let connect = b"\x10\x0e\0\x04MQTT\x04\x02\0\0\0\x02ab";
        let subscribe = b"\x82\x0c\0\x01\0\x01t\x01\0\x03u/v\x01";
        assert_eq!(out, [&connect[..], subscribe].concat());
        out.clear();
        mqtt_3.write_connect("ab", &[], &mut out);
        assert_eq!(out, connect);
    }

    #[test]
    fn persistent_session_has_an_expiry_interval() {
        let args = MqttArgs {
            mqtt_version: Version::V5,
            qos: 0,
            session: SessionMode::Persistent,
        };
        let mut out = Vec::new();
        Dialect::new(&args, false).write_connect("a", &[], &mut out);
        assert_eq!(
            out,
            b"\x10\x13\0\x04MQTT\x05\0\0\0\x05\x11\0\x01\x51\x80\0\x01a"
        );
    }

    #[test]
    fn packet_is_wrapped_into_a_frame() {
        let mut out = b"before".to_vec();
        dialect(Version::V5, 0, true).write_ping(&mut out);
        assert_eq!(out, b"before\x82\x82\0\0\0\0\xc0\0");
    }

    #[test]
    fn answers_and_refusals_are_parsed() {
        let mqtt_3 = dialect(Version::V311, 1, false);
        let refused = Err(Error::Refused(ReasonCode::NOT_AUTHORIZED));
        assert_eq!(mqtt_3.parse_packet(b"\x20\x02\0\x05"), refused);
        for (code, granted) in [(1, 1), (0, 0), (0x80, 0)] {
            let suback = [0x90, 3, 0, 1, code];
            let refused = 1 - granted;
            let packet = Packet::Suback { granted, refused };
            assert_eq!(mqtt_3.parse_packet(&suback), Ok(Some((packet, 5))));
        }
        assert_eq!(
            mqtt_3.parse_packet(b"\xd0\0rest"),
            Ok(Some((Packet::Pingresp, 2)))
        );
        let mqtt_5 = dialect(Version::V5, 1, false);
        let taken_over = Err(Error::Refused(ReasonCode::SESSION_TAKEN_OVER));
        assert_eq!(mqtt_5.parse_packet(b"\xe0\x01\x8e"), taken_over);
    }

    #[test]
    fn packets_that_a_server_must_not_send_are_errors() {
        let mqtt_3 = dialect(Version::V311, 0, false);
        // Each of these is an error: a PUBLISH with QoS 1; a topic name longer than its packet; a length of five digits; a packet that only
        // clients send.
        for bytes in [
            &b"\x32\x05\0\x01t\0\x01"[..],
            b"\x30\x02\0\x01",
            b"\x30\xff\xff\xff\xff",
            b"\xc0\0",
        ] {
            assert!(mqtt_3.parse_packet(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn client_ids_differ_and_have_23_bytes() {
        assert_eq!(client_id(1, 's', 7).len(), 23);
        assert_ne!(client_id(1, 's', 7), client_id(1, 'p', 7));
        assert_ne!(client_id(1, 's', 7), client_id(2, 's', 7));
    }

    proptest! {
        #[test]
        fn packet_is_parsed_only_if_it_is_complete(
            topic in "[a-z/]{1,20}", qos in 0u8..3, size in 0usize..20_000, cut in 0usize..20_000,
        ) {
            let mqtt_5 = dialect(Version::V5, qos, false);
            let id = PacketId::new(9).filter(|_| qos > 0);
            let mut bytes = Vec::new();
            mqtt_5.write_publish_head(&topic, id, false, size, &mut bytes);
            bytes.extend(std::iter::repeat_n(b'x', size));
            let whole = bytes.len();
            bytes.extend_from_slice(&[0xd0, 0]);
            let payload = vec![b'x'; size];
            let answer = [PacketType::PubAck, PacketType::PubRec][usize::from(qos == 2)];
            let packet = Packet::Publish(id.map(|id| (answer, id)), &payload);
            prop_assert_eq!(mqtt_5.parse_packet(&bytes), Ok(Some((packet, whole))));
            prop_assert_eq!(mqtt_5.parse_packet(&bytes[..cut % whole]), Ok(None));
        }
    }
}
