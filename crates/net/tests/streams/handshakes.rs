//! Tests how TLS connections begin: protocol detection, resumption, refusals, replaced certificates, and the order of handshakes.

use crore_net::Transport as _;
use crore_net::stream::{Clients, ConfigError, Handle, Limits, Source, StreamState, TlsFailure};
use crore_net::transport::Link;
use proptest::prelude::*;
use rustls::HandshakeKind;

use crate::pair::{LIMITS, Pair, client, source, suites};

fn under_way(pair: &Pair) -> usize {
    pair.streams.usage().unfinished_handshakes as usize
}

/// The reasons reported for ended connections. Also checks that each was counted.
fn troubles(pair: &mut Pair) -> Vec<TlsFailure> {
    let told: Vec<_> = pair
        .streams
        .take_failures()
        .map(|(trouble, _)| trouble)
        .collect();
    let stats = pair.streams.stats();
    let counted = TlsFailure::ALL
        .iter()
        .copied()
        .filter(|trouble| stats.count_of(*trouble) > 0);
    assert_eq!(told, counted.collect::<Vec<_>>());
    told
}

#[test]
fn ticket_is_valid_on_every_shard_and_after_a_new_certificate() {
    let source = source();
    for suite in suites() {
        let handle = Handle::new(source.clone()).unwrap();
        let config = client(&source, suite);
        let kind_on_a_new_shard = || {
            let mut pair = Pair::new(handle.clone(), config.clone());
            pair.complete_handshake(&[500]);
            assert!(!pair.client.is_handshaking());
            let stats = pair.streams.stats();
            (
                pair.client.handshake_kind().unwrap(),
                stats.handshakes,
                stats.resumed,
            )
        };
        assert_eq!(kind_on_a_new_shard(), (HandshakeKind::Full, 1, 0));
        assert_eq!(kind_on_a_new_shard(), (HandshakeKind::Resumed, 0, 1));
        handle.replace(crate::pair::source()).unwrap();
        assert_eq!(kind_on_a_new_shard(), (HandshakeKind::Resumed, 0, 1));
    }
}

#[test]
fn replaced_certificate_is_used_from_the_next_handshake_on() {
    let (old, new) = (source(), source());
    let handle = Handle::new(old.clone()).unwrap();
    let mut first = Pair::new(handle.clone(), client(&old, suites()[0]));
    first.complete_handshake(&[500]);
    handle.replace(new.clone()).unwrap();
    let mut second = Pair::new(handle.clone(), client(&new, suites()[0]));
    second.complete_handshake(&[500]);
    assert!(!second.client.is_handshaking());
    first.send(&[b"still here"]);
    first.client_read();
    assert_eq!(first.client_received, b"still here");
    let mut third = Pair::new(handle, client(&old, suites()[0]));
    third.complete_handshake(&[500]);
    assert!(
        third.error.is_some(),
        "who trusts the old one alone is not content"
    );
    assert_eq!(third.server_state, StreamState::Closed);
}

#[test]
fn unusable_certificate_changes_nothing() {
    let (good, other) = (source(), source());
    let handle = Handle::new(good.clone()).unwrap();
    let bad = [
        Source {
            certificate: b"no PEM".to_vec(),
            ..good.clone()
        },
        Source {
            key: b"no PEM".to_vec(),
            ..good.clone()
        },
        Source {
            key: other.key.clone(),
            ..good.clone()
        },
        Source {
            clients: Some((b"no PEM".to_vec(), Clients::Required)),
            ..good.clone()
        },
    ];
    for source in bad {
        let refused = handle.replace(source.clone());
        assert!(refused.is_err(), "{source:?}");
        assert_eq!(Handle::new(source).map(|_| ()), refused);
    }
    let pair = Handle::new(Source {
        key: other.key,
        ..good.clone()
    });
    assert!(matches!(pair, Err(ConfigError::Pair(_))));
    let mut pair = Pair::new(handle, client(&good, suites()[0]));
    pair.complete_handshake(&[500]);
    assert!(!pair.client.is_handshaking());
}

#[test]
fn plain_bytes_pass_unless_tls_is_required() {
    let source = source();
    let handle = Handle::new(source.clone()).unwrap();
    let mut pair = Pair::new(handle.clone(), client(&source, suites()[0]));
    pair.deliver(b"GET / HTTP/1.1\r\n\r\n", &[1]);
    assert_eq!(pair.server_received, b"GET / HTTP/1.1\r\n\r\n");
    assert_eq!(pair.send(&[b"plain"]), None, "the caller writes itself");
    let required = Limits {
        required: true,
        ..LIMITS
    };
    let mut pair = Pair::with_limits(handle, client(&source, suites()[0]), required);
    pair.deliver(b"GET / HTTP/1.1\r\n\r\n", &[100]);
    assert_eq!(
        (pair.server_state, pair.server_received.len()),
        (StreamState::Closed, 0)
    );
    assert_eq!(pair.streams.stats().count_of(TlsFailure::Plain), 1);
}

