//! Checks of cores, threads, interrupts, network cards and the clock.

use super::check::{Check, State};
use crate::config::cgroups::Tasks;
use crate::doctor::card::{self, NetworkCard};
use crate::doctor::formula;
use crate::doctor::host::Host;
use crate::doctor::workload::Workload;
use crate::settings::numbers::format_count;

pub fn checks(host: &Host, workload: &Workload) -> Vec<Check> {
    let mut checks = vec![cores(host, workload)];
    checks.extend(host.tasks.iter().map(|group| tasks(group, workload)));
    if host.cards.is_empty() {
        checks.push(
            Check::new("network cards", None, "interrupts on every core")
                .because("no card with hardware behind it can be seen in this network namespace"),
        );
    }
    checks.extend(host.cards.iter().map(|card| interrupts(card, workload)));
    checks.extend([rfs_entries(host, workload), clock(host)]);
    checks
}

fn cores(host: &Host, workload: &Workload) -> Check {
    let quota = host.quota_cores.map_or(String::new(), |quota| {
        format!(", and a quota of {quota:.1} of processor time")
    });
    let back_s = workload.connections.div_ceil(workload.accepts_per_s.max(1));
    Check::new(
        "cores",
        Some(format!("{}{quota}", workload.cores)),
        "as many as messages ask for, and no quota below them",
    )
    .because(format!(
        "{} A core sends some 150,000 messages a second, each to one connection: one a minute to all of them keeps {:.1} cores busy. All of them come back within {} s \
         (limits.accepts_per_s). A quota stops all shards at once until its period is over",
        shards(workload),
        formula::cores_for_one_a_minute(workload.connections),
        format_count(back_s),
    ))
    .unless(
        host.quota_cores.is_none_or(|quota| quota >= workload.cores as f64),
        State::Advice,
        ["remove the quota (CPUQuota= of the unit, --cpus of the container) and bind to fewer cores instead (AllowedCPUs=, --cpuset-cpus)".to_string()],
    )
}

fn tasks(group: &Tasks, workload: &Workload) -> Check {
    let wanted = group.held + workload.threads;
    Check::new(
        format!("task limit of {}", group.path),
        Some(format_count(group.limit)),
        format!("at least {}", format_count(wanted)),
    )
    .because(format!(
        "{} tasks there now + {} threads of the server: its shards, and those that control it and verify credentials. Past the limit \
         none begins, and the server does not start",
        format_count(group.held),
        format_count(workload.threads),
    ))
    .unless(
        group.limit >= wanted,
        State::Change,
        [format!(
            "raise the limit (TasksMax= of the unit, --pids-limit of the container) to {}, or let the server have fewer shards",
            format_count(wanted)
        )],
    )
}

fn shards(workload: &Workload) -> String {
    match workload.shards.cmp(&workload.cores) {
        std::cmp::Ordering::Less => {
            format!(
                "Only {} shards run on {} cores.",
                workload.shards, workload.cores
            )
        }
        _ => format!("{} shards run on them.", workload.shards),
    }
}

fn interrupts(card: &NetworkCard, workload: &Workload) -> Check {
    let cores = workload.cores as usize;
    let hit = match card.interrupt_cores.len() {
        0 => card.queues,
        known => known.min(card.queues.max(1)),
    };
    let spread = hit.max(card.rps_cores_max);
    let plural = |number: usize, what: &str| match number {
        1 => format!("1 {what}"),
        number => format!("{number} {what}s"),
    };
    let seen = match card.interrupt_cores.len() {
        0 => "its interrupts go to unknown cores".to_string(),
        known => format!("its interrupts go to {}", plural(known, "core")),
    };
    let steer = (0..card.queues).map(|queue| {
        format!(
            "echo {} > /sys/class/net/{}/queues/rx-{queue}/rps_cpus",
            card::core_mask(cores),
            card.name
        )
    });
    let affinity = format!(
        "spread the interrupts of {}: start irqbalance, or write a core to /proc/irq/N/smp_affinity_list for each queue",
        card.name
    );
    let more = format!(
        "ask the card for more queues first if it has them: ethtool -L {} combined {cores}",
        card.name
    );
    let fixes: Vec<String> = if card.queues >= cores {
        vec![affinity]
    } else {
        std::iter::once(more).chain(steer).collect()
    };
    Check::new(
        format!("interrupts of {}", card.name),
        Some(format!(
            "{}, {seen}, RPS to {}",
            plural(card.queues, "receive queue"),
            plural(card.rps_cores_max, "core")
        )),
        format!("spread over {cores} cores"),
    )
    .because("one core that takes all packets is full long before the shards are: a queue with an interrupt for each core, or RPS where the card has too few")
    .unless(spread >= cores, State::Advice, fixes)
}

fn rfs_entries(host: &Host, workload: &Workload) -> Check {
    const NAME: &str = "net.core.rps_sock_flow_entries";
    let wanted = formula::rfs_entries(workload.connections);
    Check::new(
        NAME,
        host.number(NAME).map(format_count),
        format!("0, or {} together with RPS and pinned shards", format_count(wanted)),
    )
    .because("RFS sends a packet to the core whose shard has the connection. Its table needs an entry for each connection that is active at the same time (here: one in 16, at most 2^20). RFS gains little if the network card has a queue for each core")
    .with_state(State::Note)
}

fn clock(host: &Host) -> Check {
    let value = host.clock.map(|clock| {
        let kept = if clock.synchronized {
            "synchronized"
        } else {
            "not synchronized"
        };
        format!(
            "{kept}, at most {} ms off",
            format_count(clock.error_us_max / 1_000)
        )
    });
    Check::new("clock", value, "synchronized by NTP or PTP")
        .because("tokens and certificates begin and end by it, Last-Modified and logs carry it, and latency between hosts is the difference of two of them")
        .unless(
            host.clock.is_none_or(|clock| clock.synchronized),
            State::Advice,
            ["start chrony or systemd-timesyncd (timedatectl set-ntp true)".to_string()],
        )
}
