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

const CHECK_INTERVAL: Duration = Duration::from_secs(1);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Number of partitions that are queried at once.
const QUERIES_AT_ONCE: usize = 32;
/// If a reader lags and makes no progress in this many consecutive checks, its consumer is replaced.
const STUCK_CHECKS_MAX: u32 = 3;
/// If a stream ends before the last batch read in this many consecutive checks, the log has lost batches. Fewer such checks are allowed, because a newly
/// elected leader does not know the end of the stream at once.
const SHORT_CHECKS_MAX: u32 = 10;

/// How often the monitoring ports of NATS servers are asked.
const MONITORING_INTERVAL: Duration = Duration::from_secs(5);

/// Asks the NATS servers for ever whether they sync each batch.
pub async fn query_monitoring(urls: Vec<String>, log: Arc<LogState>) {
    while !urls.is_empty() {
        sleep(MONITORING_INTERVAL).await;
        log.set_sync_intervals(monitor::query_all(&urls).await);
    }
}

/// What the checks of a partition have found so far.
#[derive(Clone, Copy, Default)]
struct CheckProgress {
    /// The next sequence to read, before this check.
    next: u64,
    /// The value of `next` at the previous check.
    previous_next: u64,
    /// Number of checks in a row without progress of the reader.
    stuck_checks: u32,
    /// Number of checks in a row at which the stream was too short.
    short_checks: u32,
}

/// Runs the checks for ever.
pub async fn run_checks(
    context: Context,
    settings: Settings,
    streams: Vec<Stream>,
    log: Arc<LogState>,
    events: SharedListener,
) {
    let mut progress = vec![CheckProgress::default(); streams.len()];
    loop {
        for first in (0..streams.len()).step_by(QUERIES_AT_ONCE) {
            let end = streams.len().min(first + QUERIES_AT_ONCE);
            for (index, progress) in progress[first..end].iter_mut().enumerate() {
                // Taken before the request, so that batches read while the request is in flight do not count as missing from the answer.
                let next = log.partitions()[first + index].next.load(Relaxed);
                (progress.previous_next, progress.next) = (progress.next, next);
            }
            let queries = streams[first..end]
                .iter()
                .map(|stream| timeout(ANSWER_TIMEOUT, stream.get_info()));
            for (index, answer) in (first..).zip(join_all(queries).await) {
                let Ok(Ok(info)) = answer else {
                    continue;
                };
                let is_reading = events.backlog_bytes() == 0;
                if let Some(why) =
                    check_partition(index, &info, &log, is_reading, &mut progress[index])
                {
                    begin_epoch(&context, &settings, &log, &events, why).await;
                }
            }
            log.report_fullness(&events);
            sleep(CHECK_INTERVAL).await;
        }
        let identity = timeout(ANSWER_TIMEOUT, identity::read_current(&context, &settings)).await;
        let Ok(Some(identity)) = identity else {
            continue;
        };
        if identity.format != log.format() {
            // All nodes write in one format, so a node cannot continue after the format has changed.
            let why = format!(
                "its nodes write format {} now, and this node writes format {}",
                identity.format,
                log.format()
            );
            events.on_event(LogEvent::Ended { why });
        }
        if identity.epoch != log.epoch() {
            let why = "another node has found that the log went back";
            begin_epoch(&context, &settings, &log, &events, why.to_string()).await;
        }
    }
}

/// Updates the status of a partition, and replaces the consumer if the reader is stuck. Returns the reason for a new epoch if the stream
/// ends before the last batch read, or has another batch there.
fn check_partition(
    index: usize,
    info: &Info,
    log: &LogState,
    is_reading: bool,
    progress: &mut CheckProgress,
) -> Option<String> {
    let partition = &log.partitions()[index];
    let (last, next) = (info.state.last_sequence, progress.next);
    log.record_contact(index as u16);
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
        let (current, outdated): (Vec<_>, Vec<_>) =
            followers.iter().partition(|it| it.current && !it.offline);
        status.replicas_current = current.len() + leaders;
        status.outdated_replicas = outdated.into_iter().map(|it| it.name.clone()).collect();
        status.reported_at = Some(Instant::now());
        status.leader = cluster.and_then(|it| it.leader.clone()).unwrap_or_default();
    }
    progress.short_checks = if last + 1 < next {
        progress.short_checks + 1
    } else {
        0
    };
    if progress.short_checks >= SHORT_CHECKS_MAX {
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
    if progress.short_checks == 1 {
        // If the old consumer survived, it would continue when the stream has grown again. A new one begins only after a check.
        partition.restart.notify_one();
    }
    let is_stuck = last >= next && progress.previous_next == next && is_reading;
    progress.stuck_checks = if is_stuck {
        progress.stuck_checks + 1
    } else {
        0
    };
    if progress.stuck_checks >= STUCK_CHECKS_MAX {
        progress.stuck_checks = 0;
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
        log.record_error(&format!("the epoch cannot be changed: {error}"));
        return;
    }
    events.on_event(LogEvent::Ended {
        why: format!(
            "it has gone back: {why}; all nodes begin a new epoch, and clients are told a gap"
        ),
    });
}
