//! Tests a full table of file descriptors. Waiting clients get an answer, none is lost, and freed descriptors are used again. If even that
//! answer is impossible, the acceptor pauses and does not spin.
//!
//! These tests are alone in their process, since they lower its descriptor limit. Opening an [`Acceptor`] raises that limit, so a test
//! that does so belongs in another file, or must hold [`LIMIT`].

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use crore_net::Fd;
use crore_net::kernel::acceptor::{Acceptor, Limits};
use crore_net::kernel::driver::{self, Driver};
use crore_net::kernel::listener::{
    Accepted, Listener, ShedOutcome, SocketOptions, SpareDescriptor,
};
use crore_net::kernel::steering::{Group, Level};
use crore_net::kernel::{fd_table, socket};
use crore_net::transport::AcceptResult;

const TABLE: u64 = 64;
const ANSWER: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// The limit belongs to the process, so only one test may run at a time.
static LIMIT: Mutex<()> = Mutex::new(());

fn hard_limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel writes one `rlimit` into `limit`.
    let answer = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    assert_eq!(answer, 0);
    limit.rlim_max
}

fn set_limit(descriptors: u64) {
    let limit = libc::rlimit {
        rlim_cur: descriptors,
        rlim_max: hard_limit(),
    };
    // SAFETY: `limit` is valid for the whole call.
    let answer = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!(answer, 0);
}

#[test]
fn acceptor_with_a_full_descriptor_table_answers_and_recovers() {
    let _alone = LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
    set_limit(TABLE);
    let (tell, told) = mpsc::channel();
    let (go_on, step) = mpsc::channel::<()>();
    let shard = thread::spawn(move || {
        fd_table::unshare(&[]).unwrap();
        let addr = "127.0.0.1:0".parse().unwrap();
        let listener = Listener::bind(addr, 16, &SocketOptions::default()).unwrap();
        let mut reserve = SpareDescriptor::new().unwrap();
        let mut driver = Driver::new(1).unwrap();
        driver
            .add(listener.fd(), driver::listener_token(0))
            .unwrap();
        let mut filling: Vec<Driver> = std::iter::from_fn(|| Driver::new(1).ok()).collect();
        assert!(filling.len() > 32);

        let answer = |_: &[u8]| ANSWER.to_vec();
        assert_eq!(reserve.shed(&listener, answer), ShedOutcome::NoConnection);
        tell.send(listener.local_addr().unwrap()).unwrap();
        step.recv().unwrap();
        assert_eq!(driver.wait(Some(1_000)).unwrap(), 1);
        assert_eq!(listener.accept(), Accepted::Full(libc::EMFILE));
        let seen = |request: &[u8]| {
            assert!(request.iter().all(|byte| *byte == b'x') && request.len() > 1_000);
            ANSWER.to_vec()
        };
        assert_eq!(reserve.shed(&listener, seen), ShedOutcome::Shed);
        assert_eq!(
            reserve.shed(&listener, answer),
            ShedOutcome::Shed,
            "the spare was taken back"
        );
        assert_eq!(reserve.shed(&listener, answer), ShedOutcome::NoConnection);
        assert!(Driver::new(1).is_err(), "the spare is not free for others");

        tell.send(listener.local_addr().unwrap()).unwrap();
        filling.pop();
        step.recv().unwrap();
        assert_eq!(driver.wait(Some(1_000)).unwrap(), 1);
        let Accepted::Connection(fd, _) = listener.accept() else {
            panic!("no recovery")
        };
        socket::send(fd, b"welcome");
        socket::close(fd);
    });

    let addr: SocketAddr = told.recv().unwrap();
    let mut eager = connect(addr);
    // More than the first segment of a receive buffer. The server does not read it, so a plain close would reset the connection.
    eager.write_all(&[b'x'; 20_000]).unwrap();
    let mut silent = connect(addr);
    go_on.send(()).unwrap();
    assert_eq!(read(&mut eager), ANSWER);
    assert_eq!(read(&mut silent), ANSWER);

    told.recv().unwrap();
    let mut later = connect(addr);
    go_on.send(()).unwrap();
    assert_eq!(read(&mut later), b"welcome");
    shard.join().unwrap();
    // Linux delivers the answer before a reset; other systems drop it.
    assert!(
        eager.take_error().unwrap().is_none(),
        "the close has reset the connection"
    );
}

/// The limit is set below the number of the spare descriptor. So it does not help to close the spare one, as on a machine without
/// descriptors.
#[test]
fn acceptor_without_a_spare_descriptor_pauses_and_recovers() {
    let _alone = LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
    set_limit(TABLE);
    thread::spawn(|| {
        fd_table::unshare(&[]).unwrap();
        let mut driver = Driver::new(4).unwrap();
        let limits = Limits {
            backlog: 16,
            connections_max: 1_000,
            ..Limits::default()
        };
        let listen = ["127.0.0.1:0".parse().unwrap()];
        let mut acceptor = Acceptor::open(&listen, limits, &Group::new(), &mut driver).unwrap();
        let addr = acceptor.listeners()[0].local_addr().unwrap();
        let never = |_: &[u8]| -> Vec<u8> { panic!("nobody can be told anything") };

        // The client's socket is created before the limit is lowered.
        let mut client = connect(addr);
        set_limit(4);
        assert_eq!(driver.wait(Some(1_000)).unwrap(), 1);
        assert_eq!(
            acceptor.accept(0, 1_000, never),
            AcceptResult::CannotShed(libc::EMFILE)
        );
        assert_eq!(acceptor.accept(0, 1_000, never), AcceptResult::NoConnection);
        acceptor.adjust_accepting(&mut driver, 5, 1_000).unwrap();
        assert_eq!(driver.wait(Some(50)).unwrap(), 0, "it spins");
        let later_ms = acceptor.paused_until_ms().unwrap();
        assert!((1_001..2_000).contains(&later_ms), "{later_ms}");

        // After that time the acceptor tries again, and goes on pausing.
        acceptor.adjust_accepting(&mut driver, 5, later_ms).unwrap();
        assert_eq!(driver.wait(Some(50)).unwrap(), 1);
        assert_eq!(
            acceptor.accept(0, later_ms, never),
            AcceptResult::CannotShed(libc::EMFILE)
        );
        acceptor.adjust_accepting(&mut driver, 5, later_ms).unwrap();
        assert_eq!(driver.wait(Some(0)).unwrap(), 0);

        // The acceptor also tries again as soon as a connection has ended.
        set_limit(TABLE);
        acceptor
            .adjust_accepting(&mut driver, 4, later_ms + 1)
            .unwrap();
        assert_eq!(acceptor.paused_until_ms(), None);
        assert_eq!(driver.wait(Some(50)).unwrap(), 1);
        let AcceptResult::Connection(link, _) = acceptor.accept(0, later_ms + 1, never) else {
            panic!("no recovery")
        };
        socket::send(Fd(link.0), b"welcome");
        socket::close(Fd(link.0));
        assert_eq!(read(&mut client), b"welcome");
        assert_eq!(acceptor.level(), Level::Full, "it has learned its room");
        acceptor
            .adjust_accepting(&mut driver, 0, later_ms + 2)
            .unwrap();
        assert_eq!(acceptor.level(), Level::Open);
    })
    .join()
    .unwrap();
}

fn connect(addr: SocketAddr) -> TcpStream {
    let client = TcpStream::connect(addr).unwrap();
    client
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    client
}

fn read(client: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    client.read_to_end(&mut all).unwrap();
    all
}
