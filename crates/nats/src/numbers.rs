//! The numbers that all nodes of a cluster must agree on, in a bucket: the first node writes them.

use async_nats::jetstream::Context;
use async_nats::jetstream::kv::{self, CreateErrorKind, Store};
use async_nats::jetstream::stream::StorageType;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, chain};
use crate::settings::{Settings, refused};

/// The keys of the bucket.
pub(crate) const NUMBERS: &str = "numbers";
const STREAMS: &str = "streams";

/// The numbers of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numbers {
    /// Drawn by the first node; the streams bear it.
    pub id: u64,
    /// The epoch of the logs.
    pub epoch: u32,
    /// The seed of the hashes.
    pub seed: u64,
    /// How many partitions there are.
    pub partitions: u16,
    /// The format in which all nodes write. It holds from here on, also where all nodes could write a newer one.
    pub format: u32,
}

impl Numbers {
    /// Why a version that reads up to this format cannot take part, if it cannot.
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

/// Partitions of a new cluster, unless its first node says otherwise. NATS takes so many batches a second whatever they hold, each partition has its
/// own, and each of its streams has one leader: few partitions make large batches, and there are at least as many as servers.
pub const PARTITIONS: u16 = 4;

/// These numbers, if there are none yet, else those that are there, if they fit. Partitions of 0: as many as the cluster has, or [`PARTITIONS`].
pub async fn get(context: &Context, settings: &Settings, asked: Numbers) -> Result<Numbers, Error> {
    let new = match asked.partitions {
        0 => Numbers {
            partitions: PARTITIONS,
            ..asked
        },
        _ => asked,
    };
    let store = bucket(context, settings).await?;
    let bucket = settings.bucket();
    let text = serde_json::to_vec(&new).expect("numbers are JSON");
    match store.create(NUMBERS, text.into()).await {
        Ok(_) => return Ok(new),
        Err(error) if error.kind() == CreateErrorKind::AlreadyExists => {}
        Err(error) => {
            let text = format!("bucket {bucket}: cannot be written: {}", chain(&error));
            return Err(Error::transient(text));
        }
    }
    let read = store.get(NUMBERS).await.map_err(|error| {
        Error::transient(format!(
            "bucket {bucket}: cannot be read: {}",
            chain(&error)
        ))
    })?;
    let read =
        read.ok_or_else(|| Error::transient(format!("bucket {bucket}: its numbers are gone")))?;
    let found: Numbers = serde_json::from_slice(&read).map_err(|error| {
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

/// Whether all streams were made once.
pub async fn has_streams(context: &Context, settings: &Settings) -> Result<bool, Error> {
    let store = bucket(context, settings).await?;
    let read = store.get(STREAMS).await;
    read.map(|value| value.is_some()).map_err(|error| {
        Error::transient(format!("bucket {}: {}", settings.bucket(), chain(&error)))
    })
}

/// Notes that all streams were made: one that is missing from now on was lost.
pub async fn set_streams(context: &Context, settings: &Settings) -> Result<(), Error> {
    let store = bucket(context, settings).await?;
    let put = store.put(STREAMS, "made".into()).await;
    put.map(drop).map_err(|error| {
        Error::transient(format!("bucket {}: {}", settings.bucket(), chain(&error)))
    })
}

/// A new epoch in the place of this one, unless another node was faster: the streams no longer hold what clients were told.
pub async fn renew(context: &Context, settings: &Settings, epoch: u32) -> Result<(), Error> {
    let store = bucket(context, settings).await?;
    let failed = |why: String| Error::transient(format!("bucket {}: {why}", settings.bucket()));
    let entry = store
        .entry(NUMBERS)
        .await
        .map_err(|error| failed(chain(&error)))?;
    let entry = entry.ok_or_else(|| failed("its numbers are gone".to_string()))?;
    // Another version may have written more than this one knows.
    let mut found: Value =
        serde_json::from_slice(&entry.value).map_err(|error| failed(error.to_string()))?;
    if found["epoch"] == epoch {
        found["epoch"] = epoch.wrapping_add(2).into();
        let text = serde_json::to_vec(&found).expect("numbers are JSON");
        let update = store.update(NUMBERS, text.into(), entry.revision).await;
        update.map_err(|error| failed(chain(&error)))?;
    }
    Ok(())
}

/// The numbers as they stand in the bucket now.
pub async fn current(context: &Context, settings: &Settings) -> Option<Numbers> {
    let store = context.get_key_value(settings.bucket()).await.ok()?;
    let read = store.get(NUMBERS).await.ok()??;
    serde_json::from_slice(&read).ok()
}
