//! The TCP of the kernel, in a namespace of its own, with connections over `AF_XDP` in another one: byte for byte, and to the end.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use crore_net::kernel::{Kernel, acceptor, steering::Group};
use crore_net::transport::{AcceptResult, Event, Link, Received, Sent};
use crore_net::xdp::program::Redirect;
use crore_net::xdp::{EndpointLimits, FrameSettings, Interface, TcpEndpoint, XdpTransport};
use crore_net::{Transport as _, check};

use crate::{WAIT, is_required};

const PORT: u16 = 8_800;
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

/// Runs a test in a namespace from which a server over `AF_XDP` can be reached. The server sends back what it receives.
fn with_server(buffered_bytes: usize, test: impl FnOnce() + Send + 'static) {
    let (tell_thread, client_thread) = mpsc::channel();
    let (tell_ready, server_ready) = mpsc::channel();
    let stops = Arc::new(AtomicBool::new(false));
    let server_stops = Arc::clone(&stops);
    let serving = thread::spawn(move || {
        let client: Option<libc::c_long> = client_thread.recv().expect("the client's thread");
        let made = client.is_some_and(|client| {
            unshare()
                && ip("link add server type veth peer name client")
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
        let limits = EndpointLimits {
            connections: 1_000,
            backlog: 128,
            buffered_bytes,
            frames: FrameSettings::default(),
        };
        let queues = redirect.queue_sockets();
        let endpoint =
            TcpEndpoint::open(interface, &addresses, (queues, 0..queues.queues()), limits);
        let kernel = kernel.expect("a poller");
        let transport = XdpTransport::new(kernel, endpoint.expect("sockets"));
        let _ = tell_ready.send(true);
        serve(transport.expect("a poller"), &server_stops);
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
        test();
    });
    let tested = testing.join();
    stops.store(true, Ordering::Relaxed);
    serving.join().expect("the server");
    tested.expect("the test");
}

/// Sends back what arrives, until it is told to stop.
fn serve(mut transport: XdpTransport, stops: &AtomicBool) {
    /// A connection, the bytes that it has still to send, and whether the client has ended.
    struct Echo {
        link: Link,
        bytes: Vec<u8>,
        has_ended: bool,
    }
    let mut connections: Vec<Option<Echo>> = Vec::new();
    let mut buffer = vec![0; 100_000];
    while !stops.load(Ordering::Relaxed) {
        let events = transport.wait(Some(20)).expect("a wait");
        for index in 0..events {
            let ready = match transport.event(index) {
                Event::Link(ready) => ready,
                Event::Woken => continue,
                Event::Listener(listener) => {
                    while let AcceptResult::Connection(link, peer) =
                        transport.accept(listener, 0, |_| Vec::new())
                    {
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
fn client_of_the_kernel_gets_back_what_it_has_sent() {
    with_server(8 << 20, || {
        for (number, bytes) in [1, 1_460, 100_000, 20 << 20].into_iter().enumerate() {
            for is_v6 in [false, true] {
                exchange(connect(is_v6), bytes, number);
            }
        }
    });
}

#[test]
fn hundred_connections_at_once_share_little_memory() {
    with_server(100_000, || {
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
    with_server(1 << 20, || {
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
