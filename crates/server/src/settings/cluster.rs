//! `[cluster]`: the NATS servers that keep the log of a cluster, and this node's credentials for them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crore_nats::Credentials;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use super::access::Secret;
use super::problems::Problems;

/// The names of streams and subjects contain the name, so it must be short.
const MAX_NAME_BYTES: usize = 32;
/// JetStream's limit of replicas.
const MAX_REPLICAS: usize = 5;
/// A smaller log would hold only a few batches of each partition.
const MIN_HISTORY_BYTES: usize = 64 << 20;
/// With less, a checkpoint would be written every few batches.
const MIN_CHECKPOINT_BYTES: usize = 1 << 20;
/// A hundred years.
const MAX_HISTORY_AGE_S: u32 = 3_155_760_000;
/// The maximum size of all batches that were read but are not applied yet. A shard applies this number of bytes in well under a second.
const BACKLOG_BYTES: usize = 32 << 20;
/// How long a start waits for NATS servers that start at the same time.
const PATIENCE: Duration = Duration::from_secs(60);

/// The section `[cluster]`.
#[derive(Clone, Debug, PartialEq, SmartDefault, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Cluster {
    /// NATS servers that keep the log of the cluster: 2.15.2 or later, with JetStream. Empty: this server is not a node of a cluster.
    #[schemars(extend("format" = "`nats://` or `tls://`, host and port", "x-flag" = "--cluster URLS"))]
    pub urls: Vec<String>,
    /// The cluster's name, the same at all nodes. The names of streams and subjects contain it, so several clusters may use the same NATS servers.
    #[default("main")]
    #[schemars(extend("format" = "1 to 32 of `a-z`, `0-9`, `-`, `_`"))]
    pub name: String,
    /// The user at NATS; empty: none.
    pub user: String,
    /// That user's password.
    pub password: Secret,
    /// A token for NATS.
    pub token: Secret,
    /// A credentials file (`.creds`) with a JWT and a seed.
    #[schemars(extend("format" = "a file"))]
    pub credentials: PathBuf,
    /// The seed of an nkey.
    pub nkey: Secret,
    /// Write [MQTT sessions](MQTT.md#durable-sessions-in-a-cluster) to the log, so that a client finds its session at every node. CONNACK and SUBACK wait until
    /// the log has the session. `false`: a session ends with its connection.
    ///
    /// The setting is used only when the cluster is made, by its first node; later [raise the format](CLUSTER.md#upgrade) of the cluster. Each node then has all
    /// sessions in memory, and `mqtt.sessions_max` bounds the sessions and MQTT connections of all nodes together.
    #[default(true)]
    #[schemars(extend("x-changes" = "restart"))]
    pub durable_sessions: bool,
    /// The number of NATS servers that keep each batch. With 1 or 2 the cluster stops if one server dies, and with 1 it may lose
    /// messages whose publishes were already answered.
    #[default(3)]
    #[schemars(range(min = 1, max = MAX_REPLICAS))]
    pub replicas: usize,
    /// The number of bytes that the log keeps for nodes that were disconnected, in equal parts for the partitions. NATS reserves twice as much on
    /// the disk of each server.
    ///
    /// Older batches are deleted once [checkpoints](CLUSTER.md#checkpoints) contain them, and never before. If the log grows to one and a half times this
    /// size, publishers wait, and get 503 after five seconds. The setting is used only when the streams are created; later change their `max_bytes` with
    /// `nats stream edit`.
    #[default(2 << 30)]
    #[schemars(range(min = MIN_HISTORY_BYTES, max = isize::MAX as usize), extend("x-zero" = "no limit"))]
    #[schemars(extend("x-share" = "none: NATS bounds the streams as a whole; `limits.log_bytes` has shares at each node"))]
    pub history_bytes: usize,
    /// New [checkpoints](CLUSTER.md#checkpoints) are written when the log after the newest ones has this number of bytes, in equal parts for the
    /// partitions. A node that joins reads about this much of the log.
    #[default(512 << 20)]
    #[schemars(range(min = MIN_CHECKPOINT_BYTES, max = isize::MAX as usize))]
    #[schemars(extend("x-share" = "none: it bounds what nodes write, by their own limits"))]
    pub checkpoint_bytes: usize,
    /// How long a batch is kept. A batch that no checkpoint contains yet is kept longer.
    #[schemars(range(min = 60, max = MAX_HISTORY_AGE_S), extend("x-zero" = "no limit"))]
    pub history_age_s: u32,
    /// Monitoring URLs of the NATS servers. When a node starts, it checks there that the servers have `sync_interval: always`.
    #[schemars(extend("format" = "`http://`, host and port"))]
    pub monitoring: Vec<String>,
    /// The root certificates that sign the certificates of the NATS servers. Empty: those of the system.
    #[schemars(extend("format" = "a PEM file"))]
    pub tls_ca: PathBuf,
    /// The node's own certificate for connections to NATS. Empty: none.
    #[schemars(extend("format" = "a PEM file"))]
    pub tls_certificate: PathBuf,
    /// The key of `tls_certificate`.
    #[schemars(extend("format" = "a PEM file"))]
    pub tls_key: PathBuf,
    /// Whether the node refuses to connect to NATS without TLS.
    pub tls_required: bool,
}

