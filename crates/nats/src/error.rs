//! Why the log cannot be used, in words for the operator.

use std::time::Duration;

/// An error that names the fault and the remedy.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct Error {
    text: String,
    /// After this time the fault is no longer expected to end by itself. Until then servers may still be starting or electing a leader.
    passes_within: Duration,
}

impl Error {
    /// A fault that lasts until somebody changes something.
    pub(crate) fn lasting(text: impl Into<String>) -> Error {
        Error {
            text: text.into(),
            passes_within: Duration::ZERO,
        }
    }

    /// A fault that may pass by itself.
    pub(crate) fn transient(text: impl Into<String>) -> Error {
        Error {
            text: text.into(),
            passes_within: Duration::MAX,
        }
    }

    /// A fault that either passes within this time or lasts.
    pub(crate) fn passing_within(text: impl Into<String>, passes_within: Duration) -> Error {
        Error {
            text: text.into(),
            passes_within,
        }
    }

    /// How long the caller should retry, if it waits at most `maximum`.
    pub(crate) fn retry_time(&self, maximum: Duration) -> Duration {
        self.passes_within.min(maximum)
    }
}

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
