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

use super::revoke::listed;
use super::{Lifecycle, supervisor};
use crate::access;
use crate::config::{self, EffectiveSettings};
use crate::settings::access::with_secrets;
use crate::settings::file::File;
use crate::settings::schema::{SCHEMA, to_table};

/// The result of a reload, as the admin API returns it.
#[derive(Debug, Serialize)]
pub struct Reloaded {
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
    pub async fn reload(&self) -> Result<Reloaded, String> {
        // The reload runs in its own task. The client of the admin API may hang up, but a reload that has begun must be finished.
        let lifecycle = self.clone();
        let all = tokio::spawn(async move { lifecycle.reload_now().await });
        all.await.expect("it does not panic, and nobody aborts it")
    }

    async fn reload_now(&self) -> Result<Reloaded, String> {
        let _one = self.0.settings_lock.lock().await;
        if self.is_stopping() {
            return Err("the server stops".to_string());
        }
        supervisor::report_reloading();
        let reloaded = self.replace_settings().await;
        self.count(reloaded.is_ok());
        supervisor::report_ready(&self.effective().file.listen);
        match &reloaded {
            Ok(Reloaded { changed, kept }) => {
                tracing::info!(changed = %list(changed), "settings read again");
                if !kept.is_empty() {
                    tracing::warn!(kept = %list(kept), "these change only with a restart");
                }
            }
            Err(error) => tracing::error!("settings not changed: {error}"),
        }
        reloaded
    }

    fn count(&self, applied: bool) {
        let reloads = &mut self.running().reloads;
        if applied {
            reloads.applied += 1;
            reloads.applied_unix_s = clock::unix_s();
        } else {
            reloads.refused += 1;
        }
    }

    async fn replace_settings(&self) -> Result<Reloaded, String> {
        let now = self.effective();
        let asked = config::load_again(&self.0.args, &now).map_err(|error| error.to_string())?;
        asked.warn();
        let mut next = keep_restart_settings(&now, &asked);
        let former = self.world();
        let node = former.settings.node.clone();
        let rules = Rules::new(&next.settings(node.clone()).rules);
        if former.appends() && former.rules.durability() != rules.durability() {
            return Err("rule.durable, or a rule before one that has it, differs: which topics stand in the log changes with a restart only".to_string());
        }
        next.take_access(&asked, self.0.args.insecure)
            .map_err(|error| error.to_string())?;
        let verifiers = access::credential_verifiers(next.file.access.as_ref())
            .map_err(|error| error.to_string())?;
        let revoked = listed(&next, self.member())?;
        if let Some(tls) = &self.0.tls {
            // TLS is reloaded even if the settings are the same, because the certificate in the file may have changed. This is the last
            // step that can fail, so that settings and certificate change together.
            tls.reload(&next.file)
                .map_err(|error| format!("{error:#}"))?;
        }
        let mut settings = next.settings(node);
        settings.access.revoked = Arc::clone(&revoked);
        let world = Arc::new(World {
            rules,
            settings,
            admission: former.admission.clone(),
            ..*former
        });
        let reloaded = Reloaded {
            changed: now.differences(&next),
            kept: next.differences(&asked),
        };
        world.admission.change_limits(&world.settings);
        self.0.verifier.replace(verifiers);
        self.0.verifier.revoke(revoked);
        if !former.rules.govern_alike(&world.rules) {
            self.prepare_rules(&world).await;
        }
        let told = self
            .0
            .shards
            .ask_all::<()>(|| Control::Settings(world.clone()))
            .await;
        {
            let mut running = self.running();
            running.effective = next;
            running.world = world;
        }
        if let Err(silent) = told {
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

/// The settings `asked`, but with the current values where a change needs a restart. For access, see [`EffectiveSettings::take_access`].
fn keep_restart_settings(now: &EffectiveSettings, asked: &EffectiveSettings) -> EffectiveSettings {
    let (source, given) = (now.source.clone(), asked.given.clone());
    let (now, asked) = (&now.file, &asked.file);
    let (had, mut table) = with_secrets(|| (to_table(now), to_table(asked)));
    for row in SCHEMA.settings.iter().filter(|row| row.restart) {
        let value = match row.table() {
            "" => had.get(row.key()),
            section => had.get(section).and_then(|table| table.get(row.key())),
        };
        let table = match row.table() {
            "" => Some(&mut table),
            section => table.get_mut(section).and_then(Value::as_table_mut),
        };
        if let (Some(table), Some(value)) = (table, value) {
            table.insert(row.key().to_string(), value.clone());
        }
    }
    let mut file = File::deserialize(table).expect("both were read from files");
    file.access.clone_from(&now.access);
    file.backends.clone_from(&now.backends);
    file.webhooks.clone_from(&now.webhooks);
    // Without a log on disk, the directory is used only at a stop, so its settings may change.
    if !now.state.is_durable() && !asked.state.is_durable() {
        file.state.clone_from(&asked.state);
    }
    // A reload cannot turn TLS on or off.
    if !now.tls.is_on() || !asked.tls.is_on() {
        file.tls.clone_from(&now.tls);
    }
    let warnings = Vec::new();
    EffectiveSettings {
        file,
        source,
        given,
        warnings,
    }
}

fn list(keys: &[String]) -> String {
    match keys {
        [] => "nothing".to_string(),
        keys => keys.join(", "),
    }
}
