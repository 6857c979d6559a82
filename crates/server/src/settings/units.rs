//! Values that TOML has no type for: sizes, networks, listen addresses, where a subscriber begins.
//!
//! Each reads through a visitor, so that an error carries the place of the value in the file.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crore_broker::settings::First;
use serde::de::{self, DeserializeSeed, Deserializer, SeqAccess, Visitor};
use serde::ser::Serializer;

use super::listen::{FORM, Listen};

/// Units of a size, largest first. The decimal ones are read but never written.
const UNITS: [(&str, usize); 7] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

const SIZE_FORM: &str =
    "a size: bytes as a whole number, or a string such as \"64 KiB\" or \"1 MiB\"";

/// Reads `65536`, `64 KiB` or `64KiB` as bytes.
///
/// # Errors
/// The fault, with the accepted forms.
pub fn parse_size(text: &str) -> Result<usize, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim();
    let factor = match UNITS.iter().find(|(name, _)| *name == unit) {
        Some((_, factor)) => *factor,
        None if unit.is_empty() => 1,
        None => {
            return Err(format!(
                "`{text}` is not {SIZE_FORM}; units are B, KiB, MiB, GiB, kB, MB, GB"
            ));
        }
    };
    let number: usize = number
        .parse()
        .map_err(|_| format!("`{text}` is not {SIZE_FORM}"))?;
    number
        .checked_mul(factor)
        .ok_or_else(|| format!("`{text}` is more than this machine can address"))
}

/// The shortest exact form: `1 MiB`, or plain bytes when no unit divides them.
pub fn format_size(bytes: usize) -> Option<String> {
    let (name, factor) = UNITS[..3]
        .iter()
        .find(|(_, factor)| bytes >= *factor && bytes.is_multiple_of(*factor))?;
    Some(format!("{} {name}", bytes / factor))
}

/// Reads a string by `parse`; anything else is a type error that says `form`.
struct Text<T> {
    form: &'static str,
    parse: fn(&str) -> Result<T, String>,
}

impl<T> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.form)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.parse)(text).map_err(E::custom)
    }
}

impl<'de, T> DeserializeSeed<'de> for Text<T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_str(self)
    }
}

/// A list of strings, each read by `parse`.
struct TextList<T> {
    form: &'static str,
    parse: fn(&str) -> Result<T, String>,
}

impl<'de, T> Visitor<'de> for TextList<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list, each entry {}", self.form)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = seq.next_element_seed(Text {
            form: self.form,
            parse: self.parse,
        })? {
            values.push(value);
        }
        Ok(values)
    }
}

/// `serde(with)` for sizes in bytes.
pub mod size {
    use super::*;

    struct Size;

    impl Visitor<'_> for Size {
        type Value = usize;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(SIZE_FORM)
        }

        fn visit_i64<E: de::Error>(self, value: i64) -> Result<usize, E> {
            usize::try_from(value).map_err(|_| E::custom(format!("`{value}` is not {SIZE_FORM}")))
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<usize, E> {
            parse_size(text).map_err(E::custom)
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
        deserializer.deserialize_any(Size)
    }

    pub fn serialize<S: Serializer>(bytes: &usize, serializer: S) -> Result<S::Ok, S::Error> {
        match format_size(*bytes) {
            Some(text) => serializer.serialize_str(&text),
            None => serializer.serialize_u64(*bytes as u64),
        }
    }
}

/// `serde(with)` for listen addresses: a list of entries, or a single one.
pub mod address {
    use super::*;

    struct List;

    impl<'de> Visitor<'de> for List {
        type Value = Vec<Listen>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{FORM}, or a list of such")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<Listen>, E> {
            Ok(vec![text.parse().map_err(E::custom)?])
        }

        fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Vec<Listen>, A::Error> {
            let parse = str::parse::<Listen>;
            TextList { form: FORM, parse }.visit_seq(seq)
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<SocketAddr>, D::Error> {
        let list = deserializer.deserialize_any(List)?;
        Ok(Listen::all(&list))
    }

    pub fn serialize<S: Serializer>(
        addresses: &[SocketAddr],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(addresses.iter().map(SocketAddr::to_string))
    }
}

/// `serde(with)` for an address that may be empty, for none.
pub mod optional_address {
    use super::*;

