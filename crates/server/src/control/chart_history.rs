//! The data of the console's charts for the last quarter of an hour, so that a newly opened console shows full charts at once.
//!
//! Invariant: the newest [`SAMPLES_MAX`] samples are kept, at most one a second.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use crore_broker::Transport;
use crore_shard_loop::counters::ShardCounters;
use serde::Serialize;
use tokio::sync::watch;
use utoipa::ToSchema;

use super::samples::{LastSamples, latency, per_s, sum, unix_ms};

/// A quarter of an hour, with one sample a second.
const SAMPLES_MAX: usize = 900;
const _: () = assert!(size_of::<Sample>() * SAMPLES_MAX <= 64 << 10);

struct Sample {
    time_ms: u64,
    websocket: u32,
    sse: u32,
    longpoll: u32,
    mqtt: u32,
    centrifugo: u32,
    in_per_s: f32,
    out_per_s: f32,
    p50_us: Option<u32>,
    p99_us: Option<u32>,
    p999_us: Option<u32>,
}

/// The samples, oldest first: a list for each line of the charts.
#[derive(Default, Serialize, ToSchema)]
pub struct Columns {
    /// The time of each sample, in Unix milliseconds.
    time_ms: Vec<u64>,
    /// Number of connections by protocol.
    websocket: Vec<u32>,
    sse: Vec<u32>,
    longpoll: Vec<u32>,
    /// Connections of MQTT, over TCP and over WebSocket.
    mqtt: Vec<u32>,
    centrifugo: Vec<u32>,
    /// Published messages per second.
    in_per_s: Vec<f32>,
    /// Deliveries per second.
    out_per_s: Vec<f32>,
    /// Percentiles of the latency of deliveries: from the turn of the shard that read a message until it was written. Null if nothing was delivered.
    p50_us: Vec<Option<u32>>,
    p99_us: Vec<Option<u32>>,
    p999_us: Vec<Option<u32>>,
}

/// A handle to the stored samples.
#[derive(Clone, Default)]
pub struct ChartHistory(Arc<Mutex<VecDeque<Sample>>>);

impl ChartHistory {
    /// Spawns a task that stores each new sample.
    pub fn spawn(mut samples: watch::Receiver<LastSamples>) -> ChartHistory {
        let history = ChartHistory::default();
        let writer = history.clone();
        tokio::spawn(async move {
            while samples.changed().await.is_ok() {
                let sample = Sample::between(&samples.borrow_and_update());
                writer.push(sample);
            }
        });
        history
    }

    /// Stores a sample. Evicts the oldest one if [`SAMPLES_MAX`] are stored.
    fn push(&self, sample: Sample) {
        let mut samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if samples.len() == SAMPLES_MAX {
            samples.pop_front();
        }
        samples.push_back(sample);
    }

    /// All samples, by column.
    pub fn columns(&self) -> Columns {
        let samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut columns = Columns::default();
        for it in samples.iter() {
            columns.time_ms.push(it.time_ms);
            columns.websocket.push(it.websocket);
            columns.sse.push(it.sse);
            columns.longpoll.push(it.longpoll);
            columns.mqtt.push(it.mqtt);
            columns.centrifugo.push(it.centrifugo);
            columns.in_per_s.push(it.in_per_s);
            columns.out_per_s.push(it.out_per_s);
            columns.p50_us.push(it.p50_us);
            columns.p99_us.push(it.p99_us);
            columns.p999_us.push(it.p999_us);
        }
        columns
    }
}

impl Sample {
    /// The rates between the last two samples, and the counts of the newer one.
    fn between(samples: &LastSamples) -> Sample {
        let (before, now) = (&samples.previous.shards, &samples.newest.shards);
        let passed = samples
            .newest
            .taken_at
            .duration_since(samples.previous.taken_at)
            .as_secs_f64();
        let rate = |counter: fn(&ShardCounters) -> u64| {
            per_s(
                sum(now, counter).saturating_sub(sum(before, counter)),
                passed,
            ) as f32
        };
        let by = |transport: Transport| {
            let count = sum(now, |s| s.accounts.transports[transport as usize].into());
            u32::try_from(count).unwrap_or(u32::MAX)
        };
        let latency = latency(now).since(&latency(before));
        let quantile = |fraction| {
            let us = latency.quantile_us(fraction)?;
            Some(u32::try_from(us).unwrap_or(u32::MAX))
        };
        Sample {
            time_ms: unix_ms(),
            websocket: by(Transport::WebSocket),
            sse: by(Transport::Sse),
            longpoll: by(Transport::LongPoll),
            mqtt: by(Transport::Mqtt).saturating_add(by(Transport::MqttWebSocket)),
            centrifugo: by(Transport::Centrifugo),
            in_per_s: rate(|s| s.stats.published),
            out_per_s: rate(|s| s.stats.delivered),
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_samples_are_kept() {
        let history = ChartHistory::default();
        for time_ms in 0..SAMPLES_MAX as u64 + 5 {
            history.push(Sample {
                time_ms,
                websocket: 0,
                sse: 0,
                longpoll: 0,
                mqtt: 0,
                centrifugo: 0,
                in_per_s: 0.0,
                out_per_s: 0.0,
                p50_us: None,
                p99_us: None,
                p999_us: None,
            });
        }
        let times = history.columns().time_ms;
        assert_eq!((times.len(), times[0]), (SAMPLES_MAX, 5));
    }
}
