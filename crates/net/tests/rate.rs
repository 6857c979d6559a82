//! Past the rate new connections wait, in fair turns by address.

use std::net::{IpAddr, SocketAddr, TcpStream};

use crore_net::Fd;
use crore_net::kernel::driver::Driver;
use crore_net::kernel::entrance::{Entrance, Limits};
use crore_net::kernel::socket;
use crore_net::kernel::steering::Group;
use crore_net::transport::Arrival;
use socket2::{Domain, Socket, Type};

fn entrance(driver: &mut Driver, accepts_per_s: u32) -> (Entrance, SocketAddr) {
    let limits = Limits {
        backlog: 64,
        connections_max: 1_000,
        accepts_per_s,
        ..Limits::default()
    };
    let listen = ["127.0.0.1:0".parse().unwrap()];
    let entrance = Entrance::open(&listen, limits, &Group::new(), driver).unwrap();
    let addr = entrance.listeners()[0].local_addr().unwrap();
    (entrance, addr)
}

#[test]
fn crowd_of_one_address_holds_up_no_other_address() {
    let mut driver = Driver::new(4).unwrap();
    let (mut entrance, addr) = entrance(&mut driver, 0);
    let connect = |host: u8| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let ours = SocketAddr::from(([127, 0, 0, host], 0));
        socket.bind(&ours.into()).unwrap();
        socket.connect(&addr.into()).unwrap();
        TcpStream::from(socket)
    };
    let hosts = [[2; 12].as_slice(), &[3, 3, 4]].concat();
    let _clients: Vec<_> = hosts.iter().map(|host| connect(*host)).collect();
    let mut came = Vec::new();
    while let Arrival::Connection(link, IpAddr::V4(peer)) =
        entrance.accept(0, 1_000, |_| Vec::new())
    {
        came.push(peer.octets()[3]);
        socket::close(Fd(link.0));
    }
    assert_eq!(came.len(), hosts.len());
    // Two addresses may share a bucket, and so their turns.
    assert_eq!(came[0], 2);
    let is_soon = |host| came[..6].contains(&host);
    assert!(is_soon(3) || is_soon(4), "{came:?}");
}

#[test]
fn past_the_rate_nobody_is_refused_and_nobody_spins() {
    let mut driver = Driver::new(4).unwrap();
    let (mut entrance, addr) = entrance(&mut driver, 100);
    let _clients: Vec<_> = (0..30).map(|_| TcpStream::connect(addr).unwrap()).collect();
    let (mut now_ms, mut taken, mut waits) = (1_000, 0, 0);
    while taken < 30 {
        match entrance.accept(0, now_ms, |_| Vec::new()) {
            Arrival::Connection(link, _) => {
                taken += 1;
                socket::close(Fd(link.0));
            }
            Arrival::Nobody => {
                entrance.settle(&mut driver, taken, now_ms).unwrap();
                assert_eq!(driver.wait(Some(0)).unwrap(), 0, "it spins");
                assert!(!entrance.is_due(), "it spins");
                now_ms = entrance.paused_until_ms().unwrap();
                entrance.settle(&mut driver, taken, now_ms).unwrap();
                assert!(entrance.is_due(), "those who wait are forgotten");
                waits += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!((200..=350).contains(&(now_ms - 1_000)), "{now_ms}");
    assert!(waits >= 20, "{waits}");
}
