//! The settings of one `crore serve`: built-in defaults, then `crore.toml`, then variables of the environment, then flags,
//! checked and resolved to [`Effective`].
//!
//! Invariants: every setting that leaves this module lies within the range of its row ([`crate::settings::schema`]) and has
//! passed [`check`]; an unknown key is an error; every error names the place (file, line, column, or the variable or flag), the key, the
//! fault of the value and what to write instead.
//!
//! It deliberately does not reload, and does not look at the host
//! beyond its memory and cores, and the addresses of a name in `listen`.

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
use crore_wire::http::origin::normal;
use serde::Deserialize as _;
use toml::Table;
use toml::de::{DeTable, Deserializer};

use crate::settings::access::Access;
use crate::settings::file::File;
pub use crate::settings::file::MAX_SHARDS;
use crate::settings::problems::{Check, size};
use crate::settings::schema::SCHEMA;
use crate::settings::state::State;
pub use effective::Effective;
use effective::flatten;
pub use flags::{ALL_TOPICS, ServeArgs, SettingFlags};
pub use host::{Resources, memory_bytes};
use locate::{ConfigError, Overlay, Place, path_is_under};
pub use variables::Variables;

/// The file that is read when no `--config` is given and it exists in the current directory.
pub const DEFAULT_FILE: &str = "crore.toml";

/// Faults of the syntax that are told of one file: more are the sign of another kind of file.
const FAULTS_MAX: usize = 100;

/// Reads the file that `args` names (or [`DEFAULT_FILE`] when it exists), lays the flags over it,
/// checks the whole and resolves what depends on the host.
///
/// # Errors
/// A file that cannot be read or parsed, an unknown key, a value out of its range.
pub fn load(args: &ServeArgs) -> Result<Effective, ConfigError> {
    load_for(args, &Resources::here())
}

/// The same for a host with these resources.
///
/// # Errors
/// Those of [`load`].
pub fn load_for(args: &ServeArgs, resources: &Resources) -> Result<Effective, ConfigError> {
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
        Some(path) => error.of_flag(path),
        None => error,
    })
}

