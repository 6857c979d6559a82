//! Checks the log once a second: whether each partition answers, where it ends, whether its reader keeps up, and whether the epoch and the
//! format are still the same.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use async_nats::jetstream::Context;
use async_nats::jetstream::stream::Info;
use futures_util::future::join_all;
use tokio::time::{sleep, timeout};

use crate::events::{LogEvent, SharedListener};
use crate::identity;
use crate::log_state::LogState;
use crate::monitor;
use crate::settings::Settings;
use crate::streams::Stream;

const EVERY: Duration = Duration::from_secs(1);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Number of partitions that are queried at once.
const TOGETHER: usize = 32;
/// If a reader lags and makes no progress in this many checks in a row, its consumer is replaced.
const STILL_MAX: u32 = 3;
/// If in this many checks in a row a stream ends before the last batch read, the log has lost batches. Fewer such checks are allowed,
/// because a newly elected leader does not know the end of the stream at once.
const SHORT_MAX: u32 = 10;

/// How often the monitoring ports of NATS servers are asked.
const MONITORED: Duration = Duration::from_secs(5);

/// Asks the NATS servers for ever whether they sync each batch.
pub async fn monitor(urls: Vec<String>, log: Arc<LogState>) {
    while !urls.is_empty() {
        sleep(MONITORED).await;
        log.set_sync(monitor::all(&urls).await);
    }
}

/// What the checks of a partition have found so far.
#[derive(Clone, Copy, Default)]
struct CheckProgress {
    /// The next sequence to read, before this check.
    next: u64,
    /// The value of `next` at the previous check.
    before: u64,
    /// Number of checks in a row without progress of the reader.
    still: u32,
    /// Number of checks in a row at which the stream was too short.
    short: u32,
}

/// Runs the checks for ever.
pub async fn watch(
    context: Context,
    settings: Settings,
    streams: Vec<Stream>,
    log: Arc<LogState>,
    events: SharedListener,
) {
    let mut found = vec![CheckProgress::default(); streams.len()];
    loop {
        for first in (0..streams.len()).step_by(TOGETHER) {
            let end = streams.len().min(first + TOGETHER);
            for (at, found) in found[first..end].iter_mut().enumerate() {
                // Taken before the request, so that batches read while the request is in flight do not count as missing from the answer.
                let next = log.partitions()[first + at].next.load(Relaxed);
                (found.before, found.next) = (found.next, next);
            }
            let asked = streams[first..end]
                .iter()
                .map(|stream| timeout(ANSWER_TIMEOUT, stream.get_info()));
            for (at, answer) in (first..).zip(join_all(asked).await) {
                let Ok(Ok(info)) = answer else {
                    continue;
                };
                let reads = events.backlog_bytes() == 0;
                if let Some(why) = check_partition(at, &info, &log, reads, &mut found[at]) {
                    begin_epoch(&context, &settings, &log, &events, why).await;
                }
            }
            log.look_for_room(&events);
            sleep(EVERY).await;
        }
        let read = timeout(ANSWER_TIMEOUT, identity::current(&context, &settings)).await;
        let Ok(Some(found)) = read else {
            continue;
        };
        if let Some(why) = found.reason_not_to_join(log.format()) {
            events.on_event(LogEvent::Ended { why });
        }
        if found.epoch != log.epoch() {
            let why = "another node has found that the log went back";
            begin_epoch(&context, &settings, &log, &events, why.to_string()).await;
        }
    }
}

/// Updates the status of a partition, and replaces the consumer if the reader is stuck. Returns the reason for a new epoch if the stream
/// ends before the last batch read, or has another batch there.
fn check_partition(
    at: usize,
    info: &Info,
    log: &LogState,
    reads: bool,
    found: &mut CheckProgress,
) -> Option<String> {
    let partition = &log.partitions()[at];
    let (last, next) = (info.state.last_sequence, found.next);
    log.heard(at as u16);
    {
        let mut status = partition.status.lock().expect("no holder panics");
        (status.first, status.last) = (info.state.first_sequence, last);
        status.bytes = info.state.bytes;
        status.bytes_max = u64::try_from(info.config.max_bytes).unwrap_or(0);
        partition.set_bytes(status.bytes, status.last, status.bytes_max);
        let cluster = info.cluster.as_ref();
        let followers = cluster.map_or(&[][..], |it| &it.replicas);
        // Without a leader, the list of followers has all servers.
        let leaders = usize::from(cluster.is_none_or(|it| it.leader.is_some()));
        status.replicas = followers.len() + leaders;
        let (current, away): (Vec<_>, Vec<_>) =
            followers.iter().partition(|it| it.current && !it.offline);
        status.replicas_current = current.len() + leaders;
        status.away = away.into_iter().map(|it| it.name.clone()).collect();
        status.told_at = Some(Instant::now());
        status.leader = cluster.and_then(|it| it.leader.clone()).unwrap_or_default();
    }
    found.short = if last + 1 < next { found.short + 1 } else { 0 };
    if found.short >= SHORT_MAX {
        return Some(format!(
            "stream {} ends with {last}, and {} was read from it",
            info.config.name,
            next - 1
        ));
    }
    if partition.has_gone_back.load(Relaxed) {
        return Some(format!(
            "stream {} has other batches than those that were read from it",
            info.config.name
        ));
    }
    if found.short == 1 {
        // If the consumer survives the loss, it goes on when the stream has grown again. A new one begins only after a check.
        partition.restart.notify_one();
    }
    let stands = last >= next && found.before == next && reads;
    found.still = if stands { found.still + 1 } else { 0 };
    if found.still >= STILL_MAX {
        found.still = 0;
        partition.restart.notify_one();
    }
    None
}

/// Begins a new epoch, because the log has lost messages that were already delivered to clients.
async fn begin_epoch(
    context: &Context,
    settings: &Settings,
    log: &LogState,
    events: &SharedListener,
    why: String,
) {
    if let Err(error) = identity::begin_epoch(context, settings, log.epoch()).await {
        log.fail(&format!("the epoch cannot be changed: {error}"));
        return;
    }
    events.on_event(LogEvent::Ended {
        why: format!(
            "it has gone back: {why}; all nodes begin a new epoch, and clients are told a gap"
        ),
    });
}
