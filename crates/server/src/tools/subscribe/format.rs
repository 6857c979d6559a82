//! Parses `--format` of `crore sub`: the format of the line that is printed for a message.

use std::str::FromStr;

/// A part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Topic,
    Payload,
    Id,
    Key,
    Event,
    ContentType,
}

/// The letters after `%` for the parts of a message. `mosquitto_sub` has the same letters for the parts that it knows.
const PARTS: [(char, Part); 6] = [
    ('t', Part::Topic),
    ('p', Part::Payload),
    ('i', Part::Id),
    ('k', Part::Key),
    ('e', Part::Event),
    ('c', Part::ContentType),
];

/// A piece of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Text(String),
    Part(Part),
}

/// The format of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format(pub Vec<Piece>);

impl Format {
    /// The data alone.
    pub fn data() -> Format {
        Format(vec![Piece::Part(Part::Payload)])
    }

    /// The topic before the data.
    pub fn with_topic() -> Format {
        let space = Piece::Text(" ".to_string());
        Format(vec![
            Piece::Part(Part::Topic),
            space,
            Piece::Part(Part::Payload),
        ])
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Format, String> {
        let (mut pieces, mut plain) = (Vec::new(), String::new());
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            let escaped = match c {
                '%' | '\\' => chars.next(),
                c => {
                    plain.push(c);
                    continue;
                }
            };
            match (c, escaped) {
                (c, Some(same)) if c == same => plain.push(c),
                ('\\', Some('n')) => plain.push('\n'),
                ('\\', Some('t')) => plain.push('\t'),
                ('%', Some(letter)) if PARTS.iter().any(|(name, _)| *name == letter) => {
                    let part = PARTS.iter().find(|(name, _)| *name == letter);
                    pieces.push(Piece::Text(std::mem::take(&mut plain)));
                    pieces.extend(part.map(|(_, part)| Piece::Part(*part)));
                }
                (c, other) => {
                    let other = other.map_or(String::new(), String::from);
                    return Err(format!(
                        "`{c}{other}` stands for nothing; write %t (topic), %p (data), %i (id), %k (key), %e (event), %c (content type), \
                         %%, \\n, \\t or \\\\"
                    ));
                }
            }
        }
        pieces.push(Piece::Text(plain));
        pieces.retain(|piece| *piece != Piece::Text(String::new()));
        Ok(Format(pieces))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_text_and_parts() {
        let text = |text: &str| Piece::Text(text.to_string());
        let format: Format = r"%t\t%%%p\\".parse().unwrap();
        let pieces = vec![
            Piece::Part(Part::Topic),
            text("\t%"),
            Piece::Part(Part::Payload),
            text("\\"),
        ];
        assert_eq!(format, Format(pieces));
        for wrong in ["%", "%z", "\\x", "a\\"] {
            let error = wrong.parse::<Format>().unwrap_err();
            assert!(error.contains("%t (topic)"), "{error}");
        }
    }
}
