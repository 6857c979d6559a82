//! Reads the commands of a frame, the connect request of a unidirectional transport, and the body of `/emulation`.

use super::command::{self, Command, Connect, ConnectClaims, Emulation, SubscriptionClaims};
use super::error::Error;
use super::format::Format;
use super::protobuf::Reader;
use super::raw::Raw;
use super::schema::{
    CHANNEL_CLAIM, COMMAND, CONNECT, CONNECT_CLAIMS, EMULATION, Field, SUBSCRIPTION_CLAIMS,
};
use super::{read_json, read_protobuf};

pub use super::raw::{Limits, Scratch};

/// The commands of a frame. Iteration ends after an error.
#[derive(Clone, Debug)]
pub struct Commands<'a> {
    format: Format,
    frame: &'a [u8],
    /// The offset of the next command; `None` after the last one.
    at: Option<usize>,
    /// The number of commands that were read.
    read: usize,
    limits: Limits,
}

impl<'a> Commands<'a> {
    /// The commands of this frame, which must be complete. An empty frame gives [`Error::Empty`].
    pub const fn new(format: Format, frame: &'a [u8], limits: Limits) -> Commands<'a> {
        Commands {
            format,
            frame,
            at: Some(0),
            read: 0,
            limits,
        }
    }

    /// The bytes of the frame that are not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.at.map_or(&[], |at| &self.frame[at..])
    }

    /// The next command, which borrows the frame and `scratch`.
    pub fn next<'s>(&mut self, scratch: &'s mut Scratch) -> Option<Result<Command<'s>, Error>>
    where
        'a: 's,
    {
        let at = self.at.take()?;
        if self.read == self.limits.commands {
            return Some(Err(Error::TooManyCommands));
        }
        self.read += 1;
        scratch.clear();
        let raw = match self.format {
            Format::Json => self.line(at, scratch),
            Format::Protobuf => self.message(at, scratch),
        };
        let command = raw.and_then(|mut raw| {
            scratch.name_topics(&mut raw, self.frame);
            command::command(&raw, self.frame, scratch)
        });
        if command.is_err() {
            self.at = None;
        }
        Some(command)
    }

    fn line(&mut self, at: usize, scratch: &mut Scratch) -> Result<Raw, Error> {
        let rest = &self.frame[at..];
        let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
        // A line end may follow the last command.
        self.at = Some(at + end + 1).filter(|next| *next < self.frame.len());
        read_json::read(&rest[..end], at, &COMMAND, scratch, &self.limits)
    }

    fn message(&mut self, at: usize, scratch: &mut Scratch) -> Result<Raw, Error> {
        let mut reader = Reader::new(self.frame, at);
        if reader.is_empty() {
            return Err(Error::Empty);
        }
        let message = reader.delimited()?;
        self.at = (!reader.is_empty()).then_some(reader.at());
        read_protobuf::read(message, &COMMAND, scratch, &self.limits)
    }
}

/// Counts the commands of a frame without parsing them.
///
/// # Errors
///
/// The frame is empty, or ends inside a protobuf message.
pub fn count(format: Format, frame: &[u8]) -> Result<usize, Error> {
    if frame.is_empty() {
        return Err(Error::Empty);
    }
    let mut count = 0;
    match format {
        Format::Json => {
            let lines = frame.strip_suffix(b"\n").unwrap_or(frame);
            count = 1 + memchr::memchr_iter(b'\n', lines).count();
        }
        Format::Protobuf => {
            let mut reader = Reader::new(frame, 0);
            while !reader.is_empty() {
                reader.delimited()?;
                count += 1;
            }
        }
    }
    Ok(count)
}

/// Reads a connect request that is not in a command: the request of a unidirectional transport.
///
/// # Errors
///
/// The first fault of the bytes.
pub fn connect<'a>(
    format: Format,
    bytes: &'a [u8],
    scratch: &'a mut Scratch,
    limits: &Limits,
) -> Result<Connect<'a>, Error> {
    let raw = one(format, bytes, &CONNECT, scratch, limits)?;
    Ok(command::connect(&raw, bytes, scratch))
}

/// Reads the body of a request to `/emulation`. In JSON the frame of commands is in a string.
///
/// # Errors
///
/// The first fault of the bytes.
pub fn emulation<'a>(
    format: Format,
    bytes: &'a [u8],
    scratch: &'a mut Scratch,
) -> Result<Emulation<'a>, Error> {
    let limits = Limits {
        commands: 0,
        subs: 0,
        headers: 0,
    };
    let raw = one(format, bytes, &EMULATION, scratch, &limits)?;
    Ok(command::emulation(&raw, bytes, scratch))
}

/// Reads the claim `channel` of a subscription token; empty if it is absent. `claims` are the decoded claims.
///
/// # Errors
///
/// The first fault of the bytes.
pub fn channel_claim<'a>(claims: &'a [u8], scratch: &'a mut Scratch) -> Result<&'a str, Error> {
    let limits = Limits {
        commands: 0,
        subs: 0,
        headers: 0,
    };
    let raw = one(Format::Json, claims, &CHANNEL_CLAIM, scratch, &limits)?;
    Ok(command::channel(&raw, claims, scratch))
}

/// Reads the other claims of a subscription token. `claims` are the decoded claims.
///
/// # Errors
///
/// The first fault of the bytes.
pub fn subscription_claims<'a>(
    claims: &'a [u8],
    scratch: &'a mut Scratch,
) -> Result<SubscriptionClaims<'a>, Error> {
    let limits = Limits {
        commands: 0,
        subs: 0,
        headers: 0,
    };
    let raw = one(Format::Json, claims, &SUBSCRIPTION_CLAIMS, scratch, &limits)?;
    Ok(command::subscription_claims(&raw, claims, scratch))
}

/// Reads the claims of a connection token: the channels to which the server subscribes the client (`channels` and `subs`), `meta` and `expire_at`.
/// `claims` are the decoded claims.
///
/// # Errors
///
/// The first fault of the bytes, or more than `most` channels.
pub fn connect_claims<'a>(
    claims: &'a [u8],
    scratch: &'a mut Scratch,
    most: usize,
) -> Result<ConnectClaims<'a>, Error> {
    let limits = Limits {
        commands: 0,
        subs: most,
        headers: 0,
    };
    let raw = one(Format::Json, claims, &CONNECT_CLAIMS, scratch, &limits)?;
    Ok(command::connect_claims(&raw, claims, scratch))
}

/// Reads all of `bytes` as one message.
fn one(
    format: Format,
    bytes: &[u8],
    fields: &'static [Field],
    scratch: &mut Scratch,
    limits: &Limits,
) -> Result<Raw, Error> {
    scratch.clear();
    let mut raw = match format {
        Format::Json => read_json::read(bytes, 0, fields, scratch, limits),
        Format::Protobuf => read_protobuf::read(Reader::new(bytes, 0), fields, scratch, limits),
    }?;
    scratch.name_topics(&mut raw, bytes);
    Ok(raw)
}
