//! The account of the memory that clients make the server hold: one sum for the process, with named parts. Shards draw
//! from it in lots, so that handling a message touches no memory shared between them.
//!
//! Invariants: every charged byte is released once; a shard has drawn at least the bytes that it holds, and its floor.
//! The sum may pass its limit by as much as one input of each shard adds: an input is charged once its bytes are there,
//! and the consequences are decided before the next input.
//!
//! Rows, names and logs are not part of the sum: they have limits of their own. `relief` acts when the sum nears its limit.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::budget::admission::Admission;

/// A part of the account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Received bytes that wait for more: requests, frames, packets.
    Received,
    /// Bytes that sockets refused.
    Outboxes,
    /// Large messages that are no longer in a log, and are still being written or waited for.
    Messages,
    /// Turns that shards have written for each other and for themselves, and the answers that homes still owe.
    Turns,
    /// Responses that wait for homes, and state that few connections need: lists, filters, aliases, unacknowledged
    /// messages, addresses behind proxies.
    Connections,
    /// MQTT sessions whose clients are away, and groups of shared subscriptions.
    Sessions,
    /// First answers to idempotency keys.
    Answers,
    /// TLS handshakes and incomplete records.
    Tls,
}

impl Part {
    /// How many there are.
    pub const COUNT: usize = 8;

    /// All of them, in order.
    pub const ALL: [Part; Part::COUNT] = [
        Part::Received,
        Part::Outboxes,
        Part::Messages,
        Part::Turns,
        Part::Connections,
        Part::Sessions,
        Part::Answers,
        Part::Tls,
    ];

    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Part::Received => "received",
            Part::Outboxes => "outboxes",
            Part::Messages => "messages",
            Part::Turns => "turns",
            Part::Connections => "states",
            Part::Sessions => "absent_sessions",
            Part::Answers => "answers",
            Part::Tls => "tls",
        }
    }
}

/// How near the sum is to its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// There is room.
    Calm,
    /// Past three quarters: outboxes fall back to positions.
    Near,
    /// Past seven eighths: clients that hold much get nothing new.
    Full,
    /// Past fifteen sixteenths: connections of clients that hold much end.
    Tight,
    /// Past the limit: connections end, those that hold most first.
    Over,
}

/// The most bytes that a shard draws at a time, so that it draws seldom.
const LOT_BYTES_MAX: usize = 256 << 10;
/// The fewest, however many shards share a small sum.
const LOT_BYTES_MIN: usize = 4 << 10;

/// The sum of the process. Every method may be called from any shard.
#[derive(Debug)]
pub struct Account {
    limit_bytes: AtomicUsize,
    /// Lots of all shards.
    drawn_bytes: AtomicUsize,
    /// Large messages belong to no shard.
    messages_bytes: AtomicUsize,
}

impl Account {
    /// An account with this limit.
    pub fn new(limit_bytes: usize) -> Account {
        Account {
            limit_bytes: AtomicUsize::new(limit_bytes),
            drawn_bytes: AtomicUsize::new(0),
            messages_bytes: AtomicUsize::new(0),
        }
    }

    /// Changes the limit.
    pub fn change(&self, limit_bytes: usize) {
        self.limit_bytes.store(limit_bytes, Relaxed);
    }

    /// The limit.
    pub fn limit_bytes(&self) -> usize {
        self.limit_bytes.load(Relaxed)
    }

    /// Bytes of [`Part::Messages`].
    pub fn messages_bytes(&self) -> usize {
        self.messages_bytes.load(Relaxed)
    }

    /// Large messages that are in no log grew by this many bytes.
    pub fn hold_message(&self, bytes: usize) {
        self.messages_bytes.fetch_add(bytes, Relaxed);
    }

    /// Large messages that are in no log shrank by this many bytes.
    pub fn let_message_go(&self, bytes: usize) {
        self.messages_bytes.fetch_sub(bytes, Relaxed);
    }

    /// How near the sum is to its limit.
    pub fn level(&self) -> Level {
        let limit = self.limit_bytes();
        let used = self.drawn_bytes.load(Relaxed) + self.messages_bytes();
        match used {
            used if used > limit => Level::Over,
            used if used > limit - limit / 16 => Level::Tight,
            used if used > limit - limit / 8 => Level::Full,
            used if used > limit - limit / 4 => Level::Near,
            _ => Level::Calm,
        }
    }
}

/// The account of one shard.
#[derive(Debug)]
pub struct Purse {
    admission: Admission,
    parts: [usize; Part::COUNT],
    held_bytes: usize,
    drawn_bytes: usize,
    floor_bytes: usize,
    lot_bytes: usize,
}

impl Purse {
    /// The account of one of `shards` shards.
    pub fn new(admission: Admission, shards: usize) -> Purse {
        // A quarter of the sum is shared out beforehand, so that a shard works whatever the others hold.
        let share = admission.account.limit_bytes() / 4 / shards.max(1);
        let lot_bytes = (share / 4).clamp(LOT_BYTES_MIN, LOT_BYTES_MAX);
        let floor_bytes = share.min(LOT_BYTES_MAX);
        admission
            .account
            .drawn_bytes
            .fetch_add(floor_bytes, Relaxed);
        Purse {
            admission,
            parts: [0; Part::COUNT],
            held_bytes: 0,
            drawn_bytes: floor_bytes,
            floor_bytes,
            lot_bytes,
        }
    }

