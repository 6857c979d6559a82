//! Reads and checks the frames of a client, and reports them to the server as events.
//!
//! Call [`Connection::receive`] with the received bytes, then with the bytes that it did not consume, until it returns no event. The
//! remaining bytes belong to an incomplete frame or field block: the caller keeps them, and calls again when more bytes have arrived. Bytes
//! of bodies never remain.
//!
//! Invariants: events and violations do not depend on how the stream is split into reads, except that the data of one frame may come in
//! several events. At most [`bytes_kept`] bytes remain. The answers to SETTINGS and PING, and the window updates, are appended to `out`.
//!
//! After a violation of the connection the caller must send `out` and close, because this module does not remember the violation.

use alloc::vec::Vec;

use super::connection::{Connection, Partial, Phase};
use super::event::{Call, Event, Found, Received, Scratch};
use super::fields::{check_dependency, find_block};
use super::frame::{
    self, ACK, HEADER_BYTES, Header, Kind, MAX_31, PAYLOAD_MAX, PREFACE, Setting, read_u32,
};
use super::limits::{Limits, Rate};
use super::streams::NO_SLOT;
use super::violation::{Fault, Violation};

/// The maximum number of parameters in a SETTINGS frame. About ten parameters exist, and clients add one or two unknown ones.
const SETTINGS_MAX: usize = 64;

/// The maximum number of bytes that a caller must keep: those of a whole field block with its frame headers, or of another frame.
pub fn bytes_kept(limits: &Limits) -> usize {
    let continuations = limits.continuations as usize;
    let block = limits.header_block_bytes as usize + HEADER_BYTES * (1 + continuations);
    block.max(HEADER_BYTES + 6 * SETTINGS_MAX)
}

