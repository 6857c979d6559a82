//! Values that TOML has no type for: sizes, times, networks, listen addresses, where a subscriber begins.
//!
//! Each reads through a visitor, so that an error carries the place of the value in the file.

use std::fmt;
use std::marker::PhantomData;
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

/// Milliseconds of each unit of a time.
const TIME_UNITS: [(&str, u64); 5] = [
    ("ms", 1),
    ("s", 1_000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
];

const TIME_FORM: &str = "a time; write one such as 90s, 15m, 8h or 30d";

/// Reads `90s`, `15m`, `8h`, `30d`, `1500ms`, or a number of units of `unit_ms` milliseconds, as a number of such units.
fn parse_time(text: &str, unit_ms: u64) -> Result<u64, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim();
    let factor = match TIME_UNITS.iter().find(|(name, _)| *name == unit) {
        Some((_, factor)) => Some(*factor),
        None => unit.is_empty().then_some(unit_ms),
    };
    let number = number.parse::<u64>().ok();
    let ms = number
        .zip(factor)
        .and_then(|(n, factor)| n.checked_mul(factor));
    let ms = ms.ok_or_else(|| format!("`{text}` is not {TIME_FORM}"))?;
    match ms.is_multiple_of(unit_ms) {
        true => Ok(ms / unit_ms),
        false => Err(format!(
            "`{text}` is no whole number of seconds; write one such as 90s"
        )),
    }
}

/// Reads `90s`, `15m`, `8h`, `30d` or a number of seconds as seconds.
///
/// # Errors
/// The fault, with the accepted forms.
pub fn parse_seconds<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let seconds = parse_time(text, 1_000)?;
    T::try_from(seconds).map_err(|_| format!("`{text}` is too long a time"))
}

/// The shortest exact form: `1h`, `90s`.
pub fn format_seconds(seconds: u64) -> String {
    let ms = seconds.saturating_mul(1_000);
    let mut units = TIME_UNITS.iter().rev();
    let found = units.find(|(_, factor)| ms > 0 && ms.is_multiple_of(*factor));
    found.map_or("0s".to_string(), |(unit, factor)| {
        format!("{}{unit}", ms / factor)
    })
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

/// A time, as so many units of `unit_ms` milliseconds.
struct Time<T> {
    unit_ms: u64,
    of: PhantomData<T>,
}

impl<T: TryFrom<u64>> Visitor<'_> for Time<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = if self.unit_ms == 1 {
            "milliseconds"
        } else {
            "seconds"
        };
        write!(
            f,
            "a time: {units} as a whole number, or a string such as \"90s\", \"15m\" or \"8h\""
        )
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<T, E> {
        let time = u64::try_from(value)
            .ok()
            .and_then(|time| T::try_from(time).ok());
        time.ok_or_else(|| E::invalid_value(de::Unexpected::Signed(value), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        let time = parse_time(text, self.unit_ms).map_err(E::custom)?;
        T::try_from(time).map_err(|_| E::custom(format!("`{text}` is too long a time")))
    }
}

/// `serde(with)` for times whose key says seconds (`_s`): written as a number of them.
pub mod seconds {
    use super::*;

    pub fn deserialize<'de, D, T>(deserializer: D) -> Result<T, D::Error>
    where
        D: Deserializer<'de>,
        T: TryFrom<u64>,
    {
        let (unit_ms, of) = (1_000, PhantomData);
        deserializer.deserialize_any(Time { unit_ms, of })
    }

    pub fn serialize<S, T>(time: &T, serializer: S) -> Result<S::Ok, S::Error>
    where
        S: Serializer,
        T: Copy + Into<u64>,
    {
        serializer.serialize_u64((*time).into())
    }
}

/// `serde(with)` for times whose key says milliseconds (`_ms`).
pub mod milliseconds {
    pub use super::seconds::serialize;
    use super::*;

    pub fn deserialize<'de, D, T>(deserializer: D) -> Result<T, D::Error>
    where
        D: Deserializer<'de>,
        T: TryFrom<u64>,
    {
        let (unit_ms, of) = (1, PhantomData);
        deserializer.deserialize_any(Time { unit_ms, of })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, expected) in [
            ("0", 0),
            ("90", 90),
            ("90s", 90),
            ("15m", 900),
            ("8 h", 28_800),
            ("30d", 2_592_000),
            ("2000ms", 2),
        ] {
            assert_eq!(parse_seconds(text), Ok(expected), "{text}");
        }
        for wrong in [
            "",
            "h",
            "1w",
            "1.5h",
            "-1s",
            "99999999999999999999d",
            "1500ms",
        ] {
            assert!(parse_seconds::<u64>(wrong).is_err(), "{wrong}");
        }
        assert!(parse_seconds::<u16>("1d").is_err());
        assert_eq!(parse_time("2s", 1), Ok(2_000));
        let written = [0, 1, 90, 3_600, 172_800].map(format_seconds);
        assert_eq!(written, ["0s", "1s", "90s", "1h", "2d"]);
    }
}
