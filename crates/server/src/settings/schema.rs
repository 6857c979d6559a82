//! The table of settings: one entry for each field of [`File`], made from the JSON Schema of [`File`]. The parser, the checks of single
//! values, the flags and the documents are made from this table, so that a setting is defined in one place.
//!
//! The schema has the type, default, range (`minimum`, `maximum`), choices (`enum`) and help (`description`) of a setting. The unit is the last part of
//! its key. Our own attributes are:
//!
//! - `x-zero`: what 0 means for a setting whose range does not include 0.
//! - `x-changes`: whether a change needs a restart.
//! - `x-flag`: the flag of `crore serve`.
//! - `x-share`: the share of the value that one client address may take.

#[cfg(test)]
mod documents;
mod setting;

use std::sync::LazyLock;

use serde_json::Value as Json;
use toml::{Table, Value};

use super::file::File;
use super::problems::Problems;
use super::units::format_size;
pub use setting::Setting;
use setting::Unit;

/// The minimum similarity (Jaro-Winkler, from 0 to 1) of a name that is suggested for a misspelt one.
const MIN_SIMILARITY: f64 = 0.8;

/// The prefix of environment variables that are settings.
pub const VARIABLE_PREFIX: &str = "CRORE_";

/// The table of all settings.
pub static SCHEMA: LazyLock<Schema> = LazyLock::new(|| {
    let generator =
        schemars::generate::SchemaSettings::draft07().with(|it| it.inline_subschemas = true);
    let json = generator.into_generator().into_root_schema_for::<File>();
    let mut schema = Schema {
        json: json.to_value(),
        sections: Vec::new(),
        settings: Vec::new(),
    };
    let json = schema.json.clone();
    schema.add_properties("", &json, false, false);
    schema
});

/// All settings, in the order of the file.
pub struct Schema {
    /// The JSON Schema.
    pub json: Json,
    pub sections: Vec<Section>,
    pub settings: Vec<Setting>,
}

/// A table of the file.
pub struct Section {
    pub path: String,
    /// Whether the section is a list of tables, such as `[[rule]]`.
    pub is_list: bool,
}

impl Schema {
    /// Adds the sections and settings of this schema object, and of the objects within it.
    fn add_properties(&mut self, path: &str, json: &Json, needs_restart: bool, is_in_list: bool) {
        for (key, json) in json["properties"].as_object().into_iter().flatten() {
            let path = join_path(path, key);
            let restart = needs_restart || json["x-changes"] == "restart";
            let is_list = json["items"].get("properties").is_some();
            let section_json = if is_list { &json["items"] } else { json };
            if section_json.get("properties").is_some() {
                self.sections.push(Section {
                    path: path.clone(),
                    is_list,
                });
                self.add_properties(&path, section_json, restart, is_in_list || is_list);
            } else {
                let json = json.clone();
                let variable = VARIABLE_PREFIX.to_string() + &path.replace('.', "_").to_uppercase();
                self.settings.push(Setting {
                    path,
                    variable: (!is_in_list).then_some(variable),
                    needs_restart: restart,
                    json,
                });
            }
        }
    }

    pub fn setting(&self, path: &str) -> Option<&Setting> {
        self.settings.iter().find(|setting| setting.path == path)
    }

    /// Converts the values of a file to the form that [`File`] deserializes. Faulty values are reported and left out.
    pub fn to_deserializable(&self, table: Table, problems: &mut Problems) -> Table {
        self.convert_table("", "", table, problems)
    }

    /// Converts the table at `path`. Problems are reported at `reported_path`, which is `path` with the indices in lists, such as `rule[2]`.
    fn convert_table(
        &self,
        path: &str,
        reported_path: &str,
        table: Table,
        problems: &mut Problems,
    ) -> Table {
        let mut converted = Table::new();
        for (key, value) in table {
            let (path, reported_path) = (join_path(path, &key), join_path(reported_path, &key));
            let section = self.sections.iter().find(|it| it.path == path);
            let is_list = section.map(|it| it.is_list);
            let value = match (self.setting(&path), is_list, value) {
                (Some(setting), _, value) => setting.convert_value(&reported_path, value, problems),
                (_, Some(false), Value::Table(table)) => Some(
                    self.convert_table(&path, &reported_path, table, problems)
                        .into(),
                ),
                (_, Some(true), Value::Array(list)) => {
                    self.convert_list(&path, &reported_path, list, problems)
                }
                (_, Some(true), Value::Table(_)) => {
                    problems.fail(
                        &reported_path,
                        format!("is a list of tables; write [[{path}]] instead of [{path}]"),
                    );
                    None
                }
                (_, Some(_), value) => {
                    problems.fail(
                        &reported_path,
                        format!(
                            "{} is not a table; write [{path}] and its keys below",
                            describe(&value)
                        ),
                    );
                    None
                }
                (None, None, _) => {
                    problems.fail_key(&reported_path, self.unknown_key_error(&path));
                    None
                }
            };
            converted.extend(value.map(|value| (key, value)));
        }
        converted
    }

