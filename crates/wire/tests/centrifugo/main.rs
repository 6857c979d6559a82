//! Tests the codec of Centrifugo's client protocol: commands, replies, pushes, codes, names and deltas.

mod codes;
mod commands;
mod deltas;
mod names;
mod proto;
mod refused;
mod replies;
mod round_trip;

use crore_wire::centrifugo::{Command, Commands, Error, Format, Limits, Scratch};

const LIMITS: Limits = Limits {
    commands: 8,
    subs: 4,
    headers: 4,
};

/// Reads all commands of a frame; calls `each` with each of them. Returns the error, if there was one.
fn read(format: Format, frame: &[u8], mut each: impl FnMut(Command<'_>)) -> Result<(), Error> {
    let mut scratch = Scratch::default();
    let mut commands = Commands::new(format, frame, LIMITS);
    let mut result = Ok(());
    while let Some(command) = commands.next(&mut scratch) {
        assert_eq!(result, Ok(()), "a command behind an error");
        match command {
            Ok(command) => each(command),
            Err(error) => result = Err(error),
        }
    }
    result
}

/// Reads a frame of one command; calls `check` with it.
fn one(format: Format, frame: &[u8], check: impl Fn(Command<'_>)) {
    let mut count = 0;
    let result = read(format, frame, |command| {
        check(command);
        count += 1;
    });
    assert_eq!((result, count), (Ok(()), 1), "{}", frame.escape_ascii());
}
