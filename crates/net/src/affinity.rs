//! Which cores there are, pinning a thread to one, and letting others go first.

use std::io;

/// Cores that a mask has room for; the kernel's own greatest `NR_CPUS` is 8,192.
const CORES_MAX: usize = 8192;
const WORD_BITS: usize = usize::BITS as usize;
const WORDS: usize = CORES_MAX / WORD_BITS;

/// Keeps the calling thread on one core.
///
/// # Errors
/// `EINVAL` when there is no such core or this process may not use it.
pub fn pin_to(core: usize) -> io::Result<()> {
    if core >= CORES_MAX {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut mask = [0_usize; WORDS];
    mask[core / WORD_BITS] |= 1 << (core % WORD_BITS);
    // SAFETY: the kernel reads `size_of_val(&mask)` bytes of `mask`; 0 is the calling thread.
    crate::sys::check(unsafe {
        libc::sched_setaffinity(0, size_of_val(&mask), mask.as_ptr().cast())
    })
}

/// The calling thread gets its cores after all others: what it does may take long.
///
/// # Errors
/// Those of `setpriority(2)`; a sandbox may forbid it.
pub fn give_way() -> io::Result<()> {
    /// The lowest priority.
    const NICE: libc::c_int = 19;
    // SAFETY: it reads no memory; 0 is the calling thread.
    crate::sys::check(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) })
}

/// The cores that the calling thread may run on, in order. Called before any pinning they are those of the process
/// (`taskset`, cpusets). At least one, since the caller runs.
pub fn cores() -> Vec<usize> {
    let mut mask = [0_usize; WORDS];
    // SAFETY: the kernel writes at most `size_of_val(&mask)` bytes into `mask`.
    let read = unsafe { libc::sched_getaffinity(0, size_of_val(&mask), mask.as_mut_ptr().cast()) };
    if read == -1 {
        // Only where a sandbox forbids the question.
        let count = std::thread::available_parallelism().map_or(1, Into::into);
        return (0..count).collect();
    }
    (0..CORES_MAX)
        .filter(|core| mask[core / WORD_BITS] & (1 << (core % WORD_BITS)) != 0)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_has_one_core() {
        std::thread::spawn(|| {
            let last = *cores().last().unwrap();
            pin_to(last).unwrap();
            assert_eq!(cores(), [last]);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_gives_way_alone() {
        let nice = || {
            // SAFETY: it reads no memory; 0 is the calling thread.
            unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
        };
        let before = nice();
        let given = std::thread::spawn(move || {
            give_way().unwrap();
            nice()
        });
        assert_eq!((given.join().unwrap(), nice()), (19, before));
    }

    #[test]
    fn a_core_that_is_not_there_is_an_error() {
        assert!(pin_to(CORES_MAX - 1).is_err());
        assert!(pin_to(usize::MAX).is_err());
    }
}
