//! Reads, writes and removes the checkpoints of a cluster, and purges its log. A checkpoint is an object in a NATS bucket. It contains the state of one
//! partition after all batches up to a sequence. The later batches are replayed from the log.
//!
//! Invariants:
//! * An object exists as a whole or not at all, and never changes.
//! * Two checkpoints that are written at the same time have different names. Both can be used, since the same batches make the same state.
//! * The metadata of a checkpoint has the first bytes of its last batch. If the log is later restored from an older copy, it has another
//!   batch there or none. Then the checkpoint is not used.
//! * A checkpoint of this cluster is removed only if the caller names it in [`Store::tidy`].
//!
//! Deliberately not here: the meaning of the bytes, which node writes them when, and which checkpoints are no longer needed.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use async_nats::jetstream::object_store::ObjectInfo;
use async_nats::jetstream::stream::{LastRawMessageErrorKind, State};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use futures_util::StreamExt as _;
use tokio::time::timeout;

use crate::bucket::Bucket;
use crate::checkpoint::{Checkpoint, NewCheckpoint, prefix_of};
use crate::driver::Driver;
use crate::error::{Error, chain};
use crate::identity::ClusterIdentity;
use crate::log_state::LogState;
use crate::streams::{self, Stream};
use crate::transfer::{Batches, Download, PROGRESS_TIMEOUT, Upload};

/// The age at which chunks that belong to no object are removed: by then their writer is dead.
const ORPHAN_AGE_S: i64 = 600;

/// The checkpoints of a cluster, and the log that continues them. All calls block.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    driver: Driver,
    bucket: Bucket,
    streams: Vec<Stream>,
    identity: ClusterIdentity,
    log: Arc<LogState>,
}

impl Store {
    pub(crate) fn new(
        driver: Driver,
        bucket: Bucket,
        streams: Vec<Stream>,
        identity: ClusterIdentity,
        log: Arc<LogState>,
    ) -> Store {
        Store(Arc::new(Inner {
            driver,
            bucket,
            streams,
            identity,
            log,
        }))
    }

    /// Waits for an answer of NATS. An error begins with `subject`.
    fn wait_for<T>(
        &self,
        subject: &str,
        answer: impl Future<Output = Result<T, String>>,
    ) -> Result<T, Error> {
        let limited = async { timeout(PROGRESS_TIMEOUT, answer).await };
        let answer = self.0.driver.block_on(limited);
        let answer = answer.unwrap_or_else(|_| Err("NATS does not answer".to_string()));
        answer.map_err(|why| Error::transient(format!("{subject}: {why}")))
    }

    fn stream(&self, partition: u16) -> &Stream {
        &self.0.streams[usize::from(partition)]
    }

    /// All checkpoints of this cluster, by partition and then the newest first. Also records the newest checkpoint of each partition in the
    /// partition's status.
    ///
    /// # Errors
    /// If NATS does not answer.
    pub fn list_and_update_status(&self) -> Result<Vec<Checkpoint>, Error> {
        let objects = self.objects()?;
        let ours = objects.iter().filter_map(|object| self.read_info(object));
        let mut all: Vec<Checkpoint> = ours.collect();
        let order = |it: &Checkpoint| (it.partition, std::cmp::Reverse(it.sequence));
        all.sort_by(|a, b| order(a).cmp(&order(b)).then(a.name.cmp(&b.name)));
        for (number, partition) in (0..).zip(self.0.log.partitions()) {
            let is_current =
                |it: &&Checkpoint| it.partition == number && it.epoch == self.0.identity.epoch;
            let newest = all.iter().find(is_current);
            let mut status = partition.status.lock().expect("no holder panics");
            let known = status
                .checkpoint
                .as_ref()
                .map_or(partition.after, |it| it.sequence);
            if newest.is_some_and(|it| it.sequence > known) {
                // Another node has made this checkpoint. How many bytes this node has read since the checkpoint's last batch is unknown, so the count
                // starts again at zero.
                let read_bytes = partition.read_bytes.load(Relaxed);
                partition.checkpoint_bytes.store(read_bytes, Relaxed);
            }
            status.checkpoint = newest.cloned();
        }
        Ok(all)
    }

