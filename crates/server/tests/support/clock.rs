//! Sets the wall clock of a running server, with the library of `faketime`. The monotonic clock stays real.

use std::path::{Path, PathBuf};

use super::Server;
use super::tools::has;

/// A wall clock that a test sets. It is a file with the offset from the real time; `faketime` in the server reads it.
pub struct Clock {
    file: PathBuf,
    library: String,
}

impl Clock {
    /// A clock that is ahead of the real time. `name` makes its file unique. `None` if the library is missing, or if the test itself runs
    /// under
    /// `faketime`.
    pub fn new(name: &str, ahead_s: i64) -> Option<Clock> {
        if !has("faketime") || std::env::var_os("FAKETIME").is_some() {
            return None;
        }
        let lib = std::fs::read_dir("/usr/lib").expect("a directory");
        let mut paths = lib.map(|entry| {
            entry
                .expect("an entry")
                .path()
                .join("faketime/libfaketimeMT.so.1")
        });
        let library = paths
            .find(|path| path.exists())
            .expect("faketime's library");
        let file = std::env::temp_dir().join(format!("crore-clock-{name}-{}", std::process::id()));
        let library = library.to_str()?.to_string();
        let clock = Clock { file, library };
        clock.set(ahead_s);
        Some(clock)
    }

    /// Sets the clock `ahead_s` seconds ahead of the real time (behind it, if negative).
    pub fn set(&self, ahead_s: i64) {
        // The library may read the file at any time, so the file is replaced in one step.
        let new = self.file.with_extension("next");
        std::fs::write(&new, format!("{ahead_s:+}s\n")).expect("a file");
        std::fs::rename(&new, &self.file).expect("a file");
    }

    /// A server whose wall clock is this one.
    pub fn server(&self, settings: &str) -> Server {
        let environment = [
            ("LD_PRELOAD", self.library.as_str()),
            (
                "FAKETIME_TIMESTAMP_FILE",
                self.file.to_str().expect("a path"),
            ),
            ("FAKETIME_NO_CACHE", "1"),
            // Only the wall clock is changed.
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ];
        Server::with_environment(settings, &environment)
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(Path::new(&self.file));
    }
}
