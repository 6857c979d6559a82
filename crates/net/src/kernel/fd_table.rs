//! A descriptor table for each shard thread, and the limit of its size.
//!
//! By default the threads of a process share one table: every accept and close takes its lock, a growing table stalls all threads, and
//! `RLIMIT_NOFILE` limits the sum. A thread with a table of its own avoids all this.
//!
//! Invariant: a thread calls [`unshare`] before it makes its first socket. The descriptors that it keeps (0-2 and the eventfds of
//! mailboxes) were made by the thread that started it. `/proc/PID/fd` shows only the table of the main thread.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::sys::{Fd, check};

/// Standard input, output and error are kept in every table.
const STANDARD: u32 = 3;

/// The assumed number of open descriptors if there is no `/proc` to count them.
const OPEN_UNKNOWN: u64 = 32;

/// Gives this thread a descriptor table of its own, with 0-2 and `keep` under their old numbers. All other descriptors are closed in
/// the new table only. A descriptor in `keep` may be closed.
///
/// # Errors
/// `ENOSYS` before Linux 5.9, `ENOMEM`, `EMFILE`.
pub fn unshare(keep: &[Fd]) -> io::Result<()> {
    let mut kept: Vec<u32> = keep
        .iter()
        .map(|fd| fd.0)
        .filter(|fd| *fd >= STANDARD)
        .collect();
    kept.sort_unstable();
    kept.dedup();
    // First close all descriptors above the highest kept one: with the flag the kernel does not even copy them. Then the table is
    // private, and the gaps can be closed one by one.
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
    // A raw system call, since older C libraries have no function for it.
    // SAFETY: takes no pointers. It closes descriptors in this thread's private table only.
    let answer = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    check(answer as libc::c_int)
}

/// Raises the soft limit of descriptors to the hard one and returns it: the most descriptors of each shard.
pub fn limit() -> u64 {
    raise_limit();
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Raises the soft limit of descriptors to the hard one, which needs no privilege. If it fails the limit stays.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    let _ = setrlimit(Resource::Nofile, raised);
}

/// The number of open descriptors in this thread's table. Slow, so only for the start.
pub fn open_count() -> u64 {
    std::fs::read_dir("/proc/thread-self/fd").map_or(OPEN_UNKNOWN, |open| {
        // Without the descriptor of this directory, which is closed again.
        open.count().saturating_sub(1) as u64
    })
}
