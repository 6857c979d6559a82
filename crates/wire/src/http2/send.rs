//! Writes the server's frames: responses, bodies, window updates, and the end of streams and connections.

use alloc::vec::Vec;

use super::connection::Connection;
use super::frame::{self, END_STREAM, HEADER_BYTES, Header, Kind, MAX_31, PAYLOAD_MAX};
use super::limits::Rate;
use super::response::AnswerHead;
use super::streams::State;
use super::violation::ErrorCode;

impl Connection {
    /// Writes the head at the start of `answer`, which [`ResponseHead`](crate::http::response::ResponseHead) wrote. Returns the length of
    /// that head; the rest of `answer` is the body. `ends`: the response has no body. `None` if the stream has ended.
    ///
    /// Heads with status 1xx may precede the head of the response.
    pub fn respond(
        &mut self,
        stream: u32,
        answer: &[u8],
        ends: bool,
        out: &mut Vec<u8>,
    ) -> Option<usize> {
        let row = self.streams.get_mut(stream)?;
        if row.state == State::AnswerEnded {
            return None;
        }
        let head = AnswerHead::read(answer);
        // If a CONNECT is refused, the stream ends like that of another request.
        row.is_tunnel &= head.status < 300;
        row.has_head = head.status >= 200;
        let len = head.write(stream, ends, out);
        if ends {
            self.end_answer(stream, out);
        }
        Some(len)
    }

    /// Whether the head of the stream's response is not written yet. `None` if the stream or its response has ended.
    pub fn awaits_head(&self, stream: u32) -> Option<bool> {
        let row = self.streams.get(stream);
        let row = row.filter(|row| row.state != State::AnswerEnded);
        row.map(|row| !row.has_head)
    }

    /// Ends a response after the bytes written so far, and ends the stream with it. This also ends a tunnel whose client may still send.
    /// `last` is the offset in `out` of the last frame of this response, if it is still there; this frame then gets the flag END_STREAM.
    pub fn end(&mut self, stream: u32, last: Option<usize>, out: &mut Vec<u8>) {
        match self.awaits_head(stream) {
            None => return,
            Some(true) => return self.reset(stream, ErrorCode::Cancel, out),
            Some(false) => {}
        }
        match last {
            Some(at) => out[at + Header::FLAGS_AT] |= END_STREAM,
            None => {
                let header = Header::new(Kind::Data, END_STREAM, stream, 0);
                out.extend_from_slice(&header.bytes());
            }
        }
        if let Some(row) = self.streams.get_mut(stream) {
            row.is_tunnel = false;
        }
        self.end_answer(stream, out);
    }

    /// Whether the window of the stream is open, whatever that of the connection allows.
    pub fn has_stream_window(&self, stream: u32) -> bool {
        let row = self.streams.get(stream);
        row.is_some_and(|row| row.send.available() > 0)
    }

    /// The number of body bytes that the client's windows now allow for this stream.
    pub fn capacity(&self, stream: u32) -> usize {
        let row = self.streams.get(stream);
        let of_stream = row.map_or(0, |row| row.send.available());
        of_stream.min(self.send.available())
    }

    /// Writes as much of a body as the windows allow, and returns the number of bytes written. `ends`: these are the last bytes of the
    /// body, so the stream ends when all are written.
    pub fn send_data(&mut self, stream: u32, body: &[u8], ends: bool, out: &mut Vec<u8>) -> usize {
        let taken = self.capacity(stream).min(body.len());
        let Some(row) = self.streams.get_mut(stream) else {
            return 0;
        };
        if row.state == State::AnswerEnded {
            return 0;
        }
        row.send.take(taken);
        self.send.take(taken);
        let ends = ends && taken == body.len();
        out.reserve(taken + HEADER_BYTES * taken.div_ceil(PAYLOAD_MAX).max(1));
        let mut left = &body[..taken];
        while !left.is_empty() || ends {
            let (part, rest) = left.split_at(left.len().min(PAYLOAD_MAX));
            let is_last = ends && rest.is_empty();
            let flags = if is_last { END_STREAM } else { 0 };
            let header = Header::new(Kind::Data, flags, stream, part.len());
            out.extend_from_slice(&header.bytes());
            out.extend_from_slice(part);
            // For each frame that it has read, a client may send an update of the stream's window and of the connection's window.
            self.rates.grant(Rate::WindowUpdates, 2);
            left = rest;
            if is_last {
                break;
            }
        }
        if ends {
            self.end_answer(stream, out);
        }
        taken
    }

    /// The caller has processed bytes of an [`Event::Data`](super::Event::Data), so the client may send more.
    pub fn release(&mut self, stream: u32, bytes: usize, out: &mut Vec<u8>) {
        let size = self.stream_receive_size;
        let Some(row) = self.streams.get_mut(stream) else {
            return;
        };
        let bytes = row.receive.held(size).min(bytes as u32);
        let increment = row.receive.release(bytes, size);
        if let Some(increment) = increment
            && row.state != State::RequestEnded
        {
            frame::write_window_update(out, stream, increment);
        }
        self.give_back(bytes, out);
    }

    /// The caller has processed all bytes of a body that have arrived.
    pub fn release_all(&mut self, stream: u32, out: &mut Vec<u8>) {
        let size = self.stream_receive_size;
        let held = self.streams.get(stream).map(|row| row.receive.held(size));
        if let Some(held) = held.filter(|held| *held > 0) {
            self.release(stream, held as usize, out);
        }
    }

    /// Asks the client to open no more streams, but does not refuse streams that are in flight (RFC 9113 section 6.8).
    pub fn drain(&self, out: &mut Vec<u8>) {
        frame::write_go_away(out, MAX_31, ErrorCode::NoError, "drain");
    }

    /// Refuses all streams that the client opens from now on. Open streams continue.
    pub fn go_away(&mut self, code: ErrorCode, reason: &str, out: &mut Vec<u8>) {
        self.last_served = self.last_served.min(self.last_stream);
        frame::write_go_away(out, self.last_served, code, reason);
    }

    /// Records that the response is complete. If the request is not complete, its rest is not needed (RFC 9113 section 8.1).
    fn end_answer(&mut self, stream: u32, out: &mut Vec<u8>) {
        let Some(row) = self.streams.get_mut(stream) else {
            return;
        };
        match row.state {
            State::RequestEnded => {
                self.remove(stream, out);
            }
            _ if row.is_tunnel => row.state = State::AnswerEnded,
            _ => self.reset(stream, ErrorCode::NoError, out),
        }
    }
}
