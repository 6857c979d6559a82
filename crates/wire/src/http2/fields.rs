//! Reads field blocks: requests and trailer fields (RFC 9113 sections 4.3, 6.2 and 6.10).

use core::ops::Range;

use super::connection::Connection;
use super::event::{Call, Event, Found, Scratch};
use super::flow::{ReceiveWindow, SendWindow};
use super::frame::{
    END_HEADERS, END_STREAM, HEADER_BYTES, Header, Kind, MAX_31, PADDED, PAYLOAD_MAX, PRIORITY,
    read_u32,
};
use super::limits::{Limits, Rate};
use super::request::{Refusal, RequestWriter, check_trailer};
use super::streams::{NO_SLOT, State, Stream, UNKNOWN_LENGTH};
use super::violation::{Fault, Violation};

impl Connection {
    /// Handles a whole field block. `block` is its first fragment. If there are more fragments, the scratch contains all of them.
    pub(super) fn headers(
        &mut self,
        header: Header,
        block: &[u8],
        call: &mut Call<'_>,
    ) -> Result<Found, Fault> {
        let (stream, ends) = (header.stream, header.has(END_STREAM));
        let joined = core::mem::take(&mut call.scratch.block);
        let most = decoded_most(call.limits);
        let whole = if header.has(END_HEADERS) {
            block
        } else {
            &joined
        };
        let found = match self.streams.get(stream).map(|row| row.state) {
            _ if stream > self.last_stream => self.open(stream, ends, whole, call),
            Some(State::Open | State::AnswerEnded) => self.trailers(stream, ends, whole, call),
            ended => {
                // The block may change the dynamic table, so it must be decoded.
                let strings = &mut call.scratch.strings;
                self.decoder.decode(whole, strings, most, |_, _| {})?;
                match ended {
                    Some(_) => Err(Fault::Stream(stream, Violation::StreamClosed)),
                    None if self.may_be_in_flight(stream) => {
                        self.rates.count(Rate::EmptyFrames, call.limits)?;
                        Ok(Found::Nothing)
                    }
                    None => Err(Violation::StreamReused.into()),
                }
            }
        };
        call.scratch.block = joined;
        found
    }

    /// Opens a stream for a request.
    fn open(
        &mut self,
        stream: u32,
        ends: bool,
        block: &[u8],
        call: &mut Call<'_>,
    ) -> Result<Found, Fault> {
        self.last_stream = stream;
        let most = decoded_most(call.limits);
        let Scratch {
            strings,
            pseudo,
            head,
            ..
        } = &mut *call.scratch;
        let mut writer = RequestWriter::new(head, pseudo, call.limits.header_list_bytes);
        let decoded = self.decoder.decode(block, strings, most, |name, value| {
            writer.field(name, value)
        });
        decoded?;
        if stream > self.last_served {
            self.rates.count(Rate::EmptyFrames, call.limits)?;
            return Ok(Found::Nothing);
        }
        let request = match self.streams.len() < self.streams_max as usize {
            true => writer.finish(ends),
            false => Err(Violation::Streams.into()),
        };
        let (found, body_left, is_tunnel) = match request {
            Ok(request) => {
                let found = Found::Request { stream, ends };
                (found, request.body_left, request.is_tunnel)
            }
            Err(Refusal::TooLarge) => {
                let found = Found::Other(Event::TooLarge { stream });
                (found, UNKNOWN_LENGTH, false)
            }
            Err(Refusal::Malformed(violation)) => {
                if !ends {
                    self.last_cut = stream;
                }
                return Err(Fault::Stream(stream, violation));
            }
        };
        self.streams.push(Stream {
            id: stream,
            slot: NO_SLOT,
            send: SendWindow::new(self.initial_send),
            receive: ReceiveWindow::new(self.stream_receive_size),
            body_left,
            state: if ends {
                State::RequestEnded
            } else {
                State::Open
            },
            is_tunnel,
            has_head: false,
            has_small: false,
        });
        Ok(found)
    }

