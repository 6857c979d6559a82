//! Seeds that once found something, whose first scripts every run of the tests plays again.
//!
//! The meaning of a seed changes with the generators: a change of those needs new seeds, to be found with `--server` and a
//! build from before the fault was mended.

/// The first scripts of a seed.
pub struct Kept {
    pub seed: u64,
    /// Which kinds of attackers played.
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
    // HEAD of an event stream of two topics, then the end of the connection: an index panic.
    kept(1, "several", 10),
    // A large retained message for each of hundreds of SUBSCRIBEs in one write.
    kept(1, "retained", 4),
    // 32 large messages as JSON in one answer.
    kept(1, "pages", 1),
    // A copy of a large kept message for each of two hundred subscribers that read nothing.
    kept(1, "deaf-crowd", 1),
    // Bodies that do not end: honest requests in two pieces got 503.
    kept(1, "half-posts", 6),
    // The same by what is pipelined behind long-polls.
    kept(1, "pipelined-junk", 1),
    // Acknowledgements behind a Close frame.
    kept(1, "last-word", 6),
    // The body of a request that was turned away, read as another request.
    kept(1, "turned-away", 2),
    // Copies for sessions that acknowledge nothing.
    kept(2, "unacknowledged", 30),
];
