//! Tests the driver, the listener and the socket calls, with sockets of the standard library on the other side.

use std::io::{IoSlice, Read, Write};
use std::mem::ManuallyDrop;
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd};
use std::time::Duration;

use crore_net::kernel::driver::Driver;
use crore_net::kernel::listener::{Accepted, HeldPort, Listener, SocketOptions};
use crore_net::kernel::socket;
use crore_net::transport::{Event, Readiness, Received, Sent};
use crore_net::{Fd, set_option};
use proptest::prelude::*;
use socket2::{Domain, Socket, Type};

/// Any port of the loopback address.
const LOCALHOST: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// A socket option: the range from which the kernel chooses the port of a socket. The lower half is the lowest port, the upper half the
/// highest one (ip(7)).
const IP_LOCAL_PORT_RANGE: i32 = 51;

const NONE: Readiness = Readiness {
    token: 0,
    readable: false,
    writable: false,
    hangup: false,
};

/// A connection: the tested end, and the other end as a socket of the standard library.
fn pair() -> (Fd, TcpStream) {
    let listener = listen("127.0.0.1:0", &SocketOptions::default());
    let peer = connect(listener.local_addr().unwrap());
    let (fd, address) = accept(&listener);
    assert_eq!(address, peer.local_addr().unwrap());
    (fd, peer)
}

fn listen(addr: &str, options: &SocketOptions) -> Listener {
    Listener::bind(addr.parse().unwrap(), 64, options).unwrap()
}

fn connect(addr: SocketAddr) -> TcpStream {
    let peer = TcpStream::connect(addr).unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    peer
}

fn accept(listener: &Listener) -> (Fd, SocketAddr) {
    match listener.accept() {
        Accepted::Connection(fd, address) => (fd, address),
        other => panic!("{other:?}"),
    }
}

/// The tested end as a standard-library socket, without ownership.
fn seen(fd: Fd) -> ManuallyDrop<TcpStream> {
    // SAFETY: the descriptor stays open during the test, and this view does not close it.
    ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(fd.0.try_into().unwrap()) })
}

fn readiness(driver: &Driver, n: usize) -> Readiness {
    match driver.event(n) {
        Event::Link(readiness) => readiness,
        other => panic!("{other:?}"),
    }
}

fn only_event(driver: &mut Driver) -> Readiness {
    assert_eq!(driver.wait(Some(1_000)).unwrap(), 1);
    readiness(driver, 0)
}

#[test]
fn readiness_follows_the_interest() {
    let (fd, mut peer) = pair();
    let mut driver = Driver::new(4).unwrap();
    let token = (u64::MAX >> 1) - 3;
    driver.add(fd, token).unwrap();
    assert_eq!(driver.wait(Some(0)).unwrap(), 0);

    peer.write_all(b"abc").unwrap();
    let readable = Readiness {
        token,
        readable: true,
        ..NONE
    };
    assert_eq!(only_event(&mut driver), readable);
    let mut buf = [0; 2];
    assert_eq!(socket::recv(fd, &mut buf), Received::Bytes(2));
    assert_eq!(
        only_event(&mut driver),
        readable,
        "what is left is told again"
    );

    driver.modify(fd, 5, false, true).unwrap();
    assert_eq!(
        only_event(&mut driver),
        Readiness {
            token: 5,
            writable: true,
            ..NONE
        }
    );
    driver.modify(fd, 6, false, false).unwrap();
    assert_eq!(
        driver.wait(Some(0)).unwrap(),
        0,
        "a paused socket is silent"
    );

    socket::close(fd);
    assert_eq!(driver.wait(Some(0)).unwrap(), 0);
    assert!(driver.modify(fd, 7, true, false).is_err());
}

