//! `crore log`: inspects, verifies and dumps the log of durable messages on disk, with its base (the snapshot that the log continues).
//!
//! Invariants: the command changes and locks nothing, so that a server may write at the same time. The exit code is 0 if nothing is
//! damaged, 1 for damage, and 2 for any other failure. Batches and records are decoded with the server's decoders (`crore_disk::scan`,
//! `crore_broker::batch`).
//!
//! A *document* is the snapshot of one home or partition.

mod dump;
mod source;
mod survey;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;

use super::tables::table;
use super::values::{self, Usage, number};
use crate::stdout::print;
use source::Source;
use survey::Survey;

/// The exit code for a damaged log.
pub const DAMAGED: u8 = 1;

/// Examples of `crore log --help`.
pub const EXAMPLES: &str = "\
Examples:
  crore log inspect /var/lib/crore                  segments, base, partitions, totals
  crore log verify /var/lib/crore                   all checksums; 0 good, 1 damage, 2 unread
  crore log dump /var/lib/crore --topic 'chat/#'    a line for each record
  crore log dump --json /var/lib/crore              with the messages, as JSON lines

A server may run meanwhile: nothing is locked or changed, and the end of the log may be torn then.";

/// Flags of `crore log`.
#[derive(Debug, Args)]
pub struct LogArgs {
    /// Print JSON
    #[arg(short, long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: Command,
}

/// The subcommand.
#[derive(Debug, Subcommand)]
enum Command {
    /// Show the segments, the base (the newest checkpoint) and the partitions of the log
    Inspect(Place),
    /// Verify all checksums, records and documents of the log; the exit code is 1 if something is damaged
    Verify(Place),
    /// Print every record that is in the log
    Dump {
        #[command(flatten)]
        place: Place,
        /// Print only records of topics that match this filter
        #[arg(long, value_name = "FILTER", value_parser = values::filter)]
        topic: Option<String>,
        /// Print only records of this partition
        #[arg(long, value_name = "N", value_parser = number::<u16>)]
        partition: Option<u16>,
    },
}

#[derive(Debug, Args)]
struct Place {
    /// The directory that the setting state.directory names, or the log directory in it
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Runs `crore log`.
///
/// # Errors
/// The log cannot be read. The error is a [`Usage`], so that the exit code is 2, since 1 means damage.
pub fn run(args: &LogArgs) -> anyhow::Result<ExitCode> {
    let is_good = match &args.command {
        Command::Inspect(place) => inspect(place, args.json),
        Command::Verify(place) => verify(place, args.json),
        Command::Dump {
            place,
            topic,
            partition,
        } => Source::find(&place.directory)
            .and_then(|source| dump::dump(&source, topic.as_deref(), *partition, args.json)),
    };
    match is_good.map_err(|error| Usage::new(format!("{error:#}")))? {
        true => Ok(ExitCode::SUCCESS),
        false => Ok(ExitCode::from(DAMAGED)),
    }
}

fn inspect(place: &Place, as_json: bool) -> anyhow::Result<bool> {
    let survey = Survey::of(&place.directory)?;
    let value = serde_json::to_value(&survey)?;
    if as_json {
        print((serde_json::to_string_pretty(&value)? + "\n").as_bytes())?;
        return Ok(true);
    }
    let mut text = survey.headline();
    for (rows, columns) in [
        ("segments", survey::SEGMENT_COLUMNS),
        ("partitions", survey::PARTITION_COLUMNS),
    ] {
        text.push_str(&format!(
            "\n{}",
            table(&json!({ rows: value[rows] }), columns)
        ));
    }
    text.push_str(&format!("\n{}", survey.faults_text()));
    print(text.as_bytes())?;
    Ok(true)
}

fn verify(place: &Place, as_json: bool) -> anyhow::Result<bool> {
    let survey = Survey::of(&place.directory)?;
    let text = match as_json {
        true => serde_json::to_string_pretty(&survey.verdict())? + "\n",
        false => survey.faults_text(),
    };
    print(text.as_bytes())?;
    Ok(survey.is_good())
}
