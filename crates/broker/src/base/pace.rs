//! How much one turn does. The server takes the defaults; the simulator makes them small, so that cases that are rare
//! in a server happen all the time.

/// Rows that are read ahead of their use: about as many cache misses as a core has under way at once.
pub(crate) const WARMED: usize = 16;

/// Bounds of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Members visited in one turn before the sockets are looked at again: some 1 to 4 ms, since a visit is a write to a socket, which
    /// takes 2 to 15 microseconds. The answer to a client may cross several turns, each of which may wait for another shard on its core.
    pub visits_per_turn: u32,
    /// Steps (see [`crate::base::work`]) that all inputs of a turn may take together, and its end once more: about half a
    /// millisecond, two where memory is cold. A publish is a step or two, so that some two thousand share a turn.
    pub steps_per_turn: u32,
    /// A page of the past carries at most this many messages, so that one subscriber that resumes
    /// far back does not hold the lane.
    pub page_messages: usize,
    /// And at most this many bytes (one message always fits). Pages with a longer message wait in a queue of their own
    /// (`home/page_queue.rs`).
    pub page_bytes: usize,
    /// Entries that one page of the past looks at, for those who read by filter or look for their place in a long log:
    /// up to a third of a turn's steps, since an entry by filter takes several.
    pub page_visits: usize,
    /// Topics that one page of a snapshot of interest looks at: a quarter of a turn's steps.
    pub interest_rows: u32,
    /// Turns whose frames carriers still hold, past which parties with much under way wait before they publish or subscribe; past four times as
    /// many all do. This bounds the memory of messages under way when carriers fall behind, and the time that a message waits behind the
    /// messages for filters of others.
    pub turns_under_way: usize,
    /// The weight of each publish under way to a home against the credit of its sender, besides its bytes: requests of other clients
    /// stand behind it.
    pub ask_bytes: usize,
    /// Number of topics and filters of a home from which on it reads ahead for the next publishes. Fewer rows (some
    /// hundred bytes each) stay in a core's caches, where reading ahead costs 20 ns a publish for nothing.
    pub cold_rows: usize,
    /// Messages and idle topics that one turn of a home forgets, on top of as many as were published in it: some 100 us.
    pub forgets_per_turn: usize,
    /// Connections that one tick looks at, unless the table is too large to be walked in a second at this pace: with
    /// the default heartbeat some forty of them are due, half a millisecond.
    pub rows_per_tick: u32,
    /// Connections that one tick ends: some milliseconds, where each has a session and subscriptions.
    pub ends_per_tick: usize,
}

impl Default for Pace {
    fn default() -> Self {
        Pace {
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
