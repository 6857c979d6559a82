//! Connections that the caller finds by itself and parks while they are idle.

use alloc::vec;
use alloc::vec::Vec;

use super::network::{Endpoint, Packets, endpoint, ends};
use super::peer::{SegmentAndData, parse_segments};
use crate::{Config, Conn, End, Head, Options, Parked, Part, Received, Segment, Sent, State, flag};

/// An endpoint without an index, and the peer's numbers.
struct Client {
    table: Endpoint,
    own: End,
    server: End,
    /// The peer's next sequence number, and the one that it expects.
    next: u32,
    ack: u32,
    window: u16,
}

fn config() -> Config {
    Config {
        finds_connections: false,
        uses_extensions: false,
        ack_delay_us: 0,
        ..Config::default()
    }
}

impl Client {
    fn new(config: Config) -> Client {
        let (own, server) = ends(false);
        Client {
            table: endpoint(config, own, 3),
            own,
            server,
            next: 5_000,
            ack: 0,
            window: 60_000,
        }
    }

    /// An open connection. The peer offers all extensions.
    fn connected(&mut self) -> Conn {
        let conn = self.table.connect(self.own, self.server, 7, 0).unwrap();
        let mut device = Packets::default();
        self.table.poll(0, &mut device);
        self.ack = parse_segments(&device.list)[0].0.sequence.wrapping_add(1);
        let options = Options {
            segment_bytes: Some(1_000),
            window_shift: Some(2),
            sack_permitted: true,
            timestamps: Some((1, 0)),
            ..Options::default()
        };
        let sequence = self.next;
        self.next += 1;
        self.say(Some(conn), flag::SYN | flag::ACK, sequence, options, &[]);
        assert_eq!(self.table.state(conn), State::Established);
        conn
    }

    /// Gives a segment of the peer to the endpoint, with its connection, and returns the answers.
    fn say(
        &mut self,
        conn: Option<Conn>,
        flags: u8,
        sequence: u32,
        options: Options,
        data: &[u8],
    ) -> Vec<SegmentAndData> {
        let head = Head {
            from: self.server,
            to: self.own,
            sequence,
            acknowledged: self.ack,
            flags,
            window: self.window,
            options,
        };
        let mut device = Packets::default();
        let segment = Segment { head, data };
        self.table.receive_segment(conn, &segment, 0, &mut device);
        self.table.poll(0, &mut device);
        parse_segments(&device.list)
    }

    fn data(&mut self, conn: Conn, data: &[u8]) -> Vec<SegmentAndData> {
        let sequence = self.next;
        self.next += data.len() as u32;
        self.say(Some(conn), flag::ACK, sequence, Options::default(), data)
    }

    fn read(&mut self, conn: Conn) -> Vec<u8> {
        let mut buffer = vec![0; 4_096];
        match self.table.read(conn, &mut buffer) {
            Received::Bytes(count) => buffer[..count].to_vec(),
            other => panic!("{other:?}"),
        }
    }

    fn unpark(&mut self, parked: &Parked) -> Conn {
        let (own, server) = (self.own, self.server);
        self.table.unpark(own, server, parked, 7, 0).unwrap()
    }
}

#[test]
fn parked_connection_continues() {
    let mut client = Client::new(config());
    let conn = client.connected();
    client.data(conn, b"one");
    assert_eq!(client.read(conn), b"one");
    let parked = client.table.park(conn).expect("an idle connection");
    assert!(client.table.is_empty());
    let conn = client.unpark(&parked);
    let answers = client.data(conn, b"two");
    assert_eq!(client.read(conn), b"two");
    let (next, ack) = (client.next, client.ack);
    let head = &answers[0].0;
    assert_eq!((head.acknowledged, head.sequence), (next, ack));
    assert_eq!(head.window, 65_532, "the buffer but for what is not read");
    let parked = client.table.park(conn).expect("idle again");
    let conn = client.unpark(&parked);
    let sent = client.table.send(conn, Part::Copied(&[1; 1_500]), 0);
    assert_eq!(sent, Sent::Bytes(1_500));
    let mut device = Packets::default();
    client.table.poll(0, &mut device);
    let sizes = parse_segments(&device.list).into_iter();
    let sizes: Vec<_> = sizes
        .map(|(head, data)| (head.sequence, data.len()))
        .collect();
    assert_eq!(sizes, [(ack, 1_000), (ack.wrapping_add(1_000), 500)]);
}

#[test]
fn parked_connection_keeps_a_closed_window() {
    let mut client = Client::new(config());
    let conn = client.connected();
    client.window = 0;
    client.data(conn, b"-");
    assert_eq!(client.read(conn), b"-");
    let parked = client.table.park(conn).expect("an idle connection");
    let conn = client.unpark(&parked);
    client.table.send(conn, Part::Copied(b"late"), 0);
    let mut device = Packets::default();
    client.table.poll(0, &mut device);
    assert!(device.list.is_empty(), "nothing behind the window");
    client.window = 10;
    let answers = client.data(conn, b"-");
    assert_eq!(answers[0].1, b"late");
}

#[test]
fn only_an_idle_connection_of_ours_is_parked() {
    let mut client = Client::new(config());
    let conn = client.connected();
    client.table.send(conn, Part::Copied(b"request"), 0);
    assert_eq!(client.table.park(conn), None, "bytes to send");
    let mut device = Packets::default();
    client.table.poll(0, &mut device);
    assert_eq!(client.table.park(conn), None, "bytes on their way");
    client.ack = client.ack.wrapping_add(7);
    client.data(conn, b"answer");
    assert_eq!(client.table.park(conn), None, "bytes to read");
    client.read(conn);
    assert!(client.table.is_idle(conn));
    client.table.shut_down(conn, 0);
    client.table.poll(0, &mut device);
    assert_eq!(client.table.park(conn), None, "closed");
    for other in [
        Config {
            finds_connections: true,
            ..config()
        },
        Config {
            uses_extensions: true,
            ..config()
        },
    ] {
        let mut client = Client::new(other);
        let conn = client.connected();
        assert!(client.table.is_idle(conn));
        assert_eq!(client.table.park(conn), None);
    }
}

#[test]
fn without_extensions_none_is_offered_or_accepted() {
    let mut client = Client::new(config());
    client
        .table
        .connect(client.own, client.server, 7, 0)
        .unwrap();
    let mut device = Packets::default();
    client.table.poll(0, &mut device);
    let only_size = Options {
        segment_bytes: Some(1_460),
        ..Options::default()
    };
    assert_eq!(parse_segments(&device.list)[0].0.options, only_size);
    let mut client = Client::new(config());
    let conn = client.connected();
    let answers = client.data(conn, b"x");
    assert_eq!(answers[0].0.options, Options::default());
    let mut peer = super::peer::Peer::new(Config {
        uses_extensions: false,
        ..Config::default()
    });
    peer.timestamps = true;
    let answers = peer.deliver_segment(flag::SYN, 1_000, 0, &[]);
    assert_eq!(answers[0].0.options, only_size);
}

#[test]
fn segment_that_the_caller_gives_to_a_wrong_connection_is_refused() {
    let mut client = Client::new(config());
    let conn = client.connected();
    client.own.port += 1;
    let answers = client.data(conn, b"injected");
    assert!(answers[0].0.has(flag::RST));
    assert_eq!(client.table.readable(conn), 0);
}
