//! Why a server cannot listen on an address, and what its user can do: a port that is taken is asked who answers there.
//!
//! It is a guess for a person, made once, at a start that has failed. A server with TLS only, and one that does not answer soon, count as
//! another program.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use crore_broker::Reason;

use super::http::Connection;
use super::server::Server;

/// How long the program that has the port may take.
const TIMEOUT: Duration = Duration::from_millis(500);
/// Longest answer of a port of ours to the path.
const ANSWER_BYTES_MAX: usize = 1 << 10;
/// A path that neither of our ports has.
const NO_PATH: &str = "/who";
/// Part of the answer of an admin port to that path.
pub const ADMIN_PORT: &str = "this is the admin port";
/// Distance of the proposed port from the occupied one.
const NEXT_PORT: u16 = 10;

/// The meaning of `error` for a server that would listen on `address`, and another value of `flag` that works.
pub fn remedy(address: SocketAddr, error: &io::Error, flag: &str) -> String {
    let mut other = address;
    other.set_port(address.port().checked_add(NEXT_PORT).unwrap_or(0));
    match error.kind() {
        ErrorKind::AddrInUse => match answers(address) {
            Some(whose) => format!(
                "the port is taken, and {whose} answers there: use that server, stop it, or name another port: {flag} {other}"
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

/// The address by which this host reaches itself, where it is that of a socket that listens on any.
pub fn loopback(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

/// Which port of ours answers at this address, if one does.
fn answers(address: SocketAddr) -> Option<&'static str> {
    let server = Server::parse(&loopback(address).to_string(), |_secure| 0).ok()?;
    let mut connection = Connection::open_within(&server, TIMEOUT).ok()?;
    connection.set_read_timeout(Some(TIMEOUT)).ok()?;
    let headers = [("Connection", "close")];
    connection
        .request(&server, "GET", NO_PATH, &headers, None)
        .ok()?;
    let answer = connection.whole_body(ANSWER_BYTES_MAX).ok()?;
    let said = |words: &str| String::from_utf8_lossy(&answer).contains(words);
    match () {
        () if said(Reason::NoPath.text()) => Some("a Crore"),
        () if said(ADMIN_PORT) => Some("the admin port of a Crore"),
        () => None,
    }
}
