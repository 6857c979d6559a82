//! Sets the wall clock of a running server ahead and back, by the library of `faketime`.

use std::path::{Path, PathBuf};

use super::Server;
use super::tools::has;

/// A clock that a test sets, and the variables that make a server follow it.
pub struct Clock {
    file: PathBuf,
    library: String,
}

impl Clock {
    /// Makes a clock. `None` if the library is missing, or if the tests themselves run under `faketime`.
    pub fn new(name: &str, ahead_s: i64) -> Option<Clock> {
        if !has("faketime") || std::env::var_os("FAKETIME").is_some() {
            return None;
        }
        let lib = std::fs::read_dir("/usr/lib").expect("a directory");
        let mut all = lib.map(|entry| {
            entry
                .expect("an entry")
                .path()
                .join("faketime/libfaketimeMT.so.1")
        });
        let library = all.find(|path| path.exists()).expect("faketime's library");
        let file = std::env::temp_dir().join(format!("crore-clock-{name}-{}", std::process::id()));
        let library = library.to_str()?.to_string();
        let clock = Clock { file, library };
        clock.set(ahead_s);
        Some(clock)
    }

    /// Sets by how many seconds the wall clock is ahead from now on.
    pub fn set(&self, ahead_s: i64) {
        // The library may read the file at any time, so the file is replaced in one step.
        let whole = self.file.with_extension("next");
        std::fs::write(&whole, format!("{ahead_s:+}s\n")).expect("a file");
        std::fs::rename(&whole, &self.file).expect("a file");
    }

    /// A server that follows this clock.
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
