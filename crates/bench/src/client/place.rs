//! Where a message of one topic stands, as positions of the server say it.

/// Where a message stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The epoch of its log.
    pub epoch: u32,
    /// Its offset in its partition.
    pub offset: u64,
}

impl Place {
    /// Reads the position of a message of one topic; `None` for those of several topics and of filters.
    pub fn read(text: &str) -> Option<Place> {
        let text = text.trim_matches('"').strip_prefix('1')?;
        let (epoch, offset) = text.split_once('-')?;
        Some(Place {
            epoch: u32::from_str_radix(epoch, 16).ok()?,
            offset: offset.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_positions_of_one_topic_are_places() {
        let place = Place {
            epoch: 0xc9,
            offset: 12,
        };
        assert_eq!(Place::read("1c9-12"), Some(place));
        assert_eq!(Place::read("\"1c9-12\""), Some(place));
        for other in ["2c9-12", "310-Aau4qskC", "", "1c9"] {
            assert_eq!(Place::read(other), None);
        }
    }
}
