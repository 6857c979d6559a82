//! Tests steering of connections: a full shard gets no more connections, no waiting one is lost, and if all shards are full they share the
//! connections again.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use crore_net::Fd;
use crore_net::kernel::acceptor::{Acceptor, Limits};
use crore_net::kernel::driver::Driver;
use crore_net::kernel::socket;
use crore_net::kernel::steering::{Group, Level};
use crore_net::transport::AcceptResult;

const ROOM: u32 = 320;
/// Number of clients. It is large enough that no shard is left without connections by chance.
const CROWD: usize = 150;

struct Shard {
    acceptor: Acceptor,
    driver: Driver,
    open: Vec<Fd>,
}

impl Shard {
    fn new(addr: SocketAddr, group: &Arc<Group>) -> Shard {
        let limits = Limits {
            backlog: 1_000,
            connections_max: ROOM,
            ..Limits::default()
        };
        let mut driver = Driver::new(4).unwrap();
        let acceptor = Acceptor::open(&[addr], limits, group, &mut driver).unwrap();
        Shard {
            acceptor,
            driver,
            open: Vec::new(),
        }
    }

    /// Accepts all connections in the queue. Returns their number.
    fn accept_all(&mut self) -> usize {
        let before = self.open.len();
        while let AcceptResult::Connection(link, _) = self.acceptor.accept(0, 1, |_| Vec::new()) {
            self.open.push(Fd(link.0));
        }
        self.open.len() - before
    }

    /// Reports this many open connections. Returns the resulting level.
    fn report_connections(&mut self, connections: u32) -> Level {
        let told = self
            .acceptor
            .adjust_accepting(&mut self.driver, connections, 1);
        told.unwrap();
        self.acceptor.level()
    }
}

fn shards(count: usize) -> (Vec<Shard>, SocketAddr) {
    let group = Group::new();
    let first = Shard::new("127.0.0.1:0".parse().unwrap(), &group);
    let addr = first.acceptor.listeners()[0].local_addr().unwrap();
    let mut shards = vec![first];
    shards.extend((1..count).map(|_| Shard::new(addr, &group)));
    (shards, addr)
}

fn crowd(addr: SocketAddr) -> Vec<TcpStream> {
    let open = || TcpStream::connect(addr).unwrap();
    (0..CROWD).map(|_| open()).collect()
}

fn accepted_by_shard(shards: &mut [Shard]) -> Vec<usize> {
    shards.iter_mut().map(Shard::accept_all).collect()
}

#[test]
fn full_shard_gets_no_further_connections_and_no_waiting_one_is_lost() {
    let (mut shards, addr) = shards(3);
    let mut clients = crowd(addr);
    assert_eq!(shards[1].report_connections(ROOM), Level::Full);
    clients.extend(crowd(addr));
    assert_eq!(shards[0].report_connections(ROOM), Level::Full);
    clients.extend(crowd(addr));
    assert_eq!(shards[1].report_connections(0), Level::Open);
    clients.extend(crowd(addr));
    // Nothing was accepted until now, so all these connections have waited through three changes of the steering program.
    let got = accepted_by_shard(&mut shards);
    assert_eq!(got.iter().sum::<usize>(), clients.len(), "{got:?}");
    for client in &clients {
        client.set_nonblocking(true).unwrap();
        let waits = client.peek(&mut [0]).unwrap_err();
        assert_eq!(waits.kind(), ErrorKind::WouldBlock);
    }

    let _more = crowd(addr);
    let got = accepted_by_shard(&mut shards);
    assert!(got[0] == 0 && got[1] > 0 && got[2] > 0, "{got:?}");
    assert_eq!(shards[2].report_connections(ROOM), Level::Full);
    let _more = crowd(addr);
    assert_eq!(accepted_by_shard(&mut shards), [0, CROWD, 0]);

    // All shards are full, so each must refuse its share of the connections.
    assert_eq!(shards[1].report_connections(ROOM), Level::Full);
    let _more = crowd(addr);
    let got = accepted_by_shard(&mut shards);
    assert!(got.iter().all(|got| *got > 0), "{got:?}");
    for shard in &mut shards {
        assert_eq!(shard.report_connections(0), Level::Open);
    }
    let _more = crowd(addr);
    let got = accepted_by_shard(&mut shards);
    assert!(got.iter().all(|got| *got > 0), "{got:?}");
    shards
        .iter()
        .flat_map(|shard| &shard.open)
        .for_each(|fd| socket::close(*fd));
}

#[test]
fn free_places_are_kept_for_queued_connections_until_all_shards_are_full() {
    let (mut shards, addr) = shards(2);
    let near = ROOM - ROOM / 16;
    assert_eq!(shards[0].report_connections(near - 1), Level::Open);
    assert_eq!(shards[0].report_connections(near), Level::NearlyFull);
    let _clients = crowd(addr);
    assert_eq!(accepted_by_shard(&mut shards), [0, CROWD]);
    assert_eq!(shards[1].report_connections(near), Level::NearlyFull);
    let _clients = crowd(addr);
    let got = accepted_by_shard(&mut shards);
    assert!(got.iter().all(|got| *got > 0), "{got:?}");
    assert_eq!(
        shards[1].report_connections(ROOM - ROOM / 32),
        Level::QueueOnly
    );
    let _clients = crowd(addr);
    assert_eq!(accepted_by_shard(&mut shards), [CROWD, 0]);
    assert_eq!(shards[1].report_connections(ROOM), Level::Full);
    let _clients = crowd(addr);
    assert_eq!(accepted_by_shard(&mut shards), [CROWD, 0]);
    // The level does not change at the first free place. Otherwise the group would be told of every change.
    assert_eq!(shards[1].report_connections(ROOM - 1), Level::Full);
    assert_eq!(shards[0].report_connections(near - 1), Level::NearlyFull);
    assert_eq!(shards[0].report_connections(near - ROOM / 16), Level::Open);
    for fd in shards.iter().flat_map(|shard| &shard.open) {
        socket::close(*fd);
    }
}

#[test]
fn closing_listeners_accept_their_queue_and_no_further_connection() {
    let (mut shards, addr) = shards(1);
    let shard = &mut shards[0];
    let waiting = crowd(addr);
    shard.acceptor.block_new_connections();
    let late = std::thread::spawn(move || TcpStream::connect(addr).map(drop));
    // Only a timeout can show that no connection is accepted.
    let blocked = TcpStream::connect_timeout(&addr, Duration::from_millis(200));
    assert_eq!(blocked.unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(shard.accept_all(), waiting.len());
    shard.acceptor.close();
    assert!(late.join().unwrap().is_err(), "it tries again elsewhere");
    assert!(TcpStream::connect(addr).is_err());
}
