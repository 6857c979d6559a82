//! The close frame that tells a subscriber that messages are lost. It is for connections on which a message cannot carry this news.

/// The close code.
pub const CLOSE_GAP: u16 = 4412;
/// If they fit into the close frame, the close reason ends with these words and the position to resume from.
pub const RESUME: &str = "resume from ";

/// The position to resume from, in a close reason.
pub fn resumes_from(reason: &[u8]) -> Option<&str> {
    let (_, position) = core::str::from_utf8(reason).ok()?.rsplit_once(RESUME)?;
    Some(position).filter(|position| !position.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_position_stands_at_the_end_of_the_reason() {
        for (reason, position) in [
            ("messages are lost; resume from 1a-2", Some("1a-2")),
            ("resume from 1a-2", Some("1a-2")),
            ("resume from ", None),
            ("messages are lost", None),
        ] {
            assert_eq!(resumes_from(reason.as_bytes()), position, "{reason}");
        }
        assert_eq!(resumes_from(b"resume from \xff"), None);
    }
}
