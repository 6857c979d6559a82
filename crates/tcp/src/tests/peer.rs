//! A peer whose every segment a test writes by hand.

use alloc::vec;
use alloc::vec::Vec;

use super::invariants;
use super::network::{Endpoint, Packets, endpoint, ends};
use crate::{
    Checksums, Config, Conn, End, Head, Options, Packet, Received, Segment, State, flag,
    header_bytes, parse, write,
};

/// A segment that the endpoint has sent: its header and its data.
pub type SegmentAndData = (Head, Vec<u8>);

/// An endpoint, and a peer that sends only the segments that a test writes.
pub struct Peer {
    pub table: Endpoint,
    pub conn: Conn,
    /// The peer's end, and the endpoint's.
    pub peer_end: End,
    pub endpoint_end: End,
    /// The peer's next sequence number, and the one that it expects.
    pub next_sequence: u32,
    pub expected_sequence: u32,
    pub window: u16,
    pub timestamps: bool,
    pub now_us: u64,
}

/// The packet of a segment.
pub fn packet(head: &Head, data: &[u8]) -> Vec<u8> {
    let mut out = vec![0; header_bytes(head.to, &head.options) + data.len()];
    write(head, true, &mut out, |place| place.copy_from_slice(data));
    out
}

/// The segments in these packets.
pub fn parse_segments(packets: &[Vec<u8>]) -> Vec<SegmentAndData> {
    let parse = |packet: &Vec<u8>| match parse(packet, Checksums::Verified) {
        Ok(Packet::Segment(Segment { head, data })) => (head, data.to_vec()),
        other => panic!("{other:?}"),
    };
    packets.iter().map(parse).collect()
}

impl Peer {
    /// An endpoint that listens, and a peer that has sent nothing.
    pub fn new(config: Config) -> Peer {
        let (peer_end, endpoint_end) = ends(false);
        let mut table = endpoint(config, endpoint_end, 5);
        table.listen(endpoint_end.port);
        Peer {
            table,
            conn: Conn(0),
            peer_end,
            endpoint_end,
            next_sequence: 1_000,
            expected_sequence: 0,
            window: 60_000,
            timestamps: false,
            now_us: 10_000_000,
        }
    }

    /// The settings of most tests: acknowledgements are not delayed.
    pub fn config() -> Config {
        Config {
            ack_delay_us: 0,
            ..Config::default()
        }
    }

    /// A connection that the peer has begun.
    pub fn connected(config: Config) -> Peer {
        Peer::new(config).connect(false)
    }

    /// Begins the connection of the peer.
    pub fn connect(mut self, timestamps: bool) -> Peer {
        self.timestamps = timestamps;
        let answers = self.deliver_segment(flag::SYN, self.next_sequence, 0, &[]);
        let [(head, _)] = &answers[..] else {
            panic!("{answers:?}")
        };
        assert!(head.has(flag::SYN | flag::ACK));
        assert!(
            self.table.is_empty(),
            "nothing is kept before the third packet"
        );
        self.next_sequence += 1;
        self.expected_sequence = head.sequence.wrapping_add(1);
        let echo = head.options.timestamps.map_or(0, |(value, _)| value);
        let answers = self.deliver_segment_with(
            flag::ACK,
            self.next_sequence,
            self.expected_sequence,
            &[],
            echo,
            |_| {},
        );
        assert!(answers.is_empty());
        self.conn = self.table.accept(0, 0).expect("a connection");
        self
    }

    /// Delivers a segment of the peer. Returns the endpoint's answers in the same turn.
    pub fn deliver_segment(
        &mut self,
        flags: u8,
        sequence: u32,
        ack: u32,
        data: &[u8],
    ) -> Vec<SegmentAndData> {
        self.deliver_segment_with(flags, sequence, ack, data, 0, |_| {})
    }

    /// [`Peer::deliver_segment`] with an echo of the endpoint's clock and with other changes.
    pub fn deliver_segment_with(
        &mut self,
        flags: u8,
        sequence: u32,
        ack: u32,
        data: &[u8],
        echo: u32,
        change: impl FnOnce(&mut Head),
    ) -> Vec<SegmentAndData> {
        let is_syn = flags & flag::SYN != 0;
        let clock = (self.now_us / 1_000) as u32;
        let mut head = Head {
            from: self.peer_end,
            to: self.endpoint_end,
            sequence,
            acknowledged: ack,
            flags,
            window: self.window,
            options: Options {
                segment_bytes: is_syn.then_some(1_460),
                timestamps: self.timestamps.then_some((clock, echo)),
                sack_permitted: is_syn && self.timestamps,
                ..Options::default()
            },
        };
        change(&mut head);
        self.deliver_packet(&packet(&head, data))
    }

