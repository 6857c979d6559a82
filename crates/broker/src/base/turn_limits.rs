//! The limits of a shard's work in one turn. A *turn* is the work between two polls of the sockets: the shard processes the inputs that are
//! ready, then delivers messages. Each turn may begin with a *tick* (`shard/tick.rs`), the work that time makes due. The server uses the
//! defaults. The simulator uses small limits, so that cases that are rare in a server occur often.
//!
//! Words: a *home* is the part of a shard that keeps topics. A *carrier* is a shard with subscribers. A *lane* is the ordered queue of mail
//! from one shard to another. A *page* is a bounded run of past messages in a lane. A *party* is an address or a user.

/// How many rows (entries of a table) are prefetched together: about the number of cache misses that a core can have in flight.
pub(crate) const PREFETCH_ROWS: usize = 16;

/// Limits of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnLimits {
    /// Limit of the subscribers that a turn visits. A visit is a write to a socket (2 to 15 microseconds), so the default takes 0.5 to 4 ms. A turn must be
    /// short: an answer may need several turns of different shards, and shards on one core wait for each other's turns.
    pub visits_per_turn: u32,
    /// Limit of the steps (units of work, see [`crate::base::work`]) for the inputs of one turn. The end of a turn has the same limit for itself. The
    /// default takes about 0.5 ms, or 2 ms with cold memory. A publish takes at least two steps, so a turn handles at most 2,048 publishes.
    pub steps_per_turn: u32,
    /// Limit of the messages in a page of history. A subscriber that resumes at an old position must not block the lane.
    pub page_messages: usize,
    /// Limit of the bytes in a page of history. A longer message gets a page of its own. These pages wait in a queue of their own
    /// (`home/page_queue.rs`), so that they do not delay the small ones.
    pub page_bytes: usize,
    /// A page of history that reads by filter, or seeks its start in a long log, examines at most this many log entries. An entry costs several steps
    /// there, so one page costs up to a third of a turn's steps.
    pub page_entries: usize,
    /// Limit of the topics that one page of an interest snapshot (the topics that have subscribers) examines: a quarter of a turn's steps.
    pub interest_page_topics: u32,
    /// If carriers are slow, frames pile up. When carriers hold the frames of this many turns, parties with much in flight must wait before they publish or
    /// subscribe; at four times as many, all parties wait. This bounds the memory of messages in flight, and the time that a message waits behind the
    /// messages of other parties.
    pub backpressure_turns: usize,
    /// Each publish in flight to a home uses this many bytes of credit besides the bytes of its message, since a small publish delays other clients too.
    pub publish_credit_bytes: usize,
    /// A home with at least this many topics and filters prefetches rows for the next publishes. Fewer rows (each has some hundred bytes) stay in the
    /// core's caches, so prefetching would waste 20 ns for each publish.
    pub prefetch_from_rows: usize,
    /// In one turn, a home removes one expired message or idle topic for each publish, and at most this many more. The default takes some 100 us.
    pub removals_per_turn: usize,
    /// How many connections one tick examines. It examines more if the table is too large to be walked in a second at this rate. With the default
    /// heartbeat interval, some forty of them are due for a heartbeat, which takes 0.5 ms.
    pub rows_per_tick: u32,
    /// Limit of the connections that one tick ends. The default takes some milliseconds if each connection has a session and subscriptions.
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
            interest_page_topics: 1024,
            backpressure_turns: 64,
            publish_credit_bytes: 4 << 10,
            prefetch_from_rows: 4096,
            removals_per_turn: 256,
            rows_per_tick: 2048,
            ends_per_tick: 64,
        }
    }
}
