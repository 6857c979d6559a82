//! The TCP of the kernel, in a namespace of its own, with connections over `AF_XDP` in another one: byte for byte, and to the end.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use crore_net::kernel::{Kernel, acceptor, steering::Group};
use crore_net::transport::{AcceptResult, Event, Link, Received, Sent};
use crore_net::xdp::program::Redirect;
use crore_net::xdp::{EndpointLimits, FrameSettings, Interface, TcpEndpoint, XdpTransport};
use crore_net::{Transport as _, check};
use crore_tcp::{End, Head, Options, flag, header_bytes, write};

use crate::{WAIT, is_required};

const PORT: u16 = 8_800;
/// The answer to a connection beyond the limit.
const FULL: &[u8] = b"full";
/// Sent by a client in place of data: the server resets the connection.
const RESET: &[u8] = b"reset";

/// Gives the calling thread a network namespace; `false` if it may not have one.
fn unshare() -> bool {
    // SAFETY: a plain system call without pointers.
    let answer = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    check(answer).is_ok()
}

fn ip(line: &str) -> bool {
    let status = Command::new("ip").args(line.split(' ')).status();
    status.is_ok_and(|status| status.success())
}

/// The addresses of the server.
fn server(is_v6: bool) -> SocketAddr {
    match is_v6 {
        false => ([10, 77, 0, 1], PORT).into(),
        true => ([0xfd77, 0, 0, 0, 0, 0, 0, 1], PORT).into(),
    }
}

/// The limits of a server with room for these bytes under way.
fn limits(buffered_bytes: usize) -> EndpointLimits {
    EndpointLimits {
        connections: 1_000,
        backlog: 128,
        buffered_bytes,
        frames: FrameSettings::default(),
    }
}

/// The link of a server's interface, one end of a pair.
const PAIR: [&str; 1] = ["link add server type veth peer name client"];
/// The server's interface is a bridge, to which one end of the pair belongs.
const BRIDGE: [&str; 5] = [
    "link add port type veth peer name client",
    "link add server type bridge",
    "link set server address 02:00:00:00:00:01",
    "link set port master server",
    "link set port up",
];
/// The server's interface is a second address of one end of the pair.
const MACVLAN: [&str; 3] = [
    "link add port type veth peer name client",
    "link set port up",
    "link add server link port type macvlan mode private",
];

/// Runs a test in a namespace from which a server over `AF_XDP` can be reached. The server sends back what it receives.
fn with_server(limits: EndpointLimits, test: impl FnOnce() + Send + 'static) {
    with_server_on(&PAIR, limits, |_| test());
}

/// [`with_server`] with an interface that these commands make. The server does nothing while the test holds the lock.
fn with_server_on(
    link: &'static [&'static str],
    limits: EndpointLimits,
    test: impl FnOnce(&Mutex<()>) + Send + 'static,
) {
    let halt = Arc::new(Mutex::new(()));
    let server_halt = Arc::clone(&halt);
    let (tell_thread, client_thread) = mpsc::channel();
    let (tell_ready, server_ready) = mpsc::channel();
    let stops = Arc::new(AtomicBool::new(false));
    let server_stops = Arc::clone(&stops);
    let serving = thread::spawn(move || {
        let client: Option<libc::c_long> = client_thread.recv().expect("the client's thread");
        let made = client.is_some_and(|client| {
            // Else the lower interface of a stack would answer for the address of the upper one.
            unshare()
                && std::fs::write("/proc/sys/net/ipv4/conf/all/arp_ignore", "1").is_ok()
                && link.iter().copied().all(ip)
                && ip("addr add 10.77.0.1/16 dev server")
                && ip("-6 addr add fd77::1/64 dev server nodad")
                && ip("link set server up")
                && ip("link set lo up")
                && ip(&format!("link set client netns {client}"))
        });
        let addresses = [server(false), server(true)];
        let found = made.then(|| Interface::find("server").expect("the interface"));
        let redirect = found.map(|it| (Redirect::attach(it.index, it.queues, &addresses), it));
        let Some((Ok(redirect), interface)) = redirect else {
            assert!(
                !is_required(),
                "the test needs root, `ip` and a kernel with XDP"
            );
            eprintln!("not run: a pair of interfaces needs root, `ip` and a kernel with XDP");
            let _ = tell_ready.send(false);
            return;
        };
        let kernel = Kernel::open(&[], acceptor::Limits::default(), &Group::new());
        let queues = redirect.queue_sockets();
        let endpoint =
            TcpEndpoint::open(interface, &addresses, (queues, 0..queues.queues()), limits);
        let kernel = kernel.expect("a poller");
        let transport = XdpTransport::new(kernel, endpoint.expect("sockets"));
        let _ = tell_ready.send(true);
        serve(transport.expect("a poller"), &server_stops, &server_halt);
    });
    let testing = thread::spawn(move || {
        // SAFETY: a plain system call without pointers.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) };
        let _ = tell_thread.send(unshare().then_some(thread));
        if !server_ready.recv().expect("the server's thread") {
            return;
        }
        let made = ip("addr add 10.77.0.2/16 dev client")
            && ip("-6 addr add fd77::2/64 dev client nodad")
            && ip("link set client up");
        assert!(made, "the client's end");
        test(&halt);
    });
    let tested = testing.join();
    stops.store(true, Ordering::Relaxed);
    serving.join().expect("the server");
    tested.expect("the test");
}

