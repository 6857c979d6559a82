//! Parses times on the command line: `90`, `90s`, `1.5m`, `8h`, `250ms`.

/// Seconds of each unit.
const UNITS: [(&str, f64); 4] = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3_600.0)];

/// Parses a time as seconds. Without a unit the number is in seconds.
///
/// # Errors
/// If the text is not a time. The error names the accepted forms.
pub fn seconds(text: &str) -> Result<f64, String> {
    time(text, 1.0)
}

/// Parses a time as whole seconds.
///
/// # Errors
/// If the text is not a time, the time has a fraction, or it does not fit into `T`.
pub fn whole_seconds<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let seconds = seconds(text)?;
    let whole = (seconds.fract() == 0.0).then_some(seconds as u64);
    let found = whole.and_then(|seconds| T::try_from(seconds).ok());
    found.ok_or_else(|| format!("`{text}` is no whole number of seconds that fits"))
}

/// Parses a time as milliseconds. Without a unit the number is in milliseconds.
///
/// # Errors
/// If the text is not a time. The error names the accepted forms.
pub fn milliseconds(text: &str) -> Result<f64, String> {
    Ok(time(text, 0.001)? * 1_000.0)
}

/// The seconds of a time. Without a unit the number is in units of `unit_s` seconds.
fn time(text: &str, unit_s: f64) -> Result<f64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" => Some(unit_s),
        name => UNITS.iter().find(|(unit, _)| *unit == name).map(|it| it.1),
    };
    let number = digits.trim_end().parse::<f64>().ok();
    let seconds = number.zip(unit).map(|(number, unit)| number * unit);
    let found = seconds.filter(|seconds| seconds.is_finite() && *seconds >= 0.0);
    found.ok_or_else(|| format!("`{text}` is not a time; write one such as 250ms, 90s, 15m or 8h"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, expected) in [
            ("90", 90.0),
            ("0.5", 0.5),
            ("90s", 90.0),
            ("1.5m", 90.0),
            ("2 h", 7_200.0),
            ("250ms", 0.25),
        ] {
            assert_eq!(seconds(text), Ok(expected), "{text}");
        }
        assert_eq!(milliseconds("5"), Ok(5.0));
        assert_eq!(milliseconds("2s"), Ok(2_000.0));
        assert_eq!(whole_seconds::<u32>("2m"), Ok(120));
        assert!(whole_seconds::<u8>("5m").is_err() && whole_seconds::<u8>("1.5").is_err());
        for wrong in ["", "s", "1w", "-1s", "inf", "nan", "1e999"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
