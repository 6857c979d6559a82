//! Behind a proxy: the PROXY protocol, version 2, before the first request.

use crate::conn::{Conn, attempt};
use crate::support::Server;

/// The signature, version 2 and the command PROXY, TCP over IPv4, twelve bytes of addresses.
fn header() -> Vec<u8> {
    let mut bytes = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    bytes.extend([0x21, 0x11, 0, 12]);
    bytes.extend([192, 0, 2, 7, 127, 0, 0, 1]);
    bytes.extend(40_000_u16.to_be_bytes());
    bytes.extend(8800_u16.to_be_bytes());
    bytes
}

fn server() -> Server {
    Server::with("[http]\nproxy_protocol = true\n[timeouts]\nhead_s = 1\n")
}

#[test]
fn a_header_comes_before_the_first_request_and_only_there() {
    let server = server();
    for slowly in [false, true] {
        let mut conn = Conn::open(&server);
        let request = conn.text_of("POST", "/pub/news", &[], b"x");
        let bytes = [header(), request.clone()].concat();
        if slowly {
            conn.dribble(bytes);
        } else {
            conn.send(bytes);
        }
        assert_eq!(conn.response().status, 202);
        conn.send(&request);
        assert_eq!(conn.response().status, 202);
    }
    // LOCAL, as health checks send it: no addresses.
    let mut conn = Conn::open(&server);
    let request = conn.text_of("GET", "/pub/news", &[], b"");
    conn.send([&b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"[..], &request].concat());
    assert_eq!(conn.response().status, 200);
}

#[test]
fn without_the_header_nothing_is_served() {
    let server = server();
    let plain = |conn: &Conn| conn.text_of("POST", "/pub/news", &[], b"x");
    let mut short = header();
    short.truncate(9);
    let mut version_1 = b"PROXY TCP4 192.0.2.7 127.0.0.1 40000 8800\r\n".to_vec();
    version_1.extend(plain(&Conn::open(&server)));
    let mut version_3 = header();
    version_3[12] = 0x31;
    for bytes in [plain(&Conn::open(&server)), short, version_1, version_3] {
        let mut conn = Conn::open(&server);
        conn.send(&bytes);
        let rest = attempt(|| conn.rest()).expect("it ends within the time for a head");
        let text = String::from_utf8_lossy(&rest);
        assert!(!text.contains(" 202 "), "{text}");
    }
}

#[test]
fn who_did_not_ask_for_it_takes_it_for_noise() {
    let server = Server::start();
    let mut conn = Conn::open(&server);
    let request = conn.text_of("POST", "/pub/news", &[], b"x");
    conn.send([header(), request].concat());
    let rest = attempt(|| conn.rest()).expect("it ends");
    assert!(!String::from_utf8_lossy(&rest).contains(" 202 "));
}
