//! Memory: the size of the machine's memory, the allocator of large blocks, and the release of unused memory. Also the kernel's random
//! numbers.

mod pool;

use std::fs;
use std::ops::Range;

pub use pool::{PoolAllocator, kept_bytes, release_unused};
use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

/// The memory of the machine, in bytes.
pub fn machine_bytes() -> u64 {
    // SAFETY: takes no pointers.
    let (page_count, page_bytes) = unsafe {
        (
            libc::sysconf(libc::_SC_PHYS_PAGES),
            libc::sysconf(libc::_SC_PAGESIZE),
        )
    };
    assert!(
        page_count > 0 && page_bytes > 0,
        "Linux always knows its memory"
    );
    (page_count as u64).saturating_mul(page_bytes as u64)
}

/// Returns freed memory to the kernel, even memory between live allocations. Meanwhile the allocator is locked, so this should be called
/// after a burst of load, not during one. With another C library than glibc it does nothing.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointers, and may be called at any time by any thread.
    unsafe {
        libc::malloc_trim(0)
    };
}

/// glibc maps each block of at least this size separately, and returns it to the kernel when it is freed. Most blocks around this size come
/// from the pool instead ([`PoolAllocator`]).
const MMAP_THRESHOLD_BYTES: libc::c_int = 2 << 20;
/// glibc keeps up to this many free bytes at the end of a heap, and gives more back to the kernel.
const HEAP_END_KEPT_BYTES: libc::c_int = 8 << 20;

/// Sets fixed thresholds for large blocks in glibc's allocator. By default glibc raises both thresholds when a mapping is freed, up to
/// 32 and 64 MiB. Then large messages come from the heap, and freed ones leave holes between live ones. When the end of the heap becomes free,
/// glibc unmaps tens of megabytes at once, and the thread stands for tens of milliseconds. Must be called before any thread starts.
pub fn set_malloc_thresholds() {
    #[cfg(target_env = "gnu")]
    for (name, value) in [
        (libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES),
        (libc::M_TRIM_THRESHOLD, HEAP_END_KEPT_BYTES),
    ] {
        // SAFETY: takes no pointers; a value that glibc refuses changes nothing.
        unsafe { libc::mallopt(name, value) };
    }
}

/// Releases the memory of the code pages of the program and its libraries. Some megabytes of code run only at the start, and would stay
/// resident although serving does not need them. If such code runs again, the kernel reads it from the page cache. Should be called once,
/// when all shards run.
pub fn release_code_pages() {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    for range in maps.lines().filter_map(code_range) {
        // SAFETY: a private mapping of a file, executable and not writable. Nobody has written to its pages, so the kernel reads the
        // same bytes again from the file (`madvise(2)`).
        unsafe {
            libc::madvise(
                range.start as *mut libc::c_void,
                range.len(),
                libc::MADV_DONTNEED,
            );
        }
    }
}

/// The address range of a line of `/proc/self/maps`, if the line describes code from a file.
fn code_range(line: &str) -> Option<Range<usize>> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let is_text = fields.next()? == "r-xp" && fields.nth(3)?.starts_with('/');
    let address = |digits| usize::from_str_radix(digits, 16).ok();
    is_text.then_some(address(start)?..address(end)?)
}

/// A random number from the kernel, good enough for keys and tokens.
pub fn random_u64() -> u64 {
    let mut bytes = [0_u8; 8];
    // A call for 8 bytes is never partial, and only a signal early in the boot can interrupt it.
    let written = retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty()));
    written.expect("the kernel gives random bytes");
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_of_files_is_released_and_comes_back() {
        let line = "55a4-55a8 r-xp 00201000 fe:00 1234   /usr/bin/crore";
        assert_eq!(code_range(line), Some(0x55a4..0x55a8));
        for other in [
            "55a4-55a8 rw-p 00201000 fe:00 1234   /usr/bin/crore",
            "55a4-55a8 r-xs 00201000 fe:00 1234   /usr/bin/crore",
            "55a4-55a8 r-xp 00000000 00:00 0",
            "55a4-55a8 r-xp 00000000 00:00 0      [vdso]",
            "",
        ] {
            assert_eq!(code_range(other), None, "{other}");
        }
        release_code_pages();
        assert!(machine_bytes() > 0);
    }

    #[test]
    fn this_machine_has_memory_and_chance() {
        assert!(machine_bytes() > 16 << 20);
        assert_ne!(random_u64(), random_u64());
    }
}
