//! A directory for what a server leaves to the next one, gone with the test.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

pub struct State(pub PathBuf);

impl State {
    pub fn new() -> State {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("crore-test-state-{}-{number}", std::process::id());
        State(std::env::temp_dir().join(name))
    }

    pub fn settings(&self) -> String {
        format!("[state]\ndirectory = {:?}\n", self.0)
    }

    pub fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).expect("the directory");
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("an entry").file_name();
        let mut names: Vec<_> = entries
            .map(|entry| name(entry).into_string().expect("text"))
            .collect();
        names.sort();
        names
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
