//! The state of an HTTP/2 connection.

use alloc::vec::Vec;

use super::flow::{ReceiveWindow, SendWindow};
use super::frame::{self, MAX_31, Setting};
use super::hpack::decode::Decoder;
use super::limits::{Limits, Rates};
use super::streams::{State, Stream, Streams, UNKNOWN_LENGTH};
use super::violation::{ErrorCode, Violation};

/// The initial window of streams and of the connection, until SETTINGS and WINDOW_UPDATE change it (RFC 9113 section 6.9.2).
pub(super) const INITIAL_WINDOW: u32 = 65_535;

/// An HTTP/2 connection of the server. [`receive`](Self::receive) reads the client's bytes; the other methods write the server's bytes.
///
/// Invariants: without streams, the heap memory is bounded by one HPACK table and a few rows for streams. All frames that this type writes
/// are allowed by the windows and by the states of the streams.
#[derive(Debug)]
pub struct Connection {
    pub(super) streams: Streams,
    pub(super) decoder: Decoder,
    pub(super) rates: Rates,
    pub(super) send: SendWindow,
    pub(super) receive: ReceiveWindow,
    /// The announced sizes of the receive windows.
    pub(super) receive_size: u32,
    pub(super) stream_receive_size: u32,
    /// The announced number of concurrent streams.
    pub(super) streams_max: u32,
    /// The client's SETTINGS_INITIAL_WINDOW_SIZE.
    pub(super) initial_send: u32,
    /// The highest stream that the client has opened.
    pub(super) last_stream: u32,
    /// Streams above this one are not processed, as the last GOAWAY said.
    pub(super) last_served: u32,
    /// The highest stream that the server ended before the client did. The client may not know that yet, so frames of this and lower
    /// streams may be in flight. Frames of those streams that have no row are ignored.
    pub(super) last_cut: u32,
    /// The stream of the last DATA frame.
    pub(super) last_data: u32,
    pub(super) partial: Partial,
    pub(super) phase: Phase,
    pub(super) is_acknowledged: bool,
}

/// A frame that is read in pieces. All other frames are read when they are complete.
#[derive(Clone, Copy, Debug)]
pub(super) enum Partial {
    None,
    /// DATA: the bytes of the body, followed by padding.
    Data {
        stream: u32,
        left: u32,
        padding: u8,
        ends: bool,
    },
    /// Bytes that are ignored.
    Skip(u32),
}

impl Partial {
    /// The rest of a frame that is ignored.
    pub fn skip(bytes: u32) -> Partial {
        match bytes {
            0 => Partial::None,
            bytes => Partial::Skip(bytes),
        }
    }
}

/// What the client must send next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Preface,
    Settings,
    Frames,
}

impl Connection {
    /// A new connection. Appends the server's preface, which may be sent before the client's preface has arrived.
    pub fn new(limits: &Limits, out: &mut Vec<u8>) -> Connection {
        // Until the client reads the settings, it may send as much as the initial window.
        let stream_receive_size = limits.stream_window.clamp(INITIAL_WINDOW, MAX_31);
        let receive_size = limits.connection_window.clamp(INITIAL_WINDOW, MAX_31);
        let settings = [
            (Setting::HeaderTableSize, 0),
            (Setting::MaxConcurrentStreams, limits.streams),
            (Setting::InitialWindowSize, stream_receive_size),
            (Setting::MaxHeaderListSize, limits.header_list_bytes),
            (Setting::EnableConnectProtocol, 1),
            (Setting::NoRfc7540Priorities, 1),
        ];
        frame::write_settings(out, &settings);
        if receive_size > INITIAL_WINDOW {
            frame::write_window_update(out, 0, receive_size - INITIAL_WINDOW);
        }
        Connection {
            streams: Streams::default(),
            decoder: Decoder::default(),
            rates: Rates::default(),
            send: SendWindow::new(INITIAL_WINDOW),
            receive: ReceiveWindow::new(receive_size),
            receive_size,
            stream_receive_size,
            streams_max: limits.streams,
            initial_send: INITIAL_WINDOW,
            last_stream: 0,
            last_served: MAX_31,
            last_cut: 0,
            last_data: 0,
            partial: Partial::None,
            phase: Phase::Preface,
            is_acknowledged: false,
        }
    }

