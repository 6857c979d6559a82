//! One setting: what its schema says, and whether a value of a file fits.

use std::path::Path;

use serde::Deserialize as _;
use serde_json::Value as Json;
use toml::{Table, Value};

use super::{SCHEMA, nearest, shown, split};
use crate::settings::file::File;
use crate::settings::problems::{Check, size};
use crate::settings::units::{SIZE_FORM, TIME_FORM, parse_size, parse_time};

/// The forms of values that are paths.
const PATHS: [&str; 3] = ["a file", "a PEM file", "a directory"];

/// One setting.
pub struct Row {
    /// Its key behind that of its table: `limits.topic_bytes`, `rule.keep`.
    pub path: String,
    /// The variable of the environment that gives it: `CRORE_LIMITS_TOPIC_BYTES`. None in a list of tables, where it would not say of which.
    pub variable: Option<String>,
    /// Whether a running server keeps the value that it has.
    pub restart: bool,
    pub(super) json: Json,
}

/// The unit of a number, by the last part of its key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Bytes,
    /// So many milliseconds.
    Time(u64),
}

impl Row {
    /// The last part of its path.
    pub fn key(&self) -> &str {
        split(&self.path).1
    }

    /// The path of its table.
    pub fn table(&self) -> &str {
        split(&self.path).0
    }

    /// A word of the schema: `x-flag`, `x-zero`, `description`.
    pub fn word(&self, name: &str) -> Option<&str> {
        self.json[name].as_str()
    }

    /// Its effect, and the meaning of 0: the first paragraph of its help.
    pub fn meaning(&self) -> String {
        let help = self.word("description").unwrap_or_default();
        let first = help.split("\n\n").next().unwrap_or_default();
        let first = first.replace('\n', " ");
        match self.word("x-zero") {
            Some(zero) => format!("{first} 0: {zero}."),
            None => first,
        }
    }

    /// The first sentence of its help, and those about what stands for nothing or for the host.
    pub fn brief(&self) -> String {
        let help = self.meaning();
        let special = |it: &&str| {
            ["0: ", "Empty: ", "`\"\"`: "]
                .iter()
                .any(|sign| it.starts_with(sign))
        };
        let mut sentences = help.split(". ");
        let first = sentences.next().into_iter();
        let brief: Vec<_> = first
            .chain(sentences.filter(special))
            .map(plain_text)
            .collect();
        brief.join(". ")
    }

    /// The default as a file has it.
    pub fn default_text(&self) -> Option<String> {
        let value: Value = serde_json::from_value(self.json.get("default")?.clone()).ok()?;
        Some(match value {
            Value::Integer(number) => match self.number(number) {
                text if text.contains(' ') => format!("\"{text}\""),
                text => text,
            },
            value => value.to_string(),
        })
    }

    /// Whether it is a list of values.
    pub fn is_list(&self) -> bool {
        self.json.get("items").is_some()
    }

    /// Whether one value may stand where a list is asked for.
    fn takes_one(&self) -> bool {
        self.json["type"].is_array() && self.is_list()
    }

    /// Whether it is where to listen.
    fn is_address(&self) -> bool {
        matches!(self.word("format"), Some("an address" | "addresses"))
    }

    /// The schema of the value, or of each value of a list.
    fn item(&self) -> &Json {
        self.json.get("items").unwrap_or(&self.json)
    }

    pub(super) fn is(&self, kind: &str) -> bool {
        let is = |of: &Json| of == kind;
        is(&self.item()["type"])
            || self.item()["type"]
                .as_array()
                .is_some_and(|all| all.iter().any(is))
    }

    /// The values that are offered, where these are few.
    pub(super) fn choices(&self) -> Vec<Value> {
        let (names, each) = (&self.item()["enum"], &self.item()["oneOf"]);
        let names = names.as_array().into_iter().flatten();
        let each = each
            .as_array()
            .into_iter()
            .flatten()
            .map(|one| &one["const"]);
        let value = |json: &Json| match json {
            Json::String(text) => Some(text.as_str().into()),
            json => json.as_i64().map(Value::from),
        };
        names.chain(each).filter_map(value).collect()
    }

