//! What the operator revokes while the server runs: the list on disk, the thread that verifies, and the shards, in this order.
//!
//! Connections that are open end with the next sweep over the table of connections, which begins within a second.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crore_broker::access::Revoked;
use crore_broker::rules::Rules;
use crore_broker::{Control, World};
use crore_net::clock;

use super::Life;
use crate::access::revocations::{self, Revocation};
use crate::config::Effective;

/// Why nothing was revoked.
#[derive(Debug)]
pub enum Refused {
    /// The settings name no file for the list.
    NoFile,
    /// The entry is wrong, or there are too many.
    Entry(String),
    /// The file cannot be read or written.
    File(String),
}

/// The list that the settings name, as the shards look it up.
///
/// # Errors
/// The file's fault.
pub fn listed(effective: &Effective) -> Result<Arc<Revoked>, String> {
    let Some(path) = file_of(effective) else {
        return Ok(Arc::default());
    };
    let entries = revocations::read(path, clock::unix_s())?;
    Ok(Arc::new(revocations::revoked(&entries)))
}

fn file_of(effective: &Effective) -> Option<&Path> {
    let path = &effective.file.access.as_ref()?.revoked;
    (!path.as_os_str().is_empty()).then_some(path)
}

impl Life {
    /// The list.
    ///
    /// # Errors
    /// There is no list, or it cannot be read.
    pub fn revocations(&self) -> Result<Vec<Revocation>, Refused> {
        revocations::read(&self.revocations_file()?, clock::unix_s()).map_err(Refused::File)
    }

    /// Adds an entry, in place of one with the same id.
    ///
    /// # Errors
    /// The entry is wrong, or the list cannot be written.
    pub async fn revoke(&self, entry: Revocation) -> Result<(), Refused> {
        entry.check().map_err(Refused::Entry)?;
        let add = move |list: &mut Vec<Revocation>| {
            list.retain(|it| it.id != entry.id);
            list.push(entry);
        };
        self.change_revocations(add).await
    }

    /// Removes the entry with this id; says whether there was one.
    ///
    /// # Errors
    /// The list cannot be written.
    pub async fn reinstate(&self, id: &str) -> Result<bool, Refused> {
        if !self.revocations()?.iter().any(|entry| entry.id == id) {
            return Ok(false);
        }
        let remove = |list: &mut Vec<Revocation>| list.retain(|entry| entry.id != id);
        self.change_revocations(remove).await.map(|()| true)
    }

    fn revocations_file(&self) -> Result<PathBuf, Refused> {
        let effective = self.effective();
        let path = file_of(&effective).ok_or(Refused::NoFile)?;
        Ok(path.to_path_buf())
    }

    async fn change_revocations(
        &self,
        change: impl FnOnce(&mut Vec<Revocation>),
    ) -> Result<(), Refused> {
        // No reload reads the list meanwhile.
        let _one = self.0.reloading.lock().await;
        let path = self.revocations_file()?;
        let mut list = self.revocations()?;
        change(&mut list);
        let revoked = Arc::new(revocations::revoked(&list));
        let written = tokio::task::spawn_blocking(move || revocations::write(&path, &list));
        let written = written
            .await
            .expect("it does not panic, and nobody aborts it");
        written.map_err(Refused::File)?;
        self.0.desk.revoke(Arc::clone(&revoked));
        let former = self.world();
        let mut settings = former.settings.clone();
        settings.access.revoked = revoked;
        let world = Arc::new(World {
            rules: Rules::new(&settings.rules),
            settings,
            admission: former.admission.clone(),
            ..*former
        });
        let order = || Control::Settings(Arc::clone(&world));
        if let Err(silent) = self.0.shards.ask_all::<()>(order).await {
            // An order is not lost: a shard that is late gets it all the same.
            tracing::warn!(
                shard = silent.0,
                "a shard is busy and takes revocations later"
            );
        }
        self.running().world = world;
        Ok(())
    }
}
