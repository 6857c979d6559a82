//! The flags of `crore serve`. Flags and environment variables override the settings file. Only settings that people change often have a flag, which the
//! attribute `x-flag` of the setting names.

use std::path::PathBuf;

use clap::error::Error;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use crore_broker::settings::Rule;
use toml::{Table, Value};

use super::locate::PathOverrides;
use super::variables::Variables;
use crate::settings::file::File;
use crate::settings::problems::Problems;
use crate::settings::schema::{SCHEMA, Setting};

/// The filter that matches every topic.
pub const ALL_TOPICS: &str = "#";

/// Flags of `crore serve`; each wins over the variables and the file.
#[derive(Clone, Default, Args)]
#[command(after_help = "\
Settings come from the defaults, then the file, then variables (CRORE_LISTEN),
then flags. docs/SETTINGS.md lists every key. SIZE is bytes, or has a unit:
64KiB, 1MiB. TIME is seconds, or has a unit: 90s, 15m, 8h.

Examples:
  crore serve --listen 127.0.0.1:8800 --listen '[::1]:8800' --shards 2
  crore serve --config crore.toml --check       check, and print what would hold
  crore serve --allowed-origin null             let pages from files in
  crore serve --allowed-origin http://127.0.0.1:3000
  crore serve --listen 0.0.0.0:8800 --insecure  whoever reaches it may publish")]
pub struct ServeArgs {
    #[command(flatten)]
    pub settings: SettingFlags,

    /// Read settings from this file instead of ./crore.toml
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Check the settings and what they name, print them as TOML, and exit
    #[arg(long)]
    pub check: bool,

    /// Permit addresses that are not loopback: everyone who reaches them may publish and subscribe
    #[arg(long)]
    pub insecure: bool,

    /// Messages kept per topic where no rule of the file says otherwise; 0 turns logs off
    #[arg(long, value_name = "N", value_parser = messages)]
    pub keep: Option<u32>,

    /// Do without the admin port
    #[arg(long, conflicts_with = "admin.listen")]
    pub no_admin: bool,

    /// Settings in environment variables; flags override them.
    #[arg(skip = Variables::here())]
    pub variables: Variables,
}

impl ServeArgs {
    /// Overrides values in the file's `table`, first by variables, then by flags. Returns each key with the name of its variable or flag.
    pub fn override_values(&self, table: &mut Table) -> PathOverrides {
        let mut set: Vec<(&'static str, &'static Setting, Value)> = Vec::new();
        for (setting, variable, value) in self.variables.settings() {
            // `check_variables` reports a value that is not UTF-8.
            set.extend(value.ok().map(|value| (variable, setting, value)));
        }
        let flags = self.settings.0.iter();
        set.extend(flags.map(|(setting, value)| (flag_of(setting), *setting, value.clone())));
        if self.no_admin {
            let setting = SCHEMA.setting("admin.listen").expect("it is a setting");
            set.push(("--no-admin", setting, Value::from("")));
        }
        let keys = |(from, setting, _): &(&'static str, &'static Setting, Value)| {
            (setting.path.as_str(), *from)
        };
        let overrides = set.iter().map(keys).collect();
        for (_, setting, value) in set {
            put(table, setting, value);
        }
        overrides
    }

    /// Reports variables whose value is not UTF-8.
    pub fn check_variables(&self, problems: &mut Problems) {
        for (setting, variable, value) in self.variables.settings() {
            if let Err(message) = value {
                problems.fail(&setting.path, format!("{variable} {message}"));
            }
        }
    }

    /// Applies `--keep` to the rule for all topics.
    pub fn keep(&self, file: &mut File) {
        if let Some(messages) = self.keep {
            keep_by_default(file, messages);
        }
    }
}

/// Sets a value in a file's table, and makes the sections that lead to it. If a section is no table, nothing is set, and the fault is
/// reported when the table is read.
fn put(table: &mut Table, setting: &Setting, value: Value) {
    let mut sections = setting
        .table()
        .split('.')
        .filter(|section| !section.is_empty());
    let inner = sections.try_fold(table, |table, section| {
        let section = table.entry(section).or_insert_with(|| Table::new().into());
        section.as_table_mut()
    });
    inner.map(|table| table.insert(setting.key().to_string(), value));
}

