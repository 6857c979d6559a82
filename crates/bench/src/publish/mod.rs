//! `crore-bench publish`: publishes at a rate, or as fast as the server accepts, and checks every answer.
//!
//! The publisher has one thread and one epoll set. A topic always uses the same connection, so that its messages stay in order. The number
//! of due messages is computed from the clock, so a sleep that lasts too long does not lower the rate. The result says how late the
//! messages were at most.

mod args;
mod compose;
mod link;
mod mqtt_acks;
mod publisher;
mod publisher_thread;

use std::process::ExitCode;

use anyhow::Result;

use crate::{report, sys};
pub use args::PublishArgs;
pub(crate) use compose::sequences;
pub(crate) use publisher::Publisher;
use publisher_thread::DRAIN_TIMEOUT_NS;
pub(crate) use publisher_thread::PublisherThread;

/// Nanoseconds between two lines of progress.
const REPORT_NS: u64 = 5_000_000_000;

/// Runs the tool.
pub fn run(args: &PublishArgs) -> Result<ExitCode> {
    sys::catch_interrupt();
    let mut publisher = Publisher::open(args)?;
    let seconds = publish(args, &mut publisher)?;
    publisher.wait_for_answers(DRAIN_TIMEOUT_NS)?;
    if !args.quiet {
        report::say(&publisher.progress_line(publisher.composed() as f64 / seconds));
    }
    if let Some(path) = &args.json {
        report::write_result(path, &publisher.json(seconds))?;
    }
    Ok(ExitCode::from(u8::from(!publisher.is_clean())))
}

/// Publishes until the time is over, the count is reached or Ctrl-C is pressed. Returns the duration in seconds.
fn publish(args: &PublishArgs, publisher: &mut Publisher) -> Result<f64> {
    let start_ns = sys::now_ns();
    let end_ns = args
        .duration
        .map_or(u64::MAX, |s| start_ns + (s * 1e9) as u64);
    let (mut report_ns, mut reported_count) = (start_ns, 0);
    loop {
        let now_ns = sys::now_ns();
        if sys::interrupted() || publisher.is_done() || now_ns >= end_ns {
            return Ok((now_ns - start_ns) as f64 / 1e9);
        }
        publisher.run_turn(now_ns, end_ns)?;
        if now_ns - report_ns >= REPORT_NS && !args.quiet {
            let seconds = (now_ns - report_ns) as f64 / 1e9;
            report::note(
                &publisher.progress_line((publisher.composed() - reported_count) as f64 / seconds),
            );
            (report_ns, reported_count) = (now_ns, publisher.composed());
        }
    }
}
