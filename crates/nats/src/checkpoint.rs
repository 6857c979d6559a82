//! The name and the metadata of the object that stores a checkpoint.

use std::collections::HashMap;
use std::fmt::{self, Write as _};

use async_nats::jetstream::object_store::{ObjectInfo, ObjectMetadata};

/// This many bytes at the beginning of a batch identify it.
const PREFIX_BYTES: usize = 32;
/// Keys of an object's metadata.
const CLUSTER_KEY: &str = "cluster";
const EPOCH_KEY: &str = "epoch";
const FORMAT_KEY: &str = "format";
const BATCH_KEY: &str = "batch";
const LOG_TIME_KEY: &str = "log-time";

/// A stored checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// The partition.
    pub partition: u16,
    /// The sequence of the last batch that the checkpoint contains.
    pub sequence: u64,
    /// The epoch of the log when the checkpoint was made.
    pub epoch: u32,
    /// The format of the checkpoint's bytes.
    pub format: u32,
    /// The size of the checkpoint in bytes.
    pub bytes: u64,
    /// When it was written, in seconds since 1970, by the clock of the node that wrote it. That clock may be wrong, so nothing expires by it.
    pub unix_s: u64,
    /// The time of the newest batch that the checkpoint contains, in seconds since 1970, by the log's clock. 0 if an older build wrote the checkpoint.
    pub log_s: u32,
    /// The first bytes of the batch at `sequence`, in hexadecimal.
    pub(crate) batch_prefix: String,
    pub(crate) name: String,
}

impl fmt::Display for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "checkpoint {}", self.name)
    }
}

/// A checkpoint to write.
pub struct NewCheckpoint<'a> {
    /// The partition.
    pub partition: u16,
    /// The sequence of the last batch that the checkpoint contains.
    pub sequence: u64,
    /// The bytes of the batch at `sequence`.
    pub batch: &'a [u8],
    /// The time of the newest batch that the checkpoint contains, in seconds since 1970, by the log's clock.
    pub log_s: u32,
    /// The writer number of this process, which is unique.
    pub writer: u64,
    /// The format of the checkpoint's bytes.
    pub format: u32,
}

impl Checkpoint {
    /// Reads which checkpoint an object stores; none if the object is no checkpoint of the cluster with this number.
    pub(crate) fn read(object: &ObjectInfo, cluster_id: u64) -> Option<Checkpoint> {
        let value = |key: &str| object.metadata.get(key);
        let mut parts = object.name.split('/');
        let (partition, sequence) = (parts.next()?, parts.next()?);
        let is_ours = *value(CLUSTER_KEY)? == format!("{cluster_id:016x}");
        let modified = object.modified.map_or(0, |at| at.unix_timestamp());
        is_ours.then_some(Checkpoint {
            partition: partition.parse().ok()?,
            sequence: sequence.parse().ok()?,
            epoch: value(EPOCH_KEY)?.parse().ok()?,
            format: value(FORMAT_KEY)?.parse().ok()?,
            bytes: object.size as u64,
            unix_s: u64::try_from(modified).unwrap_or(0),
            log_s: value(LOG_TIME_KEY)
                .and_then(|it| it.parse().ok())
                .unwrap_or(0),
            batch_prefix: value(BATCH_KEY)?.clone(),
            name: object.name.clone(),
        })
    }
}

impl NewCheckpoint<'_> {
    /// The name and the metadata of the object that stores this checkpoint.
    pub(crate) fn metadata(&self, cluster_id: u64, epoch: u32) -> ObjectMetadata {
        let metadata = [
            (CLUSTER_KEY, format!("{cluster_id:016x}")),
            (EPOCH_KEY, epoch.to_string()),
            (FORMAT_KEY, self.format.to_string()),
            (BATCH_KEY, prefix_of(self.batch)),
            (LOG_TIME_KEY, self.log_s.to_string()),
        ];
        ObjectMetadata {
            name: format!("{}/{}/{:016x}", self.partition, self.sequence, self.writer),
            metadata: HashMap::from(metadata.map(|(key, value)| (key.to_string(), value))),
            ..ObjectMetadata::default()
        }
    }
}

/// The beginning of a batch, in hexadecimal.
pub(crate) fn prefix_of(batch: &[u8]) -> String {
    let mut text = String::new();
    for byte in batch.iter().take(PREFIX_BYTES) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}
