//! The settings of one `crore serve`: built-in defaults, then `crore.toml`, then flags, checked and
//! resolved to [`Effective`].
//!
//! Invariants: every setting that leaves this module lies within the ranges of [`check`]; an unknown key
//! is an error; every error names the place (file, line, column, or the flag), the key, the fault of
//! the value and what to write instead. The keys are defined in [`crate::settings`].
//!
//! It deliberately does not reload, does not read the environment, and does not look at the host
//! beyond its memory and cores, and the addresses of a name in `listen`.

mod check;
mod effective;
mod flags;
mod forms;
mod host;
mod locate;
mod names;
mod parse;

use std::mem::take;
use std::path::{Path, PathBuf};

use crore_wire::http::origin::normal;

use crate::settings::access::Access;
use crate::settings::file::File;
pub use check::MAX_SHARDS;
pub use effective::Effective;
pub use flags::{ALL_TOPICS, ServeArgs};
pub use host::Resources;
use locate::{ConfigError, path_is_under};
use parse::{Parsed, parse};

/// The file that is read when no `--config` is given and it exists in the current directory.
pub const DEFAULT_FILE: &str = "crore.toml";

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
    build(args, source, &text, resources)
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

/// The settings of a file's text under the flags.
fn build(
    args: &ServeArgs,
    source: Option<PathBuf>,
    text: &str,
    resources: &Resources,
) -> Result<Effective, ConfigError> {
    let name = source
        .as_deref()
        .unwrap_or(Path::new(DEFAULT_FILE))
        .display()
        .to_string();
    let Parsed {
        mut file,
        faults: mut lines,
        without,
    } = parse(&name, text);
    let flags = args.lay_over(&mut file);
    if let Some(without) = without {
        // A value that was left out has been told, and is not missing.
        let is_told = |path: &str| {
            let mut told = without.iter();
            told.any(|left| path_is_under(path, left) || path_is_under(left, path))
        };
        let problems = check::problems(&file, args.insecure);
        let new = problems.iter().filter(|problem| !is_told(&problem.path));
        lines.extend(new.map(|problem| locate::problem(&name, text, &flags, problem)));
    }
    if lines.is_empty() {
        let idle = check::idle(&file);
        let warning = |found| locate::problem(&name, text, &flags, found).1;
        let warnings = idle.iter().map(warning).collect();
        return Ok(resolve(file, source, warnings, resources));
    }
    lines.sort_by_key(|(place, _)| *place);
    let lines = lines.into_iter().map(|(_, line)| line).collect();
    Err(ConfigError { lines })
}

/// The section on access of a settings file, if it has one.
///
/// # Errors
/// A file that cannot be read or parsed.
pub fn access_of(path: &Path) -> Result<Option<Access>, ConfigError> {
    let (name, text) = (path.display().to_string(), read(path)?);
    let Parsed { file, faults, .. } = parse(&name, &text);
    let lines: Vec<String> = faults.into_iter().map(|(_, line)| line).collect();
    match lines.is_empty() {
        true => Ok(file.access),
        false => Err(ConfigError { lines }),
    }
}

/// Brings origins into the form in which requests are compared with them, and replaces what the file leaves to the host (0 = by cores, 0 = by memory).
fn resolve(
    mut file: File,
    source: Option<PathBuf>,
    warnings: Vec<String>,
    resources: &Resources,
) -> Effective {
    for origin in &mut file.http.allowed_origins {
        *origin = normal(origin.as_bytes()).unwrap_or_else(|| take(origin));
    }
    if file.shards == 0 {
        file.shards = resources.cores.min(MAX_SHARDS);
    }
    let limits = &mut file.limits;
    if limits.log_bytes == 0 {
        limits.log_bytes = resources.log_bytes_default();
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
        warnings,
    }
}

fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|error| {
        ConfigError::one(format!(
            "{}: cannot be read: {error}; name an existing file with --config, or leave the flag out for the defaults",
            path.display()
        ))
    })
}
