//! Handles the records of established connections: opens received records in place and joins their content, and seals outgoing data (RFC
//! 8446 sections 4.6.3, 5 and 6; RFC 5246 sections 6.2 and 7.2). The callers handle sockets and partial records.
//!
//! Invariants: the content does not depend on how the stream is split into reads. No bytes of a peer cause a panic. After an error
//! nothing more is read.
//!
//! A key update must be alone in its record; every implementation sends it so. It costs as much as a dozen data records, so a peer that
//! sends mostly key updates is refused. So is a peer that sends many empty data records, or alerts without effect, with no data between them.

use super::cache::Cache;
use super::cipher::{Cipher, ContentType, HEADER_BYTES, PLAIN_MAX, SEALED_MAX};
use super::keys::{DIRECTION_CLOSED, Direction, KEY_UPDATE_DUE, KeyPlace, Keys};

/// The description of an alert (RFC 8446 section 6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Alert {
    /// The sender sends no more.
    CloseNotify = 0,
    UnexpectedMessage = 10,
    BadRecordMac = 20,
    RecordOverflow = 22,
    DecodeError = 50,
    /// RFC 5246 section 7.2.2.
    NoRenegotiation = 100,
}

/// The alert `user_canceled`, which can be ignored: a `close_notify` follows.
const USER_CANCELED: u8 = 90;
/// The head of a `key_update`: type and length. The byte that follows tells whether the receiver must change its key too.
const KEY_UPDATE: [u8; 4] = [24, 0, 0, 1];
/// The level of an alert after which a TLS 1.2 connection continues.
const WARNING: u8 = 1;
const FATAL: u8 = 2;

/// The state of a connection after its bytes were opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterOpen {
    /// The peer may send more.
    Open,
    /// The peer has closed its sending side.
    End,
    /// The peer sent a fatal alert.
    Aborted,
    /// The peer broke the protocol: the caller must send it this alert and end the connection.
    Violation(Alert),
}

/// The result of [`RecordCrypto::open`]: the first `plain_bytes` of the buffer are content, and a partial record begins at `rest_offset`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenedRecords {
    pub plain_bytes: usize,
    pub rest_offset: usize,
    pub after: AfterOpen,
}

/// The keys of all connections, and the caches of expanded keys for both directions.
pub struct RecordCrypto {
    pub keys: Keys,
    pub sending_cache: Cache,
    pub receiving_cache: Cache,
}

impl RecordCrypto {
    pub fn new() -> RecordCrypto {
        RecordCrypto {
            keys: Keys::new(),
            sending_cache: Cache::new(),
            receiving_cache: Cache::new(),
        }
    }

    pub fn remove(&mut self, place: KeyPlace) {
        self.sending_cache.forget(place);
        self.receiving_cache.forget(place);
        self.keys.remove(place);
    }

    /// Opens all whole records of `bytes`, in place.
    pub fn open(&mut self, place: KeyPlace, bytes: &mut [u8]) -> OpenedRecords {
        let (mut plain_bytes, mut rest_offset) = (0, 0);
        let after = loop {
            let length = match checked_record_length(place.cipher, &bytes[rest_offset..]) {
                Ok(Some(length)) => length,
                Ok(None) => break AfterOpen::Open,
                Err(alert) => break AfterOpen::Violation(alert),
            };
            let Some(record) = bytes.get_mut(rest_offset..rest_offset + length) else {
                break AfterOpen::Open;
            };
            let mut direction = self.keys.receiving(place);
            let key = self.receiving_cache.get(place, direction.secret);
            let Ok((content, range)) = place.cipher.open(key, direction.seq(), record) else {
                break AfterOpen::Violation(Alert::BadRecordMac);
            };
            direction.advance();
            if range.len() > PLAIN_MAX {
                break AfterOpen::Violation(Alert::RecordOverflow);
            }
            let is_data = content == ContentType::Data as u8;
            if is_data && direction.count_content(range.len()) {
                break AfterOpen::Violation(Alert::UnexpectedMessage);
            }
            let range = rest_offset + range.start..rest_offset + range.end;
            rest_offset += length;
            if is_data {
                let target = plain_bytes;
                plain_bytes += range.len();
                bytes.copy_within(range, target);
                continue;
            }
            let after = self.handle_other(place, content, &bytes[range]);
            if after == AfterOpen::End {
                self.keys.receiving(place).set(DIRECTION_CLOSED);
            }
            if after != AfterOpen::Open {
                break after;
            }
        };
        OpenedRecords {
            plain_bytes,
            rest_offset,
            after,
        }
    }

