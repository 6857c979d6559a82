//! Reads the operator's settings of access, and prepares keys, users and the callback so that they can verify credentials.

use std::sync::Arc;

use super::callback::Callback;
use super::keys::Keys;
use super::users::Users;
use crate::settings::access::Access;

/// All that is needed to verify credentials. It is read once, then shared by all threads.
pub struct CredentialVerifiers {
    pub keys: Keys,
    pub(super) users: Users,
    pub(super) callback: Option<Callback>,
    /// How many seconds an answer is cached.
    pub(super) cache_s: u32,
    pub(super) cache_entries: usize,
    pub(super) questions_max: usize,
    /// Threads that verify passwords.
    pub(super) password_threads: usize,
}

impl CredentialVerifiers {
    /// Reads the settings and the files that they name.
    ///
    /// # Errors
    /// All faults, each with the path of the settings key and the remedy.
    pub fn new(access: &Access) -> Result<CredentialVerifiers, Vec<(String, String)>> {
        let mut errors = Vec::new();
        let keys = Keys::read(access, &mut errors);
        let users = Users::read(access, &mut errors);
        let callback = access.callback.as_ref().and_then(|entry| {
            Callback::new(entry)
                .map_err(|error| errors.push(error))
                .ok()
        });
        if !errors.is_empty() {
            return Err(errors);
        }
        Ok(CredentialVerifiers {
            keys,
            users,
            callback,
            cache_s: access.cache_s,
            cache_entries: access.cache_entries,
            questions_max: access.questions_max,
            password_threads: match access.password_threads {
                0 => default_threads(),
                some => some,
            },
        })
    }
}

/// The default number of threads: a quarter of the cores, since the shards need the rest.
fn default_threads() -> usize {
    crore_net::affinity::cores().len().div_ceil(4)
}

/// Reads the verifiers from these settings.
///
/// # Errors
/// The errors of [`CredentialVerifiers::new`], one on each line.
pub fn credential_verifiers(access: Option<&Access>) -> anyhow::Result<Arc<CredentialVerifiers>> {
    let access = access.cloned().unwrap_or_default();
    CredentialVerifiers::new(&access)
        .map(Arc::new)
        .map_err(|errors| {
            let lines: Vec<String> = errors
                .iter()
                .map(|(path, message)| format!("{path}: {message}"))
                .collect();
            anyhow::anyhow!(lines.join("\n"))
        })
}
