//! Links with several consumers: connections of HTTP/2. A consumer on such a link is a stream, with a row of its own in the table of
//! connections. In place of a socket the row has the number of its stream here, so its bytes become frames of the link.
//!
//! Invariants: each stream of a link's codec that the table knows has one row, and one entry here. The frames of a turn are given to
//! the socket together, when [`Links::next_dirty`] names the link at the end of the turn, or earlier if they are many. Bytes for which the
//! client's windows or the socket have no room wait as for a slow socket: in the row's outbox, or in the log, from which the row's consumer continues.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use crore_wire::http2::{Connection, ErrorCode, Limits, Scratch};

use crate::base::ids::SocketId;
use crate::client::outbox::parts_len;
use crate::client::row::NO_SOCKET;
use crate::io::{CloseMode, Io};
use crate::store::shared::OutputPart;
use crate::store::slab::{Slab, SlabRow};

/// In [`SocketId`]: the number is that of a stream. Transports count their sockets from 0.
const STREAM: u32 = 1 << 31;
/// When this many bytes of frames wait, they are given to the socket before the next frame of the same body is written.
const FLUSH_BYTES: usize = 64 << 10;
/// If more bytes of frames than this wait, they are sent before the end of the turn. Otherwise each link of a fan-out would hold its own copy of a
/// large message.
const WAITING_BYTES_MAX: usize = 16 << 10;
/// When this many bytes wait for the socket of a link, no more frames of the client are read. Bodies already wait for a socket that is full, so these bytes
/// are a part of one body, heads, and answers to control frames.
pub(crate) const UNSENT_BYTES_MAX: usize = 256 << 10;
/// The capacity of a link's buffer of frames when it begins to write: enough for an answer.
const FRAME_BUFFER_BYTES: usize = 512;
/// The longest payload of a frame of DATA that is written here.
const FRAME_BYTES: usize = crore_wire::http2::frame::PAYLOAD_MAX;
/// The bytes of a frame's header.
const HEADER_BYTES: usize = crore_wire::http2::frame::HEADER_BYTES;

impl SocketId {
    /// Whether this is the number of a stream.
    #[inline]
    pub(crate) fn is_http2_stream(self) -> bool {
        (STREAM..NO_SOCKET.0).contains(&self.0)
    }

    /// The number of the stream; `None` for a socket.
    #[inline]
    fn stream(self) -> Option<u32> {
        self.is_http2_stream().then_some(self.0 & !STREAM)
    }
}

/// Where a stream is.
struct Stream {
    /// The slot of the stream's link; in a free entry, the next free entry.
    link: u32,
    /// The number of the stream on its link; 0 in a free entry.
    id: u32,
}

impl SlabRow for Stream {
    fn vacant(next: u32) -> Self {
        Stream { link: next, id: 0 }
    }
    fn next_vacant(&self) -> u32 {
        self.link
    }
}

/// A link with streams.
pub(crate) struct SharedLink {
    pub(crate) codec: Connection,
    /// Frames that the socket has not been given yet.
    pub(crate) out: Vec<u8>,
    /// The last frame of an answer in `out`: the number of its stream, and its place. The number is 0 if there is none.
    last_frame: (u32, usize),
    /// Whether the socket has not accepted all bytes, so that the streams must wait.
    pub(crate) is_full: bool,
    /// Whether the outbox of a stream may have become writable.
    has_waiting: bool,
    /// Whether the link is in the list of links with frames to send.
    is_dirty: bool,
    /// Whether the client was told to open no more streams.
    pub(crate) is_told_to_stop: bool,
    /// The streams in succession that were turned away.
    pub(crate) turned_away: u8,
    /// The stream after which the next round over waiting streams begins.
    pub(crate) cursor: u32,
    /// The second in which a waiting stream last wrote something.
    pub(crate) served_s: u32,
    /// The bytes that the account charges for it.
    charged_bytes: usize,
}

impl SharedLink {
    fn bytes(&self) -> usize {
        size_of::<SharedLink>() + self.codec.heap_bytes() + self.out.capacity()
    }

