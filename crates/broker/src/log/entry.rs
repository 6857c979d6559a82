//! The rows of the log: an entry for each kept message, and a chain for each topic.
//!
//! Invariant: the bytes of an entry are contiguous, in the order of [`Entry::parts`].
//!
//! Words: a *mark* is an entry at which a search in a list can begin; a *gap* is the notice that messages are lost.

use crate::base::settings::Rule;
use crate::budget::admission::Client;
use crate::mail::message::NewMessage;
use crate::store::blobs::{Blob, BlobOwner, Blobs, occupied_blob_bytes};
use crate::store::slab::{NONE, SlabRow};

/// Flag: the message is sent in a binary frame.
const BINARY: u8 = 1;
/// Flag: the message has its own time to live, which is stored before the other bytes.
const TTL: u8 = 2;
/// Flag: the message has attributes. They are stored after their length.
const ATTRIBUTES: u8 = 4;
/// Flag: the message was published to be retained.
const RETAIN: u8 = 8;
/// The first of the two bits for the quality of service.
const QOS_SHIFT: u8 = 4;
/// Flag: the entry is a mark in the list of its rule.
pub(super) const MARKED: u8 = 64;
/// Flag: a client is charged for the message. The client's number is stored after the time to live.
const HAS_OWNER: u8 = 128;
/// Bytes of the time to live, in seconds.
const TTL_BYTES: usize = 4;
/// Bytes of the number of the client that is charged.
const OWNER_BYTES: usize = 4;
/// Bytes of the attributes' length.
pub(super) const LENGTH_BYTES: usize = 2;

/// A kept message. Its bytes are, in this order: its time to live, if it has one; the number of the client that is charged, if there is one; key,
/// content type and event name; the attributes after their length, if there are any; the WebSocket frame.
pub(super) struct Entry {
    pub offset: u64,
    /// The offset of the previous entry of the chain; for the oldest entry, the last lost offset.
    pub previous: u64,
    pub time_s: u32,
    /// The bytes of the frame, plus those of the attributes with their length field.
    pub len: u32,
    pub chain: u32,
    pub next: u32,
    pub younger: u32,
    pub older: u32,
    pub blob: Blob,
    pub key_len: u8,
    pub content_type_len: u8,
    pub event_len: u8,
    pub flags: u8,
}

const _: () = assert!(size_of::<Entry>() == 48);

impl SlabRow for Entry {
    const FREES_CHUNKS: bool = true;
    fn vacant(next: u32) -> Self {
        Entry {
            offset: 0,
            previous: 0,
            time_s: 0,
            len: 0,
            chain: NONE,
            next,
            younger: NONE,
            older: NONE,
            blob: Blob::NONE,
            key_len: 0,
            content_type_len: 0,
            event_len: 0,
            flags: 0,
        }
    }
    fn next_vacant(&self) -> u32 {
        self.next
    }
}

impl BlobOwner for Entry {
    fn blob_mut(&mut self) -> Option<&mut Blob> {
        Some(&mut self.blob)
    }
}

/// The bytes that a message of `len` bytes occupies, with its row.
pub fn occupied_bytes(len: usize) -> usize {
    size_of::<Entry>() + occupied_blob_bytes(len)
}

/// The fields in an entry's bytes.
pub(super) struct EntryFields<'a> {
    pub key: &'a [u8],
    pub content_type: &'a [u8],
    pub event: &'a [u8],
    pub attributes: &'a [u8],
    pub frame: &'a [u8],
}

/// The flags of an entry.
pub(super) fn flags_of(message: &NewMessage<'_>) -> u8 {
    let headers = &message.headers;
    let flag = |set, flag| if set { flag } else { 0 };
    flag(headers.binary, BINARY)
        | flag(headers.ttl_s.is_some(), TTL)
        | flag(!headers.attributes.is_empty(), ATTRIBUTES)
        | flag(headers.retain, RETAIN)
        | flag(message.owner.is_known(), HAS_OWNER)
        | headers.qos << QOS_SHIFT
}

impl Entry {
    pub fn is_binary(&self) -> bool {
        self.flags & BINARY != 0
    }
    pub fn has_ttl(&self) -> bool {
        self.flags & TTL != 0
    }
    pub fn was_retained(&self) -> bool {
        self.flags & RETAIN != 0
    }
    pub fn qos(&self) -> u8 {
        self.flags >> QOS_SHIFT & 3
    }
    /// The index after the time to live, and the index after the client's number, in the entry's bytes.
    fn header_ends(&self) -> (usize, usize) {
        let ttl = if self.has_ttl() { TTL_BYTES } else { 0 };
        let owner = OWNER_BYTES * usize::from(self.flags & HAS_OWNER != 0);
        (ttl, ttl + owner)
    }
    pub fn bytes(&self) -> usize {
        let fields = [self.key_len, self.content_type_len, self.event_len].map(usize::from);
        self.header_ends().1 + fields.iter().sum::<usize>() + self.len as usize
    }
    /// The message's own time to live, if it has one. `place` contains the entry's bytes.
    pub fn ttl_s(&self, bytes: &[u8]) -> Option<u32> {
        let bytes = bytes.first_chunk().filter(|_| self.has_ttl());
        bytes.map(|bytes| u32::from_le_bytes(*bytes))
    }
    /// The second in which the message's own time to live ends, at most `u32::MAX`. Most messages have none, and then this does not read the bytes.
    #[inline]
    pub fn expires_at_s(&self, blobs: &Blobs) -> Option<u32> {
        let bytes = self.has_ttl().then(|| blobs.get(self.blob))?;
        let ttl_s = self.ttl_s(bytes)?;
        Some(self.time_s.saturating_add(ttl_s))
    }
    /// The client that is charged for the message. `place` contains the entry's bytes.
    pub fn owner(&self, bytes: &[u8]) -> Client {
        if self.flags & HAS_OWNER == 0 {
            return Client::NOBODY;
        }
        let (from, to) = self.header_ends();
        let number = bytes[from..to].try_into().expect("four bytes");
        Client::from_number(u32::from_le_bytes(number))
    }
    /// Splits the entry's bytes, `place`, into fields.
    pub fn parts<'a>(&self, bytes: &'a [u8]) -> EntryFields<'a> {
        let rest = &bytes[self.header_ends().1..];
        let (key, rest) = rest.split_at(self.key_len as usize);
        let (content_type, rest) = rest.split_at(self.content_type_len as usize);
        let (event, rest) = rest.split_at(self.event_len as usize);
        let rest = &rest[..self.len as usize];
        let (attributes, frame) = match rest.split_first_chunk::<LENGTH_BYTES>() {
            Some((len, rest)) if self.flags & ATTRIBUTES != 0 => {
                rest.split_at(u16::from_le_bytes(*len) as usize)
            }
            _ => rest.split_at(0),
        };
        EntryFields {
            key,
            content_type,
            event,
            attributes,
            frame,
        }
    }
}

