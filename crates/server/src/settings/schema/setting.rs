//! One setting of the table: its schema, and the checks of its values.

use std::path::Path;

use serde::Deserialize as _;
use serde_json::Value as Json;
use toml::{Table, Value};

use super::{SCHEMA, describe, most_similar, split_path};
use crate::settings::file::File;
use crate::settings::problems::{Problems, size_text};
use crate::settings::units::{SIZE_FORM, TIME_FORM, parse_size, parse_time};

/// The formats of settings that are paths.
const PATH_FORMATS: [&str; 3] = ["a file", "a PEM file", "a directory"];

/// A setting.
pub struct Setting {
    /// The table and the key: `limits.topic_bytes`, `rule.keep`.
    pub path: String,
    /// The environment variable: `CRORE_LIMITS_TOPIC_BYTES`. None in a list of tables, where a variable would be ambiguous.
    pub variable: Option<String>,
    /// Whether a change needs a restart.
    pub needs_restart: bool,
    pub(super) json: Json,
}

/// The unit of a number, by the last part of its key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Bytes,
    /// A time, in units of this number of milliseconds.
    Time(u64),
}

impl Setting {
    /// The last part of the path.
    pub fn key(&self) -> &str {
        split_path(&self.path).1
    }

    /// The path of the setting's table, which is the path without the key.
    pub fn table(&self) -> &str {
        split_path(&self.path).0
    }

    /// A text of the schema: `x-flag`, `x-zero`, `description`.
    pub fn text_attribute(&self, name: &str) -> Option<&str> {
        self.json[name].as_str()
    }

    /// The first paragraph of the help, and the meaning of 0.
    pub fn meaning(&self) -> String {
        let help = self.text_attribute("description").unwrap_or_default();
        let first = help.split("\n\n").next().unwrap_or_default();
        let first = first.replace('\n', " ");
        match self.text_attribute("x-zero") {
            Some(zero) => format!("{first} 0: {zero}."),
            None => first,
        }
    }

    /// The first sentence of the help, and the sentences that say what an empty value or 0 means.
    pub fn short_help(&self) -> String {
        let help = self.meaning();
        let is_about_special_value = |it: &&str| {
            ["0: ", "Empty: ", "`\"\"`: "]
                .iter()
                .any(|prefix| it.starts_with(prefix))
        };
        let mut sentences = help.split(". ");
        let first = sentences.next().into_iter();
        let sentences: Vec<_> = first
            .chain(sentences.filter(is_about_special_value))
            .map(plain_text)
            .collect();
        sentences.join(". ")
    }

    /// The default in TOML.
    pub fn default_text(&self) -> Option<String> {
        let value: Value = serde_json::from_value(self.json.get("default")?.clone()).ok()?;
        Some(match value {
            Value::Integer(number) => match self.format_number(number) {
                text if text.contains(' ') => format!("\"{text}\""),
                text => text,
            },
            value => value.to_string(),
        })
    }

    /// Whether the setting is a list of values.
    pub fn is_list(&self) -> bool {
        self.json.get("items").is_some()
    }

    /// Whether the file may have a single value instead of a list.
    fn accepts_single_value(&self) -> bool {
        self.json["type"].is_array() && self.is_list()
    }

    /// Whether the setting is an address to listen on, or a list of them.
    fn is_address(&self) -> bool {
        matches!(
            self.text_attribute("format"),
            Some("an address" | "addresses")
        )
    }

    /// The schema of the value, or of the values of a list.
    fn item_schema(&self) -> &Json {
        self.json.get("items").unwrap_or(&self.json)
    }

    pub(super) fn has_type(&self, kind: &str) -> bool {
        let equals = |json: &Json| json == kind;
        equals(&self.item_schema()["type"])
            || self.item_schema()["type"]
                .as_array()
                .is_some_and(|all| all.iter().any(equals))
    }

    /// The possible values of an enumeration; empty for other settings.
    pub(super) fn choices(&self) -> Vec<Value> {
        let (constants, variants) = (&self.item_schema()["enum"], &self.item_schema()["oneOf"]);
        let constant_values = constants.as_array().into_iter().flatten();
        let variant_values = variants
            .as_array()
            .into_iter()
            .flatten()
            .map(|one| &one["const"]);
        let value = |json: &Json| match json {
            Json::String(text) => Some(text.as_str().into()),
            json => json.as_i64().map(Value::from),
        };
        constant_values
            .chain(variant_values)
            .filter_map(value)
            .collect()
    }

