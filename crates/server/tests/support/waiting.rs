//! Waits for events that must happen. No test depends on how soon they happen. If the machine is suspended for a while, no wait ends
//! before the server has had time to run.

use std::io::{self, ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

/// Timeout of a wait for an event. Only a failing test reaches it.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two checks whether the event has happened.
pub const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Reads once with the socket's timeout, and once more if the read times out or is interrupted: after a suspension of the machine this
/// happens at once, before the server has had time to run.
pub fn read_again(mut stream: &TcpStream, bytes: &mut [u8]) -> io::Result<usize> {
    let read = stream.read(bytes);
    match read {
        Err(error) if is_timeout(&error) || error.kind() == ErrorKind::Interrupted => {
            stream.read(bytes)
        }
        read => read,
    }
}

/// Whether a read timed out.
pub fn is_timeout(error: &io::Error) -> bool {
    [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind())
}

/// Connects, and sets the read timeout to `PATIENCE`.
pub fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

/// Connects from the address 127.0.0.`host`, and sets the read timeout to `PATIENCE`.
pub fn connect_from(host: u8, to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let ours = SocketAddr::from(([127, 0, 0, host], 0));
    socket.bind(&ours.into()).expect("an address");
    socket.connect(&to.into()).expect("a connection");
    let wait = Some(PATIENCE);
    socket.set_read_timeout(wait).expect("a timeout");
    socket.into()
}

/// Calls `look` until it returns `Some`. Panics after `PATIENCE`; each call counts for one second at most, even if the machine was
/// suspended during it. `what` names the event in the message of the panic.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let mut waited = Duration::ZERO;
    loop {
        let began = Instant::now();
        if let Some(found) = look() {
            return found;
        }
        assert!(waited < PATIENCE, "{what} never came");
        std::thread::sleep(CHECK_INTERVAL);
        waited += began.elapsed().min(Duration::from_secs(1));
    }
}

/// Calls `condition` until it returns `true`. Panics after `PATIENCE`. `what` names the event in the message of the panic.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    eventually(what, || condition().then_some(()));
}
