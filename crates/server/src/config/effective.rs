//! The settings that the server uses: they are checked, and the defaults that depend on the host are filled in.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crore_broker::node::Node;
use crore_broker::pusher::with_presence_channels;
use crore_broker::settings::{Http, Settings};

use super::check::exposed_address;
use super::locate::ConfigError;
use crate::settings::access::{for_shards, with_secrets};
use crate::settings::backend::calls_of;
use crate::settings::file::File;
use crate::settings::schema::{SCHEMA, VARIABLE_PREFIX, join_path, to_table};

/// The settings that the server uses.
#[derive(Clone, Debug)]
pub struct EffectiveSettings {
    /// All settings, in the form of a settings file.
    pub file: File,
    /// The path of the file that was read, if any.
    pub file_path: Option<PathBuf>,
    /// The origin of each setting that is not a default: `file`, or the name of a variable or flag. `[[rule]]` is one setting.
    pub origins: BTreeMap<String, &'static str>,
    /// A line for each setting that is allowed but probably a mistake.
    pub warnings: Vec<String>,
}

impl EffectiveSettings {
    /// Logs the warnings.
    pub fn log_warnings(&self) {
        for line in &self.warnings {
            tracing::warn!("{line}");
        }
    }

    /// The environment variables whose settings are in force.
    pub fn variables(&self) -> Vec<&'static str> {
        let places = self.origins.values().copied();
        places
            .filter(|place| place.starts_with(VARIABLE_PREFIX))
            .collect()
    }

    /// The settings for the shards, without what is known only at the start: revoked credentials, the apps of Pusher's protocol, and whether MQTT sessions are
    /// durable. `node` describes this node to the other nodes of a cluster.
    pub fn settings(&self, node: Node) -> Settings {
        let file = self.file.clone();
        let app_ids = file.pusher_apps.iter().map(|app| &*app.id);
        let rules = with_presence_channels(app_ids, &file.rules);
        Settings {
            http: Http {
                loopback_hosts_only: exposed_address(&file).is_none(),
                ..file.http
            },
            limits: file.limits,
            timeouts: file.timeouts,
            heartbeat: file.heartbeat,
            deflate: file.deflate,
            publish: file.publish,
            interest: file.interest,
            presence: file.presence,
            access: for_shards(file.access.as_ref()),
            mqtt: file.mqtt,
            backend_calls: calls_of(&file.backends),
            centrifugo: file.centrifugo,
            pusher: file.pusher,
            pusher_apps: Vec::new(),
            drain: file.drain,
            node,
            rules,
        }
    }

    /// Replaces the section `[access]` by that of `other`.
    ///
    /// # Errors
    /// If three things hold at once: `other` has no `[access]`, other machines can reach the server, and `insecure` is not set.
    pub fn replace_access(
        &mut self,
        other: &EffectiveSettings,
        insecure: bool,
    ) -> Result<(), ConfigError> {
        let exposed = exposed_address(&self.file);
        if let (None, false, Some(address)) = (&other.file.access, insecure, exposed) {
            return Err(ConfigError::one(format!(
                "access: the table is gone, and the server listens on {address} until a restart, where everyone who reaches it \
                 could publish and subscribe; keep the table [access] (docs/ACCESS.md), or restart with another `listen`"
            )));
        }
        self.file.access.clone_from(&other.file.access);
        Ok(())
    }

    /// The keys whose values differ in `other`.
    pub fn differences(&self, other: &EffectiveSettings) -> Vec<String> {
        let flat_values = |effective: &EffectiveSettings| {
            let mut keys = BTreeMap::new();
            flatten("", with_secrets(|| to_table(&effective.file)), &mut keys);
            keys
        };
        let (own, there) = (flat_values(self), flat_values(other));
        let keys: BTreeSet<_> = own.keys().chain(there.keys()).collect();
        keys.into_iter()
            .filter(|key| own.get(*key) != there.get(*key))
            .cloned()
            .collect()
    }

    /// The settings as the text of a settings file, with a comment that lists the file and the variables from which they may come.
    pub fn to_toml(&self) -> String {
        let source = self.file_path.as_ref();
        let mut from = source.map_or("built-in defaults".into(), |path| {
            path.display().to_string()
        });
        if !self.variables().is_empty() {
            from += &format!(", {}", self.variables().join(", "));
        }
        let body = SCHEMA.to_file(&self.file);
        format!(
            "# crore {}: effective settings, from {from} and flags\n{body}",
            env!("CARGO_PKG_VERSION")
        )
    }
}

/// Adds the values of a table to `keys`, by paths such as `limits.topic_bytes`. A list is one value, and so are all rules together.
pub(super) fn flatten(path: &str, table: toml::Table, keys: &mut BTreeMap<String, toml::Value>) {
    for (key, value) in table {
        let path = join_path(path, &key);
        match value {
            toml::Value::Table(table) => flatten(&path, table, keys),
            value => drop(keys.insert(path, value)),
        }
    }
}
