//! Past the rate new connections wait in the queue.

use std::net::TcpStream;

use crore_net::Fd;
use crore_net::kernel::driver::Driver;
use crore_net::kernel::entrance::{Entrance, Limits};
use crore_net::kernel::socket;
use crore_net::kernel::steering::Group;
use crore_net::transport::Arrival;

#[test]
fn past_the_rate_nobody_is_refused_and_nobody_spins() {
    let mut driver = Driver::new(4).unwrap();
    let limits = Limits {
        backlog: 64,
        connections_max: 1_000,
        accepts_per_s: 100,
        ..Limits::default()
    };
    let listen = ["127.0.0.1:0".parse().unwrap()];
    let mut entrance = Entrance::open(&listen, limits, &Group::new(), &mut driver).unwrap();
    let addr = entrance.listeners()[0].local_addr().unwrap();
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
                now_ms = entrance.paused_until_ms().unwrap();
                entrance.settle(&mut driver, taken, now_ms).unwrap();
                assert_eq!(
                    driver.wait(Some(0)).unwrap(),
                    1,
                    "those who wait are forgotten"
                );
                waits += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!((200..=350).contains(&(now_ms - 1_000)), "{now_ms}");
    assert!(waits >= 20, "{waits}");
}
