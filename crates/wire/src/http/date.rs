//! Reads and writes the dates of HTTP (RFC 9110 section 5.6.7), as seconds since 1970.
//!
//! The parser is deliberately lenient. It ignores the weekday, which adds no information. It accepts `UTC`, `Z`, `+0000` and `-0000` for
//! `GMT`, because libraries for mail dates write them.

use alloc::vec::Vec;

const WEEKDAYS: [&[u8; 3]; 7] = [b"Thu", b"Fri", b"Sat", b"Sun", b"Mon", b"Tue", b"Wed"];
const MONTHS: [&[u8; 3]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];
const DAY_S: u64 = 24 * 60 * 60;
/// The last second of the year 9999, after which the format has no dates.
pub const MAX_UNIX_S: u64 = 253_402_300_799;

/// Appends a date such as `Sun, 06 Nov 1994 08:49:37 GMT`. A time after [`MAX_UNIX_S`] is written as [`MAX_UNIX_S`].
pub fn write_date(out: &mut Vec<u8>, unix_s: u64) {
    let unix_s = unix_s.min(MAX_UNIX_S);
    let (days, second) = (unix_s / DAY_S, unix_s % DAY_S);
    let (year, month, day) = date_of_day(days);
    let mut text = *b"Thu, 01 Jan 1970 00:00:00 GMT";
    text[..3].copy_from_slice(WEEKDAYS[(days % 7) as usize]);
    write_two_digits(&mut text[5..7], day);
    text[8..11].copy_from_slice(MONTHS[month as usize - 1]);
    write_two_digits(&mut text[12..14], year / 100);
    write_two_digits(&mut text[14..16], year % 100);
    write_two_digits(&mut text[17..19], second / 3600);
    write_two_digits(&mut text[20..22], second / 60 % 60);
    write_two_digits(&mut text[23..25], second % 60);
    out.extend_from_slice(&text);
}

/// Parses an IMF-fixdate or one of the two obsolete forms. `None` for other text, a day that does not exist, or a date before 1970.
///
/// A year of two digits (RFC 850) is from 1970 to 2069. RFC 9110 chooses the century relative to the current year, which would need a
/// clock.
pub fn parse_date(text: &[u8]) -> Option<u64> {
    match memchr::memchr(b',', text) {
        Some(3) => parse_imf(&strip_utc_zone(text)?[3..]),
        Some(comma) if (6..=9).contains(&comma) => parse_rfc850(&strip_utc_zone(text)?[comma..]),
        Some(_) => None,
        None => parse_asctime(text),
    }
}

/// The text before the time zone, which must be UTC.
fn strip_utc_zone(text: &[u8]) -> Option<&[u8]> {
    let space = memchr::memrchr(b' ', text)?;
    let zones: [&[u8]; 5] = [b"GMT", b"UTC", b"Z", b"+0000", b"-0000"];
    let is_utc = zones
        .iter()
        .any(|zone| text[space + 1..].eq_ignore_ascii_case(zone));
    is_utc.then_some(&text[..space])
}

/// Parses `, 06 Nov 1994 08:49:37`.
fn parse_imf(text: &[u8]) -> Option<u64> {
    let text: &[u8; 22] = text.try_into().ok()?;
    if &text[..2] != b", " || text[4] != b' ' || text[8] != b' ' || text[13] != b' ' {
        return None;
    }
    let year = parse_number(&text[9..13])?;
    unix_seconds(
        year,
        parse_month(&text[5..8])?,
        parse_number(&text[2..4])?,
        parse_time(&text[14..22])?,
    )
}

/// Parses `, 06-Nov-94 08:49:37`.
fn parse_rfc850(text: &[u8]) -> Option<u64> {
    let text: &[u8; 20] = text.try_into().ok()?;
    if &text[..2] != b", " || text[4] != b'-' || text[8] != b'-' || text[11] != b' ' {
        return None;
    }
    let year = parse_number(&text[9..11])?;
    let year = if year < 70 { 2000 + year } else { 1900 + year };
    unix_seconds(
        year,
        parse_month(&text[5..8])?,
        parse_number(&text[2..4])?,
        parse_time(&text[12..20])?,
    )
}

/// Parses `Sun Nov  6 08:49:37 1994`.
fn parse_asctime(text: &[u8]) -> Option<u64> {
    let text: &[u8; 24] = text.try_into().ok()?;
    if text[3] != b' ' || text[7] != b' ' || text[10] != b' ' || text[19] != b' ' {
        return None;
    }
    let day = if text[8] == b' ' {
        parse_number(&text[9..10])?
    } else {
        parse_number(&text[8..10])?
    };
    unix_seconds(
        parse_number(&text[20..])?,
        parse_month(&text[4..7])?,
        day,
        parse_time(&text[11..19])?,
    )
}

/// The second of the day. Second 60, a leap second, becomes second 0 of the next minute.
fn parse_time(text: &[u8]) -> Option<u64> {
    let [h1, h2, b':', m1, m2, b':', s1, s2] = *text else {
        return None;
    };
    let (hour, minute, second) = (
        parse_number(&[h1, h2])?,
        parse_number(&[m1, m2])?,
        parse_number(&[s1, s2])?,
    );
    (hour < 24 && minute < 60 && second <= 60).then_some(hour * 3600 + minute * 60 + second)
}

fn parse_month(name: &[u8]) -> Option<u64> {
    MONTHS
        .iter()
        .position(|m| m[..] == *name)
        .map(|index| index as u64 + 1)
}

fn parse_number(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0, |n, d| {
        d.is_ascii_digit().then(|| n * 10 + u64::from(d - b'0'))
    })
}

fn write_two_digits(out: &mut [u8], n: u64) {
    out[0] = b'0' + (n / 10) as u8;
    out[1] = b'0' + (n % 10) as u8;
}

fn unix_seconds(year: u64, month: u64, day: u64, second: u64) -> Option<u64> {
    if year < 1970 || day == 0 || day > month_days(year, month) {
        return None;
    }
    Some(days_since_1970(year, month, day) * DAY_S + second)
}

const fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

const fn month_days(year: u64, month: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from March 1 of year 0 to 1970-01-01, in the proleptic Gregorian calendar. Years that begin in March make the arithmetic simpler,
/// because their leap day is the last day.
const DAYS_FROM_MARCH_0_TO_1970: u64 = 719_468;

fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year * 365 + year / 4 - year / 100 + year / 400 + day_of_year - DAYS_FROM_MARCH_0_TO_1970
}

/// Year, month and day of the date `days` after 1970-01-01.
fn date_of_day(days: u64) -> (u64, u64, u64) {
    let days = days + DAYS_FROM_MARCH_0_TO_1970;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}