    /// All objects of the bucket, as its leader knows them.
    ///
    /// The replica that returns a list may lag behind the leader. If the list lacked a checkpoint, the node would consider the checkpoint lost, and remove
    /// its chunks as orphans. So the node asks the leader which objects exist, and reads those that the list lacks.
    fn objects(&self) -> Result<Vec<ObjectInfo>, Error> {
        let bucket = &self.0.bucket;
        self.wait_for("the list of checkpoints", async {
            let list = bucket.objects.list().await;
            let mut list = list.map_err(|error| chain(&error))?;
            let mut listed = HashMap::new();
            while let Some(object) = list.next().await {
                let object = object.map_err(|error| chain(&error))?;
                listed.insert(self.metadata_subject(&object), object);
            }
            let filter = format!("$O.{}.M.*", bucket.name);
            let subjects = bucket.stream.info_with_subjects(filter).await;
            let mut subjects = subjects.map_err(|error| chain(&error))?;
            let mut objects = Vec::new();
            while let Some(subject) = subjects.next().await {
                let (subject, _) = subject.map_err(|error| chain(&error))?;
                let object = match listed.remove(&subject) {
                    None => self.object_at_leader(&subject).await?,
                    object => object,
                };
                objects.extend(object);
            }
            Ok(objects)
        })
    }

    /// The object with this metadata. `None` if it was deleted: a deletion by a tool of NATS leaves the metadata.
    async fn object_at_leader(&self, subject: &str) -> Result<Option<ObjectInfo>, String> {
        let stream = &self.0.bucket.stream;
        let message = match stream.get_last_raw_message_by_subject(subject).await {
            Ok(message) => message,
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => {
                return Ok(None);
            }
            Err(error) => return Err(chain(&error)),
        };
        let object = serde_json::from_slice(&message.payload);
        let object: ObjectInfo = object.map_err(|error| format!("{subject}: {error}"))?;
        let modified = object.modified.or(Some(message.time));
        Ok((!object.deleted).then_some(ObjectInfo { modified, ..object }))
    }

    /// The subject of an object's metadata.
    fn metadata_subject(&self, object: &ObjectInfo) -> String {
        format!(
            "$O.{}.M.{}",
            self.0.bucket.name,
            URL_SAFE.encode(&object.name)
        )
    }

    fn read_info(&self, object: &ObjectInfo) -> Option<Checkpoint> {
        Checkpoint::read(object, self.0.identity.id)
    }

    fn state(&self, partition: u16) -> Result<State, Error> {
        let stream = self.stream(partition);
        self.wait_for("the state of the log", async {
            let info = stream.get_info().await;
            info.map(|it| it.state).map_err(|error| chain(&error))
        })
    }

    /// The sequence of the first batch in the log of a partition.
    ///
    /// # Errors
    /// If NATS does not answer.
    pub fn first_sequence(&self, partition: u16) -> Result<u64, Error> {
        Ok(self.state(partition)?.first_sequence.max(1))
    }

    /// Why a checkpoint cannot be used with this log; `None` if it can. It cannot be used if the log lacks a batch after it, or if its last
    /// batch is not the one that the log has at the same sequence.
    ///
    /// # Errors
    /// If NATS does not answer.
    pub fn why_unusable(&self, checkpoint: &Checkpoint) -> Result<Option<String>, Error> {
        let State {
            first_sequence: first,
            last_sequence: last,
            ..
        } = self.state(checkpoint.partition)?;
        if checkpoint.sequence > last {
            return Ok(Some(format!("the log ends with batch {last}")));
        }
        if checkpoint.sequence + 1 < first {
            let why = format!("the log begins with batch {first}, and what was between is gone");
            return Ok(Some(why));
        }
        if checkpoint.sequence < first {
            // The checkpoint's last batch was purged, so it cannot be compared. The epoch changes when the log has lost batches, so in the
            // same epoch the log continues the checkpoint.
            let is_other = checkpoint.epoch != self.0.identity.epoch;
            let why = "the log has gone back since, and its last batch is gone";
            return Ok(is_other.then(|| why.to_string()));
        }
        let stream = self.stream(checkpoint.partition);
        let batch_prefix = self.wait_for("the last batch of a checkpoint", async {
            match stream.get_raw_message(checkpoint.sequence).await {
                Ok(message) => Ok(Some(prefix_of(&message.payload))),
                Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
                Err(error) => Err(chain(&error)),
            }
        })?;
        let is_same = batch_prefix.is_some_and(|it| it == checkpoint.batch_prefix);
        Ok((!is_same)
            .then(|| "the log has gone back since: it has another batch there".to_string()))
    }

