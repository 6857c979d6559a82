//! Checks the values of the tools' flags and environment variables before anything is sent. A value that is empty, or that a request cannot
//! carry, would change the meaning of the request.
//!
//! Invariant: an error names the flag or the variable, and never shows a token.

use crore_wire::topic::{TopicError, check_filter, check_name, has_wildcard};

use crate::http_client::server::without_credentials;
use crate::settings::problems::foreign_wildcards;
use crate::settings::units::parse_seconds;

/// An error for wrong usage that `clap` does not detect. The exit code is 2, as for all wrong usage. If the exit code 1 of a command has
/// another meaning, the command uses this type for all its errors.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(String);

impl Usage {
    pub fn new(text: String) -> Usage {
        Usage(text)
    }
}

/// Checks that text is not empty and has no control characters. The server checks the rest.
pub fn text(text: &str) -> Result<String, String> {
    match () {
        () if text.is_empty() => Err("it is empty; write one".to_string()),
        () if text.chars().any(char::is_control) => {
            Err("control characters are not allowed".to_string())
        }
        () => Ok(text.to_string()),
    }
}

/// Checks a topic.
pub fn topic(text: &str) -> Result<String, String> {
    match check_name(text.as_bytes(), usize::MAX) {
        Err(TopicError::Wildcard) => Err(
            "+ and # stand in filters only (crore sub, crore admin topics); write one topic"
                .to_string(),
        ),
        Err(error) => Err(format!("it {error}")),
        Ok(()) => Ok(text.to_string()),
    }
}

/// Checks a topic or a filter.
pub fn filter(text: &str) -> Result<String, String> {
    match check_filter(text.as_bytes(), usize::MAX) {
        Err(TopicError::Misplaced) => Err(
            "+ stands for one whole level and # for all that follow; write one such as 'chat/+/help' or 'chat/#'"
                .to_string(),
        ),
        Err(error) => Err(format!("it {error}")),
        Ok(()) => Ok(text.to_string()),
    }
}

/// A hint about a filter, for the message that no topic matches the filter.
pub fn tip_for_none(filter: &str) -> String {
    match foreign_wildcards(filter) {
        Some(hint) => format!("; {hint}"),
        None if has_wildcard(filter.as_bytes()) => String::new(),
        None => format!("; topics below it match '{filter}/#'"),
    }
}

/// Hints about a topic or filter that is valid, but probably not what the user meant.
pub fn hints(topic: &str) -> impl Iterator<Item = String> {
    let several = || {
        let several = topic.replace(',', " ");
        format!("`{topic}` is the name of one topic; write several with spaces between: {several}")
    };
    let list = topic.contains(',').then(several);
    with_prefix([
        foreign_wildcards(topic),
        list,
        url(topic),
        leading_slash(topic),
    ])
}

/// The hints of `hints`, for a filter for which a token grants rights.
pub fn hints_of_grant(filter: &str) -> impl Iterator<Item = String> {
    let one = || format!("`{filter}` is one filter; for several repeat the flag");
    let list = filter.contains(',').then(one);
    with_prefix([
        foreign_wildcards(filter),
        list,
        url(filter),
        leading_slash(filter),
    ])
}

fn with_prefix(hints: [Option<String>; 4]) -> impl Iterator<Item = String> {
    let hints = hints.into_iter().flatten();
    hints.map(|hint| format!("hint: {hint}"))
}

/// A hint if the topic is a URL.
fn url(topic: &str) -> Option<String> {
    let schemes = ["http://", "https://", "ws://", "wss://"];
    let is_url = schemes.iter().any(|scheme| topic.starts_with(scheme));
    is_url.then(|| {
        format!(
            "`{}` is taken for the name of a topic; write the topic alone, and the server as --server URL",
            without_credentials(topic)
        )
    })
}

/// A hint if the topic begins with `/`.
fn leading_slash(topic: &str) -> Option<String> {
    let rest = topic.strip_prefix('/')?;
    Some(format!(
        "`{topic}` begins with an empty level: it is another topic than `{rest}`"
    ))
}

/// Checks the value of `--since`.
pub fn position(text: &str) -> Result<String, String> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let newest = text.strip_prefix('-').filter(|number| is_number(number));
    // A rough check of a message id; the server checks the rest.
    let is_id = text.contains(['-', ':']) && text.contains(|c: char| c.is_ascii_digit());
    match newest {
        Some(number) if number.bytes().any(|digit| digit != b'0') => Ok(text.to_string()),
        // `-0` would mean the newest 0 messages.
        Some(_) => Err(POSITIONS.to_string()),
        None if matches!(text, "oldest" | "live") || is_id => self::text(text),
        None => Err(POSITIONS.to_string()),
    }
}

const POSITIONS: &str = "write oldest, live, -N for the newest N (such as -5), or the id of a message, such as 19582c7cf-1";

/// Parses a number.
pub fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| "write a whole number, 0 or more".to_string())
}

/// Parses a number that is not 0.
pub fn positive_count(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "write a whole number, 1 or more".to_string())
}

/// Parses a time that is not 0, in seconds.
pub fn positive_time(text: &str) -> Result<u64, String> {
    match parse_seconds(text)? {
        0 => Err("write 1s or more, or leave it out to wait without end".to_string()),
        seconds => Ok(seconds),
    }
}

/// Checks the value of a header: as [`text`] does, and the value must not begin or end with a space, which a header would lose.
pub fn header_value(text: &str) -> Result<String, String> {
    match text.trim() == text {
        true => self::text(text),
        false => Err("spaces before or behind it are not allowed".to_string()),
    }
}

/// Checks a content type (RFC 9110 section 8.3).
pub fn content_type(text: &str) -> Result<String, String> {
    match text.is_ascii() {
        true => header_value(text),
        false => Err("only ASCII is allowed; write one such as application/json".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_begin_at_one() {
        assert_eq!(positive_count("1"), Ok(1));
        for wrong in ["0", "", "-1", "x", "99999999999999999999"] {
            let error = positive_count(wrong).unwrap_err();
            assert!(error.contains("1 or more"), "{wrong}: {error}");
        }
        assert_eq!((number("0"), number("7")), (Ok(0_u16), Ok(7_u16)));
        for wrong in ["x", "-1", "65536"] {
            assert!(number::<u16>(wrong).unwrap_err().contains("whole number"));
        }
    }

    #[test]
    fn suspicious_name_gets_a_hint() {
        let all = |topic| hints(topic).collect::<Vec<_>>().join("\n");
        assert_eq!(
            all("scores/*"),
            "hint: `*` and `>` are no wildcards in 'scores/*'; topics match 'scores/+' (any one level) or 'scores/#' (all levels that follow)"
        );
        assert_eq!(
            all("chat.>"),
            "hint: `*` and `>` are no wildcards in 'chat.>'; topics match 'chat/#'"
        );
        assert!(all("a/b,c").contains("write several with spaces between: a/b c"));
        assert!(all("/a").contains("another topic than `a`"));
        for meant in ["a", "a/+", "#", "a*b", "$SYS/#"] {
            assert_eq!(all(meant), "");
        }
    }

    #[test]
    fn positions_are_distinguished_from_other_words() {
        for good in [
            "oldest",
            "live",
            "-5",
            "19582c7cf-1",
            "1c9aab8ab-2,19582c7cf-7",
        ] {
            assert_eq!(position(good).as_deref(), Ok(good));
        }
        for wrong in ["", "5", "-0", "-", "newest", "foo-bar"] {
            assert!(position(wrong).is_err(), "{wrong}");
        }
    }
}
