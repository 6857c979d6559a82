//! The engine that appends batches to the log of a cluster. All nodes receive the batches of all nodes in the same order.
//!
//! Until this node has caught up with the log, the batches go to the threads that restore the homes; afterwards to the shards. A batch
//! counts in the backlog from its arrival until it is applied.

use std::io::{self, Write as _};
use std::sync::{Arc, Mutex, mpsc};

use crore_broker::admission::Admission;
use crore_broker::batch::Header;
use crore_broker::{Backlog, Batch, Committed, ForeignBatch, OFFSET_BITS, PartitionId, Placement};
use crore_nats::{Append, Cluster, LogEvent, Store, Table};
use crore_net::{Sender, clock};
use crore_shard_loop::Letter;

use crate::log::LoggedCount;

/// Number of consecutive writer numbers that belong to one node. When the other nodes declare a node dead, it continues as a new writer
/// with its next number.
const SUCCESSORS: u64 = 1 << 16;

/// This node as a member of a cluster.
#[derive(Clone)]
pub struct Member {
    pub cluster: Cluster,
    /// The store of the log's checkpoints. No shard may use it, because its calls block.
    pub store: Store,
    /// Tokens and users that any node has revoked.
    pub revoked: Table,
    /// Bytes of batches that were received and are not applied yet.
    pub backlog: Backlog,
    /// Number of messages in the log that are not batches.
    pub invalid_messages: Arc<LoggedCount>,
}

impl Member {
    pub fn append_all(&self, batches: impl Iterator<Item = Batch>) {
        let append = |batch: Batch| Append {
            partition: batch.header.partition,
            number: batch.header.number,
            bytes: batch.bytes,
        };
        self.cluster.append_all(batches.map(append).collect());
    }
}

/// Where the batches go.
enum Destination {
    /// To the threads that restore the homes, until this many more partitions have caught up.
    Readers(Vec<mpsc::Sender<Committed>>, PartitionId),
    Shards,
}

/// Handles the events of the log.
pub struct Listener {
    writer: u64,
    placement: Placement,
    /// Bytes of batches that were received and are not applied yet.
    pub backlog: Backlog,
    /// Number of messages in the log that are not batches. Anybody who may write to the log can add them, so their log lines are limited.
    pub invalid_messages: Arc<LoggedCount>,
    /// Number of corrections of this node's clock.
    corrections: LoggedCount,
    destination: Mutex<Destination>,
    shards: Vec<Sender<Letter>>,
    /// Learns when the log is full: publishers must wait then.
    admission: Admission,
}

impl Listener {
    /// The listener of the node with this writer number. Batches go to `readers` first, and later to `shards`.
    pub fn new(
        writer: u64,
        placement: Placement,
        readers: Vec<mpsc::Sender<Committed>>,
        shards: Vec<Sender<Letter>>,
        admission: Admission,
    ) -> Listener {
        Listener {
            writer,
            placement,
            backlog: Backlog::default(),
            invalid_messages: Arc::default(),
            corrections: LoggedCount::default(),
            destination: Mutex::new(Destination::Readers(readers, placement.partitions())),
            shards,
            admission,
        }
    }

    fn batch(&self, partition: PartitionId, sequence: u64, unix_s: u32, bytes: &[u8]) {
        let (header, batch) = match self.read(partition, bytes) {
            Ok(read) => read,
            Err(reason) => {
                if let Some(count) = self.invalid_messages.add() {
                    tracing::error!(
                        count,
                        "cluster: message {sequence} of partition {partition} is no batch, and void at all nodes: {reason}; see who else may publish to the subjects of the log"
                    );
                }
                return;
            }
        };
        self.keep_time(&header, unix_s);
        let committed = Committed {
            header: Header {
                first_offset: sequence << OFFSET_BITS,
                unix_s,
                ..header
            },
            batch,
        };
        self.tell(partition, committed);
    }