/// Calls `take` with the fields of an entry's bytes, in the order in which [`Entry::parts`] reads them. The frame may be in two pieces.
pub(super) fn with_parts<T>(
    message: &NewMessage<'_>,
    frame_parts: [&[u8]; 2],
    take: impl FnOnce(&[&[u8]]) -> T,
) -> T {
    let headers = &message.headers;
    let ttl = headers.ttl_s.map(u32::to_le_bytes);
    let ttl = ttl.as_ref().map_or(&[][..], |ttl| ttl);
    let len = (headers.attributes.len() as u16).to_le_bytes();
    let len = match headers.attributes {
        [] => &[][..],
        _ => &len,
    };
    let owner = message.owner.number().to_le_bytes();
    let owner = match message.owner.is_known() {
        true => &owner[..],
        false => &[],
    };
    take(&[
        ttl,
        owner,
        headers.key,
        headers.content_type,
        headers.event,
        len,
        headers.attributes,
        frame_parts[0],
        frame_parts[1],
    ])
}

/// The topic number of an orphaned chain (`orphans.rs`), which no topic's row refers to.
pub(super) const ORPHANED: u32 = NONE - 1;

/// The chain of a topic: the list of its messages. A topic whose newest messages were removed without being lost may have a chain without
/// messages. That chain keeps only [`Chain::last_lost_offset`], so that subscribers who resume are not told of a gap.
pub(super) struct Chain {
    /// The oldest entry; in a chain without entries, the low half of the last lost offset.
    oldest: u32,
    /// The newest entry; in a chain without entries, the high half of the last lost offset.
    newest: u32,
    pub count: u32,
    pub bytes: u32,
    pub topic: u32,
    pub rule: u8,
    /// Whether the chain keeps only the newest message of each key.
    pub keeps_latest: bool,
    /// Whether entries may have a time to live of their own.
    pub has_ttls: bool,
    /// Whether the newest messages were removed without being lost. Then no entry has the topic's last offset.
    pub newest_removed: bool,
}

const _: () = assert!(size_of::<Chain>() == 24);

impl SlabRow for Chain {
    const FREES_CHUNKS: bool = true;
    fn vacant(next: u32) -> Self {
        Chain {
            oldest: next,
            newest: NONE,
            count: 0,
            bytes: 0,
            topic: NONE,
            rule: 0,
            keeps_latest: false,
            has_ttls: false,
            newest_removed: false,
        }
    }
    fn next_vacant(&self) -> u32 {
        self.oldest
    }
}

impl Chain {
    /// A chain without entries, of a topic whose messages up to `lost` are lost.
    pub fn new(topic: u32, rule: u8, latest: bool, lost: u64) -> Self {
        let mut chain = Chain {
            topic,
            rule,
            keeps_latest: latest,
            ..Chain::vacant(NONE)
        };
        chain.set_last_lost_offset(lost);
        chain
    }
    /// Whether the chain and a new message, whose frame has `frame_bytes`, exceed `messages_max` messages or the rule's bytes. `newest`: the bytes
    /// that the new message occupies if it is in the chain already, otherwise 0.
    pub fn exceeds_limits(
        &self,
        rule: &Rule,
        messages_max: u32,
        frame_bytes: usize,
        newest_bytes: usize,
    ) -> bool {
        let count = self.count - u32::from(newest_bytes > 0);
        let bytes = self.bytes as usize - newest_bytes + size_of::<Entry>() + frame_bytes;
        count > 0 && (count >= messages_max || bytes > rule.log_bytes)
    }
    /// The oldest entry, or `NONE`.
    pub fn oldest(&self) -> u32 {
        if self.count == 0 { NONE } else { self.oldest }
    }
    pub fn newest(&self) -> u32 {
        if self.count == 0 { NONE } else { self.newest }
    }
    pub fn set_oldest(&mut self, entry: u32) {
        self.oldest = entry;
    }
    pub fn set_newest(&mut self, entry: u32) {
        self.newest = entry;
    }
    /// The last lost offset of a chain without entries.
    pub fn last_lost_offset(&self) -> u64 {
        debug_assert!(self.count == 0);
        u64::from(self.oldest) | u64::from(self.newest) << 32
    }
    pub fn set_last_lost_offset(&mut self, offset: u64) {
        debug_assert!(self.count == 0);
        (self.oldest, self.newest) = (offset as u32, (offset >> 32) as u32);
    }
}
