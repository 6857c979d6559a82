//! Sets up TLS of the data ports: reads the files that the settings name, at the start and on a reload, for `crore_net::stream`. An error
//! names the settings key and the remedy.
//!
//! Deliberately not here: watching the files. An operator who replaces a file reloads the settings (SIGHUP, the API).

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use crore_net::stream::{self, Clients, ConfigError, Handle, Source, TlsStreams};
use crore_shard_loop::{FailureCounts, FailureLog};

use crate::settings::file::File;
use crate::settings::tls::{ClientCertificates, Tls, TlsVersion};

/// The parts of TLS that the shards share.
#[derive(Clone, Debug)]
pub struct Shared {
    /// The certificate and key for new handshakes.
    pub handle: Arc<Handle>,
    limits: stream::Limits,
    failure_counts: Arc<FailureCounts>,
}

impl Shared {
    /// The TLS of a shard.
    pub fn of_shard(&self) -> crore_shard_loop::Tls {
        crore_shard_loop::Tls {
            streams: Box::new(TlsStreams::new(self.handle.clone(), self.limits)),
            failures: FailureLog::new(self.failure_counts.clone()),
        }
    }

    /// Reads the files again. The new certificates apply to handshakes that begin from now on.
    ///
    /// # Errors
    /// A file cannot be read or does not parse, or key and certificate do not match. Then the former certificates stay in use.
    pub fn reload(&self, file: &File) -> anyhow::Result<()> {
        let replaced = self.handle.replace(read(file)?);
        replaced.map_err(|error| wrong(&file.tls, &error))
    }
}

/// Reads the files. None if TLS is off.
///
/// # Errors
/// A file cannot be read or does not parse, or key and certificate do not match.
pub fn open(file: &File) -> anyhow::Result<Option<Shared>> {
    let (tls, shards) = (&file.tls, file.shards);
    if !tls.is_on() {
        return Ok(None);
    }
    let handle = Handle::new(read(file)?).map_err(|error| wrong(tls, &error))?;
    // For each direction an eighth of the shard's part of limits.memory_bytes, but at least 1 MiB: room for the records of some
    // connections.
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
        failure_counts: Arc::default(),
    }))
}

fn read(settings: &File) -> anyhow::Result<Source> {
    let tls = &settings.tls;
    let clients = match (tls.requests_client_certificates(), tls.client_certificates) {
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
        only_13: tls.min_version == TlsVersion::Tls13,
        h2: settings.http.h2,
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
    let (key, path, message, remedy) = match error {
        ConfigError::Certificate(message) => (
            "tls.certificate",
            &tls.certificate,
            message,
            "name a PEM file with the certificate and those between it and a root",
        ),
        ConfigError::Key(message) => (
            "tls.key",
            &tls.key,
            message,
            "name a PEM file with a private key without a passphrase",
        ),
        ConfigError::Pair(message) => (
            "tls.key",
            &tls.key,
            message,
            "name the key of the first certificate in tls.certificate",
        ),
        ConfigError::Clients(message) => (
            "tls.client_ca",
            &tls.client_ca,
            message,
            "name a PEM file with the roots of clients' certificates",
        ),
        ConfigError::Other(message) => return anyhow::anyhow!("tls: {message}"),
    };
    anyhow::anyhow!("{key}: {}: {message}; {remedy}", path.display())
}
