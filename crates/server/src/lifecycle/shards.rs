//! The way of the control thread to the shards: orders go into their inboxes, reports come back through
//! one mailbox and find the task that asked by their ticket.
//!
//! Invariants: every wait has a deadline; a report that no task waits for is dropped. A shard never wakes
//! the runtime itself: the runtime's own descriptors do not exist in a shard's table, and a write to their numbers
//! would go to some client. The mailbox's eventfd does exist there, and [`pump`] listens to it.

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

use crate::shard_loop::{Letter, Reported};

/// How long a shard may take to answer: a turn lasts milliseconds, and a shard that is so late is stuck.
const ANSWER: Duration = Duration::from_secs(5);

/// The shard did not answer in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("shard {0} does not answer")]
pub struct Silent(pub ShardId);

/// All shards, for those on the control thread.
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
    /// Those with these inboxes, by number.
    pub fn new(senders: Vec<Sender<Letter>>) -> Self {
        Shards(Arc::new(Inner {
            senders,
            waiting: Mutex::default(),
        }))
    }

    /// How many there are.
    pub fn count(&self) -> ShardId {
        self.0.senders.len() as ShardId
    }

    /// Tells a shard how many subscribers a topic has at other nodes.
    pub fn counted(&self, shard: ShardId, to: ReplyTo, elsewhere: RemoteSubscribers) {
        self.0.senders[shard as usize].post(Letter::Counted(to, elsewhere));
    }

    /// Orders, and waits for the report, which has the type that the order asks for.
    ///
    /// # Errors
    /// [`Silent`] when it does not come within five seconds.
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
        // A caller that stops waiting leaves no row behind.
        let _forget = Forget(self, ticket);
        self.0.senders[shard as usize].post(Letter::Control(ticket, control));
        match tokio::time::timeout(ANSWER, answered).await {
            Ok(Ok(report)) => Ok(T::try_from(report)
                .unwrap_or_else(|_| unreachable!("each order has a report of one type"))),
            _ => Err(Silent(shard)),
        }
    }

    /// Orders the same of all shards at once; the reports come by shard.
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

    /// The counts and holdings of all shards, which also shows that all turn.
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
            let _ = answer.send(report); // the caller may have gone
        }
    }
}

struct Forget<'a>(&'a Shards, Ticket);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.0.waiting().by_ticket.remove(&self.1);
    }
}

/// A request at a shard that waits for the number of subscribers that a topic has at other nodes.
pub type Count = (ShardId, ReplyTo, Box<[u8]>);

/// Takes reports to the tasks that wait for them, and what shards ask to `counts`, for ever.
pub async fn pump(
    shards: Shards,
    mut inbox: Inbox<Reported>,
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
                Reported::Report(ticket, report) => shards.answered(ticket, report),
                Reported::Count(shard, to, topic) => drop(counts.send((shard, to, topic))),
            }
        }
        if inbox.sleep() {
            bell.readable().await?.clear_ready();
        }
        inbox.awake();
    }
}
