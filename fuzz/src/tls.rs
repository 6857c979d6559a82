//! Fuzz target for a TLS connection whose records are changed in transit: cut, spliced, repeated, lost, or divided into small ones.
//!
//! The input is a program: the data of both sides, and the changes to the records. Keys and nonces are new in every run, so a kept input
//! means the same changes, but not the same bytes.

use std::io::Write as _;
use std::sync::{Arc, OnceLock};

use crore_net::stream::{Handle, Limits, StreamState};
use rustls::ClientConfig;
use rustls::client::Resumption;

use crate::Input;
use pair::{LIMITS, Pair};

#[allow(dead_code, reason = "the tests of the records need the rest of it")]
#[path = "../../crates/net/tests/streams/pair.rs"]
mod pair;

/// The maximum of bytes that one connection makes the server hold. During the handshake these are `rustls` and one record, later a partial
/// record and the rest of a sealed record; in both cases also the rows and queues of a table with one entry.
const HELD_MAX: usize = 64 << 10;
/// The maximum of bytes that either side sends at once.
const SEND_BYTES_MAX: usize = 20_000;
/// The maximum of steps in a program. More would only be slow.
const STEPS_MAX: usize = 60;

/// One server for all inputs, and a client for each cipher. Clients keep no session tickets, so that every handshake is a full one.
struct Server {
    handle: Arc<Handle>,
    clients: Vec<Arc<ClientConfig>>,
}

fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        let source = pair::source();
        let client = |suite| {
            let mut config = (*pair::client(&source, suite)).clone();
            config.resumption = Resumption::disabled();
            Arc::new(config)
        };
        Server {
            clients: pair::suites().map(client).to_vec(),
            handle: Handle::new(source).expect("a certificate"),
        }
    })
}

/// The remaining bytes of a program, followed by zeros.
struct Program<'a>(&'a [u8]);

