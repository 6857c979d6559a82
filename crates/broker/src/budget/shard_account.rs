//! The memory account of one shard. The shard draws from the account of the process in lots, so that handling a message rarely touches memory that shards
//! share.
//!
//! A shard draws its *floor* when it starts and keeps it, so that it can work whatever the other shards hold.
//!
//! Invariants: each charged byte is released once. A shard has always drawn at least the bytes that it holds, and at least its floor.

use crate::budget::account::{MemoryAccount, MemoryLevel};
use crate::budget::admission::Admission;
use crate::budget::part::MemoryPart;

/// The largest lot, and the largest floor. With large lots, a shard draws rarely.
const LOT_BYTES_MAX: usize = 256 << 10;
/// The smallest lot, even if many shards share a small account.
const LOT_BYTES_MIN: usize = 4 << 10;

/// The account of one shard.
#[derive(Debug)]
pub struct ShardAccount {
    admission: Admission,
    parts: [usize; MemoryPart::ALL.len()],
    held_bytes: usize,
    drawn_bytes: usize,
    floor_bytes: usize,
    lot_bytes: usize,
}

impl ShardAccount {
    /// The account of one of `shards` shards.
    pub fn new(admission: Admission, shards: usize) -> ShardAccount {
        // The floors of all shards together are at most a quarter of the limit.
        let share = admission.account.limit_bytes() / 4 / shards.max(1);
        let lot_bytes = (share / 4).clamp(LOT_BYTES_MIN, LOT_BYTES_MAX);
        let floor_bytes = share.min(LOT_BYTES_MAX);
        admission.account.draw(floor_bytes);
        ShardAccount {
            admission,
            parts: [0; MemoryPart::ALL.len()],
            held_bytes: 0,
            drawn_bytes: floor_bytes,
            floor_bytes,
            lot_bytes,
        }
    }

    /// The bytes that are charged to a part.
    pub fn part(&self, part: MemoryPart) -> usize {
        self.parts[part as usize]
    }

    /// The bytes that are charged to each part, in the order of [`MemoryPart::ALL`].
    pub fn parts(&self) -> [usize; MemoryPart::ALL.len()] {
        self.parts
    }

    /// The bytes that are charged to all parts together.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    pub fn charge(&mut self, part: MemoryPart, bytes: usize) {
        self.parts[part as usize] += bytes;
        self.held_bytes += bytes;
        if self.held_bytes > self.drawn_bytes {
            let missing_drawn =
                (self.held_bytes - self.drawn_bytes).next_multiple_of(self.lot_bytes);
            self.drawn_bytes += missing_drawn;
            self.account().draw(missing_drawn);
        }
    }

    pub fn release(&mut self, part: MemoryPart, bytes: usize) {
        debug_assert!(self.parts[part as usize] >= bytes, "{part:?}: {bytes}");
        let bytes = bytes.min(self.parts[part as usize]);
        self.parts[part as usize] -= bytes;
        self.held_bytes -= bytes;
        // Above its floor, the shard keeps one lot in reserve.
        let needed = self.held_bytes.next_multiple_of(self.lot_bytes) + self.lot_bytes;
        let needed = match self.held_bytes <= self.floor_bytes {
            true => self.floor_bytes,
            false => needed.max(self.floor_bytes),
        };
        if self.drawn_bytes > needed {
            let less = self.drawn_bytes - needed;
            self.drawn_bytes = needed;
            self.account().give_back(less);
        }
    }

    /// Charges or releases the difference when an item of the part changes its size.
    pub fn change_charge(&mut self, part: MemoryPart, before: usize, after: usize) {
        if after > before {
            self.charge(part, after - before);
        } else if before > after {
            self.release(part, before - after);
        }
    }

    #[inline]
    pub fn set_charge(&mut self, part: MemoryPart, bytes: usize) {
        self.change_charge(part, self.part(part), bytes);
    }

    /// How many bytes must be released before `bytes` more can be charged without reaching [`MemoryLevel::Full`].
    pub fn missing_bytes(&self, bytes: usize) -> usize {
        if self.held_bytes + bytes < self.floor_bytes {
            return 0;
        }
        let account = self.account();
        let growth_limit = account.limit_bytes() - account.limit_bytes() / 8;
        // Drawn bytes that are not used need no new lot.
        let missing_drawn = bytes.saturating_sub(self.drawn_bytes - self.held_bytes);
        (account.used_bytes() + missing_drawn).saturating_sub(growth_limit)
    }

    /// The level of the process's account, or `MemoryLevel::Calm` while the shard holds less than its floor.
    #[inline]
    pub fn level(&self) -> MemoryLevel {
        self.level_without(0)
    }

    /// The level that this shard would have if it held `bytes` fewer.
    #[inline]
    pub fn level_without(&self, bytes: usize) -> MemoryLevel {
        match self.held_bytes.saturating_sub(bytes) < self.floor_bytes {
            true => MemoryLevel::Calm,
            false => self.account().level_without(bytes),
        }
    }

    fn account(&self) -> &MemoryAccount {
        &self.admission.account
    }
}

