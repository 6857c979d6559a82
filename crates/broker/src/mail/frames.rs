//! The messages of a turn (a pass of the shard's loop): their WebSocket frames in one contiguous buffer, and a [`Record`] for each message
//! with the frame's position and the message's properties. Large frames are not in the buffer: [`Frames`] refers to their shared memory.
//!
//! Words: a *party* is an address or a user, and gets a fair share of the work; a *visit* is the work of a delivery to one connection.

use alloc::vec::Vec;

use crore_wire::websocket::frame;

use crate::budget::admission::Admission;
use crate::budget::admission::valve::VisitsByGroup;
use crate::mail::message::{Headers, NewMessage};
use crate::store::shared::{OutputPart, SHARED_MIN, Shared, Slice};

/// The position of a message in [`Frames`], and its properties.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// The message's offset in its partition.
    pub offset: u64,
    /// The topic's last offset before this message.
    pub previous: u64,
    /// When the message was published, in Unix seconds.
    pub time_s: u32,
    start: u32,
    len: u32,
    meta: u32,
    compressed: u32,
    compressed_len: u32,
    ttl_s: u32,
    attributes: u16,
    content_type: u8,
    event: u8,
    key: u8,
    /// The QoS of MQTT.
    pub qos: u8,
    /// Whether the message was published to be retained.
    pub retain: bool,
    /// Whether the message is sent in a binary frame.
    pub binary: bool,
    /// Whether the topic keeps only the newest message of each key. A message of such a topic is not queued for a full socket, since a
    /// newer message may replace it before the socket accepts bytes again.
    pub latest: bool,
    /// Whether `ttl_s` is set.
    has_ttl: bool,
}

const _: () = assert!(size_of::<Record>() == 56);

/// If the start of a span has this bit, the frame is large. The other bits are the index in `Frames::large`.
const LARGE: u32 = 1 << 31;
/// Bytes of the publisher's number, with which the attributes of a message begin.
pub const ORIGIN_BYTES: usize = 8;
/// The publisher's number of a will, or of a message whose client is no longer known. No client has this number. The publisher's number of
/// messages from other protocols than MQTT is 0.
pub const NO_CLIENT: u64 = 1;

/// The messages of a turn.
#[derive(Default)]
pub struct Frames {
    /// Complete WebSocket frames in the order of publishing.
    bytes: Vec<u8>,
    /// Content types, event names and keys.
    meta: Vec<u8>,
    /// Compressed frames, for connections that negotiated compression.
    compressed: Vec<u8>,
    /// The frames of large messages, plain and compressed.
    large: Vec<Slice>,
    /// The records of pages, the answers to attaches (requests to subscribe).
    pub pages: Vec<Record>,
    /// The topic names of the records in answers to attaches by filter, as positions for [`Frames::name`].
    pub names: Vec<u32>,
    /// When the first of the turn's messages was read, by the clock of [`Shard::set_turn_time`](crate::Shard::set_turn_time); 0 without messages.
    pub stamp: u64,
    /// The number of messages sent to members of shared subscriptions.
    pub group_messages: usize,
    /// Bytes of the messages that are larger than a page. Each of them is the first message of its page.
    pub large_page_bytes: usize,
    /// The bytes of pages of members.
    pub member_bytes: usize,
    /// The number of subscribers that the carriers (the shards with subscribers) must visit, by the party that caused the visits.
    pub visits_by_group: VisitsByGroup,
}

/// Buffers of a turn with more bytes than this are freed, not reused.
pub const FRAMES_KEPT_BYTES: usize = 1 << 20;

impl Frames {
    /// Copies a message into the frames.
    pub fn push(&mut self, message: &NewMessage<'_>) -> Record {
        let span = match &message.whole {
            Some(frame) => self.push_shared(frame.clone()),
            None => self.push_frame(&[], message.frame),
        };
        self.push_record(span, message)
    }

    /// Copies a message from other frames.
    pub fn copy(&mut self, record: &Record, source: &Frames) -> Record {
        self.push(&NewMessage {
            topic: crate::store::slab::NONE,
            offset: record.offset,
            previous: record.previous,
            owner: crate::budget::admission::Client::NOBODY,
            time_s: record.time_s,
            latest: record.latest,
            headers: source.headers(record),
            frame: source.frame(record),
            whole: source.large(record).cloned(),
        })
    }

    /// Copies a message from other frames, with its compressed form.
    pub fn copy_with_compressed(&mut self, record: &Record, source: &Frames) -> Record {
        let mut copied = self.copy(record, source);
        if record.compressed_len > 0 {
            (copied.compressed, copied.compressed_len) = match source.large_compressed(record) {
                Some(frame) => self.push_shared(frame.clone()),
                None => self.copy_compressed(&[source.compressed(record)]),
            };
        }
        copied
    }

