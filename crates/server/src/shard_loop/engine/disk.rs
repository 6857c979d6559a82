//! The log on disk as the engine.

use std::io::{self, Write as _};
use std::sync::Arc;

use crore_broker::{Batch, Committed, Placement};
use crore_disk::{Directory, End, Engine, Log, State};
use crore_net::Sender;

use crate::shard_loop::letters::Letter;

/// A batch in the engine.
struct Appended(Batch);

impl crore_disk::Batch for Appended {
    fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }
}

/// The engine, for all shards.
#[derive(Clone)]
pub struct Durable(Arc<Engine<Appended>>);

impl Durable {
    /// Starts it behind this log. `full` is told when the disk becomes full and when it has room again. A failed write or sync ends the process: it is not known what the disk has.
    ///
    /// # Errors
    /// When its thread cannot be started.
    pub fn start(
        log: Log<Directory>,
        placement: Placement,
        shards: Vec<Sender<Letter>>,
        full: impl FnMut(bool) + Send + 'static,
    ) -> io::Result<Durable> {
        let mut letters: Vec<Vec<Letter>> = shards.iter().map(|_| Vec::new()).collect();
        let committed = move |group: Vec<Appended>| {
            for Appended(Batch { header, .. }) in group {
                let committed = Committed {
                    header,
                    batch: None,
                };
                let home = placement.home_of(header.partition);
                letters[usize::from(home)].push(Letter::Committed(committed));
            }
            // Together: a shard that woke by the first of them would find the others in turns of their own.
            for (shard, letters) in shards.iter().zip(&mut letters) {
                shard.post_all(letters);
            }
        };
        let failed = |error: io::Error| {
            // Not by way of the log's thread, which would not come to it.
            let _ = writeln!(
                io::stderr(),
                "crore: the log in state.directory cannot be written: {error}; the server ends, since it is not known what the disk has"
            );
            std::process::exit(1);
        };
        Engine::start(log, committed, full, failed).map(|engine| Durable(Arc::new(engine)))
    }

    /// Takes batches, to be synced together.
    pub fn append_all(&self, batches: impl Iterator<Item = Batch>) {
        self.0.append_all(batches.map(Appended));
    }

    /// Where the log ends.
    pub fn end(&self) -> End {
        self.0.end()
    }

    /// How the log is.
    pub fn state(&self) -> State {
        self.0.state()
    }

    /// A base of so many bytes has the records of the segments before this one: they are removed.
    pub fn remove_before(&self, segment: u64, base_bytes: u64) {
        self.0.remove_before(segment, base_bytes);
    }
}