    /// Adjusts this node's clock to that of NATS, using the times of its own batches. All nodes ignore a batch that NATS stored too long
    /// after its writer's time. With a clock that is behind, good batches would be ignored; with one that is ahead, late batches would be
    /// accepted.
    fn keep_time(&self, header: &Header, stored_s: u32) {
        let is_own = header.writer.wrapping_sub(self.writer) < SUCCESSORS;
        if !is_own {
            return;
        }
        let by_s = clock::follow_log(header.unix_s.into(), stored_s.into());
        if by_s != 0
            && let Some(count) = self.corrections.add()
        {
            tracing::warn!(
                count,
                "cluster: the clock of NATS differs from that of this node, which follows it by {by_s} s; see that the clocks of all NATS servers are kept by NTP"
            );
        }
    }

    /// Reads and checks a batch of this partition. For its own batches this node needs only the header, because it still has the bytes.
    fn read(
        &self,
        partition: PartitionId,
        bytes: &[u8],
    ) -> Result<(Header, Option<ForeignBatch>), &'static str> {
        let header = Header::read(bytes).map_err(|reason| reason.0)?;
        if header.partition != partition {
            return Err("it is of another partition");
        }
        if header.writer == self.writer {
            return Ok((header, None));
        }
        let checked = ForeignBatch::checked(Arc::from(bytes), self.placement, &self.backlog);
        checked.map_or_else(
            |reason| Err(reason.0),
            |(header, batch)| Ok((header, Some(batch))),
        )
    }

    fn tell(&self, partition: PartitionId, committed: Committed) {
        let home = usize::from(self.placement.home_of(partition));
        match &*self.destination.lock().expect("no holder panics") {
            // A failed reader reports its error itself.
            Destination::Readers(readers, _) => drop(readers[home].send(committed)),
            Destination::Shards => self.shards[home].post(Letter::Committed(committed)),
        }
    }

    /// Handles that the log became full, or has space again.
    fn is_full(&self, is_full: bool) {
        let now_s = u32::try_from(clock::counted_s()).unwrap_or(u32::MAX);
        self.admission.set_log_full(if is_full { now_s } else { 0 });
        match is_full {
            true => tracing::warn!(
                "cluster: the log is full of batches that no checkpoint contains: publishers wait, and are refused with 503 after five seconds, until the steward has made one"
            ),
            false => tracing::info!("cluster: the log has room again"),
        }
    }

    /// Ends the process, because this node can no longer continue the positions that it gave its clients. After the next start it restores
    /// everything from checkpoints and the log.
    fn end(&self, reason: &str) -> ! {
        // Written directly to stderr, because the process ends before the logging thread would write it.
        let _ = writeln!(
            io::stderr(),
            "crore: the log of the cluster: {reason}; the server ends, to be started again"
        );
        std::process::exit(1);
    }

    /// Counts a partition that has caught up.
    fn caught_up(&self) {
        let mut destination = self.destination.lock().expect("no holder panics");
        if let Destination::Readers(_, left) = &mut *destination {
            *left -= 1;
            if *left == 0 {
                // The channels close, so the readers end. From now on batches go to the shards.
                *destination = Destination::Shards;
            }
        }
    }
}

impl crore_nats::Listener for Listener {
    fn on_event(&self, event: LogEvent) {
        match event {
            LogEvent::Batch {
                partition,
                sequence,
                unix_s,
                bytes,
            } => self.batch(partition, sequence, unix_s, &bytes),
            LogEvent::Lost {
                partition,
                from,
                to,
            } => {
                self.end(&format!("batches {from} to {to} of partition {partition} were purged before this node has read them; it begins anew with checkpoints"));
            }
            LogEvent::Full(is_full) => self.is_full(is_full),
            LogEvent::CaughtUp { .. } => self.caught_up(),
            LogEvent::Ended { why: reason } => self.end(&reason),
        }
    }

    fn backlog_bytes(&self) -> usize {
        self.backlog.bytes()
    }
}
