//! A state directory for the servers of a test, which is removed at the end of the test.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

pub struct State(pub PathBuf, &'static str);

impl State {
    /// A state with durable messages, which is the default.
    pub fn new() -> State {
        State::with("")
    }

    /// Both kinds of state: with durable messages, and for planned restarts only.
    pub fn both() -> [State; 2] {
        [State::new(), State::of_stops()]
    }

    /// A state for planned restarts only.
    pub fn of_stops() -> State {
        State::with("durable = false\n")
    }

    fn with(setting: &'static str) -> State {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("crore-test-state-{}-{number}", std::process::id());
        State(std::env::temp_dir().join(name), setting)
    }

    pub fn settings(&self) -> String {
        format!("[state]\ndirectory = {:?}\n{}", self.0, self.1)
    }

    /// The only base (the state that a checkpoint wrote) in the directory.
    pub fn base(&self) -> PathBuf {
        let files = self.files();
        let mut bases = files.iter().filter(|name| name.starts_with("base-"));
        let (base, other) = (bases.next().expect("a base"), bases.next());
        assert_eq!(other, None, "{files:?}");
        self.0.join(base)
    }

    pub fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).expect("the directory");
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("an entry").file_name();
        let mut names: Vec<_> = entries
            .map(|entry| name(entry).into_string().expect("text"))
            .collect();
        names.retain(|name| name != "lock");
        names.sort();
        names
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
