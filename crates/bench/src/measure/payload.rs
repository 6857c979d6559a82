//! The layout of a benchmark message: a header of fixed width, then random alphanumeric bytes.
//!
//! The header is lower-case hex text, so that it passes unchanged through JSON and WebSocket text frames. It holds the publisher's
//! run, the send time (monotonic clock, which all processes of a machine share), the index of the topic, and the sequence number within the
//! topic, from 1. So two publishers that run at the same time need different topics. Messages that are too short for the header are only
//! counted.

/// The size of the header, in bytes.
pub const HEADER_BYTES: usize = 32;

/// Topic indices must be below this, because the header has 24 bits for them.
pub const TOPICS_MAX: u32 = 1 << 24;

/// Bytes of random text from which payloads are cut.
const POOL_BYTES: usize = 64 << 10;

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// A random number of the publisher's run. Sequence numbers are comparable only within a run.
    pub run: u16,
    /// Send time in nanoseconds of the monotonic clock, in 56 bits: more than two years.
    pub sent_ns: u64,
    /// Index of the topic in the pattern, below [`TOPICS_MAX`].
    pub topic: u32,
    /// Number of the message within its topic, from 1.
    pub sequence: u32,
}

fn put(mut value: u64, out: &mut [u8]) {
    for place in out.iter_mut().rev() {
        *place = b"0123456789abcdef"[(value & 15) as usize];
        value >>= 4;
    }
}

fn get(digits: &[u8]) -> Option<u64> {
    let mut value = 0;
    for digit in digits {
        let nibble = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        value = value << 4 | u64::from(nibble);
    }
    Some(value)
}

impl Header {
    /// The header as text.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        put(self.run.into(), &mut out[..4]);
        put(self.sent_ns, &mut out[4..18]);
        put(self.topic.into(), &mut out[18..24]);
        put(self.sequence.into(), &mut out[24..]);
        out
    }

    /// Parses the header at the start of `payload`; `None` if there is none.
    pub fn decode(payload: &[u8]) -> Option<Header> {
        let header = payload.first_chunk::<HEADER_BYTES>()?;
        Some(Header {
            run: get(&header[..4])? as u16,
            sent_ns: get(&header[4..18])?,
            topic: get(&header[18..24])? as u32,
            sequence: get(&header[24..])? as u32,
        })
    }
}

/// A seeded random number generator (SplitMix64): fast, and good enough for load.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator that draws the same numbers for the same seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u32) -> u32 {
        (((self.draw() >> 32) * u64::from(bound)) >> 32) as u32
    }
}

/// SplitMix64's finalizer: spreads the bits of one number.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Generates payloads of one size.
pub struct Payloads {
    pool: Vec<u8>,
    size: usize,
    random: Random,
}

impl Payloads {
    /// Payloads of `size` bytes each.
    pub fn new(size: usize, seed: u64) -> Payloads {
        const LETTERS: &[u8; 62] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
        let mut random = Random::new(seed);
        let pool = (0..POOL_BYTES + size)
            .map(|_| LETTERS[random.below(62) as usize])
            .collect();
        Payloads { pool, size, random }
    }

    /// Bytes of each payload.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Appends one payload to `out`: the header, if it fits, then random bytes.
    pub fn write(&mut self, header: Header, out: &mut Vec<u8>) {
        let mut left = self.size;
        if left >= HEADER_BYTES {
            out.extend_from_slice(&header.encode());
            left -= HEADER_BYTES;
        }
        let start = self.random.below(POOL_BYTES as u32) as usize;
        out.extend_from_slice(&self.pool[start..start + left]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn payloads_have_their_size_and_are_alphanumeric() {
        let header = Header {
            run: 3,
            sent_ns: 7,
            topic: 1,
            sequence: 2,
        };
        for size in [0, 5, 31, 32, 33, 512] {
            let mut out = Vec::new();
            Payloads::new(size, 1).write(header, &mut out);
            assert_eq!(out.len(), size);
            assert!(out.iter().all(u8::is_ascii_alphanumeric));
            assert_eq!(
                Header::decode(&out),
                (size >= HEADER_BYTES).then_some(header)
            );
        }
    }

    proptest! {
        #[test]
        fn headers_come_back(run: u16, sent_ns in 0u64..1 << 56, topic in 0..TOPICS_MAX, sequence: u32) {
            let header = Header { run, sent_ns, topic, sequence };
            prop_assert_eq!(Header::decode(&header.encode()), Some(header));
        }

        #[test]
        fn foreign_payloads_are_reported(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Some(header) = Header::decode(&bytes) {
                prop_assert_eq!(&header.encode()[..], &bytes[..HEADER_BYTES]);
            }
        }
    }
}
