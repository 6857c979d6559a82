//! Publishes batches to NATS, several at a time, without a task for each. An acknowledgement removes a batch from the batches in flight; a negative one is
//! also reported. An acknowledgement does not prove that the batch is in the log: only reading the log shows that.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use async_nats::{Client, Message, Subject};
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::log_state::LogState;
use crate::settings::Settings;

/// How long a batch without an acknowledgement counts as in flight. This must be shorter than the time after which the writer appends the batch again.
/// Otherwise the second append would be skipped, because the batch would still count as in flight.
const ACK_TIMEOUT: Duration = Duration::from_millis(1500);
/// How long the NATS client may delay a publish while it connects, and the pause after a failed subscribe.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// A batch to append to the log of a partition.
pub struct Append {
    /// The partition.
    pub partition: u16,
    /// The number of the batch. A batch that is appended again has the same number.
    pub number: u64,
    /// The batch.
    pub bytes: Arc<[u8]>,
}

/// A published batch that NATS has not acknowledged yet.
struct InFlight {
    number: u64,
    published_at: Instant,
}

struct Publisher {
    client: Client,
    log: Arc<LogState>,
    inbox: String,
    subjects: Vec<Subject>,
    /// For each partition the batches in flight, by number.
    in_flight: Vec<VecDeque<InFlight>>,
    /// [`LogState::disconnects`] at the last publish. If it has changed since, the batches in flight may be lost.
    last_disconnects: u64,
}

/// Publishes the batches that it receives, until all senders are dropped.
pub async fn publish(
    client: Client,
    settings: &Settings,
    log: Arc<LogState>,
    mut batches: UnboundedReceiver<Vec<Append>>,
) {
    let partitions = log.partitions().len();
    let inbox = client.new_inbox();
    let mut publisher = Publisher {
        subjects: (0..partitions)
            .map(|partition| Subject::from(settings.subject(partition as u16)))
            .collect(),
        in_flight: (0..partitions).map(|_| VecDeque::new()).collect(),
        last_disconnects: log.disconnects(),
        client,
        log,
        inbox,
    };
    loop {
        let reply_subjects = format!("{}.*.*", publisher.inbox);
        let Ok(mut answers) = publisher.client.subscribe(reply_subjects).await else {
            tokio::time::sleep(CONNECT_TIMEOUT).await;
            continue;
        };
        loop {
            tokio::select! {
                answer = answers.next() => match answer {
                    Some(answer) => publisher.handle_acknowledgement(&answer),
                    None => break,
                },
                received = batches.recv() => match received {
                    Some(batches) => publisher.publish(batches).await,
                    None => return,
                },
            }
        }
    }
}

impl Publisher {
    async fn publish(&mut self, batches: Vec<Append>) {
        if !self.log.is_connected() {
            // The writer of these batches will append them again.
            return;
        }
        if self.last_disconnects != self.log.disconnects() {
            self.last_disconnects = self.log.disconnects();
            self.in_flight.iter_mut().for_each(VecDeque::clear);
        }
        for batch in batches {
            let partition = usize::from(batch.partition);
            if self.is_in_flight(partition, batch.number) {
                continue;
            }
            // Readers skip a batch whose predecessor is missing. So the later batches must be published again after this one.
            self.in_flight[partition].retain(|flight| flight.number < batch.number);
            let reply_subject = format!("{}.{}.{}", self.inbox, batch.partition, batch.number);
            let subject = self.subjects[partition].clone();
            let bytes = Bytes::from_owner(batch.bytes);
            let publish = self
                .client
                .publish_with_reply(subject, reply_subject, bytes);
            match tokio::time::timeout(CONNECT_TIMEOUT, publish).await {
                Ok(Ok(())) => {
                    self.log.appended.fetch_add(1, Relaxed);
                    self.in_flight[partition].push_back(InFlight {
                        number: batch.number,
                        published_at: Instant::now(),
                    });
                }
                Ok(Err(error)) => self.log.record_append_error(&format!("a batch: {error}")),
                Err(_) => return self.log.record_append_error("a batch: no connection"),
            }
        }
    }

    fn is_in_flight(&self, partition: usize, number: u64) -> bool {
        let flights = &self.in_flight[partition];
        flights
            .binary_search_by_key(&number, |flight| flight.number)
            .is_ok_and(|index| flights[index].published_at.elapsed() < ACK_TIMEOUT)
    }

    fn handle_acknowledgement(&mut self, answer: &Message) {
        let mut parts = answer.subject.rsplit('.');
        let number = parts.next().and_then(|text| text.parse::<u64>().ok());
        let partition = parts.next().and_then(|text| text.parse::<usize>().ok());
        let (Some(number), Some(partition)) = (number, partition) else {
            return;
        };
        let Some(flights) = self.in_flight.get_mut(partition) else {
            return;
        };
        flights.retain(|flight| flight.number != number);
        if let Some(status) = answer.status {
            let reason = format!("a batch of partition {partition}: NATS answers {status}");
            return self.log.record_append_error(&reason);
        }
        let text = String::from_utf8_lossy(&answer.payload);
        if text.contains("\"error\"") {
            let is_full = text.contains("maximum bytes exceeded");
            let remedy = match is_full {
                true => {
                    "; the log is full of batches that no checkpoint contains: it accepts batches again when the steward has made a checkpoint, and the steward's log says reason if it makes none"
                }
                false => "",
            };
            let reason =
                format!("a batch of partition {partition}: NATS refuses it: {text}{remedy}");
            self.log.record_append_error(&reason);
        }
    }
}
