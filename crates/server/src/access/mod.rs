//! Authentication: answers the shards' questions about credentials, on threads of its own.
//!
//! [`Checks`] are the operator's settings, ready to verify with: [`keys`] for tokens, [`users`] for passwords, [`callback`] for an endpoint of
//! the operator. [`revocations`] lists the tokens and users that are refused before their end. The [`verifier`] takes the questions,
//! verifies each credential once, and caches the answers for a while. Deliberately not here: authorization. The shards decide what the rights permit.
//!
//! Invariants: an accepted question is answered once; a check that fails refuses the client; no secret is logged.

pub mod algorithm;
mod callback;
mod checks;
mod claims;
mod endpoint;
mod jobs;
mod jwks;
pub mod jwt;
pub mod keys;
pub mod public;
mod remote_keys;
pub mod revocations;
pub mod secret;
mod threads;
mod users;
mod verifier;

use std::sync::Arc;

use crore_broker::access::Revoked;

use crate::settings::access::Access;
pub use checks::{Checks, checks};
pub use verifier::{QuestionSender, VerdictSender, Verifier};

/// Starts the verifier, also without settings of access, since a reload may bring some.
///
/// # Errors
/// The settings cannot be read any more, or the system starts no thread.
pub fn start(
    access: Option<&Access>,
    revoked: Arc<Revoked>,
    shards: Vec<VerdictSender>,
) -> anyhow::Result<(Verifier, Vec<QuestionSender>)> {
    Verifier::start(checks(access)?, revoked, shards)
}
