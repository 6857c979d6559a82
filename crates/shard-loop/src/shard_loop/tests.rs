//! Tests of connections that the poller refuses to watch.

use crore_broker::admission::Admission;
use crore_broker::settings::Settings;
use crore_broker::{ConnId, Io as _, SocketId};
use crore_net::kernel::{Kernel, acceptor, steering};

use crate::counters::{Counters, Meter};
use crate::shard_io::ShardIo;

/// A number that is no open descriptor; nor are the numbers after it.
const NONE: u32 = 900_000;

fn sockets() -> ShardIo<Kernel> {
    let (reports, _inbox) = crore_net::mailbox().unwrap();
    let nobody = acceptor::Limits::default();
    let admission = Admission::new(&Settings::default(), 7);
    ShardIo {
        transport: Kernel::open(&[], nobody, &steering::Group::new()).unwrap(),
        tls: None,
        peers: Vec::new(),
        reports,
        ask_verifier: Box::new(|_, _| false),
        appender: None,
        meter: Meter::new(Counters::new(1, admission), 0),
        client_log: None,
        failed: Vec::new(),
    }
}

#[test]
fn all_connections_that_fail_in_a_turn_are_ended() {
    let mut sockets = sockets();
    let conns = [3, 4, 5].map(ConnId::from_token);
    sockets.open(SocketId(NONE), conns[0]);
    sockets.open(SocketId(NONE + 1), conns[1]);
    sockets.interest(SocketId(NONE + 2), conns[2], true, true);
    assert_eq!(sockets.failed, conns);
}
