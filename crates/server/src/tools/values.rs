//! Values of the tools' flags and variables, checked before anything is sent: a value that its request cannot carry, or an empty one, would
//! make another request of it.
//!
//! Invariant: the error names the flag or the variable, and never shows a token.

use std::env::VarError;
use std::fmt;

/// Wrong usage that `clap` cannot tell: the process ends with 2, as for all wrong usage. So does what cannot be done where 1 says something else.
#[derive(Debug)]
pub struct Usage(String);

impl Usage {
    /// With these words.
    pub fn new(text: String) -> Usage {
        Usage(text)
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// The token of `--token`, else that of this variable. Spaces and line ends around it are no part of it: files of tokens end in one.
///
/// # Errors
/// [`Usage`], where it is empty, or has characters that no header may carry (RFC 6750 section 2.1).
pub fn token(flag: Option<&str>, variable: &'static str) -> Result<Option<String>, Usage> {
    let wrong = |place: &str, what: &str| {
        Usage(format!(
            "{place} {what}; write a token, such as `crore token mint` prints, or leave it out"
        ))
    };
    let (place, text) = match flag {
        Some(text) => ("--token", text.to_string()),
        None => match std::env::var(variable) {
            Ok(text) => (variable, text),
            Err(VarError::NotPresent) => return Ok(None),
            Err(VarError::NotUnicode(_)) => return Err(wrong(variable, NO_TOKEN)),
        },
    };
    let token = text.trim();
    if token.is_empty() {
        return Err(wrong(place, "is empty"));
    }
    match token.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(Some(token.to_string())),
        false => Err(wrong(place, NO_TOKEN)),
    }
}

const NO_TOKEN: &str = "has a character that no header may carry: a space, a control character, or one that is not ASCII";

/// A value that stands in a line, a topic or a name: text without control characters. The server says what else is wrong with it.
///
/// # Errors
/// What is wrong with it.
pub fn line(text: &str) -> Result<String, String> {
    match () {
        () if text.is_empty() => Err("it is empty; write one".to_string()),
        () if text.chars().any(char::is_control) => {
            Err("control characters are not allowed".to_string())
        }
        () => Ok(text.to_string()),
    }
}

/// A value of a header: what stands in a line, without spaces around it, which a header would lose.
///
/// # Errors
/// What is wrong with it.
pub fn field(text: &str) -> Result<String, String> {
    match text.trim() == text {
        true => line(text),
        false => Err("spaces before or behind it are not allowed".to_string()),
    }
}

/// A content type (RFC 9110 section 8.3).
///
/// # Errors
/// What is wrong with it.
pub fn content_type(text: &str) -> Result<String, String> {
    match text.is_ascii() {
        true => field(text),
        false => Err("only ASCII is allowed; write one such as application/json".to_string()),
    }
}