impl Connection {
    /// Reads the next event from `input`. `now_s` is a clock in seconds that never goes backwards. Answers are appended to `out`.
    ///
    /// # Errors
    /// The violation that ends the connection. `out` then ends with a GOAWAY frame.
    pub fn receive<'a>(
        &mut self,
        input: &'a [u8],
        now_s: u32,
        limits: &Limits,
        scratch: &'a mut Scratch,
        out: &mut Vec<u8>,
    ) -> Result<Received<'a>, Violation> {
        self.rates.advance(now_s, limits);
        let mut call = Call {
            limits,
            scratch: &mut *scratch,
            out,
        };
        let mut consumed = 0;
        let found = loop {
            match self.step(&input[consumed..], &mut call) {
                Ok(Some((used, Found::Nothing))) => consumed += used,
                Ok(Some((used, found))) => {
                    let start = consumed;
                    consumed += used;
                    break Some((start, found));
                }
                Ok(None) => break None,
                Err(violation) => {
                    self.go_away(violation.code(), violation.name(), call.out);
                    return Err(violation);
                }
            }
        };
        let event = found.map(|(start, found)| match found {
            Found::Nothing => unreachable!("the loop goes on"),
            Found::Request { stream, ends } => Event::Request {
                stream,
                head: &scratch.head,
                ends,
            },
            Found::Data {
                stream,
                slot,
                range,
                ends,
            } => Event::Data {
                stream,
                slot,
                data: &input[start..][range],
                ends,
            },
            Found::Other(event) => event,
        });
        Ok(Received { consumed, event })
    }

    /// Reads one frame, or a piece of a frame that may be read in pieces. `None` if more bytes are needed.
    fn step(
        &mut self,
        input: &[u8],
        call: &mut Call<'_>,
    ) -> Result<Option<(usize, Found)>, Violation> {
        if self.phase == Phase::Preface {
            return self.preface(input);
        }
        match self.partial {
            Partial::None => {}
            _ if input.is_empty() => return Ok(None),
            Partial::Skip(left) => return Ok(Some((self.skip(left, input), Found::Nothing))),
            Partial::Data { .. } => return Ok(Some(self.piece(input, call.out))),
        }
        let Some(header) = Header::read(input) else {
            return Ok(None);
        };
        if self.phase == Phase::Settings {
            if header.kind != Kind::Settings as u8 || header.has(ACK) {
                return Err(Violation::FirstFrame);
            }
            self.phase = Phase::Frames;
        }
        if header.payload_bytes() > PAYLOAD_MAX {
            return Err(Violation::FrameTooLong);
        }
        let Some(kind) = Kind::from_repr(header.kind) else {
            self.rates.count(Rate::EmptyFrames, call.limits)?;
            self.partial = Partial::skip(header.len);
            return Ok(Some((HEADER_BYTES, Found::Nothing)));
        };
        check_stream(kind, header.stream)?;
        check_length(kind, &header)?;
        match self.frame(kind, header, input, call) {
            Ok(read) => Ok(read),
            Err((used, Fault::Stream(stream, violation))) => {
                let found = self.refuse(stream, violation, call)?;
                Ok(Some((used, found)))
            }
            Err((_, Fault::Connection(violation))) => Err(violation),
        }
    }

    fn preface(&mut self, input: &[u8]) -> Result<Option<(usize, Found)>, Violation> {
        let begin = &input[..input.len().min(PREFACE.len())];
        if !PREFACE.starts_with(begin) {
            return Err(Violation::Preface);
        }
        if begin.len() < PREFACE.len() {
            return Ok(None);
        }
        self.phase = Phase::Settings;
        Ok(Some((PREFACE.len(), Found::Nothing)))
    }

    /// Ignores bytes; returns their number.
    fn skip(&mut self, left: u32, input: &[u8]) -> usize {
        let skipped = left.min(input.len() as u32);
        self.partial = Partial::skip(left - skipped);
        skipped as usize
    }

    /// Reads a frame whose header is valid. If only a stream must end, the error contains the number of consumed bytes.
    fn frame(
        &mut self,
        kind: Kind,
        header: Header,
        input: &[u8],
        call: &mut Call<'_>,
    ) -> Result<Option<(usize, Found)>, (usize, Fault)> {
        let mut used = HEADER_BYTES + header.payload_bytes();
        let found = match kind {
            Kind::Data => return self.data_header(header, input, call),
            Kind::Headers => {
                let block = find_block(header, input, call).map_err(|fault| (0, fault.into()))?;
                let Some((range, end)) = block else {
                    return Ok(None);
                };
                used = end;
                self.headers(header, &input[range], call)
            }
            Kind::PushPromise => Err(Violation::PushPromise.into()),
            Kind::Continuation => Err(Violation::NothingToContinue.into()),
            Kind::GoAway => {
                // The text for human readers is ignored.
                used = HEADER_BYTES + 8;
                let Some(payload) = input.get(HEADER_BYTES..used) else {
                    return Ok(None);
                };
                self.partial = Partial::skip(header.len - 8);
                let code = read_u32(&payload[4..]);
                let counted = self.rates.count(Rate::EmptyFrames, call.limits);
                counted
                    .map(|()| Found::Other(Event::GoAway { code }))
                    .map_err(Fault::from)
            }
            _ => {
                let Some(payload) = input.get(HEADER_BYTES..used) else {
                    return Ok(None);
                };
                self.small(kind, header, payload, call)
            }
        };
        found
            .map(|found| Some((used, found)))
            .map_err(|fault| (used, fault))
    }

    /// Handles a whole frame of a type without a body and without fields.
    fn small(
        &mut self,
        kind: Kind,
        header: Header,
        payload: &[u8],
        call: &mut Call<'_>,
    ) -> Result<Found, Fault> {
        match kind {
            Kind::Priority => {
                self.rates.count(Rate::EmptyFrames, call.limits)?;
                check_dependency(header.stream, payload)?;
                Ok(Found::Nothing)
            }
            Kind::ResetStream => self.stream_reset(header.stream, read_u32(payload), call),
            Kind::Settings => self.settings(header, payload, call),
            Kind::WindowUpdate => {
                self.window_update(header.stream, read_u32(payload) & MAX_31, call)
            }
            _ => self.pinged(header, payload, call),
        }
    }

    fn pinged(
        &mut self,
        header: Header,
        payload: &[u8],
        call: &mut Call<'_>,
    ) -> Result<Found, Fault> {
        self.rates.count(Rate::Pings, call.limits)?;
        // The server asks nothing, so an answer means nothing.
        if !header.has(ACK) {
            let opaque = *payload.first_chunk().expect("its length was checked");
            frame::write_ping_ack(call.out, opaque);
        }
        Ok(Found::Nothing)
    }

    fn settings(
        &mut self,
        header: Header,
        payload: &[u8],
        call: &mut Call<'_>,
    ) -> Result<Found, Fault> {
        self.rates.count(Rate::Settings, call.limits)?;
        if header.has(ACK) {
            self.is_acknowledged = true;
            self.decoder.limit();
            return Ok(Found::Nothing);
        }
        let mut is_writable = false;
        for setting in payload.chunks_exact(6) {
            let (id, value) = setting.split_at(2);
            let (id, value) = (u16::from_be_bytes([id[0], id[1]]), read_u32(value));
            let is_allowed = match Setting::from_repr(id) {
                Some(Setting::EnablePush | Setting::EnableConnectProtocol) => value <= 1,
                Some(Setting::MaxFrameSize) => (PAYLOAD_MAX as u32..1 << 24).contains(&value),
                Some(Setting::InitialWindowSize) => {
                    is_writable |= self.change_initial_window(value)?;
                    true
                }
                // The other settings do not affect the frames of this server.
                _ => true,
            };
            if !is_allowed {
                return Err(Violation::SettingValue.into());
            }
        }
        frame::write_settings_ack(call.out);
        Ok(match is_writable {
            true => Found::Other(Event::Writable {
                stream: 0,
                slot: NO_SLOT,
            }),
            false => Found::Nothing,
        })
    }

    /// Changes the windows of all streams by the difference to the old value (RFC 9113 section 6.9.2). Returns whether an exhausted window
    /// allows data again.
    fn change_initial_window(&mut self, value: u32) -> Result<bool, Violation> {
        if value > MAX_31 {
            return Err(Violation::InitialWindow);
        }
        let by = i64::from(value) - i64::from(self.initial_send);
        self.initial_send = value;
        let mut is_writable = false;
        for stream in self.streams.iter_mut() {
            let was_shut = stream.send.available() == 0;
            let changed = stream.send.change(by);
            changed.map_err(|_| Violation::WindowOverflow)?;
            is_writable |= was_shut && stream.send.available() > 0;
        }
        Ok(is_writable)
    }

    fn window_update(
        &mut self,
        stream: u32,
        increment: u32,
        call: &mut Call<'_>,
    ) -> Result<Found, Fault> {
        self.rates.count(Rate::WindowUpdates, call.limits)?;
        let (window, slot) = match stream {
            0 if increment == 0 => return Err(Violation::EmptyUpdate.into()),
            0 => (&mut self.send, NO_SLOT),
            _ => {
                self.check_opened(stream)?;
                let Some(row) = self.streams.get_mut(stream) else {
                    return Ok(Found::Nothing);
                };
                if increment == 0 {
                    return Err(Fault::Stream(stream, Violation::StreamEmptyUpdate));
                }
                (&mut row.send, row.slot)
            }
        };
        let was_shut = window.available() == 0;
        if window.change(increment.into()).is_err() {
            return Err(match stream {
                0 => Violation::WindowOverflow.into(),
                _ => Fault::Stream(stream, Violation::StreamWindowOverflow),
            });
        }
        Ok(match was_shut && window.available() > 0 {
            true => Found::Other(Event::Writable { stream, slot }),
            false => Found::Nothing,
        })
    }

    fn stream_reset(
        &mut self,
        stream: u32,
        code: u32,
        call: &mut Call<'_>,
    ) -> Result<Found, Fault> {
        self.check_opened(stream)?;
        self.rates.count(Rate::Resets, call.limits)?;
        Ok(match self.remove(stream, call.out) {
            Some(row) => Found::Other(Event::Reset {
                stream,
                slot: row.slot,
                code,
            }),
            None => Found::Nothing,
        })
    }

    /// Resets a stream because of a violation. This counts as a reset by the client, because the client can cause it as cheaply.
    fn refuse(
        &mut self,
        stream: u32,
        violation: Violation,
        call: &mut Call<'_>,
    ) -> Result<Found, Violation> {
        self.rates.count(Rate::Resets, call.limits)?;
        let row = self.cut(stream, call.out);
        frame::write_reset(call.out, stream, violation.code());
        Ok(Found::Other(Event::Refused {
            stream,
            slot: row.map_or(NO_SLOT, |row| row.slot),
            violation,
        }))
    }
}

