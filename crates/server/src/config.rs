//! The settings of one `crore serve`: built-in defaults, then `crore.toml`, then flags, checked and
//! resolved to [`Effective`].
//!
//! Invariants: whatever leaves this module lies within the ranges of [`check`]; a key that nobody
//! knows is an error; every error names the place (file, line, column, or the flag), the key, what
//! is wrong with the value and what to write instead. The struct mirrors in [`mod@file`] are held
//! against `crore_broker::settings` by the compiler.
//!
//! It deliberately does not reload, does not read the environment, and does not look at the host
//! beyond its memory and cores, and what a name in `listen` stands for.

pub mod access;
mod admin;
mod check;
mod file;
mod forms;
mod host;
mod listen;
mod locate;
mod state;
mod tls;
mod units;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crore_broker::settings::{Rule, Settings};

use crate::cli::ServeArgs;
pub use admin::Admin;
pub use check::MAX_SHARDS;
pub use file::{File, RuleEntry};
pub use host::Resources;
pub use listen::Listen;
pub use state::State;
pub use tls::{ClientCertificates, Tls, Version};
pub use units::parse_size;

/// The file that is read when no `--config` is given and it exists in the current directory.
pub const DEFAULT_FILE: &str = "crore.toml";

/// Where the server listens unless told otherwise: the loopback, since access rules come later.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:8800";

/// Everything that `boot` needs, within its ranges.
#[derive(Clone, Debug)]
pub struct Effective {
    /// Addresses to listen on; at least one, no two the same.
    pub listen: Vec<SocketAddr>,
    /// Shard threads, at least one.
    pub shards: usize,
    /// Whether each shard is pinned to a core.
    pub pin: bool,
    /// Length of each listening socket's queue, in connections (the kernel cuts it at
    /// `net.core.somaxconn`).
    pub backlog: u32,
    /// What the shards decide by.
    pub settings: Settings,
    /// Who may do what, if anything is decided.
    pub access: Option<access::Access>,
    /// The port for operators.
    pub admin: Admin,
    /// What is kept across a planned restart.
    pub state: State,
    /// TLS on the data ports.
    pub tls: Tls,
    /// The file that was read, if any.
    pub source: Option<PathBuf>,
}

/// Why the settings were refused; displays one line for each problem.
#[derive(Debug)]
pub struct ConfigError {
    lines: Vec<String>,
}

impl ConfigError {
    fn one(line: String) -> Self {
        ConfigError { lines: vec![line] }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}

impl std::error::Error for ConfigError {}

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

/// Reads the settings of a server that runs by `now`. A file that it had must be there, and must not be empty: one that
/// somebody is writing often is, and an empty one would take away every rule and all that guards access.
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
    let mut file = File::parse(text)
        .map_err(|error| ConfigError::one(locate::parse_error(&name, text, &error)))?;
    let flags = args.lay_over(&mut file);

    let problems = check::problems(&file, args.insecure);
    if !problems.is_empty() {
        let lines = problems
            .iter()
            .map(|problem| locate::problem(&name, text, &flags, problem))
            .collect();
        return Err(ConfigError { lines });
    }
    Ok(resolve(file, source, resources))
}

/// What a settings file says of access, if it says anything.
///
/// # Errors
/// A file that cannot be read or parsed.
pub fn access_of(path: &Path) -> Result<Option<access::Access>, ConfigError> {
    let (name, text) = (path.display().to_string(), read(path)?);
    let file = File::parse(&text);
    let file = file.map_err(|error| ConfigError::one(locate::parse_error(&name, &text, &error)))?;
    Ok(file.access)
}