    /// Handles a record that is not data.
    fn handle_other(&mut self, place: KeyPlace, content: u8, bytes: &[u8]) -> AfterOpen {
        match (ContentType::from_repr(content), bytes) {
            (Some(ContentType::Alert), &[level, description]) => match description {
                0 => AfterOpen::End,
                _ if description == USER_CANCELED || level == WARNING && !place.cipher.is_13() => {
                    let mut direction = self.keys.receiving(place);
                    violation_if(direction.count_content(0))
                }
                _ => AfterOpen::Aborted,
            },
            (Some(ContentType::Alert), _) => AfterOpen::Violation(Alert::DecodeError),
            (Some(ContentType::Handshake), _) if !place.cipher.is_13() => {
                AfterOpen::Violation(Alert::NoRenegotiation)
            }
            (Some(ContentType::Handshake), [head @ .., must_update @ (0 | 1)])
                if *head == KEY_UPDATE =>
            {
                // The sequence number counts the records of the current key, including this one.
                let mut direction = self.keys.receiving(place);
                let other_records = direction.seq() - 1;
                let after = violation_if(direction.count_update(other_records));
                if after != AfterOpen::Open {
                    return after;
                }
                let mut direction = self.keys.receiving(place);
                place.cipher.update_secret(direction.secret);
                direction.reset_seq();
                self.receiving_cache.forget(place);
                if *must_update == 1 {
                    self.keys.sending(place).set(KEY_UPDATE_DUE);
                }
                AfterOpen::Open
            }
            _ => AfterOpen::Violation(Alert::UnexpectedMessage),
        }
    }

    /// Appends a data record to `out`, and before it a key update if one is due. `write` appends the content. Returns false if the key may
    /// seal no more records and cannot be changed: the connection must then end.
    pub fn seal_data(
        &mut self,
        place: KeyPlace,
        out: &mut Vec<u8>,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> bool {
        let cipher = place.cipher;
        let direction = self.keys.sending(place);
        let is_used_up = direction.seq() >= cipher.records_max();
        if is_used_up && !cipher.is_13() {
            return false;
        }
        if is_used_up || direction.has(KEY_UPDATE_DUE) {
            self.seal_key_update(place, out);
        }
        self.seal(place, ContentType::Data, out, write);
        true
    }

    /// Appends a key update to `out`, and replaces the sending key.
    fn seal_key_update(&mut self, place: KeyPlace, out: &mut Vec<u8>) {
        self.seal(place, ContentType::Handshake, out, |out| {
            out.extend_from_slice(&KEY_UPDATE);
            out.push(0);
        });
        let mut direction = self.keys.sending(place);
        place.cipher.update_secret(direction.secret);
        direction.reset_seq();
        direction.clear(KEY_UPDATE_DUE);
        self.sending_cache.forget(place);
    }

    /// Appends an alert to `out`.
    pub fn seal_alert(&mut self, place: KeyPlace, alert: Alert, out: &mut Vec<u8>) {
        let level = match alert {
            Alert::CloseNotify => WARNING,
            _ => FATAL,
        };
        self.seal(place, ContentType::Alert, out, |out| {
            out.extend_from_slice(&[level, alert as u8]);
        });
        self.keys.sending(place).set(DIRECTION_CLOSED);
    }

    fn seal(
        &mut self,
        place: KeyPlace,
        content: ContentType,
        out: &mut Vec<u8>,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let mut direction: Direction<'_> = self.keys.sending(place);
        let key = self.sending_cache.get(place, direction.secret);
        place.cipher.seal(key, direction.seq(), content, out, write);
        direction.advance();
    }
}

/// A peer that sends too many records without content violates the protocol. It gets the alert `unexpected_message` (RFC 8446 section 6.2).
fn violation_if(too_many: bool) -> AfterOpen {
    match too_many {
        true => AfterOpen::Violation(Alert::UnexpectedMessage),
        false => AfterOpen::Open,
    }
}

/// The length of the record at the beginning of `bytes`, including its header; `None` while the header is incomplete.
fn checked_record_length(cipher: Cipher, bytes: &[u8]) -> Result<Option<usize>, Alert> {
    let Some(&[content, major, _, high, low]) = bytes.first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let content = ContentType::from_repr(content);
    if content.is_none() || major != 3 || (cipher.is_13() && content != Some(ContentType::Data)) {
        return Err(Alert::UnexpectedMessage);
    }
    let body_bytes = usize::from(u16::from_be_bytes([high, low]));
    if body_bytes > SEALED_MAX {
        return Err(Alert::RecordOverflow);
    }
    Ok(Some(HEADER_BYTES + body_bytes))
}

/// The length of a partial record, including its header, which [`RecordCrypto::open`] has checked; `None` while the header is incomplete.
pub fn record_length(bytes: &[u8]) -> Option<usize> {
    let [.., high, low] = bytes.first_chunk::<HEADER_BYTES>()?;
    Some(HEADER_BYTES + usize::from(u16::from_be_bytes([*high, *low])))
}

#[cfg(test)]
mod tests {
    use super::super::cipher::{DirectionStart, Secret};
    use super::super::keys::IDLE_RECORDS_MAX;
    use super::*;

