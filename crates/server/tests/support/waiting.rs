//! Waiting for events that are due, and for nothing else: no test says how soon they come. A machine that stood still for a while ends no wait
//! before the server had a turn.

use std::io::{self, ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

/// How long a test waits for an event. No test says how soon it comes: this only ends one that waits in vain.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// How often it looks meanwhile.
pub const LOOKS_EVERY: Duration = Duration::from_millis(20);

/// Reads once with the socket's timeout, and once more when nothing has come: on a machine that stood still, the first wait ends in the
/// moment in which it goes on, before the server had a turn.
pub fn read_again(mut stream: &TcpStream, bytes: &mut [u8]) -> io::Result<usize> {
    let read = stream.read(bytes);
    match read {
        Err(error) if is_timeout(&error) => stream.read(bytes),
        read => read,
    }
}

/// Whether nothing has come in time.
pub fn is_timeout(error: &io::Error) -> bool {
    [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind())
}

/// A connection that waits patiently for bytes that are due.
pub fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

/// The same from 127.0.0.`host`.
pub fn connect_from(host: u8, to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let ours = SocketAddr::from(([127, 0, 0, host], 0));
    socket.bind(&ours.into()).expect("an address");
    socket.connect(&to.into()).expect("a connection");
    let wait = Some(PATIENCE);
    socket.set_read_timeout(wait).expect("a timeout");
    socket.into()
}

/// Looks again and again until there is something. Each look counts for a second at most, however long the machine stood still meanwhile.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let mut waited = Duration::ZERO;
    loop {
        let began = Instant::now();
        if let Some(found) = look() {
            return found;
        }
        assert!(waited < PATIENCE, "{what} never came");
        std::thread::sleep(LOOKS_EVERY);
        waited += began.elapsed().min(Duration::from_secs(1));
    }
}

/// Looks again and again until it is so.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    eventually(what, || is_so().then_some(()));
}
