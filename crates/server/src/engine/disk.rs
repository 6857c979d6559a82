//! The engine that appends batches to the log on disk.

use std::io::{self, Write as _};
use std::sync::Arc;

use crore_broker::{Batch, Committed, Placement};
use crore_disk::{Directory, Engine, Log, LogSpace};
use crore_net::Sender;

use crore_shard_loop::Letter;

/// The log on disk, shared by shards and checkpoints.
pub type Durable = Arc<Engine<Batch>>;

/// Starts the thread that commits to this log. The thread calls `room` with the free space of the disk. A failed write or sync ends the
/// process, because it is then unknown what the disk has.
///
/// # Errors
/// If the thread cannot be started.
pub fn start(
    log: Log<Directory>,
    placement: Placement,
    shards: Vec<Sender<Letter>>,
    room: impl FnMut(LogSpace) + Send + 'static,
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
        // All letters of a shard are posted at once: otherwise the shard would wake for the first one and handle each in a separate turn.
        for (shard, letters) in shards.iter().zip(&mut letters) {
            shard.post_all(letters);
        }
    };
    let failed = |error: io::Error| {
        // Written directly to stderr, because the process ends before the logging thread would write it.
        let _ = writeln!(
            io::stderr(),
            "crore: the log in state.directory cannot be written: {error}; the server ends, since it is not known what the disk has"
        );
        std::process::exit(1);
    };
    Engine::start(log, committed, room, failed).map(Arc::new)
}
