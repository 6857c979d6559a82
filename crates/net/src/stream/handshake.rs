//! A handshake under way: bytes in, bytes out, and at its end the keys. `rustls` does it; afterwards only the secrets and
//! the counts of both directions remain.
//!
//! Invariants: `rustls` is shown one record more at a time and never one behind the handshake's end, so that later records
//! are opened with our own count; a handshake that failed has only its alert to send.
//!
//! `rustls` reveals the traffic secrets of TLS 1.3, from which key updates follow, only to its key log. Ours keeps them in
//! a thread-local until the handshake that they belong to takes them.

use std::cell::RefCell;
use std::mem;
use std::sync::Arc;

use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus};
use rustls::{ConnectionTrafficSecrets, Error, HandshakeKind, KeyLog, ServerConfig};

use super::cipher::{Cipher, HEADER_BYTES, SEALED_MAX, Secret};

/// The most bytes held of a peer's flight and the bytes right behind it, where clients show certificates: a long chain.
pub const INCOMING_MAX: usize = 1 << 16;
/// The same where clients show none: one record, of which their flights fill a tenth.
pub const RECORD_MAX: usize = HEADER_BYTES + SEALED_MAX;
/// Records of a peer in one handshake. All of [`INCOMING_MAX`] in the smallest records that are ever negotiated (512 bytes,
/// RFC 6066 section 4) are 128; in records of a byte they would cost as much as the handshake's signature.
const RECORDS_MAX: u32 = 256;
/// Bytes that a handshake holds besides those that came and wait: its row here, and the heap of `rustls` after the client's
/// first flight (`tests/held` measures it).
pub const HELD_BYTES: usize = 8 << 10;

/// The first byte of every version of TLS.
const MAJOR: u8 = 3;

thread_local! {
    static SECRETS: RefCell<TrafficSecrets> = const { RefCell::new(TrafficSecrets { client: None, server: None }) };
}

/// The traffic secrets of a handshake.
#[derive(Default)]
struct TrafficSecrets {
    client: Option<Secret>,
    server: Option<Secret>,
}

/// The key log that takes the secrets of this thread's present handshake.
#[derive(Debug)]
pub struct Tap;

impl KeyLog for Tap {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        SECRETS.with_borrow_mut(|seen| match label {
            "CLIENT_TRAFFIC_SECRET_0" => seen.client = Some(Secret::of(&[secret])),
            "SERVER_TRAFFIC_SECRET_0" => seen.server = Some(Secret::of(&[secret])),
            _ => {}
        });
    }

    fn will_log(&self, label: &str) -> bool {
        matches!(label, "CLIENT_TRAFFIC_SECRET_0" | "SERVER_TRAFFIC_SECRET_0")
    }
}

/// The result of a handshake.
pub struct Established {
    pub cipher: Cipher,
    /// The secret to the peer, and how many records went out with it.
    pub to: (Secret, u64),
    pub from: (Secret, u64),
    /// Whether it resumed a former connection.
    pub resumed: bool,
}

/// A handshake.
pub struct Handshake {
    tls: UnbufferedServerConnection,
    incoming: Vec<u8>,
    incoming_max: usize,
    /// How many of the incoming bytes were shown to `tls`.
    shown: usize,
    /// Records that may still come.
    records_left: u32,
    /// Bytes to be sent.
    pub outgoing: Vec<u8>,
    seen: TrafficSecrets,
}

impl Handshake {
    /// A handshake that holds at most so many bytes of its peer.
    ///
    /// # Errors
    /// When the settings fit no connection.
    pub fn new(config: Arc<ServerConfig>, incoming_max: usize) -> Result<Handshake, Error> {
        Ok(Handshake {
            tls: UnbufferedServerConnection::new(config)?,
            incoming: Vec::new(),
            incoming_max,
            shown: 0,
            records_left: RECORDS_MAX,
            outgoing: Vec::new(),
            seen: TrafficSecrets::default(),
        })
    }

    /// How many bytes more it can hold.
    pub fn room(&self) -> usize {
        self.incoming_max - self.incoming.len()
    }

    /// Bytes that it holds.
    pub fn held_bytes(&self) -> usize {
        HELD_BYTES + self.incoming.capacity() + self.outgoing.capacity()
    }

    /// Whether its peer has sent more records than a handshake needs.
    pub fn is_cut_up(&self) -> bool {
        self.records_left == 0
    }

