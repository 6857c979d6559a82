//! The room on the disk of the engine, which clients share: one that keeps or writes very much is refused while others are not.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::client::Clients;
use super::shares;

/// A client that holds no more than this part of all room holds little: it may write whatever others do, as long as there is any room.
const LITTLE_PART: u64 = 256;

/// The room, as the engine has told it last.
#[derive(Debug)]
pub(super) struct Disk {
    free_bytes: AtomicU64,
    all_bytes: AtomicU64,
    /// Bytes by client since room came free.
    pub written: Clients,
}

impl Default for Disk {
    /// A disk without end.
    fn default() -> Disk {
        Disk {
            free_bytes: AtomicU64::new(u64::MAX),
            all_bytes: AtomicU64::new(u64::MAX),
            written: Clients::without_limit(),
        }
    }
}

impl Disk {
    /// Whether a client that holds so many bytes may write more.
    pub fn may_take(&self, held: u64) -> bool {
        let share = self
            .free_bytes
            .load(Relaxed)
            .saturating_mul(shares::NEARLY_ALL as u64);
        held < share.max(self.all_bytes.load(Relaxed) / LITTLE_PART)
    }

    /// So many of `all` bytes are free. Where these are more than before, what was written until then stands in a base or has gone.
    pub fn set_room(&self, free: u64, all: u64) {
        self.all_bytes.store(all, Relaxed);
        if self.free_bytes.swap(free, Relaxed) < free {
            self.written.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Client;
    use super::*;

    #[test]
    fn one_client_leaves_room_to_write_and_has_it_again_when_room_has_come_free() {
        let disk = Disk::default();
        let [one, other] = [1, 2].map(|n| Client::of([192, 0, 2, n].into(), 7));
        let mut free = 9_000;
        disk.set_room(free, 9_000);
        while disk.may_take(disk.written.count(one)) {
            disk.written.add(one, 1);
            free -= 1;
            disk.set_room(free, 9_000);
        }
        assert_eq!(free, 1_000);
        assert!(disk.may_take(disk.written.count(other)));
        disk.set_room(0, 9_000);
        assert!(
            disk.may_take(30) && !disk.may_take(40),
            "a part of all is little"
        );
        disk.set_room(2_000, 9_000);
        assert!(disk.may_take(disk.written.count(one)));
    }
}
