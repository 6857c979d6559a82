//! The time, as a shard asks for it once a turn.

use std::time::{SystemTime, UNIX_EPOCH};

const NS_PER_S: u64 = 1_000_000_000;
const NS_PER_MS: u64 = 1_000_000;

/// Nanoseconds of `CLOCK_MONOTONIC`: the same clock in every thread and process of the machine.
pub fn monotonic_ns() -> u64 {
    read_ns(libc::CLOCK_MONOTONIC)
}

/// Milliseconds of the same clock, up to a scheduler tick (1-10 ms) late and cheaper to read.
pub fn monotonic_ms() -> u64 {
    read_ns(libc::CLOCK_MONOTONIC_COARSE) / NS_PER_MS
}

/// Seconds since 1970 (UTC), which may jump; 0 while the machine believes that it is earlier.
pub fn unix_s() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Whether something keeps the machine's clock to the world's, and how far off it may be at most, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Discipline {
    /// A daemon of NTP or PTP, or the hypervisor, has set the clock and goes on doing so.
    pub synchronized: bool,
    /// The kernel's bound on the error, in microseconds; it grows while nothing sets the clock.
    pub error_us_max: u64,
}

/// How well the kernel's clock is kept; `None` where the kernel does not tell (a sandbox without `adjtimex`).
pub fn discipline() -> Option<Discipline> {
    // SAFETY: all zeroes is a valid `timex`, and asks for nothing but to be read.
    let mut time: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `timex` into `time`.
    let state = unsafe { libc::adjtimex(&raw mut time) };
    (state >= 0).then(|| Discipline {
        synchronized: time.status & libc::STA_UNSYNC == 0,
        error_us_max: u64::try_from(time.maxerror).unwrap_or(0),
    })
}

fn read_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one `timespec` into `time`.
    let read = crate::sys::check(unsafe { libc::clock_gettime(clock, &raw mut time) });
    assert!(
        read.is_ok(),
        "Linux always has its monotonic clocks: {read:?}"
    );
    time.tv_sec as u64 * NS_PER_S + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clocks_agree_and_do_not_go_back() {
        let (ns, ms) = (monotonic_ns(), monotonic_ms());
        assert!(
            (ns / NS_PER_MS).abs_diff(ms) < 1_000,
            "{ns} ns is not {ms} ms"
        );
        assert!(monotonic_ns() >= ns);
        assert!(monotonic_ms() >= ms);
    }
}
