//! One connection of an attacker. It runs its script without blocking, and checks the answers of the server.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::answers::Answers;
use crate::script::{Script, Send, Step, TlsStart};

/// A connection is closed after this time, at any point of its script.
const LIFETIME_MAX: Duration = Duration::from_secs(30);
/// A send is given up if the socket accepts nothing for this time, and so are later sends.
const SEND_TIMEOUT: Duration = Duration::from_secs(6);
/// The maximum of bytes read in a turn (one call for this connection), so that no connection holds up the others.
const READ_BYTES: usize = 256 << 10;
/// The maximum of unsent bytes that TLS may hold.
const TLS_BYTES: usize = 256 << 10;

/// A handshake record of TLS (RFC 8446 section 5.1) and the length of its header.
const HANDSHAKE: u8 = 22;
const RECORD_HEADER: usize = 5;

/// The configurations of TLS clients.
#[derive(Clone)]
pub struct TlsConfigs {
    pub any_version: Arc<ClientConfig>,
    /// TLS 1.2 only.
    pub tls12: Arc<ClientConfig>,
}

/// The outcome of a turn (one call for a connection).
pub enum Turn {
    /// Something happened, so the connection should be looked at again soon.
    Busy,
    Idle,
    Over,
}

struct Tls {
    session: Box<ClientConnection>,
    /// TLS records that are sealed and not sent.
    sealed: Vec<u8>,
}

pub struct Connection {
    pub script: Arc<Script>,
    stream: TcpStream,
    tls: Option<Tls>,
    answers: Answers,
    step: usize,
    /// Bytes already sent of the send under way.
    sent_bytes: usize,
    are_answers_expected: bool,
    has_stopped_reading: bool,
    /// The attacker sends nothing more.
    has_stopped_sending: bool,
    opened_at: Instant,
    step_started_at: Instant,
    /// The script does nothing before this time.
    pause_until: Instant,
    last_progress: Instant,
    /// The connection ends by a reset.
    must_reset: bool,
}

