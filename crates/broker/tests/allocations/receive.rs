//! Tests bytes that arrive a few at a time: the work must be linear in their number. The allocated bytes measure the copied bytes, since
//! each copy needs an allocation.

use crore_broker::ConnId;
use crore_wire::mqtt::{self, Connect, PacketId, Properties, Publish, Qos, Version};
use crore_wire::websocket::frame::{Opcode, write_masked};

use crate::counting::asked_bytes;
use crate::test_server::{TestServer, keeping};

/// The length of the message.
const BYTES: usize = 128 << 10;
/// Allowed allocated bytes, in multiples of the message's length. The message is collected in a buffer that doubles, copied once more if a
/// turn (one run of the event loop) ends before it is complete, and kept in a log and in frames.
const TIMES: u64 = 32;

const UPGRADE: &str = "Host: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                       Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

fn frame(payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_masked(&mut out, Opcode::Binary, payload, [1, 2, 3, 4]);
    out
}

fn connect(client_id: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let packet = Connect {
        version: Version::V311,
        bridge: false,
        clean_start: true,
        keep_alive_s: 0,
        properties: Properties::NONE,
        client_id,
        will: None,
        user_name: None,
        password: None,
    };
    mqtt::encode::connect(&mut out, &packet);
    out
}

fn publish(topic: &str, id: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let packet = Publish {
        dup: false,
        qos: Qos::AtLeastOnce,
        retain: false,
        topic,
        packet_id: PacketId::new(id),
        properties: Properties::NONE,
        payload,
    };
    mqtt::encode::publish(&mut out, Version::V311, &packet);
    out
}

/// An MQTT client with a session, over TCP or WebSocket frames.
fn client(server: &mut TestServer, framed: bool) -> ConnId {
    let request = format!("GET / HTTP/1.1\r\n{UPGRADE}Sec-WebSocket-Protocol: mqtt\r\n\r\n");
    let conn = server.open(0, if framed { &request } else { "" });
    let packet = connect(if framed { "framed" } else { "plain" });
    server.receive(0, conn, &if framed { frame(&packet) } else { packet });
    server.settle();
    conn
}

/// Sends one message of [`BYTES`] in these pieces. Returns the allocated bytes.
fn asked(server: &mut TestServer, conn: ConnId, pieces: &[Vec<u8>]) -> u64 {
    let before = server.writes();
    let asked = asked_bytes(|| {
        for piece in pieces {
            server.receive(0, conn, piece);
        }
        server.settle();
    });
    assert!(server.writes() > before, "the message is answered");
    asked
}

fn bytewise(bytes: &[u8]) -> Vec<Vec<u8>> {
    bytes.iter().map(|byte| vec![*byte]).collect()
}

#[test]
fn message_that_arrives_byte_by_byte_is_not_copied_for_each_byte() {
    let most = TIMES * BYTES as u64;
    let message = vec![b'x'; BYTES];
    let packet = publish("t", 1, &message);

    let mut server = TestServer::new(1, keeping(1));
    let conn = client(&mut server, false);
    let mqtt = asked(&mut server, conn, &bytewise(&packet));
    assert!(mqtt <= most, "over TCP {mqtt} for {BYTES}");

    let conn = client(&mut server, true);
    let whole = asked(&mut server, conn, &bytewise(&frame(&packet)));
    assert!(whole <= most, "in one frame {whole} for {BYTES}");

    let frames: Vec<_> = packet.chunks(1).map(frame).collect();
    let framed = asked(&mut server, conn, &frames);
    assert!(framed <= most, "in frames of a byte {framed} for {BYTES}");

    let meta = "Sec-WebSocket-Protocol: ws+meta.nchan\r\n";
    let conn = server.open(0, &format!("GET /pub/t HTTP/1.1\r\n{UPGRADE}{meta}\r\n"));
    let plain = asked(&mut server, conn, &bytewise(&frame(&message)));
    assert!(
        plain <= most,
        "in a frame of a WebSocket {plain} for {BYTES}"
    );
}
