//! Faults of settings: found section by section, told all at once.

use std::fmt::Display;
use std::ops::RangeInclusive;

use super::units::format_size;

/// A size as a person writes it.
pub fn size(bytes: usize) -> String {
    format_size(bytes).unwrap_or_else(|| bytes.to_string())
}

/// A value as a person writes it: where the key says bytes, a size.
fn shown(path: &str, value: &impl Display) -> String {
    let text = value.to_string();
    match text.parse() {
        Ok(bytes) if path.ends_with("_bytes") => size(bytes),
        _ => text,
    }
}

/// A value that is out of its range.
#[derive(Debug)]
pub struct Problem {
    /// Where, as `limits.topic_bytes` or `rule[2].match` (counted from 1).
    pub path: String,
    /// The fault, and what to write instead.
    pub what: String,
}

/// Collects problems.
#[derive(Default)]
pub struct Check {
    /// All that were found, in the order of the file's sections.
    pub problems: Vec<Problem>,
}

impl Check {
    /// Something is wrong with the value at `path`.
    pub fn fail(&mut self, path: impl Into<String>, what: impl Into<String>) {
        self.problems.push(Problem {
            path: path.into(),
            what: what.into(),
        });
    }

    /// The value must lie within the range.
    pub fn range<T: PartialOrd + Display>(
        &mut self,
        path: &str,
        value: T,
        range: RangeInclusive<T>,
    ) {
        if !range.contains(&value) {
            let [value, low, high] = [&value, range.start(), range.end()].map(|it| shown(path, it));
            self.fail(
                path,
                format!("{value} is out of range; write a value from {low} to {high}"),
            );
        }
    }

    /// Zero switches it off (or leaves it to the host); otherwise the range holds.
    pub fn zero_or<T: PartialOrd + Display + Default>(
        &mut self,
        path: &str,
        value: T,
        zero_means: &str,
        range: RangeInclusive<T>,
    ) {
        if value != T::default() && !range.contains(&value) {
            let [value, low, high] = [&value, range.start(), range.end()].map(|it| shown(path, it));
            self.fail(
                path,
                format!("{value} is out of range; write 0 ({zero_means}) or a value from {low} to {high}"),
            );
        }
    }

    /// The value must be as much as another setting's.
    pub fn at_least(&mut self, path: &str, value: usize, other: &str, least: usize) {
        if value < least {
            self.fail(
                path,
                format!(
                    "{} is less than {other} ({}); raise this or lower {other}",
                    size(value),
                    size(least)
                ),
            );
        }
    }
}

/// Checks that the values of a section lie in their ranges: `key: range;`, or where 0 stands for something,
/// `key ["what for"]: range;`.
macro_rules! ranges {
    ($check:ident, $section:literal, $of:ident; $($key:ident $([$zero:literal])?: $range:expr;)*) => {
        $(ranges!(@ $check, concat!($section, ".", stringify!($key)), $of.$key, [$($zero)?] $range);)*
    };
    (@ $check:ident, $path:expr, $value:expr, [] $range:expr) => {
        $check.range($path, $value, $range)
    };
    (@ $check:ident, $path:expr, $value:expr, [$zero:literal] $range:expr) => {
        $check.zero_or($path, $value, $zero, $range)
    };
}

pub(crate) use ranges;