    /// Gives the frames to the socket.
    fn flush<I: Io>(&mut self, socket: SocketId, io: &mut I) {
        self.last_frame = (0, 0);
        let sent = io.send(socket, &[OutputPart::Bytes(&self.out)]);
        self.is_full = sent < self.out.len();
        self.out.drain(..sent);
        if self.out.is_empty() {
            // Only the links that write need room.
            self.out = Vec::new();
        }
    }

    /// Writes as much of a body as the client's windows and the socket take.
    fn write_body<I: Io>(&mut self, id: u32, body: &[u8], socket: SocketId, io: &mut I) -> usize {
        let mut taken = 0;
        while taken < body.len() && !self.is_full {
            if self.out.len() >= FLUSH_BYTES {
                self.flush(socket, io);
                continue;
            }
            let rest = &body[taken..];
            let part = &rest[..rest.len().min(FRAME_BYTES)];
            let sent = self.codec.send_data(id, part, false, &mut self.out);
            if sent == 0 {
                break;
            }
            self.last_frame = (id, self.out.len() - sent - HEADER_BYTES);
            taken += sent;
        }
        if self.out.len() > WAITING_BYTES_MAX && !self.is_full {
            self.flush(socket, io);
        }
        taken
    }
}

/// The links with streams, and their streams.
#[derive(Default)]
pub(crate) struct Links {
    streams: Slab<Stream>,
    link_by_slot: BTreeMap<u32, Box<SharedLink>>,
    /// The slots of links with frames to send.
    dirty_links: VecDeque<u32>,
    /// Memory for the codec, and for the request that is being read.
    pub(crate) scratch: Scratch,
    pub(crate) request: Vec<u8>,
    /// Memory for the frames of the next link that writes.
    spare: Vec<u8>,
}

impl Links {
    /// The number of streams.
    pub(crate) fn streams(&self) -> u32 {
        self.streams.len()
    }

    /// The bytes of the table of streams.
    pub(crate) fn table_bytes(&self) -> usize {
        self.streams.bytes()
    }

    /// Makes a connection a link with streams. The server's preface will be its first frames.
    pub(crate) fn add_link(&mut self, slot: u32, limits: &Limits) {
        let mut out = Vec::new();
        let codec = Connection::new(limits, &mut out);
        let link = SharedLink {
            codec,
            out,
            last_frame: (0, 0),
            is_full: false,
            has_waiting: false,
            is_dirty: true,
            is_told_to_stop: false,
            turned_away: 0,
            cursor: 0,
            served_s: 0,
            charged_bytes: 0,
        };
        self.link_by_slot.insert(slot, Box::new(link));
        self.dirty_links.push_back(slot);
    }

    /// The link with this slot.
    pub(crate) fn get(&self, slot: u32) -> Option<&SharedLink> {
        self.link_by_slot.get(&slot).map(|link| &**link)
    }

    /// The link with this slot, mutably. Its frames will be sent, and its bytes weighed, at the end of the turn.
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut SharedLink> {
        let link = self.link_by_slot.get_mut(&slot)?;
        if !core::mem::replace(&mut link.is_dirty, true) {
            self.dirty_links.push_back(slot);
            if link.out.capacity() == 0 {
                link.out = core::mem::take(&mut self.spare);
                link.out.reserve(FRAME_BUFFER_BYTES);
            }
        }
        Some(link)
    }

    /// Removes a link. Returns it, and the bytes that are charged for it. The caller ends its streams.
    pub(crate) fn remove(&mut self, slot: u32) -> Option<(Box<SharedLink>, usize)> {
        let link = self.link_by_slot.remove(&slot)?;
        let charged_bytes = link.charged_bytes;
        Some((link, charged_bytes))
    }

    /// Adds a stream. Returns what its row has in place of a socket.
    pub(crate) fn add(&mut self, link: u32, id: u32) -> SocketId {
        SocketId(STREAM | self.streams.insert(Stream { link, id }))
    }

    /// The slot of the link of this stream; `None` if it is a socket.
    #[inline]
    pub(crate) fn link_of(&self, socket: SocketId) -> Option<u32> {
        socket.stream().map(|at| self.streams.get(at).link)
    }

