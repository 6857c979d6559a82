//! Reload of the settings while the server runs.
//!
//! The file is read, combined with the flags of the command line and checked, as at the start. Then every shard gets all new settings and
//! rules in one order. Settings that change only with a restart keep their values, and the log names them.

use std::sync::Arc;

use crore_broker::rules::Rules;
use crore_broker::{Control, ShardId, World};
use crore_net::clock;
use serde::{Deserialize as _, Serialize};
use toml::Value;

use super::revoke::read_revoked;
use super::{Lifecycle, supervisor};
use crate::access;
use crate::config::{self, EffectiveSettings};
use crate::settings::access::with_secrets;
use crate::settings::file::File;
use crate::settings::schema::{SCHEMA, to_table};

/// The result of a reload, as the admin API returns it.
#[derive(Debug, Serialize)]
pub struct ReloadResult {
    /// The keys whose value has changed.
    pub changed: Vec<String>,
    /// The keys whose new value takes effect only after a restart.
    pub kept: Vec<String>,
}

impl Lifecycle {
    /// Reads the settings again. A file with errors changes nothing.
    ///
    /// # Errors
    /// The errors of the file, one a line, as at the start.
    pub async fn reload(&self) -> Result<ReloadResult, String> {
        // The reload runs in its own task. The client of the admin API may hang up, but a reload that has begun must be finished.
        let lifecycle = self.clone();
        let reload = tokio::spawn(async move { lifecycle.reload_now().await });
        reload
            .await
            .expect("it does not panic, and nobody aborts it")
    }

    async fn reload_now(&self) -> Result<ReloadResult, String> {
        let _one = self.0.settings_lock.lock().await;
        if self.is_stopping() {
            return Err("the server stops".to_string());
        }
        supervisor::report_reloading();
        let reloaded = self.replace_settings().await;
        self.count_reload(reloaded.is_ok());
        supervisor::report_ready(&self.effective_settings().file.listen);
        match &reloaded {
            Ok(ReloadResult { changed, kept }) => {
                tracing::info!(changed = %join_keys(changed), "settings read again");
                if !kept.is_empty() {
                    tracing::warn!(kept = %join_keys(kept), "these change only with a restart");
                }
            }
            Err(error) => tracing::error!("settings not changed: {error}"),
        }
        reloaded
    }

    fn count_reload(&self, applied: bool) {
        let reloads = &mut self.running().reloads;
        if applied {
            reloads.applied += 1;
            reloads.applied_unix_s = clock::unix_s();
        } else {
            reloads.refused += 1;
        }
    }

    async fn replace_settings(&self) -> Result<ReloadResult, String> {
        let running = self.effective_settings();
        let new = config::load_again(&self.0.args, &running).map_err(|error| error.to_string())?;
        new.log_warnings();
        let mut next = keep_restart_settings(&running, &new);
        let previous_world = self.world();
        let node = previous_world.settings.node.clone();
        let rules = Rules::new(&next.settings(node.clone()).rules);
        if previous_world.appends() && previous_world.rules.durability() != rules.durability() {
            return Err("rule.durable, or a rule before one that has it, differs: which topics stand in the log changes with a restart only".to_string());
        }
        next.replace_access(&new, self.0.args.insecure)
            .map_err(|error| error.to_string())?;
        let verifiers = access::credential_verifiers(next.file.access.as_ref())
            .map_err(|error| error.to_string())?;
        let revoked = read_revoked(&next, self.member())?;
        if let Some(tls) = &self.0.tls {
            // TLS is reloaded even if the settings are the same, because the certificate in the file may have changed. This is the last
            // step that can fail, so that settings and certificate change together.
            tls.reload(&next.file)
                .map_err(|error| format!("{error:#}"))?;
        }
        let mut settings = next.settings(node);
        settings.access.revoked = Arc::clone(&revoked);
        settings
            .pusher_apps
            .clone_from(&previous_world.settings.pusher_apps);
        settings.mqtt.durable_sessions = previous_world.settings.mqtt.durable_sessions;
        let world = Arc::new(World {
            rules,
            settings,
            admission: previous_world.admission.clone(),
            ..*previous_world
        });
        let reloaded = ReloadResult {
            changed: running.differences(&next),
            kept: next.differences(&new),
        };
        world.admission.change_limits(&world.settings);
        self.0.verifier.replace(verifiers);
        self.0.verifier.revoke(revoked);
        if !previous_world.rules.assigns_same_numbers(&world.rules) {
            self.prepare_rules(&world).await;
        }
        let answers = self
            .0
            .shards
            .ask_all::<()>(|| Control::Settings(world.clone()))
            .await;
        {
            let mut running = self.running();
            running.effective = next;
            running.world = world;
        }
        if let Err(silent) = answers {
            // The shard has not lost the order: it handles the order later.
            let shard = silent.0;
            tracing::warn!(shard, "a shard is busy and takes the new settings later");
        }
        Ok(reloaded)
    }

    /// Lets the homes (the shards that keep topics) prepare for the new rules. A home does a part of the work in each turn (a pass of its
    /// loop), so that no client waits for all of the work at once.
    async fn prepare_rules(&self, world: &Arc<World>) {
        let homes = (0..world.homes as ShardId).map(async |home| {
            // A home that does not answer does the rest of the work when it gets the settings.
            let prepare_rules = || {
                self.0
                    .shards
                    .ask(home, Control::PrepareRules(world.clone()))
            };
            while prepare_rules().await == Ok(true) {}
        });
        futures_util::future::join_all(homes).await;
    }
}

/// The new settings, but with the values of `running` where a change needs a restart. For access, see [`EffectiveSettings::replace_access`].
fn keep_restart_settings(
    running: &EffectiveSettings,
    new: &EffectiveSettings,
) -> EffectiveSettings {
    let (file_path, origins) = (running.file_path.clone(), new.origins.clone());
    let (running_file, new_file) = (&running.file, &new.file);
    let (running_table, mut table) = with_secrets(|| (to_table(running_file), to_table(new_file)));
    for setting in SCHEMA.settings.iter().filter(|it| it.needs_restart) {
        let value = match setting.table() {
            "" => running_table.get(setting.key()),
            section => running_table
                .get(section)
                .and_then(|table| table.get(setting.key())),
        };
        let table = match setting.table() {
            "" => Some(&mut table),
            section => table.get_mut(section).and_then(Value::as_table_mut),
        };
        if let (Some(table), Some(value)) = (table, value) {
            table.insert(setting.key().to_string(), value.clone());
        }
    }
    let mut file = File::deserialize(table).expect("both were read from files");
    file.access.clone_from(&running_file.access);
    file.backends.clone_from(&running_file.backends);
    file.pusher_apps.clone_from(&running_file.pusher_apps);
    file.webhooks.clone_from(&running_file.webhooks);
    // Without a log on disk, the directory is used only at a stop, so its settings may change.
    if !running_file.state.is_durable() && !new_file.state.is_durable() {
        file.state.clone_from(&new_file.state);
    }
    // A reload cannot turn TLS on or off.
    if !running_file.tls.is_on() || !new_file.tls.is_on() {
        file.tls.clone_from(&running_file.tls);
    }
    let warnings = Vec::new();
    EffectiveSettings {
        file,
        file_path,
        origins,
        warnings,
    }
}

fn join_keys(keys: &[String]) -> String {
    match keys {
        [] => "nothing".to_string(),
        keys => keys.join(", "),
    }
}
