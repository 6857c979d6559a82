//! Why the log cannot be used, in words for the operator.

use std::fmt;

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
