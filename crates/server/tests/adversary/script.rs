//! An attacker's actions, as data. A script is made from a seed before anything is sent, can be printed, and does not depend on the
//! server's answers.

use std::fmt;
use std::sync::Arc;

use crore_wire::mqtt::Version;

/// The actions of one attacker, or of a crowd: several connections that all do the same.
pub struct Script {
    /// The name of the generator that made the script.
    pub kind: &'static str,
    /// Number of connections that carry out the script.
    pub sockets: usize,
    /// The connections come from 127.0.0.`host`.
    pub host: u8,
    pub port: Port,
    /// `SO_RCVBUF`. With a small buffer few bytes fill the socket.
    pub receive_buffer: Option<usize>,
    /// How to begin TLS. `None`: no TLS.
    pub tls: Option<TlsStart>,
    /// The protocol by whose rules the answers are judged.
    pub protocol: Protocol,
    pub steps: Vec<Step>,
    /// After the last step the connection reads for this time (unless it is deaf), and then closes.
    pub linger_ms: u64,
    /// Another script that begins at the same time.
    pub beside: Option<Arc<Script>>,
    /// Another script that begins when this one is over.
    pub then: Option<Arc<Script>>,
}

/// The port of the server that a script connects to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    Data,
    Admin,
}

/// How a TLS connection begins.
#[derive(Clone, Copy, Debug)]
pub struct TlsStart {
    /// Splits the ClientHello into records of this many bytes. 0: one record.
    pub hello_piece: usize,
    /// TLS 1.2 only.
    pub old_version: bool,
}

/// The protocol by whose rules the answers are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http,
    Http2,
    Mqtt(Version),
    /// The bytes that were sent are no protocol: any answer is fine.
    Noise,
}

/// One action of an attacker. The next one begins when this one is done.
#[derive(Clone)]
pub enum Step {
    Send(Send),
    /// Stops reading, or reads again.
    StopReading(bool),
    Wait(u64),
    /// Waits until this many answers (HTTP), frames or packets have arrived since the start, but at most this many milliseconds.
    Await(usize, u64),
    /// Updates the TLS keys this many times.
    KeyUpdates(usize),
    HalfClose,
    Reset,
    Close,
}

/// Bytes to send, and the requests in them.
#[derive(Clone)]
pub struct Send {
    /// A description for readers of the script.
    pub label: String,
    pub bytes: Arc<[u8]>,
    /// The maximum of bytes in one write. 0: as many as the socket takes.
    pub piece: usize,
    /// Time between two writes.
    pub gap_ms: u64,
    /// The requests in the bytes, each of which must get an answer.
    pub asks: Vec<Ask>,
}

/// The kind of a request, as far as it decides how to read the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    Plain,
    /// A HEAD request, whose answer has no body.
    Head,
    /// Bytes that are no request. The server may answer them once, and then ends the connection.
    Junk,
}

impl Send {
    pub fn new(label: impl Into<String>, bytes: Vec<u8>) -> Send {
        Send {
            label: label.into(),
            bytes: bytes.into(),
            piece: 0,
            gap_ms: 0,
            asks: Vec::new(),
        }
    }

    pub fn asking(mut self, ask: Ask) -> Send {
        self.asks.push(ask);
        self
    }

    pub fn in_pieces(mut self, piece: usize, gap_ms: u64) -> Send {
        (self.piece, self.gap_ms) = (piece, gap_ms);
        self
    }

    /// Repeats the bytes in one write.
    pub fn times(mut self, count: usize) -> Send {
        self.label = format!("{count} x {}", self.label);
        self.bytes = self.bytes.repeat(count).into();
        self.asks = self.asks.repeat(count);
        self
    }
}

impl Script {
    pub fn new(kind: &'static str, protocol: Protocol, steps: Vec<Step>) -> Script {
        Script {
            kind,
            sockets: 1,
            host: 2,
            port: Port::Data,
            receive_buffer: None,
            tls: None,
            protocol,
            steps,
            linger_ms: 500,
            beside: None,
            then: None,
        }
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} connection(s) from 127.0.0.{} to the {:?} port, answers as {:?}",
            self.kind, self.sockets, self.host, self.port, self.protocol
        )?;
        if let Some(bytes) = self.receive_buffer {
            write!(f, ", receive buffer of {bytes}")?;
        }
        if let Some(tls) = self.tls {
            write!(f, ", {tls:?}")?;
        }
        for step in &self.steps {
            write!(f, "\n    {step}")?;
        }
        write!(f, "\n    reads for {} ms, closes", self.linger_ms)?;
        if let Some(beside) = &self.beside {
            write!(f, "\n  beside it {beside}")?;
        }
        match &self.then {
            Some(then) => write!(f, "\n  then {then}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Send(send) => {
                write!(f, "sends {} ({} bytes", send.label, send.bytes.len())?;
                if send.piece > 0 {
                    write!(f, ", {} at a time, {} ms between", send.piece, send.gap_ms)?;
                }
                f.write_str(")")
            }
            Step::StopReading(true) => f.write_str("reads no more"),
            Step::StopReading(false) => f.write_str("reads again"),
            Step::Wait(ms) => write!(f, "waits {ms} ms"),
            Step::Await(count, ms) => write!(f, "awaits {count} answers, at most {ms} ms"),
            Step::KeyUpdates(count) => write!(f, "updates its keys {count} times"),
            Step::HalfClose => f.write_str("closes its half"),
            Step::Reset => f.write_str("resets"),
            Step::Close => f.write_str("closes"),
        }
    }
}
