//! `crore-bench publish`: sends messages at a rate, or as fast as they are taken, and checks every
//! answer.
//!
//! One thread and one epoll set. A topic always travels over the same connection, so that its
//! messages stay in order. The clock says how many messages are due, so that sleeps that last too long do not lower
//! the rate. A publisher that falls behind says so.

mod args;
mod compose;
mod feed;
mod link;
mod packets;
mod publisher;

use std::process::ExitCode;

use anyhow::Result;

use crate::{report, sys};
pub use args::PublishArgs;
pub(crate) use compose::sequences;
use feed::DRAIN_NS;
pub(crate) use feed::Feed;
pub(crate) use publisher::Publisher;

/// Nanoseconds between two lines of progress.
const REPORT_NS: u64 = 5_000_000_000;

/// Runs the tool.
pub fn run(args: &PublishArgs) -> Result<ExitCode> {
    sys::catch_interrupt();
    let mut publisher = Publisher::open(args)?;
    let seconds = publish(args, &mut publisher)?;
    publisher.drain(DRAIN_NS)?;
    if !args.quiet {
        report::say(&publisher.line(publisher.composed() as f64 / seconds));
    }
    if let Some(path) = &args.json {
        report::keep(path, &publisher.json(seconds))?;
    }
    Ok(ExitCode::from(u8::from(!publisher.is_clean())))
}

/// Publishes until the time is up, the count is reached or Ctrl-C, and returns the seconds it took.
fn publish(args: &PublishArgs, publisher: &mut Publisher) -> Result<f64> {
    let begin_ns = sys::now_ns();
    let until_ns = args
        .duration
        .map_or(u64::MAX, |s| begin_ns + (s * 1e9) as u64);
    let (mut told_ns, mut told) = (begin_ns, 0);
    loop {
        let now_ns = sys::now_ns();
        if sys::interrupted() || publisher.is_done() || now_ns >= until_ns {
            return Ok((now_ns - begin_ns) as f64 / 1e9);
        }
        publisher.turn(now_ns, until_ns)?;
        if now_ns - told_ns >= REPORT_NS && !args.quiet {
            let seconds = (now_ns - told_ns) as f64 / 1e9;
            report::note(&publisher.line((publisher.composed() - told) as f64 / seconds));
            (told_ns, told) = (now_ns, publisher.composed());
        }
    }
}
