//! Tests TLS over a transport in memory, without file descriptors: TLS needs no more of the transport below it than the interface
//! promises.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;

use crore_net::Transport;
use crore_net::stream::{BUFFER_MIN, Handle, StreamState, TlsStreams};
use crore_net::transport::{AcceptResult, Event, Link, Readiness, Received, Sent};
use rustls::ClientConnection;
use rustls::pki_types::ServerName;

use crate::pair::{LIMITS, client, source, suites};

/// A transport with one connection, whose peer is the test. Its link is not a descriptor of this process.
#[derive(Default)]
struct Memory {
    token: u64,
    read: bool,
    write: bool,
    to_us: VecDeque<u8>,
    to_peer: Vec<u8>,
    /// Number of bytes that a send accepts.
    window: usize,
    ended: bool,
}

const LINK: Link = Link(3_000_000);

impl Transport for Memory {
    fn wait(&mut self, _: Option<u32>) -> io::Result<usize> {
        let readable = self.read && !self.to_us.is_empty();
        Ok((readable || self.write && self.window > 0).into())
    }
    fn event(&self, _: usize) -> Event {
        Event::Link(Readiness {
            token: self.token,
            readable: self.read && !self.to_us.is_empty(),
            writable: self.write && self.window > 0,
            hangup: false,
        })
    }
    fn accept(&mut self, _: usize, _: u64, _: impl FnOnce(&[u8]) -> Vec<u8>) -> AcceptResult {
        AcceptResult::NoConnection
    }
    fn pause(&mut self, _: u64) {}
    fn room(&self) -> u32 {
        1
    }
    fn adjust_accepting(&mut self, _: u32, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn block_new_connections(&mut self) -> usize {
        0
    }
    fn close_listeners(&mut self) {}
    fn open(&mut self, link: Link, token: u64) -> io::Result<()> {
        self.set_interest(link, token, true, false)
    }
    fn set_interest(&mut self, link: Link, token: u64, read: bool, write: bool) -> io::Result<()> {
        assert_eq!(link, LINK);
        (self.token, self.read, self.write) = (token, read, write);
        Ok(())
    }
    fn receive(&mut self, _: Link, buffer: &mut [u8]) -> Received {
        match io::Read::read(&mut self.to_us, buffer).expect("memory") {
            0 => Received::Again,
            len => Received::Bytes(len),
        }
    }
    fn send<P: AsRef<[u8]>>(&mut self, _: Link, parts: &[P]) -> Sent {
        assert!(!self.ended, "its end was said");
        let before = self.to_peer.len();
        let bytes = parts.iter().flat_map(AsRef::as_ref).take(self.window);
        self.to_peer.extend(bytes);
        let sent = self.to_peer.len() - before;
        self.window -= sent;
        if sent == 0 {
            Sent::Again
        } else {
            Sent::Bytes(sent)
        }
    }
    fn shut_down(&mut self, _: Link) {
        self.ended = true;
    }
    fn close(&mut self, _: Link) {
        self.ended = true;
    }
    fn reset(&mut self, _: Link) {
        self.ended = true;
    }
    fn peer(&self, _: Link) -> Option<IpAddr> {
        None
    }
}

#[test]
fn tls_works_over_a_link_that_is_no_descriptor() {
    let source = source();
    let mut memory = Memory::default();
    let mut streams = TlsStreams::new(Handle::new(source.clone()).unwrap(), LIMITS);
    let name = ServerName::try_from("localhost").unwrap();
    let mut peer = ClientConnection::new(client(&source, suites()[0]), name).unwrap();
    memory.open(LINK, 7).unwrap();
    streams.add_connection(LINK);
    let text: Vec<u8> = (0..100_000).map(|n| (n % 251) as u8).collect();
    let (mut buffer, mut sent, mut got) = (vec![0; BUFFER_MIN], 0, Vec::new());
    // The window opens a little in each round, so flights and records are sent in pieces.
    for _ in 0..400 {
        memory.window = 700;
        peer.write_tls(&mut memory.to_us).unwrap();
        if memory.wait(Some(0)).unwrap() > 0
            && let Event::Link(ready) = memory.event(0)
        {
            if ready.writable {
                streams.handle_writable(&mut memory, LINK, ready.token);
            }
            if ready.readable {
                let taken = streams.receive(&mut memory, LINK, ready.token, &mut buffer);
                assert_eq!(taken.state, StreamState::Open);
            }
        }
        while streams.next_handshake(&mut memory, &mut buffer).is_some() {}
        streams.end_turn(&mut memory);
        if streams.usage().connections > 0 {
            let rest = &text[sent..];
            sent += streams
                .send(&mut memory, LINK, &[rest])
                .expect("it has TLS");
        }
        let mut came = &std::mem::take(&mut memory.to_peer)[..];
        while !came.is_empty() {
            peer.read_tls(&mut came).unwrap();
            let state = peer.process_new_packets().unwrap();
            let from = got.len();
            got.resize(from + state.plaintext_bytes_to_read(), 0);
            io::Read::read_exact(&mut peer.reader(), &mut got[from..]).unwrap();
        }
    }
    assert!(sent == text.len() && got == text, "{} of {sent}", got.len());
    memory.window = 700;
    streams.shutdown(&mut memory, LINK);
    assert!(memory.ended && memory.to_peer.len() > 5);
    streams.forget(&mut memory, LINK, true);
    assert_eq!(streams.usage().connections, 0);
}
