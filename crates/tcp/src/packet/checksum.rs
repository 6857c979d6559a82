//! The checksum of IP, TCP and ICMP (RFC 1071), and numbers of several bytes.

/// A checksum in progress (RFC 1071). Every part but the last has an even number of bytes.
///
/// Eight bytes are added at once, in the byte order of the machine, and the sum is swapped at the end (RFC 1071 §2).
#[derive(Clone, Copy, Default)]
pub struct Sum(u64);

impl Sum {
    /// Adds bytes.
    pub fn with(self, bytes: &[u8]) -> Sum {
        let (words, rest) = bytes.as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        // A carry counts as one (RFC 1071 §2).
        let add = |sum: u64, word: &[u8; 8]| {
            let (sum, carries) = sum.overflowing_add(u64::from_ne_bytes(*word));
            sum + u64::from(carries)
        };
        Sum(add(words.iter().fold(self.0, add), &last))
    }

    /// The checksum. It is 0 over bytes that contain their correct checksum.
    pub fn finish(self) -> u16 {
        let mut sum = self.0;
        while sum >> 16 != 0 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !u16::from_be(sum as u16)
    }
}

/// The number of two bytes at this place.
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// The number of four bytes at this place.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
