//! Our TCP against that of Linux, both ways, over a TUN device in a network namespace: byte for byte, on a good link and on one that drops
//! packets.
//!
//! Without the right to make a namespace and a device, the tests say what they leave out; with `CRORE_TOOLS=required` they fail.

#![allow(
    clippy::print_stderr,
    reason = "whoever runs the tests is told what they leave out"
)]

// The file of the benchmarks imports one function of `crore-net`. That crate has TLS, which this test does not need.
extern crate self as crore_net;
mod sys;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use crore_rng::Rng;
use crore_tcp::{Account, Config, Conn, Device, End, Part, Received, Secret, Sent, State, Table};
use sys::tun::{self, Interface, PREFIX_BYTES, Tun};

/// The result of a system call.
pub fn check(answer: libc::c_int) -> std::io::Result<()> {
    if answer == -1 {
        Err(std::io::Error::last_os_error())
    } else {
        Ok(())
    }
}

const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 64, 0, 1);
const OURS: Ipv4Addr = Ipv4Addr::new(10, 64, 0, 2);
const PORT: u16 = 8_800;
/// The longest time that a test may take.
const TOO_LONG: Duration = Duration::from_secs(120);

struct Free;

impl Account for Free {
    fn charge(&mut self, _: Conn, _: usize) -> bool {
        true
    }

    fn release(&mut self, _: Conn, _: usize) {}
}

/// The device. Its header is all zeroes: checksums are in the packets.
struct Link(Tun);

impl Device for Link {
    fn transmit(&mut self, bytes: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        let mut packet = vec![0; PREFIX_BYTES + bytes];
        fill(&mut packet[PREFIX_BYTES..]);
        self.0.send(&packet).is_ok()
    }
}

type Endpoint = Table<Arc<[u8]>, Free>;

/// What a connection of ours does.
#[derive(Clone)]
enum Role {
    /// It sends back what it receives, and closes when the peer does.
    Echo,
    /// It answers a request for `/n` with a body of `n` bytes.
    Http,
    /// It sends these bytes, closes its side, and reports all that it has received.
    Talk(Arc<[u8]>, Sender<Vec<u8>>),
}

struct Talker {
    conn: Conn,
    role: Role,
    to_send: Vec<u8>,
    sent: usize,
    got: Vec<u8>,
    has_end: bool,
    is_over: bool,
}

/// Orders to the side of ours: connect to the kernel's listener at this port.
type Orders = Receiver<(u16, Role)>;

/// Runs our side until the orders end and all connections are over.
fn run(device: Tun, served: Role, orders: &Orders) {
    // The kernel leaves out the checksum of a packet to a device that says so, as this one does.
    let config = Config {
        verifies_checksums: false,
        time_wait_ms: 2_000,
        ..Config::default()
    };
    let mut table: Endpoint = Table::new(config, Secret(11, 22), Free);
    let own = End::new(OURS, PORT);
    table.add_address(own);
    let listener = table.listen(PORT);
    let mut link = Link(device);
    let start = Instant::now();
    let now_us = || start.elapsed().as_micros() as u64 + 1_000_000;
    let mut talkers: Vec<Talker> = Vec::new();
    let mut next_port = 20_000;
    let mut buffer = [0; 65_536 + PREFIX_BYTES];
    let mut are_orders_over = false;
    while !are_orders_over || !talkers.is_empty() {
        assert!(
            start.elapsed() < TOO_LONG,
            "too long: {} connections, {:?}",
            talkers.len(),
            table.counters
        );
        loop {
            match orders.try_recv() {
                Ok((port, role)) => {
                    let local = End {
                        port: next_port,
                        ..own
                    };
                    next_port += 1;
                    let remote = End::new(KERNEL, port);
                    let conn = table.connect(local, remote, 0, now_us()).expect("room");
                    talkers.push(Talker::new(conn, role));
                }
                Err(std::sync::mpsc::TryRecvError::Empty) => break,
                Err(std::sync::mpsc::TryRecvError::Disconnected) => {
                    are_orders_over = true;
                    break;
                }
            }
        }
        for _ in 0..64 {
            let Ok(Some(count)) = link.0.receive(&mut buffer) else {
                break;
            };
            table.receive(&buffer[PREFIX_BYTES..count], now_us(), &mut link);
        }
        while let Some(conn) = table.accept(listener, 0) {
            talkers.push(Talker::new(conn, served.clone()));
        }
        for talker in &mut talkers {
            talker.turn(&mut table, &mut link, now_us());
        }
        talkers.retain(|talker| !talker.is_over);
        table.poll(now_us(), &mut link);
        let due_us = table
            .next_us()
            .map_or(5_000, |due_us| due_us.saturating_sub(now_us()));
        link.0.wait(Duration::from_micros(due_us.min(5_000)));
    }
}

