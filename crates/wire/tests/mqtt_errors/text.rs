//! Tests errors in text fields: all text must be UTF-8 without a null character.

use crore_wire::mqtt::Version::{V5, V311};
use crore_wire::mqtt::{Error, Packet};

use crate::{accepted, decode_complete, packet, refused};

#[test]
fn text_is_utf_8_without_null() {
    let connect_with_text =
        |text: &[u8]| [&b"\0\x04MQTT\x04\x02\0\0\0"[..], &[text.len() as u8], text].concat();
    for invalid in [
        &b"\xC3\x28"[..],
        b"\xED\xA0\x80",     // a surrogate
        b"\xC0\x80",         // an overlong null
        b"\xF4\x90\x80\x80", // beyond U+10FFFF
        b"\xFF",
    ] {
        refused(
            V311,
            0x10,
            &connect_with_text(invalid),
            Error::NotUtf8,
            0x81,
        );
    }
    refused(V311, 0x10, &connect_with_text(b"a\0b"), Error::Nul, 0x81);
    // U+FEFF is an ordinary character [MQTT-1.5.4-3], and so are non-characters (section 1.5.4).
    let bytes = packet(0x10, &connect_with_text("\u{FEFF}a\u{FFFF}".as_bytes()));
    let Ok(Packet::Connect(connect)) = decode_complete(V311, &bytes) else {
        panic!("a CONNECT")
    };
    assert_eq!(connect.client_id, "\u{FEFF}a\u{FFFF}");
    refused(V311, 0x30, b"\0\x01\xFF", Error::NotUtf8, 0x81);
    refused(V311, 0x82, b"\0\x01\0\x01\0\0", Error::Nul, 0x81);
    refused(
        V5,
        0x30,
        b"\0\x01t\x07\x26\0\x01\xFF\0\x01v",
        Error::NotUtf8,
        0x81,
    );
    refused(
        V5,
        0x30,
        b"\0\x01t\x07\x26\0\x01n\0\x01\xFF",
        Error::NotUtf8,
        0x81,
    );
}

/// Each `~` stands for a separate text field. The decoder must find damage in any of them.
#[test]
fn no_text_field_goes_unchecked() {
    let table: [(u8, &[u8], usize); 9] = [
        (
            0x10,
            b"\0\x04MQTT\x05\x86\0\0\x04\x15\0\x01~\0\x01~\x08\x03\0\x01~\x08\0\x01~\0\x01~\0\0\0\x01~",
            6,
        ),
        (0x10, b"\0\x04MQTT\x04\x86\0\0\0\x01~\0\x01~\0\0\0\x01~", 3),
        (
            0x20,
            b"\0\0\x10\x12\0\x01~\x1A\0\x01~\x1C\0\x01~\x1F\0\x01~",
            4,
        ),
        (0x30, b"\0\x01~\x07\x26\0\x01~\0\x01~", 3),
        (0x82, b"\0\x01\0\0\x01~\0\0\x01~\0", 2),
        (0xA2, b"\0\x01\0\0\x01~\0\x01~", 2),
        (0x40, b"\0\x01\0\x04\x1F\0\x01~", 1),
        (0xE0, b"\0\x08\x1F\0\x01~\x1C\0\x01~", 2),
        (0xF0, b"\x18\x04\x15\0\x01~", 1),
    ];
    for (first, body, fields) in table {
        accepted(V5, first, body);
        let at: Vec<usize> = (0..body.len()).filter(|&at| body[at] == b'~').collect();
        assert_eq!(at.len(), fields);
        for at in at {
            let mut damaged = body.to_vec();
            damaged[at] = 0xFF;
            refused(V5, first, &damaged, Error::NotUtf8, 0x81);
            damaged[at] = 0;
            refused(V5, first, &damaged, Error::Nul, 0x81);
        }
    }
}
