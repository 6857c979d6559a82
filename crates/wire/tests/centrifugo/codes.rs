//! Tests the tables of codes.

use crore_wire::centrifugo::ErrorReply;
use crore_wire::centrifugo::codes::{Disconnect, ErrorCode, Unsubscribe};

#[test]
fn error_codes_are_100_to_112_and_two_are_temporary() {
    let codes: Vec<u32> = ErrorCode::ALL.iter().map(|error| error.code).collect();
    assert_eq!(codes, Vec::from_iter(100..=112));
    let temporary = ErrorCode::ALL.iter().filter(|error| error.temporary());
    let temporary: Vec<u32> = temporary.map(|error| error.code).collect();
    assert_eq!(temporary, [100, 111]);
    let reply = ErrorReply::from(ErrorCode::TOO_MANY_REQUESTS);
    assert_eq!((reply.code, reply.message), (111, "too many requests"));
    assert!(reply.temporary);
}

#[test]
fn clients_reconnect_after_codes_below_3500_only() {
    for disconnect in Disconnect::ALL {
        assert_eq!(
            Disconnect::reconnects(disconnect.code),
            disconnect.code < 3500
        );
        assert_eq!(Disconnect::of(disconnect.code), Some(*disconnect));
        // A close frame of WebSocket has no room for more.
        assert!(disconnect.text.len() < 124 && !disconnect.meaning.is_empty());
    }
    for (code, reconnects) in [(3499, true), (3500, false), (3999, false), (4000, true)] {
        assert_eq!(Disconnect::reconnects(code), reconnects, "{code}");
    }
    for (code, reconnects) in [(4499, true), (4500, false), (4999, false), (5000, true)] {
        assert_eq!(Disconnect::reconnects(code), reconnects, "{code}");
    }
    assert_eq!(Disconnect::of(3002), None);
}

#[test]
fn clients_resubscribe_after_codes_from_2500_on() {
    let codes = Unsubscribe::ALL.iter();
    let codes: Vec<(u32, bool)> = codes
        .map(|code| (code.code, Unsubscribe::resubscribes(code.code)))
        .collect();
    assert_eq!(codes, [(2000, false), (2500, true), (2501, true)]);
    assert_eq!(
        Unsubscribe::EXPIRED.to_string(),
        "2501: subscription expired"
    );
}
