//! Functions for the cores that threads run on and for the priority of threads.

use std::io;

use rustix::process::setpriority_process;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Pins the calling thread to one core.
///
/// # Errors
/// `EINVAL` if the core does not exist or this process may not use it.
pub fn pin_to(core: usize) -> io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

/// Gives the calling thread a low priority, for long work in the background.
///
/// Not the lowest: beside one busy thread of normal priority this one gets a tenth of a core, and with the lowest priority it would get a seventieth. Publishers
/// of a full log wait for this work, and other programs of the host must not delay it for minutes.
///
/// # Errors
/// Those of `setpriority(2)`; a sandbox may forbid it.
pub fn lower_priority() -> io::Result<()> {
    const NICE: i32 = 10;
    Ok(setpriority_process(None, NICE)?)
}

/// The numbers of the cores that the calling thread may run on, in ascending order; at least one. If the thread is not pinned, these are
/// the cores of the process (`taskset`, cpusets).
pub fn cores() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else {
        // A sandbox forbids the call, or the kernel supports more cores than the set has room for.
        let count = std::thread::available_parallelism().map_or(1, Into::into);
        return (0..count).collect();
    };
    (0..CpuSet::MAX_CPU)
        .filter(|core| set.is_set(*core))
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
        let nice = || rustix::process::getpriority_process(None).unwrap();
        let before = nice();
        let given = std::thread::spawn(move || {
            lower_priority().unwrap();
            nice()
        });
        assert_eq!((given.join().unwrap(), nice()), (10, before));
    }

    #[test]
    fn missing_core_is_an_error() {
        assert!(pin_to(CpuSet::MAX_CPU - 1).is_err());
        assert!(pin_to(usize::MAX).is_err());
    }
}
