//! Reading the settings again.
//!
//! The whole file is read, laid under the same flags and checked as at the start; then every shard gets the new settings
//! and rules in one order. Values that a shard or a socket is made with cannot change while it lives: they are named and kept.

use std::sync::Arc;

use crore_broker::rules::Rules;
use crore_broker::{Control, Report, ShardId, World};
use crore_net::clock;
use serde::Serialize;

use super::{Life, supervisor};
use crate::access;
use crate::config::{self, Effective};
use crate::settings::file::File;

/// What came of it.
#[derive(Debug, Serialize)]
pub struct Reloaded {
    /// Keys that have another value now.
    pub changed: Vec<String>,
    /// Keys whose new value counts only after a restart.
    pub kept: Vec<String>,
}

impl Life {
    /// Reads the settings again. A file that is not in order changes nothing.
    ///
    /// # Errors
    /// The faults of the file, line by line, as at the start.
    pub async fn reload(&self) -> Result<Reloaded, String> {
        // The client that asked may hang up: a reload is always finished, in the shards, in the books and for the supervisor.
        let life = self.clone();
        let all = tokio::spawn(async move { life.read_again().await });
        all.await.expect("it does not panic, and nobody aborts it")
    }

    async fn read_again(&self) -> Result<Reloaded, String> {
        let _one = self.0.reloading.lock().await;
        if self.stops() {
            return Err("the server stops".to_string());
        }
        supervisor::reloading();
        let reloaded = self.exchange().await;
        self.count(reloaded.is_ok());
        supervisor::ready(&self.effective().file.listen);
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

    async fn exchange(&self) -> Result<Reloaded, String> {
        let now = self.effective();
        let asked = config::load_again(&self.0.args, &now).map_err(|error| error.to_string())?;
        asked.warn();
        let mut next = changeable(&now, &asked);
        let former = self.world();
        let node = former.settings.node.clone();
        let rules = Rules::new(&next.settings(node.clone()).rules);
        if former.appends() && former.rules.durability() != rules.durability() {
            return Err("rule.durable, or a rule before one that has it, differs: which topics stand in the log changes with a restart only".to_string());
        }
        next.take_access(&asked, self.0.args.insecure)
            .map_err(|error| error.to_string())?;
        let checks =
            access::checks(next.file.access.as_ref()).map_err(|error| error.to_string())?;
        if let Some(tls) = &self.0.tls {
            // The files may have changed where no key has. All else was checked, so that nothing is half done.
            tls.reload(&next.file.tls)
                .map_err(|error| format!("{error:#}"))?;
        }
        let settings = next.settings(node);
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
        world.admission.change(&world.settings);
        self.0.desk.replace(checks);
        if !former.rules.govern_alike(&world.rules) {
            self.foresee(&world).await;
        }
        let told = self
            .0
            .shards
            .ask_all(|_| Control::Settings(world.clone()))
            .await;
        {
            let mut running = self.running();
            running.effective = next;
            running.world = world;
        }
        if let Err(silent) = told {
            // An order is not lost: a shard that is late gets it all the same.
            let shard = silent.0;
            tracing::warn!(shard, "a shard is busy and takes the new settings later");
        }
        Ok(reloaded)
    }

    /// Has the homes look ahead to the rules to come, a part in each turn, so that no client waits for the whole.
    async fn foresee(&self, world: &Arc<World>) {
        let homes = (0..world.homes as ShardId).map(async |home| {
            // A home that is busy looks at the rest when it takes the settings.
            while let Ok(Report::Foreseen(true)) = self
                .0
                .shards
                .ask(home, Control::Foresee(world.clone()))
                .await
            {}
        });
        futures_util::future::join_all(homes).await;
    }
}

/// `asked`, as far as a running server can take it; of access, see [`Effective::take_access`].
fn changeable(now: &Effective, asked: &Effective) -> Effective {
    let (now, asked, source) = (&now.file, &asked.file, now.source.clone());
    let mut file = File {
        listen: now.listen.clone(),
        shards: now.shards,
        partitions: now.partitions,
        pin: now.pin,
        backlog: now.backlog,
        access: now.access.clone(),
        admin: now.admin.clone(),
        tls: now.tls.changeable(&asked.tls),
        state: now.state.changeable(&asked.state),
        cluster: now.cluster.clone(),
        ..asked.clone()
    };
    let (limits, former) = (&mut file.limits, &now.limits);
    // Sockets, tables and the groups of listeners are made with these.
    limits.connections_per_shard = former.connections_per_shard;
    limits.accepts_per_s = former.accepts_per_s;
    limits.send_buffer_bytes = former.send_buffer_bytes;
    limits.connections_per_address_max = former.connections_per_address_max;
    limits.publishes_per_address_per_s = former.publishes_per_address_per_s;
    limits.publishes_per_address_burst = former.publishes_per_address_burst;
    limits.topics_per_address_per_s = former.topics_per_address_per_s;
    limits.topics_per_address_burst = former.topics_per_address_burst;
    limits.log_bytes_per_address_max = former.log_bytes_per_address_max;
    file.mqtt.sessions_per_address_max = now.mqtt.sessions_per_address_max;
    Effective {
        file,
        source,
        warnings: Vec::new(),
    }
}

fn list(keys: &[String]) -> String {
    match keys {
        [] => "nothing".to_string(),
        keys => keys.join(", "),
    }
}
