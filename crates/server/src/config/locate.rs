//! Writes error lines with the place of a problem: `crore.toml:12:15: limits.topic_bytes: …`.
//!
//! A problem names a path such as `rule[2].match`. The path is looked up in the parsed document, so that the settings structs need no
//! spans.

use std::ops::Range;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use crate::settings::problems::Problem;

/// Paths that a variable or a flag has set, each with the name of the variable or flag. If a path occurs twice, the last entry counts.
pub type PathOverrides = Vec<(&'static str, &'static str)>;

/// Why the settings were refused. Displays one line for each problem.
#[derive(Debug, thiserror::Error)]
#[error("{}", .lines.join("\n"))]
pub struct ConfigError {
    pub(super) lines: Vec<String>,
}

impl ConfigError {
    pub(super) fn one(line: String) -> Self {
        ConfigError { lines: vec![line] }
    }

    /// Adds a first line that names the file of `--config`.
    pub(super) fn with_flag(mut self, path: &Path) -> Self {
        let faults = match self.lines.len() {
            1 => "a fault".to_string(),
            faults => format!("{faults} faults"),
        };
        let line = format!("--config {} has {faults}:", path.display());
        self.lines.insert(0, line);
        self
    }

    /// Sorts the lines by place.
    pub(super) fn sorted(mut lines: Vec<(SortOffset, String)>) -> Self {
        lines.sort_by_key(|(place, _)| *place);
        let lines = lines.into_iter().map(|(_, line)| line).collect();
        ConfigError { lines }
    }
}

/// The key by which error lines are sorted: the offset of the problem in the file. Flags and defaults come last.
pub type SortOffset = usize;

/// The line for a faulty value.
pub fn problem_line(
    file: &str,
    text: &str,
    overrides: &PathOverrides,
    problem: &Problem,
) -> (SortOffset, String) {
    let Problem { path, message, .. } = problem;
    let mut is_default = "";
    let (order, place) = match overrides.iter().rfind(|(key, _)| path_is_under(path, key)) {
        Some((_, flag)) => (SortOffset::MAX, (*flag).to_string()),
        None => match DeTable::parse(text)
            .ok()
            .and_then(|document| span(document.get_ref(), problem))
        {
            Some((span, true)) => (span.start, file_position(file, text, span.start)),
            // A missing key in an entry of a list has no default.
            Some((span, false)) if path.contains('[') => {
                (span.start, file_position(file, text, span.start))
            }
            // Neither in the file nor a flag: a default that conflicts with another setting.
            Some((span, false)) => {
                is_default = " (default)";
                (SortOffset::MAX, file_position(file, text, span.start))
            }
            None => (SortOffset::MAX, format!("{file} (default)")),
        },
    };
    (order, format!("{place}: {path}{is_default}: {message}"))
}

/// The line for text that is not TOML.
pub fn syntax_line(file: &str, text: &str, error: &toml::de::Error) -> (SortOffset, String) {
    let message = error.message().replace('\n', "; ");
    // The parser's messages, reworded where they are unclear.
    let problem = match message.strip_suffix(", expected `\"`") {
        Some(form) if form.ends_with("string") => {
            "the string is not closed; write `\"` at its end".to_string()
        }
        _ if message.ends_with("expected nothing") => {
            "neither a number nor true or false; write a text in quotes, such as \"127.0.0.1:8800\""
                .to_string()
        }
        _ => message.replace(", expected ", "; here may stand "),
    };
    let open = error.span().and_then(|span| text.get(..span.start));
    let open = open.map(open_lists).unwrap_or_default();
    let is_list = message.starts_with("unclosed array") && !message.contains("table");
    // The parser notices an unclosed list only later, where a line does not fit, or at the end of the file.
    if let Some(begin) = open.last().filter(|_| is_list) {
        let place = file_position(file, text, *begin);
        let problem = "the list that begins here is not closed; write ] at its end";
        return (*begin, format!("{place}: {problem}"));
    }
    match error.span() {
        Some(span) => (
            span.start,
            format!(
                "{}: {problem}{}",
                file_position(file, text, span.start),
                unclosed(text, span.start, &open)
            ),
        ),
        None => (SortOffset::MAX, format!("{file}: {problem}")),
    }
}

