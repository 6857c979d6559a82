//! Reads a partition of the log: every batch once, in the order of the stream.
//!
//! Consumers are cheap, so none is repaired. When a message, a heartbeat or the connection is lost, a new consumer starts after the last
//! batch read. Before that, the reader checks that the stream still has this batch. If it has another one there, the log has lost its end
//! and has grown again.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::stream::LastRawMessageErrorKind;
use futures_util::StreamExt as _;

use crate::error::chain;
use crate::events::{LogEvent, SharedListener};
use crate::log_state::{LogState, Partition};
use crate::settings::Settings;
use crate::streams::{self, Stream};

/// The delay before the next consumer: it doubles from the first value up to the second while consumers deliver nothing.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// The time limit for creating a consumer.
const CREATE_TIMEOUT: Duration = Duration::from_secs(3);
/// How often a reader with a full backlog checks whether its batches have been applied.
const APPLIED: Duration = Duration::from_millis(1);

struct Reader {
    stream: Stream,
    partition: u16,
    settings: Settings,
    log: Arc<LogState>,
    events: SharedListener,
    /// The last sequence of the stream when this node started. Once that is read, the reader has caught up.
    end: Option<u64>,
    /// The sequence of the last batch read, and when NATS stored it, in nanoseconds since 1970.
    last_read: Option<(u64, i128)>,
}

/// Reads a partition for ever.
pub async fn read(
    stream: Stream,
    partition: u16,
    settings: Settings,
    log: Arc<LogState>,
    events: SharedListener,
) {
    let mut reader = Reader {
        stream,
        partition,
        settings,
        log,
        events,
        end: None,
        last_read: None,
    };
    let mut wait = BACKOFF.0;
    loop {
        let before = reader.next();
        let why = reader.consume().await;
        if reader.log.is_connected() {
            reader.log.fail(&format!(
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
        &self.log.partitions()[usize::from(self.partition)]
    }

    fn next(&self) -> u64 {
        self.state().next.load(Relaxed)
    }

    /// Reads with one consumer. Returns why the consumer ended.
    async fn consume(&mut self) -> String {
        let begun = tokio::time::timeout(CREATE_TIMEOUT, self.begin()).await;
        let mut messages = match begun {
            Ok(Ok(messages)) => messages,
            Ok(Err(why)) => return why,
            Err(_) => return "NATS does not answer".to_string(),
        };
        let mut number = 0;
        loop {
            while self.events.backlog_bytes() > self.settings.backlog_bytes_max {
                tokio::time::sleep(APPLIED).await;
            }
            let message = tokio::select! {
                message = messages.next() => message,
                () = self.state().restart.notified() => return "it is read anew".to_string(),
            };
            let message = match message {
                Some(Ok(message)) => message,
                Some(Err(error)) => return chain(&error),
                None => return "the consumer has ended".to_string(),
            };
            let (sequence, stored, is) = match message.info() {
                Ok(info) => (
                    info.stream_sequence,
                    info.published.unix_timestamp_nanos(),
                    info.consumer_sequence,
                ),
                Err(error) => return format!("a message has no place: {error}"),
            };
            number += 1;
            if is != number {
                return format!("message {number} of the consumer is missing");
            }
            self.log.heard(self.partition);
            let unix_s = u32::try_from(stored / 1_000_000_000).unwrap_or(0);
            self.take(sequence, unix_s, message.message.payload);
            self.last_read = Some((sequence, stored));
        }
    }

    /// Creates a consumer that starts after the last batch read.
    async fn begin(&mut self) -> Result<pull::Stream, String> {
        let failed = |error: &dyn std::error::Error| chain(error);
        let info = self
            .stream
            .get_info()
            .await
            .map_err(|error| failed(&error))?;
        let (first, last) = (info.state.first_sequence, info.state.last_sequence);
        if last + 1 < self.next() {
            // A newly elected leader does not know the end at once. Otherwise the watch finds that the log has gone back. A consumer that
            // began now would deliver other batches when the stream has grown again.
            let read = self.next() - 1;
            return Err(format!("it ends with {last}, and {read} was read from it"));
        }
        self.check_last_read(first).await?;
        if first > self.next() {
            self.lose(first - 1);
        }
        self.end.get_or_insert(last);
        self.look_for_end();
        streams::consume(&self.stream, self.next()).await
    }

    /// Checks that the stream, which begins at `first`, still has the last batch that was read. If the batch was purged, that is unknown.
    async fn check_last_read(&self, first: u64) -> Result<(), String> {
        let Some((sequence, stored)) = self.last_read.filter(|it| it.0 >= first) else {
            return Ok(());
        };
        match self.stream.get_raw_message(sequence).await {
            Ok(message) if message.time.unix_timestamp_nanos() != stored => {
                self.state().has_gone_back.store(true, Relaxed);
                Err(format!("it has another batch {sequence} than before"))
            }
            Ok(_) => Ok(()),
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(()),
            Err(error) => Err(chain(&error)),
        }
    }

    /// Delivers the batch with this sequence, and reports a gap before it as lost.
    fn take(&mut self, sequence: u64, unix_s: u32, bytes: bytes::Bytes) {
        if sequence < self.next() {
            return;
        }
        if sequence > self.next() {
            self.lose(sequence - 1);
        }
        self.state().was_read(sequence, bytes.len() as u64);
        self.log.look_for_room(&self.events);
        self.state().next.store(sequence + 1, Relaxed);
        self.events.on_event(LogEvent::Batch {
            partition: self.partition,
            sequence,
            unix_s,
            bytes,
        });
        self.look_for_end();
    }

    /// Reports that the batches up to this sequence are lost.
    fn lose(&mut self, to: u64) {
        self.events.on_event(LogEvent::Lost {
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
            self.events.on_event(LogEvent::CaughtUp {
                partition: self.partition,
            });
        }
    }
}
