//! Parses and formats sizes and times with units, for which TOML has no type.

/// Units of a size, with their bytes: first the binary, then the decimal ones, each from the largest to the smallest.
const SIZE_UNITS: [(&str, usize); 7] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// The accepted forms, for error messages.
pub const SIZE_FORM: &str =
    "a size; write bytes as a whole number, or a string such as \"64 KiB\", \"1 MiB\" or \"10 GB\"";

/// Parses `65536`, `64 KiB` or `64KiB` as bytes.
pub fn parse_size(text: &str) -> Result<usize, String> {
    let (number, unit) = split_unit(text);
    let factor = match SIZE_UNITS.iter().find(|(name, _)| *name == unit) {
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

/// Splits `64 KiB` or `64KiB` into the digits and the unit.
fn split_unit(text: &str) -> (&str, &str) {
    let digit_count = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digit_count);
    (number, unit.trim())
}

/// The shortest exact form, such as `1 MiB` or `10 GB`; none if no unit (except the byte and kB) divides the bytes.
pub fn format_size(bytes: usize) -> Option<String> {
    let divides = |factor: usize| bytes >= factor && bytes.is_multiple_of(factor);
    let units = SIZE_UNITS[..5]
        .iter()
        .filter(|(_, factor)| divides(*factor));
    let (name, factor) = units.max_by_key(|(_, factor)| *factor)?;
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

/// The accepted forms, for error messages.
pub const TIME_FORM: &str = "a time; write one such as 90s, 15m, 8h or 30d";

/// Parses `90s`, `15m`, `8h`, `30d` or `1500ms` as a number of units of `unit_ms` milliseconds. A bare number counts these units.
pub fn parse_time(text: &str, unit_ms: u64) -> Result<u64, String> {
    let (number, unit) = split_unit(text);
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

/// Parses `90s`, `15m`, `8h`, `30d` or a bare number of seconds as seconds.
pub fn parse_seconds<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let seconds = parse_time(text, 1_000)?;
    T::try_from(seconds).map_err(|_| format!("`{text}` is too long a time"))
}

/// The shortest exact form, such as `1h` or `90s`.
pub fn format_seconds(seconds: u64) -> String {
    let ms = seconds.saturating_mul(1_000);
    let mut units = TIME_UNITS.iter().rev();
    let largest_exact = units.find(|(_, factor)| ms > 0 && ms.is_multiple_of(*factor));
    largest_exact.map_or("0s".to_string(), |(unit, factor)| {
        format!("{}{unit}", ms / factor)
    })
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
