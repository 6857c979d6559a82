//! Takes a snapshot of a home (the part of a shard that keeps topics), block by block.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::base::snapshot::Head;
use crate::shard::Shard;
use crate::shard::snapshot_writer::SnapshotWriter;

impl Shard {
    /// The next block of this shard's snapshot; empty after the last one. The first call removes the oldest messages, in the same way as for
    /// `limits.log_bytes`, until the snapshot has about `bytes_max` bytes at most.
    ///
    /// # Panics
    /// If the shard has no home.
    pub fn save(&mut self, head: &Head, bytes_max: usize) -> Vec<u8> {
        let (rules, now) = (
            &self.front.clients.ctx.world.rules,
            self.front.clients.ctx.now,
        );
        let home = self.home.as_mut();
        let home = home.expect("only homes have snapshots");
        let saving = self.snapshot_writer.get_or_insert_with(|| {
            let session_bytes = self.sessions.saved_bytes();
            home.shrink_for_snapshot(bytes_max.saturating_sub(session_bytes), rules, now);
            Box::new(SnapshotWriter::new(head))
        });
        let block = saving.next(home, &self.sessions, rules);
        if block.is_empty() {
            self.snapshot_writer = None;
        }
        block
    }
}
