//! Parses topic filters of MQTT (5.0 sections 4.7 and 4.8.2): the wildcards, and the share name of `$share/{ShareName}/{filter}`.
//! [`crate::topic::matches`] matches a filter; [`crate::topic::check_filter`] checks its length and characters.

use crate::topic;

/// A parsed topic filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Filter<'a> {
    /// The ShareName, if the subscription is shared.
    pub share: Option<&'a str>,
    /// The filter that topic names are matched against.
    pub filter: &'a str,
}

/// Why a text is not a topic filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterError {
    /// The text is empty [MQTT-4.7.3-1].
    Empty,
    /// `+` or `#` is not a whole level, or `#` is not the last level [MQTT-4.7.1-1, MQTT-4.7.1-2].
    Wildcard,
    /// The ShareName is empty or contains a wildcard [MQTT-4.8.2-1, MQTT-4.8.2-2].
    ShareName,
    /// There is no filter after the ShareName [MQTT-4.8.2-2].
    ShareFilter,
}

impl FilterError {
    /// Words for a reason string and the log.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Empty => "the topic filter is empty",
            Self::Wildcard => "the topic filter has a misplaced wildcard, + or #",
            Self::ShareName => "the share name is empty or has a wildcard",
            Self::ShareFilter => "the shared subscription has no topic filter",
        }
    }
}

impl<'a> Filter<'a> {
    /// Parses a filter of SUBSCRIBE or UNSUBSCRIBE. `$share` is defined in 5.0. Clients of 3.1.1 may use it too, because their
    /// specification leaves such topics to the server (section 4.7.2).
    ///
    /// # Errors
    /// The first fault of the text.
    pub fn parse(text: &'a str) -> Result<Self, FilterError> {
        let (share, filter) = match text.strip_prefix("$share") {
            Some("") => return Err(FilterError::ShareName),
            Some(rest) if rest.starts_with('/') => {
                let (name, filter) = match rest[1..].split_once('/') {
                    Some((name, filter)) => (name, filter),
                    None => (&rest[1..], ""),
                };
                if name.is_empty() || name.contains(['+', '#']) {
                    return Err(FilterError::ShareName);
                }
                if filter.is_empty() {
                    return Err(FilterError::ShareFilter);
                }
                (Some(name), filter)
            }
            _ => (None, text),
        };
        if filter.is_empty() {
            return Err(FilterError::Empty);
        }
        match topic::wildcards_stand_alone(filter.as_bytes()) {
            true => Ok(Self { share, filter }),
            false => Err(FilterError::Wildcard),
        }
    }
}
/// The ShareName and the filter of a checked filter `$share/{ShareName}/{filter}`. `None` if the subscription is not shared.
pub fn split_shared(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = text.strip_prefix(b"$share/")?;
    let slash = memchr::memchr(b'/', rest)?;
    Some((&rest[..slash], &rest[slash + 1..]))
}