#[test]
fn events_beyond_one_wait_are_reported_by_the_next() {
    let pairs: Vec<_> = (0..5).map(|_| pair()).collect();
    let mut driver = Driver::new(2).unwrap();
    for (token, (fd, _)) in (0..).zip(&pairs) {
        driver.add(*fd, token).unwrap();
        driver.modify(*fd, token, false, true).unwrap();
    }
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..5 {
        assert_eq!(driver.wait(Some(0)).unwrap(), 2);
        seen.extend((0..2).map(|n| readiness(&driver, n).token));
    }
    assert_eq!(seen.len(), 5, "the kernel goes round");
}

#[test]
fn half_closed_peer_is_reported_while_the_socket_is_read() {
    let (fd, mut peer) = pair();
    let mut driver = Driver::new(4).unwrap();
    driver.add(fd, 1).unwrap();
    peer.shutdown(Shutdown::Write).unwrap();
    assert_eq!(
        only_event(&mut driver),
        Readiness {
            token: 1,
            readable: true,
            hangup: true,
            ..NONE
        }
    );
    driver.modify(fd, 1, false, false).unwrap();
    assert_eq!(
        driver.wait(Some(0)).unwrap(),
        0,
        "no spinning on what is known"
    );

    assert_eq!(socket::recv(fd, &mut [0; 8]), Received::End);
    assert_eq!(socket::send(fd, b"answer"), Sent::Bytes(6));
    socket::shutdown_write(fd);
    let mut answer = String::new();
    peer.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "answer");
    socket::close(fd);
}

#[test]
fn a_reset_reaches_even_a_paused_socket() {
    let (fd, peer) = pair();
    let mut driver = Driver::new(4).unwrap();
    driver.add(fd, 1).unwrap();
    driver.modify(fd, 1, false, false).unwrap();
    assert_eq!(socket::send(fd, b"unread"), Sent::Bytes(6));
    // With unread bytes the peer's close becomes a reset.
    assert_eq!(peer.peek(&mut [0; 8]).unwrap(), 6);
    drop(peer);
    let event = only_event(&mut driver);
    assert!(event.hangup, "{event:?}");
    assert_eq!(
        socket::recv(fd, &mut [0; 8]),
        Received::Failed(libc::ECONNRESET)
    );
    // The error is reported once. After that a read finds the end, and sending fails without a signal.
    assert_eq!(socket::send(fd, b"x"), Sent::Failed(libc::EPIPE));
    socket::shutdown_write(fd);
    socket::close(fd);
}