impl Talker {
    fn new(conn: Conn, role: Role) -> Talker {
        let to_send = match &role {
            Role::Talk(bytes, _) => bytes.to_vec(),
            _ => Vec::new(),
        };
        Talker {
            conn,
            role,
            to_send,
            sent: 0,
            got: Vec::new(),
            has_end: false,
            is_over: false,
        }
    }

    fn turn(&mut self, table: &mut Endpoint, link: &mut Link, now_us: u64) {
        let mut buffer = [0; 16_384];
        loop {
            // An echo takes no more than it can send.
            if matches!(self.role, Role::Echo) && self.to_send.len() - self.sent > 1 << 20 {
                break;
            }
            match table.read(self.conn, &mut buffer) {
                Received::Bytes(count) => match self.role {
                    Role::Echo => self.to_send.extend_from_slice(&buffer[..count]),
                    _ => self.got.extend_from_slice(&buffer[..count]),
                },
                Received::End => {
                    self.has_end = true;
                    break;
                }
                Received::Again => break,
                Received::Failed(failure) => panic!("a connection has failed: {failure:?}"),
            }
        }
        if matches!(self.role, Role::Http)
            && self.to_send.is_empty()
            && self.got.windows(4).any(|four| four == b"\r\n\r\n")
        {
            let head = String::from_utf8_lossy(&self.got).into_owned();
            let bytes: usize = head
                .split(' ')
                .nth(1)
                .and_then(|path| path.trim_start_matches('/').parse().ok())
                .expect("a number");
            self.to_send =
                format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\nConnection: close\r\n\r\n")
                    .into();
            self.to_send.extend_from_slice(&stream(7, bytes));
        }
        while self.sent < self.to_send.len() {
            let part = &self.to_send[self.sent..];
            match table.send(self.conn, Part::Copied(part), now_us) {
                Sent::Bytes(count) => self.sent += count,
                Sent::Again => break,
                Sent::Failed(failure) => panic!("a connection has failed: {failure:?}"),
            }
        }
        if self.sent > 1 << 20 && matches!(self.role, Role::Echo) {
            self.to_send.drain(..self.sent);
            self.sent = 0;
        }
        let has_sent_all = self.sent == self.to_send.len();
        let may_close = match self.role {
            Role::Echo => self.has_end,
            Role::Http => !self.to_send.is_empty(),
            Role::Talk(..) => table.state(self.conn) != State::SynSent,
        };
        if has_sent_all && may_close {
            table.shut_down(self.conn, now_us);
        }
        // Closed once both directions are, and all bytes are acknowledged.
        if has_sent_all && may_close && self.has_end && table.unacknowledged(self.conn) == 0 {
            table.close(self.conn, now_us, link);
            self.is_over = true;
            if let Role::Talk(_, report) = &self.role {
                let _ = report.send(std::mem::take(&mut self.got));
            }
        }
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

/// Whether what a test needs may be missing on this machine.
fn is_required() -> bool {
    std::env::var_os("CRORE_TOOLS").is_some_and(|value| value == "required")
}

/// A namespace with a device; `None` if the rights are missing. The calling thread, and what it starts later, is in the namespace.
fn namespace() -> Option<Tun> {
    let make = || -> std::io::Result<Tun> {
        tun::unshare_network()?;
        tun::raise_loopback()?;
        let device = Tun::make("tun0")?;
        let interface = Interface {
            address: (KERNEL, Ipv4Addr::new(255, 255, 0, 0)),
            packet_bytes: 1_500,
            queue_packets: 10_000,
        };
        tun::set_up("tun0", &interface)?;
        Ok(device)
    };
    match make() {
        Ok(device) => Some(device),
        Err(error) if is_required() => {
            panic!("no namespace with a device: {error}, and CRORE_TOOLS=required")
        }
        Err(error) => {
            eprintln!(
                "left out: our TCP against that of Linux, which needs a namespace with a device: {error}"
            );
            None
        }
    }
}

/// Makes the kernel drop one in `one_in` of the packets in each direction. `false` if the program for it is missing.
fn lossy(one_in: u32) -> bool {
    let rules = format!(
        "table inet loss {{\n\
         chain in {{ type filter hook input priority 0; iif tun0 numgen random mod {one_in} 0 drop; }}\n\
         chain out {{ type filter hook output priority 0; oif tun0 numgen random mod {one_in} 0 drop; }}\n}}\n"
    );
    let child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        assert!(!is_required(), "nft is missing, and CRORE_TOOLS=required");
        eprintln!("left out: a link that drops packets, which needs nft");
        return false;
    };
    child
        .stdin
        .take()
        .expect("a pipe")
        .write_all(rules.as_bytes())
        .expect("nft reads");
    let status = child.wait().expect("nft ends");
    assert!(status.success(), "nft has refused the rules");
    true
}

/// Runs a test on a thread of its own, which has its namespace, with our side on another one.
fn with_ours(
    served: Role,
    one_in: Option<u32>,
    test: impl FnOnce(&Sender<(u16, Role)>) + Send + 'static,
) {
    let thread = thread::spawn(move || {
        let Some(device) = namespace() else { return };
        if one_in.is_some_and(|one_in| !lossy(one_in)) {
            return;
        }
        let (orders, received) = channel();
        let ours = thread::spawn(move || run(device, served, &received));
        test(&orders);
        drop(orders);
        ours.join().expect("our side has not failed");
    });
    thread.join().expect("the test has not failed");
}

/// Sends a stream to our echo, and checks what comes back.
fn echo(seed: u64, bytes: usize) {
    let mut socket = TcpStream::connect((OURS, PORT)).expect("our listener accepts");
    let sent = stream(seed, bytes);
    let mut writer = socket.try_clone().expect("a second handle");
    let bytes = sent.clone();
    let writing = thread::spawn(move || {
        writer.write_all(&bytes).expect("our side takes all");
        writer.shutdown(Shutdown::Write).expect("half-close");
    });
    let mut got = Vec::new();
    socket.read_to_end(&mut got).expect("our side sends all");
    writing.join().expect("all is sent");
    assert!(
        got == sent,
        "{} bytes of {} came back",
        got.len(),
        sent.len()
    );
}

/// Lets our side talk with a socket of the kernel that does the same.
fn talk(orders: &Sender<(u16, Role)>, bytes: usize) {
    let listener = TcpListener::bind((KERNEL, 0)).expect("a port");
    let (ours, theirs) = (stream(1, bytes), stream(2, bytes / 2 + 1));
    let (report, reported) = channel();
    let port = listener.local_addr().expect("an address").port();
    orders
        .send((port, Role::Talk(ours.clone().into(), report)))
        .expect("our side runs");
    let (mut socket, _) = listener.accept().expect("our side connects");
    let mut writer = socket.try_clone().expect("a second handle");
    let sent = theirs.clone();
    let writing = thread::spawn(move || {
        writer.write_all(&sent).expect("our side takes all");
        writer.shutdown(Shutdown::Write).expect("half-close");
    });
    let mut got = Vec::new();
    socket.read_to_end(&mut got).expect("our side sends all");
    writing.join().expect("all is sent");
    assert!(got == ours, "the kernel has received other bytes");
    let received = reported.recv_timeout(TOO_LONG).expect("our side has ended");
    assert!(received == theirs, "our side has received other bytes");
}

#[test]
fn kernel_clients_get_back_every_byte() {
    with_ours(Role::Echo, None, |_| {
        for bytes in [0, 1, 1_460, 100_000, 16 << 20] {
            echo(bytes as u64, bytes);
        }
        let many: Vec<_> = (0..50)
            .map(|n| thread::spawn(move || echo(n, 20_000)))
            .collect();
        many.into_iter()
            .for_each(|one| one.join().expect("every byte"));
    });
}

#[test]
fn kernel_servers_get_every_byte() {
    with_ours(Role::Echo, None, |orders| {
        for bytes in [0, 1, 1_460, 100_000, 16 << 20] {
            talk(orders, bytes);
        }
    });
}

#[test]
fn every_byte_arrives_on_a_link_that_drops_packets() {
    with_ours(Role::Echo, Some(20), |orders| {
        for bytes in [1, 1_460, 400_000] {
            echo(bytes as u64, bytes);
            talk(orders, bytes);
        }
    });
}

#[test]
fn hundreds_of_connections_at_once_get_back_every_byte() {
    with_ours(Role::Echo, Some(50), |_| {
        let several = |n: u64| (0..4).for_each(|more| echo(10 * n + more, 700));
        let many: Vec<_> = (0..100)
            .map(|n| thread::spawn(move || several(n)))
            .collect();
        many.into_iter()
            .for_each(|one| one.join().expect("every byte"));
    });
}

#[test]
fn curl_downloads_every_byte() {
    with_ours(Role::Http, None, |_| {
        for bytes in [0usize, 1, 1_000_000, 64 << 20] {
            let output = Command::new("curl")
                .args([
                    "-sS",
                    "--max-time",
                    "60",
                    &format!("http://{OURS}:{PORT}/{bytes}"),
                ])
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

#[test]
fn closed_ports_of_both_sides_refuse() {
    with_ours(Role::Echo, None, |_| {
        let refused = TcpStream::connect((OURS, PORT + 1)).expect_err("nobody listens");
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    });
}
