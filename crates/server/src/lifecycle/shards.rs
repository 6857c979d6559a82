//! The control thread's requests to the shards. Orders are posted to the shards' inboxes. Reports come back through one mailbox, and their
//! ticket finds the task that asked.
//!
//! Invariants: every wait has a deadline; a report that no task waits for is dropped. A shard never wakes the runtime itself: the runtime's
//! descriptors do not exist in a shard's descriptor table, where the same number may be a client's socket. The mailbox's eventfd exists in
//! both tables, and [`pump`] listens to it.

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

/// Timeout of an answer. A turn lasts milliseconds, so a shard that needs longer is stuck.
const ANSWER: Duration = Duration::from_secs(5);

/// The shard did not answer in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("shard {0} does not answer")]
pub struct Silent(pub ShardId);

/// A handle to all shards, for tasks of the control thread.
#[derive(Clone)]
pub struct Shards(Arc<Inner>);

struct Inner {
    senders: Vec<Sender<Letter>>,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    tickets: u64,
    by_ticket: HashMap<Ticket, oneshot::Sender<Report>>,
}

impl Shards {
    /// `senders` are the shards' inboxes, by number.
    pub fn new(senders: Vec<Sender<Letter>>) -> Self {
        Shards(Arc::new(Inner {
            senders,
            waiting: Mutex::default(),
        }))
    }

    pub fn count(&self) -> ShardId {
        self.0.senders.len() as ShardId
    }

    /// Tells a shard the number of a topic's subscribers at other nodes.
    pub fn counted(&self, shard: ShardId, to: ReplyTo, elsewhere: RemoteSubscribers) {
        self.0.senders[shard as usize].post(Letter::Counted(to, elsewhere));
    }

    /// Sends an order and waits for its report. Each kind of order has one type of report.
    ///
    /// # Errors
    /// [`Silent`] when no report comes within five seconds.
    pub async fn ask<T: TryFrom<Report>>(
        &self,
        shard: ShardId,
        control: Control,
    ) -> Result<T, Silent> {
        let (answer, answered) = oneshot::channel();
        let ticket = {
            let mut waiting = self.waiting();
            waiting.tickets += 1;
            let ticket = Ticket(waiting.tickets);
            waiting.by_ticket.insert(ticket, answer);
            ticket
        };
        // Removes the entry even if the caller's future is dropped.
        let _forget = Forget(self, ticket);
        self.0.senders[shard as usize].post(Letter::Control(ticket, control));
        match tokio::time::timeout(ANSWER, answered).await {
            Ok(Ok(report)) => Ok(T::try_from(report)
                .unwrap_or_else(|_| unreachable!("each order has a report of one type"))),
            _ => Err(Silent(shard)),
        }
    }

    /// Sends an order to all shards at once. Returns the reports by shard.
    ///
    /// # Errors
    /// [`Silent`] for the first shard that does not answer.
    pub async fn ask_all<T: TryFrom<Report>>(
        &self,
        control: impl Fn() -> Control,
    ) -> Result<Vec<T>, Silent> {
        let asked = (0..self.count()).map(|shard| Box::pin(self.ask(shard, control())));
        let reports = futures_util::future::join_all(asked).await;
        reports.into_iter().collect()
    }

    /// Statistics and accounts of all shards. An answer also proves that every shard's loop runs.
    ///
    /// # Errors
    /// [`Silent`] for the first shard that does not answer.
    pub async fn accounts(&self) -> Result<Vec<Box<(Stats, Accounts)>>, Silent> {
        self.ask_all(|| Control::Accounts).await
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.0
            .waiting
            .lock()
            .expect("nothing panics while it waits")
    }

    fn answered(&self, ticket: Ticket, report: Report) {
        if let Some(answer) = self.waiting().by_ticket.remove(&ticket) {
            let _ = answer.send(report); // the caller may not wait any more
        }
    }
}

struct Forget<'a>(&'a Shards, Ticket);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.0.waiting().by_ticket.remove(&self.1);
    }
}

/// A shard's question: the shard, the request that waits there, and the topic whose subscribers at other nodes are to be counted.
pub type Count = (ShardId, ReplyTo, Box<[u8]>);

/// Forwards reports to the tasks that wait for them, and questions of shards to `counts`. Never returns.
pub async fn pump(
    shards: Shards,
    mut inbox: Inbox<ControlLetter>,
    counts: UnboundedSender<Count>,
) -> std::io::Result<()> {
    #[expect(
        deprecated,
        reason = "its successor is unsafe, which has no place here; the eventfd is open as long as the process lives"
    )]
    let bell = AsyncFd::with_interest(inbox.fd().0 as RawFd, Interest::READABLE)?;
    let mut reports = Vec::new();
    loop {
        inbox.drain(&mut reports);
        for reported in reports.drain(..) {
            match reported {
                ControlLetter::Report(ticket, report) => shards.answered(ticket, report),
                ControlLetter::Count(shard, to, topic) => drop(counts.send((shard, to, topic))),
            }
        }
        if inbox.sleep() {
            bell.readable().await?.clear_ready();
        }
        inbox.awake();
    }
}
