//! Turns a problem into a line that an operator can act on: `crore.toml:12:15: limits.topic_bytes: …`.
//!
//! A place is a path such as `rule[2].match`; it is looked up in the parsed document, so that the
//! settings structs need not carry spans.

use std::fmt;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::names;
use crate::settings::problems::Problem;

/// serde's error for a table where a list of tables belongs.
const TABLE_FOR_LIST: &str = "invalid type: map, expected a sequence";

/// Paths that a flag has set, with the flag's name.
pub type Flags = Vec<(&'static str, &'static str)>;

/// Why the settings were refused; displays one line for each problem.
#[derive(Debug)]
pub struct ConfigError {
    pub(super) lines: Vec<String>,
}

impl ConfigError {
    pub(super) fn one(line: String) -> Self {
        ConfigError { lines: vec![line] }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}

impl std::error::Error for ConfigError {}

/// Where a fault is told among the others: by its offset in the file, behind these what flags and defaults have.
pub type Place = usize;

/// The line for a value that parsed but is out of its range.
pub fn problem(file: &str, text: &str, flags: &Flags, problem: &Problem) -> (Place, String) {
    let Problem { path, what } = problem;
    let mut is_default = "";
    let (order, place) = match flags.iter().rfind(|(key, _)| path_is_under(path, key)) {
        Some((_, flag)) => (Place::MAX, (*flag).to_string()),
        None => match DeTable::parse(text)
            .ok()
            .and_then(|document| value_span(document.get_ref(), path))
        {
            Some((span, true)) => (span.start, at(file, text, span.start)),
            // What lacks in an entry of a list has no default.
            Some((span, false)) if path.contains('[') => (span.start, at(file, text, span.start)),
            // Neither in the file nor a flag: a default that another setting rules out, told behind what stands there.
            Some((span, false)) => {
                is_default = " (default)";
                (Place::MAX, at(file, text, span.start))
            }
            None => (Place::MAX, format!("{file} (default)")),
        },
    };
    (order, format!("{place}: {path}{is_default}: {what}"))
}

/// The line for text that is not TOML, has an unknown key or a value of the wrong type; and the path of the key.
pub fn parse_error(
    file: &str,
    text: &str,
    document: &DeTable<'_>,
    error: &toml::de::Error,
) -> (Place, Option<String>, String) {
    let message = plain(error.message());
    let Some(span) = error.span() else {
        return (Place::MAX, None, format!("{file}: {message}"));
    };
    let place = at(file, text, span.start);
    let path = path_at(document, &span);
    let line = match &path {
        Some(path) => match message.strip_prefix("unknown field ") {
            Some(rest) => format!("{place}: {path}: {}", names::unknown(path, rest)),
            // The keys that are lists of tables: `[rule]` is one table.
            None if message == TABLE_FOR_LIST => {
                format!(
                    "{place}: {path}: is a list of tables; write [[{path}]] instead of [{path}]"
                )
            }
            None => format!("{place}: {path}: {message}"),
        },
        None => format!("{place}: {message}"),
    };
    (span.start, path, line)
}

/// Says Rust's types in an operator's words.
fn plain(message: &str) -> String {
    let mut message = message.replace('\n', "; ");
    if let Some(found) = message.strip_suffix(", expected a sequence")
        && message != TABLE_FOR_LIST
    {
        let text = found.strip_prefix("invalid type: string ");
        let remedy = text.map_or("its values in brackets".to_string(), |text| {
            format!("[{text}]")
        });
        return format!("is a list; write {remedy}");
    }
    for (name, range) in [
        ("u8", "0 to 255"),
        ("u16", "0 to 65535"),
        ("u32", "0 to 4294967295"),
        ("usize", "0 upwards"),
    ] {
        if let Some(head) = message.strip_suffix(&format!("expected {name}")) {
            message = format!("{head}expected a whole number, {range}");
        }
    }
    match message.find("expected struct ") {
        Some(start) => format!("{}expected a table", &message[..start]),
        None => message,
    }
}

/// `file:line:column`, both counted from 1, the column in characters.
fn at(file: &str, text: &str, offset: usize) -> String {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before
        .rsplit('\n')
        .next()
        .unwrap_or_default()
        .chars()
        .count()
        + 1;
    format!("{file}:{line}:{column}")
}

pub fn path_is_under(path: &str, key: &str) -> bool {
    path.strip_prefix(key)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// The span of the value at `path`, or of the innermost table or list on the way that exists; and whether it is the value's.
fn value_span(table: &DeTable<'_>, path: &str) -> Option<(Range<usize>, bool)> {
    let mut steps = path
        .split(['.', '['])
        .map(|step| step.trim_end_matches(']'));
    let mut value = table.get(steps.next()?)?;
    for step in steps {
        let next = match value.get_ref() {
            DeValue::Table(table) => table.get(step),
            DeValue::Array(list) => step
                .parse::<usize>()
                .ok()
                .and_then(|index| list.get(index.checked_sub(1)?)),
            _ => None,
        };
        match next {
            Some(next) => value = next,
            None => return Some((value.span(), false)),
        }
    }
    Some((value.span(), true))
}

/// The path of the key or value that `span` lies in.
fn path_at(table: &DeTable<'_>, span: &Range<usize>) -> Option<String> {
    table.iter().find_map(|(key, value)| {
        if covers(&key.span(), span) {
            return Some(key.get_ref().to_string());
        }
        path_within(value, span).map(|rest| format!("{}{rest}", key.get_ref()))
    })
}

/// The rest of the path below a value, beginning with `.` or `[`, or nothing when the value itself is meant.
fn path_within(value: &Spanned<DeValue<'_>>, span: &Range<usize>) -> Option<String> {
    let below = match value.get_ref() {
        DeValue::Table(table) => path_at(table, span).map(|rest| format!(".{rest}")),
        DeValue::Array(list) => list.iter().enumerate().find_map(|(index, value)| {
            path_within(value, span).map(|rest| format!("[{}]{rest}", index + 1))
        }),
        _ => None,
    };
    below.or_else(|| covers(&value.span(), span).then(String::new))
}

pub fn covers(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::super::parse::{Parsed, parse};
    use super::*;

    const EXAMPLE: &str = include_str!("../../../../docs/crore.example.toml");

    /// Reads `text` as far as it can be read; whatever is wrong must have a place and fit a line.
    fn explain(text: &str) {
        let Parsed {
            file, mut faults, ..
        } = parse("f", text);
        if faults.is_empty() {
            let problems = check::problems(&file, false);
            let line = |found| problem("f", text, &Flags::new(), found);
            faults = problems.iter().map(line).collect();
        }
        for (_, line) in faults {
            let mut parts = line.split(':').skip(1);
            let mut number = || {
                parts
                    .next()?
                    .parse::<usize>()
                    .ok()
                    .filter(|number| *number > 0)
            };
            let placed = number().is_some() && number().is_some();
            assert!(placed && !line.contains('\n'), "{line:?} for {text:?}");
        }
    }

    #[test]
    fn whatever_is_wrong_has_a_place() {
        // Tables that are comments in the example count here.
        let is_setting = |line: &str| {
            let key = line.split_once(" = ").map(|(key, _)| key);
            line.starts_with('[')
                || key.is_some_and(|key| key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
        };
        let counts = |line: &'static str| {
            let setting = line.strip_prefix("# ").filter(|rest| is_setting(rest));
            setting.unwrap_or(line)
        };
        let text = EXAMPLE.lines().map(counts).collect::<Vec<_>>().join("\n");
        let text = &text[text.find("listen").unwrap()..];
        let whole = parse("f", text);
        assert_eq!((whole.faults, whole.file.rules.len()), (Vec::new(), 1));
        for at in (0..text.len()).filter(|at| text.is_char_boundary(*at)) {
            explain(&text[..at]);
            // Each costs a reading of the whole text.
            if !at.is_multiple_of(5) {
                continue;
            }
            for bad in ["0", "-", "\"", "[", "\u{fc}", "\0", "\n"] {
                explain(&format!("{}{bad}{}", &text[..at], &text[at..]));
            }
        }
    }

    #[test]
    fn places_count_characters_from_one() {
        assert_eq!(at("f", "", 0), "f:1:1");
        assert_eq!(at("f", "a\n\u{fc}b", 4), "f:2:2");
        assert_eq!(at("f", "a", 9), "f:1:2");
    }
}
