//! Our TCP against that of Linux, both ways, over a TUN device in a network namespace: byte for byte, on a good link and on bad ones.
//!
//! Without the right to make a namespace and a device, the tests say what they leave out; with `CRORE_TOOLS=required` they fail.

#![allow(
    clippy::print_stderr,
    reason = "whoever runs the tests is told what they leave out"
)]

// The file of the benchmarks imports one function of `crore-net`. That crate has TLS, which this test does not need.
extern crate self as crore_net;
mod disturbance;
mod namespace;
mod ours;
mod sys;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use crore_rng::Rng;
use crore_tcp::Counters;

use namespace::{Subnet, is_required, lossy, namespace};
use ours::{Order, PORT, Role, Setup, TOO_LONG, run};

/// The result of a system call.
pub fn check(answer: libc::c_int) -> std::io::Result<()> {
    if answer == -1 {
        Err(std::io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// The bytes of a stream.
fn stream(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut out: Vec<u8> = (0..bytes.div_ceil(8))
        .flat_map(|_| rng.draw().to_le_bytes())
        .collect();
    out.truncate(bytes);
    out
}

/// Runs a test on a thread of its own, which has its namespace, with our side on another one. Returns what our side has counted; `None` if the
/// test is left out.
fn with_ours(
    setup: Setup,
    served: Role,
    test: impl FnOnce(&Kernel, &Sender<Order>) + Send + 'static,
) -> Option<Counters> {
    let thread = thread::spawn(move || {
        let link = Subnet::first(setup.is_v6);
        let device = namespace(&[link])?.pop()?;
        if setup.drops_one_in.is_some_and(|one_in| !lossy(one_in)) {
            return None;
        }
        let (orders, received) = channel();
        let ours = thread::spawn(move || run(device, link.ours(), setup, &served, &received));
        test(&Kernel(link), &orders);
        drop(orders);
        Some(ours.join().expect("our side has not failed"))
    });
    thread.join().expect("the test has not failed")
}

/// The side of the kernel.
#[derive(Clone, Copy)]
struct Kernel(Subnet);

impl Kernel {
    fn connect(&self, port: u16) -> std::io::Result<TcpStream> {
        TcpStream::connect((self.0.ours(), port))
    }

    fn listen(&self) -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind((self.0.kernel(), 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        (listener, address)
    }

    /// Sends bytes on a socket, closes that direction, and returns all that comes back.
    fn exchange(mut socket: TcpStream, bytes: &[u8]) -> Vec<u8> {
        let mut writer = socket.try_clone().expect("a second handle");
        let mut got = Vec::new();
        thread::scope(|scope| {
            scope.spawn(move || {
                writer.write_all(bytes).expect("our side takes all");
                writer.shutdown(Shutdown::Write).expect("half-close");
            });
            socket.read_to_end(&mut got).expect("our side sends all");
        });
        got
    }

    /// Sends a stream to our echo, and checks what comes back.
    fn echo(&self, seed: u64, bytes: usize) {
        let socket = self.connect(PORT).expect("our listener accepts");
        let sent = stream(seed, bytes);
        let got = Self::exchange(socket, &sent);
        assert!(got == sent, "{} bytes of {bytes} came back", got.len());
    }

    /// Lets our side talk with a socket of the kernel that does the same.
    fn talk(&self, orders: &Sender<Order>, bytes: usize) {
        let (listener, address) = self.listen();
        let (ours, theirs) = (stream(1, bytes), stream(2, bytes / 2 + 1));
        let (report, reported) = channel();
        orders
            .send((address, Role::Talk(ours.clone().into(), report)))
            .expect("our side runs");
        let (socket, _) = listener.accept().expect("our side connects");
        let got = Self::exchange(socket, &theirs);
        assert!(got == ours, "the kernel has received other bytes");
        let received = reported.recv_timeout(TOO_LONG).expect("our side has ended");
        assert!(received == theirs, "our side has received other bytes");
    }

    /// Opens this many connections at once, in both directions, each with a length of its own.
    fn crowd(self, orders: &Sender<Order>, connections: u64, lengths: &'static [usize]) {
        let many: Vec<_> = (0..connections)
            .map(|n| {
                let orders = orders.clone();
                let bytes = lengths[n as usize % lengths.len()];
                thread::spawn(move || match n % 2 {
                    0 => self.echo(n, bytes),
                    _ => self.talk(&orders, bytes),
                })
            })
            .collect();
        for one in many {
            one.join().expect("every byte");
        }
    }
}

#[test]
fn both_sides_get_every_byte() {
    for is_v6 in [false, true] {
        let setup = Setup {
            is_v6,
            ..Setup::default()
        };
        with_ours(setup, Role::Echo, |kernel, orders| {
            for bytes in [0, 1, 1_460, 100_000, 16 << 20] {
                kernel.echo(bytes as u64, bytes);
                kernel.talk(orders, bytes);
            }
        });
    }
}

#[test]
fn every_byte_arrives_with_a_buffer_that_needs_a_shift() {
    let setup = Setup {
        receive_log2: Some(21),
        is_disturbed: true,
        ..Setup::default()
    };
    with_ours(setup, Role::Echo, |kernel, orders| {
        kernel.echo(1, 4 << 20);
        kernel.talk(orders, 4 << 20);
    });
}

#[test]
fn every_byte_arrives_on_a_link_that_drops_packets() {
    let setup = Setup {
        drops_one_in: Some(20),
        ..Setup::default()
    };
    with_ours(setup, Role::Echo, |kernel, orders| {
        for bytes in [1, 1_460, 400_000] {
            kernel.echo(bytes as u64, bytes);
            kernel.talk(orders, bytes);
        }
    });
}

#[test]
fn hundred_connections_get_every_byte_over_a_disturbed_link() {
    for is_v6 in [false, true] {
        let setup = Setup {
            is_v6,
            is_disturbed: true,
            ..Setup::default()
        };
        let counters = with_ours(setup, Role::Echo, |kernel, orders| {
            const LENGTHS: &[usize] = &[1, 100, 1_460, 1_461, 20_000, 70_001, 300_000];
            kernel.crowd(orders, 98, LENGTHS);
            kernel.crowd(orders, 2, &[8 << 20]);
        });
        let is_disturbed =
            |all: Counters| all.retransmitted.min(all.out_of_order).min(all.repeated) > 100;
        assert!(counters.is_none_or(is_disturbed), "{counters:?}");
    }
}

#[test]
fn ten_thousand_connections_a_hundred_at_once_get_every_byte() {
    let setup = Setup {
        drops_one_in: Some(50),
        ..Setup::default()
    };
    with_ours(setup, Role::Echo, |kernel, _| {
        let kernel = *kernel;
        let several = move |n: u64| (0..100).for_each(|more| kernel.echo(100 * n + more, 700));
        let many: Vec<_> = (0..100)
            .map(|n| thread::spawn(move || several(n)))
            .collect();
        for one in many {
            one.join().expect("every byte");
        }
    });
}

#[test]
fn curl_downloads_every_byte() {
    for (is_disturbed, most) in [(false, 64 << 20), (true, 1 << 20)] {
        let setup = Setup {
            is_disturbed,
            ..Setup::default()
        };
        with_ours(setup, Role::Http, move |_, _| {
            let ours = Subnet::first(false).ours();
            for bytes in [0usize, 1, 100_000, most] {
                let url = format!("http://{ours}:{PORT}/{bytes}");
                let limit = TOO_LONG.as_secs().to_string();
                let output = Command::new("curl")
                    .args(["-sS", "--max-time", &limit, &url])
                    .output();
                let Ok(output) = output else {
                    assert!(!is_required(), "curl is missing, and CRORE_TOOLS=required");
                    eprintln!("left out: a download with curl");
                    return;
                };
                let error = String::from_utf8_lossy(&output.stderr);
                assert!(output.stdout == stream(7, bytes), "{bytes} bytes: {error}");
            }
        });
    }
}

#[test]
fn closed_ports_of_both_sides_refuse() {
    with_ours(Setup::default(), Role::Echo, |kernel, orders| {
        let refused = kernel.connect(PORT + 1).expect_err("nobody listens");
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
        let (listener, address) = kernel.listen();
        drop(listener);
        let (report, reported) = channel();
        orders
            .send((address, Role::Refused(report)))
            .expect("our side runs");
        let bytes = reported.recv_timeout(TOO_LONG).expect("our side is told");
        assert!(bytes.is_empty());
    });
}

#[test]
fn smaller_link_behind_a_router_is_found() {
    for is_v6 in [false, true] {
        let near = Subnet::first(is_v6);
        let far = Subnet {
            number: 1,
            packet_bytes: 1_300,
            ..near
        };
        let thread = thread::spawn(move || {
            let [near_device, far_device] = namespace(&[near, far])?.try_into().ok()?;
            let side = |device, link: Subnet| {
                let (orders, received) = channel();
                let ours = move || {
                    run(
                        device,
                        link.ours(),
                        Setup::default(),
                        &Role::Echo,
                        &received,
                    )
                };
                (orders, thread::spawn(ours))
            };
            let (orders, near_side) = side(near_device, near);
            let (far_orders, far_side) = side(far_device, far);
            let (bytes, (report, reported)) = (stream(1, 1 << 20), channel());
            let to = SocketAddr::new(far.ours(), PORT);
            orders
                .send((to, Role::Talk(bytes.clone().into(), report)))
                .expect("our side runs");
            let got = reported.recv_timeout(TOO_LONG).expect("both sides end");
            assert!(got == bytes, "other bytes came back");
            drop((orders, far_orders));
            far_side.join().expect("the far side has not failed");
            Some(near_side.join().expect("the near side has not failed"))
        });
        let counters = thread.join().expect("the test has not failed");
        assert!(
            counters.is_none_or(|all| all.retransmitted > 0),
            "nothing was too big: {counters:?}"
        );
    }
}
