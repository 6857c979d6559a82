//! Tests the opening handshake: keys, extension offers by RFC 7692 §7.1, and subprotocols.

use crore_wire::websocket::handshake::{
    accept_key, choose_subprotocol, client_key, negotiate_deflate, write_client_request,
};
use proptest::prelude::*;

#[test]
fn the_accept_key_is_the_rfc_s() {
    let accept = accept_key(b"dGhlIHNhbXBsZSBub25jZQ==").unwrap();
    assert_eq!(&accept, b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    assert_eq!(
        &client_key(*b"the sample nonce"),
        b"dGhlIHNhbXBsZSBub25jZQ=="
    );
    // The unused bits of the last character may be set.
    assert!(accept_key(b"dGhlIHNhbXBsZSBub25jZR==").is_some());
    let invalid: [&[u8]; 7] = [
        b"",
        b"dGhlIHNhbXBsZSBub25jZQ",
        b"dGhlIHNhbXBsZSBub25j",
        b"dGhlIHNhbXBsZSBub25jZWU=",
        b"dGhlIHNhbXBsZSBub25jZWVl",
        b"dGhlIHNhbXBsZSBub25jZ*==",
        b"dGhlIHNhbXBsZSBub25jZQ== ",
    ];
    for key in invalid {
        assert_eq!(accept_key(key), None, "{key:?}");
    }
}

fn answer(values: &[&str]) -> Option<String> {
    let answer = negotiate_deflate(values.iter().map(|value| value.as_bytes()))?;
    let mut out = Vec::new();
    answer.write(&mut out);
    Some(String::from_utf8(out).unwrap())
}

#[test]
fn offers_are_accepted_only_if_they_can_be_honoured() {
    const PLAIN: &str =
        "permessage-deflate; server_no_context_takeover; client_no_context_takeover";
    let window = format!("{PLAIN}; server_max_window_bits=15");
    let plain = Some(PLAIN);
    let table: &[(&[&str], Option<&str>)] = &[
        (&[], None),
        (&[""], None),
        (&["permessage-deflate"], plain),
        (&["permessage-deflate; client_max_window_bits"], plain),
        (&["permessage-deflate;client_max_window_bits=8"], plain),
        (
            &["permessage-deflate ; client_max_window_bits = \"12\" "],
            plain,
        ),
        (&["permessage-deflate; server_no_context_takeover"], plain),
        (&["permessage-deflate; client_no_context_takeover"], plain),
        (
            &["permessage-deflate; server_max_window_bits=15"],
            Some(&window),
        ),
        (
            &["permessage-deflate; server_max_window_bits=\"15\""],
            Some(&window),
        ),
        (&["permessage-deflate; server_max_window_bits=14"], None),
        (&["permessage-deflate; server_max_window_bits=8"], None),
        (&["permessage-deflate; server_max_window_bits"], None),
        (&["permessage-deflate; server_max_window_bits="], None),
        (&["permessage-deflate; server_max_window_bits=015"], None),
        (&["permessage-deflate; server_max_window_bits=16"], None),
        (&["permessage-deflate; client_max_window_bits=7"], None),
        (&["permessage-deflate; client_max_window_bits=16"], None),
        (&["permessage-deflate; client_max_window_bits=+9"], None),
        (
            &["permessage-deflate; client_max_window_bits; client_max_window_bits"],
            None,
        ),
        (&["permessage-deflate; server_no_context_takeover=1"], None),
        (&["permessage-deflate; unknown"], None),
        (&["permessage-deflate;"], None),
        (&["x-webkit-deflate-frame"], None),
        (&["permessage-deflate2"], None),
        // If one offer is declined, the next one may be accepted.
        (
            &["permessage-deflate; server_max_window_bits=10, permessage-deflate"],
            plain,
        ),
        (
            &["x-other", "permessage-deflate; client_max_window_bits"],
            plain,
        ),
        (
            &["x-other; a=\",permessage-deflate;\\\"\", permessage-deflate"],
            plain,
        ),
        (&["x-other; a=\", permessage-deflate"], None),
    ];
    for (values, expected) in table {
        assert_eq!(answer(values).as_deref(), *expected, "{values:?}");
    }
}

#[test]
fn the_client_s_first_known_subprotocol_is_chosen() {
    let supported = ["ws+meta.nchan", "other"];
    let choose = |values: &[&'static str]| {
        choose_subprotocol(values.iter().map(|value| value.as_bytes()), &supported)
    };
    assert_eq!(choose(&["x, ws+meta.nchan"]), Some("ws+meta.nchan"));
    assert_eq!(choose(&["x", "other , ws+meta.nchan"]), Some("other"));
    assert_eq!(choose(&["WS+META.NCHAN"]), None);
    assert_eq!(choose(&["", ","]), None);
    assert_eq!(choose(&[]), None);
}

#[test]
fn client_request_is_a_complete_head() {
    let mut out = Vec::new();
    let key = client_key(*b"the sample nonce");
    write_client_request(&mut out, "h:1", "/sub/a", &key, &[("Origin", "http://h:1")]);
    let expected = "GET /sub/a HTTP/1.1\r\nHost: h:1\r\nUpgrade: websocket\r\n\
        Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nOrigin: http://h:1\r\n\r\n";
    assert_eq!(core::str::from_utf8(&out).unwrap(), expected);
}

proptest! {
    #[test]
    fn no_header_panics(
        values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..3),
        key in prop::collection::vec(any::<u8>(), 0..30),
    ) {
        negotiate_deflate(values.iter().map(Vec::as_slice));
        choose_subprotocol(values.iter().map(Vec::as_slice), &["a"]);
        accept_key(&key);
    }

    #[test]
    fn no_offer_panics(tail in "[;,= \"\\\\a-z0-9_]{0,40}") {
        let value = format!("permessage-deflate{tail}");
        negotiate_deflate([value.as_bytes()].into_iter());
    }
}
