//! The descriptor tables: gives each shard thread its own table, and raises the limit of their size.
//!
//! By default the threads of a process share one table: every accept and close takes its lock, all threads stall while it grows, and
//! `RLIMIT_NOFILE` limits the descriptors of all threads together. A thread with its own table avoids all this.
//!
//! Invariant: a thread calls [`unshare`] before it opens its first socket. The descriptors that it keeps (0-2 and the eventfds of
//! mailboxes) were opened by the thread that started it. `/proc/PID/fd` shows only the table of the main thread.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::sys::{Fd, check};

/// Standard input, output and error are kept in every table.
const STANDARD: u32 = 3;

/// The assumed number of open descriptors if `/proc` is missing.
const OPEN_UNKNOWN: u64 = 32;

/// Gives this thread its own descriptor table, with 0-2 and `keep` under the same numbers. All other descriptors are closed in the new
/// table only. A descriptor in `keep` may already be closed.
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
    // First closes all descriptors above the highest kept one: with this flag the kernel does not even copy them to the new table. Then the
    // table is private, and the ranges between the kept descriptors can be closed one by one.
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

/// Raises the soft limit of descriptors to the hard limit and returns it: the maximum number of descriptors of each shard.
pub fn limit() -> u64 {
    raise_limit();
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Raises the soft limit of descriptors to the hard limit, which needs no privilege. If this fails, the limit stays.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    let _ = setrlimit(Resource::Nofile, raised);
}

/// The number of open descriptors in this thread's table. Slow, so only for use at the start.
pub fn open_count() -> u64 {
    std::fs::read_dir("/proc/thread-self/fd").map_or(OPEN_UNKNOWN, |open| {
        // Does not count the descriptor of this directory, which is closed again.
        open.count().saturating_sub(1) as u64
    })
}