    /// Converts a list of tables.
    fn convert_list(
        &self,
        path: &str,
        reported_path: &str,
        list: Vec<Value>,
        problems: &mut Problems,
    ) -> Option<Value> {
        let tables = list.into_iter().enumerate().map(|(index, value)| {
            let reported_path = format!("{reported_path}[{}]", index + 1);
            match value {
                Value::Table(table) => self
                    .convert_table(path, &reported_path, table, problems)
                    .into(),
                value => {
                    problems.fail(
                        reported_path,
                        format!("{} is not a table; write [[{path}]]", describe(&value)),
                    );
                    Value::from(Table::new())
                }
            }
        });
        Some(Value::Array(tables.collect()))
    }

    /// The error message for an unknown key.
    fn unknown_key_error(&self, path: &str) -> String {
        let (table, wrong_key) = split_path(path);
        let all_paths = || {
            let sections = self.sections.iter().map(|it| &it.path);
            sections.chain(self.settings.iter().map(|setting| &setting.path))
        };
        let keys_here: Vec<&str> = all_paths()
            .map(|path| split_path(path))
            .filter(|it| it.0 == table)
            .map(|it| it.1)
            .collect();
        let same_key: Vec<&str> = self
            .settings
            .iter()
            .filter(|setting| setting.key() == wrong_key)
            .map(|setting| &setting.path[..])
            .collect();
        let suggestion = match most_similar(&keys_here, wrong_key) {
            _ if !same_key.is_empty() => {
                format!("; did you mean `{}`?", same_key.join("` or `"))
            }
            Some(name) => format!("; did you mean `{}`?", join_path(table, name)),
            None => format!("; here stand `{}`.", keys_here.join("`, `")),
        };
        format!(
            "unknown setting{suggestion} Correct the name or remove the key (docs/SETTINGS.md lists all settings)"
        )
    }

    /// The settings as a file, with units for sizes.
    pub fn to_file(&self, file: &File) -> Table {
        let mut table = to_table(file);
        self.format_sizes("", &mut table);
        table
    }

    /// Replaces sizes in bytes by text with a unit, such as `64 KiB`.
    fn format_sizes(&self, path: &str, table: &mut Table) {
        for (key, value) in table {
            let path = join_path(path, key);
            match value {
                Value::Table(table) => self.format_sizes(&path, table),
                Value::Array(list) => {
                    let tables = list.iter_mut().filter_map(Value::as_table_mut);
                    tables.for_each(|table| self.format_sizes(&path, table));
                }
                Value::Integer(bytes) => {
                    let is_size = self
                        .setting(&path)
                        .is_some_and(|setting| setting.unit() == Some(Unit::Bytes));
                    let text = usize::try_from(*bytes).ok().and_then(format_size);
                    if let Some(text) = text.filter(|_| is_size) {
                        *value = text.into();
                    }
                }
                _ => {}
            }
        }
    }
}

/// The settings as TOML.
pub fn to_table(file: &File) -> Table {
    Table::try_from(file).expect("settings are plain TOML values")
}

/// Describes a value in an error message.
fn describe(value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".to_string(),
        Value::Table(_) => "a table".to_string(),
        value => value.to_string(),
    }
}

/// The most similar name, if it is similar enough.
pub fn most_similar<'a>(names: &[&'a str], misspelt: &str) -> Option<&'a str> {
    let similarity = |name: &&str| strsim::jaro_winkler(name, misspelt);
    let candidate = names
        .iter()
        .copied()
        .max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
    candidate.filter(|name| similarity(name) >= MIN_SIMILARITY)
}

/// The path of a key in a table.
pub fn join_path(table: &str, key: &str) -> String {
    if table.is_empty() {
        key.to_string()
    } else {
        format!("{table}.{key}")
    }
}

/// Splits a path into its table and its key.
fn split_path(path: &str) -> (&str, &str) {
    path.rsplit_once('.').unwrap_or(("", path))
}
