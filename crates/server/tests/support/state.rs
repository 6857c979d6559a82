//! A state directory for the servers of a test. It is removed at the end of the test.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

pub struct State {
    pub directory: PathBuf,
    /// The line of the settings that makes the state durable or not.
    durability: &'static str,
}

impl State {
    /// A state in which messages are durable, as by default.
    pub fn new() -> State {
        State::with_durability("")
    }

    /// Two states: one with durable messages, and one for planned restarts only.
    pub fn of_both_kinds() -> [State; 2] {
        [State::new(), State::for_planned_restarts()]
    }

    /// A state that is written only when the server stops: messages survive a planned restart, but no crash.
    pub fn for_planned_restarts() -> State {
        State::with_durability("durable = false\n")
    }

    fn with_durability(durability: &'static str) -> State {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("crore-test-state-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        State {
            directory,
            durability,
        }
    }

    /// The section `[state]` of a server's settings.
    pub fn settings(&self) -> String {
        format!(
            "[state]\ndirectory = {:?}\n{}",
            self.directory, self.durability
        )
    }

    /// The path of the base (the checkpoint on disk). Panics if the directory has none, or several.
    pub fn base(&self) -> PathBuf {
        let files = self.files();
        let mut bases = files.iter().filter(|name| name.starts_with("base-"));
        let (base, second) = (bases.next().expect("a base"), bases.next());
        assert_eq!(second, None, "{files:?}");
        self.directory.join(base)
    }

    /// The sorted names of the files in the directory, without `lock`.
    pub fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.directory).expect("the directory");
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
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
