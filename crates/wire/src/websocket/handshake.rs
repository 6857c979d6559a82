//! The opening handshake (RFC 6455 §4): the accept key, the extension permessage-deflate (RFC 7692 §7.1) and the subprotocol. The HTTP
//! codec parses the request itself.
//!
//! Invariant: an extension offer is accepted only if every parameter can be obeyed. After a faulty offer the other offers are still
//! considered.

use alloc::vec::Vec;
use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use sha1::{Digest, Sha1};

/// Appended to the key before hashing (RFC 6455 §1.3).
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The window of our compressor as a power of two, and the largest window that an offer may name (RFC 7692 §7.1.2).
const WINDOW_BITS: u8 = 15;

/// Ignores the unused bits of the last character, because they have no meaning and people who write keys by hand set them.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// The `Sec-WebSocket-Accept` for a `Sec-WebSocket-Key` (RFC 6455 §4.2.2). `None` when the key is
/// not 16 bytes of base64.
pub fn accept_key(key: &[u8]) -> Option<[u8; 28]> {
    let mut nonce = [0; 18];
    if key.len() != 24 || BASE64.decode_slice(key, &mut nonce) != Ok(16) {
        return None;
    }
    let hash = Sha1::new().chain_update(key).chain_update(GUID).finalize();
    let mut accept = [0; 28];
    let size = BASE64.encode_slice(hash, &mut accept);
    assert_eq!(size, Ok(28), "20 bytes are 28 characters");
    Some(accept)
}

/// A client's `Sec-WebSocket-Key` from 16 random bytes.
pub fn client_key(nonce: [u8; 16]) -> [u8; 24] {
    let mut key = [0; 24];
    let size = BASE64.encode_slice(nonce, &mut key);
    assert_eq!(size, Ok(24), "16 bytes are 24 characters");
    key
}

/// A client's offer of permessage-deflate (RFC 7692 §7.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeflateOffer {
    /// The client asks the server to reset its compression window after each message.
    pub server_no_context_takeover: bool,
    /// The client will reset its compression window after each message.
    pub client_no_context_takeover: bool,
    /// The largest window for the server's compression, as a power of two.
    pub server_max_window_bits: Option<u8>,
    /// The client can limit its window, perhaps to this size. Any size is accepted.
    pub client_max_window_bits: Option<Option<u8>>,
}

/// An accepted offer: the content of the answer's `Sec-WebSocket-Extensions`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeflateAnswer {
    /// The answer must name the server's window, because the offer named it (RFC 7692 §7.1.2.1).
    names_window: bool,
}

impl DeflateOffer {
    /// The answer. `None` if the offer asks for a smaller window than our compressor uses.
    pub fn accept(&self) -> Option<DeflateAnswer> {
        match self.server_max_window_bits {
            Some(bits) if bits < WINDOW_BITS => None,
            bits => Some(DeflateAnswer {
                names_window: bits.is_some(),
            }),
        }
    }

    /// Sets one parameter; `None` if it is unknown, repeated or has a wrong value.
    fn set_parameter(&mut self, name: &[u8], value: Option<&[u8]>) -> Option<()> {
        match (name, value) {
            (b"server_no_context_takeover", None) if !self.server_no_context_takeover => {
                self.server_no_context_takeover = true;
            }
            (b"client_no_context_takeover", None) if !self.client_no_context_takeover => {
                self.client_no_context_takeover = true;
            }
            (b"server_max_window_bits", Some(value)) if self.server_max_window_bits.is_none() => {
                self.server_max_window_bits = Some(parse_window_bits(value)?);
            }
            (b"client_max_window_bits", value) if self.client_max_window_bits.is_none() => {
                self.client_max_window_bits = Some(match value {
                    Some(value) => Some(parse_window_bits(value)?),
                    None => None,
                });
            }
            _ => return None,
        }
        Some(())
    }
}

impl DeflateAnswer {
    /// Appends the value of the header. The answer says that neither side keeps a context between messages.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(
            b"permessage-deflate; server_no_context_takeover; client_no_context_takeover",
        );
        if self.names_window {
            out.extend_from_slice(b"; server_max_window_bits=15");
        }
    }
}

/// Chooses the first acceptable offer of permessage-deflate among the values of all
/// `Sec-WebSocket-Extensions` headers.
pub fn negotiate_deflate<'a>(extensions: impl Iterator<Item = &'a [u8]>) -> Option<DeflateAnswer> {
    extensions
        .flat_map(|value| split_unquoted(value, b','))
        .filter_map(read_offer)
        .find_map(|offer| offer.accept())
}

/// Chooses the client's first subprotocol that is in `known`. `offered` contains the values of all `Sec-WebSocket-Protocol` headers; each
/// value may be a list.
pub fn choose_subprotocol<'a>(
    offered: impl Iterator<Item = &'a [u8]>,
    known: &[&'static str],
) -> Option<&'static str> {
    offered
        .flat_map(|value| value.split(|&byte| byte == b','))
        .find_map(|name| {
            let name = name.trim_ascii();
            known.iter().copied().find(|known| known.as_bytes() == name)
        })
}

/// Appends a client's opening request (RFC 6455 §4.1), for our own tools. The arguments must not contain line breaks.
pub fn write_client_request(
    out: &mut Vec<u8>,
    host: &str,
    target: &str,
    key: &[u8; 24],
    extra_headers: &[(&str, &str)],
) {
    let mut push = |parts: &[&[u8]]| parts.iter().for_each(|part| out.extend_from_slice(part));
    push(&[b"GET ", target.as_bytes(), b" HTTP/1.1\r\nHost: "]);
    push(&[
        host.as_bytes(),
        b"\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n",
    ]);
    push(&[
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: ",
        key,
        b"\r\n",
    ]);
    for (name, value) in extra_headers {
        push(&[name.as_bytes(), b": ", value.as_bytes(), b"\r\n"]);
    }
    push(&[b"\r\n"]);
}

/// Reads `permessage-deflate` and its parameters. `None` for another extension or a bad parameter.
fn read_offer(text: &[u8]) -> Option<DeflateOffer> {
    let mut parts = split_unquoted(text, b';');
    if parts.next()?.trim_ascii() != b"permessage-deflate" {
        return None;
    }
    let mut offer = DeflateOffer::default();
    for part in parts {
        let mut name_and_value = part.splitn(2, |&byte| byte == b'=');
        let name = name_and_value.next()?.trim_ascii();
        let value = name_and_value
            .next()
            .map(|value| unquote(value.trim_ascii()));
        offer.set_parameter(name, value)?;
    }
    Some(offer)
}

/// A window size: 8 to 15 in decimal without leading zeros (RFC 7692 §7.1.2).
fn parse_window_bits(value: &[u8]) -> Option<u8> {
    match *value {
        [digit @ b'8'..=b'9'] => Some(digit - b'0'),
        [b'1', digit @ b'0'..=b'5'] => Some(10 + digit - b'0'),
        _ => None,
    }
}

/// The content of a quoted string. Escapes are not decoded, because no known value contains one.
fn unquote(value: &[u8]) -> &[u8] {
    match value {
        [b'"', inside @ .., b'"'] => inside,
        _ => value,
    }
}

/// Splits at `separator`, but not inside quoted strings.
fn split_unquoted(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let mut is_quoted = false;
    let mut is_escaped = false;
    text.split(move |&byte| {
        if byte == b'"' && !is_escaped {
            is_quoted = !is_quoted;
        }
        is_escaped = is_quoted && !is_escaped && byte == b'\\';
        byte == separator && !is_quoted
    })
}
