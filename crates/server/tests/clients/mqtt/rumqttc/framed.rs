//! A way to WebSocket for a library that is built without one: a port that passes the bytes of one connection on
//! in binary frames (RFC 6455) with the subprotocol `mqtt`, as they come, and the frames' payloads back.
//!
//! (`rumqttc` has a WebSocket of its own behind a feature, which needs crates under a licence that `deny.toml` does not allow.)
//! When either end goes, so does the other at once.

use std::io::{BufRead, BufReader, Error, Read, Result, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

/// Bytes that go up in one frame at most: packets begin and end anywhere in frames.
const FRAME_BYTES: usize = 1000;

/// Not zeros, so that the server has to take it off.
const MASK: [u8; 4] = [0x5a, 0x01, 0xfe, 0x33];

/// The port for one connection to the WebSocket at `port` of this host.
pub fn door(port: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let own = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        let (client, _) = listener.accept().expect("a client");
        drop(listener);
        let server = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        // A failure is the end of the connection, which the client's test judges.
        let _ = carry(&client, &server);
        for end in [client, server] {
            let _ = end.shutdown(Shutdown::Both);
        }
    });
    own
}

fn carry(client: &TcpStream, server: &TcpStream) -> Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let mut answers = BufReader::new(server);
    upgrade(server, &mut answers)?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = up(client, server);
            let _ = server.shutdown(Shutdown::Both);
        });
        let ended = down(&mut answers, client);
        let _ = client.shutdown(Shutdown::Both);
        ended
    })
}

fn upgrade(mut server: &TcpStream, answers: &mut impl BufRead) -> Result<()> {
    write!(
        server,
        "GET /mqtt HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Protocol: mqtt\r\n\r\n",
        server.peer_addr()?
    )?;
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if answers.read_line(&mut head)? == 0 {
            return Err(Error::other("no answer"));
        }
    }
    let head = head.to_ascii_lowercase();
    let agreed =
        head.starts_with("http/1.1 101") && head.contains("sec-websocket-protocol: mqtt\r\n");
    agreed
        .then_some(())
        .ok_or_else(|| Error::other(format!("not upgraded: {head}")))
}

fn up(mut client: &TcpStream, mut server: &TcpStream) -> Result<()> {
    let mut bytes = [0; FRAME_BYTES];
    loop {
        let count = client.read(&mut bytes)?;
        if count == 0 {
            return Ok(());
        }
        let mut frame = vec![0x82];
        match u8::try_from(count) {
            Ok(short @ 0..126) => frame.push(0x80 | short),
            _ => {
                frame.push(0x80 | 126);
                frame.extend((count as u16).to_be_bytes());
            }
        }
        frame.extend(MASK);
        frame.extend(
            bytes[..count]
                .iter()
                .zip(MASK.iter().cycle())
                .map(|(byte, mask)| byte ^ mask),
        );
        server.write_all(&frame)?;
    }
}

fn down(server: &mut impl Read, mut client: &TcpStream) -> Result<()> {
    loop {
        let mut head = [0; 2];
        server.read_exact(&mut head)?;
        let mut long = [0; 8];
        let length = match head[1] {
            126 => {
                server.read_exact(&mut long[6..])?;
                u64::from_be_bytes(long)
            }
            127 => {
                server.read_exact(&mut long)?;
                u64::from_be_bytes(long)
            }
            short => u64::from(short),
        };
        let mut payload = vec![0; usize::try_from(length).map_err(Error::other)?];
        server.read_exact(&mut payload)?;
        match head[0] {
            0x82 | 0x02 | 0x80 | 0x00 => client.write_all(&payload)?,
            0x88 => return Ok(()),
            0x89 | 0x8a => {}
            other => {
                return Err(Error::other(format!(
                    "a frame that begins with {other:02x}"
                )));
            }
        }
    }
}
