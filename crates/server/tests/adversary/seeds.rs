//! Seeds that once found a fault. Every run of the tests plays their first scripts again.
//!
//! A change of the generators changes the meaning of a seed, so it needs new seeds. Find them with `--server` and a build from before the
//! fault was fixed.

/// The first scripts of a seed, and the kinds of attackers that played.
pub struct Kept {
    pub seed: u64,
    /// The kinds of attackers that played.
    pub only: &'static str,
    pub scripts: u64,
}

const fn kept(seed: u64, only: &'static str, scripts: u64) -> Kept {
    Kept {
        seed,
        only,
        scripts,
    }
}

pub const KEPT: &[Kept] = &[
    // A HEAD for an event stream of two topics, then the end of the connection: an index panic.
    kept(1, "several", 10),
    // A large retained message for each of hundreds of SUBSCRIBEs in one write.
    kept(1, "retained", 4),
    // 32 large messages as JSON in one answer.
    kept(1, "pages", 1),
    // A copy of a large kept message for each of two hundred subscribers that read nothing: too much memory.
    kept(1, "deaf-crowd", 1),
    // Bodies that never complete: honest requests in two pieces were refused with 503.
    kept(1, "half-posts", 6),
    // The same fault, by bytes that are pipelined after long-polls.
    kept(1, "pipelined-junk", 1),
    // The server sent acknowledgements after a Close frame.
    kept(1, "last-word", 6),
    // The server read the body of a refused request as another request.
    kept(1, "turned-away", 2),
    // Copies of messages for sessions that acknowledge nothing: too much memory.
    kept(2, "unacknowledged", 30),
];
