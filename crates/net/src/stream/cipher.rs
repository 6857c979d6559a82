//! The ciphers of established connections: the secrets, and how they seal (encrypt) and open (decrypt) records (RFC 8446 sections
//! 5.2, 5.3, 7.1 to 7.3; RFC 5246 section 6.2.3.3, RFC 5288, RFC 7905).
//!
//! Each direction of a connection has a secret. In TLS 1.3 it is the traffic secret, from which the key, the IV and the next secret are
//! derived. In TLS 1.2 it consists of the key and the IV. The expanded key takes half a kilobyte and is made when it is needed.
//!
//! The callers count the sequence numbers.

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce,
    UnboundKey,
};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::hkdf;
use rustls::{CipherSuite, ConnectionTrafficSecrets};
use zeroize::Zeroize as _;

/// The bytes of a record's header: type, version, length.
pub const HEADER_BYTES: usize = 5;
/// The maximum plaintext of a record in bytes (RFC 8446 section 5.1).
pub const PLAIN_MAX: usize = 1 << 14;
/// The largest length field of a record (RFC 8446 section 5.2). Peers that speak TLS 1.2 observe it too.
pub const SEALED_MAX: usize = PLAIN_MAX + 256;
/// The bytes of a tag.
pub const TAG_BYTES: usize = 16;
/// The longest secret in bytes: the traffic secret with SHA-384. (A 256-bit key and an IV take 44.)
pub const SECRET_MAX: usize = 48;
/// Bytes of the nonce that TLS 1.2 sends in each AES-GCM record.
const EXPLICIT_NONCE_BYTES: usize = 8;
/// The longest key.
const KEY_MAX: usize = 32;

/// The maximum number of records that one key of AES-GCM may seal: a third of the safe limit, 2^24.5 (RFC 8446 section 5.5).
const RECORDS_MAX: u64 = 1 << 23;

/// The type of a record's content.
#[derive(Clone, Copy, PartialEq, Eq, Debug, strum::FromRepr)]
#[repr(u8)]
pub enum ContentType {
    /// `alert`.
    Alert = 21,
    /// `handshake`.
    Handshake = 22,
    /// `application_data`.
    Data = 23,
}

/// The TLS version and the cipher of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, strum::FromRepr)]
#[repr(u8)]
pub enum Cipher {
    /// `TLS13_AES_128_GCM_SHA256`.
    Aes128 = 1,
    /// `TLS13_AES_256_GCM_SHA384`.
    Aes256 = 2,
    /// `TLS13_CHACHA20_POLY1305_SHA256`.
    ChaCha = 3,
    /// TLS 1.2 with `AES_128_GCM`.
    Tls12Aes128 = 4,
    /// TLS 1.2 with `AES_256_GCM`.
    Tls12Aes256 = 5,
    /// TLS 1.2 with `CHACHA20_POLY1305`.
    Tls12ChaCha = 6,
}

/// The secret of one direction, before it is stored in the table. It is cleared on drop.
pub struct Secret {
    bytes: [u8; SECRET_MAX],
    len: usize,
}

impl Secret {
    /// A secret that is the concatenation of `parts`.
    ///
    /// # Panics
    /// If there are more than [`SECRET_MAX`] bytes.
    pub fn of(parts: &[&[u8]]) -> Secret {
        let mut secret = Secret {
            bytes: [0; SECRET_MAX],
            len: 0,
        };
        for part in parts {
            secret.bytes[secret.len..secret.len + part.len()].copy_from_slice(part);
            secret.len += part.len();
        }
        secret
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}

/// The secret of one direction, and the sequence number of its next record.
pub struct DirectionStart {
    pub secret: Secret,
    pub seq: u64,
}

/// The expanded key of one direction, and its IV. The library clears the key on drop.
pub struct ExpandedKey {
    aead: LessSafeKey,
    iv: [u8; NONCE_LEN],
}

/// The length of a key to derive, for the library.
struct KeyLength(usize);

impl hkdf::KeyType for KeyLength {
    fn len(&self) -> usize {
        self.0
    }
}

impl Cipher {
    /// The negotiated cipher, from the types of `rustls`; `None` if it is not supported.
    pub fn of(suite: CipherSuite, secrets: &ConnectionTrafficSecrets) -> Option<Cipher> {
        use ConnectionTrafficSecrets as Traffic;
        match (suite, secrets) {
            (CipherSuite::TLS13_AES_128_GCM_SHA256, _) => Some(Cipher::Aes128),
            (CipherSuite::TLS13_AES_256_GCM_SHA384, _) => Some(Cipher::Aes256),
            (CipherSuite::TLS13_CHACHA20_POLY1305_SHA256, _) => Some(Cipher::ChaCha),
            (_, Traffic::Aes128Gcm { .. }) => Some(Cipher::Tls12Aes128),
            (_, Traffic::Aes256Gcm { .. }) => Some(Cipher::Tls12Aes256),
            (_, Traffic::Chacha20Poly1305 { .. }) => Some(Cipher::Tls12ChaCha),
            _ => None,
        }
    }