    /// Takes bytes of the peer.
    ///
    /// # Panics
    /// When there are more than it has [`room`](Handshake::room) for.
    pub fn take(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.room(), "no more is received than fits");
        self.incoming.extend_from_slice(bytes);
    }

    /// Goes as far as the received bytes allow; true when the handshake is over.
    ///
    /// # Errors
    /// When it has failed; an alert may be among the outgoing bytes.
    pub fn go_on(&mut self) -> Result<bool, Error> {
        // Without a whole record there is nothing to do, however many pieces it comes in.
        if !self.show_record() {
            return Ok(false);
        }
        SECRETS.with_borrow_mut(|seen| *seen = mem::take(&mut self.seen));
        let over = self.process();
        SECRETS.with_borrow_mut(|seen| self.seen = mem::take(seen));
        if over.is_err() {
            self.append_alert();
        }
        over
    }

    fn process(&mut self) -> Result<bool, Error> {
        loop {
            let shown = &mut self.incoming[..self.shown];
            let UnbufferedStatus { discard, state } = self.tls.process_tls_records(shown);
            let mut waits = false;
            let state = match state {
                Ok(state) => state,
                Err(error) => {
                    self.discard(discard);
                    return Err(error);
                }
            };
            match state {
                ConnectionState::EncodeTlsData(encode) => append(encode, &mut self.outgoing),
                ConnectionState::TransmitTlsData(transmit) => transmit.done(),
                // A server may write before the client has finished: it is not over then.
                ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_) => {
                    waits = true;
                }
                _ => return Err(Error::HandshakeNotComplete),
            }
            self.discard(discard);
            if !waits {
                continue;
            }
            if !self.tls.is_handshaking() {
                return Ok(true);
            }
            if !self.show_record() {
                return Ok(false);
            }
        }
    }

    /// After a failure only the alert is left to be sent. `rustls` remembers its place in the input, so it is shown the
    /// same bytes again; asked again after the alert, it would process them a second time.
    fn append_alert(&mut self) {
        while self.tls.wants_write() {
            let shown = &mut self.incoming[..self.shown];
            let UnbufferedStatus { discard, state } = self.tls.process_tls_records(shown);
            let Ok(ConnectionState::EncodeTlsData(encode)) = state else {
                return;
            };
            append(encode, &mut self.outgoing);
            self.discard(discard);
        }
    }

    fn discard(&mut self, bytes: usize) {
        self.incoming.drain(..bytes);
        self.shown -= bytes;
    }

    /// Shows `rustls` one record more; false when none is whole, or there were too many.
    fn show_record(&mut self) -> bool {
        if self.is_cut_up() {
            return false;
        }
        let hidden = &self.incoming[self.shown..];
        let Some(header) = hidden.first_chunk::<HEADER_BYTES>() else {
            return false;
        };
        let sealed = usize::from(u16::from_be_bytes([header[3], header[4]]));
        let length = HEADER_BYTES + sealed;
        let is_record = header[1] == MAJOR && sealed <= SEALED_MAX;
        if hidden.len() < length && is_record {
            return false;
        }
        // Bytes that are no record are refused by their header.
        self.shown += length.min(hidden.len());
        self.records_left = self.records_left.saturating_sub(1);
        true
    }

    /// The keys of the finished handshake, and the bytes that came behind it.
    ///
    /// # Errors
    /// When it is not over, or `rustls` does not give a secret.
    pub fn establish(mut self) -> Result<(Established, Vec<u8>), Error> {
        let resumed = self.tls.handshake_kind() == Some(HandshakeKind::Resumed);
        let (secrets, connection) = self.tls.dangerous_into_kernel_connection()?;
        let suite = connection.negotiated_cipher_suite().suite();
        let cipher = Cipher::of(suite, &secrets.tx.1).ok_or(Error::HandshakeNotComplete)?;
        let secret = |seen: Option<Secret>, traffic: &ConnectionTrafficSecrets| {
            if cipher.is_13() {
                seen.filter(|secret| secret.bytes().len() == cipher.secret_bytes())
            } else {
                key_and_iv(traffic)
            }
        };
        let to = secret(self.seen.server.take(), &secrets.tx.1);
        let from = secret(self.seen.client.take(), &secrets.rx.1);
        let (Some(to), Some(from)) = (to, from) else {
            return Err(Error::HandshakeNotComplete);
        };
        self.incoming.drain(..self.shown);
        let established = Established {
            cipher,
            to: (to, secrets.tx.0),
            from: (from, secrets.rx.0),
            resumed,
        };
        Ok((established, self.incoming))
    }
}

fn key_and_iv(traffic: &ConnectionTrafficSecrets) -> Option<Secret> {
    match traffic {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv }
        | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
        | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
            Some(Secret::of(&[key.as_ref(), iv.as_ref()]))
        }
        _ => None,
    }
}

fn append<Data>(mut encode: EncodeTlsData<'_, Data>, out: &mut Vec<u8>) {
    let begin = out.len();
    if let Err(EncodeError::InsufficientSize(size)) = encode.encode(&mut []) {
        out.resize(begin + size.required_size, 0);
        let written = encode.encode(&mut out[begin..]);
        assert!(written.is_ok(), "there is the room that was asked for");
    }
}
