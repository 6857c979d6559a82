//! One TLS handshake, done by `rustls`. After it, only the secrets and the record counts of both directions are kept.
//!
//! Invariants: `rustls` gets one record at a time, and none after the end of the handshake, because later records are opened with our own
//! record counts. A failed handshake sends only its alert.
//!
//! Key updates need the traffic secrets of TLS 1.3, which `rustls` gives only to its key log. Our key log stores them in a thread-local
//! variable, from which the handshake takes them.

use std::cell::RefCell;
use std::mem;
use std::sync::Arc;

use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus};
use rustls::{ConnectionTrafficSecrets, Error, HandshakeKind, KeyLog, ServerConfig};

use super::cipher::{Cipher, DirectionStart, HEADER_BYTES, SEALED_MAX, Secret};

/// The maximum number of received bytes that a handshake holds if clients send certificates: enough for a long chain of certificates.
pub const INCOMING_MAX: usize = 1 << 16;
/// The same if clients send no certificates: one record. The messages of clients fill a tenth of it.
pub const RECORD_MAX: usize = HEADER_BYTES + SEALED_MAX;
/// The maximum number of records that a client may send in a handshake. [`INCOMING_MAX`] bytes in the smallest records that can be
/// negotiated (512 bytes, RFC 6066 section 4) are 128 records. The same bytes in records of one byte would take as much time as the
/// signature of the handshake.
const RECORDS_MAX: u32 = 256;
/// Bytes that a handshake holds, besides received and outgoing bytes: its struct, and what `rustls` allocates up to the client's first
/// message (`tests/held` measures it).
pub const HELD_BYTES: usize = 8 << 10;

/// The first byte of every version of TLS.
const MAJOR_VERSION: u8 = 3;

thread_local! {
    static SECRETS: RefCell<TrafficSecrets> = const { RefCell::new(TrafficSecrets { client: None, server: None }) };
}

/// The traffic secrets of a handshake.
#[derive(Default)]
struct TrafficSecrets {
    client: Option<Secret>,
    server: Option<Secret>,
}

/// The key log: stores the secrets of the handshake that this thread is processing.
#[derive(Debug)]
pub struct SecretLog;

