//! The signals that an operator sends to the process. One thread waits for them.
//!
//! The signals are blocked before any thread starts, and all threads inherit this. So no handler runs, and no shard is interrupted.
//! `SIGPIPE` and `SIGXFSZ` are ignored: a send to a closed connection, or a write past the file size limit, returns an error instead.

use std::io;

use crate::sys::check;

/// A signal to the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signal {
    /// `SIGINT`: Ctrl-C.
    Interrupt,
    /// `SIGTERM`: stop.
    Terminate,
    /// `SIGHUP`: read the settings again.
    Hangup,
}

/// Waits for the signals. They have been blocked since this value was made.
pub struct Signals {
    set: libc::sigset_t,
}

impl Signals {
    /// Blocks `SIGINT`, `SIGTERM` and `SIGHUP` in this thread and in all threads that it starts later, and ignores `SIGPIPE` and
    /// `SIGXFSZ` in the process. Must be called first in `main`.
    ///
    /// # Errors
    /// Only if a sandbox forbids it.
    pub fn block() -> io::Result<Signals> {
        for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
            // SAFETY: takes no pointers; an ignored signal runs no code of ours.
            if unsafe { libc::signal(signal, libc::SIG_IGN) } == libc::SIG_ERR {
                return Err(io::Error::last_os_error());
            }
        }
        // SAFETY: `sigset_t` is integers, and `sigemptyset` sets it up anyway.
        let mut set = unsafe { std::mem::zeroed::<libc::sigset_t>() };
        // SAFETY: `set` lives through the call.
        check(unsafe { libc::sigemptyset(&raw mut set) })?;
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: `set` is set up and lives through the call.
            check(unsafe { libc::sigaddset(&raw mut set, signal) })?;
        }
        // SAFETY: `set` lives through the call; the old mask is not asked for.
        let error =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        Ok(Signals { set })
    }

    /// Waits for the next signal. A signal that arrived since [`block`](Signals::block) is not lost; several equal ones count as one.
    ///
    /// # Errors
    /// Only after a programming error.
    pub fn wait(&self) -> io::Result<Signal> {
        loop {
            let mut signal = 0;
            // SAFETY: `set` is set up, and the kernel writes one integer into `signal`.
            let error = unsafe { libc::sigwait(&raw const self.set, &raw mut signal) };
            match (error, signal) {
                (0, libc::SIGINT) => return Ok(Signal::Interrupt),
                (0, libc::SIGTERM) => return Ok(Signal::Terminate),
                (0, libc::SIGHUP) => return Ok(Signal::Hangup),
                (0, other) => unreachable!("waited for no signal {other}"),
                (libc::EINTR, _) => {}
                (error, _) => return Err(io::Error::from_raw_os_error(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocked_signals_wait_to_be_taken() {
        std::thread::spawn(|| {
            let signals = Signals::block().unwrap();
            for (number, signal) in [
                (libc::SIGHUP, Signal::Hangup),
                (libc::SIGTERM, Signal::Terminate),
                (libc::SIGINT, Signal::Interrupt),
            ] {
                // SAFETY: takes no pointers; raises it in this thread, which has it blocked.
                assert_eq!(unsafe { libc::raise(number) }, 0);
                assert_eq!(signals.wait().unwrap(), signal);
            }
        })
        .join()
        .unwrap();
    }
}
