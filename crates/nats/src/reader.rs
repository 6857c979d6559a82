//! Reads a partition: every batch once, in the order of the stream.
//!
//! A consumer is cheap and of short life: as soon as anything is missing (a number of the consumer, heartbeats, the connection) a new one
//! begins behind the last batch that was read.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use async_nats::jetstream::consumer::pull;
use futures_util::StreamExt as _;

use crate::error::chain;
use crate::news::{Listening, News};
use crate::settings::Settings;
use crate::shared::{Partition, Shared};
use crate::streams::{self, Stream};

/// Waits before a new consumer: they grow from the first to the last.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// How long a request of ours may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often a reader looks whether the batches that it read are applied.
const APPLIED: Duration = Duration::from_millis(1);

struct Reader {
    stream: Stream,
    partition: u16,
    settings: Settings,
    shared: Arc<Shared>,
    news: Listening,
    /// The last place at the start.
    end: Option<u64>,
}

/// Reads for ever.
pub async fn read(
    stream: Stream,
    partition: u16,
    settings: Settings,
    shared: Arc<Shared>,
    news: Listening,
) {
    let mut reader = Reader {
        stream,
        partition,
        settings,
        shared,
        news,
        end: None,
    };
    let mut wait = BACKOFF.0;
    loop {
        let before = reader.next();
        let why = reader.consume().await;
        if reader.shared.is_connected() {
            reader.shared.fail(&format!(
                "partition {partition}: {why}; a new consumer begins"
            ));
        }
        wait = match reader.next() > before {
            true => BACKOFF.0,
            false => (wait * 2).min(BACKOFF.1),
        };
        tokio::time::sleep(wait).await;
    }
}

impl Reader {
    fn state(&self) -> &Partition {
        &self.shared.partitions()[usize::from(self.partition)]
    }

    fn next(&self) -> u64 {
        self.state().next.load(Relaxed)
    }

    /// Reads with one consumer; returns why it ends.
    async fn consume(&mut self) -> String {
        let begun = tokio::time::timeout(PATIENCE, self.begin()).await;
        let mut messages = match begun {
            Ok(Ok(messages)) => messages,
            Ok(Err(why)) => return why,
            Err(_) => return "NATS does not answer".to_string(),
        };
        let mut number = 0;
        loop {
            while self.news.backlog_bytes() > self.settings.backlog_bytes_max {
                tokio::time::sleep(APPLIED).await;
            }
            let message = tokio::select! {
                message = messages.next() => message,
                () = self.state().kick.notified() => return "it is read anew".to_string(),
            };
            let message = match message {
                Some(Ok(message)) => message,
                Some(Err(error)) => return chain(&error),
                None => return "the consumer has ended".to_string(),
            };
            let (place, unix_s, is) = match message.info() {
                Ok(info) => {
                    let unix_s = u32::try_from(info.published.unix_timestamp()).unwrap_or(0);
                    (info.stream_sequence, unix_s, info.consumer_sequence)
                }
                Err(error) => return format!("a message has no place: {error}"),
            };
            number += 1;
            if is != number {
                return format!("message {number} of the consumer is missing");
            }
            self.shared.heard(self.partition);
            self.take(place, unix_s, message.message.payload);
        }
    }

    /// Makes a consumer behind the last batch that was read.
    async fn begin(&mut self) -> Result<pull::Stream, String> {
        let failed = |error: &dyn std::error::Error| chain(error);
        let info = self
            .stream
            .get_info()
            .await
            .map_err(|error| failed(&error))?;
        let (first, last) = (info.state.first_sequence, info.state.last_sequence);
        if first > self.next() {
            self.lose(first - 1);
        }
        self.end.get_or_insert(last);
        self.look_for_end();
        streams::consume(&self.stream, self.next()).await
    }

    /// Takes the batch at this place.
    fn take(&mut self, place: u64, unix_s: u32, bytes: bytes::Bytes) {
        if place < self.next() {
            return;
        }
        if place > self.next() {
            self.lose(place - 1);
        }
        self.state().was_read(place, bytes.len() as u64);
        self.shared.look_for_room(&self.news);
        self.state().next.store(place + 1, Relaxed);
        self.news.tell(News::Batch {
            partition: self.partition,
            sequence: place,
            unix_s,
            bytes,
        });
        self.look_for_end();
    }

    /// Nothing comes up to this place.
    fn lose(&mut self, to: u64) {
        self.news.tell(News::Lost {
            partition: self.partition,
            from: self.next(),
            to,
        });
        self.state().next.store(to + 1, Relaxed);
        self.look_for_end();
    }

    fn look_for_end(&self) {
        let reached = self.end.is_some_and(|end| self.next() > end);
        if reached && !self.state().caught_up.swap(true, Relaxed) {
            self.news.tell(News::CaughtUp {
                partition: self.partition,
            });
        }
    }
}
