//! Formats numbers for people, and parses counts.

/// A count with commas between thousands; "unlimited" for `u64::MAX`.
pub fn format_count(number: u64) -> String {
    if number == u64::MAX {
        return "unlimited".to_string();
    }
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Parses `1000000`, `1,000,000`, `1_000_000`, `10k` or `1m`.
pub fn parse_count(text: &str) -> Result<u64, String> {
    let thousands = text.strip_suffix(['k', 'K']);
    let millions = text.strip_suffix(['m', 'M']);
    let (digits, factor) = match (thousands, millions) {
        (Some(digits), _) => (digits, 1_000),
        (_, Some(digits)) => (digits, 1_000_000),
        _ => (text, 1),
    };
    let number: Option<u64> = digits.replace([',', '_'], "").parse().ok();
    let number = number.and_then(|number| number.checked_mul(factor));
    number.ok_or_else(|| "write a count, such as 10000, 1,000,000, 10k or 1m".to_string())
}

/// A number of bytes in the largest unit (B, KiB, MiB or GiB) that is not more than the number.
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [(&str, u32); 3] = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match UNITS.iter().find(|(_, shift)| bytes >= 1 << shift) {
        Some((name, shift)) => {
            let value = bytes as f64 / (1_u64 << shift) as f64;
            format!("{value:.1} {name}")
        }
        None => format!("{bytes} B"),
    }
}

/// A time in its two largest units, or in seconds.
pub fn format_duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_and_counts_are_parsed() {
        assert_eq!(format_count(0), "0");
        assert_eq!(format_count(999), "999");
        assert_eq!(format_count(1_000), "1,000");
        assert_eq!(format_count(12_345_678), "12,345,678");
        assert_eq!(format_count(u64::MAX), "unlimited");
        for (text, number) in [
            ("7", 7),
            ("1,000,000", 1_000_000),
            ("1_000", 1_000),
            ("10k", 10_000),
            ("2M", 2_000_000),
        ] {
            assert_eq!(parse_count(text), Ok(number));
        }
        for wrong in ["", "k", "1g", "-1", "1.5m", "99999999999999m"] {
            assert!(parse_count(wrong).is_err(), "{wrong}");
        }
        for (s, text) in [
            (59, "59 s"),
            (61, "1 min 1 s"),
            (3_599, "59 min 59 s"),
            (90_000, "1 d 1 h"),
        ] {
            assert_eq!(format_duration(s), text);
        }
        assert_eq!(format_bytes(1023), "1023 B");
        assert_eq!(format_bytes(1536), "1.5 KiB");
        assert_eq!(format_bytes(24 << 30), "24.0 GiB");
    }
}