    /// The reason why the newest checkpoints of the present epoch prove that the log has lost batches; `None` if they do not. A log has lost batches if it
    /// ends before a checkpoint's last batch, or has another batch at the same sequence.
    ///
    /// # Errors
    /// If NATS does not answer.
    pub fn why_gone_back(&self) -> Result<Option<String>, Error> {
        let mut newest = self.list_and_update_status()?;
        newest.retain(|it| it.epoch == self.0.identity.epoch);
        newest.dedup_by_key(|it| it.partition);
        for checkpoint in newest {
            if checkpoint.sequence >= self.first_sequence(checkpoint.partition)?
                && let Some(why) = self.why_unusable(&checkpoint)?
            {
                return Ok(Some(format!("{checkpoint} does not count: {why}")));
            }
        }
        Ok(None)
    }

    /// Reads a checkpoint.
    ///
    /// # Errors
    /// If NATS does not return it; `InvalidData` if a part of it is missing.
    pub fn read(&self, checkpoint: &Checkpoint) -> io::Result<Download> {
        let failed = |error: Error| io::Error::other(error.to_string());
        let object = self.wait_for("it cannot be read", async {
            let object = self.0.bucket.objects.get(&checkpoint.name).await;
            object.map_err(|error| chain(&error))
        });
        let object = object.map_err(failed)?;
        let subject = format!("$O.{}.C.{}", self.0.bucket.name, object.info.nuid);
        let chunk_count = self.wait_for("its chunks", async {
            let subjects = self.0.bucket.stream.info_with_subjects(&subject).await;
            let mut subjects = subjects.map_err(|error| chain(&error))?;
            match subjects.next().await {
                Some(Ok((_, count))) => Ok(count),
                Some(Err(error)) => Err(chain(&error)),
                None => Ok(0),
            }
        });
        let (stored_chunks, all_chunks) = (chunk_count.map_err(failed)?, object.info.chunks);
        if stored_chunks != all_chunks {
            let why = format!("it has {stored_chunks} of its {all_chunks} chunks");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(Download::new(self.0.driver.clone(), object))
    }

    /// Writes a checkpoint.
    pub fn write(&self, new: &NewCheckpoint<'_>) -> Upload {
        let metadata = new.metadata(self.0.identity.id, self.0.identity.epoch);
        Upload::new(
            self.0.driver.clone(),
            self.0.bucket.objects.clone(),
            metadata,
        )
    }

    /// Reads the batches of a partition with these sequences.
    ///
    /// # Errors
    /// If NATS does not return them.
    pub fn read_batches(
        &self,
        partition: u16,
        sequences: std::ops::RangeInclusive<u64>,
    ) -> Result<Batches, Error> {
        let consumer = streams::consume(self.stream(partition), *sequences.start());
        let messages = self.wait_for("the batches behind a checkpoint", consumer)?;
        Ok(Batches::new(self.0.driver.clone(), messages, sequences))
    }

    /// How far this node has read a partition: the sequence of the last batch, and the bytes of all batches.
    pub fn read_progress(&self, partition: u16) -> (u64, u64) {
        let state = &self.0.log.partitions()[usize::from(partition)];
        let read_bytes = state.read_bytes.load(Relaxed);
        (state.next.load(Relaxed).saturating_sub(1), read_bytes)
    }

    /// Records that this node has made a checkpoint of a partition. `read_bytes` is the value from [`Store::read_progress`] before the checkpoint.
    pub fn record_checkpoint(&self, partition: u16, read_bytes: u64) {
        let state = &self.0.log.partitions()[usize::from(partition)];
        state.checkpoint_bytes.store(read_bytes, Relaxed);
    }

    /// Removes an object. The metadata is removed first, so that no node starts to read the object meanwhile.
    fn remove_object(&self, object: &ObjectInfo) -> Result<(), Error> {
        let bucket = &self.0.bucket.name;
        self.purge_subject(&self.metadata_subject(object))?;
        self.purge_subject(&format!("$O.{bucket}.C.{}", object.nuid))
    }

    /// Purges all messages of a subject from the bucket's stream.
    fn purge_subject(&self, subject: &str) -> Result<(), Error> {
        self.wait_for("an old checkpoint", async {
            let purged = self.0.bucket.stream.purge().filter(subject).await;
            purged.map(drop).map_err(|error| chain(&error))
        })
    }

    /// Removes the checkpoints in `unneeded`, all checkpoints of an earlier cluster with the same name, and the chunks that dead writers
    /// have left.
    ///
    /// # Errors
    /// If NATS does not remove them.
    pub fn tidy(&self, unneeded: &[Checkpoint]) -> Result<(), Error> {
        let objects = self.objects()?;
        let is_unneeded = |object: &&ObjectInfo| {
            let is_ours = self.read_info(object).is_some();
            !is_ours || unneeded.iter().any(|it| it.name == object.name)
        };
        for object in objects.iter().filter(is_unneeded) {
            self.remove_object(object)?;
        }
        let orphans = "chunks without an object";
        let subjects = self.wait_for(orphans, async {
            let filter = format!("$O.{}.C.*", self.0.bucket.name);
            let subjects = self.0.bucket.stream.info_with_subjects(filter).await;
            let mut subjects = subjects.map_err(|error| chain(&error))?;
            let now = subjects.info.state.last_timestamp;
            let mut found = Vec::new();
            while let Some(subject) = subjects.next().await {
                found.push(subject.map_err(|error| chain(&error))?.0);
            }
            Ok((found, now))
        })?;
        let (subjects, now) = subjects;
        let is_known = |subject: &&String| {
            let mut known = objects.iter();
            known.any(|it| subject.ends_with(&format!(".{}", it.nuid)))
        };
        for subject in subjects.iter().filter(|it| !is_known(it)) {
            let last = self.wait_for(orphans, async {
                let last = self
                    .0
                    .bucket
                    .stream
                    .get_last_raw_message_by_subject(subject)
                    .await;
                last.map_err(|error| chain(&error))
            })?;
            if now.unix_timestamp() - last.time.unix_timestamp() > ORPHAN_AGE_S {
                self.purge_subject(subject)?;
            }
        }
        Ok(())
    }

    /// Purges the batches of a partition before this sequence.
    ///
    /// # Errors
    /// If NATS does not purge them.
    pub fn purge(&self, partition: u16, before: u64) -> Result<(), Error> {
        self.wait_for("a purge", async {
            let purged = self.stream(partition).purge().sequence(before).await;
            purged.map(drop).map_err(|error| chain(&error))
        })
    }

    /// The sequence of the first batch of a partition that was stored at this time or later.
    ///
    /// # Errors
    /// If NATS does not answer.
    pub fn first_sequence_since(&self, partition: u16, unix_s: u64) -> Result<u64, Error> {
        let state = self.state(partition)?;
        let stream = self.stream(partition);
        let (mut low, mut high) = (state.first_sequence, state.last_sequence + 1);
        if state.first_timestamp.unix_timestamp() >= unix_s as i64 {
            return Ok(low);
        }
        while low < high {
            let middle = low + (high - low) / 2;
            let is_old = self.wait_for("the age of a batch", async {
                match stream.get_raw_message(middle).await {
                    Ok(message) => Ok(message.time.unix_timestamp() < unix_s as i64),
                    Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => {
                        Ok(true)
                    }
                    Err(error) => Err(chain(&error)),
                }
            })?;
            match is_old {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        Ok(low)
    }

    /// The sequence from which a partition's log has at most `bytes_max` bytes to its end. This is an estimate, which assumes that all batches
    /// have the same size.
    ///
    /// # Errors
    /// If NATS does not answer.
    pub fn first_sequence_within_bytes(
        &self,
        partition: u16,
        bytes_max: u64,
    ) -> Result<u64, Error> {
        let state = self.state(partition)?;
        let batch_bytes = (state.bytes / state.messages.max(1)).max(1);
        let excess_batches = state.bytes.saturating_sub(bytes_max) / batch_bytes;
        Ok(state.first_sequence + excess_batches)
    }
}
