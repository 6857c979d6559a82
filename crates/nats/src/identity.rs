//! The identity of a cluster: the numbers that all its nodes must agree on. The first node writes them into a key-value bucket.

use std::hash::{BuildHasher as _, RandomState};

use async_nats::jetstream::Context;
use async_nats::jetstream::kv::{self, CreateErrorKind, Store};
use async_nats::jetstream::stream::StorageType;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, chain};
use crate::settings::{Settings, refused};

/// The keys of the bucket.
pub(crate) const IDENTITY: &str = "numbers";
const STREAMS: &str = "streams";

/// The identity of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterIdentity {
    /// A random number, drawn by the first node. The metadata of the streams has it too.
    pub id: u64,
    /// The epoch of the logs. It changes when a log has lost batches.
    pub epoch: u32,
    /// The seed of the hashes.
    pub seed: u64,
    /// Number of partitions.
    pub partitions: u16,
    /// The format that all nodes write, even if all of them could write a newer one.
    pub format: u32,
}

impl ClusterIdentity {
    /// Why a version that reads formats up to `reads` cannot join the cluster; `None` if it can.
    pub(crate) fn too_new(&self, reads: u32) -> Option<String> {
        let found = self.format;
        (found > reads).then(|| {
            format!(
                "its nodes write format {found}, and this version of Crore reads up to format {reads}; install the version that the other nodes have"
            )
        })
    }
}

pub(crate) async fn bucket(context: &Context, settings: &Settings) -> Result<Store, Error> {
    let bucket = settings.bucket();
    if let Ok(store) = context.get_key_value(&bucket).await {
        return Ok(store);
    }
    let config = kv::Config {
        description: format!("Numbers of the Crore cluster `{}`", settings.name),
        history: 1,
        storage: StorageType::File,
        num_replicas: settings.replicas,
        bucket: bucket.clone(),
        ..Default::default()
    };
    let made = context.create_key_value(config).await;
    made.map_err(|error| refused(&format!("bucket {bucket}"), settings, &error))
}

/// The default number of partitions of a new cluster. NATS accepts a limited number of batches a second, whatever their size. Each
/// partition makes its own batches, so fewer partitions make larger batches. A stream has one leader, so there should be at least as many
/// partitions as servers.
pub const PARTITIONS: u16 = 4;

/// The identity of the cluster, if it fits `asked`. If the cluster has none yet, writes `asked`. If `asked` has 0 partitions, any
/// number of partitions fits, and a new cluster gets [`PARTITIONS`].
pub async fn get(
    context: &Context,
    settings: &Settings,
    asked: ClusterIdentity,
) -> Result<ClusterIdentity, Error> {
    let new = match asked.partitions {
        0 => ClusterIdentity {
            partitions: PARTITIONS,
            ..asked
        },
        _ => asked,
    };
    let store = bucket(context, settings).await?;
    let bucket = settings.bucket();
    let text = serde_json::to_vec(&new).expect("an identity is JSON");
    match store.create(IDENTITY, text.into()).await {
        Ok(_) => return Ok(new),
        Err(error) if error.kind() == CreateErrorKind::AlreadyExists => {}
        Err(error) => {
            let text = format!("bucket {bucket}: cannot be written: {}", chain(&error));
            return Err(Error::transient(text));
        }
    }
    let read = store.get(IDENTITY).await.map_err(|error| {
        Error::transient(format!(
            "bucket {bucket}: cannot be read: {}",
            chain(&error)
        ))
    })?;
    let read =
        read.ok_or_else(|| Error::transient(format!("bucket {bucket}: its numbers are gone")))?;
    let found: ClusterIdentity = serde_json::from_slice(&read).map_err(|error| {
        Error::lasting(format!(
            "bucket {bucket}: these are not the numbers of a Crore cluster ({error}); choose another cluster.name"
        ))
    })?;
    if let Some(why) = found.too_new(new.format) {
        return Err(Error::lasting(format!(
            "the cluster `{}`: {why}",
            settings.name
        )));
    }
    if asked.partitions != 0 && found.partitions != new.partitions {
        return Err(Error::lasting(format!(
            "partitions = {} does not fit the cluster `{}`, which was made with {}: write partitions = {}, or choose another cluster.name",
            new.partitions, settings.name, found.partitions, found.partitions
        )));
    }
    Ok(found)
}

/// Whether all streams have been created before. If one is missing then, it was lost.
pub async fn has_streams(context: &Context, settings: &Settings) -> Result<bool, Error> {
    let store = bucket(context, settings).await?;
    let read = store.get(STREAMS).await;
    read.map(|value| value.is_some()).map_err(|error| {
        Error::transient(format!("bucket {}: {}", settings.bucket(), chain(&error)))
    })
}

/// Records that all streams were created: a stream that is missing later was lost.
pub async fn set_streams(context: &Context, settings: &Settings) -> Result<(), Error> {
    let store = bucket(context, settings).await?;
    let put = store.put(STREAMS, "made".into()).await;
    put.map(drop).map_err(|error| {
        Error::transient(format!("bucket {}: {}", settings.bucket(), chain(&error)))
    })
}

/// Begins a new epoch, because the streams have lost messages that were already delivered to clients. Does nothing if another node has
/// already begun one.
pub async fn renew(context: &Context, settings: &Settings, epoch: u32) -> Result<(), Error> {
    let store = bucket(context, settings).await?;
    let failed = |why: String| Error::transient(format!("bucket {}: {why}", settings.bucket()));
    let entry = store
        .entry(IDENTITY)
        .await
        .map_err(|error| failed(chain(&error)))?;
    let entry = entry.ok_or_else(|| failed("its numbers are gone".to_string()))?;
    // Edits the identity as JSON, so that fields which only another version knows are kept.
    let mut found: Value =
        serde_json::from_slice(&entry.value).map_err(|error| failed(error.to_string()))?;
    if found["epoch"] == epoch {
        found["epoch"] = another_epoch(epoch).into();
        let text = serde_json::to_vec(&found).expect("an identity is JSON");
        let update = store.update(IDENTITY, text.into(), entry.revision).await;
        update.map_err(|error| failed(chain(&error)))?;
    }
    Ok(())
}

/// A random epoch other than this one. So the epochs after two restores of one backup differ. 0 stands for no epoch, so the lowest bit is
/// set.
fn another_epoch(epoch: u32) -> u32 {
    let drawn = RandomState::new().hash_one(epoch) as u32 | 1;
    match drawn == epoch {
        true => epoch.wrapping_add(2),
        false => drawn,
    }
}

/// The current identity in the bucket.
pub async fn current(context: &Context, settings: &Settings) -> Option<ClusterIdentity> {
    let store = context.get_key_value(settings.bucket()).await.ok()?;
    let read = store.get(IDENTITY).await.ok()??;
    serde_json::from_slice(&read).ok()
}
