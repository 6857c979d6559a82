//! Tests TLS peers that cause much work: endless key updates, handshakes in tiny pieces, and ends while something waits.

use std::io::Write as _;

use crore_net::Transport as _;
use crore_net::stream::{Handle, StreamState, TlsFailure};
use rustls::{AlertDescription, Error};

use crate::pair::{Pair, client, source, suites};

/// An established connection with this cipher suite.
fn established(suite: usize) -> Pair {
    let source = source();
    let mut pair = Pair::new(
        Handle::new(source.clone()).unwrap(),
        client(&source, suites()[suite]),
    );
    pair.complete_handshake(&[1000]);
    assert!(!pair.client.is_handshaking());
    pair
}

/// The client updates its key up to `most` times, each time after this many records of data, until the server ends the connection. Returns
/// the number of updates.
fn updates(pair: &mut Pair, most: usize, records: usize) -> usize {
    for n in 0..most {
        for _ in 0..records {
            pair.client.writer().write_all(b"x").unwrap();
            let out = pair.outgoing();
            pair.deliver(&out, &[1000]);
        }
        pair.client.refresh_traffic_keys().unwrap();
        let out = pair.outgoing();
        pair.deliver(&out, &[1000]);
        if pair.server_state != StreamState::Open {
            return n;
        }
    }
    most
}

#[test]
fn key_updates_without_data_end_the_connection() {
    for suite in 0..3 {
        for (records, most) in [(0, 32), (1, 32), (8, 32)] {
            let mut pair = established(suite);
            assert_eq!(updates(&mut pair, 200, records), most, "{suite} {records}");
            assert_eq!(pair.server_state, StreamState::Closed);
            assert_eq!(pair.streams.stats().count_of(TlsFailure::Record), 1);
            pair.client_read();
            let told = Error::AlertReceived(AlertDescription::UnexpectedMessage);
            assert_eq!(pair.error, Some(told), "{suite} {records}");
        }
    }
}

#[test]
fn key_updates_with_data_are_unlimited() {
    let mut pair = established(0);
    assert_eq!(updates(&mut pair, 300, 16), 300);
    assert_eq!(pair.server_received.len(), 300 * 16);
    // Each update asked the server for a new key of its own, which the server's next record brings.
    let sent = pair.send(&[b"answer"]);
    assert_eq!(sent, Some(6));
    pair.client_read();
    assert_eq!(
        (pair.client_received.as_slice(), &pair.error),
        (&b"answer"[..], &None)
    );
}

/// The bytes of a flight, in records with this many bytes of content.
fn crumbs(flight: &[u8], content: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = flight;
    while let [kind, major, minor, high, low, body @ ..] = rest {
        let (record, behind) = body.split_at(u16::from_be_bytes([*high, *low]).into());
        for piece in record.chunks(content) {
            out.extend_from_slice(&[*kind, *major, *minor]);
            out.extend_from_slice(&(piece.len() as u16).to_be_bytes());
            out.extend_from_slice(piece);
        }
        rest = behind;
    }
    out
}

#[test]
fn handshake_in_tiny_records_is_refused_and_in_small_ones_accepted() {
    let source = source();
    let handle = Handle::new(source.clone()).unwrap();
    for suite in suites() {
        for cut in [1, 7, 40_000] {
            let mut pair = Pair::new(handle.clone(), client(&source, suite));
            let hello = pair.outgoing();
            pair.deliver(&crumbs(&hello, 32), &[cut]);
            pair.client_read();
            pair.complete_handshake(&[cut]);
            assert!(!pair.client.is_handshaking(), "{suite:?} {cut}");

            // A ClientHello of more than 600 bytes, with padding in an unknown extension.
            let mut pair = Pair::new(handle.clone(), client(&source, suite));
            let mut hello = vec![22, 3, 1, 0, 0, 1, 0, 0x10, 0];
            hello.resize(5 + 4 + 0x1000, 0);
            hello[3..5].copy_from_slice(&(4 + 0x1000_u16).to_be_bytes());
            let hello = crumbs(&hello, 1);
            // This many records are accepted, and not one more.
            pair.deliver(&hello[..6 * 255], &[cut]);
            assert_eq!(pair.server_state, StreamState::Open, "{suite:?} {cut}");
            pair.deliver(&hello[6 * 255..], &[cut]);
            let ended = pair.streams.take_ended().is_some();
            assert!(
                ended || pair.server_state == StreamState::Closed,
                "{suite:?} {cut}"
            );
            assert_eq!(pair.streams.stats().count_of(TlsFailure::TooLong), 1);
            assert_eq!(pair.streams.usage().unfinished_handshakes, 0);
        }
    }
}

#[test]
fn client_without_certificate_may_send_one_record_before_an_answer() {
    let source = source();
    let handle = Handle::new(source.clone()).unwrap();
    let mut pair = Pair::new(handle, client(&source, suites()[0]));
    let before = pair.streams.held_bytes();
    // Records of a message that never completes.
    let record = [
        &[22, 3, 1, 0x10, 0][..],
        &[1, 0, 0xff, 0xff],
        &[0; 0x1000 - 4],
    ]
    .concat();
    let mut most = 0;
    for piece in record.repeat(8).chunks(700) {
        pair.deliver(piece, &[700]);
        most = most.max(pair.streams.held_bytes() - before);
        if pair.server_state != StreamState::Open {
            break;
        }
    }
    assert_eq!(pair.server_state, StreamState::Closed);
    assert_eq!(pair.streams.stats().count_of(TlsFailure::TooLong), 1);
    // Twice a record (since vectors grow by doubling), and the handshake itself.
    assert!(most < 48 << 10, "{most} bytes");
}

/// Whether the poller reports anything.
fn reported(pair: &mut Pair) -> bool {
    pair.sockets.wait(Some(0)).expect("a poller") > 0
}

#[test]
fn client_that_ended_its_side_during_a_waiting_handshake_is_not_reported_as_closed() {
    let source = source();
    let mut pair = Pair::new(
        Handle::new(source.clone()).unwrap(),
        client(&source, suites()[0]),
    );
    let hello = pair.outgoing();
    pair.write_to_socket(&hello);
    pair.server_receive();
    // The server's turn (one run of its event loop) ends before the handshake was continued.
    pair.streams.end_turn(&mut pair.sockets);
    pair.end_client_stream();
    assert!(
        !reported(&mut pair),
        "it is over for whoever looks, and unread"
    );
    // In the next turn the client gets its answer, and the server reads the client's end.
    pair.run_handshakes();
    pair.client_read();
    assert!(reported(&mut pair));
    pair.server_receive();
    assert_eq!(pair.server_state, StreamState::End);
}
