//! Authentication: verifies the credentials of clients on separate threads, and answers the shards that ask.
//!
//! [`CredentialVerifiers`] has the operator's settings in a form that can verify: [`keys`] for tokens, [`users`] for passwords,
//! [`callback`] for an endpoint of the operator. [`revocations`] lists the tokens and users that are refused before they expire. The
//! [`verifier`] takes the questions of the shards, verifies each credential once, and caches the answers for a while. Deliberately not
//! here: authorization. The shards decide what the rights permit.
//!
//! Invariants: each accepted question gets one answer; a check that fails refuses the client; no secret is logged.

pub mod algorithm;
mod callback;
mod claims;
mod credential_verifiers;
pub mod jobs;
mod jwks;
pub mod jwt;
pub mod keys;
pub mod public;
pub mod pusher_apps;
mod remote_keys;
pub mod revocations;
pub mod secret;
pub mod threads;
mod users;
mod verifier;

use std::sync::Arc;

use crore_broker::access::Revoked;

use crate::settings::access::Access;
pub use credential_verifiers::{CredentialVerifiers, credential_verifiers};
pub use verifier::{QuestionSender, VerdictSender, Verifier};

/// Starts the verifier. It starts without `[access]` too, since a reload may add that section.
///
/// # Errors
/// The settings or their files cannot be read, or a thread cannot be started.
pub fn start(
    access: Option<&Access>,
    revoked: Arc<Revoked>,
    shards: Vec<VerdictSender>,
) -> anyhow::Result<(Verifier, Vec<QuestionSender>)> {
    Verifier::start(credential_verifiers(access)?, revoked, shards)
}
