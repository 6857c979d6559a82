//! Bounds of several settings, with their reasons.

/// Rows are linked by 32-bit indices, one value of which means none.
pub const MAX_ROWS: usize = u32::MAX as usize - 1;

/// A day: a peer that was silent for longer is not coming back.
pub const MAX_WAIT_S: u32 = 86_400;

/// One message must never take a shard's turn for long, and some of the work on it is done in one go: it is copied, and made into JSON or an
/// event. At this size the worst bytes (line ends, which become seven bytes of an event each) take some 50 ms; those of 64 MiB take 350 ms,
/// and half a gigabyte.
pub const MAX_MESSAGE_BYTES: usize = 8 << 20;

/// A name stands in every frame that carries its topic.
pub const MAX_TOPIC_BYTES: usize = 1_000;

/// A whole snapshot is walked for a subscriber that reads a part of it.
pub const MAX_KEYS: u32 = 1_000_000;

/// Bytes of one topic or connection are counted in 32 bits.
pub const MAX_OUTBOX_BYTES: usize = 4095 << 20;
