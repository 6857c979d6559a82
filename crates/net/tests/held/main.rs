//! Tests the counted memory of connections with TLS: it matches the memory that they hold. Bytes that come in small pieces cost work in
//! proportion to the bytes, not to the pieces.

#[allow(dead_code, reason = "other tests need the rest of it")]
#[path = "../../../broker/tests/allocations/counting.rs"]
mod counting;
#[allow(dead_code, reason = "other tests need the rest of it")]
#[path = "../streams/pair.rs"]
mod pair;

use std::io::Write as _;

use counting::{allocations, grown_bytes};
use crore_net::stream::{Clients, Handle, Source, StreamState};
use pair::{Pair, client, source, suites};

/// Allowed difference between the count and the allocator's figure for one connection. The memory that `rustls` holds for a handshake
/// depends on version, cipher and the client's messages.
const OFF_BYTES: i64 = 4 << 10;

/// The growth of the counted memory and of the heap after the server received these bytes in pieces of `cut`.
fn brought(pair: &mut Pair, bytes: &[u8], cut: usize) -> (i64, i64) {
    let before = pair.streams.held_bytes() as i64;
    let grown = grown_bytes(|| pair.deliver(bytes, &[cut]));
    (pair.streams.held_bytes() as i64 - before, grown)
}

#[test]
fn bytes_of_a_handshake_are_counted() {
    let source = source();
    // The first handshake allocates the shard's tables, which are not charged to it.
    let mut first = Pair::new(
        Handle::new(source.clone()).unwrap(),
        client(&source, suites()[0]),
    );
    first.complete_handshake(&[1000]);
    let asks = Source {
        clients: Some((source.certificate.clone(), Clients::Optional)),
        ..source.clone()
    };
    for settings in [&source, &asks] {
        let handle = Handle::new(settings.clone()).unwrap();
        for suite in suites() {
            let mut pair = Pair::new(handle.clone(), client(&source, suite));
            let hello = pair.outgoing();
            let (head, rest) = hello.split_at(hello.len() / 2);
            for part in [head, rest] {
                let (counted, grown) = brought(&mut pair, part, 1000);
                assert!(
                    (counted - grown).abs() < OFF_BYTES,
                    "{suite:?}: {counted}, not {grown}"
                );
            }
            assert!(pair.streams.held_bytes() > 8 << 10);
            pair.complete_handshake(&[1000]);
            assert!(!pair.client.is_handshaking(), "{suite:?}");
            let rows = pair.streams.held_bytes();
            assert!(
                rows < 2 << 10,
                "{suite:?}: {rows} bytes are held when it is over"
            );
        }
    }
}

#[test]
fn memory_of_an_aborted_handshake_is_released_from_the_count() {
    let source = source();
    let handle = Handle::new(source.clone()).unwrap();
    for how in 0..3 {
        let mut pair = Pair::new(handle.clone(), client(&source, suites()[0]));
        let hello = pair.outgoing();
        pair.deliver(&hello[..40], &[40]);
        assert!(pair.streams.held_bytes() > 8 << 10);
        match how {
            0 => pair.client_hang_up(),
            1 => pair.deliver(&[0xff; 5000], &[5000]),
            _ => pair.forget_connection(false),
        }
        let rows = pair.streams.held_bytes();
        assert!(rows < 2 << 10, "{how}: {rows} bytes");
    }
}

#[test]
fn record_in_pieces_is_not_copied_for_each_piece() {
    let source = source();
    for suite in suites() {
        let mut pair = Pair::new(Handle::new(source.clone()).unwrap(), client(&source, suite));
        pair.complete_handshake(&[1000]);
        pair.client.writer().write_all(&[7; 16_000]).unwrap();
        let record = pair.outgoing();
        let mut most = 0;
        let count = allocations(|| {
            for byte in &record[..record.len() - 1] {
                pair.deliver(&[*byte], &[1]);
                most = most.max(pair.streams.usage().record_bytes);
            }
        });
        assert!(
            count < 64,
            "{suite:?}: {count} allocations for {} pieces",
            record.len()
        );
        assert!(most <= record.len(), "{suite:?}: {most} bytes are held");
        pair.deliver(&record[record.len() - 1..], &[1]);
        assert_eq!(
            (pair.server_state, pair.server_received.len()),
            (StreamState::Open, 16_000)
        );
        assert_eq!(pair.streams.usage().record_bytes, 0);
    }
}
