//! A server that sends exactly what a test wants.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Output;
use std::thread::{self, JoinHandle};

use crore_wire::websocket::frame::{Opcode, write_frame};
use crore_wire::websocket::handshake::accept_key;

use crate::crore;
use crate::support::program::output;
use crate::support::{PATIENCE, until};

/// A server that serves one connection after the other, each by one step of its script.
pub struct Scripted {
    pub url: String,
    script: JoinHandle<()>,
}

pub type Step = fn(&mut Peer);

impl Scripted {
    pub fn start(steps: &'static [Step]) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let script = thread::spawn(move || {
            for step in steps {
                let (stream, _) = listener.accept().unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                step(&mut Peer {
                    stream: BufReader::new(stream),
                });
            }
        });
        Scripted { url, script }
    }

    /// Runs `crore ARGS --server URL` and the script, both to their ends.
    pub fn run(self, args: &[&str]) -> Output {
        let output = output(crore(args).args(["--server", &self.url]));
        self.await_end();
        output
    }

    /// Waits until the script has come to its end.
    pub fn await_end(self) {
        until("the end of the script", || self.script.is_finished());
        self.script.join().unwrap();
    }
}

/// One connection of a client.
pub struct Peer {
    pub stream: BufReader<TcpStream>,
}

pub struct Request {
    pub line: String,
    pub head: String,
    pub body: String,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

impl Peer {
    pub fn request(&mut self) -> Request {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            assert!(
                self.stream.read_line(&mut line).unwrap() > 0,
                "the client closed after {lines:?}"
            );
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_string()),
            }
        }
        let mut request = Request {
            line: lines[0].clone(),
            head: lines.join("\n"),
            body: String::new(),
        };
        let length = request
            .header("content-length")
            .map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).unwrap();
        request.body = String::from_utf8(body).unwrap();
        request
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.get_mut().write_all(bytes.as_ref()).unwrap();
    }

    pub fn respond(&mut self, status: &str, body: &str) {
        self.send(format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
    }

    /// Accepts the upgrade that `request` asks for.
    pub fn upgrade(&mut self, request: &Request) {
        let accept = accept_key(request.header("sec-websocket-key").unwrap().as_bytes()).unwrap();
        self.send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ");
        self.send(accept);
        self.send("\r\n\r\n");
    }

    pub fn frame(&mut self, opcode: Opcode, payload: &str) {
        let mut frame = Vec::new();
        write_frame(&mut frame, opcode, payload.as_bytes());
        self.send(frame);
    }

    pub fn is_closed(&mut self) -> bool {
        matches!(self.stream.fill_buf(), Ok([]) | Err(_))
    }
}
