//! The settings of one server in force: within their ranges, with the values filled in that they leave to the host.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crore_broker::node::Node;
use crore_broker::settings::{Http, Settings};

use super::check::is_exposed;
use super::locate::ConfigError;
use crate::settings::access::{for_shards, with_secrets};
use crate::settings::file::File;
use crate::settings::schema::{SCHEMA, VARIABLES, joined, plain};

/// The settings that `boot` needs, within their ranges.
#[derive(Clone, Debug)]
pub struct Effective {
    /// The file that gives these settings again.
    pub file: File,
    /// Where the file was read, if any was.
    pub source: Option<PathBuf>,
    /// Where each setting was given that is not left to its default: `file`, or a variable or flag by its name. `[[rule]]` is one setting.
    pub given: BTreeMap<String, &'static str>,
    /// Settings that are no fault and have no effect either, a line each.
    pub warnings: Vec<String>,
}

impl Effective {
    /// Logs the warnings.
    pub fn warn(&self) {
        for line in &self.warnings {
            tracing::warn!("{line}");
        }
    }

    /// The variables of the environment that give settings which hold.
    pub fn variables(&self) -> Vec<&'static str> {
        let places = self.given.values().copied();
        places
            .filter(|place| place.starts_with(VARIABLES))
            .collect()
    }

    /// The settings that the shards decide by. `node` is what other nodes of a cluster are told of this one.
    pub fn settings(&self, node: Node) -> Settings {
        let file = self.file.clone();
        let here_only = !file.listen.iter().any(is_exposed);
        Settings {
            http: Http {
                loopback_hosts_only: here_only,
                ..file.http
            },
            limits: file.limits,
            timeouts: file.timeouts,
            heartbeat: file.heartbeat,
            deflate: file.deflate,
            publish: file.publish,
            interest: file.interest,
            access: for_shards(file.access.as_ref()),
            mqtt: file.mqtt,
            drain: file.drain,
            node,
            rules: file.rules,
        }
    }

    /// Takes the rights from `asked`.
    ///
    /// # Errors
    /// `asked` has no table `[access]` any more, the server listens where other machines reach it, and `insecure` does not permit that.
    pub fn take_access(&mut self, asked: &Effective, insecure: bool) -> Result<(), ConfigError> {
        let exposed = self.file.listen.iter().find(|address| is_exposed(address));
        if let (None, false, Some(address)) = (&asked.file.access, insecure, exposed) {
            return Err(ConfigError::one(format!(
                "access: the table is gone, and the server listens on {address} until a restart, where everyone who reaches it \
                 could publish and subscribe; keep the table [access] (docs/ACCESS.md), or restart with another `listen`"
            )));
        }
        self.file.access.clone_from(&asked.file.access);
        Ok(())
    }

    /// The keys that have another value in `other`.
    pub fn differences(&self, other: &Effective) -> Vec<String> {
        let flat = |effective: &Effective| {
            let mut keys = BTreeMap::new();
            flatten("", with_secrets(|| plain(&effective.file)), &mut keys);
            keys
        };
        let (here, there) = (flat(self), flat(other));
        let keys: BTreeSet<_> = here.keys().chain(there.keys()).collect();
        keys.into_iter()
            .filter(|key| here.get(*key) != there.get(*key))
            .cloned()
            .collect()
    }

    /// The settings as a TOML file that gives them again, with a comment that says where they came from.
    pub fn to_toml(&self) -> String {
        let source = self.source.as_ref();
        let mut from = source.map_or("built-in defaults".into(), |path| {
            path.display().to_string()
        });
        if !self.variables().is_empty() {
            from += &format!(", {}", self.variables().join(", "));
        }
        let body = SCHEMA.written(&self.file);
        format!(
            "# crore {}: effective settings, from {from} and flags\n{body}",
            env!("CARGO_PKG_VERSION")
        )
    }
}

/// Values by key, as `limits.topic_bytes`; rules are one value.
pub(super) fn flatten(path: &str, table: toml::Table, keys: &mut BTreeMap<String, toml::Value>) {
    for (key, value) in table {
        let path = joined(path, &key);
        match value {
            toml::Value::Table(table) => flatten(&path, table, keys),
            value => drop(keys.insert(path, value)),
        }
    }
}