    const CIPHERS: [Cipher; 6] = [
        Cipher::Aes128,
        Cipher::Aes256,
        Cipher::ChaCha,
        Cipher::Tls12Aes128,
        Cipher::Tls12Aes256,
        Cipher::Tls12ChaCha,
    ];

    /// A connection with itself: it opens the records that it seals.
    struct Echo {
        crypto: RecordCrypto,
        place: KeyPlace,
    }

    impl Echo {
        fn new(cipher: Cipher) -> Echo {
            let mut crypto = RecordCrypto::new();
            let start = DirectionStart {
                secret: Secret::of(&[&[7; 48][..cipher.secret_bytes()]]),
                seq: 0,
            };
            let place = crypto.keys.insert(cipher, &start, &start);
            Echo { crypto, place }
        }

        /// Seals each item as a data record and opens all records. Returns the number of content bytes and the state.
        fn echo(&mut self, records: &[&[u8]]) -> (usize, AfterOpen) {
            let mut out = Vec::new();
            for data in records {
                let write = |out: &mut Vec<u8>| out.extend_from_slice(data);
                assert!(self.crypto.seal_data(self.place, &mut out, write));
            }
            let opened = self.crypto.open(self.place, &mut out);
            (opened.plain_bytes, opened.after)
        }
    }

    #[test]
    fn data_without_bytes_ends_the_connection_unless_some_come_between() {
        const MAX: usize = IDLE_RECORDS_MAX as usize;
        let violation = AfterOpen::Violation(Alert::UnexpectedMessage);
        for cipher in CIPHERS {
            let mut echo = Echo::new(cipher);
            for _ in 0..10 {
                assert_eq!(
                    echo.echo(&[&b""[..]; MAX]),
                    (0, AfterOpen::Open),
                    "{cipher:?}"
                );
                assert_eq!(echo.echo(&[b"x"]), (1, AfterOpen::Open), "{cipher:?}");
            }
            assert_eq!(
                echo.echo(&[&b""[..]; MAX + 1]),
                (0, violation),
                "{cipher:?}"
            );
            // The same if the records arrive one by one.
            let mut echo = Echo::new(cipher);
            let ended = (1..100).find(|_| echo.echo(&[b""]).1 == violation);
            assert_eq!(ended, Some(MAX + 1), "{cipher:?}");
        }
    }

    #[test]
    fn alerts_without_effect_end_the_connection_unless_data_comes_between() {
        const MAX: usize = IDLE_RECORDS_MAX as usize;
        // RFC 5246 section 7.2.2: a client that does not want to negotiate again says so with a warning.
        let warning = [WARNING, Alert::NoRenegotiation as u8];
        for cipher in CIPHERS {
            let alert = match cipher.is_13() {
                true => [WARNING, USER_CANCELED],
                false => warning,
            };
            let alerts = |echo: &mut Echo, count| {
                let mut out = Vec::new();
                for _ in 0..count {
                    let write = |out: &mut Vec<u8>| out.extend_from_slice(&alert);
                    echo.crypto
                        .seal(echo.place, ContentType::Alert, &mut out, write);
                }
                echo.crypto.open(echo.place, &mut out).after
            };
            let mut echo = Echo::new(cipher);
            for _ in 0..10 {
                assert_eq!(alerts(&mut echo, MAX), AfterOpen::Open, "{cipher:?}");
                assert_eq!(echo.echo(&[b"x"]), (1, AfterOpen::Open), "{cipher:?}");
            }
            let violation = AfterOpen::Violation(Alert::UnexpectedMessage);
            assert_eq!(alerts(&mut echo, MAX + 1), violation, "{cipher:?}");
        }
    }

    #[test]
    fn key_update_does_not_count_as_data() {
        let mut echo = Echo::new(Cipher::Aes128);
        let ended = (1..100).find(|_| {
            echo.crypto.keys.sending(echo.place).set(KEY_UPDATE_DUE);
            echo.echo(&[b"", b""]).1 != AfterOpen::Open
        });
        assert_eq!(ended, Some(IDLE_RECORDS_MAX / 2 + 1));
    }
}
