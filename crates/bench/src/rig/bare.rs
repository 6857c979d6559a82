//! A bare NATS client to compare a cluster node with: `async-nats` publishes bytes to streams and counts the answers.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use async_nats::jetstream::{self, stream};
use bytes::Bytes;
use futures_util::StreamExt as _;

/// If no answer arrives for this long, all batches in flight count as lost: a stream that changes its leader does not answer the batches
/// that were in flight. Crore's nodes append their batches again after the same time.
const LOST: Duration = Duration::from_secs(2);

/// The results of a run.
pub struct BareResult {
    /// Answered batches a second.
    pub per_s: f64,
    /// The duration of the run.
    pub seconds: f64,
    /// How often all batches in flight counted as lost.
    pub stalls: u64,
}

/// Publishes batches of `bytes` bytes, `in_flight` at a time, spread over `streams` streams with `replicas` replicas each.
pub fn publish(
    urls: &[String],
    streams: u64,
    replicas: usize,
    bytes: usize,
    in_flight: u64,
    seconds: f64,
) -> Result<BareResult> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(run(urls, streams, replicas, bytes, in_flight, seconds))
}

async fn run(
    urls: &[String],
    streams: u64,
    replicas: usize,
    bytes: usize,
    in_flight: u64,
    seconds: f64,
) -> Result<BareResult> {
    let client = async_nats::connect(urls).await.context("NATS")?;
    let context = jetstream::new(client.clone());
    for number in 0..streams {
        let config = stream::Config {
            name: format!("BARE_{number}"),
            subjects: vec![format!("bare.{number}")],
            num_replicas: replicas,
            storage: stream::StorageType::File,
            ..stream::Config::default()
        };
        context
            .get_or_create_stream(config)
            .await
            .context("a stream of NATS")?;
    }
    let inbox = client.new_inbox();
    let mut answers = client.subscribe(format!("{inbox}.*")).await?;
    let payload = Bytes::from(vec![b'x'; bytes]);
    let (began, mut sent, mut waiting, mut answered, mut stalls) = (Instant::now(), 0, 0, 0, 0);
    // Answers to batches with a lower number come too late: the batches count as lost.
    let mut first_valid = 0;
    while began.elapsed().as_secs_f64() < seconds {
        while waiting < in_flight {
            let subject = format!("bare.{}", sent % streams);
            let reply = format!("{inbox}.{sent}");
            client
                .publish_with_reply(subject, reply, payload.clone())
                .await?;
            (sent, waiting) = (sent + 1, waiting + 1);
        }
        let Ok(answer) = tokio::time::timeout(LOST, answers.next()).await else {
            (first_valid, waiting, stalls) = (sent, 0, stalls + 1);
            continue;
        };
        let answer = answer.context("the connection to NATS ended")?;
        let number = answer.subject.rsplit('.').next();
        let number: u64 = number.and_then(|it| it.parse().ok()).context("a number")?;
        if number < first_valid {
            continue;
        }
        waiting -= 1;
        let said = String::from_utf8_lossy(&answer.payload);
        ensure!(!said.contains("\"error\""), "NATS: {said}");
        // A stream without a leader stores nothing and answers with a status.
        answered += u64::from(answer.status.is_none());
    }
    ensure!(
        answered > 0,
        "NATS took none of {sent} batches in {seconds} s"
    );
    let seconds = began.elapsed().as_secs_f64();
    Ok(BareResult {
        per_s: answered as f64 / seconds,
        seconds,
        stalls,
    })
}
