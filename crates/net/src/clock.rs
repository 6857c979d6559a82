//! Reads and corrects the clocks of the server. A shard reads them once in each turn of its loop.
//!
//! There are three clocks:
//!
//! * The monotonic clock is for the deadlines by which a peer must send something. It stops while the machine is suspended.
//! * The counted clock is for everything with a lifetime. It continues while the machine is suspended, and never goes back. It is
//!   `CLOCK_BOOTTIME` plus a constant, plus the corrections by [`follow_log`] in a cluster. "The count" is the time that this clock shows.
//! * The wall clock is only for dates that people and other machines see or send. It may jump. Then the other two clocks do not jump.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI32, AtomicI64};
use std::sync::{Mutex, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

const NS_PER_S: u64 = 1_000_000_000;
const NS_PER_MS: u64 = 1_000_000;

/// Nanoseconds of `CLOCK_MONOTONIC`. The clock shows the same time in every thread and process of the machine.
#[inline]
pub fn monotonic_ns() -> u64 {
    read_ns(libc::CLOCK_MONOTONIC)
}

/// Milliseconds of `CLOCK_MONOTONIC`. This is cheaper than [`monotonic_ns`], but the result may be up to a scheduler tick (1-10 ms) old.
#[inline]
pub fn monotonic_ms() -> u64 {
    read_ns(libc::CLOCK_MONOTONIC_COARSE) / NS_PER_MS
}

/// Unix seconds of the wall clock, which may jump; 0 if the wall clock shows a time before 1970.
pub fn unix_s() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// The count without its corrections, minus `CLOCK_BOOTTIME`, in nanoseconds.
static ORIGIN_NS: OnceLock<i64> = OnceLock::new();
/// The last result of [`wall_offset_s`].
static WALL_OFFSET_S: AtomicI32 = AtomicI32::new(0);

static CORRECTIONS: ClockCorrections = ClockCorrections::new();

/// The count in seconds: the Unix time of the wall clock when the count began, plus the seconds since then, plus corrections.
pub fn counted_s() -> u64 {
    ns_to_s(counted_ns())
}

fn ns_to_s(ns: i64) -> u64 {
    (ns / NS_PER_S as i64).max(0) as u64
}

/// Continues the count of an earlier process. When that process stopped, the count was `counted_s` and the wall clock showed `unix_s`. Only
/// the wall clock shows how much time has passed between the two processes. If it went back, the count continues at `counted_s`.
///
/// # Panics
/// If the count has already begun.
pub fn resume_count(counted_s: u64, unix_s: u64) {
    let passed_ns = (wall_ns() - s_to_ns(unix_s)).max(0);
    let first_call = ORIGIN_NS.set(s_to_ns(counted_s) + passed_ns - boot_ns());
    assert!(first_call.is_ok(), "the count begins once");
}

/// Corrects the count by the clock of the log that all nodes of a cluster share. This process wrote a batch when the count was `written_s`.
/// The log stored the batch when the log's clock showed `stored_s`. This process has just read the batch.
///
/// So the log's clock showed `stored_s` at some time between the write and now. If `stored_s` is later than the count now, the count is
/// behind, and jumps forward. If `stored_s` is earlier than `written_s`, the count was ahead, and stands still until the surplus has
/// passed. A difference of one second is not corrected, because both times are rounded down to seconds. Returns the correction in seconds.
pub fn follow_log(written_s: u64, stored_s: u64) -> i64 {
    /// The threads that read partitions may call this function at the same time.
    static FOLLOW_LOCK: Mutex<()> = Mutex::new(());
    let _guard = FOLLOW_LOCK.lock();
    CORRECTIONS.follow(uncorrected_ns(), written_s, stored_s)
}

/// The corrections of a count.
struct ClockCorrections {
    /// The sum of all corrections, in nanoseconds.
    sum_ns: AtomicI64,
    /// The count when it was last found to be ahead. The count never shows less than this, so it stands still and does not go back.
    standstill_ns: AtomicI64,
}

impl ClockCorrections {
    const fn new() -> ClockCorrections {
        ClockCorrections {
            sum_ns: AtomicI64::new(0),
            standstill_ns: AtomicI64::new(0),
        }
    }

    /// The count. Without corrections it would be `uncorrected_ns`.
    fn count_ns(&self, uncorrected_ns: i64) -> i64 {
        let running_ns = uncorrected_ns + self.sum_ns.load(Acquire);
        running_ns.max(self.standstill_ns.load(Relaxed))
    }

    /// See [`follow_log`]. `stored_s` proves the count wrong only if it is outside of the interval from `written_s` to now: the batch may
    /// have been delayed before or after the log stored it.
    fn follow(&self, uncorrected_ns: i64, written_s: u64, stored_s: u64) -> i64 {
        /// The uncertainty of a difference of the two clocks, because both are rounded down to seconds.
        const ROUNDING_S: i64 = 1;
        let seconds_between = |from: u64, to: u64| to as i64 - from as i64;
        let now_ns = self.count_ns(uncorrected_ns);
        let now_s = ns_to_s(now_ns);
        if written_s > now_s {
            // This process has not yet counted that far, so another process wrote the batch, by its own count.
            return 0;
        }
        let behind_s = seconds_between(now_s, stored_s) - ROUNDING_S;
        if behind_s > 0 {
            let corrected_ns = now_ns + behind_s * NS_PER_S as i64;
            self.sum_ns.store(corrected_ns - uncorrected_ns, Release);
            return behind_s;
        }
        let ahead_s = seconds_between(stored_s, written_s) - ROUNDING_S;
        // A batch that was written before the last correction shows the difference that this correction has already removed.
        if ahead_s > 0 && written_s > ns_to_s(self.standstill_ns.load(Relaxed)) {
            self.standstill_ns.store(now_ns, Relaxed);
            self.sum_ns.fetch_sub(ahead_s * NS_PER_S as i64, Release);
            return -ahead_s;
        }
        0
    }
}

/// The time of the wall clock minus the count, in seconds. The result changes only if the difference has changed by a second or more.
pub fn wall_offset_s() -> i32 {
    let (offset_ns, last_s) = (wall_ns() - counted_ns(), WALL_OFFSET_S.load(Relaxed));
    let second = NS_PER_S as i64;
    if (offset_ns - i64::from(last_s) * second).abs() < second {
        return last_s;
    }
    let offset_s = (offset_ns + second / 2).div_euclid(second);
    let offset_s = offset_s.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
    WALL_OFFSET_S.store(offset_s, Relaxed);
    offset_s
}

fn counted_ns() -> i64 {
    CORRECTIONS.count_ns(uncorrected_ns())
}

/// The count without its corrections.
fn uncorrected_ns() -> i64 {
    boot_ns() + ORIGIN_NS.get_or_init(|| wall_ns() - boot_ns())
}

/// Nanoseconds of `CLOCK_BOOTTIME`, which ignores steps of the wall clock and continues while the machine is suspended.
fn boot_ns() -> i64 {
    read_ns(libc::CLOCK_BOOTTIME) as i64
}

fn wall_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as i64)
}

