//! Finds the remedy to suggest when a server cannot listen on an address. If the port is in use, a request finds out whether another Crore
//! server listens there.
//!
//! The result is a guess for the error message of a failed start. A Crore server that requires TLS, or does not answer within `TIMEOUT`,
//! is taken for another program.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use crore_broker::Reason;

use super::http::Connection;
use super::server::Server;

/// Timeout for the answer of the program that listens on the port.
const TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum size of the answer, in bytes. Answers of Crore's ports to `NO_PATH` are shorter.
const ANSWER_BYTES_MAX: usize = 1 << 10;
/// A path that neither the data port nor the admin port has, so that the text of the error shows which port answers.
const NO_PATH: &str = "/who";
/// Part of the admin port's answer to a path that it does not have.
pub const ADMIN_PORT: &str = "this is the admin port";
/// Difference between the proposed port and the port in use.
const NEXT_PORT: u16 = 10;

/// Explains why `address` could not be listened on (`error`), and proposes another value of `flag`.
pub fn remedy(address: SocketAddr, error: &io::Error, flag: &str) -> String {
    let mut other = address;
    other.set_port(address.port().checked_add(NEXT_PORT).unwrap_or(0));
    match error.kind() {
        ErrorKind::AddrInUse => match crore_at(address) {
            Some(program) => format!(
                "the port is taken, and {program} answers there: use that server, stop it, or name another port: {flag} {other}"
            ),
            None => format!(
                "the port is taken by another program (`ss -ltnp` shows it): name another port: {flag} {other}"
            ),
        },
        ErrorKind::AddrNotAvailable => {
            format!(
                "this machine has no such address (`ip addr` shows those it has): name one with {flag}"
            )
        }
        ErrorKind::PermissionDenied => format!(
            "the port needs a right that the process has not (CAP_NET_BIND_SERVICE): name another port: {flag} {other}"
        ),
        _ => format!("name another address with {flag}"),
    }
}

/// The address at which this host reaches a socket that listens on `address`: the loopback for an unspecified address.
pub fn loopback(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

/// The port of a Crore server that answers at this address, in words. None if something else answers, or nothing.
fn crore_at(address: SocketAddr) -> Option<&'static str> {
    let server = Server::parse(&loopback(address).to_string(), |_secure| 0).ok()?;
    let mut connection = Connection::open_within(&server, TIMEOUT).ok()?;
    connection.set_read_timeout(Some(TIMEOUT)).ok()?;
    let headers = [("Connection", "close")];
    connection
        .request(&server, "GET", NO_PATH, &headers, None)
        .ok()?;
    let answer = connection.read_whole_body(ANSWER_BYTES_MAX).ok()?;
    let contains = |words: &str| String::from_utf8_lossy(&answer).contains(words);
    match () {
        () if contains(Reason::NoPath.text()) => Some("a Crore"),
        () if contains(ADMIN_PORT) => Some("the admin port of a Crore"),
        () => None,
    }
}
