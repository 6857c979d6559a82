//! `crash`: kills the server under load, again and again, and checks that it keeps every promise.
//!
//! Publishers over HTTP (single and batch, with and without keys) and MQTT, and subscribers of all transports, run until the server is
//! killed at a random time. Then the server starts again. While nobody publishes, all logs and retained messages are read and compared with
//! the answers and with what the subscribers received.
//!
//! * With `--sessions` some MQTT clients have durable sessions. The run checks that these survive the crashes.
//! * With `--power-cuts` the server's state is on a loop device. A crash is a power cut: a copy of the device's bytes from the time of the
//!   crash replaces the device.
//! * With `--lost-ends` the newest segment of the log is deleted after a kill. Then answered messages are lost, and every subscriber that
//!   resumes must receive a gap, the notice that messages are lost.
//! * With `--full-disks` the log fills its disk before each kill. After the restart most of the log's messages are deleted, and the server
//!   must accept messages again. In every second round another file takes all free space, so that a checkpoint replaces the documents of the
//!   base (the last checkpoint on disk) one by one, and the power is cut meanwhile.
//!
//! Each client is a thread that ends when the server ends. The main thread then checks the records of all clients.

mod changer;
mod checker;
mod filler;
mod log_reader;
mod message;
mod outage;
mod publisher;
mod rounds;
mod session;
mod session_check;
mod sessions;
mod subscriber;
mod volume;
mod wills;

use anyhow::Result;
use serde_json::{Value, json};

use crate::report;
use crate::rig::{Directory, RunArgs};
pub use checker::{Checker, Faults};
pub use log_reader::{LogReader, check_unchanged, topic_info};
pub use message::PUBLISHERS;
pub use outage::Outage;
pub use publisher::{Counts, Publisher, sent_counts};
use rounds::{Outcome, Rounds};
pub use session::Course;
pub use session_check::SessionCounts;
pub use sessions::Sessions;
use volume::{Disk, FILLED_DISK_MIB, POWER_CUT_DISK_MIB, Volume};

/// Default of `--kills`.
const KILLS: u32 = 100;

/// Runs the scenario.
pub fn run(args: &RunArgs) -> Result<Value> {
    let kills = args.kills.unwrap_or(KILLS);
    let directory = Directory::make(format_args!("crash-{}", std::process::id()))?;
    let mut results = serde_json::Map::new();
    let mut is_clean = true;
    if kills > 0 {
        let state = directory.path().join("state");
        let volume = Volume::Directory(state);
        let outcome = Rounds::new(args, volume, kills)?.run()?;
        report_outcome("kills", &outcome);
        is_clean &= outcome.is_clean();
        results.insert("kills".into(), json!(outcome));
    }
    if args.lost_ends > 0 {
        let volume = Volume::LosesNewestSegment(directory.path().join("lost-ends"));
        let outcome = Rounds::new(args, volume, args.lost_ends)?.run()?;
        report_outcome("kills with a lost end", &outcome);
        report::say(&format!(
            "{} messages were lost with the ends, and {} gaps told of them",
            outcome.lost, outcome.gaps
        ));
        is_clean &= outcome.is_clean() && outcome.lost > 0;
        results.insert("lost_ends".into(), json!(outcome));
    }
    let mut run_on_disk =
        |name: &str, crashes: u32, what: &str, make: &dyn Fn() -> Result<Volume>| {
            if crashes == 0 {
                return Ok(());
            }
            let result = match make() {
                Ok(volume) => {
                    let outcome = Rounds::new(args, volume, crashes)?.run()?;
                    report_outcome(what, &outcome);
                    is_clean &= outcome.is_clean();
                    json!(outcome)
                }
                Err(why) => {
                    report::say(&format!("SKIPPED: {what}, because {why:#}"));
                    json!({ "skipped": format!("{why:#}") })
                }
            };
            results.insert(name.into(), result);
            anyhow::Ok(())
        };
    run_on_disk("power_cuts", args.power_cuts, "power cuts", &|| {
        Ok(Volume::Disk(Disk::make(&directory, POWER_CUT_DISK_MIB)?))
    })?;
    run_on_disk(
        "full_disks",
        args.full_disks,
        "kills on a full disk",
        &|| Ok(Volume::Filled(Disk::make(&directory, FILLED_DISK_MIB)?)),
    )?;
    results.insert("clean".into(), json!(is_clean));
    results.insert("seed".into(), json!(args.seed));
    Ok(Value::Object(results))
}

fn report_outcome(what: &str, outcome: &Outcome) {
    let counts = &outcome.counts;
    let recovered = match outcome.recovered_s.iter().copied().reduce(f64::max) {
        Some(longest) => format!(
            ", room again {longest:.1} s after the deletion (longest), power cut within {} checkpoints",
            outcome.cut_in_place
        ),
        None => String::new(),
    };
    report::say(&format!(
        "{} {what}: {} publishes answered, {} not, {} retried ({} of them recognised), {} refused; {} messages in the logs, {} seen by \
         subscribers who resumed {} times; {} bases written; ready after {} ms (median), {} ms (longest){}; {} faults",
        outcome.crashes,
        counts.answered,
        counts.unanswered,
        counts.retried,
        counts.replayed,
        counts.refused,
        outcome.messages,
        outcome.seen,
        outcome.resumed,
        outcome.bases,
        outcome.ready_ms(0.5),
        outcome.ready_ms(1.0),
        recovered,
        outcome.faults.counts.values().sum::<u64>(),
    ));
    if let Some(sessions) = &outcome.sessions {
        sessions.print();
    }
    outcome
        .faults
        .descriptions
        .iter()
        .for_each(|description| report::say(description));
}
