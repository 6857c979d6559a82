//! Writes the program's log to stderr.
//!
//! In a server, a thread of its own writes the lines, so that no other thread waits for the reader of stderr. When [`LINES`] lines are
//! queued, further lines are dropped and counted.

use std::fmt;
use std::io::{self, IsTerminal as _};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tracing::{Event, Subscriber};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{DefaultFields, Format, Writer};
use tracing_subscriber::fmt::{
    FmtContext, FormatEvent, FormatFields, MakeWriter, SubscriberBuilder,
};
use tracing_subscriber::registry::LookupSpan;

/// The maximum number of queued lines.
const LINES: usize = 4096;

/// The minimum time between two lines about the same [`LoggedCount`].
const LOG_EVERY: Duration = Duration::from_secs(60);

static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

/// The number of lines that were dropped since the start because the queue was full.
pub fn dropped_lines() -> u64 {
    DROPPED
        .get()
        .map_or(0, |counter| counter.dropped_lines() as u64)
}

/// The count of an event that strangers can cause as often as they like. Every event is counted, but at most one in a minute is logged.
#[derive(Default)]
pub struct LoggedCount {
    count: AtomicU64,
    logged: Mutex<Option<Instant>>,
}

impl LoggedCount {
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Counts an event. Returns the count if the caller should log it now.
    pub fn add(&self) -> Option<u64> {
        let count = self.count.fetch_add(1, Relaxed) + 1;
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = logged.is_none_or(|logged| logged.elapsed() >= LOG_EVERY);
        is_due.then(|| {
            *logged = Some(Instant::now());
            count
        })
    }
}

/// Logs to stderr what passes `filter`. The thread that logs a line also writes it.
pub fn to_stderr(filter: &str) {
    subscriber(filter, io::stderr).init();
}

/// As `to_stderr`, for the tools: their lines have no time and level, since a person reads them at once.
pub fn to_stderr_plain(filter: &str) {
    subscriber(filter, io::stderr).event_format(Plain).init();
}

/// The line format of this program's error messages.
struct Plain;

impl<S, N> FormatEvent<S, N> for Plain
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut line: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        line.write_str("crore: ")?;
        context.format_fields(line.by_ref(), event)?;
        writeln!(line)
    }
}

/// Logs to stderr what passes `filter`, through a thread of its own, as text or JSON. Dropping the guard writes the queued lines, but waits
/// at most a second for stderr.
pub fn through_thread(filter: &str, as_json: bool) -> WorkerGuard {
    let (writer, guard) = bounded(io::stderr());
    let _ = DROPPED.set(writer.error_counter());
    match as_json {
        true => subscriber(filter, writer).json().flatten_event(true).init(),
        false => subscriber(filter, writer).init(),
    }
    guard
}

fn bounded(to: impl io::Write + Send + 'static) -> (NonBlocking, WorkerGuard) {
    NonBlockingBuilder::default()
        .buffered_lines_limit(LINES)
        .thread_name("log")
        .finish(to)
}

fn subscriber<W>(filter: &str, writer: W) -> SubscriberBuilder<DefaultFields, Format, EnvFilter, W>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    // The filter was checked when the command line was parsed. Parts that still do not parse are left out.
    let filter = EnvFilter::builder().parse_lossy(filter);
    let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(colours)
        .with_writer(writer)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A writer that blocks while the lock is held.
    struct StuckWriter(Arc<Mutex<()>>);

    impl io::Write for StuckWriter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            drop(self.0.lock().expect("nobody panics"));
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_past_the_limit_are_dropped_and_counted() {
        let lock = Arc::new(Mutex::new(()));
        let held = lock.lock().expect("nobody panics");
        let (mut lines, guard) = bounded(StuckWriter(Arc::clone(&lock)));
        for _ in 0..LINES + 10 {
            io::Write::write_all(&mut lines, b"a line\n").expect("it is dropped in silence");
        }
        // The thread may have taken one line out of the queue before the other lines came.
        let dropped = lines.error_counter().dropped_lines();
        assert!(dropped == 9 || dropped == 10, "{dropped}");
        drop(held);
        drop(guard);
    }
}