    /// The number of streams that have not ended.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// The numbers of the streams that have not ended, each with the caller's number.
    pub fn slots(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.streams.iter().map(|stream| (stream.id, stream.slot))
    }

    /// Stores the caller's number for a stream. Events of the stream contain this number.
    pub fn attach(&mut self, stream: u32, slot: u32) {
        if let Some(stream) = self.streams.get_mut(stream) {
            stream.slot = slot;
        }
    }

    /// Whether the length of the request's body is unknown, so that the head announces a chunked body.
    pub fn is_chunked(&self, stream: u32) -> bool {
        let row = self.streams.get(stream);
        row.is_some_and(|row| row.body_left == UNKNOWN_LENGTH && !row.is_tunnel)
    }

    /// Whether the request of the stream is a CONNECT that was not refused.
    pub fn is_tunnel(&self, stream: u32) -> bool {
        self.streams.get(stream).is_some_and(|row| row.is_tunnel)
    }

    /// Whether the client has acknowledged the settings. Until then the connection may keep a dynamic table ([`super::hpack::decode`]), so
    /// the caller should wait only for a limited time (RFC 9113 section 6.5.3).
    pub fn is_acknowledged(&self) -> bool {
        self.is_acknowledged
    }

    /// Bytes of heap memory of the connection.
    pub fn heap_bytes(&self) -> usize {
        self.streams.heap_bytes() + self.decoder.heap_bytes()
    }

    /// Resets a stream and tells the client. The caller forgets the stream.
    pub fn reset(&mut self, stream: u32, code: ErrorCode, out: &mut Vec<u8>) {
        if self.cut(stream, out).is_some() {
            frame::write_reset(out, stream, code);
        }
    }

    /// Removes the row of a stream that the server ends, and prepares for frames of the stream that are in flight.
    pub(super) fn cut(&mut self, stream: u32, out: &mut Vec<u8>) -> Option<Stream> {
        let row = self.remove(stream, out)?;
        if row.state != State::RequestEnded {
            self.last_cut = self.last_cut.max(stream);
        }
        Some(row)
    }

    /// Removes the row of a stream. Bytes that the caller has not released are released.
    pub(super) fn remove(&mut self, stream: u32, out: &mut Vec<u8>) -> Option<Stream> {
        let row = self.streams.remove(stream)?;
        let held = row.receive.held(self.stream_receive_size);
        self.give_back(held, out);
        Some(row)
    }

    /// Returns bytes to the connection's receive window, and tells the client when that is due.
    pub(super) fn give_back(&mut self, bytes: u32, out: &mut Vec<u8>) {
        if let Some(increment) = self.receive.release(bytes, self.receive_size) {
            frame::write_window_update(out, 0, increment);
        }
    }

    /// Checks that the client has opened this stream or a higher one.
    pub(super) fn check_opened(&self, stream: u32) -> Result<(), Violation> {
        match stream > self.last_stream {
            true => Err(Violation::IdleStream),
            false => Ok(()),
        }
    }

    /// Whether the client may have sent a frame of a stream without a row before it knew that the stream has ended.
    pub(super) fn may_be_in_flight(&self, stream: u32) -> bool {
        stream <= self.last_cut || stream > self.last_served
    }

    /// Records that the request is complete.
    pub(super) fn end_request(&mut self, stream: u32, out: &mut Vec<u8>) {
        let Some(row) = self.streams.get_mut(stream) else {
            return;
        };
        match row.state {
            State::AnswerEnded => {
                self.remove(stream, out);
            }
            _ => row.state = State::RequestEnded,
        }
    }
}
