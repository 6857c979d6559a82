//! Identifies clients: the shards' questions about credentials are answered here, on threads of their own.
//!
//! [`Checks`] holds the operator's settings, read and ready to verify with: [`keys`] for tokens, [`users`] for passwords,
//! [`callback`] for an endpoint of the operator's. [`revocations`] is what counts no more. [`verifier`] takes the shards' questions, keeps one flight per credential and
//! the answers for a while, and hands the work to its threads. The shards decide what the rights permit.
//!
//! Invariants: a question that was taken is answered once; a check that fails refuses the client; no secret is logged.

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

/// Starts the threads, also where nothing is decided yet: a reload may change that.
///
/// # Errors
/// The settings cannot be read any more, or there is no thread to be had.
pub fn start(
    access: Option<&Access>,
    revoked: Arc<Revoked>,
    shards: Vec<VerdictSender>,
) -> anyhow::Result<(Verifier, Vec<QuestionSender>)> {
    Verifier::start(checks(access)?, revoked, shards)
}