    /// Writes parts of an answer. Returns the number of accepted bytes. `socket` is that of the link.
    pub(crate) fn write<I: Io>(
        &mut self,
        stream: SocketId,
        parts: &[OutputPart<'_>],
        socket: SocketId,
        io: &mut I,
    ) -> usize {
        let Some((id, link)) = self.find(stream) else {
            return parts_len(parts);
        };
        let mut taken = 0;
        for part in parts {
            let mut rest: &[u8] = part.as_ref();
            while !rest.is_empty() && link.codec.awaits_head(id) == Some(true) {
                let frame_start = link.out.len();
                let Some(len) = link.codec.respond(id, rest, false, &mut link.out) else {
                    break;
                };
                link.last_frame = (id, frame_start);
                taken += len;
                rest = &rest[len..];
            }
            if link.codec.awaits_head(id).is_none() {
                // The client has ended the stream, and its row is about to end.
                return parts_len(parts);
            }
            let sent = link.write_body(id, rest, socket, io);
            taken += sent;
            if sent < rest.len() {
                break;
            }
        }
        taken
    }

    /// Ends a stream in the way that a socket is closed. Its entry is free then.
    pub(crate) fn close(&mut self, stream: SocketId, mode: CloseMode) {
        if let Some((id, link)) = self.find(stream) {
            let SharedLink {
                codec,
                out,
                last_frame,
                ..
            } = link;
            match mode {
                CloseMode::Reset => codec.reset(id, ErrorCode::Cancel, out),
                CloseMode::Now | CloseMode::Drain => {
                    let at = (last_frame.0 == id).then_some(last_frame.1);
                    codec.end(id, at, out);
                }
            }
        }
        let is_used = |at: &u32| self.streams.get(*at).id != 0;
        if let Some(at) = stream.stream().filter(is_used) {
            self.streams.remove(at);
        }
    }

    /// Whether code has followed a number to a stream that does not exist, since the last call.
    pub(crate) fn take_missed(&self) -> bool {
        self.streams.take_missed()
    }

    /// Whether a link has frames to send, or streams that may be writable.
    pub(crate) fn has_dirty(&self) -> bool {
        !self.dirty_links.is_empty()
    }

    /// The server reads more of the stream's body, or has bytes for it.
    pub(crate) fn set_interest(&mut self, stream: SocketId, reads: bool, writes: bool) {
        if let Some((id, link)) = self.find(stream) {
            if reads {
                link.codec.release_all(id, &mut link.out);
            }
            link.has_waiting |= writes;
        }
    }

    /// Whether bytes of the stream wait only for the other streams of its link: the window of the stream is open, and the socket of the link is full, or
    /// other streams have written since `since_s`.
    pub(crate) fn waits_for_link(&self, stream: SocketId, since_s: u32) -> bool {
        let Some(at) = stream.stream() else {
            return false;
        };
        let &Stream { link, id } = self.streams.get(at);
        self.get(link).is_some_and(|link| {
            link.codec.has_stream_window(id) && (link.is_full || link.served_s > since_s)
        })
    }

    /// Streams of the link may be writable.
    pub(crate) fn wake_streams(&mut self, slot: u32) {
        if let Some(link) = self.get_mut(slot) {
            link.has_waiting = true;
        }
    }

    /// The next link with frames to send, or with streams that may be writable.
    pub(crate) fn next_dirty(&mut self) -> Option<u32> {
        loop {
            let slot = self.dirty_links.pop_front()?;
            if let Some(link) = self.link_by_slot.get_mut(&slot) {
                link.is_dirty = false;
                return Some(slot);
            }
        }
    }

    /// Takes the frames that a link has to send.
    pub(crate) fn take_frames(&mut self, slot: u32) -> Vec<u8> {
        let link = self.link_by_slot.get_mut(&slot);
        link.map_or(Vec::new(), |link| {
            link.last_frame = (0, 0);
            core::mem::take(&mut link.out)
        })
    }

    /// Keeps the memory of frames that were sent for the next link that writes.
    pub(crate) fn recycle(&mut self, mut frames: Vec<u8>) {
        if (self.spare.capacity() + 1..=WAITING_BYTES_MAX).contains(&frames.capacity()) {
            frames.clear();
            self.spare = frames;
        }
    }

    /// Whether streams of the link may be writable, since the last call.
    pub(crate) fn take_waiting(&mut self, slot: u32) -> bool {
        let link = self.link_by_slot.get_mut(&slot);
        link.is_some_and(|link| !link.is_full && core::mem::take(&mut link.has_waiting))
    }

    /// Records whether the link's socket has accepted all bytes.
    pub(crate) fn set_full(&mut self, slot: u32, is_full: bool) {
        if let Some(link) = self.link_by_slot.get_mut(&slot) {
            link.is_full = is_full;
        }
    }

    /// The bytes of the link's state, beyond those of any connection.
    pub(crate) fn bytes_of(&self, slot: u32) -> usize {
        self.link_by_slot.get(&slot).map_or(0, |link| link.bytes())
    }

    /// Updates the charge for a link. Returns the charged bytes before and now.
    pub(crate) fn weigh(&mut self, slot: u32) -> (usize, usize) {
        let link = self.link_by_slot.get_mut(&slot);
        link.map_or((0, 0), |link| {
            let now = link.bytes();
            (core::mem::replace(&mut link.charged_bytes, now), now)
        })
    }

    /// The stream's number and its link, if the link still exists.
    fn find(&mut self, stream: SocketId) -> Option<(u32, &mut SharedLink)> {
        let &Stream { link, id } = self.streams.get(stream.stream()?);
        (id != 0).then_some(id).zip(self.get_mut(link))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::{ConnId, ShardId};
    use crate::mail::Mail;
    use crore_wire::http2::frame::{END_HEADERS, END_STREAM, Header, Kind, PREFACE};

    /// A socket that takes all bytes, and their number.
    struct Socket(usize);

    impl Io for Socket {
        fn start_reading(&mut self, _: SocketId, _: ConnId) {}
        fn send(&mut self, _: SocketId, parts: &[OutputPart<'_>]) -> usize {
            self.0 += parts_len(parts);
            parts_len(parts)
        }
        fn set_interest(&mut self, _: SocketId, _: ConnId, _: bool, _: bool) {}
        fn close(&mut self, _: SocketId, _: CloseMode) {}
        fn post(&mut self, _: ShardId, _: Mail) {}
    }

    #[test]
    fn a_large_message_does_not_wait_in_each_link_for_the_end_of_the_turn() {
        let (mut links, limits, mut io) = (Links::default(), Limits::default(), Socket(0));
        links.add_link(7, &limits);
        let block = b"\x82\x86\x84\x01\x09localhost";
        let frame = |kind, flags, stream, payload: &[u8]| {
            [
                &Header::new(kind, flags, stream, payload.len()).bytes()[..],
                payload,
            ]
            .concat()
        };
        let hello = [
            PREFACE.to_vec(),
            frame(Kind::Settings, 0, 0, &[]),
            frame(Kind::Headers, END_HEADERS | END_STREAM, 1, block),
        ]
        .concat();
        let link = links.get_mut(7).expect("it was begun");
        let (codec, out) = (&mut link.codec, &mut link.out);
        let mut scratch = Scratch::default();
        let received = codec.receive(&hello, 1, &limits, &mut scratch, out);
        assert!(received.is_ok_and(|received| received.event.is_some()));
        let stream = links.add(7, 1);
        let mut write = |links: &mut Links, bytes: &[u8]| {
            let parts = [OutputPart::Bytes(bytes)];
            assert_eq!(
                links.write(stream, &parts, SocketId(3), &mut io),
                bytes.len()
            );
            io.0
        };
        assert_eq!(write(&mut links, b"HTTP/1.1 200 OK\r\n\r\n"), 0);
        assert_eq!(write(&mut links, &[b'x'; 100]), 0);
        assert!(write(&mut links, &[b'x'; 60_000]) > 60_000);
        assert_eq!(links.get(7).map(|link| link.out.capacity()), Some(0));
    }
}