    /// Bytes of a part.
    pub fn part(&self, part: Part) -> usize {
        self.parts[part as usize]
    }

    /// Bytes of each part, in the order of [`Part::ALL`].
    pub fn parts(&self) -> [usize; Part::COUNT] {
        self.parts
    }

    /// Bytes of all parts together.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// The part grew by this many bytes.
    pub fn charge(&mut self, part: Part, bytes: usize) {
        self.parts[part as usize] += bytes;
        self.held_bytes += bytes;
        if self.held_bytes > self.drawn_bytes {
            let more = (self.held_bytes - self.drawn_bytes).next_multiple_of(self.lot_bytes);
            self.drawn_bytes += more;
            self.account().drawn_bytes.fetch_add(more, Relaxed);
        }
    }

    /// The part shrank by this many bytes.
    pub fn release(&mut self, part: Part, bytes: usize) {
        debug_assert!(self.parts[part as usize] >= bytes, "{part:?}: {bytes}");
        let bytes = bytes.min(self.parts[part as usize]);
        self.parts[part as usize] -= bytes;
        self.held_bytes -= bytes;
        // One lot is kept for the next charges.
        let needed = self.held_bytes.next_multiple_of(self.lot_bytes) + self.lot_bytes;
        let needed = match self.held_bytes <= self.floor_bytes {
            true => self.floor_bytes,
            false => needed.max(self.floor_bytes),
        };
        if self.drawn_bytes > needed {
            let less = self.drawn_bytes - needed;
            self.drawn_bytes = needed;
            self.account().drawn_bytes.fetch_sub(less, Relaxed);
        }
    }

    /// Something in the part went from `before` bytes to `after`.
    pub fn change(&mut self, part: Part, before: usize, after: usize) {
        if after > before {
            self.charge(part, after - before);
        } else if before > after {
            self.release(part, before - after);
        }
    }

    /// The part holds this many bytes now.
    pub fn set(&mut self, part: Part, bytes: usize) {
        self.change(part, self.part(part), bytes);
    }

    /// Bytes that must be released before this many more still fit below [`Level::Full`].
    pub fn lacks(&self, bytes: usize) -> usize {
        if self.held_bytes + bytes < self.floor_bytes {
            return 0;
        }
        let account = self.account();
        let most = account.limit_bytes() - account.limit_bytes() / 8;
        let used = account.drawn_bytes.load(Relaxed) + account.messages_bytes();
        // The shard needs no further lot for bytes that it has drawn and not used.
        let more = bytes.saturating_sub(self.drawn_bytes - self.held_bytes);
        (used + more).saturating_sub(most)
    }

    /// How near the sum of the process is to its limit, for this shard: calm while the shard holds less than its floor.
    pub fn level(&self) -> Level {
        match self.held_bytes < self.floor_bytes {
            true => Level::Calm,
            false => self.account().level(),
        }
    }

    fn account(&self) -> &Account {
        &self.admission.account
    }
}

impl Drop for Purse {
    fn drop(&mut self) {
        let drawn = self.drawn_bytes;
        self.account().drawn_bytes.fetch_sub(drawn, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::settings::Settings;

    fn purses(limit: usize, shards: usize) -> Vec<Purse> {
        let mut settings = Settings::default();
        settings.limits.memory_bytes = limit;
        let admission = Admission::new(&settings, 7);
        (0..shards)
            .map(|_| Purse::new(admission.clone(), shards))
            .collect()
    }

    use alloc::vec::Vec;

    #[test]
    fn shards_draw_from_one_sum_and_give_all_back() {
        let mut purses = purses(16 << 20, 2);
        assert_eq!(purses[0].level(), Level::Calm);
        purses[0].charge(Part::Outboxes, 13 << 20);
        assert_eq!(purses[0].level(), Level::Near);
        purses[0].charge(Part::Received, 3 << 19);
        assert_eq!(purses[0].level(), Level::Full);
        purses[0].charge(Part::Received, 3 << 18);
        assert_eq!(purses[0].level(), Level::Tight);
        purses[0].charge(Part::Received, 7 << 18);
        assert_eq!(purses[0].level(), Level::Over);
        // A shard that holds little is not concerned; one that holds more is.
        purses[1].charge(Part::Received, 1000);
        assert_eq!(purses[1].level(), Level::Calm);
        purses[1].charge(Part::Received, 1 << 20);
        assert_eq!(purses[1].level(), Level::Over);
        purses[0].release(Part::Outboxes, 13 << 20);
        purses[0].release(Part::Received, 4 << 20);
        purses[1].set(Part::Received, 0);
        assert!(purses.iter().all(|purse| purse.held_bytes() == 0));
        let account = &purses[0].admission.account;
        assert_eq!(account.drawn_bytes.load(Relaxed), 2 * LOT_BYTES_MAX);
        account.hold_message(16 << 20);
        assert_eq!(account.level(), Level::Over);
        account.let_message_go(16 << 20);
        assert_eq!(account.level(), Level::Calm);
    }

    #[test]
    fn many_shards_each_have_a_floor() {
        let mut purses = purses(16 << 20, 226);
        purses[0].charge(Part::Outboxes, 64 << 20);
        purses[225].charge(Part::Received, 16 << 10);
        assert_eq!(purses[0].level(), Level::Over);
        assert_eq!(purses[225].level(), Level::Calm);
    }
}
