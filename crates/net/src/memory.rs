//! The memory of the machine, the allocator of large pieces, freed memory that is given back, and random numbers of the
//! kernel.

mod pieces;

use std::fs;
use std::ops::Range;

pub use pieces::{Pieces, age, kept_bytes};
use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

/// The memory of the machine, in bytes.
pub fn machine_bytes() -> u64 {
    // SAFETY: takes no pointers.
    let (pages, page) = unsafe {
        (
            libc::sysconf(libc::_SC_PHYS_PAGES),
            libc::sysconf(libc::_SC_PAGESIZE),
        )
    };
    assert!(pages > 0 && page > 0, "Linux always knows its memory");
    (pages as u64).saturating_mul(page as u64)
}

/// Returns freed memory to the kernel, also from between live allocations. It takes the allocator's locks: to be called
/// after a rush, not within one. An allocator other than glibc's does as it likes.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointers, and may be called at any time by any thread.
    unsafe {
        libc::malloc_trim(0)
    };
}

/// Pieces of this size and more are mappings of their own, which are the kernel's again as soon as they are freed. Those that are
/// somewhat smaller are the pool's ([`Pieces`]).
const MAPPED_MIN: libc::c_int = 2 << 20;
/// Freed memory at the end of a heap that is kept for later allocations.
const KEPT: libc::c_int = 8 << 20;

/// Fixes how the allocator deals with large pieces. By default glibc raises both bounds with each mapping that is freed, up to
/// 32 and 64 MiB: then freed messages stay between live ones, and when the last of them goes, tens of megabytes are unmapped at
/// once, which takes as many milliseconds. To be called before any thread begins.
pub fn map_large() {
    #[cfg(target_env = "gnu")]
    for (name, value) in [
        (libc::M_MMAP_THRESHOLD, MAPPED_MIN),
        (libc::M_TRIM_THRESHOLD, KEPT),
    ] {
        // SAFETY: takes no pointers; a value that glibc refuses changes nothing.
        unsafe { libc::mallopt(name, value) };
    }
}

/// Releases the pages of the text of the program and its libraries, which starting up has touched and serving does not
/// need: some megabytes of resident memory. Code that runs again is read back from the page cache. To be called once, when
/// all shards run.
pub fn let_go_of_text() {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    for text in maps.lines().filter_map(text) {
        // SAFETY: a private mapping of a file that may be executed and not written: its pages are the file's, and
        // dropped ones come back as they were (`madvise(2)`).
        unsafe {
            libc::madvise(
                text.start as *mut libc::c_void,
                text.len(),
                libc::MADV_DONTNEED,
            );
        }
    }
}

/// The address range of a file's text, if this line of `/proc/self/maps` describes one.
fn text(line: &str) -> Option<Range<usize>> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let is_text = fields.next()? == "r-xp" && fields.nth(3)?.starts_with('/');
    let place = |digits| usize::from_str_radix(digits, 16).ok();
    is_text.then_some(place(start)?..place(end)?)
}

/// A random number of the kernel's generator, fit for keys and tokens.
pub fn random_u64() -> u64 {
    let mut bytes = [0_u8; 8];
    // So few bytes come whole or not at all, and only a signal early in the boot can interrupt.
    let got = retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty()));
    got.expect("the kernel gives random bytes");
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_text_of_files_is_let_go_of_and_comes_back() {
        let line = "55a4-55a8 r-xp 00201000 fe:00 1234   /usr/bin/crore";
        assert_eq!(text(line), Some(0x55a4..0x55a8));
        for other in [
            "55a4-55a8 rw-p 00201000 fe:00 1234   /usr/bin/crore",
            "55a4-55a8 r-xs 00201000 fe:00 1234   /usr/bin/crore",
            "55a4-55a8 r-xp 00000000 00:00 0",
            "55a4-55a8 r-xp 00000000 00:00 0      [vdso]",
            "",
        ] {
            assert_eq!(text(other), None, "{other}");
        }
        let_go_of_text();
        assert!(machine_bytes() > 0);
    }

    #[test]
    fn this_machine_has_memory_and_chance() {
        assert!(machine_bytes() > 16 << 20);
        assert_ne!(random_u64(), random_u64());
    }
}
