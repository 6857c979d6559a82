//! The client's side of MQTT 3.1.1, as far as a load tool needs it: quality of service 0, clean
//! sessions, no will, no credentials, and no keep-alive, so that an idle connection sends nothing.
//!
//! As everywhere in these tools, the parser looks at a slice and answers with whole packets only;
//! what is not whole stays with the caller, so that any split of the bytes gives the same packets.
//! What a server may not send to such a client is an error, never skipped.

use std::fmt;

/// The largest remaining length (MQTT 3.1.1 §2.2.3): four digits of seven bits.
const REMAINING_MAX: usize = (1 << 28) - 1;
/// A filter's return code that is a refusal (§3.9.3).
const REFUSED: u8 = 0x80;

/// Asks for a PINGRESP (§3.12). A server answers a connection's packets in order, so the answer
/// also says that everything before it was read.
pub const PINGREQ: [u8; 2] = [0xc0, 0];

/// What a server sends to a client that publishes and subscribes at quality of service 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet<'a> {
    /// CONNACK (§3.2) with its return code; 0 is accepted.
    Connack(u8),
    /// SUBACK (§3.9): whether every filter was granted.
    Suback(bool),
    /// PUBLISH (§3.3): the payload.
    Publish(&'a [u8]),
    /// PINGRESP (§3.13).
    Pingresp,
}

/// The peer sent what no server may send to such a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a packet of an MQTT 3.1.1 server at quality of service 0")
    }
}

impl std::error::Error for Error {}

/// The packet at the start of `bytes` and the bytes that it takes, when it is whole.
#[inline]
pub fn packet(bytes: &[u8]) -> Result<Option<(Packet<'_>, usize)>, Error> {
    let Some(first) = bytes.first() else {
        return Ok(None);
    };
    let Some((length, start)) = remaining(&bytes[1..])? else {
        return Ok(None);
    };
    let Some(body) = bytes.get(1 + start..1 + start + length) else {
        return Ok(None);
    };
    let packet = match (first, body) {
        // Duplicates and retained messages are messages; the quality asked for was 0.
        (0x30 | 0x31 | 0x38 | 0x39, [high, low, rest @ ..]) => {
            let name = usize::from(u16::from_be_bytes([*high, *low]));
            Packet::Publish(rest.get(name..).ok_or(Error)?)
        }
        (0x20, [_, code]) => Packet::Connack(*code),
        (0x90, [_, _, codes @ ..]) if !codes.is_empty() => {
            Packet::Suback(codes.iter().all(|code| *code < REFUSED))
        }
        (0xd0, []) => Packet::Pingresp,
        _ => return Err(Error),
    };
    Ok(Some((packet, 1 + start + length)))
}

/// The remaining length (§2.2.3) and the bytes that it takes, when it is whole.
#[inline]
fn remaining(bytes: &[u8]) -> Result<Option<(usize, usize)>, Error> {
    let mut length = 0;
    for (place, byte) in bytes.iter().take(4).enumerate() {
        length |= usize::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Ok(Some((length, place + 1)));
        }
    }
    if bytes.len() < 4 {
        Ok(None)
    } else {
        Err(Error)
    }
}

fn fixed_header(kind: u8, mut length: usize, out: &mut Vec<u8>) {
    assert!(length <= REMAINING_MAX, "a packet of {length} bytes");
    out.push(kind);
    loop {
        let more = if length < 0x80 { 0 } else { 0x80 };
        out.push(length as u8 & 0x7f | more);
        length >>= 7;
        if length == 0 {
            return;
        }
    }
}

fn string(text: &str, out: &mut Vec<u8>) {
    let length = u16::try_from(text.len()).expect("names and identifiers are short");
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// Appends a CONNECT (§3.1): clean session, keep-alive off.
pub fn connect(client: &str, out: &mut Vec<u8>) {
    fixed_header(0x10, 12 + client.len(), out);
    string("MQTT", out);
    out.extend_from_slice(&[4, 0b10, 0, 0]);
    string(client, out);
}

/// Appends a SUBSCRIBE (§3.8) with its one identifier; it needs no answer before it is sent (§3.1.4).
pub fn subscribe(filters: &[String], out: &mut Vec<u8>) {
    let length = 2 + filters.iter().map(|filter| 3 + filter.len()).sum::<usize>();
    fixed_header(0x82, length, out);
    out.extend_from_slice(&[0, 1]);
    for filter in filters {
        string(filter, out);
        out.push(0);
    }
}

/// Appends the head of a PUBLISH (§3.3), behind which `size` bytes of payload belong.
pub fn publish(topic: &str, size: usize, out: &mut Vec<u8>) {
    fixed_header(0x30, 2 + topic.len() + size, out);
    string(topic, out);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_sent_has_the_specification_s_bytes() {
        let mut out = Vec::new();
        connect("ab", &mut out);
        assert_eq!(out, b"\x10\x0e\0\x04MQTT\x04\x02\0\0\0\x02ab");
        out.clear();
        subscribe(&["t".into(), "u/v".into()], &mut out);
        assert_eq!(out, b"\x82\x0c\0\x01\0\x01t\0\0\x03u/v\0");
        out.clear();
        publish("t", 200, &mut out);
        assert_eq!(out, b"\x30\xcb\x01\0\x01t");
    }

    #[test]
    fn answers_are_read_and_refusals_seen() {
        assert_eq!(packet(b"\x20\x02\0\x05"), Ok(Some((Packet::Connack(5), 4))));
        assert_eq!(
            packet(b"\x90\x04\0\x01\0\x80"),
            Ok(Some((Packet::Suback(false), 6)))
        );
        assert_eq!(packet(b"\xd0\0rest"), Ok(Some((Packet::Pingresp, 2))));
    }

    #[test]
    fn what_was_never_agreed_to_is_refused() {
        // Quality of service 1; a name longer than its packet; five digits; a client's packet.
        for bytes in [
            &b"\x32\x05\0\x01t\0\x01"[..],
            b"\x30\x02\0\x01",
            b"\x30\xff\xff\xff\xff",
            b"\xc0\0",
        ] {
            assert_eq!(packet(bytes), Err(Error), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn packets_are_whole_or_not_there(topic in "[a-z/]{1,20}", size in 0usize..20_000, cut in 0usize..20_000) {
            let mut bytes = Vec::new();
            publish(&topic, size, &mut bytes);
            bytes.extend(std::iter::repeat_n(b'x', size));
            let whole = bytes.len();
            bytes.extend_from_slice(&[0xd0, 0]);
            let payload = vec![b'x'; size];
            prop_assert_eq!(packet(&bytes), Ok(Some((Packet::Publish(&payload), whole))));
            prop_assert_eq!(packet(&bytes[..cut % whole]), Ok(None));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(Some((_, used))) = packet(&bytes) {
                prop_assert!((2..=bytes.len()).contains(&used));
            }
        }
    }
}
