//! An MQTT client connection for tests, over TCP or WebSocket. It sends any bytes, valid or not. It acknowledges a message only if the test
//! says so.

use super::{broker::Broker, http::PATIENCE, is_timeout, read_again};
use crore_wire::mqtt::{
    Ack, Connect, Disconnect, Packet, PacketId, PacketType, Properties, PropertyWriter, Publish,
    Qos, ReasonCode, SubscribeOptions, Version, Will, decode, encode, fixed_header,
};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

/// How long `has_ended` and `has_received` wait for bytes. A test calls them repeatedly.
const POLL_TIMEOUT: Duration = Duration::from_millis(20);

/// How often a check that nothing is received is repeated: a wrong packet may arrive later than the right one, since it may pass more
/// shards.
const ROUNDS: u16 = 3;

pub const VERSIONS: [Version; 2] = [Version::V311, Version::V5];

/// The transport of a connection.
enum Transport {
    Tcp,
    /// Each write is sent as one frame. The payloads of received frames are joined.
    WebSocket {
        /// Received bytes that are no complete frame yet.
        frames: Vec<u8>,
        /// The code of the received Close frame.
        close_code: Option<u16>,
    },
}

pub struct Conn {
    stream: TcpStream,
    transport: Transport,
    /// Received bytes that no method has returned yet.
    buffer: Vec<u8>,
    pub version: Version,
}

/// The bytes of a received packet.
pub struct ReceivedPacket {
    bytes: Vec<u8>,
    version: Version,
}

impl ReceivedPacket {
    /// Decodes the packet.
    pub fn packet(&self) -> Packet<'_> {
        let (header, start) = fixed_header(&self.bytes, usize::MAX)
            .expect("a header")
            .expect("a whole one");
        let body = &self.bytes[start..];
        decode(self.version, header, body)
            .unwrap_or_else(|error| panic!("{error} in {:02x?}", self.bytes))
    }

    /// The packet, which must be a PUBLISH.
    pub fn publish(&self) -> Publish<'_> {
        match self.packet() {
            Packet::Publish(publish) => publish,
            other => panic!("{other:?} was received instead of a PUBLISH"),
        }
    }

    /// The packet id and reason code of the packet, which must be an acknowledgement of type `kind`.
    #[track_caller]
    pub fn ack(&self, kind: PacketType) -> (u16, ReasonCode) {
        let packet = self.packet();
        assert_eq!(packet.kind(), kind, "{packet:?}");
        match packet {
            Packet::PubAck(ack)
            | Packet::PubRec(ack)
            | Packet::PubRel(ack)
            | Packet::PubComp(ack) => (ack.packet_id.get(), ack.reason),
            other => panic!("{other:?} is no acknowledgement"),
        }
    }
}

/// A CONNECT with a clean session and no options: no keep-alive, will, user name or properties.
pub fn plain_connect<'a>(version: Version, client_id: &'a str) -> Connect<'a> {
    Connect {
        version,
        bridge: false,
        clean_start: true,
        keep_alive_s: 0,
        properties: Properties::default(),
        client_id,
        will: None,
        user_name: None,
        password: None,
    }
}

/// A will of QoS 1 with the payload `gone`.
pub fn will<'a>(topic: &'a str) -> Will<'a> {
    Will {
        qos: Qos::AtLeastOnce,
        retain: false,
        properties: Properties::default(),
        topic,
        payload: b"gone",
    }
}

/// A PUBLISH. The packet `id` is used if `qos` is not 0.
pub fn message<'a>(topic: &'a str, qos: u8, id: u16, payload: &'a [u8]) -> Publish<'a> {
    Publish {
        dup: false,
        qos: Qos::from_repr(qos).expect("a QoS"),
        retain: false,
        topic,
        packet_id: PacketId::new(id).filter(|_| qos > 0),
        properties: Properties::default(),
        payload,
    }
}

pub fn id(number: u16) -> PacketId {
    PacketId::new(number).expect("a packet id")
}

impl Conn {
    /// A TCP connection on which no packet was sent yet.
    pub fn open(broker: &Broker, version: Version) -> Conn {
        Conn::open_from(1, broker, version)
    }

    /// A TCP connection to the data port of `server`, on which no packet was sent yet.
    pub fn to_server(server: &super::Server, version: Version) -> Conn {
        Conn::from_stream(super::connect(server.address()), Transport::Tcp, version)
    }

    /// Like `open`, from the address 127.0.0.`host`.
    pub fn open_from(host: u8, broker: &Broker, version: Version) -> Conn {
        let to = ([127, 0, 0, 1], broker.tcp_port()).into();
        Conn::from_stream(super::connect_from(host, to), Transport::Tcp, version)
    }