/// Checks that a stream's frame has the number of a client's stream, and that a frame of the connection has the number 0.
fn check_stream(kind: Kind, stream: u32) -> Result<(), Violation> {
    match kind {
        Kind::Settings | Kind::Ping | Kind::GoAway if stream != 0 => Err(Violation::WrongStream),
        Kind::Settings | Kind::Ping | Kind::GoAway => Ok(()),
        Kind::WindowUpdate if stream == 0 => Ok(()),
        _ if stream == 0 => Err(Violation::WrongStream),
        // A priority may refer to any stream.
        Kind::Priority => Ok(()),
        _ if stream.is_multiple_of(2) => Err(Violation::ServerStream),
        _ => Ok(()),
    }
}

/// Checks that the type of a frame allows the length of the payload.
fn check_length(kind: Kind, header: &Header) -> Result<(), Violation> {
    let len = header.payload_bytes();
    let fits = match kind {
        Kind::Priority => len == 5,
        Kind::ResetStream | Kind::WindowUpdate => len == 4,
        Kind::Ping => len == 8,
        Kind::GoAway => len >= 8,
        Kind::Settings if header.has(ACK) => len == 0,
        Kind::Settings => len.is_multiple_of(6),
        Kind::Data | Kind::Headers | Kind::PushPromise | Kind::Continuation => true,
    };
    match fits {
        false => Err(Violation::FrameLength),
        true if kind == Kind::Settings && len > 6 * SETTINGS_MAX => Err(Violation::ManySettings),
        true => Ok(()),
    }
}
