//! Tests written frames: minimal headers, masking by RFC 6455 §5.3, and Close frames that fit.

use crore_wire::websocket::frame::{
    HEADER_MAX, Opcode, apply_mask, header, write_close, write_frame, write_header, write_masked,
};
use crore_wire::websocket::receive::{Config, Event, Role, next};
use proptest::prelude::*;

proptest! {
    #[test]
    fn masking_is_the_rfc_s_for_every_offset(
        data in prop::collection::vec(any::<u8>(), 0..70),
        mask in any::<[u8; 4]>(),
        offset in 0_usize..1000,
    ) {
        let mut fast = data.clone();
        apply_mask(&mut fast, mask, offset);
        let slow: Vec<u8> =
            data.iter().enumerate().map(|(at, byte)| byte ^ mask[(at + offset) % 4]).collect();
        prop_assert_eq!(&fast, &slow);
        apply_mask(&mut fast, mask, offset);
        prop_assert_eq!(fast, data);
    }

    #[test]
    fn masking_in_pieces_equals_masking_at_once(
        data in prop::collection::vec(any::<u8>(), 0..70),
        mask in any::<[u8; 4]>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let cut = cut.index(data.len() + 1);
        let (mut masked_at_once, mut pieces) = (data.clone(), data);
        apply_mask(&mut masked_at_once, mask, 0);
        apply_mask(&mut pieces[..cut], mask, 0);
        apply_mask(&mut pieces[cut..], mask, cut);
        prop_assert_eq!(masked_at_once, pieces);
    }

    #[test]
    fn frames_decode_to_themselves(
        data in prop::collection::vec(any::<u8>(), 0..300),
        mask in any::<[u8; 4]>(),
    ) {
        let mut config = Config { role: Role::Server, message_bytes: 300, deflate: false };
        let mut out = Vec::new();
        write_masked(&mut out, Opcode::Binary, &data, mask);
        let len = out.len();
        let mut partial = None;
        let step = next(&mut partial, &mut out, &config).unwrap();
        prop_assert_eq!((step.consumed, step.event), (len, Some(Event::Binary(&data))));
        config.role = Role::Client;
        out.clear();
        write_frame(&mut out, Opcode::Binary, &data);
        let step = next(&mut partial, &mut out, &config).unwrap();
        prop_assert_eq!(step.event, Some(Event::Binary(&data)));
    }
}

#[test]
fn lengths_take_their_shortest_form() {
    let table: &[(usize, &[u8])] = &[
        (0, &[0x82, 0]),
        (125, &[0x82, 125]),
        (126, &[0x82, 126, 0, 126]),
        (65_535, &[0x82, 126, 0xFF, 0xFF]),
        (65_536, &[0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0]),
    ];
    for (len, expected) in table {
        let (bytes, size) = header(Opcode::Binary, false, *len);
        assert_eq!(&bytes[..size], *expected);
    }
    let mut out = Vec::new();
    write_header(
        &mut out,
        Opcode::Text,
        false,
        true,
        65_536,
        Some([1, 2, 3, 4]),
    );
    assert_eq!(out, [0x41, 0xFF, 0, 0, 0, 0, 0, 1, 0, 0, 1, 2, 3, 4]);
    assert_eq!(out.len(), HEADER_MAX);
}

#[test]
fn a_long_close_reason_is_cut_at_a_character() {
    let mut out = Vec::new();
    write_close(&mut out, 1000, "bye");
    assert_eq!(out, b"\x88\x05\x03\xE8bye");
    out.clear();
    write_close(&mut out, 4410, &"\u{20ac}".repeat(50));
    assert_eq!(out.len(), 2 + 2 + 123);
    out.clear();
    write_close(&mut out, 4410, &format!("x{}", "\u{20ac}".repeat(50)));
    assert_eq!(out.len(), 2 + 2 + 121);
    assert!(core::str::from_utf8(&out[4..]).is_ok());
}

#[test]
fn opcodes_round_trip_through_their_bits() {
    let opcodes: Vec<u8> = (0..=255)
        .filter(|&bits| Opcode::from_repr(bits).is_some())
        .collect();
    assert_eq!(opcodes, [0, 1, 2, 8, 9, 10]);
    for bits in opcodes {
        let opcode = Opcode::from_repr(bits).unwrap();
        assert_eq!(opcode.bits(), bits);
        assert_eq!(opcode.is_control(), bits >= 8);
    }
}
