//! Shares of the engine's disk: when the disk is nearly full, clients that keep or write much are refused first.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::client::CountsByClient;
use super::shares;

/// A client that holds less than the disk's size divided by this may write while the disk has any room, whatever other clients
/// hold.
const LITTLE_DIVISOR: u64 = 256;

/// The most bytes of session records that a client may write on a full disk: a 16th of two spare segments of the largest size.
const SPARE_PART_MAX: u64 = 8 << 20;

/// The room on the disk, as the engine last reported it.
#[derive(Debug)]
pub(super) struct Disk {
    free_bytes: AtomicU64,
    size_bytes: AtomicU64,
    /// The bytes that each client has written since room was last freed.
    pub written_bytes: CountsByClient,
    /// The bytes of session records that each client has written since the disk became full.
    pub spare_bytes: CountsByClient,
    /// Whether a client was refused for its share since the last look: a checkpoint may free room for it, although the disk is not full.
    pub has_refused_share: AtomicBool,
}

impl Default for Disk {
    /// An unlimited disk.
    fn default() -> Disk {
        Disk {
            free_bytes: AtomicU64::new(u64::MAX),
            size_bytes: AtomicU64::new(u64::MAX),
            written_bytes: CountsByClient::without_limit(),
            spare_bytes: CountsByClient::without_limit(),
            has_refused_share: AtomicBool::new(false),
        }
    }
}

impl Disk {
    /// Whether a client that holds `held` bytes may write another message.
    pub fn may_take(&self, held: u64) -> bool {
        let share = self
            .free_bytes
            .load(Relaxed)
            .saturating_mul(shares::NEARLY_ALL as u64);
        held < share.max(self.size_bytes.load(Relaxed) / LITTLE_DIVISOR)
    }

    /// Whether a client that has written `spent` bytes of session records on the full disk may write more of them.
    pub fn may_take_spare(&self, spent: u64) -> bool {
        spent < SPARE_PART_MAX.min(self.size_bytes.load(Relaxed) / LITTLE_DIVISOR)
    }

    /// Sets the free bytes and the size of the disk. If the free bytes have grown, a checkpoint or a deletion has freed earlier
    /// writes, so the counts of written bytes start again at zero.
    pub fn set_room(&self, free: u64, all: u64) {
        self.size_bytes.store(all, Relaxed);
        if self.free_bytes.swap(free, Relaxed) < free {
            self.written_bytes.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Client;
    use super::*;

    #[test]
    fn one_client_leaves_room_for_others_and_may_write_again_when_room_is_freed() {
        let disk = Disk::default();
        let [one, other] = [1, 2].map(|n| Client::from_address([192, 0, 2, n].into(), 7));
        let mut free = 9_000;
        disk.set_room(free, 9_000);
        while disk.may_take(disk.written_bytes.count(one)) {
            disk.written_bytes.add(one, 1);
            free -= 1;
            disk.set_room(free, 9_000);
        }
        assert_eq!(free, 1_000);
        assert!(disk.may_take(disk.written_bytes.count(other)));
        disk.set_room(0, 9_000);
        assert!(
            disk.may_take(30) && !disk.may_take(40),
            "a part of all is little"
        );
        disk.set_room(2_000, 9_000);
        assert!(disk.may_take(disk.written_bytes.count(one)));
    }
}
