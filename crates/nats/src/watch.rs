//! Looks after the log once a second: whether each partition answers, how far it is, whether its reader keeps up, and whether epoch and
//! format are still the same.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use async_nats::jetstream::Context;
use async_nats::jetstream::stream::Info;
use futures_util::future::join_all;
use tokio::time::{sleep, timeout};

use crate::monitor;
use crate::news::{Listening, News};
use crate::numbers;
use crate::settings::Settings;
use crate::shared::Shared;
use crate::streams::Stream;

const EVERY: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(2);
/// Partitions that are asked at once.
const TOGETHER: usize = 32;
/// Looks at which a reader that is behind may stand still: a new consumer begins then.
const STILL_MAX: u32 = 3;
/// Looks at which a stream may seem to have less than was read: a leader that was just chosen does not know its end at once.
const SHORT_MAX: u32 = 10;

/// How often the servers of NATS are asked at their monitoring ports.
const MONITORED: Duration = Duration::from_secs(5);

/// Asks the servers of NATS again and again whether they are there, and sync each batch.
pub async fn monitor(urls: Vec<String>, shared: Arc<Shared>) {
    while !urls.is_empty() {
        sleep(MONITORED).await;
        shared.set_sync(monitor::all(&urls).await);
    }
}

/// The findings about a partition so far.
#[derive(Clone, Copy, Default)]
struct Found {
    /// The place that was read last before this look, and at the one before.
    next: u64,
    before: u64,
    /// Looks at which the reader stood still, and at which the stream was too short.
    still: u32,
    short: u32,
}

/// Looks for ever.
pub async fn watch(
    context: Context,
    settings: Settings,
    streams: Vec<Stream>,
    shared: Arc<Shared>,
    news: Listening,
) {
    let mut found = vec![Found::default(); streams.len()];
    loop {
        for first in (0..streams.len()).step_by(TOGETHER) {
            let end = streams.len().min(first + TOGETHER);
            for (at, found) in found[first..end].iter_mut().enumerate() {
                // Batches that are read while the answer is on its way do not count.
                let next = shared.partitions()[first + at].next.load(Relaxed);
                (found.before, found.next) = (found.next, next);
            }
            let asked = streams[first..end]
                .iter()
                .map(|stream| timeout(PATIENCE, stream.get_info()));
            for (at, answer) in (first..).zip(join_all(asked).await) {
                let Ok(Ok(info)) = answer else {
                    continue;
                };
                let reads = news.backlog_bytes() == 0;
                if let Some(why) = look(at, &info, &shared, reads, &mut found[at]) {
                    rewound(&context, &settings, &shared, &news, why).await;
                }
            }
            shared.look_for_room(&news);
            sleep(EVERY).await;
        }
        let read = timeout(PATIENCE, numbers::current(&context, &settings)).await;
        let Ok(Some(found)) = read else {
            continue;
        };
        if let Some(why) = found.too_new(shared.format()) {
            news.tell(News::Ended { why });
        }
        if found.epoch != shared.epoch() {
            let why = "another node has found that the log went back";
            rewound(&context, &settings, &shared, &news, why.to_string()).await;
        }
    }
}

/// Notes how a partition is; says so if the log has less than was read.
fn look(at: usize, info: &Info, shared: &Shared, reads: bool, found: &mut Found) -> Option<String> {
    let partition = &shared.partitions()[at];
    let (last, next) = (info.state.last_sequence, found.next);
    shared.heard(at as u16);
    {
        let mut told = partition.told.lock().expect("no holder panics");
        (told.first, told.last) = (info.state.first_sequence, last);
        told.bytes = info.state.bytes;
        told.bytes_max = u64::try_from(info.config.max_bytes).unwrap_or(0);
        partition.set_bytes(told.bytes, told.last, told.bytes_max);
        let cluster = info.cluster.as_ref();
        let followers = cluster.map_or(&[][..], |it| &it.replicas);
        // Without a leader all are followers.
        let leaders = usize::from(cluster.is_none_or(|it| it.leader.is_some()));
        told.replicas = followers.len() + leaders;
        let (current, away): (Vec<_>, Vec<_>) =
            followers.iter().partition(|it| it.current && !it.offline);
        told.replicas_current = current.len() + leaders;
        told.away = away.into_iter().map(|it| it.name.clone()).collect();
        told.told_at = Some(Instant::now());
        told.leader = cluster.and_then(|it| it.leader.clone()).unwrap_or_default();
    }
    found.short = if last + 1 < next { found.short + 1 } else { 0 };
    if found.short >= SHORT_MAX {
        return Some(format!(
            "stream {} ends with {last}, and {} was read from it",
            info.config.name,
            next - 1
        ));
    }
    let stands = last >= next && found.before == next && reads;
    found.still = if stands { found.still + 1 } else { 0 };
    if found.still >= STILL_MAX {
        found.still = 0;
        partition.kick.notify_one();
    }
    None
}

/// A new epoch begins: messages that clients were told of no longer stand in the log.
async fn rewound(
    context: &Context,
    settings: &Settings,
    shared: &Shared,
    news: &Listening,
    why: String,
) {
    if let Err(error) = numbers::renew(context, settings, shared.epoch()).await {
        shared.fail(&format!("the epoch cannot be changed: {error}"));
        return;
    }
    news.tell(News::Ended {
        why: format!(
            "it has gone back: {why}; all nodes begin a new epoch, and clients are told a gap"
        ),
    });
}
