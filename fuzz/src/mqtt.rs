//! Fuzz target for MQTT control packets, as servers and clients read them, and for the detection of MQTT in a connection's first bytes.

use crore_wire::mqtt::{Error, Packet, Sniff, Version, decode, encode, fixed_header, sniff};

use crate::Input;

/// Protocol names, beginnings of packets, and properties.
pub const WORDS: &[&str] = &[
    "\0\u{4}MQTT\u{4}\u{2}\0\0",
    "\0\u{4}MQTT\u{5}\u{2}\0\0\0",
    "\0\u{1}t",
    "\0\u{3}a/#\0",
    "$share/g/",
    "\u{10}\u{c}",
    "\0\u{1}",
    "\u{26}\0\u{1}n\0\u{1}v",
    "\u{1f}\0\u{1}x",
    "\u{b}\u{1}",
    "\u{23}\0\u{1}",
    "\u{11}\0\0\0\u{1}",
    "\u{15}\0\u{1}m",
];

/// Choices for the largest packet that is accepted: small, so that inputs reach the limit.
const PACKET_LIMITS: [usize; 4] = [2, 20, 300, 70_000];

/// The received packets, encoded again, and the error at the end, if any.
type Got = (Vec<Vec<u8>>, Option<Error>);

/// Reads packets. Checked: packets and error do not depend on the cuts (the places where the input is split into pieces), and an encoded
/// packet decodes to the same packet. The protocol found in the first bytes does not change when more bytes arrive.
pub fn mqtt(data: &[u8]) {
    let Some(input) = Input::of(data) else { return };
    let version = match input.options & 1 {
        0 => Version::V311,
        _ => Version::V5,
    };
    let max = PACKET_LIMITS[usize::from(input.options >> 1 & 3)];
    let whole = receive([input.bytes].into_iter(), version, max);
    assert_eq!(
        receive(input.pieces(), version, max),
        whole,
        "the cuts show"
    );
    let mut said = Sniff::More;
    for len in 0..=input.bytes.len().min(20) {
        let now = sniff(&input.bytes[..len]);
        assert!(
            said == Sniff::More || said == now,
            "{said:?} became {now:?}"
        );
        said = now;
    }
}

/// All packets up to an error. A CONNECT sets the version.
fn receive<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    mut version: Version,
    max_packet_bytes: usize,
) -> Got {
    let (mut held, mut got) = (Vec::new(), Vec::new());
    for piece in pieces {
        held.extend_from_slice(piece);
        loop {
            let (header, at) = match fixed_header(&held, max_packet_bytes) {
                Ok(Some(found)) => found,
                Ok(None) => break,
                Err(error) => return (got, Some(error)),
            };
            let end = at + header.body_bytes();
            assert!(end <= max_packet_bytes, "a packet over the limit");
            let Some(body) = held.get(at..end) else { break };
            match decode(version, header, body) {
                Ok(packet) => {
                    if let Packet::Connect(connect) = &packet {
                        version = connect.version;
                    }
                    got.push(written(version, &packet));
                }
                Err(error) => return (got, Some(error)),
            }
            held.drain(..end);
        }
    }
    (got, None)
}

/// Encodes a packet, and checks that it decodes to the same one.
fn written(version: Version, packet: &Packet<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    encode::packet(&mut out, version, packet);
    let (header, at) = fixed_header(&out, out.len())
        .expect("ours is well-formed")
        .expect("ours is whole");
    let again = decode(version, header, &out[at..]).expect("ours is well-formed");
    assert_eq!(again, *packet, "it came back as another");
    let _ = again.check_from_client();
    if let Packet::Publish(publish) = packet {
        let len = encode::publish_bytes(version, publish, publish.payload.len());
        assert_eq!(len, out.len(), "the length was computed");
    }
    out
}