impl KeyLog for SecretLog {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        SECRETS.with_borrow_mut(|secrets| match label {
            "CLIENT_TRAFFIC_SECRET_0" => secrets.client = Some(Secret::of(&[secret])),
            "SERVER_TRAFFIC_SECRET_0" => secrets.server = Some(Secret::of(&[secret])),
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
    /// The secret and sequence number with which sending starts after the handshake.
    pub sending: DirectionStart,
    /// The secret and sequence number with which receiving starts after the handshake.
    pub receiving: DirectionStart,
    /// Whether the handshake resumed an earlier session.
    pub is_resumed: bool,
}

/// The settings of one handshake.
#[derive(Clone)]
pub struct HandshakeConfig {
    pub config: Arc<ServerConfig>,
    /// The maximum number of bytes from the peer that the handshake may hold.
    pub incoming_max: usize,
}

/// A handshake that is not finished.
pub struct Handshake {
    tls: UnbufferedServerConnection,
    incoming: Vec<u8>,
    incoming_max: usize,
    /// Number of incoming bytes that `tls` has seen.
    shown_bytes: usize,
    /// Number of records that the peer may still send.
    records_left: u32,
    /// Bytes to be sent.
    pub outgoing: Vec<u8>,
    /// The traffic secrets that the key log has received so far.
    secrets: TrafficSecrets,
}

impl Handshake {
    /// A handshake with these settings.
    ///
    /// # Errors
    /// If the settings are unusable.
    pub fn new(settings: HandshakeConfig) -> Result<Handshake, Error> {
        Ok(Handshake {
            tls: UnbufferedServerConnection::new(settings.config)?,
            incoming: Vec::new(),
            incoming_max: settings.incoming_max,
            shown_bytes: 0,
            records_left: RECORDS_MAX,
            outgoing: Vec::new(),
            secrets: TrafficSecrets::default(),
        })
    }

    /// The number of bytes that the handshake can still take.
    pub fn room(&self) -> usize {
        self.incoming_max - self.incoming.len()
    }

    /// Bytes of memory that the handshake holds.
    pub fn held_bytes(&self) -> usize {
        HELD_BYTES + self.incoming.capacity() + self.outgoing.capacity()
    }

    /// Whether the peer has sent more records than a handshake needs.
    pub fn has_too_many_records(&self) -> bool {
        self.records_left == 0
    }

    /// Adds received bytes.
    ///
    /// # Panics
    /// If there are more bytes than [`room`](Handshake::room) says.
    pub fn add_received(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.room(), "no more is received than fits");
        self.incoming.extend_from_slice(bytes);
    }

    /// Does all steps for which the bytes have arrived. Returns whether the handshake is finished.
    ///
    /// # Errors
    /// If the handshake has failed. The outgoing bytes may end with an alert.
    pub fn advance(&mut self) -> Result<bool, Error> {
        // Without a whole record there is nothing to do, so a record that arrives in many pieces costs little.
        if !self.show_record() {
            return Ok(false);
        }
        SECRETS.with_borrow_mut(|secrets| *secrets = mem::take(&mut self.secrets));
        let result = self.process();
        SECRETS.with_borrow_mut(|secrets| self.secrets = mem::take(secrets));
        if result.is_err() {
            self.append_alert();
        }
        result
    }

    fn process(&mut self) -> Result<bool, Error> {
        loop {
            let shown = &mut self.incoming[..self.shown_bytes];
            let UnbufferedStatus { discard, state } = self.tls.process_tls_records(shown);
            let mut is_blocked = false;
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
                // `rustls` lets a server write before the client has finished, so `WriteTraffic` does not mean that the handshake is
                // finished.
                ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_) => {
                    is_blocked = true;
                }
                _ => return Err(Error::HandshakeNotComplete),
            }
            self.discard(discard);
            if !is_blocked {
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

    /// Appends the alert after a failure. `rustls` remembers its position in the input, so this call passes the same bytes again. After the
    /// alert `rustls` must not be called again: it would process these bytes a second time.
    fn append_alert(&mut self) {
        while self.tls.wants_write() {
            let shown = &mut self.incoming[..self.shown_bytes];
            let UnbufferedStatus { discard, state } = self.tls.process_tls_records(shown);
            let Ok(ConnectionState::EncodeTlsData(encode)) = state else {
                return;
            };
            append(encode, &mut self.outgoing);
            self.discard(discard);
        }
    }

    /// Removes bytes that `rustls` has processed.
    fn discard(&mut self, bytes: usize) {
        self.incoming.drain(..bytes);
        self.shown_bytes -= bytes;
    }

    /// Gives `rustls` one more record. Returns false if the next record is incomplete, or if there were too many.
    fn show_record(&mut self) -> bool {
        if self.has_too_many_records() {
            return false;
        }
        let unshown = &self.incoming[self.shown_bytes..];
        let Some(header) = unshown.first_chunk::<HEADER_BYTES>() else {
            return false;
        };
        let body_bytes = usize::from(u16::from_be_bytes([header[3], header[4]]));
        let length = HEADER_BYTES + body_bytes;
        let is_record = header[1] == MAJOR_VERSION && body_bytes <= SEALED_MAX;
        if unshown.len() < length && is_record {
            return false;
        }
        // If the bytes are no record, `rustls` gets them and refuses their header.
        self.shown_bytes += length.min(unshown.len());
        self.records_left = self.records_left.saturating_sub(1);
        true
    }

    /// Returns the keys of the finished handshake, and the bytes that arrived after it.
    ///
    /// # Errors
    /// If the handshake is not finished, or a secret is missing.
    pub fn establish(mut self) -> Result<(Established, Vec<u8>), Error> {
        let is_resumed = self.tls.handshake_kind() == Some(HandshakeKind::Resumed);
        let (secrets, connection) = self.tls.dangerous_into_kernel_connection()?;
        let suite = connection.negotiated_cipher_suite().suite();
        let cipher = Cipher::of(suite, &secrets.tx.1).ok_or(Error::HandshakeNotComplete)?;
        let secret = |logged: Option<Secret>, traffic: &ConnectionTrafficSecrets| {
            if cipher.is_13() {
                logged.filter(|secret| secret.bytes().len() == cipher.secret_bytes())
            } else {
                key_and_iv(traffic)
            }
        };
        let send_secret = secret(self.secrets.server.take(), &secrets.tx.1);
        let receive_secret = secret(self.secrets.client.take(), &secrets.rx.1);
        let (Some(send_secret), Some(receive_secret)) = (send_secret, receive_secret) else {
            return Err(Error::HandshakeNotComplete);
        };
        self.incoming.drain(..self.shown_bytes);
        let established = Established {
            cipher,
            sending: DirectionStart {
                secret: send_secret,
                seq: secrets.tx.0,
            },
            receiving: DirectionStart {
                secret: receive_secret,
                seq: secrets.rx.0,
            },
            is_resumed,
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
    let start = out.len();
    if let Err(EncodeError::InsufficientSize(size)) = encode.encode(&mut []) {
        out.resize(start + size.required_size, 0);
        let written = encode.encode(&mut out[start..]);
        assert!(written.is_ok(), "there is the room that was asked for");
    }
}
