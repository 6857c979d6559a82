//! Fetches keys that an issuer publishes at a URL, as a JWKS (RFC 7517).
//!
//! Each set has a thread that fetches it: at the start, every `refresh_s`, and when a token names a `kid` that no key has, since the issuer
//! may have begun to use a new key. Anybody can make up a `kid`, so these additional fetches are at least [`REFETCH_AFTER`] apart. While
//! fetches fail, the keys of the last good answer stay in use.
//!
//! Invariants: no lock is held during a fetch; a secret (`oct`) is never taken from a URL, since everyone who can read the URL could sign
//! tokens.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jsonwebtoken::Algorithm;

use super::algorithm::{FILE_BYTES_MAX, Key, algorithm, not_offered};
use super::jwks;
use super::threads::spawn;
use crate::http_client::endpoint::{Endpoint, EndpointSettings, Request};
use crate::http_client::http::Connection;
use crate::settings::access::Key as Entry;

/// The minimum time between two fetches because of an unknown `kid`, and the time before a failed fetch is retried.
const REFETCH_AFTER: Duration = Duration::from_secs(10);
/// The timeout of a fetch.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The keys at one URL. Dropping this value ends the thread that fetches them.
pub struct RemoteKeys(Arc<Shared>);

struct Shared {
    endpoint: Endpoint,
    entry: Entry,
    only: Option<Algorithm>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The keys of the last good answer; empty before the first one.
    keys: Arc<[Key]>,
    /// When the last fetch ended, and whether it succeeded.
    fetched: Option<(Instant, bool)>,
    /// When an unknown `kid` last caused a fetch.
    requested: Option<Instant>,
    /// Whether a fetch is due or in progress.
    pending: bool,
    is_over: bool,
}

impl RemoteKeys {
    /// The keys that an entry with a `url` names. Nothing is fetched yet.
    ///
    /// # Errors
    /// The last part of the settings key, such as `.url`, and what is wrong with its value.
    pub fn new(entry: &Entry) -> Result<RemoteKeys, (&'static str, String)> {
        let settings = EndpointSettings {
            name: "the JWKS",
            url: &entry.url,
            url_key: ".url",
            ca: entry.ca.as_deref(),
            ca_key: ".ca",
            public_only: false,
        };
        let only = match entry.alg.as_str() {
            "" => None,
            name => Some(algorithm(name).ok_or_else(|| (".alg", not_offered(name)))?),
        };
        if only == Some(Algorithm::HS256) {
            let message = "HS256 is signed with a secret, and no secret is read from a URL; name it with `file`";
            return Err((".alg", message.to_string()));
        }
        Ok(RemoteKeys(Arc::new(Shared {
            endpoint: Endpoint::new(&settings, TIMEOUT)?,
            entry: entry.clone(),
            only,
            state: Mutex::default(),
            changed: Condvar::new(),
        })))
    }

    /// Starts the thread, which calls `fetched` after each fetch. Until the first good answer, the keys of the same entry in `former` are
    /// used.
    pub fn start(
        &self,
        former: &[RemoteKeys],
        fetched: impl Fn() + Send + 'static,
    ) -> std::io::Result<()> {
        let same = former.iter().find(|it| it.0.entry == self.0.entry);
        if let Some(keys) = same.map(RemoteKeys::keys) {
            self.0.state().keys = keys;
        }
        self.0.state().pending = true;
        let shared = Arc::clone(&self.0);
        spawn("access-jwks", move || shared.run(&fetched))
    }

    /// Fetches once, now. Blocks.
    pub fn fetch(&self) {
        self.0.fetch(&mut None);
    }

    /// The keys of the last good answer.
    pub fn keys(&self) -> Arc<[Key]> {
        Arc::clone(&self.0.state().keys)
    }

    /// Whether the issuer's present keys are unknown, because the last fetch failed or no fetch has ended yet.
    pub fn is_unknown(&self) -> bool {
        !self.0.state().fetched.is_some_and(|(_, good)| good)
    }

    /// Whether a fetch is due or in progress.
    pub fn is_pending(&self) -> bool {
        self.0.state().pending
    }

    /// Requests a fetch because of an unknown `kid`. Returns true if a fetch is due or in progress. Otherwise the last such request was
    /// less than [`REFETCH_AFTER`] ago, and the keys stay as they are.
    pub fn request(&self) -> bool {
        let mut state = self.0.state();
        let is_due = state
            .requested
            .is_none_or(|last| last.elapsed() >= REFETCH_AFTER);
        if !state.pending && is_due {
            state.requested = Some(Instant::now());
            state.pending = true;
            self.0.changed.notify_all();
        }
        state.pending
    }
}

impl Drop for RemoteKeys {
    fn drop(&mut self) {
        self.0.state().is_over = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The body of the thread: fetches whenever a fetch is due.
    fn run(&self, fetched: &impl Fn()) {
        let mut connection = None;
        while self.wait() {
            self.fetch(&mut connection);
            fetched();
        }
    }

    /// Waits until a fetch is due. Returns false when the keys are dropped.
    fn wait(&self) -> bool {
        let mut state = self.state();
        loop {
            if state.is_over || state.pending {
                return !state.is_over;
            }
            let Some((last, is_good)) = state.fetched else {
                return true;
            };
            let pause = match is_good {
                true => Duration::from_secs(u64::from(self.entry.refresh_s)),
                false => REFETCH_AFTER,
            };
            let left = pause.saturating_sub(last.elapsed());
            if left.is_zero() {
                state.pending = true;
                return true;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn fetch(&self, connection: &mut Option<Connection>) {
        let read = self.read(connection);
        let mut state = self.state();
        state.fetched = Some((Instant::now(), read.is_ok()));
        state.pending = false;
        match read {
            Ok(keys) => state.keys = keys,
            Err(reason) => {
                let kept = state.keys.len();
                drop(state);
                self.endpoint.log_failure(&format!(
                    "{reason}; {kept} keys of an earlier answer stay in use"
                ));
            }
        }
    }

    fn read(&self, connection: &mut Option<Connection>) -> Result<Arc<[Key]>, String> {
        let request = Request {
            method: "GET",
            headers: &[
                ("Accept", "application/jwk-set+json, application/json"),
                ("Accept-Encoding", "identity"),
            ],
            body: None,
            answer_bytes_max: FILE_BYTES_MAX as usize,
        };
        let (head, body) = self.endpoint.exchange(&request, connection)?;
        match head.status {
            200 => {}
            status @ 300..=399 => {
                let to = head.header("location").unwrap_or("an unknown place");
                let to = to.escape_debug();
                return Err(format!(
                    "it redirects ({status}) to {to}, and redirects are not followed; name the URL that answers with 200"
                ));
            }
            status => return Err(format!("it answers with status {status}, not 200")),
        }
        let kid = (!self.entry.kid.is_empty()).then_some(self.entry.kid.as_str());
        let mut keys = jwks::keys(&body, self.only, kid)?;
        keys.retain(|key| key.algorithm != Algorithm::HS256);
        match keys.is_empty() {
            true => Err("it has only secrets, and no secret is read from a URL".to_string()),
            false => Ok(keys.into()),
        }
    }
}