/// A hint for a fault at `offset` within a list that begins on an earlier line: perhaps that list is not closed.
fn unclosed(text: &str, offset: usize, open: &[usize]) -> String {
    let line = |at: usize| text[..at].matches('\n').count() + 1;
    let first = open.first().map(|begin| line(*begin));
    match first.filter(|first| *first < line(offset)) {
        Some(first) => format!("; or the list that begins in line {first} is not closed"),
        None => String::new(),
    }
}

/// The offsets of the lists that are open at the end of `text`, the innermost last.
fn open_lists(text: &str) -> Vec<usize> {
    let (mut open, mut quote, mut is_comment) = (Vec::new(), None, false);
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match (letter, quote) {
            ('\n', _) => (quote, is_comment) = (None, false),
            _ if is_comment => {}
            ('\\', Some('"')) => _ = letters.next(),
            (letter, Some(end)) if letter == end => quote = None,
            (_, Some(_)) => {}
            ('"' | '\'', None) => quote = Some(letter),
            ('#', None) => is_comment = true,
            ('[', None) => open.push(at),
            (']', None) => _ = open.pop(),
            _ => {}
        }
    }
    open
}

/// `file:line:column`, both counted from 1, the column in characters.
fn file_position(file: &str, text: &str, offset: usize) -> String {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let last = before.rsplit('\n').next().unwrap_or_default();
    format!("{file}:{line}:{}", last.chars().count() + 1)
}

pub fn path_is_under(path: &str, key: &str) -> bool {
    path.strip_prefix(key)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// The span of the value (or key) with the problem, and true. If the value does not exist, the span of the innermost table or list on its
/// path, and false.
fn span(table: &DeTable<'_>, problem: &Problem) -> Option<(Range<usize>, bool)> {
    let mut steps = (problem.path.split(['.', '['])).map(|step| step.trim_end_matches(']'));
    let (mut key, mut value) = table.get_key_value(steps.next()?)?;
    for step in steps {
        let next = match value.get_ref() {
            DeValue::Table(table) => table.get_key_value(step),
            DeValue::Array(list) => (step.parse::<usize>().ok())
                .and_then(|index| list.get(index.checked_sub(1)?))
                .map(|value| (key, value)),
            _ => None,
        };
        match next {
            Some(next) => (key, value) = next,
            None => return Some((value.span(), false)),
        }
    }
    let span = if problem.is_in_key {
        key.span()
    } else {
        value.span()
    };
    Some((span, true))
}

#[cfg(test)]
mod tests {
    use super::super::{ServeArgs, parse};
    use super::*;

    const EXAMPLE: &str = include_str!("../../../../docs/crore.example.toml");

    /// Parses `text`, and checks that each fault has a place and is one line.
    fn check_faults(text: &str) {
        let (_, faults) = parse(&ServeArgs::default(), Path::new("f"), text);
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
        // The settings that are commented out in the example are set here.
        let lines = EXAMPLE
            .lines()
            .map(|line| line.strip_prefix('#').unwrap_or(line));
        let settings = lines.filter(|line| !line.starts_with([' ', ':']));
        let text = &settings.collect::<Vec<_>>().join("\n");
        let (file, faults) = parse(&ServeArgs::default(), Path::new("f"), text);
        assert_eq!((faults, file.rules.len()), (Vec::new(), 1));
        for at in (0..text.len()).filter(|at| text.is_char_boundary(*at)) {
            check_faults(&text[..at]);
            // Not at every place, since each call parses the whole text.
            if !at.is_multiple_of(5) {
                continue;
            }
            for bad in ["0", "-", "\"", "[", "\u{fc}", "\0", "\n"] {
                check_faults(&format!("{}{bad}{}", &text[..at], &text[at..]));
            }
        }
    }

    #[test]
    fn unclosed_list_is_found_where_it_begins() {
        for (text, begin) in [
            ("a = [", vec![4]),
            ("a = [1]\nb = [ # ]\n 'x]', \"\\\"]\",\nc = 1", vec![12]),
            ("a = [[1], [2\nb = 2", vec![4, 10]),
            ("[t]\na = 1", vec![]),
        ] {
            assert_eq!(open_lists(text), begin, "{text}");
        }
    }

    #[test]
    fn places_count_characters_from_one() {
        assert_eq!(file_position("f", "", 0), "f:1:1");
        assert_eq!(file_position("f", "a\n\u{fc}b", 4), "f:2:2");
        assert_eq!(file_position("f", "a", 9), "f:1:2");
    }
}