#[test]
fn proxy_header_is_passed_on_and_the_protocol_after_it_is_detected() {
    let source = source();
    let handle = Handle::new(source.clone()).unwrap();
    let proxied = Limits {
        proxied: true,
        ..LIMITS
    };
    let header = [&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"[..], &[22; 12]].concat();
    for cut in [1, 16, 27, 28, 29, 1000] {
        let mut pair = Pair::with_limits(handle.clone(), client(&source, suites()[0]), proxied);
        let hello = pair.outgoing();
        pair.deliver(&[&header[..], &hello].concat(), &[cut]);
        pair.client_read();
        pair.complete_handshake(&[cut]);
        use std::io::Write;
        pair.client.writer().write_all(b"hello").unwrap();
        let out = pair.outgoing();
        pair.deliver(&out, &[cut]);
        assert_eq!(
            pair.server_received,
            [&header[..], b"hello"].concat(),
            "{cut}"
        );
        assert_eq!(pair.streams.stats().handshakes, 1);

        let mut plain = Pair::with_limits(handle.clone(), client(&source, suites()[0]), proxied);
        let request = [&header[..], b"GET / HTTP/1.1\r\n\r\n"].concat();
        plain.deliver(&request, &[cut]);
        assert_eq!(plain.server_received, request, "{cut}");

        let required = Limits {
            required: true,
            ..proxied
        };
        let mut refused = Pair::with_limits(handle.clone(), client(&source, suites()[0]), required);
        refused.deliver(&request, &[cut]);
        assert_eq!(refused.server_state, StreamState::Closed, "{cut}");
        assert_eq!(troubles(&mut refused), [TlsFailure::Plain]);
    }
    // Without the PROXY header the bytes do not count as TLS, and the caller refuses them.
    let mut pair = Pair::with_limits(handle, client(&source, suites()[0]), proxied);
    let hello = pair.outgoing();
    pair.deliver(&hello, &[1000]);
    assert_eq!(
        (pair.server_received.len(), under_way(&pair)),
        (hello.len(), 0)
    );
}

#[test]
fn garbage_is_refused_with_an_alert() {
    let source = source();
    let handle = Handle::new(source.clone()).unwrap();
    let garbage: [&[u8]; 3] = [
        &[22, 3, 1, 0, 5, 1, 0, 0, 1, 9],
        &[22, 3, 1, 0xff, 0xff, 1],
        &[22, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9],
    ];
    for bytes in garbage {
        let mut pair = Pair::new(handle.clone(), client(&source, suites()[0]));
        pair.deliver(bytes, &[1]);
        assert_eq!(pair.server_state, StreamState::Closed, "{bytes:?}");
        assert_eq!(pair.streams.stats().count_of(TlsFailure::Garbage), 1);
        assert_eq!(under_way(&pair), 0);
        assert_eq!(troubles(&mut pair), [TlsFailure::Garbage]);
    }
}

#[test]
fn failed_handshake_is_counted_by_its_reason() {
    let (good, other) = (source(), source());
    let suites = suites();
    let asks = Source {
        clients: Some((good.certificate.clone(), Clients::Required)),
        ..good.clone()
    };
    let modern = Source {
        only_13: true,
        h2: false,
        ..good.clone()
    };
    let cases = [
        (&good, client(&other, suites[0]), TlsFailure::Distrust),
        (&good, client(&other, suites[3]), TlsFailure::Distrust),
        (&asks, client(&good, suites[0]), TlsFailure::Certificate),
        (&asks, client(&good, suites[3]), TlsFailure::Certificate),
        (&modern, client(&good, suites[3]), TlsFailure::Incompatible),
    ];
    for (source, client, trouble) in cases {
        let mut pair = Pair::new(Handle::new(source.clone()).unwrap(), client);
        pair.complete_handshake(&[500]);
        assert_eq!(troubles(&mut pair), [trouble]);
        assert_eq!(
            (under_way(&pair), pair.server_state),
            (0, StreamState::Closed)
        );
        let stats = pair.streams.stats();
        assert_eq!((stats.handshakes, stats.count_of(trouble)), (0, 1));
    }
}

#[test]
fn aborted_handshakes_are_counted_as_left_by_the_client_or_as_too_slow() {
    let source = source();
    let handle = Handle::new(source.clone()).unwrap();
    let begun = || {
        let mut pair = Pair::new(handle.clone(), client(&source, suites()[0]));
        let hello = pair.outgoing();
        pair.deliver(&hello[..40], &[40]);
        assert_eq!(under_way(&pair), 1);
        pair
    };
    let mut left = begun();
    left.client_hang_up();
    assert_eq!(troubles(&mut left), [TlsFailure::Gone]);
    assert_eq!(under_way(&left), 0);
    left.forget_connection(true);
    assert_eq!(
        left.streams.stats().count_of(TlsFailure::Slow),
        0,
        "it is counted once"
    );
    let mut late = begun();
    late.forget_connection(true);
    assert_eq!(troubles(&mut late), [TlsFailure::Slow]);
    assert_eq!(under_way(&late), 0);
}

#[test]
fn endless_flight_of_a_client_is_refused() {
    let source = source();
    let handle = Handle::new(source.clone()).unwrap();
    // Records of a handshake message that never completes.
    let record = [
        &[22, 3, 1, 0x40, 0][..],
        &[1, 0xff, 0xff, 0xff],
        &[0; (1 << 14) - 4],
    ]
    .concat();
    // In one piece the message is longer than anything that a client sends before an answer.
    for (cut, trouble) in [(100_000, TlsFailure::TooLong), (5_000, TlsFailure::Garbage)] {
        let mut pair = Pair::new(handle.clone(), client(&source, suites()[0]));
        pair.deliver(&record.repeat(8), &[cut]);
        let ended = pair.streams.take_ended().is_some();
        assert!(ended || pair.server_state == StreamState::Closed, "{cut}");
        assert_eq!(troubles(&mut pair), [trouble], "{cut}");
        assert_eq!(under_way(&pair), 0);
    }
}

#[test]
fn stalled_handshake_is_ended_by_later_ones() {
    use std::os::fd::IntoRawFd;
    use std::os::unix::net::UnixStream;
    let source = source();
    let handle = Handle::new(source.clone()).unwrap();
    let mut pair = Pair::new(handle, client(&source, suites()[0]));
    let hello = pair.outgoing();
    pair.deliver(&hello[..40], &[40]);
    let mut others = Vec::new();
    for n in 0..LIMITS.handshakes_max {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        std::io::Write::write_all(&mut theirs, &hello[..40]).unwrap();
        let link = Link(ours.into_raw_fd() as u32);
        pair.streams.add_connection(link);
        let mut buffer = vec![0; crore_net::stream::BUFFER_MIN];
        let token = 100 + n as u64;
        pair.streams
            .receive(&mut pair.sockets, link, token, &mut buffer);
        others.push((link, theirs));
    }
    assert_eq!(pair.streams.take_ended(), Some(crate::pair::TOKEN));
    assert_eq!(pair.streams.take_ended(), None);
    assert_eq!(under_way(&pair), LIMITS.handshakes_max);
    assert_eq!(pair.streams.stats().count_of(TlsFailure::Evicted), 1);
    for (link, _theirs) in others {
        pair.streams.forget(&mut pair.sockets, link, false);
        pair.sockets.close(link);
    }
    assert_eq!(under_way(&pair), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_flight_of_a_client_panics(
        suite in 0usize..6,
        flight in 0usize..3,
        changes in prop::collection::vec((0usize..4000, any::<u8>()), 0..6),
        cut_off in prop::option::of(0usize..600),
        behind in prop::collection::vec(any::<u8>(), 0..200),
        cuts in prop::collection::vec(1usize..700, 1..5),
    ) {
        let source = source();
        let handle = Handle::new(source.clone()).unwrap();
        let mut pair = Pair::new(handle, client(&source, suites()[suite]));
        for n in 0..3 {
            let mut out = pair.outgoing();
            if n == flight {
                for (place, byte) in &changes {
                    let place = place % out.len().max(1);
                    if let Some(at) = out.get_mut(place) {
                        *at = *byte;
                    }
                }
                out.truncate(cut_off.unwrap_or(out.len()));
                out.extend_from_slice(&behind);
                if n == 0 && !out.is_empty() {
                    out[0] = 22;
                }
            }
            pair.deliver(&out, &cuts);
            pair.client_read();
            if pair.server_state != StreamState::Open || pair.error.is_some() {
                break;
            }
        }
    }
}
