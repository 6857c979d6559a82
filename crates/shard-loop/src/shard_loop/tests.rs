//! Tests of connections that the poller refuses to watch.

use crore_broker::admission::Admission;
use crore_broker::backend::BackendRefusal;
use crore_broker::settings::Settings;
use crore_broker::{ConnId, Io as _, SocketId};
use crore_net::kernel::{Kernel, acceptor, steering};

use crate::counters::{Counters, Meter};
use crate::shard_io::ShardIo;

/// This number and those after it are no open descriptors.
const UNUSED_DESCRIPTOR: u32 = 900_000;

fn test_io() -> ShardIo<Kernel> {
    let (reports, _inbox) = crore_net::mailbox().unwrap();
    let no_limits = acceptor::Limits::default();
    let admission = Admission::new(&Settings::default(), 7);
    ShardIo {
        transport: Kernel::open(&[], no_limits, &steering::Group::new()).unwrap(),
        tls: None,
        peers: Vec::new(),
        reports,
        ask_verifier: Box::new(|_, _| false),
        ask_backend: Box::new(|_, _| Err(BackendRefusal::Absent)),
        appender: None,
        meter: Meter::new(Counters::new(1, admission), 0),
        client_log: None,
        failed_connections: Vec::new(),
    }
}

#[test]
fn all_connections_that_fail_in_a_turn_are_ended() {
    let mut io = test_io();
    let conns = [3, 4, 5].map(ConnId::from_token);
    io.start_reading(SocketId(UNUSED_DESCRIPTOR), conns[0]);
    io.start_reading(SocketId(UNUSED_DESCRIPTOR + 1), conns[1]);
    io.set_interest(SocketId(UNUSED_DESCRIPTOR + 2), conns[2], true, true);
    assert_eq!(io.failed_connections, conns);
}
