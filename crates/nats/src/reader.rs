//! Reads a partition of the log: every batch once, in the order of the stream.
//!
//! Consumers are cheap, so the reader never repairs one. When a message, a heartbeat or the connection is lost, it creates a new consumer that starts after
//! the last batch read. Before that, it checks that the stream still has this batch. A different batch at that place means that the log has lost its end
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

/// The delay before the next consumer. While consumers deliver nothing, it doubles from the first value up to the second.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// The time limit for creating a consumer.
const CREATE_TIMEOUT: Duration = Duration::from_secs(3);
/// How often a reader with a full backlog checks whether its batches have been applied.
const BACKLOG_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The last batch read.
#[derive(Clone, Copy)]
struct LastRead {
    sequence: u64,
    /// When NATS stored the batch, in nanoseconds since 1970.
    stored_ns: i128,
}

struct Reader {
    stream: Stream,
    partition: u16,
    settings: Settings,
    log: Arc<LogState>,
    events: SharedListener,
    /// The last sequence of the stream when this node started. Once that is read, the reader has caught up.
    start_end: Option<u64>,
    last_read: Option<LastRead>,
}

/// Reads a partition for ever.
pub async fn run_reader(
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
        start_end: None,
        last_read: None,
    };
    let mut backoff = BACKOFF_MIN;
    loop {
        let next_before = reader.next();
        let reason = reader.consume().await;
        if reader.log.is_connected() {
            reader.log.record_error(&format!(
                "partition {partition}: {reason}; a new consumer begins"
            ));
        }
        backoff = match reader.next() > next_before {
            true => BACKOFF_MIN,
            false => (backoff * 2).min(BACKOFF_MAX),
        };
        tokio::time::sleep(backoff).await;
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
        let consumer = tokio::time::timeout(CREATE_TIMEOUT, self.create_consumer()).await;
        let mut messages = match consumer {
            Ok(Ok(messages)) => messages,
            Ok(Err(reason)) => return reason,
            Err(_) => return "NATS does not answer".to_string(),
        };
        let mut expected_number = 0;
        loop {
            while self.events.backlog_bytes() > self.settings.backlog_bytes_max {
                tokio::time::sleep(BACKLOG_POLL_INTERVAL).await;
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
            let (sequence, stored_ns, number) = match message.info() {
                Ok(info) => (
                    info.stream_sequence,
                    info.published.unix_timestamp_nanos(),
                    info.consumer_sequence,
                ),
                Err(error) => return format!("a message has no place: {error}"),
            };
            expected_number += 1;
            if number != expected_number {
                return format!("message {expected_number} of the consumer is missing");
            }
            self.log.record_contact(self.partition);
            let unix_s = u32::try_from(stored_ns / 1_000_000_000).unwrap_or(0);
            self.deliver(sequence, unix_s, message.message.payload);
            self.last_read = Some(LastRead {
                sequence,
                stored_ns,
            });
        }
    }

    /// Creates a consumer that starts after the last batch read.
    async fn create_consumer(&mut self) -> Result<pull::Stream, String> {
        let failed = |error: &dyn std::error::Error| chain(error);
        let info = self
            .stream
            .get_info()
            .await
            .map_err(|error| failed(&error))?;
        let (first, last) = (info.state.first_sequence, info.state.last_sequence);
        if last + 1 < self.next() {
            // Either a newly elected leader does not know the end yet, or the log has lost batches, which the checks (`watch`) find. If a consumer were
            // created now, it would deliver different batches once the stream has grown again.
            let last_read = self.next() - 1;
            return Err(format!(
                "it ends with {last}, and {last_read} was read from it"
            ));
        }
        self.check_last_read(first).await?;
        if first > self.next() {
            self.report_lost(first - 1);
        }
        self.start_end.get_or_insert(last);
        self.report_caught_up();
        streams::consume(&self.stream, self.next()).await
    }

    /// Checks that the stream, which begins at `first`, still has the last batch that was read. A purged batch cannot be checked.
    async fn check_last_read(&self, first: u64) -> Result<(), String> {
        let Some(LastRead {
            sequence,
            stored_ns,
        }) = self.last_read.filter(|it| it.sequence >= first)
        else {
            return Ok(());
        };
        match self.stream.get_raw_message(sequence).await {
            Ok(message) if message.time.unix_timestamp_nanos() != stored_ns => {
                self.state().has_gone_back.store(true, Relaxed);
                Err(format!("it has another batch {sequence} than before"))
            }
            Ok(_) => Ok(()),
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(()),
            Err(error) => Err(chain(&error)),
        }
    }

    /// Delivers the batch with this sequence, and reports a gap before it as lost.
    fn deliver(&mut self, sequence: u64, unix_s: u32, bytes: bytes::Bytes) {
        if sequence < self.next() {
            return;
        }
        if sequence > self.next() {
            self.report_lost(sequence - 1);
        }
        self.state().count_read(sequence, bytes.len() as u64);
        self.log.report_fullness(&self.events);
        self.state().next.store(sequence + 1, Relaxed);
        self.events.on_event(LogEvent::Batch {
            partition: self.partition,
            sequence,
            unix_s,
            bytes,
        });
        self.report_caught_up();
    }

    /// Reports that the batches up to this sequence are lost.
    fn report_lost(&mut self, to: u64) {
        self.events.on_event(LogEvent::Lost {
            partition: self.partition,
            from: self.next(),
            to,
        });
        self.state().next.store(to + 1, Relaxed);
        self.report_caught_up();
    }

    /// Reports once that this node has read everything that the log had at the start.
    fn report_caught_up(&self) {
        let has_reached_end = self.start_end.is_some_and(|end| self.next() > end);
        if has_reached_end && !self.state().has_caught_up.swap(true, Relaxed) {
            self.events.on_event(LogEvent::CaughtUp {
                partition: self.partition,
            });
        }
    }
}
