//! A full table: who waits is told so, nobody is lost, and what becomes free is used again.
//!
//! Alone in its process, since it lowers the limit of all.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crore_net::{Accepted, Driver, Listener, Reserve, SocketOptions, fd_table, socket};

const TABLE: u64 = 64;
const ANSWER: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

fn lower_limit() {
    let limit = libc::rlimit {
        rlim_cur: TABLE,
        rlim_max: fd_table::limit(),
    };
    // SAFETY: `limit` lives through the call.
    let answer = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!(answer, 0);
}

#[test]
fn a_full_table_answers_and_recovers() {
    lower_limit();
    let (tell, told) = mpsc::channel();
    let (go_on, step) = mpsc::channel::<()>();
    let shard = thread::spawn(move || {
        fd_table::part(&[]).unwrap();
        let addr = "127.0.0.1:0".parse().unwrap();
        let listener = Listener::bind(addr, 16, &SocketOptions::default()).unwrap();
        let mut reserve = Reserve::new().unwrap();
        let mut driver = Driver::new(1).unwrap();
        driver.add(listener.fd(), 0, true, false).unwrap();
        let mut filling: Vec<Driver> = std::iter::from_fn(|| Driver::new(1).ok()).collect();
        assert!(filling.len() > 32);

        assert!(!reserve.shed(&listener, ANSWER), "nobody waits");
        tell.send(listener.local_addr().unwrap()).unwrap();
        step.recv().unwrap();
        assert_eq!(driver.wait(Some(1_000)).unwrap(), 1);
        assert_eq!(listener.accept(), Accepted::Full(libc::EMFILE));
        assert!(reserve.shed(&listener, ANSWER));
        assert!(reserve.shed(&listener, ANSWER), "the spare was taken back");
        assert!(!reserve.shed(&listener, ANSWER));
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
    // More than a receive buffer's first segment, unread by the server: a plain close would reset it.
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
    // Linux shows the answer before a reset, other systems throw it away.
    assert!(
        eager.take_error().unwrap().is_none(),
        "the close has reset the connection"
    );
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
