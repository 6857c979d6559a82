//! Reads DATA frames: the bodies, their flow control and their length.

use alloc::vec::Vec;

use super::connection::{Connection, Partial};
use super::event::{Call, Found};
use super::frame::{END_STREAM, HEADER_BYTES, Header, PADDED};
use super::limits::{Rate, SMALL_DATA_BYTES};
use super::streams::{State, UNKNOWN_LENGTH};
use super::violation::{Fault, Violation};

impl Connection {
    /// Reads the header of a DATA frame, and the length of the padding. The whole payload counts towards the windows.
    pub(super) fn data_header(
        &mut self,
        header: Header,
        input: &[u8],
        call: &mut Call<'_>,
    ) -> Result<Option<(usize, Found)>, (usize, Fault)> {
        let (mut used, mut left, mut padding) = (HEADER_BYTES, header.len, 0);
        if header.has(PADDED) {
            match input.get(HEADER_BYTES) {
                _ if left == 0 => return Err((0, Violation::Padding.into())),
                None => return Ok(None),
                Some(&bytes) if u32::from(bytes) >= left => {
                    return Err((0, Violation::Padding.into()));
                }
                Some(&bytes) => padding = bytes,
            }
            used += 1;
            left -= 1 + u32::from(padding);
        }
        // If the stream does not accept the data, the rest of the frame is skipped.
        self.partial = Partial::skip(header.len - (used - HEADER_BYTES) as u32);
        let stream = header.stream;
        let ends = header.has(END_STREAM);
        let accepted = self.accept_data(stream, header.len, left, ends, call);
        let Some(slot) = accepted.map_err(|fault| (used, fault))? else {
            return Ok(Some((used, Found::Nothing)));
        };
        if left > 0 {
            self.partial = Partial::Data {
                stream,
                left,
                padding,
                ends,
            };
        }
        self.release(stream, (header.len - left) as usize, call.out);
        if left > 0 || !ends {
            return Ok(Some((used, Found::Nothing)));
        }
        self.end_request(stream, call.out);
        let found = Found::Data {
            stream,
            slot,
            range: 0..0,
            ends,
        };
        Ok(Some((used, found)))
    }

    /// Counts a DATA frame of `len` bytes, of which `data` are no padding. `None` if the frame must be ignored. Otherwise the caller's
    /// number for the stream.
    fn accept_data(
        &mut self,
        stream: u32,
        len: u32,
        data: u32,
        ends: bool,
        call: &mut Call<'_>,
    ) -> Result<Option<u32>, Fault> {
        self.check_opened(stream)?;
        if !self.receive.receive(len) {
            return Err(Violation::WindowExceeded.into());
        }
        let is_in_flight = self.may_be_in_flight(stream);
        let row = match self.streams.get_mut(stream) {
            Some(row) if row.state != State::RequestEnded => row,
            ended => {
                let is_ignored = ended.is_none() && is_in_flight;
                self.give_back(len, call.out);
                self.rates.count(Rate::EmptyFrames, call.limits)?;
                return match is_ignored {
                    true => Ok(None),
                    false => Err(Fault::Stream(stream, Violation::StreamClosed)),
                };
            }
        };
        if !row.receive.receive(len) {
            self.give_back(len, call.out);
            return Err(Fault::Stream(stream, Violation::StreamWindowExceeded));
        }
        if row.body_left != UNKNOWN_LENGTH {
            let left = row.body_left.checked_sub(data);
            match left.filter(|left| !ends || *left == 0) {
                Some(left) => row.body_left = left,
                None => return Err(Fault::Stream(stream, Violation::BodyLength)),
            }
        }
        let slot = row.slot;
        let is_back = self.last_data != stream;
        self.last_data = stream;
        if data == 0 && !ends {
            self.rates.count(Rate::EmptyFrames, call.limits)?;
        } else if data < SMALL_DATA_BYTES && !ends && !row.is_tunnel {
            // Successive frames of one stream are not counted, because the server joins them. The first small frame of a stream is not
            // counted, because a proxy may send the small bodies of many clients, each in one frame.
            if core::mem::replace(&mut row.has_small, true) && is_back {
                self.rates.count(Rate::SmallFrames, call.limits)?;
            }
        }
        Ok(Some(slot))
    }

    /// Reads a piece of the data of a frame. The input is not empty.
    pub(super) fn piece(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, Found) {
        let Partial::Data {
            stream,
            left,
            padding,
            ends,
        } = self.partial
        else {
            unreachable!("the frame is DATA");
        };
        let len = left.min(input.len() as u32);
        self.partial = match (left - len, padding) {
            (0, padding) => Partial::skip(padding.into()),
            (left, _) => Partial::Data {
                stream,
                left,
                padding,
                ends,
            },
        };
        let found = self.streams.get(stream).map(|row| Found::Data {
            stream,
            slot: row.slot,
            range: 0..len as usize,
            ends: ends && len == left,
        });
        if ends && len == left {
            self.end_request(stream, out);
        }
        (len as usize, found.unwrap_or(Found::Nothing))
    }
}
