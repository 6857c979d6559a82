//! The log of a cluster as the engine. All nodes receive the batches of all nodes in one order.
//!
//! Until this node has caught up with the log, batches go to the threads that rebuild the homes; afterwards to the shards. A batch counts
//! in the backlog until it is applied.

use std::io::{self, Write as _};
use std::sync::{Arc, Mutex, mpsc};

use crore_broker::admission::Admission;
use crore_broker::batch::Header;
use crore_broker::{Backlog, Batch, Committed, ForeignBatch, OFFSET_BITS, PartitionId, Placement};
use crore_nats::{Append, Cluster, LogEvent, Store, Table};
use crore_net::{Sender, clock};
use crore_shard_loop::Letter;

use crate::log::LoggedCount;

/// A node that was declared dead continues as the writer with the next number. This many writer numbers belong to one node.
const SUCCESSORS: u64 = 1 << 16;

/// This node as a member of a cluster.
#[derive(Clone)]
pub struct Member {
    pub cluster: Cluster,
    /// The checkpoints of the log. Its calls block, so that no shard may use it.
    pub store: Store,
    /// Tokens and users that any node has revoked.
    pub revoked: Table,
    /// Bytes of batches that were received and are not applied.
    pub backlog: Backlog,
    /// Messages in the log that are not batches.
    pub void: Arc<LoggedCount>,
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

/// The receivers of batches.
enum Destination {
    /// The threads that rebuild the homes, until this many more partitions have caught up.
    Readers(Vec<mpsc::Sender<Committed>>, PartitionId),
    Shards,
}

/// Receives the events of the log.
pub struct Listener {
    writer: u64,
    placement: Placement,
    /// Bytes of batches that were received and are not applied.
    pub backlog: Backlog,
    /// Messages in the log that are not batches. Anybody with write access can add them, so their log lines are limited.
    pub void: Arc<LoggedCount>,
    /// Corrections of this node's clock.
    corrections: LoggedCount,
    destination: Mutex<Destination>,
    shards: Vec<Sender<Letter>>,
    /// Told when the log is full: publishers wait then.
    admission: Admission,
}

impl Listener {
    /// For the node with this writer number. Batches go to `readers` first, later to `shards`.
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
            void: Arc::default(),
            corrections: LoggedCount::default(),
            destination: Mutex::new(Destination::Readers(readers, placement.partitions())),
            shards,
            admission,
        }
    }

    fn batch(&self, partition: PartitionId, sequence: u64, unix_s: u32, bytes: &[u8]) {
        let (header, batch) = match self.read(partition, bytes) {
            Ok(read) => read,
            Err(why) => {
                if let Some(count) = self.void.add() {
                    tracing::error!(
                        count,
                        "cluster: message {sequence} of partition {partition} is no batch, and void at all nodes: {why}; see who else may publish to the subjects of the log"
                    );
                }
                return;
            }
        };
        self.keep_time(&header, unix_s);
        let committed = Committed {
            header: Header {
                first: sequence << OFFSET_BITS,
                unix_s,
                ..header
            },
            batch,
        };
        self.tell(partition, committed);
    }

    /// Adjusts this node's clock to that of NATS, by the times of its own batches. All nodes ignore a batch that was stored too long after it
    /// was written: a clock that is behind makes good batches void, and one that is ahead lets late ones count.
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

    /// Reads and checks a batch of this partition. For its own batches this node needs no bytes: it still has them.
    fn read(
        &self,
        partition: PartitionId,
        bytes: &[u8],
    ) -> Result<(Header, Option<ForeignBatch>), &'static str> {
        let header = Header::read(bytes).map_err(|why| why.0)?;
        if header.partition != partition {
            return Err("it is of another partition");
        }
        if header.writer == self.writer {
            return Ok((header, None));
        }
        let checked = ForeignBatch::checked(Arc::from(bytes), self.placement, &self.backlog);
        checked.map_or_else(
            |why| Err(why.0),
            |(header, batch)| Ok((header, Some(batch))),
        )
    }

    fn tell(&self, partition: PartitionId, committed: Committed) {
        let home = usize::from(self.placement.home_of(partition));
        match &*self.destination.lock().expect("no holder panics") {
            // A reader that has failed reports its error itself.
            Destination::Readers(readers, _) => drop(readers[home].send(committed)),
            Destination::Shards => self.shards[home].post(Letter::Committed(committed)),
        }
    }

    /// Handles a log that became full, or that has room again.
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

    /// Ends the process, since this node can no longer continue the positions that it gave its clients. The next start reads everything anew.
    fn end(&self, why: &str) -> ! {
        // Written directly, since the process ends before the logging thread would write it.
        let _ = writeln!(
            io::stderr(),
            "crore: the log of the cluster: {why}; the server ends, to be started again"
        );
        std::process::exit(1);
    }

    /// Counts a partition that has caught up.
    fn caught_up(&self) {
        let mut destination = self.destination.lock().expect("no holder panics");
        if let Destination::Readers(_, left) = &mut *destination {
            *left -= 1;
            if *left == 0 {
                // The readers end. From now on batches wait for the shards.
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
            LogEvent::Ended { why } => self.end(&why),
        }
    }

    fn backlog_bytes(&self) -> usize {
        self.backlog.bytes()
    }
}
