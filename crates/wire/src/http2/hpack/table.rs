//! The static and dynamic tables, whose fields a block refers to by index (RFC 7541 section 2.3).

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::Error;

/// The size of a field is the length of its name and value, plus this number (RFC 7541 section 4.1, RFC 9113 section 10.5.1).
pub const FIELD_OVERHEAD: usize = 32;

/// The static table (RFC 7541 appendix A). The first row has the index 1.
pub const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

/// An entry of the dynamic table.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Where the name begins: the number of bytes inserted before it, modulo 2^32. The value follows the name.
    at: u32,
    name: u16,
    value: u16,
}

/// The dynamic table: the newest fields that the peer's encoder inserted. It has at most [`super::decode::DEFAULT_TABLE_BYTES`], so all
/// lengths fit into 16 bits.
#[derive(Debug, Default)]
pub struct Dynamic {
    /// Names and values, in the order of insertion.
    bytes: Vec<u8>,
    /// The entries, the newest first.
    entries: VecDeque<Entry>,
    /// The number of bytes removed from the front of `bytes`, modulo 2^32.
    evicted: u32,
}

impl Dynamic {
    /// The name and the value at an index, 0 for the newest entry.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`] if there are fewer entries.
    pub fn get(&self, index: usize) -> Result<(&[u8], &[u8]), Error> {
        let entry = self.entries.get(index).ok_or(Error::UnknownIndex)?;
        let start = entry.at.wrapping_sub(self.evicted) as usize;
        let (name, value) = (usize::from(entry.name), usize::from(entry.value));
        Ok(self.bytes[start..start + name + value].split_at(name))
    }

    /// Removes entries until `max` has space for the new one, and inserts it. An entry larger than `max` empties the table (RFC 7541
    /// section 4.4).
    pub fn insert(&mut self, name: &[u8], value: &[u8], max: usize) {
        let size = name.len() + value.len() + FIELD_OVERHEAD;
        self.shrink(max.saturating_sub(size));
        if size > max {
            return;
        }
        self.entries.push_front(Entry {
            at: self.evicted.wrapping_add(self.bytes.len() as u32),
            name: name.len() as u16,
            value: value.len() as u16,
        });
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
    }

    /// Removes the oldest entries until the size of the table is at most `max`.
    pub fn shrink(&mut self, max: usize) {
        let mut removed = 0;
        while self.bytes.len() - removed + FIELD_OVERHEAD * self.entries.len() > max {
            let Some(oldest) = self.entries.pop_back() else {
                break;
            };
            removed += usize::from(oldest.name) + usize::from(oldest.value);
        }
        self.bytes.drain(..removed);
        self.evicted = self.evicted.wrapping_add(removed as u32);
    }

    /// Bytes of heap memory of the table, without the table itself.
    pub fn heap_bytes(&self) -> usize {
        self.bytes.capacity() + self.entries.capacity() * size_of::<Entry>()
    }
}
