//! Tests a pause of accepting: new connections wait in the kernel's queue, and the acceptor does not spin.

use std::net::TcpStream;

use crore_net::Fd;
use crore_net::kernel::acceptor::{Acceptor, Limits};
use crore_net::kernel::driver::Driver;
use crore_net::kernel::socket;
use crore_net::kernel::steering::Group;
use crore_net::transport::AcceptResult;

#[test]
fn paused_acceptor_reports_no_connection_until_the_pause_ends() {
    let mut driver = Driver::new(4).unwrap();
    let limits = Limits {
        backlog: 64,
        connections_max: 1_000,
        ..Limits::default()
    };
    let listen = ["127.0.0.1:0".parse().unwrap()];
    let mut acceptor = Acceptor::open(&listen, limits, &Group::new(), &mut driver).unwrap();
    let addr = acceptor.listeners()[0].local_addr().unwrap();
    let _client = TcpStream::connect(addr).unwrap();
    let none = |_: &[u8]| Vec::new();

    acceptor.pause(1_010);
    // A shorter pause does not end a longer one.
    acceptor.pause(1_005);
    for now_ms in [1_000, 1_009] {
        assert_eq!(acceptor.accept(0, now_ms, none), AcceptResult::NoConnection);
        acceptor.adjust_accepting(&mut driver, 0, now_ms).unwrap();
        assert_eq!(driver.wait(Some(0)).unwrap(), 0, "it spins");
        assert_eq!(acceptor.paused_until_ms(), Some(1_010));
    }
    acceptor.adjust_accepting(&mut driver, 0, 1_010).unwrap();
    assert_eq!(driver.wait(Some(1_000)).unwrap(), 1);
    let AcceptResult::Connection(link, _) = acceptor.accept(0, 1_010, none) else {
        panic!("the connection that waited is lost");
    };
    socket::close(Fd(link.0));
}
