//! Loads the settings of `crore serve`: the defaults, overridden by `crore.toml`, then by environment variables, then by flags. Checks the
//! settings, and fills in values that depend on the host ([`EffectiveSettings`]).
//!
//! Invariants: every value is within its range ([`crate::settings::schema`]) and has passed [`check`]; an unknown key is an
//! error; every error names the place (file, line, column, or the variable or flag), the key, the fault and the remedy.
//!
//! Deliberately not here: the reload. Besides the files that the settings name, only the memory, the cores, the file system of
//! `state.directory`, and the addresses of names in `listen` are looked up.

pub mod cgroups;
mod check;
mod effective;
mod flags;
mod host;
pub mod host_files;
mod locate;
mod path_prefix;
mod variables;

use std::collections::BTreeMap;
use std::mem::take;
use std::path::{Path, PathBuf};

use crore_broker::PARTITIONS;
use crore_wire::http::origin::normalize;
use serde::Deserialize as _;
use toml::Table;
use toml::de::{DeTable, Deserializer};

use crate::settings::access::Access;
use crate::settings::file::File;
pub use crate::settings::file::MAX_SHARDS;
use crate::settings::problems::{Problems, size_text};
use crate::settings::schema::SCHEMA;
use crate::settings::state::State;
pub use effective::EffectiveSettings;
use effective::flatten;
pub use flags::{ALL_TOPICS, ServeArgs, SettingFlags};
pub use host::{KERNEL_BYTES, Resources, memory_bytes};
use locate::{ConfigError, PathOverrides, SortOffset, path_is_under};
pub use variables::Variables;

/// The settings file in the current directory, which is read without `--config` if it exists.
pub const DEFAULT_FILE: &str = "crore.toml";

/// Limit of reported syntax errors: a file with more errors is no settings file.
const FAULTS_MAX: usize = 100;

/// Loads the settings from the file of `args` (or [`DEFAULT_FILE`] if it exists), overrides them by variables and flags, checks them, and
/// fills in the values of this host.
///
/// # Errors
/// A file that cannot be read or parsed, an unknown key, a value out of its range.
pub fn load(args: &ServeArgs) -> Result<EffectiveSettings, ConfigError> {
    load_for(args, &Resources::here())
}

/// [`load`] for a host with these resources.
pub fn load_for(args: &ServeArgs, resources: &Resources) -> Result<EffectiveSettings, ConfigError> {
    let source = match &args.config {
        Some(path) => Some(path.clone()),
        None => Some(PathBuf::from(DEFAULT_FILE)).filter(|path| path.exists()),
    };
    let text = match &source {
        Some(path) => read(path)?,
        None => String::new(),
    };
    let built = build(args, source, &text, resources);
    built.map_err(|error| match &args.config {
        Some(path) => error.with_flag(path),
        None => error,
    })
}

/// Loads the settings again for a server that runs with `now`. The file must still exist and must not be empty: a file is often empty while
/// it is being written, and an empty file would remove every rule and all access control.
pub fn load_again(
    args: &ServeArgs,
    now: &EffectiveSettings,
) -> Result<EffectiveSettings, ConfigError> {
    let Some(path) = &now.file_path else {
        return load(args);
    };
    let text = read(path)?;
    if text.trim().is_empty() {
        return Err(ConfigError::one(format!(
            "{}: is empty, as while it is being written; for the defaults, leave a comment in it",
            path.display()
        )));
    }
    build(args, Some(path.clone()), &text, &Resources::here())
}

/// The settings of a file's text, overridden by variables and flags.
fn build(
    args: &ServeArgs,
    source: Option<PathBuf>,
    text: &str,
    resources: &Resources,
) -> Result<EffectiveSettings, ConfigError> {
    let path = source.as_deref().unwrap_or(Path::new(DEFAULT_FILE));
    let name = path.display().to_string();
    let (file, lines) = parse(args, path, text);
    if !lines.is_empty() {
        return Err(ConfigError::sorted(lines));
    }
    let warnings = check::unintended(&file);
    let warning = |found| locate::problem_line(&name, text, &PathOverrides::new(), found).1;
    let unknown = args.variables.unknown.iter().cloned();
    let warnings = unknown.chain(warnings.iter().map(warning)).collect();
    let origins = origins(args, text);
    Ok(fill_defaults(file, source, origins, warnings, resources))
}

/// Where each setting comes from: the file, or a variable or flag.
fn origins(args: &ServeArgs, text: &str) -> BTreeMap<String, &'static str> {
    let mut table: Table = text.parse().unwrap_or_default();
    let mut keys = BTreeMap::new();
    flatten("", table.clone(), &mut keys);
    let mut origins: BTreeMap<_, _> = keys.into_keys().map(|key| (key, "file")).collect();
    for (key, origin) in args.override_values(&mut table) {
        origins.insert(key.to_string(), origin);
    }
    if args.keep.is_some() {
        origins.insert("rule".to_string(), "--keep");
    }
    origins
}

