//! The encoding of segment and group headers. All numbers are little endian. `docs/internals/LOG-FORMAT.md` describes the same format in
//! tables.

use crate::planted::{self, Fault};

/// The version of the format that this build reads and writes.
pub const VERSION: u32 = 2;

/// The offset of the first group in a segment. The header has its own page, so writing a group never rewrites the header.
pub(crate) const DATA_BEGIN: u64 = 4096;
/// Bytes of a group's header.
pub(crate) const GROUP_HEADER_BYTES: usize = 32;
/// The offset in a group's header of the previous group's checksum.
pub(crate) const PREVIOUS_CRC_OFFSET: usize = 24;
/// The offset in a group's header of the second copy of the group's length.
const LENGTH_COPY_OFFSET: usize = 28;
/// Bytes of the length before each batch.
pub(crate) const BATCH_HEADER_BYTES: usize = 4;
/// Groups begin at multiples of this number.
pub(crate) const ALIGNMENT: u64 = 8;

const MAGIC: &[u8; 8] = b"CRORELOG";
/// Used bytes of a segment's header.
pub(crate) const SEGMENT_HEADER_BYTES: usize = 64;

/// The numbers that are the same in all segments of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// A random number, chosen when the log was created. It distinguishes the segments of different logs.
    pub log: u64,
    /// The seed of the hashes in the batches. The log only stores it.
    pub seed: u64,
}

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// The seed of the checksums of this segment's groups. Each segment has another seed. So a group from an earlier use of the same file
    /// is not accepted.
    pub salt: u32,
    /// 1, 2, 3, ...
    pub number: u64,
    /// The number of the segment's first group.
    pub first_group: u64,
    /// The checksum of the last group before this segment; 0 if there is none.
    pub previous_crc: u32,
    /// The length of the file.
    pub bytes: u64,
    pub identity: Identity,
}

/// Why bytes are not a valid segment header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderError {
    /// The bytes differ from those that were written.
    Damaged,
    /// The header has this other version of the format.
    Version(u32),
}

impl SegmentHeader {
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.salt.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.number.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.first_group.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.previous_crc.to_le_bytes());
        bytes[36..44].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[44..52].copy_from_slice(&self.identity.log.to_le_bytes());
        bytes[52..60].copy_from_slice(&self.identity.seed.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<SegmentHeader, HeaderError> {
        let bytes = bytes
            .get(..SEGMENT_HEADER_BYTES)
            .ok_or(HeaderError::Damaged)?;
        if &bytes[..8] != MAGIC || crc32c::crc32c(&bytes[..60]) != read_u32(bytes, 60) {
            return Err(HeaderError::Damaged);
        }
        match read_u32(bytes, 8) {
            VERSION => Ok(SegmentHeader {
                salt: read_u32(bytes, 12),
                number: read_u64(bytes, 16),
                first_group: read_u64(bytes, 24),
                previous_crc: read_u32(bytes, 32),
                bytes: read_u64(bytes, 36),
                identity: Identity {
                    log: read_u64(bytes, 44),
                    seed: read_u64(bytes, 52),
                },
            }),
            other => Err(HeaderError::Version(other)),
        }
    }
}

/// The secret numbers with which the groups of a segment are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Salts {
    /// The seed of the group checksums.
    pub crc: u32,
    /// XORed into the second copy of each group's length.
    pub length: u32,
}

impl SegmentHeader {
    pub fn salts(&self) -> Salts {
        Salts {
            crc: self.salt,
            length: self.identity.log as u32,
        }
    }
}

/// A group in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group<'a> {
    /// 1, 2, 3, ..., counted through the whole log.
    pub number: u64,
    /// Number of batches of the log before this group.
    pub batches_before: u64,
    pub crc: u32,
    /// The checksum of the previous group.
    pub previous_crc: u32,
    /// The batches, each preceded by its length.
    pub encoded_batches: &'a [u8],
}

impl<'a> Group<'a> {
    /// Bytes that the group occupies in its segment.
    pub fn bytes(&self) -> u64 {
        group_bytes(self.encoded_batches.len())
    }

    /// Begins a group: clears the buffer and leaves space for the header. `push` adds batches, [`seal`](Self::seal) completes the group.
    pub fn begin(buffer: &mut Vec<u8>) {
        buffer.clear();
        buffer.resize(GROUP_HEADER_BYTES, 0);
    }

    pub fn push(buffer: &mut Vec<u8>, batch: &[u8]) {
        let len = u32::try_from(batch.len()).expect("a batch is shorter than a segment");
        buffer.extend_from_slice(&len.to_le_bytes());
        buffer.extend_from_slice(batch);
    }