    /// Whether this is a cipher of TLS 1.3.
    pub fn is_13(self) -> bool {
        matches!(self, Cipher::Aes128 | Cipher::Aes256 | Cipher::ChaCha)
    }

    fn algorithm(self) -> &'static Algorithm {
        match self {
            Cipher::Aes128 | Cipher::Tls12Aes128 => &AES_128_GCM,
            Cipher::Aes256 | Cipher::Tls12Aes256 => &AES_256_GCM,
            Cipher::ChaCha | Cipher::Tls12ChaCha => &CHACHA20_POLY1305,
        }
    }

    fn hash(self) -> hkdf::Algorithm {
        match self {
            Cipher::Aes256 => hkdf::HKDF_SHA384,
            _ => hkdf::HKDF_SHA256,
        }
    }

    /// The length of a secret in bytes.
    pub fn secret_bytes(self) -> usize {
        match self {
            Cipher::Aes128 | Cipher::ChaCha => 32,
            Cipher::Aes256 => 48,
            _ => self.algorithm().key_len() + NONCE_LEN,
        }
    }

    /// The maximum number of records that one key may seal.
    pub fn records_max(self) -> u64 {
        match self {
            // ChaCha20 needs no limit. No connection ever sends this many records.
            Cipher::ChaCha | Cipher::Tls12ChaCha => 1 << 48,
            _ => RECORDS_MAX,
        }
    }

    fn explicit_nonce_bytes(self) -> usize {
        match self {
            Cipher::Tls12Aes128 | Cipher::Tls12Aes256 => EXPLICIT_NONCE_BYTES,
            _ => 0,
        }
    }

    /// The expanded key of a secret.
    pub fn expand_key(self, secret: &[u8]) -> ExpandedKey {
        let mut key = [0; KEY_MAX];
        let key = &mut key[..self.algorithm().key_len()];
        let mut iv = [0; NONCE_LEN];
        if self.is_13() {
            let secret = hkdf::Prk::new_less_safe(self.hash(), secret);
            expand(&secret, b"key", key);
            expand(&secret, b"iv", &mut iv);
        } else {
            key.copy_from_slice(&secret[..key.len()]);
            iv.copy_from_slice(&secret[key.len()..key.len() + NONCE_LEN]);
        }
        let bound = UnboundKey::new(self.algorithm(), key).expect("a key of the right length");
        key.zeroize();
        ExpandedKey {
            aead: LessSafeKey::new(bound),
            iv,
        }
    }

    /// Replaces a secret of TLS 1.3 with the next one, for a key update (RFC 8446 section 7.2).
    pub fn update_secret(self, secret: &mut [u8]) {
        assert!(self.is_13(), "TLS 1.2 has no key updates");
        let current = hkdf::Prk::new_less_safe(self.hash(), secret);
        expand(&current, b"traffic upd", secret);
    }