    /// A WebSocket connection on which no packet was sent yet, and the head of the response to its upgrade.
    pub fn websocket(
        broker: &Broker,
        version: Version,
        path: &str,
        protocol: &str,
    ) -> (Conn, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", broker.ws_port())).expect("a connection");
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             Sec-WebSocket-Protocol: {protocol}\r\n\r\n",
            broker.ws_port()
        );
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream
            .write_all(request.as_bytes())
            .expect("it takes a request");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("a head");
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).expect("a head in UTF-8");
        let (frames, close_code) = (Vec::new(), None);
        let transport = Transport::WebSocket { frames, close_code };
        (Conn::from_stream(stream, transport, version), head)
    }

    fn from_stream(stream: TcpStream, transport: Transport, version: Version) -> Conn {
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_nodelay(true).expect("no delay");
        Conn {
            stream,
            transport,
            buffer: Vec::new(),
            version,
        }
    }

    /// A client that has sent CONNECT for a clean session and received CONNACK.
    pub fn connected(broker: &Broker, version: Version, client_id: &str) -> Conn {
        let mut conn = Conn::open(broker, version);
        assert!(
            !conn.connect(&plain_connect(version, client_id)),
            "no session"
        );
        conn
    }

    /// An MQTT 5 client that has sent CONNECT with the properties that `set` writes. Also returns whether a session was present.
    pub fn with_properties(
        broker: &Broker,
        client_id: &str,
        clean_start: bool,
        set: impl FnOnce(&mut PropertyWriter),
    ) -> (Conn, bool) {
        let mut properties = PropertyWriter::new();
        set(&mut properties);
        let mut connect = plain_connect(Version::V5, client_id);
        connect.clean_start = clean_start;
        connect.properties = properties.properties();
        let mut conn = Conn::open(broker, Version::V5);
        let present = conn.connect(&connect);
        (conn, present)
    }

    /// Sends this CONNECT, and expects a CONNACK of success. Returns whether a session was present.
    #[track_caller]
    pub fn connect(&mut self, connect: &Connect<'_>) -> bool {
        self.write(|out| encode::connect(out, connect));
        match self.packet().packet() {
            Packet::ConnAck(connack) if connack.reason == ReasonCode::SUCCESS => {
                connack.session_present
            }
            other => panic!("{other:?} was received instead of a CONNACK"),
        }
    }

    /// Connects with a session that outlives the connection. Returns whether the session was present.
    #[track_caller]
    pub fn resume(&mut self, client_id: &str) -> bool {
        let mut properties = PropertyWriter::new();
        properties.session_expiry_interval_s(600);
        let mut connect = plain_connect(self.version, client_id);
        connect.clean_start = false;
        if self.version == Version::V5 {
            connect.properties = properties.properties();
        }
        self.connect(&connect)
    }

    /// Connects like [`resume`](Self::resume), and returns the reason code of the CONNACK.
    #[track_caller]
    pub fn try_to_resume(&mut self, client_id: &str) -> ReasonCode {
        let mut properties = PropertyWriter::new();
        properties.session_expiry_interval_s(600);
        let mut connect = plain_connect(self.version, client_id);
        connect.clean_start = false;
        if self.version == Version::V5 {
            connect.properties = properties.properties();
        }
        self.write(|out| encode::connect(out, &connect));
        match self.packet().packet() {
            Packet::ConnAck(connack) => connack.reason,
            other => panic!("a CONNACK is due, {other:?} came"),
        }
    }

    /// Sends bytes. An error of the socket is ignored here: the next read reports a closed connection.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        let _ = match self.transport {
            Transport::Tcp => self.stream.write_all(bytes),
            Transport::WebSocket { .. } => self.stream.write_all(&frame(2, bytes)),
        };
    }

    /// Sends a WebSocket frame.
    pub fn send_frame(&mut self, opcode: u8, payload: &[u8]) {
        let _ = self.stream.write_all(&frame(opcode, payload));
    }

    /// Sends the bytes one by one, each in its own TCP segment or WebSocket frame.
    pub fn dribble(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.send([*byte]);
            std::thread::sleep(Duration::from_micros(300));
        }
    }

    /// Sends the bytes that `encode` writes.
    pub fn write(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        let mut out = Vec::new();
        encode(&mut out);
        self.send(out);
    }

    /// Sends a PUBLISH, and reads nothing.
    pub fn publish(&mut self, publish: &Publish<'_>) {
        let version = self.version;
        self.write(|out| encode::publish(out, version, publish));
    }

    /// Publishes, and completes the exchange: PUBACK at QoS 1; PUBREC, PUBREL and PUBCOMP at QoS 2.
    #[track_caller]
    pub fn deliver(&mut self, publish: &Publish<'_>) {
        self.publish(publish);
        let Some(number) = publish.packet_id.map(PacketId::get) else {
            return;
        };
        if publish.qos == Qos::AtLeastOnce {
            assert_eq!(self.packet().ack(PacketType::PubAck).0, number);
            return;
        }
        assert_eq!(self.packet().ack(PacketType::PubRec).0, number);
        self.acknowledge(PacketType::PubRel, number);
        assert_eq!(self.packet().ack(PacketType::PubComp).0, number);
    }

    /// Sends an acknowledgement of type `kind` with the reason code of success.
    pub fn acknowledge(&mut self, kind: PacketType, number: u16) {
        let version = self.version;
        let ack = Ack {
            packet_id: id(number),
            reason: ReasonCode::SUCCESS,
            properties: Properties::default(),
        };
        self.write(|out| match kind {
            PacketType::PubAck => encode::puback(out, version, &ack),
            PacketType::PubRec => encode::pubrec(out, version, &ack),
            PacketType::PubRel => encode::pubrel(out, version, &ack),
            _ => encode::pubcomp(out, version, &ack),
        });
    }

    /// Sends a SUBSCRIBE for one filter, and reads nothing.
    pub fn send_subscribe(&mut self, filter: &str, qos: u8) {
        let options = SubscribeOptions::of(Qos::from_repr(qos).expect("a QoS"));
        let version = self.version;
        self.write(|out| {
            let filters = std::iter::once((filter, options));
            encode::subscribe(out, version, id(60_000), &Properties::default(), filters);
        });
    }

    /// Subscribes. The next packet must be the SUBACK, whose reason code is returned.
    #[track_caller]
    pub fn subscribe(&mut self, filter: &str, qos: u8) -> ReasonCode {
        self.send_subscribe(filter, qos);
        match self.packet().packet() {
            Packet::SubAck(suback) => suback.reasons.iter().next().expect("a code"),
            other => panic!("{other:?} was received instead of a SUBACK"),
        }
    }

    /// Unsubscribes. The next packet must be the UNSUBACK.
    #[track_caller]
    pub fn unsubscribe(&mut self, filter: &str) {
        let version = self.version;
        self.write(|out| {
            let filters = std::iter::once(filter);
            encode::unsubscribe(out, version, id(60_001), &Properties::default(), filters);
        });
        let got = self.packet();
        assert!(
            matches!(got.packet(), Packet::UnsubAck(_)),
            "{:?}",
            got.packet()
        );
    }

    pub fn ping(&mut self) {
        self.write(encode::pingreq);
    }

    pub fn disconnect(&mut self) {
        let version = self.version;
        let farewell = Disconnect {
            reason: ReasonCode::NORMAL_DISCONNECTION,
            properties: Properties::default(),
        };
        self.write(|out| encode::disconnect(out, version, &farewell));
    }

    /// Sends a DISCONNECT, and waits until the server closes the connection without a packet.
    pub fn leave(&mut self) {
        self.disconnect();
        assert_eq!(self.end(), None, "no DISCONNECT answers a DISCONNECT");
    }

    /// Sends a PINGREQ. Returns whether the next packet is the PINGRESP.
    #[track_caller]
    pub fn is_served(&mut self) -> bool {
        self.ping();
        matches!(self.packet().packet(), Packet::PingResp)
    }

    /// The next packet.
    #[track_caller]
    pub fn packet(&mut self) -> ReceivedPacket {
        self.packet_or_end()
            .unwrap_or_else(|| panic!("the peer closed; before that {:02x?}", self.buffer))
    }

    /// The next packet. `None` if the peer closes the connection instead.
    #[track_caller]
    pub fn packet_or_end(&mut self) -> Option<ReceivedPacket> {
        loop {
            let header = fixed_header(&self.buffer, usize::MAX)
                .unwrap_or_else(|error| panic!("{error}: {:02x?}", self.buffer));
            if let Some((header, start)) = header {
                let whole = start + header.body_bytes();
                if self.buffer.len() >= whole {
                    let bytes = self.buffer.drain(..whole).collect();
                    let version = self.version;
                    return Some(ReceivedPacket { bytes, version });
                }
            }
            // A Close frame may arrive together with the last packet.
            let before = self.buffer.len();
            if self.fill(PATIENCE)? == 0 && self.buffer.len() == before {
                return None;
            }
        }
    }

    /// Reads until the server closes the connection. Returns the reason code of its DISCONNECT, or `None` if it sends none.
    #[track_caller]
    pub fn end(&mut self) -> Option<ReasonCode> {
        let mut reason = None;
        while let Some(got) = self.packet_or_end() {
            match got.packet() {
                Packet::Disconnect(disconnect) => reason = Some(disconnect.reason),
                other => assert!(reason.is_none(), "{other:?} after a DISCONNECT"),
            }
        }
        reason
    }

    /// All bytes until the peer closes.
    pub fn read_to_end(&mut self) -> Vec<u8> {
        while self.fill(PATIENCE).expect("an end") > 0 {}
        std::mem::take(&mut self.buffer)
    }

    /// The code of the received Close frame of a WebSocket.
    pub fn close_code(&self) -> Option<u16> {
        match self.transport {
            Transport::Tcp => None,
            Transport::WebSocket { close_code, .. } => close_code,
        }
    }

    /// Lets `publisher` publish markers to `topic`, which this client has subscribed to. Panics if this client receives anything else
    /// before the markers.
    pub fn expect_only_from(&mut self, publisher: &mut Conn, topic: &str) {
        for round in 1..=ROUNDS {
            let marker = format!("marker {round}");
            publisher.deliver(&message(topic, 1, round, marker.as_bytes()));
            let got = self.packet();
            let publish = got.publish();
            let came = String::from_utf8_lossy(publish.payload);
            assert_eq!(came, marker, "an unexpected packet: {publish:?}");
            if let Some(id) = publish.packet_id {
                self.acknowledge(PacketType::PubAck, id.get());
            }
        }
    }

    /// Lets `publisher` publish to a topic of nobody. Panics if this client receives anything meanwhile. For a client that cannot receive
    /// markers: it has no subscription, or has reached its Receive Maximum.
    pub fn expect_nothing_from(&mut self, publisher: &mut Conn) {
        for round in 1..=ROUNDS {
            publisher.deliver(&message("elsewhere", 1, round, b"x"));
            assert!(self.is_served(), "an unexpected packet");
        }
    }

    /// Shuts down the sending side without a DISCONNECT, and waits until the server has closed the connection.
    pub fn cut(mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
        while self.fill(PATIENCE) != Some(0) {}
    }

    /// Whether the server has closed the connection. Waits 20 ms at most, for tests that ask repeatedly.
    pub fn has_ended(&mut self) -> bool {
        self.fill(POLL_TIMEOUT) == Some(0)
    }

    /// Whether bytes were received. Waits 20 ms at most, for tests that ask repeatedly.
    pub fn has_received(&mut self) -> bool {
        !self.buffer.is_empty() || self.fill(POLL_TIMEOUT).is_some_and(|count| count > 0)
    }

    /// Reads once. Returns 0 if the peer has closed or reset the connection, and `None` if nothing is received within `wait`. Panics in
    /// this case if `wait` is `PATIENCE`.
    #[track_caller]
    fn fill(&mut self, wait: Duration) -> Option<usize> {
        let half = Some(wait / 2);
        self.stream.set_read_timeout(half).expect("a timeout");
        let mut bytes = [0; 16 << 10];
        let count = match read_again(&self.stream, &mut bytes) {
            Ok(count) => count,
            Err(error) if is_timeout(&error) => {
                let came = &self.buffer;
                assert!(
                    wait < PATIENCE,
                    "nothing was received; the bytes before are {came:02x?}"
                );
                return None;
            }
            Err(_) => 0,
        };
        match &mut self.transport {
            Transport::Tcp => self.buffer.extend_from_slice(&bytes[..count]),
            Transport::WebSocket { frames, close_code } => {
                frames.extend_from_slice(&bytes[..count]);
                while let Some((opcode, payload)) = unframe(frames) {
                    match opcode {
                        8 => {
                            *close_code = payload.first_chunk().copied().map(u16::from_be_bytes);
                            return Some(0);
                        }
                        9 | 10 => {}
                        _ => self.buffer.extend_from_slice(&payload),
                    }
                }
            }
        }
        Some(count)
    }
}