impl Cluster {
    /// Whether this server is a node of a cluster.
    pub fn is_on(&self) -> bool {
        !self.urls.is_empty()
    }

    /// The settings of the log in NATS.
    pub fn nats(&self) -> crore_nats::Settings {
        let if_set = |path: &PathBuf| (!path.as_os_str().is_empty()).then(|| path.clone());
        crore_nats::Settings {
            urls: self.urls.clone(),
            name: self.name.clone(),
            credentials: self.nats_credentials(),
            tls: crore_nats::Tls {
                ca: if_set(&self.tls_ca),
                identity: if_set(&self.tls_certificate).zip(if_set(&self.tls_key)),
                required: self.tls_required,
            },
            replicas: self.replicas,
            history_bytes: self.history_bytes as u64,
            monitoring: self.monitoring.clone(),
            backlog_bytes_max: BACKLOG_BYTES,
            patience: PATIENCE,
        }
    }

    fn nats_credentials(&self) -> Credentials {
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

    /// The files that are set, with their keys.
    pub fn files(&self) -> Vec<(&'static str, &Path)> {
        let all = [
            ("cluster.credentials", &self.credentials),
            ("cluster.tls_ca", &self.tls_ca),
            ("cluster.tls_certificate", &self.tls_certificate),
            ("cluster.tls_key", &self.tls_key),
        ];
        let set = all
            .into_iter()
            .filter(|(_, path)| !path.as_os_str().is_empty());
        set.map(|(key, path)| (key, path.as_path())).collect()
    }

    /// Checks the values.
    pub fn check(&self, problems: &mut Problems) {
        for (index, url) in self.urls.iter().enumerate() {
            if url.contains('@') {
                let message = "has a user in it, which others would see; write cluster.user and cluster.password";
                problems.fail(format!("cluster.urls[{}]", index + 1), message);
                continue;
            }
            let host = ["nats://", "tls://"]
                .iter()
                .find_map(|scheme| url.strip_prefix(scheme));
            if host.is_none_or(str::is_empty) {
                let message = format!(
                    "`{url}` is not the URL of a NATS server; write one such as \"nats://10.0.0.1:4222\", or \"tls://...\""
                );
                problems.fail(format!("cluster.urls[{}]", index + 1), message);
            }
        }
        let is_plain = |letter: char| {
            letter.is_ascii_lowercase() || letter.is_ascii_digit() || "-_".contains(letter)
        };
        if self.name.is_empty()
            || self.name.len() > MAX_NAME_BYTES
            || !self.name.chars().all(is_plain)
        {
            let message = format!(
                "`{}` is not a name; write 1 to {MAX_NAME_BYTES} lower-case letters, digits, `-` and `_`",
                self.name
            );
            problems.fail("cluster.name", message);
        }
        for (index, url) in self.monitoring.iter().enumerate() {
            if url.contains('@') {
                let message = "has a user in it, which others would see; leave it out";
                problems.fail(format!("cluster.monitoring[{}]", index + 1), message);
            } else if !url.starts_with("http://") {
                let message = format!(
                    "`{url}` is not a monitoring URL; write one such as \"http://10.0.0.1:8222\""
                );
                problems.fail(format!("cluster.monitoring[{}]", index + 1), message);
            }
        }
        self.check_credentials(problems);
    }

    fn check_credentials(&self, problems: &mut Problems) {
        let login_methods = [
            ("user", !self.user.is_empty()),
            ("token", !self.token.0.is_empty()),
            ("credentials", !self.credentials.as_os_str().is_empty()),
            ("nkey", !self.nkey.0.is_empty()),
        ];
        let mut methods_set = login_methods.iter().filter(|(_, is_set)| *is_set);
        if let (Some((first, _)), Some((second, _))) = (methods_set.next(), methods_set.next()) {
            let message = format!(
                "is set in addition to cluster.{first}, but only one of them can be used; remove one"
            );
            problems.fail(format!("cluster.{second}"), message);
        }
        if self.user.is_empty() && !self.password.0.is_empty() {
            problems.fail("cluster.password", "has no user; write cluster.user, too");
        }
        let (certificate, key) = (&self.tls_certificate, &self.tls_key);
        if certificate.as_os_str().is_empty() != key.as_os_str().is_empty() {
            problems.fail(
                "cluster.tls_certificate",
                "goes with cluster.tls_key; write both, or none",
            );
        }
    }
}