    /// Builds a frame from its header and data; returns the span for [`Frames::frame_at`].
    pub fn push_frame(&mut self, header: &[u8], data: &[u8]) -> (u32, u32) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(header);
        self.bytes.extend_from_slice(data);
        // A position beyond this would look like a large frame. The budget of work ends a turn long before.
        assert!(
            self.bytes.len() < LARGE as usize,
            "a turn has too many bytes"
        );
        (start as u32, (self.bytes.len() - start) as u32)
    }

    /// Adds a large frame by reference; returns its span.
    pub fn push_shared(&mut self, frame: Slice) -> (u32, u32) {
        let span = (LARGE | self.large.len() as u32, frame.len() as u32);
        self.large.push(frame);
        span
    }

    /// The bytes of a span.
    #[inline]
    pub fn frame_at(&self, (start, len): (u32, u32)) -> &[u8] {
        match start & LARGE {
            0 => &self.bytes[start as usize..(start + len) as usize],
            _ => &self.large[(start ^ LARGE) as usize],
        }
    }

    /// Copies the headers of a message whose frame was already added ([`Frames::push_frame`], [`Frames::push_shared`]). Returns the record.
    pub fn push_record(&mut self, span: (u32, u32), message: &NewMessage<'_>) -> Record {
        let meta = self.meta.len() as u32;
        let headers = &message.headers;
        for field in headers.fields() {
            self.meta.extend_from_slice(field);
        }
        Record {
            offset: message.offset,
            previous: message.previous,
            time_s: message.time_s,
            start: span.0,
            len: span.1,
            meta,
            compressed: 0,
            compressed_len: 0,
            ttl_s: headers.ttl_s.unwrap_or_default(),
            attributes: headers.attributes.len() as u16,
            content_type: headers.content_type.len() as u8,
            event: headers.event.len() as u8,
            key: headers.key.len() as u8,
            qos: headers.qos,
            retain: headers.retain,
            binary: headers.binary,
            latest: message.latest,
            has_ttl: headers.ttl_s.is_some(),
        }
    }

    /// Copies a topic's name; returns its position.
    pub fn push_name(&mut self, name: &[u8]) -> u32 {
        let at = self.meta.len() as u32;
        let len = u16::try_from(name.len()).expect("names are shorter");
        self.meta.extend_from_slice(&len.to_le_bytes());
        self.meta.extend_from_slice(name);
        at
    }

    /// The name at this position.
    pub fn name(&self, at: u32) -> &[u8] {
        let (len, rest) = self.meta[at as usize..]
            .split_first_chunk::<2>()
            .expect("a name begins with its length");
        &rest[..u16::from_le_bytes(*len) as usize]
    }

    /// Adds the compressed form of a message.
    pub fn push_compressed(
        &mut self,
        record: &mut Record,
        header: &[u8],
        data: &[u8],
        admission: &Admission,
    ) {
        if data.len() >= SHARED_MIN {
            let bytes = [header, data].concat().into_boxed_slice();
            let len = bytes.len();
            (record.compressed, record.compressed_len) =
                self.push_shared(Shared::new(bytes, admission).slice(0..len));
            return;
        }
        (record.compressed, record.compressed_len) = self.copy_compressed(&[header, data]);
    }

    /// Copies a compressed frame; returns its span.
    fn copy_compressed(&mut self, parts: &[&[u8]]) -> (u32, u32) {
        let start = self.compressed.len();
        for part in parts {
            self.compressed.extend_from_slice(part);
        }
        (start as u32, (self.compressed.len() - start) as u32)
    }

    /// The message as one WebSocket frame.
    #[inline]
    pub fn frame(&self, record: &Record) -> &[u8] {
        self.frame_at((record.start, record.len))
    }

    /// The shared WebSocket frame of a large message; `None` for other messages.
    #[inline]
    pub fn large(&self, record: &Record) -> Option<&Slice> {
        (record.start & LARGE != 0).then(|| &self.large[(record.start ^ LARGE) as usize])
    }

    /// The data of a large message; `None` for other messages.
    pub fn large_data(&self, record: &Record) -> Option<Slice> {
        let frame = self.large(record)?;
        Some(frame.without_first(frame::header_len(frame)))
    }

    /// The message as one shared frame, in its compressed form if it has one; `None` if that frame is not large.
    pub fn large_compressed(&self, record: &Record) -> Option<&Slice> {
        match record.compressed_len {
            0 => self.large(record),
            _ if record.compressed & LARGE == 0 => None,
            _ => Some(&self.large[(record.compressed ^ LARGE) as usize]),
        }
    }

    /// The message as one frame, in its compressed form if it has one.
    pub fn compressed(&self, record: &Record) -> &[u8] {
        if record.compressed_len == 0 {
            return self.frame(record);
        }
        match record.compressed & LARGE {
            0 => {
                &self.compressed[record.compressed as usize
                    ..(record.compressed + record.compressed_len) as usize]
            }
            _ => &self.large[(record.compressed ^ LARGE) as usize],
        }
    }

    /// The contiguous frames from record `first` to record `last`, or the shared memory of a single large frame.
    #[inline]
    pub fn joined(&self, first: &Record, last: &Record) -> OutputPart<'_> {
        match self.large(first) {
            None => OutputPart::Bytes(
                &self.bytes[first.start as usize..(last.start + last.len) as usize],
            ),
            Some(frame) => OutputPart::Shared(frame),
        }
    }

    /// The message's data.
    pub fn data(&self, record: &Record) -> &[u8] {
        let frame = self.frame(record);
        &frame[frame::header_len(frame)..]
    }

    /// The message's content type, or empty.
    pub fn content_type(&self, record: &Record) -> &[u8] {
        &self.meta[record.meta as usize..][..record.content_type as usize]
    }

    /// The message's event name, or empty.
    pub fn event(&self, record: &Record) -> &[u8] {
        &self.meta[record.meta as usize + record.content_type as usize..][..record.event as usize]
    }

    /// The message's key, or empty.
    pub fn key(&self, record: &Record) -> &[u8] {
        let key_start = record.content_type as usize + record.event as usize;
        &self.meta[record.meta as usize + key_start..][..record.key as usize]
    }

    /// The publisher's number and MQTT properties (`mail/properties.rs`), or empty.
    fn attributes(&self, record: &Record) -> &[u8] {
        let fields = [record.content_type, record.event, record.key].map(usize::from);
        let attributes_start = fields.iter().sum::<usize>();
        &self.meta[record.meta as usize + attributes_start..][..record.attributes as usize]
    }

    /// The headers that the publisher gave the message.
    pub fn headers(&self, record: &Record) -> Headers<&[u8]> {
        Headers {
            content_type: self.content_type(record),
            event: self.event(record),
            key: self.key(record),
            attributes: self.attributes(record),
            ttl_s: record.ttl_s(),
            qos: record.qos,
            retain: record.retain,
            binary: record.binary,
        }
    }

    /// The number of the MQTT client that published the message; 0 for another protocol.
    pub fn origin(&self, record: &Record) -> u64 {
        let attributes = self.attributes(record).first_chunk::<ORIGIN_BYTES>();
        attributes.map_or(0, |origin| u64::from_le_bytes(*origin))
    }

    /// The MQTT properties that have no field of their own, encoded as in a packet: payload format indicator, response topic, correlation data and
    /// user properties.
    pub fn properties(&self, record: &Record) -> &[u8] {
        self.attributes(record).get(ORIGIN_BYTES..).unwrap_or(&[])
    }

    /// Bytes in use, large messages included.
    pub fn len(&self) -> usize {
        let large = self.large.iter().map(|slice| slice.len()).sum::<usize>();
        self.bytes.len() + self.compressed.len() + large
    }

    /// Bytes in use, large messages, names and headers included.
    pub fn all_len(&self) -> usize {
        self.len() + self.meta.len()
    }

    /// The bytes of large messages that are charged to these frames. The other bytes are charged to other holders of the same messages.
    pub fn large_weight(&self) -> usize {
        self.large.iter().map(Slice::weight).sum()
    }

    /// The capacity of the buffers in bytes, without large messages.
    pub fn own_bytes(&self) -> usize {
        self.bytes.capacity()
            + self.meta.capacity()
            + self.compressed.capacity()
            + self.large.capacity() * size_of::<Slice>()
            + self.pages.capacity() * size_of::<Record>()
            + self.names.capacity() * size_of::<u32>()
            + self.visits_by_group.own_bytes()
    }

    /// Whether the turn has no messages and no pages.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.large.is_empty() && self.pages.is_empty()
    }

    /// Clears the frames for the next turn.
    pub fn clear(&mut self) {
        if self.own_bytes() > FRAMES_KEPT_BYTES {
            *self = Frames::default();
        }
        self.bytes.clear();
        self.meta.clear();
        self.compressed.clear();
        self.large.clear();
        self.pages.clear();
        self.names.clear();
        self.stamp = 0;
        self.group_messages = 0;
        self.large_page_bytes = 0;
        self.member_bytes = 0;
        self.visits_by_group.clear();
    }

    /// Records the time at which a message was read. `stamp` keeps the earliest time.
    #[inline]
    pub fn record_read_time(&mut self, stamp: u64) {
        if self.stamp == 0 || stamp < self.stamp {
            self.stamp = stamp;
        }
    }
}

impl Record {
    /// The message's time to live from [`Record::time_s`] on, if the message has one.
    pub fn ttl_s(&self) -> Option<u32> {
        self.has_ttl.then_some(self.ttl_s)
    }

    /// Bytes of the plain frame.
    #[inline]
    pub fn frame_bytes(&self) -> usize {
        self.len as usize
    }

    /// Whether the frame of `next` follows immediately in the buffer.
    #[inline]
    pub fn is_followed_by(&self, next: &Record) -> bool {
        self.start & LARGE == 0 && self.start + self.len == next.start
    }
}
