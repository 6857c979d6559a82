//! The settings of the connection to NATS and of the streams, the connection options made from them, and the error texts that name them.

use std::path::PathBuf;
use std::time::Duration;

use async_nats::ConnectOptions;

use crate::error::{Error, chain};

/// The settings of the connection to NATS, and of the streams.
#[derive(Clone, Default)]
pub struct Settings {
    /// NATS servers: `nats://host:4222`, or `tls://host:4222`.
    pub urls: Vec<String>,
    /// The name of the cluster: lower case letters, digits, `-` and `_`. The names of streams and subjects contain it.
    pub name: String,
    /// The credentials of this node.
    pub credentials: Credentials,
    /// TLS to NATS.
    pub tls: Tls,
    /// How many NATS servers store each batch: 1 to 5.
    pub replicas: usize,
    /// Bytes that all streams together should keep. At twice this size the streams accept nothing more. 0 means no limit.
    pub history_bytes: u64,
    /// URLs of the monitoring ports of NATS servers, `http://host:8222`.
    pub monitoring: Vec<String>,
    /// The maximum number of bytes that are read and not yet applied. Above it, reading the log pauses.
    pub backlog_bytes_max: usize,
    /// How long a start waits for NATS servers that are starting or electing a leader.
    pub patience: Duration,
}

/// The credentials of this node at NATS.
#[derive(Clone, Default)]
pub enum Credentials {
    /// None, or those that the URLs contain.
    #[default]
    None,
    /// A user and a password.
    User(String, String),
    /// A token.
    Token(String),
    /// A file with a JWT and a seed (`.creds`).
    File(PathBuf),
    /// The seed of an nkey.
    Nkey(String),
}

/// TLS to NATS.
#[derive(Clone, Default)]
pub struct Tls {
    /// A file with the only trusted certificate authorities; none means those of the system.
    pub ca: Option<PathBuf>,
    /// The files of this node's certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Whether a connection without TLS is refused.
    pub required: bool,
}

impl Settings {
    /// The options of a connection.
    pub(crate) async fn connect_options(&self) -> Result<ConnectOptions, Error> {
        let mut options = ConnectOptions::new().name(format!("crore {}", self.name));
        options = match &self.credentials {
            Credentials::None => options,
            Credentials::User(user, password) => {
                options.user_and_password(user.clone(), password.clone())
            }
            Credentials::Token(token) => options.token(token.clone()),
            Credentials::Nkey(seed) => options.nkey(seed.clone()),
            Credentials::File(path) => {
                let read = options.credentials_file(path).await;
                read.map_err(|error| {
                    let path = path.display();
                    Error::lasting(format!(
                        "cluster.credentials: {path} cannot be used: {}; it must be a file that `nsc generate creds` or `nats auth` wrote",
                        chain(&error)
                    ))
                })?
            }
        };
        if let Some(ca) = &self.tls.ca {
            options = options.add_root_certificates(ca.clone());
        }
        if let Some((certificate, key)) = &self.tls.identity {
            options = options.add_client_certificate(certificate.clone(), key.clone());
        }
        Ok(options
            .require_tls(self.tls.required)
            // Pings show that a server has vanished without closing the connection.
            .ping_interval(Duration::from_secs(2)))
    }

    pub(crate) fn stream_name(&self, partition: u16) -> String {
        format!("CRORE_{}_{partition}", self.name.to_uppercase())
    }

    pub(crate) fn subject(&self, partition: u16) -> String {
        format!("crore.{}.log.{partition}", self.name)
    }

    pub(crate) fn bucket_name(&self) -> String {
        format!("CRORE_{}", self.name.to_uppercase())
    }
}

/// NATS servers know each other's free space only after this time. If NATS still reports too little then, retrying does not help.
const SPACE_REPORT_DELAY: Duration = Duration::from_secs(10);

/// The error for something that NATS refused to create or to show, with the remedy if there is a known one.
pub(crate) fn refusal(what: &str, settings: &Settings, error: &dyn std::error::Error) -> Error {
    let (replicas, history_bytes) = (settings.replicas, settings.history_bytes);
    let why = chain(error);
    let text = format!("{what}: NATS refuses it: {why}");
    if why.contains("10074") || why.contains("non-clustered") {
        return Error::lasting(format!(
            "{text}; cluster.replicas = {replicas} needs as many servers of NATS in a cluster: start them, or write cluster.replicas = 1 for one server"
        ));
    }
    if why.contains("10065") || why.contains("subjects overlap") {
        let subjects = format!("crore.{}.log.*", settings.name);
        return Error::lasting(format!(
            "{text}; another stream of this account takes messages of `{subjects}`, too (`nats stream ls --subject {subjects}` names it): remove it, take these subjects from it, or choose another cluster.name"
        ));
    }
    let is_no_peer = why.contains("10005") || why.contains("no suitable peers");
    let has_no_room = why.contains("insufficient storage");
    if has_no_room || why.contains("10047") || why.contains("10028") || why.contains("10058") {
        let text = format!(
            "{text}; the log asks for room for twice cluster.history_bytes = {history_bytes} at each server: write less there, or raise `max_file_store` in the section `jetstream` of each nats-server (by default three quarters of the free disk) or the limit of this account"
        );
        // A server knows its own free space at once. It learns the free space of other servers later.
        return match is_no_peer {
            true => Error::passing_within(text, SPACE_REPORT_DELAY),
            false => Error::lasting(text),
        };
    }
    if is_no_peer {
        return Error::transient(format!(
            "{text}; cluster.replicas = {replicas} needs as many servers of NATS with JetStream and room on disk"
        ));
    }
    if why.contains("10039") || why.contains("10076") || why.contains("not enabled") {
        return Error::lasting(format!(
            "{text}; JetStream is off there, or for this account: write `jetstream {{ store_dir: ... }}` in the configuration of each nats-server"
        ));
    }
    Error::transient(format!(
        "{text}; check that JetStream is on (`jetstream {{ ... }}`), that more than half of the servers run, and that this account may use JetStream"
    ))
}
