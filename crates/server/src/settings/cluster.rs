//! `[cluster]`: where the servers of NATS are that keep the log of several nodes, and who this node is there.

use std::path::PathBuf;
use std::time::Duration;

use crore_nats::Credentials;
use serde::{Deserialize, Serialize};

use super::access::Secret;
use super::problems::{Check, ranges};
use super::units::size;

/// A name stands in names of streams and subjects.
const MAX_NAME_BYTES: usize = 32;
/// JetStream has no more.
const MAX_REPLICAS: usize = 5;
/// Less than this would hold a few batches of each partition.
const MIN_HISTORY_BYTES: usize = 64 << 20;
/// Less than this would write a checkpoint for every few batches.
const MIN_CHECKPOINT_BYTES: usize = 1 << 20;
/// A hundred years.
const MAX_HISTORY_AGE_S: u32 = 3_155_760_000;
/// Batches that are read and not applied yet: as much as a shard applies in well under a second.
const BACKLOG_BYTES: usize = 32 << 20;
/// How long a start waits for servers of NATS that start, too.
const PATIENCE: Duration = Duration::from_secs(60);

/// The section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cluster {
    /// Servers of NATS; empty: this server is no node of a cluster.
    pub urls: Vec<String>,
    /// The cluster's name: all its nodes have the same, and no other cluster over these servers has it.
    pub name: String,
    pub user: String,
    pub password: Secret,
    pub token: Secret,
    /// A file with a JWT and a seed.
    pub credentials: PathBuf,
    /// The seed of an nkey.
    pub nkey: Secret,
    /// How many servers of NATS keep each batch.
    pub replicas: usize,
    /// Bytes that the log keeps; the oldest batches go first.
    #[serde(with = "size")]
    pub history_bytes: usize,
    /// Bytes of the log behind the checkpoints with which others are written.
    #[serde(with = "size")]
    pub checkpoint_bytes: usize,
    /// Seconds that a batch is kept.
    pub history_age_s: u32,
    /// URLs at which servers of NATS tell about themselves.
    pub monitoring: Vec<String>,
    /// PEM file: the roots of NATS' certificates; empty: those of the system.
    pub tls_ca: PathBuf,
    /// PEM files: our certificate and its key; empty: we show none.
    pub tls_certificate: PathBuf,
    pub tls_key: PathBuf,
    /// Whether a connection without TLS is refused.
    pub tls_required: bool,
}

impl Default for Cluster {
    fn default() -> Self {
        Cluster {
            urls: Vec::new(),
            name: "main".to_string(),
            user: String::new(),
            password: Secret::default(),
            token: Secret::default(),
            credentials: PathBuf::new(),
            nkey: Secret::default(),
            replicas: 3,
            history_bytes: 4 << 30,
            checkpoint_bytes: 512 << 20,
            history_age_s: 0,
            monitoring: Vec::new(),
            tls_ca: PathBuf::new(),
            tls_certificate: PathBuf::new(),
            tls_key: PathBuf::new(),
            tls_required: false,
        }
    }
}

impl Cluster {
    /// Whether this server is a node of a cluster.
    pub fn is_on(&self) -> bool {
        !self.urls.is_empty()
    }

    /// As the log in NATS wants them.
    pub fn nats(&self) -> crore_nats::Settings {
        let file = |path: &PathBuf| (!path.as_os_str().is_empty()).then(|| path.clone());
        crore_nats::Settings {
            urls: self.urls.clone(),
            name: self.name.clone(),
            credentials: self.who(),
            tls: crore_nats::Tls {
                ca: file(&self.tls_ca),
                identity: file(&self.tls_certificate).zip(file(&self.tls_key)),
                required: self.tls_required,
            },
            replicas: self.replicas,
            history_bytes: self.history_bytes as u64,
            history_age: Duration::from_secs(self.history_age_s.into()),
            monitoring: self.monitoring.clone(),
            backlog_bytes_max: BACKLOG_BYTES,
            patience: PATIENCE,
        }
    }

    fn who(&self) -> Credentials {
        if !self.user.is_empty() {
            Credentials::User(self.user.clone(), self.password.0.clone())
        } else if !self.token.0.is_empty() {
            Credentials::Token(self.token.0.clone())
        } else if !self.credentials.as_os_str().is_empty() {
            Credentials::File(self.credentials.clone())
        } else if !self.nkey.0.is_empty() {
            Credentials::Nkey(self.nkey.0.clone())
        } else {
            Credentials::None
        }
    }

    /// Checks the values.
    pub fn check(&self, check: &mut Check) {
        for (index, url) in self.urls.iter().enumerate() {
            if url.contains('@') {
                let what = "has a user in it, which others would see; write cluster.user and cluster.password";
                check.fail(format!("cluster.urls[{}]", index + 1), what);
                continue;
            }
            let host = ["nats://", "tls://"]
                .iter()
                .find_map(|scheme| url.strip_prefix(scheme));
            if host.is_none_or(str::is_empty) {
                let what = format!(
                    "`{url}` is no server of NATS; write such as \"nats://10.0.0.1:4222\", or \"tls://...\""
                );
                check.fail(format!("cluster.urls[{}]", index + 1), what);
            }
        }
        let is_plain = |letter: char| {
            letter.is_ascii_lowercase() || letter.is_ascii_digit() || "-_".contains(letter)
        };
        if self.name.is_empty()
            || self.name.len() > MAX_NAME_BYTES
            || !self.name.chars().all(is_plain)
        {
            let what = format!(
                "`{}` is not a name; write 1 to {MAX_NAME_BYTES} lower-case letters, digits, `-` and `_`",
                self.name
            );
            check.fail("cluster.name", what);
        }
        for (index, url) in self.monitoring.iter().enumerate() {
            if !url.starts_with("http://") {
                let what =
                    format!("`{url}` is no monitoring URL; write such as \"http://10.0.0.1:8222\"");
                check.fail(format!("cluster.monitoring[{}]", index + 1), what);
            }
        }
        self.check_credentials(check);
        ranges! { check, "cluster", self;
            replicas: 1..=MAX_REPLICAS;
            history_bytes ["no limit"]: MIN_HISTORY_BYTES..=isize::MAX as usize;
            checkpoint_bytes: MIN_CHECKPOINT_BYTES..=isize::MAX as usize;
            history_age_s ["no limit"]: 60..=MAX_HISTORY_AGE_S;
        }
    }

    fn check_credentials(&self, check: &mut Check) {
        let ways = [
            ("user", !self.user.is_empty()),
            ("token", !self.token.0.is_empty()),
            ("credentials", !self.credentials.as_os_str().is_empty()),
            ("nkey", !self.nkey.0.is_empty()),
        ];
        let mut used = ways.iter().filter(|(_, is_used)| *is_used);
        if let (Some((one, _)), Some((other, _))) = (used.next(), used.next()) {
            let what =
                format!("stands beside cluster.{one}, and only one of them counts; remove one");
            check.fail(format!("cluster.{other}"), what);
        }
        if self.user.is_empty() && !self.password.0.is_empty() {
            check.fail("cluster.password", "has no user; write cluster.user, too");
        }
        let (certificate, key) = (&self.tls_certificate, &self.tls_key);
        if certificate.as_os_str().is_empty() != key.as_os_str().is_empty() {
            check.fail(
                "cluster.tls_certificate",
                "goes with cluster.tls_key; write both, or none",
            );
        }
    }
}
