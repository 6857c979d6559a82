//! `crore-bench run SCENARIO`: starts a server and the load tools, and returns one result.
//!
//! Every scenario starts new processes, measures, prints a few lines and returns one JSON value. [`run`] adds the machine and the settings,
//! so that a result can be understood on its own. Memory is always the growth since the time when the same server had no connections.

mod centrifugo;
mod chaos;
mod cluster;
mod cluster_instructions;
mod cluster_rates;
mod comet;
mod crash;
mod drain;
mod durable;
mod durable_soak;
mod fill;
mod filters;
mod hold;
mod http2;
mod million;
mod pair;
mod presence;
mod recovery;
mod reload;
mod sessions;
mod soak;
mod storm;
mod tls;

use std::process::ExitCode;

use anyhow::Result;
use serde_json::json;

pub use crate::rig::args::RunArgs;
use crate::rig::args::Scenario;
use crate::{report, sys};

/// Runs a scenario. The exit code is a failure if the result is not clean, for example because a message was lost.
pub fn run(args: &RunArgs) -> Result<ExitCode> {
    sys::raise_descriptor_limit();
    let result = match args.scenario {
        Scenario::Million => million::run(args)?,
        Scenario::Hold => hold::run(args)?,
        Scenario::Comet10k => comet::run(args)?,
        Scenario::Sessions => sessions::run(args)?,
        Scenario::Churn => storm::churn(args)?,
        Scenario::Tsunami => storm::tsunami(args)?,
        Scenario::Pair => pair::run(args)?,
        Scenario::Chaos => chaos::run(args)?,
        Scenario::Cluster => cluster::run(args)?,
        Scenario::ClusterRates => cluster_rates::run(args)?,
        Scenario::ClusterInstructions => cluster_instructions::run(args)?,
        Scenario::Crash => crash::run(args)?,
        Scenario::Drain => drain::run(args)?,
        Scenario::Durable => durable::run(args)?,
        Scenario::Recovery => recovery::run(args)?,
        Scenario::DurableSoak => durable_soak::run(args)?,
        Scenario::Soak => soak::run(args)?,
        Scenario::Reload => reload::run(args)?,
        Scenario::Filters => filters::run(args)?,
        Scenario::Fill => fill::run(args)?,
        Scenario::Tls => tls::run(args)?,
        Scenario::Centrifugo => centrifugo::run(args)?,
        Scenario::Presence => presence::run(args)?,
        Scenario::Http2 => http2::run(args)?,
    };
    let of_this_run = json!({
        "server_binary": args.binary(),
        "heartbeat_s": args.heartbeat,
        "log_age_s": args.keep_s,
        "accepts_per_s": args.accepts(),
        "pinned": args.pin,
        "result": result,
    });
    let value = report::record(&format!("{:?}", args.scenario), of_this_run);
    if let Some(path) = &args.json {
        report::write_result(path, &value)?;
    }
    let failed = value["result"]["clean"] == json!(false);
    Ok(ExitCode::from(u8::from(failed)))
}
