//! Revocation of tokens and users while the server runs. A change is first stored in the list of revocations, then given to the verifier,
//! then to the shards.
//!
//! The list is a file. In a cluster the list is a table that all nodes share; the file, if the settings name one, adds entries for this
//! node.
//!
//! Open connections of a revoked client are closed by the next sweep over the table of connections, which begins within a second.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use crore_broker::access::Revoked;
use crore_broker::rules::Rules;
use crore_broker::{Control, World};
use crore_net::clock;

use super::Lifecycle;
use crate::access::revocations::{self, Revocation};
use crate::config::EffectiveSettings;
use crate::engine::Member;

/// Changes that other nodes make within this time are applied together.
const COALESCE_DELAY: Duration = Duration::from_millis(100);
/// Maximum number of expired entries that one revocation removes from the cluster's table.
const EXPIRED_REMOVED_MAX: usize = 64;

/// Why a change of the list failed.
#[derive(Debug)]
pub enum RevokeError {
    /// The settings name no file for the list.
    NoFile,
    /// The entry is invalid, or there are too many entries.
    InvalidEntry(String),
    /// The file cannot be read or written.
    File(String),
    /// NATS does not accept the entry.
    Cluster(String),
}

/// The revocations of the file and of the cluster's table, indexed for the shards.
///
/// # Errors
/// The file cannot be read.
pub fn read_revoked(
    effective: &EffectiveSettings,
    member: Option<&Member>,
) -> Result<Arc<Revoked>, String> {
    let mut entries = entries_in_file(effective)?;
    entries.extend(member.into_iter().flat_map(entries_in_cluster));
    Ok(Arc::new(revocations::revoked(&entries)))
}

fn entries_in_file(effective: &EffectiveSettings) -> Result<Vec<Revocation>, String> {
    match list_path(effective) {
        Some(path) => revocations::read(path, clock::unix_s()),
        None => Ok(Vec::new()),
    }
}

/// The entries in the cluster's table. Invalid entries are ignored, because others may be able to write to the bucket of the table.
fn entries_in_cluster(member: &Member) -> Vec<Revocation> {
    let rows = member.revoked.rows();
    let now_unix_s = clock::unix_s();
    let entries = rows
        .values()
        .filter_map(|row| serde_json::from_slice(row).ok());
    let is_current = |entry: &Revocation| entry.check().is_ok() && !entry.is_over(now_unix_s);
    entries.filter(is_current).collect()
}