#[test]
fn reset_connection_is_reset_for_the_peer() {
    let (fd, mut peer) = pair();
    socket::reset(fd);
    let error = peer.read(&mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn full_socket_refuses_bytes_and_becomes_writable() {
    let (fd, mut peer) = pair();
    let mut driver = Driver::new(4).unwrap();
    driver.add(fd, 1).unwrap();
    driver.modify(fd, 1, true, true).unwrap();
    let chunk = [7; 65_536];
    let mut sent = 0;
    let refused = loop {
        match socket::send(fd, &chunk) {
            Sent::Bytes(n) => sent += n,
            other => break other,
        }
    };
    assert_eq!(refused, Sent::Again);
    assert_eq!(
        socket::send_vectored(fd, &[IoSlice::new(&chunk)]),
        Sent::Again
    );
    assert_eq!(socket::recv(fd, &mut [0; 8]), Received::Again);
    assert_eq!(driver.wait(Some(0)).unwrap(), 0);
    let mut all = vec![0; sent];
    peer.read_exact(&mut all).unwrap();
    assert_eq!(
        only_event(&mut driver),
        Readiness {
            token: 1,
            writable: true,
            ..NONE
        }
    );
    socket::close(fd);
}

#[test]
fn accepted_sockets_inherit_the_options_of_the_listener() {
    let plain = listen("127.0.0.1:0", &SocketOptions::default());
    let small = listen(
        "127.0.0.1:0",
        &SocketOptions {
            unsent_bytes: Some(8_192),
        },
    );
    let unsent = |fd: Fd| {
        let (mut value, mut length) = (0_i32, 4);
        // SAFETY: the kernel writes at most `length` bytes to `value`.
        let answer = unsafe {
            libc::getsockopt(
                fd.0 as i32,
                libc::IPPROTO_TCP,
                libc::TCP_NOTSENT_LOWAT,
                (&raw mut value).cast(),
                &raw mut length,
            )
        };
        assert_eq!(answer, 0);
        value
    };
    for (listener, bytes) in [(&plain, None), (&small, Some(8_192))] {
        let _peer = connect(listener.local_addr().unwrap());
        let (fd, _) = accept(listener);
        assert!(seen(fd).nodelay().unwrap());
        if let Some(bytes) = bytes {
            assert_eq!(unsent(fd), bytes);
        }
        seen(fd).set_nodelay(false).unwrap();
        socket::set_nodelay(fd);
        assert!(seen(fd).nodelay().unwrap());
        assert_eq!(
            socket::recv(fd, &mut [0; 8]),
            Received::Again,
            "it is non-blocking"
        );
        socket::close(fd);
    }
    assert_eq!(plain.accept(), Accepted::Again);
}

#[test]
fn held_port_is_given_only_to_listeners_that_name_it() {
    let held = HeldPort::choose(LOCALHOST).unwrap();
    let addr = held.addr();
    // A socket without a wish for a port gets another one.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let fd = Fd(socket.as_raw_fd().try_into().unwrap());
    let only_this = u32::from(addr.port()) * 0x1_0001;
    // A kernel before 6.3 does not know the option.
    if set_option(fd, libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE, only_this).is_ok() {
        assert!(socket.bind(&LOCALHOST.into()).is_err(), "it is not free");
    }
    // A server that asks for this port gets it, and so does the next server.
    for _ in 0..2 {
        drop(std::net::TcpListener::bind(addr).unwrap());
    }
    let listeners = [(); 2].map(|()| listen(&addr.to_string(), &SocketOptions::default()));
    for _ in 0..20 {
        // The kernel may choose either listener.
        let peer = connect(addr);
        let accepts = |listener: &Listener| match listener.accept() {
            Accepted::Connection(fd, from) => {
                socket::close(fd);
                Some(from)
            }
            _ => None,
        };
        let from = listeners.iter().find_map(accepts);
        assert_eq!(from, Some(peer.local_addr().unwrap()));
    }
}

#[test]
fn the_unspecified_ipv6_address_takes_ipv4_as_well() {
    let Ok(listener) = Listener::bind("[::]:0".parse().unwrap(), 8, &SocketOptions::default())
    else {
        // This machine has no IPv6.
        return;
    };
    let port = listener.local_addr().unwrap().port();
    let peer = connect(SocketAddr::from(([127, 0, 0, 1], port)));
    assert_eq!(accept(&listener).1, peer.local_addr().unwrap());
    if let Ok(peer) = TcpStream::connect(format!("[::1]:{port}")) {
        assert_eq!(accept(&listener).1, peer.local_addr().unwrap());
    }
}

#[test]
fn send_with_too_many_parts_sends_the_first_ones() {
    let (fd, _peer) = pair();
    let parts = [IoSlice::new(b"x"); socket::PARTS_MAX + 500];
    assert_eq!(
        socket::send_vectored(fd, &parts),
        Sent::Bytes(socket::PARTS_MAX)
    );
    assert_eq!(socket::send_vectored(fd, &[]), Sent::Bytes(0));
    socket::close(fd);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn parts_of_a_send_arrive_in_order(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..20)) {
        let (fd, mut peer) = pair();
        let slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let whole = parts.concat();
        prop_assert_eq!(socket::send_vectored(fd, &slices), Sent::Bytes(whole.len()));
        socket::shutdown_write(fd);
        let mut all = Vec::new();
        peer.read_to_end(&mut all).unwrap();
        prop_assert_eq!(all, whole);
        socket::close(fd);
    }
}