    /// Completes a group: writes its header and pads it. Returns its checksum.
    pub fn seal(
        buffer: &mut Vec<u8>,
        number: u64,
        batches_before: u64,
        previous_crc: u32,
        salts: Salts,
    ) -> u32 {
        let len = u32::try_from(buffer.len() - GROUP_HEADER_BYTES)
            .expect("a group is shorter than a segment");
        buffer[8..16].copy_from_slice(&number.to_le_bytes());
        buffer[16..24].copy_from_slice(&batches_before.to_le_bytes());
        buffer[PREVIOUS_CRC_OFFSET..28].copy_from_slice(&previous_crc.to_le_bytes());
        buffer[LENGTH_COPY_OFFSET..32].copy_from_slice(&(len ^ salts.length).to_le_bytes());
        let crc = crc32c::crc32c_append(salts.crc, &buffer[8..]);
        buffer[..4].copy_from_slice(&len.to_le_bytes());
        buffer[4..8].copy_from_slice(&crc.to_le_bytes());
        buffer.resize(group_bytes(len as usize) as usize, 0);
        crc
    }

    /// Decodes the group at the beginning of these bytes, which must reach to the end of the segment; `None` if there is no intact group.
    pub fn decode(bytes: &'a [u8], salts: Salts) -> Option<Group<'a>> {
        let len = read_u32(bytes.get(..GROUP_HEADER_BYTES)?, 0);
        // The second copy of the length is masked with a number that clients do not know. So no client can fake a group header in a batch,
        // and the search for groups in a damaged segment does not compute checksums of faked groups.
        if len == 0 || len ^ salts.length != read_u32(bytes, LENGTH_COPY_OFFSET) {
            return None;
        }
        let end = GROUP_HEADER_BYTES + len as usize;
        let crc = read_u32(bytes, 4);
        let checksummed = bytes.get(8..end)?;
        let verifies = crc32c::crc32c_append(salts.crc, checksummed) == crc;
        (verifies || planted::is_on(Fault::NoChecksum)).then(|| Group {
            number: read_u64(bytes, 8),
            batches_before: read_u64(bytes, 16),
            crc,
            previous_crc: read_u32(bytes, PREVIOUS_CRC_OFFSET),
            encoded_batches: &bytes[GROUP_HEADER_BYTES..end],
        })
    }

    /// The batches, in order.
    pub fn batches(&self) -> impl Iterator<Item = &'a [u8]> {
        let mut undecoded = self.encoded_batches;
        core::iter::from_fn(move || {
            let (len, rest) = undecoded.split_at_checked(BATCH_HEADER_BYTES)?;
            let (batch, rest) = rest.split_at_checked(read_u32(len, 0) as usize)?;
            undecoded = rest;
            Some(batch)
        })
    }
}

/// Bytes that a group occupies. `encoded_batches` is the size of its batches with the length before each.
pub(crate) fn group_bytes(encoded_batches: usize) -> u64 {
    (GROUP_HEADER_BYTES as u64 + encoded_batches as u64).next_multiple_of(ALIGNMENT)
}

pub(crate) fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn read_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_round_trips_and_every_changed_byte_is_detected() {
        let header = SegmentHeader {
            salt: 1,
            number: 2,
            first_group: 3,
            previous_crc: 4,
            bytes: 5,
            identity: Identity { log: 6, seed: 7 },
        };
        let bytes = header.encode();
        assert_eq!(SegmentHeader::decode(&bytes), Ok(header));
        for at in 0..SEGMENT_HEADER_BYTES {
            let mut changed = bytes;
            changed[at] ^= 1;
            let damaged = Err(HeaderError::Damaged);
            assert_eq!(SegmentHeader::decode(&changed), damaged, "byte {at}");
        }
    }

    #[test]
    fn newer_format_is_distinguished_from_damage() {
        let header = SegmentHeader {
            salt: 1,
            number: 2,
            first_group: 3,
            previous_crc: 4,
            bytes: 5,
            identity: Identity { log: 6, seed: 7 },
        };
        let mut bytes = header.encode();
        bytes[8] = VERSION as u8 + 1;
        let crc = crc32c::crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        let newer = Err(HeaderError::Version(VERSION + 1));
        assert_eq!(SegmentHeader::decode(&bytes), newer);
    }

    #[test]
    fn a_group_comes_back_with_its_salt_only() {
        let mut buffer = Vec::new();
        Group::begin(&mut buffer);
        Group::push(&mut buffer, b"one");
        Group::push(&mut buffer, b"");
        Group::push(&mut buffer, b"three");
        let salts = Salts { crc: 5, length: 3 };
        let crc = Group::seal(&mut buffer, 9, 33, 77, salts);
        let group = Group::decode(&buffer, salts).expect("a group");
        assert_eq!((group.number, group.crc, group.previous_crc), (9, crc, 77));
        assert_eq!(group.batches_before, 33);
        assert_eq!(group.bytes(), buffer.len() as u64);
        let batches: Vec<&[u8]> = group.batches().collect();
        assert_eq!(batches, [&b"one"[..], b"", b"three"]);
        for other in [Salts { crc: 6, length: 3 }, Salts { crc: 5, length: 4 }] {
            assert_eq!(Group::decode(&buffer, other), None);
        }
        for at in 0..GROUP_HEADER_BYTES + group.encoded_batches.len() {
            let mut changed = buffer.clone();
            changed[at] ^= 0x40;
            assert_eq!(Group::decode(&changed, salts), None, "byte {at}");
        }
    }
}
