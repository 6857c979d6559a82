//! A small table that all nodes of a cluster share, stored in the cluster's bucket. Each node keeps a copy, and sees the changes of other
//! nodes.
//!
//! Invariants: an acknowledged change is stored in NATS and reaches each connected node. A node whose connection was lost reads the whole
//! table again.
//!
//! Deliberately not here: the meaning of the rows.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::jetstream::kv::{Entry, Operation, Store, Watch};
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::error::{Error, chain};
use crate::identity::IDENTITY_KEY;

/// The maximum number of rows. The next constant is the maximum size of a row, in bytes. Everybody who may write to the bucket can add rows, so both are
/// limited.
const ROWS_MAX: usize = 200_000;
const ROW_BYTES_MAX: usize = 4 << 10;
/// How long NATS may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay before a failed read of the table is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

type Rows = BTreeMap<String, Bytes>;

/// The table, with this node's copy.
#[derive(Clone)]
pub struct Table {
    store: Store,
    /// The key of a row in the bucket is this name, a dot, and the key of the row.
    name: &'static str,
    local: Arc<WatchedCopy>,
}

/// This node's copy of the rows, with a notice of each change.
struct WatchedCopy {
    copy: Mutex<LocalCopy>,
    change_notice: Notify,
}

/// The rows, and the last change that they include.
#[derive(Default)]
struct LocalCopy {
    rows: Rows,
    /// The revision of the last change that the rows include.
    revision: u64,
}

impl WatchedCopy {
    fn lock(&self) -> MutexGuard<'_, LocalCopy> {
        self.copy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Reads the table. The caller must run the returned future as a task: it keeps the copy up to date.
    pub(crate) async fn open(
        store: Store,
        name: &'static str,
    ) -> Result<(Table, impl Future<Output = ()> + use<>), Error> {
        let (copy, watch) = read_rows(&store, name).await?;
        let local = Arc::new(WatchedCopy {
            copy: Mutex::new(copy),
            change_notice: Notify::new(),
        });
        let follow = follow_changes(store.clone(), name, Arc::clone(&local), watch);
        Ok((Table { store, name, local }, follow))
    }

    /// The rows, by key.
    pub fn rows(&self) -> BTreeMap<String, Bytes> {
        self.local.lock().rows.clone()
    }

    /// Waits until rows have changed since the last call.
    pub async fn wait_for_change(&self) {
        self.local.change_notice.notified().await;
    }

    /// Writes a row. This node sees it at once, other nodes when NATS delivers the change.
    ///
    /// # Errors
    /// If NATS does not accept the row, or there are too many rows.
    pub async fn put(&self, key: &str, value: Vec<u8>) -> Result<(), Error> {
        let is_full = self.local.lock().rows.len() >= ROWS_MAX;
        if is_full || value.len() > ROW_BYTES_MAX {
            return Err(Error::lasting(format!(
                "a table of the cluster has at most {ROWS_MAX} rows of {ROW_BYTES_MAX} bytes"
            )));
        }
        let value = Bytes::from(value);
        let put = self.store.put(self.bucket_key(key), value.clone());
        let put = async { put.await.map_err(|error| chain(&error)) };
        let revision = self.await_answer(put).await?;
        let mut copy = self.local.lock();
        // The watch may have brought a later change of the same row already.
        if revision > copy.revision {
            copy.rows.insert(key.to_string(), value);
        }
        Ok(())
    }

    /// Removes a row. All nodes see that when NATS delivers the change.
    ///
    /// # Errors
    /// If NATS does not accept the removal.
    pub async fn remove(&self, key: &str) -> Result<(), Error> {
        let purge = self.store.purge(self.bucket_key(key));
        let purge = async { purge.await.map_err(|error| chain(&error)) };
        self.await_answer(purge).await
    }

    fn bucket_key(&self, key: &str) -> String {
        format!("{}.{key}", self.name)
    }

    async fn await_answer<T>(
        &self,
        answer: impl Future<Output = Result<T, String>>,
    ) -> Result<T, Error> {
        let answer = timeout(ANSWER_TIMEOUT, answer).await;
        let answer = answer.unwrap_or_else(|_| Err("NATS does not answer".to_string()));
        answer.map_err(|why| Error::transient(format!("the table {}: {why}", self.name)))
    }
}

/// Reads all rows, and watches later changes.
async fn read_rows(store: &Store, name: &str) -> Result<(LocalCopy, Watch), Error> {
    let failed = |why: String| Error::transient(format!("the table {name}: {why}"));
    let rows = async {
        // Also watches the key of the cluster's identity, which always exists. So the history has a last entry (`delta` 0) even if the table
        // is empty.
        let keys = [IDENTITY_KEY.to_string(), format!("{name}.>")];
        let watch = store.watch_many_with_history(keys).await;
        let mut watch = watch.map_err(|error| failed(chain(&error)))?;
        let mut copy = LocalCopy::default();
        loop {
            let entry = watch.next().await;
            let entry = entry.ok_or_else(|| failed("its watch has ended".to_string()))?;
            let entry = entry.map_err(|error| failed(chain(&error)))?;
            copy.apply(name, &entry);
            if entry.delta == 0 {
                return Ok((copy, watch));
            }
        }
    };
    let result = timeout(ANSWER_TIMEOUT, rows).await;
    result.unwrap_or_else(|_| Err(failed("NATS does not answer".to_string())))
}

impl LocalCopy {
    /// Applies a change of the bucket, if it belongs to the table.
    fn apply(&mut self, name: &str, entry: &Entry) {
        self.revision = self.revision.max(entry.revision);
        let key = entry.key.strip_prefix(name);
        let Some(key) = key.and_then(|key| key.strip_prefix('.')) else {
            return;
        };
        if entry.operation != Operation::Put {
            self.rows.remove(key);
        } else if entry.value.len() <= ROW_BYTES_MAX && self.rows.len() < ROWS_MAX {
            self.rows.insert(key.to_string(), entry.value.clone());
        }
    }
}

/// Keeps the node's copy up to date.
async fn follow_changes(
    store: Store,
    name: &'static str,
    local: Arc<WatchedCopy>,
    mut watch: Watch,
) {
    loop {
        while let Some(Ok(entry)) = watch.next().await {
            local.lock().apply(name, &entry);
            local.change_notice.notify_one();
        }
        watch = loop {
            sleep(RETRY_INTERVAL).await;
            if let Ok((copy, watch)) = read_rows(&store, name).await {
                *local.lock() = copy;
                local.change_notice.notify_one();
                break watch;
            }
        };
    }
}
