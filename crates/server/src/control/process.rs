//! Reads the memory of this process and the name of its host from `/proc`.

use std::fs;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The PSS is cached for this time, since the kernel walks all pages of the process to compute it.
const PSS_CACHE_TIME: Duration = Duration::from_secs(5);

/// The process's proportional share of memory (PSS), in bytes, at most [`PSS_CACHE_TIME`] old. None if `/proc` cannot be read.
pub fn pss_bytes() -> Option<u64> {
    static LAST: Mutex<Option<(Instant, Option<u64>)>> = Mutex::new(None);
    let mut last = LAST.lock().expect("nothing panics while it reads");
    if let Some((at, bytes)) = *last
        && at.elapsed() < PSS_CACHE_TIME
    {
        return bytes;
    }
    let rollup = fs::read_to_string("/proc/self/smaps_rollup").ok();
    let bytes = rollup.and_then(|text| bytes_of_line(&text, "Pss:"));
    *last = Some((Instant::now(), bytes));
    bytes
}

/// The host's name; empty if `/proc` cannot be read.
pub fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_string()
}

/// The process's resident memory, in bytes. Cheap to read. None if `/proc` cannot be read.
pub fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    bytes_of_line(&status, "VmRSS:")
}

/// The value of the line `name`, in bytes.
fn bytes_of_line(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let number: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(number * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_this_process_is_read_from_proc() {
        assert_eq!(
            bytes_of_line("Rss:  7 kB\nPss:      12 kB\n", "Pss:"),
            Some(12 << 10)
        );
        assert_eq!(bytes_of_line("Pss: many", "Pss:"), None);
        let resident = resident_bytes().unwrap();
        assert!(pss_bytes().unwrap() <= resident * 2 && resident > 1 << 20);
    }
}
