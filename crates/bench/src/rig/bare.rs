//! The bare client of NATS: `async-nats` publishes bytes to streams and counts the answers.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use async_nats::jetstream::{self, stream};
use bytes::Bytes;
use futures_util::StreamExt as _;

/// How long NATS may take to make a stream, or to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Publishes a second that NATS answers, where each has so many bytes and so many are in flight, spread over so many streams of so many replicas.
pub fn answered_per_s(
    urls: &[String],
    streams: (u64, usize),
    bytes: usize,
    in_flight: u64,
    seconds: f64,
) -> Result<f64> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(run(urls, streams, bytes, in_flight, seconds))
}

async fn run(
    urls: &[String],
    (streams, replicas): (u64, usize),
    bytes: usize,
    in_flight: u64,
    seconds: f64,
) -> Result<f64> {
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
    let (began, mut sent, mut answered) = (Instant::now(), 0, 0);
    while began.elapsed().as_secs_f64() < seconds {
        while sent - answered < in_flight {
            let subject = format!("bare.{}", sent % streams);
            let reply = format!("{inbox}.{sent}");
            client
                .publish_with_reply(subject, reply, payload.clone())
                .await?;
            sent += 1;
        }
        let answer = tokio::time::timeout(PATIENCE, answers.next()).await;
        let answer = answer
            .context("NATS does not answer")?
            .context("the connection to NATS ended")?;
        let said = String::from_utf8_lossy(&answer.payload);
        ensure!(!said.contains("\"error\""), "NATS: {said}");
        answered += 1;
    }
    Ok(answered as f64 / began.elapsed().as_secs_f64())
}
