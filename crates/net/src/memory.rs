//! How much memory this process may use, the allocator of large pieces, freed memory that is given back, and random numbers of the
//! kernel.

mod pieces;

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

pub use pieces::{Pieces, age, kept_bytes};
use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

/// Where control groups are mounted on every distribution of today.
const CGROUPS: &str = "/sys/fs/cgroup";

/// The memory that this process may use, in bytes: the machine's, or the least limit of the control groups
/// that it runs in (version 2 or 1) when that is smaller.
pub fn total_bytes() -> u64 {
    // SAFETY: takes no pointers.
    let (pages, page) = unsafe {
        (
            libc::sysconf(libc::_SC_PHYS_PAGES),
            libc::sysconf(libc::_SC_PAGESIZE),
        )
    };
    assert!(pages > 0 && page > 0, "Linux always knows its memory");
    let machine = (pages as u64).saturating_mul(page as u64);
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limits(&groups).fold(machine, u64::min)
}

/// The limits that the text of `/proc/self/cgroup` leads to.
fn limits(groups: &str) -> impl Iterator<Item = u64> + '_ {
    groups
        .lines()
        .filter_map(limit_files)
        .flatten()
        .filter_map(|file| limit(&fs::read_to_string(file).ok()?))
}

/// The files with the limits of one line `id:controllers:path`: of the group itself and of all above it, since each bounds
/// the groups below. Inside a container the path may exist on the host only, so the root counts too.
fn limit_files(line: &str) -> Option<Vec<PathBuf>> {
    let mut parts = line.splitn(3, ':');
    let (id, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let (root, names) = if id == "0" && controllers.is_empty() {
        // Past the second limit no process is killed, but none makes progress.
        let names: &[&str] = &["memory.max", "memory.high"];
        (Path::new(CGROUPS).to_path_buf(), names)
    } else if controllers
        .split(',')
        .any(|controller| controller == "memory")
    {
        let names: &[&str] = &["memory.limit_in_bytes"];
        (Path::new(CGROUPS).join("memory"), names)
    } else {
        return None;
    };
    let group = Path::new(path.trim_start_matches('/'));
    let all = group.ancestors();
    let of = |above: &Path| {
        names
            .iter()
            .map(|name| root.join(above).join(name))
            .collect()
    };
    Some(all.map(of).collect::<Vec<Vec<_>>>().concat())
}

/// A limit as the kernel writes it; `None` for `max`. Version 1 writes a huge number instead, which the machine's own
/// memory undercuts.
fn limit(text: &str) -> Option<u64> {
    text.trim().parse().ok()
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
/// Freed memory at the end of a heap that is kept for what comes next.
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
        assert!(total_bytes() > 0);
    }

    fn files(line: &str) -> Vec<String> {
        let files = limit_files(line).unwrap_or_default();
        files
            .iter()
            .map(|file| file.display().to_string())
            .collect()
    }

    #[test]
    fn a_group_is_bounded_by_all_above_it() {
        assert_eq!(
            files("0::/a.slice/b.service"),
            [
                "/sys/fs/cgroup/a.slice/b.service/memory.max",
                "/sys/fs/cgroup/a.slice/b.service/memory.high",
                "/sys/fs/cgroup/a.slice/memory.max",
                "/sys/fs/cgroup/a.slice/memory.high",
                "/sys/fs/cgroup/memory.max",
                "/sys/fs/cgroup/memory.high",
            ]
        );
        assert_eq!(
            files("9:cpu,memory:/docker"),
            [
                "/sys/fs/cgroup/memory/docker/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            ]
        );
    }

    #[test]
    fn other_controllers_and_nonsense_say_nothing() {
        for line in ["8:cpuset:/", "", "0", "1:name=systemd:/x"] {
            assert_eq!(files(line), [""; 0], "{line}");
        }
    }

    #[test]
    fn limits_are_numbers_or_none() {
        assert_eq!(limit("1073741824\n"), Some(1 << 30));
        assert_eq!(limit("max\n"), None);
        assert_eq!(limit(""), None);
    }

    #[test]
    fn this_machine_has_memory_and_chance() {
        assert!(total_bytes() > 16 << 20);
        assert_ne!(random_u64(), random_u64());
    }
}