/// The values of the flags that were given for single settings.
#[derive(Clone, Default)]
pub struct SettingFlags(Vec<(&'static Setting, Value)>);

impl SettingFlags {
    /// As if only `--shards` was given.
    pub fn shards(shards: Option<usize>) -> SettingFlags {
        let setting = SCHEMA.setting("shards").expect("it is a setting");
        let value = |shards| Value::Integer(i64::try_from(shards).unwrap_or(i64::MAX));
        SettingFlags(
            shards
                .map(|shards| (setting, value(shards)))
                .into_iter()
                .collect(),
        )
    }
}

/// The settings that have a flag, each with the definition of the flag, such as `-l, --listen ADDR:PORT`.
fn settings_with_flags() -> impl Iterator<Item = (&'static Setting, &'static str)> {
    SCHEMA
        .settings
        .iter()
        .filter_map(|setting| Some((setting, setting.text_attribute("x-flag")?)))
}

/// The long form of a setting's flag.
fn flag_of(setting: &'static Setting) -> &'static str {
    let words = setting.text_attribute("x-flag").unwrap_or_default();
    let mut words = words.split(' ');
    words
        .find(|word| word.starts_with("--"))
        .unwrap_or_default()
}

fn help(setting: &Setting) -> String {
    let again = if setting.is_list() {
        " (repeatable)"
    } else {
        ""
    };
    let default = setting.default_text().unwrap_or_default();
    format!(
        "{}{again} [{} = {default}]",
        setting.short_help(),
        setting.path
    )
}

fn arg(setting: &'static Setting, words: &'static str) -> Arg {
    let (short, long) = words
        .split_once(", ")
        .map_or((None, words), |(short, long)| (Some(short), long));
    let (name, value) = long
        .split_once(' ')
        .map_or((long, None), |(name, value)| (name, Some(value)));
    let arg = Arg::new(setting.path.as_str())
        .long(name.trim_start_matches('-'))
        .short(short.and_then(|short| short.chars().nth(1)))
        .help(help(setting))
        .help_heading("Settings, each over the file's [key = default]");
    let Some(value) = value else {
        return arg.action(ArgAction::SetTrue);
    };
    let arg = arg
        .value_name(value)
        .value_parser(move |text: &str| setting.parse_flag(text));
    match setting.is_list() {
        true => arg.action(ArgAction::Append).value_delimiter(','),
        false => arg,
    }
}

impl Args for SettingFlags {
    fn augment_args(command: Command) -> Command {
        settings_with_flags().fold(command, |command, (setting, words)| {
            command.arg(arg(setting, words))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        SettingFlags::augment_args(command)
    }
}

impl FromArgMatches for SettingFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let given = settings_with_flags().filter_map(|(setting, words)| {
            let id = setting.path.as_str();
            if !words.contains(' ') {
                return matches.get_flag(id).then(|| (setting, true.into()));
            }
            let mut values = matches.get_many::<Value>(id)?.cloned();
            let value = match setting.is_list() {
                true => Value::Array(values.collect()),
                false => values.next()?,
            };
            Some((setting, value))
        });
        Ok(SettingFlags(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = SettingFlags::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Parses the value of `--keep`.
fn messages(text: &str) -> Result<u32, String> {
    let wrong =
        "write a number of messages, such as 100; for how long is said by log_age_s of a rule";
    text.parse().map_err(|_| wrong.to_string())
}

/// Sets `log_messages` of the rule for all topics; adds that rule after the others if there is none.
fn keep_by_default(file: &mut File, messages: u32) {
    match file
        .rules
        .iter_mut()
        .find(|entry| entry.filter == ALL_TOPICS)
    {
        Some(entry) => entry.log_messages = messages,
        None => file.rules.push(Rule {
            filter: ALL_TOPICS.to_string(),
            log_messages: messages,
            ..Rule::default()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keep_changes_the_rule_for_all_topics_and_no_other() {
        let mut file = File::default();
        keep_by_default(&mut file, 1);
        keep_by_default(&mut file, 2);
        assert_eq!(file.rules.len(), 1);
        assert_eq!(
            file.rules[0],
            Rule {
                log_messages: 2,
                ..Rule::default()
            }
        );
    }
}