/// Reads the settings of a server that runs by `now`. A file that it had must be there, and must not be empty: a file is often
/// empty while it is being written, and an empty one would take away every rule and all that guards access.
///
/// # Errors
/// Those of [`load`].
pub fn load_again(args: &ServeArgs, now: &Effective) -> Result<Effective, ConfigError> {
    let Some(path) = &now.source else {
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

/// The settings of a file's text under the variables and flags.
fn build(
    args: &ServeArgs,
    source: Option<PathBuf>,
    text: &str,
    resources: &Resources,
) -> Result<Effective, ConfigError> {
    let path = source.as_deref().unwrap_or(Path::new(DEFAULT_FILE));
    let name = path.display().to_string();
    let (file, lines) = faults(args, path, text);
    if !lines.is_empty() {
        return Err(ConfigError::of(lines));
    }
    let warnings = check::idle(&file);
    let warning = |found| locate::problem(&name, text, &Overlay::new(), found).1;
    let unknown = args.variables.unknown.iter().cloned();
    let warnings = unknown.chain(warnings.iter().map(warning)).collect();
    let given = given(args, text);
    Ok(resolve(file, source, given, warnings, resources))
}

/// Where each setting was given, by the file's text, the variables and the flags.
fn given(args: &ServeArgs, text: &str) -> BTreeMap<String, &'static str> {
    let mut table: Table = text.parse().unwrap_or_default();
    let mut keys = BTreeMap::new();
    flatten("", table.clone(), &mut keys);
    let mut given: BTreeMap<_, _> = keys.into_keys().map(|key| (key, "file")).collect();
    for (key, from) in args.lay_over(&mut table) {
        given.insert(key.to_string(), from);
    }
    if args.keep.is_some() {
        given.insert("rule".to_string(), "--keep");
    }
    given
}

/// The settings of a file's text under the variables and flags, and a line for each fault; settings with a fault are left out. Text that is not TOML has the faults of its
/// syntax only: the places of the settings are not known then.
fn faults(args: &ServeArgs, path: &Path, text: &str) -> (File, Vec<(Place, String)>) {
    let name = &path.display().to_string();
    let mut table = match read_table(name, text) {
        Ok(table) => table,
        Err(lines) => return (File::default(), lines),
    };
    let overlay = args.lay_over(&mut table);
    let mut check = Check {
        folder: path.parent().unwrap_or(path).to_path_buf(),
        ..Check::default()
    };
    args.check_variables(&mut check);
    let table = SCHEMA.read(table, &mut check);
    let mut file = match File::deserialize(table) {
        Ok(file) => file,
        Err(error) => return (File::default(), vec![locate::syntax(name, text, &error)]),
    };
    args.keep(&mut file);
    let told: Vec<String> = check
        .problems
        .iter()
        .map(|told| told.path.clone())
        .collect();
    // A value that was left out has been told, and is not missing.
    let is_told = |path: &str| {
        let mut told = told.iter();
        told.any(|left| path_is_under(path, left) || path_is_under(left, path))
    };
    check::all(&mut check, &file, args.insecure);
    let mut index = 0;
    check.problems.retain(|problem| {
        index += 1;
        index <= told.len() || !is_told(&problem.path)
    });
    let line = |problem| locate::problem(name, text, &overlay, problem);
    (file, check.problems.iter().map(line).collect())
}

fn read_table(name: &str, text: &str) -> Result<Table, Vec<(Place, String)>> {
    let (document, mut errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        errors.extend(match Table::deserialize(Deserializer::from(document)) {
            Ok(table) => return Ok(table),
            Err(error) => Some(error),
        });
    }
    errors.sort_by_key(|error| error.span().map(|span| span.start));
    let line = |error: &toml::de::Error| {
        let before = error.span().and_then(|span| text.get(..span.start));
        before.map(|before| before.matches('\n').count())
    };
    // Text behind the first fault of a line is no fault of its own.
    errors.dedup_by(|next, before| line(before).is_some() && line(next) == line(before));
    let lines = errors.iter().take(FAULTS_MAX);
    Err(lines
        .map(|error| locate::syntax(name, text, error))
        .collect())
}

/// The section on access of a settings file, if it has one.
///
/// # Errors
/// A file that cannot be read or parsed.
pub fn access_of(path: &Path) -> Result<Option<Access>, ConfigError> {
    let text = read(path)?;
    let args = ServeArgs {
        insecure: true,
        ..ServeArgs::default()
    };
    match faults(&args, path, &text) {
        (file, lines) if lines.is_empty() => Ok(file.access),
        (_, lines) => Err(ConfigError::of(lines).of_flag(path)),
    }
}

/// Brings origins into the form in which requests are compared with them, and replaces the values that the file leaves to the host (0 = by cores, 0 = by memory).
fn resolve(
    mut file: File,
    source: Option<PathBuf>,
    given: BTreeMap<String, &'static str>,
    mut warnings: Vec<String>,
    resources: &Resources,
) -> Effective {
    for origin in &mut file.http.allowed_origins {
        *origin = normal(origin.as_bytes()).unwrap_or_else(|| take(origin));
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
    let asked = file.state.bytes_max;
    if let Some(disk) = file.state.derive(limits.log_bytes) {
        warnings.push(format!(
            "state.bytes_max ({}) is more than the file system of state.directory has: {} count",
            size(asked),
            size(disk)
        ));
    }
    if file.state.is_scarce(limits.log_bytes) {
        warnings.push(scarce(&file.state, limits.log_bytes));
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
    Effective {
        file,
        source,
        given,
        warnings,
    }
}

/// The warning that logs may fill the disk.
fn scarce(state: &State, log_bytes: usize) -> String {
    format!(
        "state.bytes_max ({}) is less than three times limits.log_bytes ({}): messages that are kept may fill it, and publishes are refused then; raise it, or lower limits.log_bytes",
        size(state.bytes_max),
        size(log_bytes)
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