/// A client's WebSocket frame (RFC 6455, section 5.2). Its masking key is zero, so the payload is sent unchanged.
fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0x80 | opcode];
    match payload.len() {
        short @ 0..126 => out.push(0x80 | short as u8),
        long => {
            out.push(0x80 | 126);
            out.extend(u16::try_from(long).expect("a short frame").to_be_bytes());
        }
    }
    out.extend([0; 4]);
    out.extend_from_slice(payload);
    out
}

/// Removes the first frame from these bytes of a server. Returns its opcode and payload, or `None` if the frame is incomplete.
fn unframe(bytes: &mut Vec<u8>) -> Option<(u8, Vec<u8>)> {
    let [first, second, ..] = *bytes.as_slice() else {
        return None;
    };
    let is_frame = first & 0x70 == 0 && second & 0x80 == 0 && matches!(first & 15, 0 | 2 | 8..=10);
    assert!(
        is_frame,
        "{bytes:02x?} is no frame of a server that speaks MQTT"
    );
    let (start, length) = match second {
        126 => (
            4,
            usize::from(u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?])),
        ),
        127 => panic!("a frame of more than 64 KiB"),
        short => (2, usize::from(short)),
    };
    let payload = bytes.get(start..start + length)?.to_vec();
    let opcode = bytes[0] & 15;
    bytes.drain(..start + length);
    Some((opcode, payload))
}