    fn parse(text: &str) -> Result<Option<SocketAddr>, String> {
        if text.is_empty() {
            return Ok(None);
        }
        let found = text.parse::<Listen>();
        let found = found.map_err(|error| format!("{error}; or \"\" to switch it off"))?;
        Ok(Some(found.first()))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<SocketAddr>, D::Error> {
        Text { form: FORM, parse }.deserialize(deserializer)
    }

    pub fn serialize<S: Serializer>(
        address: &Option<SocketAddr>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match address {
            Some(address) => serializer.serialize_str(&address.to_string()),
            None => serializer.serialize_str(""),
        }
    }
}

/// `serde(with)` for networks in CIDR form.
pub mod cidr {
    use super::*;

    const FORM: &str = "a network, such as \"10.0.0.0/8\" or \"fd00::/8\"";

    /// Reads `ADDRESS/PREFIX`; a bare address is a network of its own.
    fn parse(text: &str) -> Result<(IpAddr, u8), String> {
        let wrong = || format!("`{text}` is not {FORM}");
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Ok(bits), str::parse).map_err(|_| wrong())?;
        if prefix > bits {
            return Err(format!("`{text}`: the prefix must be at most {bits}"));
        }
        let network = network_of(address, prefix);
        if network != address {
            return Err(format!(
                "`{text}` has bits past its prefix; write \"{network}/{prefix}\""
            ));
        }
        Ok((address, prefix))
    }

    fn network_of(address: IpAddr, prefix: u8) -> IpAddr {
        let prefix = u32::from(prefix);
        match address {
            IpAddr::V4(v4) => {
                IpAddr::V4((v4.to_bits() & u32::MAX.checked_shl(32 - prefix).unwrap_or(0)).into())
            }
            IpAddr::V6(v6) => {
                IpAddr::V6((v6.to_bits() & u128::MAX.checked_shl(128 - prefix).unwrap_or(0)).into())
            }
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<(IpAddr, u8)>, D::Error> {
        deserializer.deserialize_seq(TextList { form: FORM, parse })
    }

    pub fn serialize<S: Serializer>(
        networks: &[(IpAddr, u8)],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(
            networks
                .iter()
                .map(|(address, prefix)| format!("{address}/{prefix}")),
        )
    }
}

/// `serde(with)` for where a subscriber without a position begins.
pub mod first {
    use super::*;

    const FORM: &str =
        "\"by-transport\", \"oldest\", \"live\", or -N for the newest N (such as -5)";

    struct Begin;

    impl Visitor<'_> for Begin {
        type Value = First;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(FORM)
        }

        fn visit_i64<E: de::Error>(self, value: i64) -> Result<First, E> {
            match value.checked_neg().map(u32::try_from) {
                Some(Ok(newest)) if newest > 0 => Ok(First::Newest(newest)),
                _ => Err(E::custom(format!("`{value}` is not {FORM}"))),
            }
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<First, E> {
            match text {
                "by-transport" => Ok(First::ByTransport),
                "oldest" => Ok(First::Oldest),
                "live" => Ok(First::Live),
                _ => match text.parse() {
                    Ok(number) => self.visit_i64(number),
                    Err(_) => Err(E::custom(format!("`{text}` is not {FORM}"))),
                },
            }
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<First, D::Error> {
        deserializer.deserialize_any(Begin)
    }

    pub fn serialize<S: Serializer>(first: &First, serializer: S) -> Result<S::Ok, S::Error> {
        match first {
            First::ByTransport => serializer.serialize_str("by-transport"),
            First::Oldest => serializer.serialize_str("oldest"),
            First::Live => serializer.serialize_str("live"),
            First::Newest(newest) => serializer.serialize_i64(-i64::from(*newest)),
        }
    }
}
