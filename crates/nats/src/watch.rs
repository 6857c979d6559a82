//! Looks after the log once a second: whether each partition answers, how far it is, whether its reader keeps up, and whether the epoch is
//! still the same.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::stream::Info;
use futures_util::future::join_all;
use tokio::time::{sleep, timeout};

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

/// Looks for ever.
pub async fn watch(
    context: Context,
    settings: Settings,
    streams: Vec<Stream>,
    shared: Arc<Shared>,
    news: Listening,
) {
    let mut stood: Vec<(u64, u32)> = vec![(0, 0); streams.len()];
    loop {
        for first in (0..streams.len()).step_by(TOGETHER) {
            let end = streams.len().min(first + TOGETHER);
            let asked = streams[first..end]
                .iter()
                .map(|stream| timeout(PATIENCE, stream.get_info()));
            for (at, answer) in (first..).zip(join_all(asked).await) {
                let Ok(Ok(info)) = answer else {
                    continue;
                };
                if let Some(why) = look(
                    at,
                    &info,
                    &shared,
                    news.backlog_bytes() == 0,
                    &mut stood[at],
                ) {
                    rewound(&context, &settings, &shared, &news, why).await;
                }
            }
            sleep(EVERY).await;
        }
        let read = timeout(PATIENCE, numbers::epoch(&context, &settings)).await;
        if let Ok(Some(epoch)) = read
            && epoch != shared.epoch()
        {
            let why = "another node has found that the log went back";
            rewound(&context, &settings, &shared, &news, why.to_string()).await;
        }
    }
}

/// Notes how a partition is; says so if the log has less than was read.
fn look(
    at: usize,
    info: &Info,
    shared: &Shared,
    reads: bool,
    stood: &mut (u64, u32),
) -> Option<String> {
    let partition = &shared.partitions()[at];
    let (last, next) = (info.state.last_sequence, partition.next.load(Relaxed));
    shared.heard(at as u16);
    {
        let mut told = partition.told.lock().expect("no holder panics");
        (told.last, told.bytes) = (last, info.state.bytes);
        let cluster = info.cluster.as_ref();
        let followers = cluster.map_or(&[][..], |it| &it.replicas);
        told.replicas = followers.len() + 1;
        let current = followers.iter().filter(|it| it.current && !it.offline);
        told.replicas_current = current.count() + 1;
        told.leader = cluster.and_then(|it| it.leader.clone()).unwrap_or_default();
    }
    if last + 1 < next {
        return Some(format!(
            "stream {} ends with {last}, and {} was read from it",
            info.config.name,
            next - 1
        ));
    }
    let stands = last >= next && stood.0 == next && reads;
    *stood = (next, if stands { stood.1 + 1 } else { 0 });
    if stood.1 >= STILL_MAX {
        stood.1 = 0;
        partition.kick.notify_one();
    }
    None
}

/// A new epoch begins: what clients were told no longer stands in the log.
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
    news.tell(News::Rewound { why });
}
