//! Bounds of several settings, with their reasons.

/// The most rows of a table: 32-bit indexes link them, and one index value means "no row".
pub const MAX_ROWS: usize = u32::MAX as usize - 1;

/// The longest wait for a peer, a day: a peer that was silent for longer does not come back.
pub const MAX_WAIT_S: u32 = 86_400;

/// The largest message. No message may take a shard's turn for long, and some work on it cannot be divided: copying it, and writing it as
/// JSON or as an event. At this size the worst content (line ends, each of which becomes seven bytes of an event) takes some 50 ms.
/// With 64 MiB it would take 350 ms and half a gigabyte.
pub const MAX_MESSAGE_BYTES: usize = 8 << 20;

/// The longest name of a topic: every frame for the topic contains it.
pub const MAX_TOPIC_BYTES: usize = 1_000;

/// The most keys of a topic: a subscriber that reads a part of the latest values makes the server walk all of them.
pub const MAX_KEYS: u32 = 1_000_000;

/// The most members of a topic that are listed: a member that leaves changes the numbers of all members after it.
pub const MAX_MEMBERS: u32 = 100_000;

/// The most bytes of one topic's log or of one connection's outbox, which are counted in 32 bits.
pub const MAX_OUTBOX_BYTES: usize = 4095 << 20;