/// The key of an entry in the cluster's table. It is a hash, because an id may have bytes that NATS does not allow in keys.
fn table_key(id: &str) -> String {
    let hash = digest(&SHA256, id.as_bytes());
    hash.as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn list_path(effective: &EffectiveSettings) -> Option<&Path> {
    let path = &effective.file.access.as_ref()?.revoked;
    (!path.as_os_str().is_empty()).then_some(path)
}

impl Lifecycle {
    /// The entries of the file and of the cluster's table.
    ///
    /// # Errors
    /// There is no list, or it cannot be read.
    pub fn revocations(&self) -> Result<Vec<Revocation>, RevokeError> {
        if self.member().is_none() {
            self.revocations_file()?;
        }
        let mut entries = entries_in_file(&self.effective_settings()).map_err(RevokeError::File)?;
        for entry in self.member().into_iter().flat_map(entries_in_cluster) {
            if !entries.contains(&entry) {
                entries.push(entry);
            }
        }
        Ok(entries)
    }

    /// Adds an entry. The entry replaces one with the same id.
    ///
    /// # Errors
    /// The entry is invalid, or the list cannot be written.
    pub async fn revoke(&self, entry: Revocation) -> Result<(), RevokeError> {
        entry.check().map_err(RevokeError::InvalidEntry)?;
        if let Some(member) = self.member() {
            return self.revoke_in_cluster(member, &entry).await;
        }
        let add = move |list: &mut Vec<Revocation>| {
            list.retain(|it| it.id != entry.id);
            list.push(entry);
        };
        self.change_revocations(add).await
    }

    /// Removes the entry with this id. Returns whether there was one.
    ///
    /// # Errors
    /// The list cannot be written.
    pub async fn remove_revocation(&self, id: &str) -> Result<bool, RevokeError> {
        let listed = self.revocations()?;
        let is_listed = listed.iter().any(|entry| entry.id == id);
        if let (Some(member), true) = (self.member(), is_listed) {
            let removed = member.revoked.remove(&table_key(id)).await;
            removed.map_err(|error| RevokeError::Cluster(error.to_string()))?;
        }
        let remove = |list: &mut Vec<Revocation>| list.retain(|entry| entry.id != id);
        match (is_listed, self.revocations_file()) {
            (false, _) => return Ok(false),
            (true, Ok(_)) => self.change_revocations(remove).await?,
            (true, Err(_)) => self.apply_revocations().await?,
        }
        Ok(true)
    }

    async fn revoke_in_cluster(
        &self,
        member: &Member,
        entry: &Revocation,
    ) -> Result<(), RevokeError> {
        let table = &member.revoked;
        let to_error = |error: crore_nats::Error| RevokeError::Cluster(error.to_string());
        let row = serde_json::to_vec(entry).expect("an entry is JSON");
        table
            .put(&table_key(&entry.id), row)
            .await
            .map_err(to_error)?;
        let now_unix_s = clock::unix_s();
        let is_over = |row: &[u8]| {
            serde_json::from_slice(row).is_ok_and(|entry: Revocation| entry.is_over(now_unix_s))
        };
        let expired = table.rows().into_iter().filter(|(_, row)| is_over(row));
        for (key, _) in expired.take(EXPIRED_REMOVED_MAX) {
            if let Err(error) = table.remove(&key).await {
                tracing::debug!("an expired revocation stays until the next revocation: {error}");
            }
        }
        self.apply_revocations().await
    }

    /// Spawns a task that applies the revocations that other nodes add to the table.
    pub(super) fn follow_revocations(&self) {
        let Some(table) = self.member().map(|member| member.revoked.clone()) else {
            return;
        };
        let lifecycle = self.clone();
        tokio::spawn(async move {
            loop {
                if let Err(reason) = lifecycle.apply_revocations().await {
                    tracing::error!("revocations of the cluster are not applied yet: {reason:?}");
                }
                table.wait_for_change().await;
                tokio::time::sleep(COALESCE_DELAY).await;
            }
        });
    }

    async fn apply_revocations(&self) -> Result<(), RevokeError> {
        // Locked, so that no reload reads the list meanwhile.
        let _one = self.0.settings_lock.lock().await;
        let revoked =
            read_revoked(&self.effective_settings(), self.member()).map_err(RevokeError::File)?;
        self.apply_revoked(revoked).await;
        Ok(())
    }

    fn revocations_file(&self) -> Result<PathBuf, RevokeError> {
        let effective = self.effective_settings();
        let path = list_path(&effective).ok_or(RevokeError::NoFile)?;
        Ok(path.to_path_buf())
    }

    async fn change_revocations(
        &self,
        change: impl FnOnce(&mut Vec<Revocation>),
    ) -> Result<(), RevokeError> {
        // Locked, so that no reload reads the list meanwhile.
        let _one = self.0.settings_lock.lock().await;
        let path = self.revocations_file()?;
        let mut list = entries_in_file(&self.effective_settings()).map_err(RevokeError::File)?;
        change(&mut list);
        let result = tokio::task::spawn_blocking(move || revocations::write(&path, &list));
        let written = result
            .await
            .expect("it does not panic, and nobody aborts it");
        written.map_err(RevokeError::File)?;
        let revoked =
            read_revoked(&self.effective_settings(), self.member()).map_err(RevokeError::File)?;
        self.apply_revoked(revoked).await;
        Ok(())
    }

    /// Makes the verifier and the shards refuse the credentials in `revoked`.
    async fn apply_revoked(&self, revoked: Arc<Revoked>) {
        self.0.verifier.revoke(Arc::clone(&revoked));
        let previous_world = self.world();
        let mut settings = previous_world.settings.clone();
        settings.access.revoked = revoked;
        let world = Arc::new(World {
            rules: Rules::new(&settings.rules),
            settings,
            admission: previous_world.admission.clone(),
            ..*previous_world
        });
        let order = || Control::Settings(Arc::clone(&world));
        if let Err(silent) = self.0.shards.ask_all::<()>(order).await {
            // The shard has not lost the order: it handles the order later.
            tracing::warn!(
                shard = silent.0,
                "a shard is busy and takes revocations later"
            );
        }
        self.running().world = world;
    }
}
