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

/// The first descriptor after standard input, output and error, which every table keeps.
const FIRST_OTHER_FD: u32 = 3;

/// The assumed number of open descriptors if `/proc` is missing.
const ASSUMED_OPEN_FDS: u64 = 32;

/// Gives this thread its own descriptor table, with 0-2 and `keep` under the same numbers. All other descriptors are closed in the new
/// table only. A descriptor in `keep` may already be closed.
///
/// # Errors
/// `ENOSYS` before Linux 5.9, `ENOMEM`, `EMFILE`.
pub fn unshare(keep: &[Fd]) -> io::Result<()> {
    let mut kept_fds: Vec<u32> = keep
        .iter()
        .map(|fd| fd.0)
        .filter(|fd| *fd >= FIRST_OTHER_FD)
        .collect();
    kept_fds.sort_unstable();
    kept_fds.dedup();
    // First closes all descriptors above the highest kept one: with this flag the kernel does not even copy them to the new table. Then the
    // table is private, and the ranges between the kept descriptors can be closed one by one.
    let after_kept = kept_fds.last().map_or(FIRST_OTHER_FD, |last| last + 1);
    close_range(after_kept, u32::MAX, libc::CLOSE_RANGE_UNSHARE)?;
    let mut range_start = FIRST_OTHER_FD;
    for fd in kept_fds {
        if range_start < fd {
            close_range(range_start, fd - 1, 0)?;
        }
        range_start = fd + 1;
    }
    Ok(())
}

fn close_range(first: u32, last: u32, flags: libc::c_uint) -> io::Result<()> {
    // A raw system call, since older C libraries have no function for it.
    // SAFETY: takes no pointers. It closes descriptors in this thread's private table only.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    check(result as libc::c_int)
}

/// Raises the soft limit of descriptors to the hard limit, which needs no privilege; if this fails, the limit stays. Returns the limit: the
/// maximum number of descriptors of each shard.
pub fn raise_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    let _ = setrlimit(Resource::Nofile, raised);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// The number of open descriptors in this thread's table. Slow, so only for use at the start.
pub fn open_count() -> u64 {
    std::fs::read_dir("/proc/thread-self/fd").map_or(ASSUMED_OPEN_FDS, |entries| {
        // Does not count the descriptor of this directory, which is closed again.
        entries.count().saturating_sub(1) as u64
    })
}