    /// The least and the largest number.
    pub(super) fn range(&self) -> (i64, i64) {
        let bound = |name: &str| self.item()[name].as_i64();
        let largest = match self.item()["format"].as_str() {
            Some("uint32") => u32::MAX.into(),
            _ => i64::MAX,
        };
        (
            bound("minimum").unwrap_or(0),
            bound("maximum").unwrap_or(largest),
        )
    }

    pub(super) fn unit(&self) -> Option<Unit> {
        let key = self
            .key()
            .trim_end_matches("_max")
            .trim_end_matches("_per_address");
        match key.rsplit('_').next() {
            _ if !self.is("integer") || key.ends_with("_per_s") => None,
            Some("bytes") => Some(Unit::Bytes),
            Some("s") => Some(Unit::Time(1_000)),
            Some("ms") => Some(Unit::Time(1)),
            _ => None,
        }
    }

    /// The value that the file has at `place`, as [`File`] takes it.
    pub(super) fn value(&self, place: &str, value: Value, check: &mut Check) -> Option<Value> {
        // One address is a list of it, and its place has no number.
        let is_one = !value.is_array();
        let list = match value {
            Value::Array(list) if self.is_list() => list,
            Value::String(_) | Value::Integer(_) if self.takes_one() => vec![value],
            Value::Array(_) | Value::Table(_) => {
                check.fail(place, format!("{} is not {}", shown(&value), self.form()));
                return None;
            }
            value if self.is_list() => {
                check.fail(place, format!("is a list; write [{value}]"));
                return None;
            }
            value => {
                let entry = self.entry(value).map_err(|what| check.fail(place, what));
                return entry.ok().map(|value| self.placed(value, &check.folder));
            }
        };
        let before = check.problems.len();
        let each = list.into_iter().enumerate().filter_map(|(index, value)| {
            let place = match is_one {
                true => place.to_string(),
                false => format!("{place}[{}]", index + 1),
            };
            let entry = self.entry(value);
            entry.map_err(|what| check.fail(place, what)).ok()
        });
        let list: Vec<Value> = each.collect();
        (check.problems.len() == before).then_some(list.into())
    }

    /// A path as it is from everywhere; a relative one begins at `folder`.
    fn placed(&self, value: Value, folder: &Path) -> Value {
        let is_path = self.word("format").is_some_and(|it| PATHS.contains(&it));
        let text = value.as_str().filter(|text| is_path && !text.is_empty());
        let path = text.and_then(|text| std::path::absolute(folder.join(text)).ok());
        match path.as_deref().and_then(Path::to_str) {
            Some(path) => path.into(),
            None => value,
        }
    }

    /// The value in the form that [`File`] takes, or its fault.
    fn entry(&self, value: Value) -> Result<Value, String> {
        let choices = self.choices();
        if !choices.is_empty() {
            return match choices.contains(&value) {
                true => Ok(value),
                false => Err(
                    format!("{} is not offered; write {}", shown(&value), self.form())
                        + &self.meant(&value),
                ),
            };
        }
        match (&value, self.unit()) {
            (Value::String(text), Some(Unit::Bytes)) => {
                let bytes = i64::try_from(parse_size(text)?);
                self.in_range(bytes.unwrap_or(i64::MAX))
            }
            (Value::String(text), Some(Unit::Time(unit_ms))) => {
                let time = i64::try_from(parse_time(text, unit_ms)?);
                self.in_range(time.unwrap_or(i64::MAX))
            }
            // A port of the loopback.
            (Value::Integer(port), _) if self.is_address() => self.tried(port.to_string().into()),
            (Value::String(_) | Value::Integer(_), _) if self.is("string") => self.tried(value),
            (Value::Integer(number), _) if self.is("integer") => self.in_range(*number),
            (Value::Boolean(_), _) if self.is("boolean") => Ok(value),
            _ => Err(format!("{} is not {}", shown(&value), self.form())),
        }
    }

