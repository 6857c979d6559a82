//! Tests that bytes sent on one side arrive on the other, however the bytes are cut and whenever the socket refuses some.

use crore_net::stream::{Handle, StreamState, TlsFailure};
use proptest::prelude::*;

use crate::pair::{Pair, client, source, suites};

/// Bytes that depend on their position.
fn text(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n % 251) as u8).collect()
}

/// Sends all bytes, and tries refused ones again, as a sender does. Between the attempts the client reads at most `sip` bytes.
fn send_all(pair: &mut Pair, bytes: &[u8], sip: usize) {
    let mut sent = 0;
    while sent < bytes.len() {
        let parts: Vec<&[u8]> = bytes[sent..].chunks(7000).collect();
        let taken = pair.send(&parts).expect("it has TLS");
        sent += taken;
        while sent < bytes.len() {
            pair.client_read_at_most(sip);
            if pair.handle_writable() {
                break;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn content_is_the_same_for_every_cut_of_the_stream(
        suite in 0usize..6,
        cuts in prop::collection::vec(1usize..3000, 1..12),
        lengths in prop::collection::vec(0usize..40_000, 1..5),
        updates: bool,
        sip in 1usize..5000,
    ) {
        let source = source();
        let suite = suites()[suite];
        let mut pair = Pair::new(Handle::new(source.clone()).unwrap(), client(&source, suite));
        pair.complete_handshake(&cuts);
        prop_assert!(!pair.client.is_handshaking());
        let (mut said, mut answered) = (Vec::new(), Vec::new());
        for len in lengths {
            let text = text(len);
            for piece in text.chunks(9000) {
                use std::io::Write;
                pair.client.writer().write_all(piece).unwrap();
                let out = pair.outgoing();
                pair.deliver(&out, &cuts);
            }
            if updates && suite.tls13().is_some() {
                // The client asks for a key update of the server too, which the server's next record brings.
                pair.client.refresh_traffic_keys().unwrap();
            }
            said.extend_from_slice(&text);
            send_all(&mut pair, &text, sip);
            answered.extend_from_slice(&text);
        }
        pair.complete_handshake(&cuts);
        prop_assert_eq!(&pair.error, &None);
        prop_assert_eq!(pair.server_state, StreamState::Open);
        prop_assert!(pair.server_received == said, "{} bytes of {}", pair.server_received.len(), said.len());
        prop_assert!(pair.client_received == answered, "{} bytes of {}", pair.client_received.len(), answered.len());
    }
}

#[test]
fn bytes_that_follow_a_handshake_are_received_as_data() {
    use std::io::Write;
    let source = source();
    for suite in suites() {
        for piece in [40_000, 64_000, 190_000] {
            let mut pair = Pair::new(Handle::new(source.clone()).unwrap(), client(&source, suite));
            pair.client.set_buffer_limit(None);
            let text = text(900_000);
            pair.client.writer().write_all(&text).unwrap();
            pair.complete_handshake(&[piece]);
            for _ in 0..40 {
                pair.run_turn();
            }
            assert_eq!(pair.server_state, StreamState::Open, "{suite:?}");
            assert!(
                pair.server_received == text,
                "{suite:?}: {} bytes",
                pair.server_received.len()
            );
        }
    }
}

#[test]
fn idle_connection_holds_only_its_keys() {
    let source = source();
    for suite in suites() {
        let mut pair = Pair::new(Handle::new(source.clone()).unwrap(), client(&source, suite));
        pair.complete_handshake(&[1000]);
        let waiting = pair.streams.usage().record_bytes;
        assert_eq!(waiting, 0);
        use std::io::Write;
        pair.client.writer().write_all(&text(5000)).unwrap();
        let out = pair.outgoing();
        pair.deliver(&out[..3000], &[3000]);
        assert_eq!(
            pair.streams.usage().record_bytes,
            waiting + 3000,
            "a record in part is held"
        );
        pair.deliver(&out[3000..], &[3000]);
        assert_eq!(pair.streams.usage().record_bytes, waiting, "{suite:?}");
        assert_eq!(pair.streams.usage().connections, 1);
        pair.forget_connection(false);
        assert_eq!(pair.streams.usage().connections, 0);
    }
}

#[test]
fn refused_record_is_sent_completely_before_the_next() {
    let source = source();
    for suite in suites() {
        let mut pair = Pair::new(Handle::new(source.clone()).unwrap(), client(&source, suite));
        pair.complete_handshake(&[1000]);
        let text = text(2_000_000);
        let taken = pair.send(&[&text]).unwrap();
        assert!(taken < text.len(), "a socket does not take two megabytes");
        assert_eq!(
            pair.streams.socket_interest(pair.link, true, false),
            (true, true)
        );
        assert!(!pair.handle_writable(), "nobody has read");
        assert_eq!(pair.send(&[&text[taken..]]), Some(0));
        send_all(&mut pair, &text[taken..], 3000);
        pair.client_read();
        assert!(
            pair.client_received == text,
            "{suite:?}: {} bytes",
            pair.client_received.len()
        );
    }
}

#[test]
fn a_changed_byte_ends_the_connection_with_an_alert() {
    let source = source();
    for suite in suites() {
        let mut pair = Pair::new(Handle::new(source.clone()).unwrap(), client(&source, suite));
        pair.complete_handshake(&[1000]);
        use std::io::Write;
        pair.client.writer().write_all(b"hello").unwrap();
        let mut out = pair.outgoing();
        *out.last_mut().unwrap() ^= 1;
        pair.deliver(&out, &[1000]);
        assert_eq!(
            (pair.server_state, pair.server_received.len()),
            (StreamState::Closed, 0)
        );
        assert_eq!(pair.streams.stats().count_of(TlsFailure::Record), 1);
        pair.client_read();
        let told = pair.error.clone().expect("an alert");
        let wanted = rustls::Error::AlertReceived(rustls::AlertDescription::BadRecordMac);
        assert_eq!(told, wanted);
    }
}

#[test]
fn records_that_no_peer_sends_are_refused() {
    let source = source();
    let wrong: [&[u8]; 4] = [
        // A record that is too long, one of another version, one with unknown content, and a plaintext record.
        &[23, 3, 3, 0x60, 0, 0],
        &[23, 2, 3, 0, 20, 0],
        &[99, 3, 3, 0, 20, 0],
        &[22, 3, 3, 0, 4, 1, 0, 0, 0],
    ];
    for bytes in wrong {
        for suite in suites() {
            let mut pair = Pair::new(Handle::new(source.clone()).unwrap(), client(&source, suite));
            pair.complete_handshake(&[1000]);
            pair.deliver(bytes, &[1]);
            assert_eq!(
                pair.server_state,
                StreamState::Closed,
                "{bytes:?} {suite:?}"
            );
        }
    }
}

#[test]
fn close_notify_of_the_client_ends_receiving_and_is_answered_at_our_close() {
    let source = source();
    for suite in suites() {
        let mut pair = Pair::new(Handle::new(source.clone()).unwrap(), client(&source, suite));
        pair.complete_handshake(&[1000]);
        pair.client.send_close_notify();
        let out = pair.outgoing();
        pair.deliver(&out, &[5]);
        assert_eq!(pair.server_state, StreamState::End);
        // After a peer has sent `close_notify`, it can still receive.
        assert_eq!(pair.send(&[b"bye"]), Some(3));
        pair.streams.shutdown(&mut pair.sockets, pair.link);
        pair.client_read();
        assert_eq!(pair.client_received, b"bye");
        assert!(pair.server_has_ended);
        let state = pair.client.process_new_packets().unwrap();
        assert!(
            state.peer_has_closed(),
            "a close_notify came before the end"
        );
    }
}