    /// The lowest and the highest number.
    pub(super) fn range(&self) -> (i64, i64) {
        let limit_of = |name: &str| self.item_schema()[name].as_i64();
        let type_max = match self.item_schema()["format"].as_str() {
            Some("uint32") => u32::MAX.into(),
            _ => i64::MAX,
        };
        (
            limit_of("minimum").unwrap_or(0),
            limit_of("maximum").unwrap_or(type_max),
        )
    }

    pub(super) fn unit(&self) -> Option<Unit> {
        let key = self
            .key()
            .trim_end_matches("_max")
            .trim_end_matches("_per_address");
        match key.rsplit('_').next() {
            _ if !self.has_type("integer") || key.ends_with("_per_s") => None,
            Some("bytes") => Some(Unit::Bytes),
            Some("s") => Some(Unit::Time(1_000)),
            Some("ms") => Some(Unit::Time(1)),
            _ => None,
        }
    }

    /// Converts the file's value to the form that [`File`] deserializes; none if the value is faulty.
    pub(super) fn convert_value(
        &self,
        reported_path: &str,
        value: Value,
        problems: &mut Problems,
    ) -> Option<Value> {
        // A single value becomes a list of one value, and problems are then reported without an index.
        let is_single = !value.is_array();
        let list = match value {
            Value::Array(list) if self.is_list() => list,
            Value::String(_) | Value::Integer(_) if self.accepts_single_value() => vec![value],
            Value::Array(_) | Value::Table(_) => {
                problems.fail(
                    reported_path,
                    format!("{} is not {}", describe(&value), self.form_text()),
                );
                return None;
            }
            value if self.is_list() => {
                problems.fail(reported_path, format!("is a list; write [{value}]"));
                return None;
            }
            value => {
                let entry = self
                    .convert_entry(value)
                    .map_err(|message| problems.fail(reported_path, message));
                return entry
                    .ok()
                    .map(|value| self.to_absolute_path(value, &problems.folder));
            }
        };
        let problems_before = problems.list.len();
        let entries = list.into_iter().enumerate().filter_map(|(index, value)| {
            let reported_path = match is_single {
                true => reported_path.to_string(),
                false => format!("{reported_path}[{}]", index + 1),
            };
            let entry = self.convert_entry(value);
            entry
                .map_err(|message| problems.fail(reported_path, message))
                .ok()
        });
        let list: Vec<Value> = entries.collect();
        (problems.list.len() == problems_before).then_some(list.into())
    }

    /// Makes a path absolute; a relative path is relative to `folder`. Other values stay unchanged.
    fn to_absolute_path(&self, value: Value, folder: &Path) -> Value {
        let is_path = self
            .text_attribute("format")
            .is_some_and(|it| PATH_FORMATS.contains(&it));
        let text = value.as_str().filter(|text| is_path && !text.is_empty());
        let path = text.and_then(|text| std::path::absolute(folder.join(text)).ok());
        match path.as_deref().and_then(Path::to_str) {
            Some(path) => path.into(),
            None => value,
        }
    }

    /// Converts a value, or an entry of a list, to the form that [`File`] deserializes.
    fn convert_entry(&self, value: Value) -> Result<Value, String> {
        let choices = self.choices();
        if !choices.is_empty() {
            return match choices.contains(&value) {
                true => Ok(value),
                false => Err(format!(
                    "{} is not offered; write {}",
                    describe(&value),
                    self.form_text()
                ) + &self.suggestion(&value)),
            };
        }
        match (&value, self.unit()) {
            (Value::String(text), Some(Unit::Bytes)) => {
                let bytes = i64::try_from(parse_size(text)?);
                self.check_range(bytes.unwrap_or(i64::MAX))
            }
            (Value::String(text), Some(Unit::Time(unit_ms))) => {
                let time = i64::try_from(parse_time(text, unit_ms)?);
                self.check_range(time.unwrap_or(i64::MAX))
            }
            // A port alone, which stands for an address of the loopback.
            (Value::Integer(port), _) if self.is_address() => {
                self.check_by_deserializing(port.to_string().into())
            }
            (Value::String(_) | Value::Integer(_), _) if self.has_type("string") => {
                self.check_by_deserializing(value)
            }
            (Value::Integer(number), _) if self.has_type("integer") => self.check_range(*number),
            (Value::Boolean(_), _) if self.has_type("boolean") => Ok(value),
            _ => Err(format!("{} is not {}", describe(&value), self.form_text())),
        }
    }

