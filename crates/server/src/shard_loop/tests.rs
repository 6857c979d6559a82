//! What becomes of connections for which the poller has no place.

use super::*;
use crate::access::{Desk, checks};
use crate::board::{Board, Meter};

/// Descriptors that no table of a test has.
const NONE: u32 = 900_000;

fn sockets() -> Sockets {
    let (_, asker) = Desk::start(checks(None).unwrap(), Vec::new()).unwrap();
    let (reports, _inbox) = crore_net::mailbox().unwrap();
    Sockets {
        driver: Driver::new(4).unwrap(),
        tls: None,
        peers: Vec::new(),
        reports,
        asker,
        meter: Meter::new(Board::new(1), 0),
        failed: Vec::new(),
    }
}

#[test]
fn all_connections_that_fail_in_a_turn_are_ended() {
    let mut sockets = sockets();
    let conns = [3, 4, 5].map(ConnId::from_token);
    sockets.open(Link(NONE), conns[0]);
    sockets.open(Link(NONE + 1), conns[1]);
    sockets.interest(Link(NONE + 2), conns[2], true, true);
    assert_eq!(sockets.failed, conns);
}