    /// Appends a sealed record to `out`. `write` appends the content of the record.
    ///
    /// # Panics
    /// If the content is longer than [`PLAIN_MAX`].
    pub fn seal(
        self,
        key: &ExpandedKey,
        seq: u64,
        content_type: ContentType,
        out: &mut Vec<u8>,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let record_start = out.len();
        let nonce = key.nonce(seq);
        let outer = if self.is_13() {
            ContentType::Data
        } else {
            content_type
        };
        out.extend_from_slice(&[outer as u8, 3, 3, 0, 0]);
        out.extend_from_slice(&nonce[NONCE_LEN - self.explicit_nonce_bytes()..]);
        let content_start = out.len();
        write(out);
        let plain_bytes = out.len() - content_start;
        assert!(plain_bytes <= PLAIN_MAX, "a record of {plain_bytes} bytes");
        if self.is_13() {
            out.push(content_type as u8);
        }
        let body_bytes = u16::try_from(out.len() + TAG_BYTES - record_start - HEADER_BYTES);
        let body_bytes = body_bytes.expect("a record's length has 16 bits");
        out[record_start + 3..record_start + 5].copy_from_slice(&body_bytes.to_be_bytes());
        let header = header_of(&out[record_start..]);
        let aad = self.aad(seq, header, plain_bytes);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let aad = Aad::from(aad.bytes());
        let tag = key
            .aead
            .seal_in_place_separate_tag(nonce, aad, &mut out[content_start..]);
        out.extend_from_slice(tag.expect("a record is short").as_ref());
    }

    /// Opens a whole record in place. Returns the type of the content and its range in `record`.
    ///
    /// # Errors
    /// If the record was not sealed with this key and this sequence number.
    pub fn open(
        self,
        key: &ExpandedKey,
        seq: u64,
        record: &mut [u8],
    ) -> Result<(u8, core::ops::Range<usize>), Unspecified> {
        let header = header_of(record);
        let content_start = HEADER_BYTES + self.explicit_nonce_bytes();
        let plain_bytes = record.len().checked_sub(content_start + TAG_BYTES);
        let plain_bytes = plain_bytes.ok_or(Unspecified)?;
        let mut nonce = key.nonce(seq);
        // The peer may choose this part of the nonce.
        nonce[NONCE_LEN - self.explicit_nonce_bytes()..]
            .copy_from_slice(&record[HEADER_BYTES..content_start]);
        let aad = self.aad(seq, header, plain_bytes);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let body = &mut record[content_start..];
        let opened = key
            .aead
            .open_in_place(nonce, Aad::from(aad.bytes()), body)?;
        if !self.is_13() {
            return Ok((header[0], content_start..content_start + plain_bytes));
        }
        // The type follows the content, and padding zeros follow the type.
        let type_offset = opened.iter().rposition(|byte| *byte != 0);
        let type_offset = type_offset.ok_or(Unspecified)?;
        Ok((
            opened[type_offset],
            content_start..content_start + type_offset,
        ))
    }

    fn aad(self, seq: u64, header: [u8; HEADER_BYTES], plain_bytes: usize) -> AdditionalData {
        let mut bytes = [0; 13];
        if self.is_13() {
            bytes[..HEADER_BYTES].copy_from_slice(&header);
            return AdditionalData {
                bytes,
                len: HEADER_BYTES,
            };
        }
        bytes[..8].copy_from_slice(&seq.to_be_bytes());
        bytes[8..11].copy_from_slice(&header[..3]);
        bytes[11..].copy_from_slice(&(plain_bytes as u16).to_be_bytes());
        AdditionalData { bytes, len: 13 }
    }
}

/// The additional data that a record's tag authenticates besides the content.
struct AdditionalData {
    bytes: [u8; 13],
    len: usize,
}

impl AdditionalData {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl ExpandedKey {
    fn nonce(&self, seq: u64) -> [u8; NONCE_LEN] {
        let mut nonce = self.iv;
        for (byte, seq_byte) in nonce[NONCE_LEN - 8..].iter_mut().zip(seq.to_be_bytes()) {
            *byte ^= seq_byte;
        }
        nonce
    }
}

fn header_of(record: &[u8]) -> [u8; HEADER_BYTES] {
    record[..HEADER_BYTES].try_into().expect("a whole header")
}

/// `HKDF-Expand-Label` without a context (RFC 8446 section 7.1).
fn expand(secret: &hkdf::Prk, label: &[u8], out: &mut [u8]) {
    let length = (out.len() as u16).to_be_bytes();
    let label_length = [b"tls13 ".len() as u8 + label.len() as u8];
    let info: [&[u8]; 5] = [&length, &label_length, b"tls13 ", label, &[0]];
    secret
        .expand(&info, KeyLength(out.len()))
        .and_then(|expanded| expanded.fill(out))
        .expect("a few dozen bytes can be derived");
}