    /// Checks a value whose type parses it, such as an address, by deserializing a [`File`] with it.
    fn check_by_deserializing(&self, value: Value) -> Result<Value, String> {
        if !self.has_type("integer") && !value.is_str() {
            return Err(format!("{value} is not {}", self.form_text()));
        }
        let in_list = |value| {
            if self.is_list() {
                Value::Array(vec![value])
            } else {
                value
            }
        };
        let mut parts = self.path.rsplit('.');
        let key = parts.next().unwrap_or_default().to_string();
        let mut table = Table::from_iter([(key, in_list(value.clone()))]);
        let mut path = self.table();
        for part in parts {
            let is_list = SCHEMA
                .sections
                .iter()
                .any(|it| it.path == path && it.is_list);
            let inner = if is_list {
                Value::Array(vec![table.into()])
            } else {
                table.into()
            };
            table = Table::from_iter([(part.to_string(), inner)]);
            path = split_path(path).0;
        }
        File::deserialize(table).map_err(|error| error.message().to_string())?;
        Ok(value)
    }

    fn check_range(&self, number: i64) -> Result<Value, String> {
        let (low, high) = self.range();
        let zero = self.text_attribute("x-zero");
        if (low..=high).contains(&number) || number == 0 && zero.is_some() {
            return Ok(number.into());
        }
        let number = self.format_number(number);
        Err(format!(
            "{number} is out of range; write {}",
            self.valid_numbers()
        ))
    }

    /// The valid numbers, for error messages.
    fn valid_numbers(&self) -> String {
        let zero = self.text_attribute("x-zero");
        let zero_text = zero.map_or(String::new(), |zero| format!("0 ({zero}) or "));
        let (low, high) = self.range();
        let upper = match high {
            i64::MAX => "upwards".to_string(),
            high => format!("to {}", self.format_number(high)),
        };
        format!(
            "{zero_text}a value from {} {upper}",
            self.format_number(low)
        )
    }

    /// A number as text: with a unit if it is a size.
    pub(super) fn format_number(&self, number: i64) -> String {
        match (self.unit(), usize::try_from(number)) {
            (Some(Unit::Bytes), Ok(bytes)) => size_text(bytes),
            _ => number.to_string(),
        }
    }

    /// What a valid value looks like, for error messages.
    fn form_text(&self) -> String {
        let choices: Vec<String> = self.choices().iter().map(Value::to_string).collect();
        match (choices.split_last(), self.unit()) {
            (Some((last, [])), _) => last.clone(),
            (Some((last, others)), _) => format!("{} or {last}", others.join(", ")),
            (None, Some(Unit::Bytes)) => SIZE_FORM.to_string(),
            (None, Some(Unit::Time(_))) => TIME_FORM.to_string(),
            _ if self.has_type("boolean") => {
                "a boolean; write true or false, without quotes".to_string()
            }
            _ if self.has_type("string") => "a string; write it in quotes".to_string(),
            _ => format!(
                "a whole number; write {}, without quotes",
                self.valid_numbers()
            ),
        }
    }

    /// A hint with the most similar choice.
    fn suggestion(&self, value: &Value) -> String {
        let choices = self.choices();
        let names: Vec<&str> = choices.iter().filter_map(Value::as_str).collect();
        let similar = most_similar(&names, value.as_str().unwrap_or_default());
        similar.map_or(String::new(), |name| format!("; did you mean \"{name}\"?"))
    }

    /// Converts the text of a flag.
    pub fn parse_flag(&self, text: &str) -> Result<Value, String> {
        self.convert_entry(self.toml_value(text))
    }

    /// Converts the text of a variable to a value of a file, which is checked later. Commas separate the entries of a list.
    pub fn parse_variable(&self, text: &str) -> Value {
        match self.is_list() {
            true => {
                let entries = text.split(',').map(|entry| self.toml_value(entry.trim()));
                Value::Array(entries.collect())
            }
            false => self.toml_value(text),
        }
    }

    /// Converts text to a TOML value of the setting's type.
    fn toml_value(&self, text: &str) -> Value {
        let number = text
            .parse::<i64>()
            .ok()
            .filter(|_| self.has_type("integer"));
        match (number, text) {
            (Some(number), _) => number.into(),
            (_, "true" | "false") if self.has_type("boolean") => (text == "true").into(),
            _ => text.into(),
        }
    }
}

/// A sentence of help without Markdown and without links.
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