impl Connection {
    /// Connects to the server, and prepares the TLS client if the script uses TLS.
    pub fn open(script: &Arc<Script>, to: SocketAddr, tls: &TlsConfigs) -> io::Result<Connection> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        if let Some(bytes) = script.receive_buffer {
            socket.set_recv_buffer_size(bytes)?;
        }
        let from = SocketAddr::from((Ipv4Addr::new(127, 0, 0, script.host), 0));
        socket.bind(&SockAddr::from(from))?;
        socket.connect_timeout(&SockAddr::from(to), Duration::from_secs(2))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        let now = Instant::now();
        Ok(Connection {
            tls: script.tls.map(|start| Tls::new(start, tls)),
            script: Arc::clone(script),
            stream: socket.into(),
            answers: Answers::new(script.protocol),
            step: 0,
            sent_bytes: 0,
            are_answers_expected: false,
            has_stopped_reading: false,
            has_stopped_sending: false,
            opened_at: now,
            step_started_at: now,
            pause_until: now,
            last_progress: now,
            must_reset: false,
        })
    }

    /// Reads, and continues the script. The error is a violation by the server.
    pub fn turn(&mut self, now: Instant, buffer: &mut [u8]) -> Result<Turn, String> {
        if now.duration_since(self.opened_at) > LIFETIME_MAX {
            return Ok(Turn::Over);
        }
        let read = match self.read_arrived(buffer)? {
            None => return Ok(Turn::Over),
            Some(bytes) => bytes > 0,
        };
        self.send_sealed();
        if now < self.pause_until {
            return Ok(if read { Turn::Busy } else { Turn::Idle });
        }
        if self.is_shaking_hands() && !self.has_stopped_sending {
            return Ok(Turn::Idle);
        }
        match self.run_step(now) {
            Turn::Idle if read => Ok(Turn::Busy),
            turn => Ok(turn),
        }
    }

    fn is_shaking_hands(&self) -> bool {
        let tls = self.tls.as_ref();
        tls.is_some_and(|tls| tls.session.is_handshaking())
    }

    /// Reads what has arrived. `None` if the connection has ended.
    fn read_arrived(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, String> {
        if self.has_stopped_reading && !self.is_shaking_hands() {
            return Ok(Some(0));
        }
        let mut total = 0;
        while total < READ_BYTES {
            match self.stream.read(buffer) {
                Ok(0) => return Ok(None),
                Ok(read) => {
                    total += read;
                    let bytes = &mut buffer[..read];
                    match &mut self.tls {
                        None => self.answers.check(bytes)?,
                        Some(tls) => {
                            if !tls.open(bytes, &mut self.answers)? {
                                return Ok(None);
                            }
                        }
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Ok(None), // reset, as it may be
            }
        }
        Ok(Some(total))
    }

    /// Sends the records that TLS has sealed.
    fn send_sealed(&mut self) {
        let Some(tls) = &mut self.tls else { return };
        tls.seal();
        while !tls.sealed.is_empty() {
            match self.stream.write(&tls.sealed) {
                Ok(accepted) => drop(tls.sealed.drain(..accepted)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.has_stopped_sending = true;
                    tls.sealed.clear();
                }
            }
        }
    }

    fn run_step(&mut self, now: Instant) -> Turn {
        let script = Arc::clone(&self.script);
        let waited = now.duration_since(self.step_started_at);
        let is_done = match script.steps.get(self.step) {
            None => return self.linger(waited),
            Some(Step::Send(send)) => return self.send(send, now),
            Some(Step::StopReading(stops)) => {
                self.has_stopped_reading = *stops;
                true
            }
            Some(Step::Wait(ms)) => waited >= Duration::from_millis(*ms),
            Some(Step::Await(count, ms)) => {
                self.answers.count >= *count || waited >= Duration::from_millis(*ms)
            }
            Some(Step::KeyUpdates(count)) => {
                if let Some(tls) = &mut self.tls {
                    // TLS 1.2 has no key updates.
                    for _ in 0..*count {
                        let _ = tls.session.refresh_traffic_keys();
                        tls.seal();
                    }
                }
                true
            }
            Some(Step::HalfClose) => {
                let _ = self.stream.shutdown(Shutdown::Write);
                self.has_stopped_sending = true;
                true
            }
            Some(Step::Reset) => {
                self.must_reset = true;
                return Turn::Over;
            }
            Some(Step::Close) => return Turn::Over,
        };
        if !is_done {
            return Turn::Idle;
        }
        self.next_step(now);
        Turn::Busy
    }

    fn linger(&mut self, waited: Duration) -> Turn {
        if waited < Duration::from_millis(self.script.linger_ms) {
            return Turn::Idle;
        }
        Turn::Over
    }

    fn next_step(&mut self, now: Instant) {
        self.step += 1;
        self.sent_bytes = 0;
        self.are_answers_expected = false;
        self.step_started_at = now;
        self.last_progress = now;
    }

    fn send(&mut self, send: &Send, now: Instant) -> Turn {
        if !self.are_answers_expected {
            self.are_answers_expected = true;
            self.answers.expect_answers_to(&send.asks);
        }
        let unsent = &send.bytes[self.sent_bytes..];
        let piece = match send.piece {
            0 => unsent.len(),
            piece => unsent.len().min(piece),
        };
        if self.has_stopped_sending || unsent.is_empty() {
            self.next_step(now);
            return Turn::Busy;
        }
        let accepted = match &mut self.tls {
            None => self.stream.write(&unsent[..piece]),
            Some(tls) => match tls.sealed.len() {
                0..TLS_BYTES => tls.session.writer().write(&unsent[..piece]),
                _ => Err(ErrorKind::WouldBlock.into()),
            },
        };
        match accepted {
            Ok(accepted) if accepted > 0 => {
                self.sent_bytes += accepted;
                self.last_progress = now;
                self.pause_until = now + Duration::from_millis(send.gap_ms);
                Turn::Busy
            }
            Err(error) if error.kind() != ErrorKind::WouldBlock => {
                self.has_stopped_sending = true;
                Turn::Busy
            }
            _ => {
                self.has_stopped_sending = now.duration_since(self.last_progress) > SEND_TIMEOUT;
                Turn::Idle
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.must_reset {
            let _ = socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
        }
    }
}

impl Tls {
    fn new(start: TlsStart, configs: &TlsConfigs) -> Tls {
        let config = match start.old_version {
            true => &configs.tls12,
            false => &configs.any_version,
        };
        let name = ServerName::try_from("localhost").expect("a literal name");
        let mut session = ClientConnection::new(Arc::clone(config), name).expect("a client");
        session.set_buffer_limit(Some(TLS_BYTES));
        let mut tls = Tls {
            session: Box::new(session),
            sealed: Vec::new(),
        };
        tls.seal();
        if start.hello_piece > 0 {
            tls.sealed = split_record(&tls.sealed, start.hello_piece);
        }
        tls
    }

    fn seal(&mut self) {
        while self.session.wants_write() {
            if self.session.write_tls(&mut self.sealed).is_err() {
                break;
            }
        }
    }

    /// Opens received TLS records. False at the end of the session.
    fn open(&mut self, mut bytes: &[u8], answers: &mut Answers) -> Result<bool, String> {
        while !bytes.is_empty() {
            let Ok(read) = self.session.read_tls(&mut bytes) else {
                return Ok(false);
            };
            match self.session.process_new_packets() {
                Ok(_) if read > 0 => {}
                Ok(_) | Err(rustls::Error::AlertReceived(_)) => return Ok(false),
                // The server turns a client away in plain text, before it knows that the client speaks TLS.
                Err(_) if self.session.is_handshaking() => return Ok(false),
                Err(error) => return Err(format!("the server's TLS: {error}")),
            }
            let mut plain = vec![0; 32 << 10];
            while let Ok(read @ 1..) = self.session.reader().read(&mut plain) {
                answers.check(&mut plain[..read])?;
            }
        }
        Ok(true)
    }
}

/// Splits the bytes of a handshake record into records of at most `piece` bytes.
fn split_record(record: &[u8], piece: usize) -> Vec<u8> {
    let (header, hello) = record.split_at(RECORD_HEADER);
    assert_eq!(header[0], HANDSHAKE, "a ClientHello is one record");
    let mut out = Vec::new();
    for part in hello.chunks(piece) {
        out.extend_from_slice(&header[..3]);
        out.extend_from_slice(&(part.len() as u16).to_be_bytes());
        out.extend_from_slice(part);
    }
    out
}
