//! Parses the text of the position that comes with a message to a subscription of one topic.

/// The position of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The epoch of the log.
    pub epoch: u32,
    /// The message's offset in its partition.
    pub offset: u64,
}

impl Position {
    /// Parses the position that a subscription of one topic receives. The text begins with `1`. `None` for the positions that subscriptions
    /// of several topics or of a filter receive.
    pub fn parse(text: &str) -> Option<Position> {
        let text = text.trim_matches('"').strip_prefix('1')?;
        let (epoch, offset) = text.split_once('-')?;
        Some(Position {
            epoch: u32::from_str_radix(epoch, 16).ok()?,
            offset: offset.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_positions_of_one_topic_are_parsed() {
        let position = Position {
            epoch: 0xc9,
            offset: 12,
        };
        assert_eq!(Position::parse("1c9-12"), Some(position));
        assert_eq!(Position::parse("\"1c9-12\""), Some(position));
        for other in ["2c9-12", "310-Aau4qskC", "", "1c9"] {
            assert_eq!(Position::parse(other), None);
        }
    }
}