/// Parses a file's text, overridden by variables and flags. Returns the settings without the faulty values, and a line for each fault. If
/// the text is not TOML, only its syntax errors are reported, since the places of settings are unknown.
fn parse(args: &ServeArgs, path: &Path, text: &str) -> (File, Vec<(SortOffset, String)>) {
    let name = &path.display().to_string();
    let mut table = match read_table(name, text) {
        Ok(table) => table,
        Err(lines) => return (File::default(), lines),
    };
    let overrides = args.override_values(&mut table);
    let mut problems = Problems {
        folder: path.parent().unwrap_or(path).to_path_buf(),
        ..Problems::default()
    };
    args.check_variables(&mut problems);
    let table = SCHEMA.to_deserializable(table, &mut problems);
    let mut file = match File::deserialize(table) {
        Ok(file) => file,
        Err(error) => {
            return (
                File::default(),
                vec![locate::syntax_line(name, text, &error)],
            );
        }
    };
    args.keep(&mut file);
    let reported_paths: Vec<String> = problems.list.iter().map(|it| it.path.clone()).collect();
    // A value with a fault was left out above, so the checks below must not call it missing.
    let is_reported = |path: &str| {
        let mut paths = reported_paths.iter();
        paths.any(|other| path_is_under(path, other) || path_is_under(other, path))
    };
    check::all(&mut problems, &file, args.insecure);
    let mut index = 0;
    problems.list.retain(|problem| {
        index += 1;
        index <= reported_paths.len() || !is_reported(&problem.path)
    });
    let line = |problem| locate::problem_line(name, text, &overrides, problem);
    (file, problems.list.iter().map(line).collect())
}

fn read_table(name: &str, text: &str) -> Result<Table, Vec<(SortOffset, String)>> {
    let (document, mut errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        errors.extend(match Table::deserialize(Deserializer::from(document)) {
            Ok(table) => return Ok(table),
            Err(error) => Some(error),
        });
    }
    errors.sort_by_key(|error| error.span().map(|span| span.start));
    let line = |error: &toml::de::Error| {
        let text_before = error.span().and_then(|span| text.get(..span.start));
        text_before.map(|before| before.matches('\n').count())
    };
    // Further errors in the same line are consequences of the first.
    errors.dedup_by(|later, earlier| line(earlier).is_some() && line(later) == line(earlier));
    let lines = errors.iter().take(FAULTS_MAX);
    Err(lines
        .map(|error| locate::syntax_line(name, text, error))
        .collect())
}

/// The section `[access]` of a settings file, if it has one.
///
/// # Errors
/// A file that cannot be read or parsed.
pub fn read_access(path: &Path) -> Result<Option<Access>, ConfigError> {
    let text = read(path)?;
    let args = ServeArgs {
        insecure: true,
        ..ServeArgs::default()
    };
    match parse(&args, path, &text) {
        (file, lines) if lines.is_empty() => Ok(file.access),
        (_, lines) => Err(ConfigError::sorted(lines).with_flag(path)),
    }
}

/// Normalizes origins. Replaces each 0 that stands for a default by a value that depends on the cores, the memory or the disk of the host.
fn fill_defaults(
    mut file: File,
    source: Option<PathBuf>,
    given: BTreeMap<String, &'static str>,
    mut warnings: Vec<String>,
    resources: &Resources,
) -> EffectiveSettings {
    for origin in &mut file.http.allowed_origins {
        *origin = normalize(origin.as_bytes()).unwrap_or_else(|| take(origin));
    }
    if file.shards == 0 {
        file.shards = resources.cores.min(MAX_SHARDS);
    }
    if file.partitions == 0 && !file.cluster.is_on() {
        file.partitions = PARTITIONS;
    }
    let limits = &mut file.limits;
    if limits.log_bytes == 0 {
        limits.log_bytes = resources.log_bytes_default();
    }
    let configured = file.state.bytes_max;
    if let Some(disk_bytes) = file.state.resolve_bytes_max(limits.log_bytes) {
        warnings.push(format!(
            "state.bytes_max ({}) is more than the file system of state.directory has: {} count",
            size_text(configured),
            size_text(disk_bytes)
        ));
    }
    if file.state.is_scarce(limits.log_bytes) {
        warnings.push(scarce_warning(&file.state, limits.log_bytes));
    }
    if limits.memory_bytes == 0 {
        limits.memory_bytes = resources.memory_bytes_default(limits);
    }
    if file.publish.idempotency_keys == 0 {
        file.publish.idempotency_keys = host::keys_default(limits);
    }
    if limits.connections_max == 0 {
        limits.connections_max = resources.connections_default();
    }
    if limits.accepts_per_s == 0 {
        limits.accepts_per_s = resources.accepts_default(file.shards);
    }
    EffectiveSettings {
        file,
        file_path: source,
        origins: given,
        warnings,
    }
}

/// The warning that the logs may fill `state.bytes_max`.
fn scarce_warning(state: &State, log_bytes: usize) -> String {
    format!(
        "state.bytes_max ({}) is less than three times limits.log_bytes ({}): messages that are kept may fill it, and publishes are refused then; raise it, or lower limits.log_bytes",
        size_text(state.bytes_max),
        size_text(log_bytes)
    )
}

fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|error| {
        ConfigError::one(format!(
            "{}: cannot be read: {error}; name an existing file with --config, or leave the flag out for the defaults",
            path.display()
        ))
    })
}
