//! A descriptor table for each shard thread, and how large it may be.
//!
//! Threads of a process share one table by default: every accept and close takes its one lock, a
//! growing table stalls all of them, and `RLIMIT_NOFILE` bounds the sum. A thread with a table of its own has none of these
//! problems.
//!
//! Invariant: a thread parts before it makes its first socket; the descriptors that it keeps (0-2 and the mailboxes'
//! eventfds) were made before by the thread that started it. `/proc/PID/fd` shows only the main thread's table.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::sys::{Fd, check};

/// Standard input, output and error are kept in every table.
const STANDARD: u32 = 3;

/// The number of open descriptors that is assumed where there is no `/proc` to count them in.
const OPEN_UNKNOWN: u64 = 32;

/// Gives this thread a descriptor table of its own that holds 0-2 and `keep` under their old numbers;
/// everything else is closed in the new table only. Descriptors in `keep` that are not open stay so.
///
/// # Errors
/// `ENOSYS` before Linux 5.9, `ENOMEM`, `EMFILE`.
pub fn part(keep: &[Fd]) -> io::Result<()> {
    let mut kept: Vec<u32> = keep
        .iter()
        .map(|fd| fd.0)
        .filter(|fd| *fd >= STANDARD)
        .collect();
    kept.sort_unstable();
    kept.dedup();
    // First all descriptors above the highest kept one: with the flag the kernel does not even copy them. From then on the
    // table is private, and the gaps can be closed one by one.
    let above = kept.last().map_or(STANDARD, |last| last + 1);
    close_range(above, u32::MAX, libc::CLOSE_RANGE_UNSHARE)?;
    let mut first = STANDARD;
    for fd in kept {
        if first < fd {
            close_range(first, fd - 1, 0)?;
        }
        first = fd + 1;
    }
    Ok(())
}

fn close_range(first: u32, last: u32, flags: libc::c_uint) -> io::Result<()> {
    // By number, since older C libraries have no function for it.
    // SAFETY: takes no pointers. It closes descriptors in this thread's private table only.
    let answer = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    check(answer as libc::c_int)
}

/// Raises the soft limit of descriptors to the hard one and returns it: the size of each table, and so the number of
/// descriptors that each shard can hold.
pub fn limit() -> u64 {
    raise_limit();
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Raises the soft limit of descriptors to the hard one. That never needs a privilege; should it fail, the limit stays, and
/// [`limit`] returns it.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    let _ = setrlimit(Resource::Nofile, raised);
}

/// How many descriptors are open in this thread's table. Slow; to be asked at the start.
pub fn open_count() -> u64 {
    std::fs::read_dir("/proc/thread-self/fd").map_or(OPEN_UNKNOWN, |open| {
        // The one that this directory is read with is closed again.
        open.count().saturating_sub(1) as u64
    })
}
