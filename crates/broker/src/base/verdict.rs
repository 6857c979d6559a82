//! The verifier's answers about credentials: who the client is, or why it is refused.

use crate::base::access::{Digest, Known};
use crate::base::reason::Reason;

/// The verdict on a request's credential; `Ok(None)` is an anonymous client.
pub type Identity = Result<Option<Known>, Reason>;

/// The verifier's answer to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The credential.
    pub digest: Digest,
    /// The grants, or why the credential was refused.
    pub found: Result<Known, Reason>,
    /// A shard may cache the answer until this second, as [`Now::unix_s`](crate::Now::unix_s).
    pub believed_until_s: u32,
    /// The round of the question. An answer from before a change of the settings is not cached.
    pub round: u32,
}