fn s_to_ns(s: u64) -> i64 {
    i64::try_from(s.saturating_mul(NS_PER_S)).unwrap_or(i64::MAX / 2)
}

/// Whether and how well the machine's wall clock is synchronized.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockSync {
    /// Whether a daemon of NTP or PTP, or the hypervisor, sets the clock.
    pub synchronized: bool,
    /// The maximum error of the clock in microseconds, as the kernel estimates it. It grows while nothing sets the clock.
    pub error_us_max: u64,
}

/// Asks the kernel how the wall clock is synchronized; `None` if the kernel does not answer (a sandbox without `adjtimex`).
pub fn sync_state() -> Option<ClockSync> {
    // SAFETY: all zeroes is a valid `timex`, which only asks to read the state.
    let mut time: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `timex` into `time`.
    let state = unsafe { libc::adjtimex(&raw mut time) };
    (state >= 0).then(|| ClockSync {
        synchronized: time.status & libc::STA_UNSYNC == 0,
        error_us_max: u64::try_from(time.maxerror).unwrap_or(0),
    })
}

#[inline]
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

    #[test]
    fn count_is_corrected_only_where_what_the_log_stored_proves_it_wrong() {
        for (written_s, now_s, stored_s, expected_s) in [
            (100, 100, 100, 0),
            (100, 101, 100, 0),
            // The batch was delayed for a minute, before or after the log stored it.
            (100, 160, 100, 0),
            (100, 160, 160, 0),
            (100, 100, 101, 0),
            (100, 100, 105, 4),
            (100, 102, 99, 0),
            (100, 102, 95, -4),
            // A batch written in the future was written by another process.
            (u32::MAX.into(), 102, 95, 0),
        ] {
            let corrections = ClockCorrections::new();
            let correction_s = corrections.follow(s_to_ns(now_s), written_s, stored_s);
            assert_eq!(correction_s, expected_s, "{written_s} {now_s} {stored_s}");
        }
    }

    #[test]
    fn clock_ahead_of_the_log_waits_and_one_behind_jumps() {
        let corrections = ClockCorrections::new();
        let count_s = |uncorrected_s| ns_to_s(corrections.count_ns(s_to_ns(uncorrected_s)));
        let follow = |uncorrected_s, written_s, stored_s| {
            let correction_s = corrections.follow(s_to_ns(uncorrected_s), written_s, stored_s);
            (correction_s, count_s(uncorrected_s))
        };
        // The count is ahead by 30 seconds. Two batches were in flight, and a third is written before the count continues.
        assert_eq!(follow(100, 100, 70), (-29, 100));
        assert_eq!(follow(100, 100, 70), (0, 100));
        assert_eq!(follow(110, 100, 80), (0, 100));
        assert_eq!([129, 130, 131].map(count_s), [100, 101, 102]);
        assert_eq!(follow(140, 111, 110), (0, 111));
        // The machine was paused for a minute.
        assert_eq!(follow(150, 121, 180), (58, 179));
        assert_eq!(count_s(151), 180);
        // The clock of the log steps back, and forward again while the count stands still.
        assert_eq!(follow(152, 181, 171), (-9, 181));
        assert_eq!(follow(153, 181, 191), (9, 190));
        assert_eq!(count_s(154), 191);
    }

    #[test]
    fn the_count_begins_with_the_wall_clock_and_goes_on_with_it() {
        let (counted, unix) = (counted_s(), unix_s());
        assert!(counted.abs_diff(unix) <= 1, "{counted} {unix}");
        assert!(counted_s() >= counted);
        // Nothing steps the clock of the test machine.
        assert_eq!(wall_offset_s(), wall_offset_s());
    }
}