    /// Reads the fields after a body.
    fn trailers(
        &mut self,
        stream: u32,
        ends: bool,
        block: &[u8],
        call: &mut Call<'_>,
    ) -> Result<Found, Fault> {
        let mut verdict = if ends {
            Ok(())
        } else {
            Err(Violation::Trailers)
        };
        let strings = &mut call.scratch.strings;
        let most = decoded_most(call.limits);
        self.decoder.decode(block, strings, most, |name, value| {
            verdict = verdict.and_then(|()| check_trailer(name, value));
        })?;
        verdict.map_err(|violation| Fault::Stream(stream, violation))?;
        let row = self.streams.get(stream);
        let row = row.expect("a stream with trailers has a row");
        if !matches!(row.body_left, 0 | UNKNOWN_LENGTH) {
            return Err(Fault::Stream(stream, Violation::BodyLength));
        }
        let slot = row.slot;
        self.end_request(stream, call.out);
        Ok(Found::Data {
            stream,
            slot,
            range: 0..0,
            ends: true,
        })
    }
}

/// A block with more decoded bytes ends the connection. A request between the list limit and this one gets the response 431.
fn decoded_most(limits: &Limits) -> usize {
    4 * limits.header_list_bytes as usize
}

/// Finds a whole field block: returns the range of its first fragment and the end of its frames. Several fragments are joined in the
/// scratch. `None` if the block is incomplete.
pub(super) fn find_block(
    header: Header,
    input: &[u8],
    call: &mut Call<'_>,
) -> Result<Option<(Range<usize>, usize)>, Violation> {
    let Some(end) = find_end(header, input, call.limits)? else {
        return Ok(None);
    };
    let first = fragment(&header, input)?;
    if !header.has(END_HEADERS) {
        let joined = &mut call.scratch.block;
        joined.clear();
        joined.extend_from_slice(&input[first.clone()]);
        let mut frames = &input[HEADER_BYTES + header.payload_bytes()..end];
        while let Some(next) = Header::read(frames) {
            let (frame, rest) = frames.split_at(HEADER_BYTES + next.payload_bytes());
            joined.extend_from_slice(&frame[HEADER_BYTES..]);
            frames = rest;
        }
    }
    Ok(Some((first, end)))
}

/// Finds the end of the frames of a field block. `None` if the block is incomplete. A call is cheap, because it reads only frame headers.
fn find_end(mut header: Header, input: &[u8], limits: &Limits) -> Result<Option<usize>, Violation> {
    let stream = header.stream;
    let (mut bytes, mut end) = (0, 0);
    let mut continuations_left = limits.continuations;
    loop {
        bytes += header.payload_bytes();
        if bytes > limits.header_block_bytes as usize {
            return Err(Violation::BlockTooLong);
        }
        end += HEADER_BYTES + header.payload_bytes();
        let Some(rest) = input.get(end..) else {
            return Ok(None);
        };
        if header.has(END_HEADERS) {
            return Ok(Some(end));
        }
        let left = continuations_left.checked_sub(1);
        continuations_left = left.ok_or(Violation::Continuations)?;
        let Some(next) = Header::read(rest) else {
            return Ok(None);
        };
        if next.kind != Kind::Continuation as u8 || next.stream != stream {
            return Err(Violation::BlockInterrupted);
        }
        if next.payload_bytes() > PAYLOAD_MAX {
            return Err(Violation::FrameTooLong);
        }
        header = next;
    }
}

/// The range of the field block fragment in a whole HEADERS frame, without padding and priority.
fn fragment(header: &Header, input: &[u8]) -> Result<Range<usize>, Violation> {
    let (mut start, mut end) = (HEADER_BYTES, HEADER_BYTES + header.payload_bytes());
    if header.has(PADDED) {
        let padding = input[..end].get(start).ok_or(Violation::Padding)?;
        start += 1;
        end = end
            .checked_sub(usize::from(*padding))
            .ok_or(Violation::Padding)?;
    }
    if header.has(PRIORITY) {
        let priority = input.get(start..start + 5).filter(|_| start + 5 <= end);
        check_dependency(header.stream, priority.ok_or(Violation::FrameLength)?)?;
        start += 5;
    }
    match start <= end {
        true => Ok(start..end),
        false => Err(Violation::Padding),
    }
}

/// Checks the priority fields, which are otherwise ignored.
pub(super) fn check_dependency(stream: u32, priority: &[u8]) -> Result<(), Violation> {
    match read_u32(priority) & MAX_31 == stream {
        true => Err(Violation::SelfDependency),
        false => Ok(()),
    }
}
