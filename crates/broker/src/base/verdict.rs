//! The verifier's answers (verdicts) about credentials: who the client is, or why the credentials are refused.

use crate::base::access::{Digest, VerifiedClient};
use crate::base::reason::Reason;

/// Who sent a request, or why its credentials were refused. `Ok(None)` is a client without credentials.
pub type Identity = Result<Option<VerifiedClient>, Reason>;

/// The verifier's answer to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The digest of the credential.
    pub digest: Digest,
    /// The grants, or why the credential was refused.
    pub found: Result<VerifiedClient, Reason>,
    /// The second until which a shard may cache the answer, as [`Now::unix_s`](crate::Now::unix_s).
    pub believed_until_s: u32,
    /// The generation of the settings at the time of the question. An answer from before a change of the settings is not cached.
    pub settings_generation: u32,
}
