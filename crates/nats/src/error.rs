//! Why the log cannot be used, in words for the operator.

use std::fmt;

use crate::settings::Settings;

/// It names what is wrong, and the remedy.
#[derive(Debug)]
pub struct Error {
    text: String,
    /// Whether the same may succeed a moment later, as while servers start or elect a leader.
    is_transient: bool,
}

impl Error {
    /// It stays until somebody changes something.
    pub(crate) fn lasting(text: impl Into<String>) -> Error {
        Error {
            text: text.into(),
            is_transient: false,
        }
    }

    /// It may pass by itself.
    pub(crate) fn transient(text: impl Into<String>) -> Error {
        Error {
            text: text.into(),
            is_transient: true,
        }
    }

    pub(crate) fn is_transient(&self) -> bool {
        self.is_transient
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {}

/// An error with all its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// Why NATS did not make or show something, with the remedy as far as it is known.
pub fn refused(what: &str, settings: &Settings, error: &dyn std::error::Error) -> Error {
    let (replicas, history_bytes) = (settings.replicas, settings.history_bytes);
    let why = chain(error);
    let text = format!("{what}: NATS refuses it: {why}");
    if why.contains("10074") || why.contains("non-clustered") {
        return Error::lasting(format!(
            "{text}; cluster.replicas = {replicas} needs as many servers of NATS in a cluster: start them, or write cluster.replicas = 1 for one server"
        ));
    }
    if why.contains("10005") || why.contains("no suitable peers") {
        return Error::transient(format!(
            "{text}; cluster.replicas = {replicas} needs as many servers of NATS with JetStream and room on disk"
        ));
    }
    if why.contains("10039") || why.contains("10076") || why.contains("not enabled") {
        return Error::lasting(format!(
            "{text}; JetStream is off there, or for this account: write `jetstream {{ store_dir: ... }}` in the configuration of each nats-server"
        ));
    }
    if why.contains("10047") || why.contains("10028") || why.contains("10058") {
        return Error::lasting(format!(
            "{text}; the log asks for room for twice cluster.history_bytes = {history_bytes} at each server: write less there, or raise `max_file_store` in the section `jetstream` of each nats-server (by default three quarters of the free disk) or the limit of this account"
        ));
    }
    Error::transient(format!(
        "{text}; see that JetStream is on (`jetstream {{ ... }}`), that more than half of the servers run, and that the account may use it"
    ))
}