impl Drop for ShardAccount {
    fn drop(&mut self) {
        self.account().give_back(self.drawn_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::settings::Settings;

    fn accounts(limit: usize, shards: usize) -> Vec<ShardAccount> {
        let mut settings = Settings::default();
        settings.limits.memory_bytes = limit;
        let admission = Admission::new(&settings, 7);
        (0..shards)
            .map(|_| ShardAccount::new(admission.clone(), shards))
            .collect()
    }

    use alloc::vec::Vec;

    #[test]
    fn shards_draw_from_one_sum_and_give_all_back() {
        let mut accounts = accounts(16 << 20, 2);
        assert_eq!(accounts[0].level(), MemoryLevel::Calm);
        accounts[0].charge(MemoryPart::Outboxes, 13 << 20);
        assert_eq!(accounts[0].level(), MemoryLevel::Near);
        accounts[0].charge(MemoryPart::Received, 3 << 19);
        assert_eq!(accounts[0].level(), MemoryLevel::Full);
        accounts[0].charge(MemoryPart::Received, 3 << 18);
        assert_eq!(accounts[0].level(), MemoryLevel::Tight);
        accounts[0].charge(MemoryPart::Received, 7 << 18);
        assert_eq!(accounts[0].level(), MemoryLevel::Over);
        // The level concerns only a shard that holds at least its floor.
        accounts[1].charge(MemoryPart::Received, 1000);
        assert_eq!(accounts[1].level(), MemoryLevel::Calm);
        accounts[1].charge(MemoryPart::Received, 1 << 20);
        assert_eq!(accounts[1].level(), MemoryLevel::Over);
        accounts[0].release(MemoryPart::Outboxes, 13 << 20);
        accounts[0].release(MemoryPart::Received, 4 << 20);
        accounts[1].set_charge(MemoryPart::Received, 0);
        assert!(accounts.iter().all(|account| account.held_bytes == 0));
        let account = &accounts[0].admission.account;
        assert_eq!(account.used_bytes(), 2 * LOT_BYTES_MAX);
        account.charge_unowned(16 << 20);
        assert_eq!(account.level(), MemoryLevel::Over);
        account.release_unowned(16 << 20);
        assert_eq!(account.level(), MemoryLevel::Calm);
    }

    #[test]
    fn many_shards_each_have_a_floor() {
        let mut accounts = accounts(16 << 20, 226);
        accounts[0].charge(MemoryPart::Outboxes, 64 << 20);
        accounts[225].charge(MemoryPart::Received, 16 << 10);
        assert_eq!(accounts[0].level(), MemoryLevel::Over);
        assert_eq!(accounts[225].level(), MemoryLevel::Calm);
    }
}
