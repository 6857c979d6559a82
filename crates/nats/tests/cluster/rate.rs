//! Measures the rate of this log and of the bare NATS client, with the same batches and the same number in flight: `cargo test --release -p
//! crore-nats --test cluster -- --ignored --nocapture rate`.

use std::sync::Arc;
use std::time::Instant;

use crore_nats::Append;
use futures_util::StreamExt as _;

use crate::node::{Node, PARTITIONS};
use crate::servers::Servers;

const BATCHES: u64 = 4_000;
/// Number of batches of a partition that the broker has in flight.
const IN_FLIGHT: u64 = 2;

/// Batches a second with the bare client, counted when NATS acknowledges them.
fn bare(servers: &Servers, bytes: usize) -> f64 {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        let client = async_nats::connect(servers.urls()).await.expect("a client");
        let inbox = client.new_inbox();
        let mut answers = client
            .subscribe(format!("{inbox}.*"))
            .await
            .expect("answers");
        let payload = bytes::Bytes::from(vec![7; bytes]);
        let began = Instant::now();
        let (mut sent, mut answered) = (0, 0);
        while answered < BATCHES {
            while sent < BATCHES && sent - answered < IN_FLIGHT * u64::from(PARTITIONS) {
                let partition = sent % u64::from(PARTITIONS);
                let subject = format!("crore.test.log.{partition}");
                let reply = format!("{inbox}.{sent}");
                let publish = client.publish_with_reply(subject, reply, payload.clone());
                publish.await.expect("it is published");
                sent += 1;
            }
            answers.next().await.expect("an answer");
            answered += 1;
        }
        BATCHES as f64 / began.elapsed().as_secs_f64()
    })
}

/// Batches a second with this log, counted when they are read from it.
fn ours(node: &Node, bytes: usize) -> f64 {
    let payload: Arc<[u8]> = vec![7; bytes].into();
    let before: Vec<usize> = (0..PARTITIONS)
        .map(|partition| node.count(partition))
        .collect();
    let each = BATCHES / u64::from(PARTITIONS);
    let mut sent = vec![0; usize::from(PARTITIONS)];
    let began = Instant::now();
    loop {
        node.apply();
        let mut over = true;
        for partition in 0..PARTITIONS {
            let at = usize::from(partition);
            let came = node.count(partition) - before[at];
            let until = each.min(came as u64 + IN_FLIGHT);
            let batches = (sent[at]..until).map(|number| Append {
                partition,
                number: before[at] as u64 + number,
                bytes: payload.clone(),
            });
            node.cluster.append_all(batches.collect());
            sent[at] = until;
            over &= came as u64 == each;
        }
        if over {
            return BATCHES as f64 / began.elapsed().as_secs_f64();
        }
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
}

#[test]
#[ignore = "it measures, for a machine that does nothing else"]
#[allow(clippy::print_stdout, reason = "its result")]
fn the_rate_beside_the_bare_client() {
    let Some(servers) = Servers::start(3) else {
        return;
    };
    drop(Node::start(&servers));
    const SIZES: [usize; 3] = [1 << 10, 16 << 10, 128 << 10];
    let bare: Vec<f64> = SIZES.iter().map(|bytes| bare(&servers, *bytes)).collect();
    let node = Node::start(&servers);
    node.await_caught_up();
    for (bytes, bare) in SIZES.into_iter().zip(bare) {
        let ours = ours(&node, bytes);
        println!(
            "{bytes} bytes: bare {bare:.0}/s, this log {ours:.0}/s, {:.2}",
            ours / bare
        );
    }
}