/// Sends back what arrives, until it is told to stop.
fn serve(mut transport: XdpTransport, stops: &AtomicBool, halt: &Mutex<()>) {
    /// A connection, the bytes that it has still to send, and whether the client has ended.
    struct Echo {
        link: Link,
        bytes: Vec<u8>,
        has_ended: bool,
    }
    let mut connections: Vec<Option<Echo>> = Vec::new();
    let mut buffer = vec![0; 100_000];
    while !stops.load(Ordering::Relaxed) {
        drop(halt.lock());
        let events = transport.wait(Some(20)).expect("a wait");
        for index in 0..events {
            let ready = match transport.event(index) {
                Event::Link(ready) => ready,
                Event::Woken => continue,
                Event::Listener(listener) => {
                    loop {
                        let (link, peer) = match transport.accept(listener, 0, |_| FULL.to_vec()) {
                            AcceptResult::Connection(link, peer) => (link, peer),
                            AcceptResult::OverLimit => continue,
                            _ => break,
                        };
                        assert_eq!(transport.peer(link), Some(peer));
                        transport
                            .open(link, connections.len() as u64)
                            .expect("room");
                        connections.push(Some(Echo {
                            link,
                            bytes: Vec::new(),
                            has_ended: false,
                        }));
                    }
                    continue;
                }
            };
            let place = &mut connections[ready.token as usize];
            let Some(echo) = place else { continue };
            let mut is_over = false;
            if ready.readable && echo.bytes.is_empty() && !echo.has_ended {
                match transport.receive(echo.link, &mut buffer) {
                    Received::Bytes(count) if buffer[..count] == *RESET => {
                        transport.reset(echo.link);
                        *place = None;
                        continue;
                    }
                    Received::Bytes(count) => echo.bytes.extend(&buffer[..count]),
                    Received::End => echo.has_ended = true,
                    Received::Again => {}
                    Received::Failed(_) => is_over = true,
                }
            }
            while !echo.bytes.is_empty() && !is_over {
                let (first, second) = echo.bytes.split_at(echo.bytes.len() / 2);
                match transport.send(echo.link, &[first, second]) {
                    Sent::Bytes(count) => drop(echo.bytes.drain(..count)),
                    Sent::Again => break,
                    Sent::Failed(_) => is_over = true,
                }
            }
            let has_bytes = !echo.bytes.is_empty();
            if is_over || echo.has_ended && !has_bytes {
                transport.close(echo.link);
                *place = None;
                continue;
            }
            let token = ready.token;
            let interest = transport.set_interest(echo.link, token, !has_bytes, has_bytes);
            interest.expect("an open connection");
        }
        transport.adjust_accepting(0, 0).expect("no group");
    }
    // As a shard that drains does in each of its turns.
    assert_eq!(transport.block_new_connections(), 1);
    transport.close_listeners();
    assert_eq!(transport.block_new_connections(), 0);
}

fn connect(is_v6: bool) -> TcpStream {
    let stream = TcpStream::connect_timeout(&server(is_v6), WAIT).expect("a connection");
    stream.set_read_timeout(Some(WAIT)).expect("a timeout");
    stream.set_nodelay(true).expect("an option");
    stream
}

/// Sends bytes and reads them back, and then the end.
fn exchange(mut stream: TcpStream, bytes: usize, seed: usize) {
    let sent: Vec<u8> = (0..bytes)
        .map(|at| (((at + seed) * 31) >> 3) as u8)
        .collect();
    let mut writing = stream.try_clone().expect("a descriptor");
    let copy = sent.clone();
    let writer = thread::spawn(move || {
        writing.write_all(&copy).expect("room");
        writing.shutdown(Shutdown::Write).expect("an end");
    });
    let mut received = Vec::new();
    stream.read_to_end(&mut received).expect("bytes");
    writer.join().expect("all is sent");
    assert!(sent == received, "{} of {bytes} bytes", received.len());
}

