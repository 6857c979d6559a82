//! The answers to questions about credentials: who the client is, or why it was refused.

use crate::base::access::{Digest, Known};
use crate::base::reason::Reason;

/// The verdict on a request's credential; `Ok(None)` is an anonymous client.
pub type Identity = Result<Option<Known>, Reason>;

/// The answer to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The credential in question.
    pub digest: Digest,
    /// The grants, or why the credential was refused.
    pub found: Result<Known, Reason>,
    /// The second, as [`Now::unix_s`](crate::Now::unix_s), until which a shard may reuse the answer without asking again.
    pub believed_until_s: u32,
    /// The round of the question: an answer from before a change of settings is not remembered.
    pub round: u32,
}
