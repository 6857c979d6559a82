//! `crore doctor` answers: can this host hold a given number of connections, which limit is reached first, and what has to be changed?
//!
//! [`host`] reads the host with its network cards ([`card`]), [`workload`] is the planned load, and [`formula`] has the source of every number.
//! [`bounds`] computes how many connections each limit permits. [`memory_estimate`] adds up the memory that is used when everything is full. [`checks`] judges
//! each setting and suggests a change. [`report`] formats the findings. Only [`host`] and [`card`] read the host's state, and only this module reads the
//! settings; the others compute.
//!
//! The doctor looks at one host and not at the network. It measures nothing and changes nothing. The estimate is for idle connections that have one
//! topic each; `crore-bench run fill` checks the estimate against a real server whose memory a cgroup limits.

mod bounds;
mod card;
mod checks;
mod findings;
pub mod formula;
mod host;
mod memory_estimate;
mod report;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::config::{self, Resources, ServeArgs, SettingFlags, Variables};
use crate::settings::numbers;
use crate::settings::units::parse_size;
use crate::stdout::print;
use findings::Findings;
use host::{Host, Memory};
use workload::{Protocol, Workload};

/// The end of the command's help.
pub const EXAMPLES: &str = "\
Exit codes: 0 the connections fit, 1 they do not, 2 wrong usage. docs/DOCTOR.md has every formula.

Examples:
  crore doctor                                 whether it holds 10,000, or the configured number
  crore doctor --connections 1000000 --all     with every check and its reason
  crore doctor --connections 10000000 --protocol mqtt --cores 32 --memory 64GiB    plan another host";

/// The number of connections if neither the flags nor the settings have one. Few teams need more, and a usual host holds this number without tuning.
pub const USUAL_CONNECTIONS: u64 = 10_000;

/// The maximum number of connections, since connections have numbers of 32 bits.
const CONNECTIONS_MAX: u64 = u32::MAX as u64 - 1;

/// `crore doctor`
#[derive(Clone, Debug, Args)]
pub struct DoctorArgs {
    /// Connections to hold at once, such as 50000, 10k or 1m [default: limits.connections_max if it is configured, else 10,000]
    #[arg(short = 'n', long, value_name = "N", value_parser = parse_connections)]
    pub connections: Option<u64>,

    /// The clients' protocol: ws (WebSocket), sse (Server-Sent Events), poll (long-poll) or mqtt
    #[arg(
        short,
        long,
        value_enum,
        default_value = "ws",
        ignore_case = true,
        hide_possible_values = true
    )]
    pub protocol: Protocol,

    /// Plan for this number of cores instead of the host's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub cores: Option<u16>,

    /// Plan for this much memory instead of the host's
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<usize>,

    /// Shard threads; 0 = one for each core [default: that of the settings]
    #[arg(long, value_name = "N")]
    pub shards: Option<usize>,

    /// The server's settings, instead of ./crore.toml
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Print every limit, the use of memory, and each check with its reason
    #[arg(short, long, conflicts_with = "json")]
    pub all: bool,

    /// Print everything as JSON
    #[arg(short, long)]
    pub json: bool,

    /// Look at the host whose files are below this directory
    #[arg(long, value_name = "DIR", hide = true, default_value = "/")]
    pub root: PathBuf,
}

fn parse_connections(text: &str) -> Result<u64, String> {
    match numbers::parse_count(text)? {
        number @ 1..=CONNECTIONS_MAX => Ok(number),
        _ => Err(format!(
            "write 1 to {}",
            numbers::format_count(CONNECTIONS_MAX)
        )),
    }
}

/// Runs the doctor. The exit code says whether the connections fit.
pub fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let examined = examine(args)?;
    let text = match (args.json, args.all) {
        (true, _) => format!("{}\n", report::json(&examined)),
        (_, true) => report::full_text(&examined),
        _ => report::summary(&examined),
    };
    print(text.as_bytes())?;
    Ok(if examined.fits() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn examine(args: &DoctorArgs) -> anyhow::Result<Findings> {
    let mut host = Host::read(&args.root);
    if let Some(bytes) = args.memory {
        plan_memory(&mut host, bytes as u64);
    }
    let this_process = Resources::here();
    let resources = Resources {
        cores: planned_cores(args, &host).unwrap_or(this_process.cores),
        memory_bytes: host.memory_bytes().unwrap_or(this_process.memory_bytes),
    };
    let serve = ServeArgs {
        config: args.config.clone(),
        settings: SettingFlags::shards(args.shards),
        // The doctor does not judge who may connect, so it accepts open addresses without access control.
        insecure: true,
        variables: Variables::here(),
        ..ServeArgs::default()
    };
    let effective = config::load_for(&serve, &resources)?;
    let connections_max = effective.file.limits.connections_max;
    // A value that equals the default counts as not configured.
    let is_configured = connections_max != resources.connections_default();
    let default_connections = if is_configured {
        connections_max as u64
    } else {
        USUAL_CONNECTIONS
    };
    let workload = Workload::new(
        args.connections.unwrap_or(default_connections),
        args.protocol,
        resources.cores,
        &effective.file,
    );
    Ok(Findings::new(host, workload))
}

/// The number of cores in the plan, or the number of cores that this process may use.
fn planned_cores(args: &DoctorArgs, host: &Host) -> Option<usize> {
    let granted = host
        .quota_cores
        .map_or(usize::MAX, |quota| (quota as usize).max(1));
    args.cores
        .map(usize::from)
        .or(host.cores.map(|cores| cores.min(granted)))
}

/// Replaces the memory of the host by the planned memory, and removes the limits of control groups.
fn plan_memory(host: &mut Host, bytes: u64) {
    let available = formula::available_bytes_of_plan(bytes);
    host.memory = Some(Memory {
        total: bytes,
        available,
        commit_limit: available,
        committed: 0,
        swap: host.memory.map_or(0, |memory| memory.swap),
    });
    host.memory_groups.clear();
    host.task_groups.clear();
}
