//! The identity of a cluster: the numbers on which all its nodes must agree. The first node writes them into a key-value bucket.

use std::hash::{BuildHasher as _, RandomState};

use async_nats::jetstream::Context;
use async_nats::jetstream::kv::{self, CreateErrorKind, Store};
use async_nats::jetstream::stream::StorageType;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, chain};
use crate::settings::{Settings, refusal};

/// The keys of the bucket.
pub(crate) const IDENTITY_KEY: &str = "numbers";
const STREAMS_KEY: &str = "streams";

/// The identity of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterIdentity {
    /// A random number, drawn by the first node. The metadata of the streams contains it, too.
    pub id: u64,
    /// The epoch of the logs. It changes when a log has lost batches that were already delivered to clients.
    pub epoch: u32,
    /// The seed of the hashes.
    pub seed: u64,
    /// Number of partitions.
    pub partitions: u16,
    /// The format in which all nodes write. Only the operator raises it, after all nodes are updated. When it changes, a running node ends.
    pub format: u32,
}

impl ClusterIdentity {
    /// The reason why a version that can read no format newer than `newest_readable` cannot join the cluster; `None` if it can.
    fn reason_not_to_join(&self, newest_readable: u32) -> Option<String> {
        let found = self.format;
        (found > newest_readable).then(|| {
            format!(
                "its nodes write format {found}, and this version of Crore reads up to format {newest_readable}; install the version that the other nodes have"
            )
        })
    }
}

pub(crate) async fn open_or_create_bucket(
    context: &Context,
    settings: &Settings,
) -> Result<Store, Error> {
    let bucket = settings.bucket_name();
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
    let created = context.create_key_value(config).await;
    created.map_err(|error| refusal(&format!("bucket {bucket}"), settings, &error))
}

/// The default number of partitions of a new cluster. NATS limits the number of batches a second, and not their size, so few partitions with large batches
/// are fast. But each partition is a stream that one NATS server leads, so with fewer partitions than servers some servers would be idle.
pub const PARTITIONS: u16 = 4;

/// Reads the identity of the cluster. The first node writes `wanted` as the identity. Fails if the number of partitions differs from that of `wanted`, or
/// if the format is newer than `newest_format`. If `wanted` has 0 partitions, any number fits, and a new cluster gets [`PARTITIONS`].
pub async fn read_or_create(
    context: &Context,
    settings: &Settings,
    wanted: ClusterIdentity,
    newest_format: u32,
) -> Result<ClusterIdentity, Error> {
    let new = match wanted.partitions {
        0 => ClusterIdentity {
            partitions: PARTITIONS,
            ..wanted
        },
        _ => wanted,
    };
    let store = open_or_create_bucket(context, settings).await?;
    let bucket = settings.bucket_name();
    let text = serde_json::to_vec(&new).expect("an identity is JSON");
    match store.create(IDENTITY_KEY, text.into()).await {
        Ok(_) => return Ok(new),
        Err(error) if error.kind() == CreateErrorKind::AlreadyExists => {}
        Err(error) => {
            let text = format!("bucket {bucket}: cannot be written: {}", chain(&error));
            return Err(Error::transient(text));
        }
    }
    let entry = store.get(IDENTITY_KEY).await.map_err(|error| {
        Error::transient(format!(
            "bucket {bucket}: cannot be read: {}",
            chain(&error)
        ))
    })?;
    let entry =
        entry.ok_or_else(|| Error::transient(format!("bucket {bucket}: its identity is gone")))?;
    let found: ClusterIdentity = serde_json::from_slice(&entry).map_err(|error| {
        Error::lasting(format!(
            "bucket {bucket}: this is not the identity of a Crore cluster ({error}); choose another cluster.name"
        ))
    })?;
    if let Some(why) = found.reason_not_to_join(newest_format) {
        return Err(Error::lasting(format!(
            "the cluster `{}`: {why}",
            settings.name
        )));
    }
    if wanted.partitions != 0 && found.partitions != new.partitions {
        return Err(Error::lasting(format!(
            "partitions = {} does not fit the cluster `{}`, which was made with {}: write partitions = {}, or choose another cluster.name",
            new.partitions, settings.name, found.partitions, found.partitions
        )));
    }
    Ok(found)
}

/// Whether the cluster has already created all its streams. If so, a missing stream was lost.
pub async fn streams_were_created(context: &Context, settings: &Settings) -> Result<bool, Error> {
    let store = open_or_create_bucket(context, settings).await?;
    let value = store.get(STREAMS_KEY).await;
    value.map(|value| value.is_some()).map_err(|error| {
        Error::transient(format!(
            "bucket {}: {}",
            settings.bucket_name(),
            chain(&error)
        ))
    })
}

/// Records that the cluster has created all its streams.
pub async fn record_streams_created(context: &Context, settings: &Settings) -> Result<(), Error> {
    let store = open_or_create_bucket(context, settings).await?;
    let put = store.put(STREAMS_KEY, "made".into()).await;
    put.map(drop).map_err(|error| {
        Error::transient(format!(
            "bucket {}: {}",
            settings.bucket_name(),
            chain(&error)
        ))
    })
}

/// Begins a new epoch after `epoch`, because the streams have lost messages that were already delivered to clients. Does nothing if another node has done
/// so before. Fails if another node does so at the same time.
pub async fn begin_epoch(context: &Context, settings: &Settings, epoch: u32) -> Result<(), Error> {
    let store = open_or_create_bucket(context, settings).await?;
    let failed =
        |why: String| Error::transient(format!("bucket {}: {why}", settings.bucket_name()));
    let entry = store
        .entry(IDENTITY_KEY)
        .await
        .map_err(|error| failed(chain(&error)))?;
    let entry = entry.ok_or_else(|| failed("its identity is gone".to_string()))?;
    // Edits the identity as JSON, so that fields of other versions are kept.
    let mut found: Value =
        serde_json::from_slice(&entry.value).map_err(|error| failed(error.to_string()))?;
    if found["epoch"] == epoch {
        found["epoch"] = draw_other_epoch(epoch).into();
        let text = serde_json::to_vec(&found).expect("an identity is JSON");
        let update = store
            .update(IDENTITY_KEY, text.into(), entry.revision)
            .await;
        update.map_err(|error| failed(chain(&error)))?;
    }
    Ok(())
}

/// An epoch other than this one. It is random, because two restores of one backup must not lead to the same epoch. 0 stands for no epoch, so
/// the lowest bit is set.
fn draw_other_epoch(epoch: u32) -> u32 {
    let drawn = RandomState::new().hash_one(epoch) as u32 | 1;
    match drawn == epoch {
        true => epoch.wrapping_add(2),
        false => drawn,
    }
}

/// Reads the current identity from the bucket; `None` if it cannot be read.
pub async fn read_current(context: &Context, settings: &Settings) -> Option<ClusterIdentity> {
    let store = context.get_key_value(settings.bucket_name()).await.ok()?;
    let read = store.get(IDENTITY_KEY).await.ok()??;
    serde_json::from_slice(&read).ok()
}