#[test]
fn kernels_client_receives_the_bytes_that_it_has_sent() {
    with_server(limits(8 << 20), || {
        for (number, bytes) in [1, 1_460, 100_000, 20 << 20].into_iter().enumerate() {
            for is_v6 in [false, true] {
                exchange(connect(is_v6), bytes, number);
            }
        }
    });
}

#[test]
fn local_packets_without_checksums_are_accepted_on_any_virtual_interface() {
    for link in [&MACVLAN[..], &BRIDGE] {
        with_server_on(link, limits(1 << 20), |_| {
            // Small, since a packet that the kernel has joined fits no frame.
            exchange(connect(false), 1_000, 0);
            exchange(connect(true), 1_000, 1);
        });
    }
}

#[test]
fn hundred_connections_at_once_share_little_memory() {
    with_server(limits(100_000), || {
        let clients = (0..100).map(|number| {
            let stream = connect(number % 2 == 0);
            thread::spawn(move || exchange(stream, 30_000 + number, number))
        });
        for client in clients.collect::<Vec<_>>() {
            client.join().expect("a client");
        }
    });
}

#[test]
fn reset_reaches_the_client_and_other_ports_stay_the_kernels() {
    with_server(limits(1 << 20), || {
        let mut stream = connect(false);
        stream.write_all(RESET).expect("room");
        let error = stream.read(&mut [0]).expect_err("a reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        // The kernel answers for a port that nobody listens on, in the time that an answer takes.
        let mut other = server(false);
        other.set_port(PORT + 1);
        let error = TcpStream::connect_timeout(&other, WAIT).expect_err("nobody listens");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn connection_beyond_the_limit_is_refused_until_another_ends() {
    let limits = EndpointLimits {
        connections: 2,
        ..limits(1 << 20)
    };
    with_server(limits, || {
        // Each is accepted when its bytes come back.
        let mut first = connect(false);
        let mut second = connect(true);
        for stream in [&mut first, &mut second] {
            stream.write_all(b"here").expect("room");
            stream.read_exact(&mut [0; 4]).expect("bytes");
        }
        let mut answer = Vec::new();
        let mut third = connect(false);
        third.read_to_end(&mut answer).expect("an answer");
        assert_eq!(answer, FULL);
        exchange(first, 10, 0);
        exchange(connect(false), 10, 0);
    });
}

/// A socket that sends frames as they are over the interface of the clients.
struct RawLink {
    socket: OwnedFd,
    interface: libc::c_int,
}

impl RawLink {
    fn open() -> RawLink {
        // SAFETY: plain system calls; the name has an end, and the descriptor is new.
        let (socket, interface) = unsafe {
            (
                libc::socket(
                    libc::AF_PACKET,
                    libc::SOCK_RAW,
                    i32::from((libc::ETH_P_IP as u16).to_be()),
                ),
                libc::if_nametoindex(c"client".as_ptr()),
            )
        };
        check(socket).expect("a raw socket");
        RawLink {
            // SAFETY: the kernel has just opened it.
            socket: unsafe { OwnedFd::from_raw_fd(socket) },
            interface: interface as libc::c_int,
        }
    }

    /// Counts the segments of connections that the server sends to this hardware address, until it is told to stop.
    fn count_segments_to(&self, mac: [u8; 6], stops: &AtomicBool) -> usize {
        let mut count = 0;
        let mut frame = [0; 2_048];
        while !stops.load(Ordering::Relaxed) {
            // SAFETY: the frame lives until the call is over, and its size is given.
            let bytes = unsafe {
                let (to, size) = (frame.as_mut_ptr().cast(), frame.len());
                libc::recv(self.socket.as_raw_fd(), to, size, libc::MSG_DONTWAIT)
            };
            // The flags of the segment, after the headers of Ethernet and of IPv4.
            let is_of_connection = frame[14 + 20 + 13] & (flag::SYN | flag::RST) == 0;
            if bytes < 54 {
                thread::yield_now();
            } else if frame[..6] == mac && is_of_connection {
                count += 1;
            }
        }
        count
    }

    fn send(&self, frame: &[u8]) {
        // SAFETY: all bytes of an address may be zero.
        let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_ifindex = self.interface;
        // SAFETY: the frame and the address live until the call is over, and their sizes are given.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const to).cast(),
                size_of_val(&to) as libc::socklen_t,
            )
        };
        assert_eq!(sent, frame.len() as isize);
    }
}

/// The hardware address of the server's interface, as the client knows it.
fn server_mac() -> [u8; 6] {
    let mut command = Command::new("ip");
    let output = command.args(["neigh", "show", "10.77.0.1"]).output();
    let text = String::from_utf8(output.expect("ip").stdout).expect("text");
    let mut words = text.split_whitespace().skip_while(|word| *word != "lladdr");
    let mac = words.nth(1).expect("a neighbour");
    let bytes = mac.split(':').map(|byte| u8::from_str_radix(byte, 16));
    let bytes: Vec<u8> = bytes.map(|byte| byte.expect("a byte")).collect();
    bytes.try_into().expect("six bytes")
}

/// The hardware address of a machine that does not exist.
const FORGED: [u8; 6] = [2, 0, 0, 0, 0, 0x66];

#[test]
fn frames_with_a_forged_sender_divert_nothing() {
    with_server(limits(1 << 20), || {
        let mut stream = connect(false);
        let port = stream.local_addr().expect("an address").port();
        stream.write_all(b"before").expect("room");
        stream.read_exact(&mut [0; 6]).expect("bytes");
        let (link, to) = (RawLink::open(), server_mac());
        let end = |last, port| End::new(std::net::Ipv4Addr::new(10, 77, 0, last), port);
        let from_addresses = [FORGED, [0xff; 6], [1, 0, 0x5e, 0, 0, 1]];
        let stops = Arc::new(AtomicBool::new(false));
        let watch_stops = Arc::clone(&stops);
        let watch = thread::spawn(move || RawLink::open().count_segments_to(FORGED, &watch_stops));
        let forging = thread::spawn(move || {
            for number in 0..30_000u32 {
                // Of this connection and of others of the same machine: SYNs, acknowledgements, resets and data.
                let head = Head {
                    from: end(2, if number % 2 == 0 { port } else { number as u16 }),
                    to: end(1, PORT),
                    sequence: number.wrapping_mul(0x9e37_79b9),
                    acknowledged: number.wrapping_mul(0x85eb_ca6b),
                    flags: [flag::SYN, flag::ACK, flag::RST, flag::ACK | flag::PSH]
                        [number as usize / 2 % 4],
                    window: 1_000,
                    options: Options::default(),
                };
                let mut frame = vec![0; 14 + header_bytes(head.to, &head.options) + 4];
                frame[..6].copy_from_slice(&to);
                frame[6..12].copy_from_slice(&from_addresses[number as usize % 3]);
                frame[12..14].copy_from_slice(&[0x08, 0x00]);
                write(&head, true, &mut frame[14..], |data| {
                    data.copy_from_slice(b"evil")
                });
                link.send(&frame);
            }
        });
        exchange(stream, 8 << 20, 0);
        forging.join().expect("the forger");
        stops.store(true, Ordering::Relaxed);
        assert_eq!(watch.join().expect("a count"), 0);
        exchange(connect(false), 1_000, 0);
    });
}

/// The frame of a SYN from an end that does not exist.
fn forged_syn(number: u32, to: [u8; 6]) -> Vec<u8> {
    let (high, low) = ((number >> 8) as u8, number as u8);
    let head = Head {
        from: End::new(
            std::net::Ipv4Addr::new(10, 77, 128 | high, low),
            1 + number as u16 % 60_000,
        ),
        to: End::new(std::net::Ipv4Addr::new(10, 77, 0, 1), PORT),
        sequence: number,
        acknowledged: 0,
        flags: flag::SYN,
        window: 1_000,
        options: Options::default(),
    };
    let mut frame = vec![0; 14 + header_bytes(head.to, &head.options)];
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&FORGED);
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    write(&head, true, &mut frame[14..], |_| {});
    frame
}

#[test]
fn flood_of_syns_costs_clients_no_byte_and_no_connection() {
    with_server(limits(1 << 20), || {
        let mut stream = connect(false);
        stream.write_all(b"first").expect("room");
        stream.read_exact(&mut [0; 5]).expect("bytes");
        let (link, to) = (RawLink::open(), server_mac());
        let flood = thread::spawn(move || {
            for number in 0..100_000 {
                link.send(&forged_syn(number, to));
            }
        });
        exchange(stream, 4 << 20, 0);
        exchange(connect(true), 100_000, 1);
        flood.join().expect("the flood");
        exchange(connect(false), 1_000, 2);
    });
}

#[test]
fn ring_overflow_loses_no_byte_of_a_stream() {
    with_server_on(&PAIR, limits(1 << 20), |halt| {
        let mut stream = connect(false);
        stream.write_all(b"first").expect("room");
        stream.read_exact(&mut [0; 5]).expect("bytes");
        let (link, to) = (RawLink::open(), server_mac());
        let halted = halt.lock().expect("the server runs");
        // The client sends more packets than the socket has frames.
        for number in 0..3 * FrameSettings::default().frames {
            link.send(&forged_syn(number, to));
        }
        let client = thread::spawn(move || exchange(stream, 300_000, 0));
        for number in 0..FrameSettings::default().frames {
            link.send(&forged_syn(number, to));
        }
        drop(halted);
        client.join().expect("a client");
        exchange(connect(true), 1_000, 1);
    });
}
