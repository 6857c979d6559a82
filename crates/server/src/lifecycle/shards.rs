//! Requests of the control thread to the shards. Each request is an order with a ticket, posted to the inbox of a shard. The shard's report
//! arrives in the mailbox of the control thread, and is passed to the task that waits for the ticket.
//!
//! Invariants:
//! * Every wait has a deadline. A report is dropped if no task waits for it.
//! * A shard must not wake the runtime of the control thread. The reason: shard threads and the control thread have separate descriptor
//!   tables. The number of the runtime's wake-up descriptor may be a client's socket in the table of a shard. The eventfd of the mailbox is
//!   in both tables, so a shard writes to that eventfd, and [`forward_reports`] waits for it.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crore_broker::mail::{RemoteSubscribers, ReplyTo};
use crore_broker::{Accounts, Control, Report, ShardId, Stats, Ticket};
use crore_net::{Inbox, Sender};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use crore_shard_loop::{ControlLetter, Letter};

/// The time limit for a report. A turn of a shard's loop lasts milliseconds, so a shard that needs longer is stuck.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The shard did not answer in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("shard {0} does not answer")]
pub struct ShardTimeout(pub ShardId);

/// A handle to all shards, for the tasks of the control thread.
#[derive(Clone)]
pub struct Shards(Arc<Inner>);

struct Inner {
    senders: Vec<Sender<Letter>>,
    pending: Mutex<PendingOrders>,
}

/// The orders whose reports have not arrived.
#[derive(Default)]
struct PendingOrders {
    last_ticket: u64,
    by_ticket: HashMap<Ticket, oneshot::Sender<Report>>,
}

impl Shards {
    /// `senders` are the inboxes of the shards, by shard number.
    pub fn new(senders: Vec<Sender<Letter>>) -> Self {
        Shards(Arc::new(Inner {
            senders,
            pending: Mutex::default(),
        }))
    }

    pub fn count(&self) -> ShardId {
        self.0.senders.len() as ShardId
    }

    /// Answers a shard's [`RemoteCountRequest`].
    pub fn send_remote_count(&self, shard: ShardId, reply_to: ReplyTo, count: RemoteSubscribers) {
        self.0.senders[shard as usize].post(Letter::Counted(reply_to, count));
    }

    /// Sends an order and waits for its report. Each kind of order has its own type of report.
    ///
    /// # Errors
    /// [`ShardTimeout`] when no report comes within five seconds.
    pub async fn ask<T: TryFrom<Report>>(
        &self,
        shard: ShardId,
        control: Control,
    ) -> Result<T, ShardTimeout> {
        let (answer, answered) = oneshot::channel();
        let ticket = {
            let mut pending = self.pending();
            pending.last_ticket += 1;
            let ticket = Ticket(pending.last_ticket);
            pending.by_ticket.insert(ticket, answer);
            ticket
        };
        // Removes the ticket even if the caller drops this future.
        let _remove = RemoveOnDrop(self, ticket);
        self.0.senders[shard as usize].post(Letter::Control(ticket, control));
        match tokio::time::timeout(ANSWER_TIMEOUT, answered).await {
            Ok(Ok(report)) => Ok(T::try_from(report)
                .unwrap_or_else(|_| unreachable!("each order has a report of one type"))),
            _ => Err(ShardTimeout(shard)),
        }
    }

    /// Sends an order to all shards at once. Returns the reports by shard.
    ///
    /// # Errors
    /// [`ShardTimeout`] for the first shard that does not answer.
    pub async fn ask_all<T: TryFrom<Report>>(
        &self,
        control: impl Fn() -> Control,
    ) -> Result<Vec<T>, ShardTimeout> {
        let asked = (0..self.count()).map(|shard| Box::pin(self.ask(shard, control())));
        let reports = futures_util::future::join_all(asked).await;
        reports.into_iter().collect()
    }

    /// Statistics and accounts of all shards. The reports also prove that the loop of every shard runs.
    ///
    /// # Errors
    /// [`ShardTimeout`] for the first shard that does not answer.
    pub async fn accounts(&self) -> Result<Vec<Box<(Stats, Accounts)>>, ShardTimeout> {
        self.ask_all(|| Control::Accounts).await
    }

    fn pending(&self) -> std::sync::MutexGuard<'_, PendingOrders> {
        self.0
            .pending
            .lock()
            .expect("nothing panics while it waits")
    }

    /// Passes a report to the task that waits for it.
    fn complete(&self, ticket: Ticket, report: Report) {
        if let Some(answer) = self.pending().by_ticket.remove(&ticket) {
            let _ = answer.send(report); // an error means that the caller no longer waits
        }
    }
}

struct RemoveOnDrop<'a>(&'a Shards, Ticket);

impl Drop for RemoveOnDrop<'_> {
    fn drop(&mut self) {
        self.0.pending().by_ticket.remove(&self.1);
    }
}

/// A shard's request to count the subscribers that a topic has at other nodes.
pub struct RemoteCountRequest {
    pub shard: ShardId,
    /// The request of the client, which waits at the shard.
    pub reply_to: ReplyTo,
    pub topic: Box<[u8]>,
}

/// Forwards reports to the tasks that wait for them, and requests of shards to `count_requests`. Never returns.
pub async fn forward_reports(
    shards: Shards,
    mut inbox: Inbox<ControlLetter>,
    count_requests: UnboundedSender<RemoteCountRequest>,
) -> std::io::Result<()> {
    #[expect(
        deprecated,
        reason = "its successor is unsafe, which has no place here; the eventfd is open as long as the process lives"
    )]
    let wakeup = AsyncFd::with_interest(inbox.fd().0 as RawFd, Interest::READABLE)?;
    let mut reports = Vec::new();
    loop {
        inbox.drain(&mut reports);
        for letter in reports.drain(..) {
            match letter {
                ControlLetter::Report(ticket, report) => shards.complete(ticket, report),
                ControlLetter::Count(shard, reply_to, topic) => {
                    let request = RemoteCountRequest {
                        shard,
                        reply_to,
                        topic,
                    };
                    drop(count_requests.send(request));
                }
            }
        }
        if inbox.announce_sleep() {
            wakeup.readable().await?.clear_ready();
        }
        inbox.end_sleep();
    }
}
