//! The close frame that tells a subscriber that messages are lost. The server sends it if the messages of a connection have no field for a
//! gap, such as the plain data of a WebSocket.

/// The close code.
pub const CLOSE_GAP: u16 = 4412;
/// The words before the position to resume from, at the end of the close reason. The words and the position are omitted if the position is
/// too long for a close frame.
pub const RESUME: &str = "resume from ";

/// The position to resume from, at the end of a close reason; `None` if the reason has no position.
pub fn resume_position(reason: &[u8]) -> Option<&str> {
    let (_, position) = core::str::from_utf8(reason).ok()?.rsplit_once(RESUME)?;
    Some(position).filter(|position| !position.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_position_is_at_the_end_of_the_reason() {
        for (reason, position) in [
            ("messages are lost; resume from 1a-2", Some("1a-2")),
            ("resume from 1a-2", Some("1a-2")),
            ("resume from ", None),
            ("messages are lost", None),
        ] {
            assert_eq!(resume_position(reason.as_bytes()), position, "{reason}");
        }
        assert_eq!(resume_position(b"resume from \xff"), None);
    }
}