    /// A value whose type reads it itself, such as an address.
    fn tried(&self, value: Value) -> Result<Value, String> {
        if !self.is("integer") && !value.is_str() {
            return Err(format!("{value} is not {}", self.form()));
        }
        let listed = |value| {
            if self.is_list() {
                Value::Array(vec![value])
            } else {
                value
            }
        };
        let mut parts = self.path.rsplit('.');
        let key = parts.next().unwrap_or_default().to_string();
        let mut table = Table::from_iter([(key, listed(value.clone()))]);
        let mut path = self.table();
        for part in parts {
            let is_list = SCHEMA.sections.contains(&(path.to_string(), true));
            let inner = if is_list {
                Value::Array(vec![table.into()])
            } else {
                table.into()
            };
            table = Table::from_iter([(part.to_string(), inner)]);
            path = split(path).0;
        }
        File::deserialize(table).map_err(|error| error.message().to_string())?;
        Ok(value)
    }

    fn in_range(&self, number: i64) -> Result<Value, String> {
        let (low, high) = self.range();
        let zero = self.word("x-zero");
        if (low..=high).contains(&number) || number == 0 && zero.is_some() {
            return Ok(number.into());
        }
        let number = self.number(number);
        Err(format!("{number} is out of range; write {}", self.wanted()))
    }

    /// The numbers that fit.
    fn wanted(&self) -> String {
        let zero = self.word("x-zero");
        let zero = zero.map_or(String::new(), |zero| format!("0 ({zero}) or "));
        let (low, high) = self.range();
        let upper = match high {
            i64::MAX => "upwards".to_string(),
            high => format!("to {}", self.number(high)),
        };
        format!("{zero}a value from {} {upper}", self.number(low))
    }

    /// A number as a person writes it: where the key says bytes, a size.
    pub(super) fn number(&self, number: i64) -> String {
        match (self.unit(), usize::try_from(number)) {
            (Some(Unit::Bytes), Ok(bytes)) => size(bytes),
            _ => number.to_string(),
        }
    }

    /// The form of a value, for the error about another one.
    fn form(&self) -> String {
        let choices: Vec<String> = self.choices().iter().map(Value::to_string).collect();
        match (choices.split_last(), self.unit()) {
            (Some((last, [])), _) => last.clone(),
            (Some((last, others)), _) => format!("{} or {last}", others.join(", ")),
            (None, Some(Unit::Bytes)) => SIZE_FORM.to_string(),
            (None, Some(Unit::Time(_))) => TIME_FORM.to_string(),
            _ if self.is("boolean") => "a boolean; write true or false, without quotes".to_string(),
            _ if self.is("string") => "a string; write it in quotes".to_string(),
            _ => format!("a whole number; write {}, without quotes", self.wanted()),
        }
    }

    /// The choice that was probably meant.
    fn meant(&self, value: &Value) -> String {
        let choices = self.choices();
        let names: Vec<&str> = choices.iter().filter_map(Value::as_str).collect();
        let near = nearest(&names, value.as_str().unwrap_or_default());
        near.map_or(String::new(), |name| format!("; did you mean \"{name}\"?"))
    }

    /// The value that a flag gives as text.
    pub fn of_text(&self, text: &str) -> Result<Value, String> {
        self.entry(self.typed(text))
    }

    /// The value that a variable gives as text, for a table that is read: a list has commas between its entries.
    pub fn of_variable(&self, text: &str) -> Value {
        match self.is_list() {
            true => {
                let entries = text.split(',').map(|entry| self.typed(entry.trim()));
                Value::Array(entries.collect())
            }
            false => self.typed(text),
        }
    }

    /// A text as the value of a file that stands for it.
    fn typed(&self, text: &str) -> Value {
        let number = text.parse::<i64>().ok().filter(|_| self.is("integer"));
        match (number, text) {
            (Some(number), _) => number.into(),
            (_, "true" | "false") if self.is("boolean") => (text == "true").into(),
            _ => text.into(),
        }
    }
}

/// A sentence of a help without the signs of Markdown, and without what only links.
fn plain_text(sentence: &str) -> String {
    let mut text = sentence.trim_end_matches('.').replace('`', "");
    while let Some(end) = text.find("](") {
        let after = end + text[end..].find(')').map_or(2, |close| close + 1);
        let start = text[..end].rfind('[').unwrap_or(end);
        if text[..start].ends_with(" (") && text[after..].starts_with(')') {
            text.replace_range(start - 2..=after, "");
        } else {
            text.replace_range(end..after, "");
            text.remove(start);
        }
    }
    text
}
