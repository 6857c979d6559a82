//! TLS of the data ports: reads the files that the settings name, at the start and on a reload, for `crore_net::stream`. An error names the key and
//! the remedy.
//!
//! Deliberately not here: watching the files. The operator who replaces them reloads (SIGHUP, the API).

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use anyhow::Context as _;
use crore_net::stream::{self, Clients, ConfigError, Handle, Source, Streams, Trouble};

use crate::settings::file::File;
use crate::settings::tls::{ClientCertificates, Tls, Version};

/// Least time between two log lines with the same reason, for all shards together.
const LOG_EVERY_S: u32 = 60;

/// The parts of TLS that the shards share.
#[derive(Clone, Debug)]
pub struct Shared {
    /// The certificate and key for new handshakes.
    pub handle: Arc<Handle>,
    limits: stream::Limits,
    reasons: Arc<[Reason; Trouble::COUNT]>,
}

/// A reason for ending connections.
#[derive(Debug, Default)]
struct Reason {
    /// Connections that were ended for it since the start, counted when a shard logs.
    count: AtomicU64,
    /// The second until which it is not logged again.
    quiet_until_s: AtomicU32,
}

impl Shared {
    /// The TLS connections of a shard.
    pub fn streams(&self) -> Box<Streams> {
        Box::new(Streams::new(self.handle.clone(), self.limits))
    }

    /// The log of failures of a shard.
    pub fn failure_log(&self) -> FailureLog {
        FailureLog {
            reasons: self.reasons.clone(),
            counted: [0; Trouble::COUNT],
        }
    }

    /// Reads the files again, for handshakes that begin from now on.
    ///
    /// # Errors
    /// A file cannot be read or does not parse, or key and certificate do not match. Then the former ones stay in use.
    pub fn reload(&self, tls: &Tls) -> anyhow::Result<()> {
        let replaced = self.handle.replace(read(tls)?);
        replaced.map_err(|error| wrong(tls, &error))
    }
}

/// Reads the files; none if TLS is off.
///
/// # Errors
/// A file cannot be read or does not parse, or key and certificate do not match.
pub fn open(file: &File) -> anyhow::Result<Option<Shared>> {
    let (tls, shards) = (&file.tls, file.shards);
    if !tls.is_on() {
        return Ok(None);
    }
    let handle = Handle::new(read(tls)?).map_err(|error| wrong(tls, &error))?;
    // For each direction an eighth of the sum, but at least room for the records of some connections.
    let tls_bytes = (file.limits.memory_bytes / 8 / shards.max(1)).max(1 << 20);
    let limits = stream::Limits {
        handshakes_max: (tls.handshakes_max as usize).div_ceil(shards),
        receive_bytes_max: tls_bytes,
        send_bytes_max: tls_bytes,
        required: tls.required,
        proxied: file.http.proxy_protocol,
    };
    Ok(Some(Shared {
        handle,
        limits,
        reasons: Arc::default(),
    }))
}

fn read(tls: &Tls) -> anyhow::Result<Source> {
    let clients = match (tls.asks_clients(), tls.client_certificates) {
        (false, _) => None,
        (true, ClientCertificates::Optional) => Some(Clients::Optional),
        (true, ClientCertificates::Required) => Some(Clients::Required),
    };
    Ok(Source {
        certificate: file("tls.certificate", &tls.certificate)?,
        key: file("tls.key", &tls.key)?,
        clients: clients
            .map(|clients| file("tls.client_ca", &tls.client_ca).map(|roots| (roots, clients)))
            .transpose()?,
        only_13: tls.min_version == Version::Tls13,
    })
}

/// Reads the file that the setting `key` names.
pub fn file(key: &str, path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| {
        let path = path.display();
        format!("{key}: {path} cannot be read; name a file that this user may read")
    })
}

fn wrong(tls: &Tls, error: &ConfigError) -> anyhow::Error {
    let (key, path, what, remedy) = match error {
        ConfigError::Certificate(what) => (
            "tls.certificate",
            &tls.certificate,
            what,
            "name a PEM file with the certificate and those between it and a root",
        ),
        ConfigError::Key(what) => (
            "tls.key",
            &tls.key,
            what,
            "name a PEM file with a private key without a passphrase",
        ),
        ConfigError::Pair(what) => (
            "tls.key",
            &tls.key,
            what,
            "name the key of the first certificate in tls.certificate",
        ),
        ConfigError::Clients(what) => (
            "tls.client_ca",
            &tls.client_ca,
            what,
            "name a PEM file with the roots of clients' certificates",
        ),
        ConfigError::Other(what) => return anyhow::anyhow!("tls: {what}"),
    };
    anyhow::anyhow!("{key}: {}: {what}; {remedy}", path.display())
}

/// Logs why a shard ended TLS connections. The shards share the time of the last line for each reason.
pub struct FailureLog {
    reasons: Arc<[Reason; Trouble::COUNT]>,
    /// What this shard has added to the count of each reason.
    counted: [u64; Trouble::COUNT],
}

impl FailureLog {
    /// Logs new failures: each reason once in [`LOG_EVERY_S`], with the remedy.
    pub fn log(&mut self, tls: &mut Streams, now_s: u32) {
        let stats = tls.stats();
        for (trouble, what) in tls.take_troubles() {
            let reason = &self.reasons[trouble as usize];
            let counted = &mut self.counted[trouble as usize];
            let new = stats.of(trouble) - *counted;
            *counted += new;
            let since_start = reason.count.fetch_add(new, Relaxed) + new;
            let until_s = reason.quiet_until_s.load(Relaxed);
            let next_s = now_s + LOG_EVERY_S;
            // If several shards are here at once, only one of them logs.
            let mine = || {
                let quiet = &reason.quiet_until_s;
                quiet.compare_exchange(until_s, next_s, Relaxed, Relaxed)
            };
            if now_s < until_s || mine().is_err() {
                continue;
            }
            let (reason, remedy) = (trouble.name(), remedy(trouble));
            tracing::warn!(
                reason,
                since_start,
                "TLS: a connection was ended: {what}; {remedy}"
            );
        }
    }
}

fn remedy(trouble: Trouble) -> &'static str {
    match trouble {
        Trouble::Garbage => "see who speaks something else than TLS to this port",
        Trouble::Incompatible => {
            "clients need TLS 1.2 with ECDHE, or 1.3 (tls.min_version), and http/1.1 or mqtt if they use ALPN"
        }
        Trouble::Certificate => {
            "clients must show a certificate that leads to tls.client_ca (tls.client_certificates)"
        }
        Trouble::Distrust => {
            "clients must trust the root of tls.certificate, whose file also holds those in between, and ask by a name in it"
        }
        Trouble::Gone => "probes of the port do this, and clients that gave up",
        Trouble::Slow => "raise timeouts.head_s if clients are that far away",
        Trouble::Evicted => {
            "raise tls.handshakes_max, or keep those away who leave handshakes hanging"
        }
        Trouble::TooLong => "see who says more than a handshake needs",
        Trouble::Internal => "`crore serve --check` reads the files of [tls] again",
        Trouble::Renegotiation => "the client must not ask for it; with TLS 1.3 it cannot",
        Trouble::Record => "see what changes bytes on their way, or which client is broken",
        Trouble::Room => "raise limits.memory_bytes",
        Trouble::Key => "the client has only to come again; with TLS 1.3 keys are changed",
        Trouble::Plain => "clients need https://, wss:// or mqtts://, or tls.required must be off",
    }
}
