//! The limits of a shard's work in one turn. In a turn, the shard processes the inputs that are ready, delivers messages, and then
//! the sockets are polled again. The server uses the defaults. The simulator uses small limits, so that cases that are rare in a
//! server occur often.
//!
//! Words: a *home* is the part of a shard that keeps topics. A *carrier* is a shard with subscribers. A *lane* is the ordered queue of mail
//! from one shard to another. A *page* is a bounded run of past messages in a lane. A *party* is an address or a user.

/// The rows (entries of a table) that are prefetched together: about the number of cache misses that a core can have in flight.
pub(crate) const PREFETCHED: usize = 16;

/// Limits of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnLimits {
    /// The most subscribers that a turn visits before the sockets are polled again. A visit is a write to a socket (2 to 15 microseconds), so the default
    /// takes 0.5 to 4 ms. A turn must be short, because an answer may need several turns, and each may wait for another shard on the same core.
    pub visits_per_turn: u32,
    /// The most steps (see [`crate::base::work`]) of all inputs of a turn together. The end of a turn may take as many again. The default takes about
    /// 0.5 ms, or 2 ms with cold memory. A publish is one or two steps, so a turn handles 2,000 to 4,000 publishes.
    pub steps_per_turn: u32,
    /// The most messages in a page of history. A subscriber that resumes at an old position must not block the lane.
    pub page_messages: usize,
    /// The most bytes in a page of history. A longer message has its own page, and such pages wait in a separate queue
    /// (`home/page_queue.rs`).
    pub page_bytes: usize,
    /// The most log entries that one page of history examines, if it reads by filter or seeks in a long log. An entry that is read by filter takes
    /// several steps, so a page takes up to a third of a turn's steps.
    pub page_entries: usize,
    /// The most topics that one page of an interest snapshot (the topics that have subscribers) examines: a quarter of a turn's
    /// steps.
    pub interest_rows: u32,
    /// Backpressure begins when carriers hold the frames of this many turns: parties with much in flight wait before they publish or subscribe. From
    /// four times this number on, all parties wait. This bounds the memory of messages in flight when carriers fall behind, and the time that a message
    /// waits behind the messages of other parties.
    pub turns_under_way: usize,
    /// The bytes of credit that each publish in flight to a home uses besides the bytes of its message, since the publish delays other clients.
    pub ask_bytes: usize,
    /// A home with at least this many topics and filters prefetches rows for the next publishes. Fewer rows (each has some hundred bytes) stay in the
    /// core's caches, so prefetching would waste 20 ns for each publish.
    pub cold_rows: usize,
    /// The most expired messages and idle topics that a home removes in a turn, besides one for each publish of the turn. The default takes some 100 us.
    pub forgets_per_turn: usize,
    /// The connections that one tick examines. A tick examines more if the table is too large to be walked in a second at this rate. With the default
    /// heartbeat interval, some forty of them are due for a heartbeat, which takes 0.5 ms.
    pub rows_per_tick: u32,
    /// The most connections that one tick ends. The default takes some milliseconds if each connection has a session and subscriptions.
    pub ends_per_tick: usize,
}

impl Default for TurnLimits {
    fn default() -> Self {
        TurnLimits {
            visits_per_turn: 256,
            steps_per_turn: 4096,
            page_messages: 128,
            page_bytes: 64 << 10,
            page_entries: 256,
            interest_rows: 1024,
            turns_under_way: 64,
            ask_bytes: 4 << 10,
            cold_rows: 4096,
            forgets_per_turn: 256,
            rows_per_tick: 2048,
            ends_per_tick: 64,
        }
    }
}