/// Replaces what the file leaves to the host (0 = by cores, 0 = by memory) and what is computed.
fn resolve(file: File, source: Option<PathBuf>, resources: &Resources) -> Effective {
    let shards = match file.shards {
        0 => resources.cores.min(MAX_SHARDS),
        n => n,
    };
    let mut limits = file.limits;
    if limits.log_bytes == 0 {
        limits.log_bytes = resources.log_bytes_default();
    }
    if limits.memory_bytes == 0 {
        limits.memory_bytes = resources.memory_bytes_default(&limits);
    }
    if limits.connections_max == 0 {
        limits.connections_max = resources.connections_default();
    }
    if limits.accepts_per_s == 0 {
        limits.accepts_per_s = resources.accepts_default(shards);
    }
    let mut http = file.http;
    http.loopback_hosts_only = loopback_hosts_only(&file.listen, file.access.as_ref());
    let settings = Settings {
        http,
        limits,
        timeouts: file.timeouts,
        heartbeat: file.heartbeat,
        deflate: file.deflate,
        publish: file.publish,
        interest: file.interest,
        access: access::for_shards(file.access.as_ref()),
        mqtt: file.mqtt,
        drain: file.drain,
        rules: file.rules.into_iter().map(Rule::from).collect(),
    };
    Effective {
        listen: file.listen,
        shards,
        pin: file.pin,
        backlog: file.backlog,
        settings,
        access: file.access,
        admin: file.admin,
        state: file.state,
        tls: file.tls,
        source,
    }
}

/// Whether only requests to the loopback's names are answered: pages whose own name points here could do everything.
fn loopback_hosts_only(listen: &[SocketAddr], access: Option<&access::Access>) -> bool {
    access.is_none() && !listen.iter().any(check::is_exposed)
}

impl Effective {
    /// Takes from `asked` who may do what, and what follows from it where this server listens.
    ///
    /// # Errors
    /// Nobody says any more who may, while others than this machine reach the server: `insecure` permits that.
    pub fn take_access(&mut self, asked: &Effective, insecure: bool) -> Result<(), ConfigError> {
        let exposed = self
            .listen
            .iter()
            .find(|address| check::is_exposed(address));
        if let (None, false, Some(address)) = (&asked.access, insecure, exposed) {
            return Err(ConfigError::one(format!(
                "access: the table is gone, and the server listens on {address} until a restart, where everyone who reaches it \
                 could publish and subscribe; keep the table [access] (docs/ACCESS.md), or restart with another `listen`"
            )));
        }
        self.access.clone_from(&asked.access);
        self.settings.access = asked.settings.access.clone();
        self.settings.http.loopback_hosts_only =
            loopback_hosts_only(&self.listen, self.access.as_ref());
        Ok(())
    }

    /// The keys that have another value in `other`.
    pub fn differences(&self, other: &Effective) -> Vec<String> {
        let flat = |effective: &Effective| {
            let table = toml::Table::try_from(File::of(effective));
            let mut keys = std::collections::BTreeMap::new();
            flatten(
                "",
                table.expect("settings are plain TOML values"),
                &mut keys,
            );
            keys
        };
        let (here, there) = (flat(self), flat(other));
        let keys: std::collections::BTreeSet<_> = here.keys().chain(there.keys()).collect();
        // What these show of a secret is the same for all secrets.
        let differ = |key: &&&String| match key.as_str() {
            "access.key" => self.keys() != other.keys(),
            "access.user" => self.users() != other.users(),
            key => here.get(key) != there.get(key),
        };
        keys.iter()
            .filter(differ)
            .map(|key| key.to_string())
            .collect()
    }

    fn keys(&self) -> Option<&[access::Key]> {
        self.access.as_ref().map(|access| &access.keys[..])
    }

    fn users(&self) -> Option<&[access::User]> {
        self.access.as_ref().map(|access| &access.users[..])
    }

    /// The settings as a TOML file that gives them again, with a comment that says where they came from.
    pub fn to_toml(&self) -> String {
        let from = match &self.source {
            Some(path) => format!("{} and flags", path.display()),
            None => "built-in defaults and flags".to_string(),
        };
        let body = toml::to_string(&File::of(self)).expect("settings are plain TOML values");
        format!(
            "# crore {}: effective settings, from {from}\n{body}",
            env!("CARGO_PKG_VERSION")
        )
    }
}

/// Values by key, as `limits.topic_bytes`; rules are one value.
fn flatten(
    path: &str,
    table: toml::Table,
    keys: &mut std::collections::BTreeMap<String, toml::Value>,
) {
    for (key, value) in table {
        let path = match path {
            "" => key,
            path => format!("{path}.{key}"),
        };
        match value {
            toml::Value::Table(table) => flatten(&path, table, keys),
            value => drop(keys.insert(path, value)),
        }
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