    /// Delivers a packet to the endpoint. Returns its answers in the same turn.
    pub fn deliver_packet(&mut self, packet: &[u8]) -> Vec<SegmentAndData> {
        let mut device = Packets::default();
        self.table.receive(packet, self.now_us, &mut device);
        self.table.poll(self.now_us, &mut device);
        invariants::assert(&self.table, self.conn);
        parse_segments(&device.list)
    }

    /// Lets time pass. Returns the segments that the endpoint sends meanwhile.
    pub fn advance_ms(&mut self, ms: u64) -> Vec<SegmentAndData> {
        let end_us = self.now_us + ms * 1_000;
        let mut device = Packets::default();
        let mut at_once = 0;
        while let Some(next_us) = self.table.next_us()
            && next_us <= end_us
        {
            at_once = if next_us > self.now_us {
                0
            } else {
                at_once + 1
            };
            assert!(at_once < 1_000, "a deadline that never passes");
            self.now_us = self.now_us.max(next_us);
            self.table.poll(self.now_us, &mut device);
        }
        self.now_us = end_us;
        self.table.poll(end_us, &mut device);
        invariants::assert(&self.table, self.conn);
        parse_segments(&device.list)
    }

    /// Lets the endpoint send bytes, and returns the segments.
    pub fn endpoint_send(&mut self, bytes: &[u8]) -> Vec<SegmentAndData> {
        self.table
            .send(self.conn, crate::Part::Copied(bytes), self.now_us);
        self.advance_ms(0)
    }

    /// Closes the peer's window. It says so with a byte of data, since of two segments with the same numbers the larger window counts.
    pub fn close_window(&mut self) {
        let (next, ack) = (self.next_sequence, self.expected_sequence);
        self.deliver_segment(flag::ACK, next, ack, b"-");
        self.next_sequence += 1;
        self.window = 0;
        self.deliver_segment(flag::ACK, next + 1, ack, &[]);
        assert_eq!(self.endpoint_read(), b"-");
    }

    /// All bytes that can be read.
    pub fn endpoint_read(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut buffer = [0; 4_096];
        while let Received::Bytes(count) = self.table.read(self.conn, &mut buffer) {
            out.extend_from_slice(&buffer[..count]);
        }
        out
    }

    /// The state of the connection.
    pub fn state(&self) -> State {
        self.table.state(self.conn)
    }

    /// A connection in this state. The endpoint has sent no data.
    pub fn reach(state: State) -> Peer {
        let mut peer = Peer::connected(Peer::config());
        let shut = |peer: &mut Peer| {
            peer.table.shut_down(peer.conn, peer.now_us);
            let answers = peer.advance_ms(0);
            assert!(answers[0].0.has(flag::FIN | flag::ACK));
        };
        let fin = |peer: &mut Peer| {
            peer.deliver_segment(
                flag::FIN | flag::ACK,
                peer.next_sequence,
                peer.expected_sequence,
                &[],
            );
            peer.next_sequence += 1;
        };
        match state {
            State::Established => {}
            State::FinWait1 => shut(&mut peer),
            State::FinWait2 => {
                shut(&mut peer);
                peer.expected_sequence += 1;
                peer.deliver_segment(flag::ACK, peer.next_sequence, peer.expected_sequence, &[]);
            }
            State::CloseWait => fin(&mut peer),
            State::Closing => {
                shut(&mut peer);
                fin(&mut peer);
            }
            State::LastAck => {
                fin(&mut peer);
                shut(&mut peer);
            }
            State::TimeWait => {
                shut(&mut peer);
                peer.expected_sequence += 1;
                fin(&mut peer);
            }
            State::Closed | State::SynSent | State::SynReceived => {
                peer = Peer::new(Peer::config());
                let (local, remote) = (peer.endpoint_end, peer.peer_end);
                peer.conn = peer
                    .table
                    .connect(local, remote, 0, peer.now_us)
                    .expect("room");
                let answers = peer.advance_ms(0);
                peer.expected_sequence = answers[0].0.sequence.wrapping_add(1);
                if state == State::SynReceived {
                    peer.deliver_segment(flag::SYN, peer.next_sequence, 0, &[]);
                    peer.next_sequence += 1;
                }
                if state == State::Closed {
                    peer.deliver_segment(flag::RST | flag::ACK, 0, peer.expected_sequence, &[]);
                }
            }
        }
        assert_eq!(peer.state(), state);
        peer
    }
}
