//! Where log lines go: stderr.
//!
//! A server's threads hand their lines to a thread that writes them, and do not wait when nobody reads stderr: past
//! [`LINES`] that wait, lines are dropped and counted.

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

/// Lines that wait for stderr at most.
const LINES: usize = 4096;

/// How often the log says of one thing that it has happened, at most.
const TELL_EVERY: Duration = Duration::from_secs(60);

static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

/// Lines that were dropped since the server began, because stderr took none.
pub fn dropped_lines() -> u64 {
    DROPPED
        .get()
        .map_or(0, |counter| counter.dropped_lines() as u64)
}

/// Something that strangers can bring about as often as they like: it is counted, and logged once in a while.
#[derive(Default)]
pub struct LoggedCount {
    count: AtomicU64,
    told: Mutex<Option<Instant>>,
}

impl LoggedCount {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Counts one; how many there were, when that should be said.
    pub fn add(&self) -> Option<u64> {
        let count = self.count.fetch_add(1, Relaxed) + 1;
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let due = told.is_none_or(|told| told.elapsed() >= TELL_EVERY);
        due.then(|| {
            *told = Some(Instant::now());
            count
        })
    }
}

/// Logs what `filter` says, each line before the work goes on.
pub fn to_stderr(filter: &str) {
    lines(filter, io::stderr).init();
}

/// The same for the small tools, whose lines a person reads as they come: neither the time nor the module stands before them.
pub fn for_a_person(filter: &str) {
    lines(filter, io::stderr).event_format(Plain).init();
}

/// A line in the form of this program's errors.
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

/// Logs what `filter` says through a thread of its own, where wanted as JSON. When the guard is dropped, lines that wait are written, if
/// stderr takes them within a second.
pub fn through_thread(filter: &str, as_json: bool) -> WorkerGuard {
    let (writer, guard) = bounded(io::stderr());
    let _ = DROPPED.set(writer.error_counter());
    match as_json {
        true => lines(filter, writer).json().flatten_event(true).init(),
        false => lines(filter, writer).init(),
    }
    guard
}

fn bounded(to: impl io::Write + Send + 'static) -> (NonBlocking, WorkerGuard) {
    NonBlockingBuilder::default()
        .buffered_lines_limit(LINES)
        .thread_name("log")
        .finish(to)
}

fn lines<W>(filter: &str, writer: W) -> SubscriberBuilder<DefaultFields, Format, EnvFilter, W>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    // The filter was checked with the command line; parts that still cannot be read are left out.
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

    /// Takes nothing before the lock is free.
    struct Stuck(Arc<Mutex<()>>);

    impl io::Write for Stuck {
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
        let (mut lines, guard) = bounded(Stuck(Arc::clone(&lock)));
        for _ in 0..LINES + 10 {
            io::Write::write_all(&mut lines, b"a line\n").expect("it is dropped in silence");
        }
        // The thread may have taken one line out of the queue before the rest came.
        let dropped = lines.error_counter().dropped_lines();
        assert!(dropped == 9 || dropped == 10, "{dropped}");
        drop(held);
        drop(guard);
    }
}
