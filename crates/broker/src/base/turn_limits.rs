//! The limits of work in one turn. The server uses the defaults. The simulator uses small ones, so that cases that are rare in a server occur often.

/// Rows that are prefetched together: about the number of cache misses that a core can have in flight.
pub(crate) const PREFETCHED: usize = 16;

/// Limits of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnLimits {
    /// Members visited in one turn before the sockets are polled again. A visit is a write to a socket (2 to 15 microseconds), so this is 1 to 4 ms. It
    /// must be short, because the answer to a client may need several turns, and each may wait for another shard on its core.
    pub visits_per_turn: u32,
    /// Steps (see [`crate::base::work`]) for all inputs of a turn together, and as many again for its end. About 0.5 ms, or 2 ms with cold memory. A
    /// publish is one or two steps, so a turn handles some two thousand.
    pub steps_per_turn: u32,
    /// Most messages in a page of history. A subscriber that resumes far back must not block the lane.
    pub page_messages: usize,
    /// Most bytes in a page of history; one message always fits. Pages with a longer message wait in a separate queue (`home/page_queue.rs`).
    pub page_bytes: usize,
    /// Log entries that one page of history examines, when it reads by filter or seeks in a long log. Up to a third of a turn's steps, since an entry
    /// that is read by filter takes several.
    pub page_visits: usize,
    /// Topics that one page of an interest snapshot examines: a quarter of a turn's steps.
    pub interest_rows: u32,
    /// Backpressure begins when carriers hold the frames of more turns than this: parties with much in flight wait before they publish or subscribe.
    /// Past four times as many, all parties wait. This bounds the memory of messages in flight when carriers fall behind, and the time that a message
    /// waits behind messages for other parties' filters.
    pub turns_under_way: usize,
    /// Credit that each publish in flight to a home uses besides its bytes, since it delays requests of other clients.
    pub ask_bytes: usize,
    /// A home with at least this many topics and filters prefetches rows for the next publishes. Fewer rows (some hundred bytes each) stay in the
    /// core's caches, and prefetching would waste 20 ns a publish.
    pub cold_rows: usize,
    /// Expired messages and idle topics that a home removes in a turn, besides one for each publish of the turn: some 100 us.
    pub forgets_per_turn: usize,
    /// Connections that one tick examines; more if the table is too large to be walked in a second at this rate. With the default heartbeat some forty
    /// of them are due, which takes 0.5 ms.
    pub rows_per_tick: u32,
    /// Connections that one tick ends: some milliseconds, if each has a session and subscriptions.
    pub ends_per_tick: usize,
}

impl Default for TurnLimits {
    fn default() -> Self {
        TurnLimits {
            visits_per_turn: 256,
            steps_per_turn: 4096,
            page_messages: 128,
            page_bytes: 64 << 10,
            page_visits: 256,
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
