//! Finds the end of a PROXY header (version 2, HAProxy's `proxy-protocol.txt`, section 2.2). The header is not encrypted, and TLS may
//! follow it. The caller gets the header, parses it and decides whether to trust it.

/// The first bytes of every header.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Bytes of the fixed part: signature, version and command, family and transport, length of the rest.
const FIXED_BYTES: usize = 16;

/// The part of the header that a connection has sent so far.
#[derive(Clone, Copy, Default)]
pub struct ProxyHeader {
    /// Number of bytes of the header that have arrived.
    seen_bytes: usize,
    /// The length of the rest of the header, read from the fixed part.
    rest_bytes: u16,
}

/// What a piece of the stream contains of the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderPart {
    /// The whole piece belongs to the header, which is not complete yet.
    Header,
    /// The header ends after this many bytes of the piece.
    End(usize),
    /// The bytes are not a PROXY header.
    NoHeader,
}

impl ProxyHeader {
    /// Reads the next received bytes.
    pub fn read(&mut self, bytes: &[u8]) -> HeaderPart {
        for (n, byte) in bytes.iter().enumerate() {
            if self.seen_bytes >= FIXED_BYTES {
                let missing_bytes = self.missing_bytes();
                if missing_bytes <= bytes.len() - n {
                    self.seen_bytes += missing_bytes;
                    return HeaderPart::End(n + missing_bytes);
                }
                self.seen_bytes += bytes.len() - n;
                return HeaderPart::Header;
            }
            match self.seen_bytes {
                at @ 0..12 if SIGNATURE[at] != *byte => return HeaderPart::NoHeader,
                14 | 15 => self.rest_bytes = self.rest_bytes << 8 | u16::from(*byte),
                _ => {}
            }
            self.seen_bytes += 1;
        }
        match self.seen_bytes >= FIXED_BYTES && self.missing_bytes() == 0 {
            true => HeaderPart::End(bytes.len()),
            false => HeaderPart::Header,
        }
    }

    fn missing_bytes(&self) -> usize {
        FIXED_BYTES + usize::from(self.rest_bytes) - self.seen_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(rest: u16) -> Vec<u8> {
        let length = rest.to_be_bytes();
        [
            &SIGNATURE[..],
            &[0x21, 0x11],
            &length,
            &vec![22; rest.into()],
        ]
        .concat()
    }

    #[test]
    fn header_ends_at_the_same_byte_however_it_is_cut() {
        for rest in [0, 12, 300] {
            let header = header(rest);
            let bytes = [&header[..], b"\x16\x03\x01"].concat();
            for cut in 1..=bytes.len() {
                let (mut preface, mut at) = (ProxyHeader::default(), 0);
                let end = loop {
                    let piece = &bytes[at..bytes.len().min(at + cut)];
                    match preface.read(piece) {
                        HeaderPart::Header => at += piece.len(),
                        HeaderPart::End(count) => break at + count,
                        HeaderPart::NoHeader => panic!("{rest} {cut}"),
                    }
                };
                assert_eq!(end, header.len(), "{rest} {cut}");
                // The bytes after the end do not belong to the header.
                assert_eq!(preface.read(b"\x16"), HeaderPart::End(0));
            }
        }
    }

    #[test]
    fn invalid_header_is_recognized_by_its_first_wrong_byte() {
        assert_eq!(
            ProxyHeader::default().read(b"\x16\x03"),
            HeaderPart::NoHeader
        );
        assert_eq!(
            ProxyHeader::default().read(b"\r\n\r\nG"),
            HeaderPart::NoHeader
        );
        assert_eq!(ProxyHeader::default().read(b""), HeaderPart::Header);
    }
}
