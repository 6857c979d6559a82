//! The name and the metadata of the object that stores a checkpoint.

use std::collections::HashMap;
use std::fmt::{self, Write as _};

use async_nats::jetstream::object_store::{ObjectInfo, ObjectMetadata};

/// Bytes at the beginning of a batch that identify it.
const NAME_BYTES: usize = 32;
/// Keys of an object's metadata.
const CLUSTER: &str = "cluster";
const EPOCH: &str = "epoch";
const FORMAT: &str = "format";
const BATCH: &str = "batch";
const LOG_TIME: &str = "log-time";

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
    pub(crate) batch: String,
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
    pub(crate) fn read(object: &ObjectInfo, id: u64) -> Option<Checkpoint> {
        let of = |key: &str| object.metadata.get(key);
        let mut parts = object.name.split('/');
        let (partition, sequence) = (parts.next()?, parts.next()?);
        let is_ours = *of(CLUSTER)? == format!("{id:016x}");
        let modified = object.modified.map_or(0, |at| at.unix_timestamp());
        is_ours.then_some(Checkpoint {
            partition: partition.parse().ok()?,
            sequence: sequence.parse().ok()?,
            epoch: of(EPOCH)?.parse().ok()?,
            format: of(FORMAT)?.parse().ok()?,
            bytes: object.size as u64,
            unix_s: u64::try_from(modified).unwrap_or(0),
            log_s: of(LOG_TIME).and_then(|it| it.parse().ok()).unwrap_or(0),
            batch: of(BATCH)?.clone(),
            name: object.name.clone(),
        })
    }
}

impl NewCheckpoint<'_> {
    /// The name and the metadata of the object that stores this checkpoint.
    pub(crate) fn metadata(&self, id: u64, epoch: u32) -> ObjectMetadata {
        let metadata = [
            (CLUSTER, format!("{id:016x}")),
            (EPOCH, epoch.to_string()),
            (FORMAT, self.format.to_string()),
            (BATCH, name_of(self.batch)),
            (LOG_TIME, self.log_s.to_string()),
        ];
        ObjectMetadata {
            name: format!("{}/{}/{:016x}", self.partition, self.sequence, self.writer),
            metadata: HashMap::from(metadata.map(|(key, value)| (key.to_string(), value))),
            ..ObjectMetadata::default()
        }
    }
}

/// The beginning of a batch, in hexadecimal.
pub(crate) fn name_of(batch: &[u8]) -> String {
    let mut text = String::new();
    for byte in batch.iter().take(NAME_BYTES) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}