impl Program<'_> {
    fn byte(&mut self) -> usize {
        let Some((byte, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        (*byte).into()
    }
}

/// The state of a connection.
struct Run {
    pair: Pair,
    cuts: Vec<usize>,
    /// The bytes sent by the client, and by the server.
    sent: Vec<u8>,
    answered: Vec<u8>,
    /// Whether all records arrived unchanged.
    whole: bool,
}

/// Runs a program. Checked, however the records are changed: the bytes that the server reads are a prefix of the bytes sent, the server
/// holds little memory, and it ends connections that it cannot read.
pub fn tls(data: &[u8]) {
    let Some(input) = Input::of(data) else {
        return;
    };
    let suite = usize::from(input.options) % server().clients.len();
    let mut program = Program(input.bytes);
    // Without this limit, a changed first byte would turn the connection into a plain one, which is not tested here.
    let limits = Limits {
        required: true,
        ..LIMITS
    };
    let client = server().clients[suite].clone();
    let mut pair = Pair::with_limits(server().handle.clone(), client, limits);
    pair.client.set_buffer_limit(None);
    let cuts = match input.cuts {
        0 => vec![1, 2, 3, 700],
        cut => vec![usize::from(cut), 40 * usize::from(cut)],
    };
    let mut run = Run {
        pair,
        cuts,
        sent: Vec::new(),
        answered: Vec::new(),
        whole: true,
    };
    // The options also select the flights of the handshake to change, by their bits.
    let mut tampers = usize::from(input.options) / server().clients.len();
    while run.is_open() {
        let mut records = records(&run.pair.outgoing());
        if records.is_empty() {
            break;
        }
        if tampers & 1 == 1 {
            run.tamper(&mut records, &mut program);
        }
        tampers >>= 1;
        run.deliver(&records);
    }
    for _ in 0..STEPS_MAX {
        if program.0.is_empty() || !run.is_open() || run.pair.client.is_handshaking() {
            break;
        }
        run.step(&mut program);
    }
    run.end();
}

impl Run {
    fn is_open(&self) -> bool {
        self.pair.server_state != StreamState::Closed && self.pair.error.is_none()
    }

    fn step(&mut self, program: &mut Program<'_>) {
        let what = program.byte();
        if what.is_multiple_of(8) {
            return self.answer(program.byte() * 80);
        }
        for n in 0..what / 8 % 4 + 1 {
            let text = self.text(program.byte() * 80 % SEND_BYTES_MAX);
            let writer = self.pair.client.writer().write_all(&text);
            writer.expect("there is room");
            self.sent.extend_from_slice(&text);
            if what % 8 == 1 && n == 0 {
                // TLS 1.2 has no key update.
                let _ = self.pair.client.refresh_traffic_keys();
            }
        }
        if what % 8 == 2 {
            self.pair.client.send_close_notify();
        }
        let mut records = records(&self.pair.outgoing());
        if what % 8 > 3 {
            self.tamper(&mut records, program);
        }
        self.deliver(&records);
    }

    /// Bytes that depend on their position.
    fn text(&self, len: usize) -> Vec<u8> {
        (self.sent.len()..self.sent.len() + len)
            .map(|n| (n % 251) as u8)
            .collect()
    }

    /// Changes the records, as the program says.
    fn tamper(&mut self, records: &mut Vec<Vec<u8>>, program: &mut Program<'_>) {
        if records.is_empty() {
            return;
        }
        let (what, n) = (program.byte(), program.byte() % records.len());
        let place = program.byte() * 256 + program.byte();
        let record = &mut records[n];
        let place = place % record.len();
        self.whole = false;
        match what % 8 {
            0 => record[place] ^= 1 << (what / 8 % 8),
            1 => record.truncate(place),
            2 => records.insert(n, records[n].clone()),
            3 => drop(records.remove(n)),
            4 => records.swap(0, n),
            5 => drop(record.splice(place..place, [program.byte() as u8; 3])),
            6 => {
                let other = records[program.byte() % records.len()].clone();
                records[n].truncate(place);
                records[n].extend_from_slice(&other);
            }
            _ => {
                let fragments = fragments(record, program.byte() + 1);
                records.splice(n..=n, fragments);
            }
        }
    }

    /// Delivers records to the server, cut without regard to their borders.
    fn deliver(&mut self, records: &[Vec<u8>]) {
        let bytes = records.concat();
        let mut rest = &bytes[..];
        let cuts = self.cuts.clone();
        for cut in cuts.iter().cycle() {
            if rest.is_empty() || !self.is_open() {
                break;
            }
            let (piece, behind) = rest.split_at((*cut).min(rest.len()));
            self.pair.deliver(piece, &[piece.len()]);
            rest = behind;
            self.check();
        }
        self.pair.client_read();
        while self.pair.streams.take_ended().is_some() {
            self.pair.server_state = StreamState::Closed;
        }
    }

    /// The server sends bytes, and the client reads them.
    fn answer(&mut self, len: usize) {
        let text: Vec<u8> = (0..len).map(|n| (n % 253) as u8).collect();
        let mut sent = 0;
        while sent < len {
            let taken = self.pair.send(&[&text[sent..]]);
            sent += taken.expect("it has TLS");
            self.check();
            self.pair.client_read();
            if sent < len {
                self.pair.handle_writable();
            }
        }
        self.answered.extend_from_slice(&text);
    }

    fn check(&self) {
        let pair = &self.pair;
        assert!(
            self.sent.starts_with(&pair.server_received),
            "it hears what nobody said"
        );
        let held = pair.streams.held_bytes();
        assert!(held <= HELD_MAX, "{held} bytes are held");
    }

    fn end(mut self) {
        self.check();
        let pair = &mut self.pair;
        if self.whole && pair.server_state == StreamState::Open {
            assert_eq!(pair.error, None, "nothing was changed");
            assert!(pair.server_received == self.sent && pair.client_received == self.answered);
        }
        // Only changed records and unnecessary key updates end a connection with an error.
        let usage = pair.streams.usage();
        assert!(usage.connections + usage.unfinished_handshakes <= 1);
        pair.forget_connection(true);
        let usage = pair.streams.usage();
        assert_eq!(
            (
                usage.connections,
                usage.unfinished_handshakes,
                usage.record_bytes
            ),
            (0, 0, 0)
        );
    }
}

/// The records of a complete flight.
fn records(flight: &[u8]) -> Vec<Vec<u8>> {
    let (mut all, mut rest) = (Vec::new(), flight);
    while let [_, _, _, high, low, ..] = rest {
        let length = 5 + usize::from(u16::from_be_bytes([*high, *low]));
        let (record, behind) = rest.split_at(length);
        all.push(record.to_vec());
        rest = behind;
    }
    all
}

/// The content of a record, divided into records of at most `bytes` bytes.
fn fragments(record: &[u8], bytes: usize) -> Vec<Vec<u8>> {
    let [kind, major, minor, _, _, content @ ..] = record else {
        return vec![record.to_vec()];
    };
    let fragment = |piece: &[u8]| {
        let [high, low] = (piece.len() as u16).to_be_bytes();
        [&[*kind, *major, *minor, high, low], piece].concat()
    };
    content.chunks(bytes).map(fragment).collect()
}
