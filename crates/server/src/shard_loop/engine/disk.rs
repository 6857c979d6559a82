//! The log on disk as the engine.

use std::io::{self, Write as _};
use std::sync::Arc;

use crore_broker::{Batch, Committed, Placement};
use crore_disk::{Directory, Engine, Log, Room};
use crore_net::Sender;

use crate::shard_loop::letters::Letter;

/// The log on disk, as shards and checkpoints have it.
pub type Durable = Arc<Engine<Batch>>;

/// Starts it behind this log. `room` is told how much there is on the disk. A failed write or sync ends the process: it is not known what the disk has.
///
/// # Errors
/// When its thread cannot be started.
pub fn start(
    log: Log<Directory>,
    placement: Placement,
    shards: Vec<Sender<Letter>>,
    room: impl FnMut(Room) + Send + 'static,
) -> io::Result<Durable> {
    let mut letters: Vec<Vec<Letter>> = shards.iter().map(|_| Vec::new()).collect();
    let committed = move |group: Vec<Batch>| {
        for Batch { header, .. } in group {
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
    Engine::start(log, committed, room, failed).map(Arc::new)
}
