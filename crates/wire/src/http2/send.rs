//! What a server writes on a connection: answers, bodies, window updates, and the end.

use alloc::vec::Vec;

use super::connection::Connection;
use super::frame::{self, END_STREAM, HEADER_BYTES, Header, Kind, MAX_31, PAYLOAD_MAX};
use super::limits::Rate;
use super::response::AnswerHead;
use super::streams::State;
use super::violation::ErrorCode;

impl Connection {
    /// Writes the head at the start of `answer`, which [`ResponseHead`](crate::http::response::ResponseHead) wrote. Returns the length of
    /// that head: the rest of `answer` is the body. `ends`: there is no body. `None` if the stream has ended.
    ///
    /// An answer may have heads with status 1xx before its own.
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
        // A refused CONNECT is an answer like others.
        row.is_tunnel &= head.status < 300;
        row.has_head = head.status >= 200;
        head.write(stream, ends, out);
        if ends {
            self.end_answer(stream, out);
        }
        Some(head.len)
    }

    /// Whether the head of the stream's answer is yet to be written. `None` if the stream, or its answer, has ended.
    pub fn awaits_head(&self, stream: u32) -> Option<bool> {
        let row = self.streams.get(stream);
        let row = row.filter(|row| row.state != State::AnswerEnded);
        row.map(|row| !row.has_head)
    }

    /// Ends an answer after what was written of it, and with it the stream: also a tunnel, whose client may still send. `last` is the
    /// place in `out` of the last frame of this answer, if it is still there; it is marked as the last one.
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

    /// The bytes of a body that the client's windows allow for this stream now.
    pub fn capacity(&self, stream: u32) -> usize {
        let row = self.streams.get(stream);
        let of_stream = row.map_or(0, |row| row.send.available());
        of_stream.min(self.send.available())
    }

    /// Writes as much of a body as the windows allow. Returns the number of bytes that it took. `ends`: these bytes are the last of the
    /// body; the stream ends if all are taken.
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
            // A client may tell each of its windows when it has read a frame.
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

    /// The caller has taken bytes of a body that [`Event::Data`](super::Event::Data) gave it. So the client may send more.
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

    /// The caller has taken all bytes of a body that came so far.
    pub fn release_all(&mut self, stream: u32, out: &mut Vec<u8>) {
        let size = self.stream_receive_size;
        let held = self.streams.get(stream).map(|row| row.receive.held(size));
        if let Some(held) = held.filter(|held| *held > 0) {
            self.release(stream, held as usize, out);
        }
    }

    /// Asks whether the client is alive; it answers with [`Event::Pong`](super::Event::Pong).
    pub fn ping(&self, opaque: [u8; 8], out: &mut Vec<u8>) {
        frame::write_ping(out, false, opaque);
    }

    /// Asks the client to open no more streams, without a refusal of those that are on their way (RFC 9113 section 6.8).
    pub fn drain(&self, out: &mut Vec<u8>) {
        frame::write_go_away(out, MAX_31, ErrorCode::NoError, "drain");
    }

    /// Refuses all streams that the client opens from now on. Those before go on.
    pub fn go_away(&mut self, code: ErrorCode, reason: &str, out: &mut Vec<u8>) {
        self.last_served = self.last_served.min(self.last_stream);
        frame::write_go_away(out, self.last_served, code, reason);
    }

    /// The answer is complete. If the request is not, its rest is not needed (RFC 9113 section 8.1).
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
