//! Checks of cores, threads, interrupts, network cards and the clock.

use super::check::{Check, Verdict};
use crate::config::cgroups::Tasks;
use crate::doctor::card::{self, NetworkCard};
use crate::doctor::formula;
use crate::doctor::host::Host;
use crate::doctor::workload::Workload;
use crate::settings::numbers::format_count;

pub fn checks(host: &Host, workload: &Workload) -> Vec<Check> {
    let mut checks = vec![check_cores(host, workload)];
    checks.extend(
        host.task_groups
            .iter()
            .map(|group| check_task_limit(group, workload)),
    );
    if host.cards.is_empty() {
        checks.push(
            Check::new("network cards", None, "interrupts on every core")
                .with_reason("this network namespace shows no card that has hardware"),
        );
    }
    checks.extend(
        host.cards
            .iter()
            .map(|card| check_interrupts(card, workload)),
    );
    checks.extend([check_rfs_entries(host, workload), check_clock(host)]);
    checks
}

fn check_cores(host: &Host, workload: &Workload) -> Check {
    let quota = host.quota_cores.map_or(String::new(), |quota| {
        format!(", and a quota of {quota:.1} of processor time")
    });
    let return_s = workload.connections.div_ceil(workload.accepts_per_s.max(1));
    Check::new(
        "cores",
        Some(format!("{}{quota}", workload.cores)),
        "enough for the messages, and no quota below the number of cores",
    )
    .with_reason(format!(
        "{} A core sends about 150,000 messages a second, each to one connection, so one message a minute to all connections keeps {:.1} cores busy. After a restart, all connections can \
         return within {} s (limits.accepts_per_s). A quota that is used up stops all shards until its period is over",
        shards_sentence(workload),
        formula::cores_for_one_a_minute(workload.connections),
        format_count(return_s),
    ))
    .change_unless(
        host.quota_cores.is_none_or(|quota| quota >= workload.cores as f64),
        Verdict::Advice,
        ["remove the quota (CPUQuota= of the unit, --cpus of the container) and bind to fewer cores instead (AllowedCPUs=, --cpuset-cpus)".to_string()],
    )
}

fn check_task_limit(group: &Tasks, workload: &Workload) -> Check {
    let recommended = group.held + workload.threads;
    Check::new(
        format!("task limit of {}", group.path),
        Some(format_count(group.limit)),
        format!("at least {}", format_count(recommended)),
    )
    .with_reason(format!(
        "{} tasks that exist now + {} threads of the server: its shards, its control thread, and the threads that verify credentials. At the limit \
         no thread can start, so the server does not start",
        format_count(group.held),
        format_count(workload.threads),
    ))
    .change_unless(
        group.limit >= recommended,
        Verdict::Change,
        [format!(
            "raise the limit (TasksMax= of the unit, --pids-limit of the container) to {}, or let the server have fewer shards",
            format_count(recommended)
        )],
    )
}

fn shards_sentence(workload: &Workload) -> String {
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

fn check_interrupts(card: &NetworkCard, workload: &Workload) -> Check {
    let cores = workload.cores as usize;
    let interrupted_cores = match card.interrupt_cores.len() {
        0 => card.queues,
        known => known.min(card.queues.max(1)),
    };
    let cores_reached = interrupted_cores.max(card.rps_cores_max);
    let plural = |number: usize, noun: &str| match number {
        1 => format!("1 {noun}"),
        number => format!("{number} {noun}s"),
    };
    let interrupts_text = match card.interrupt_cores.len() {
        0 => "its interrupts go to unknown cores".to_string(),
        known => format!("its interrupts go to {}", plural(known, "core")),
    };
    let rps_commands = (0..card.queues).map(|queue| {
        format!(
            "echo {} > /sys/class/net/{}/queues/rx-{queue}/rps_cpus",
            card::core_mask(cores),
            card.name
        )
    });
    let affinity_fix = format!(
        "spread the interrupts of {}: start irqbalance, or write a core to /proc/irq/N/smp_affinity_list for each queue",
        card.name
    );
    let more_queues_fix = format!(
        "ask the card for more queues first if it has them: ethtool -L {} combined {cores}",
        card.name
    );
    let fixes: Vec<String> = if card.queues >= cores {
        vec![affinity_fix]
    } else {
        std::iter::once(more_queues_fix)
            .chain(rps_commands)
            .collect()
    };
    Check::new(
        format!("interrupts of {}", card.name),
        Some(format!(
            "{}, {interrupts_text}, RPS to {}",
            plural(card.queues, "receive queue"),
            plural(card.rps_cores_max, "core")
        )),
        format!("spread over {cores} cores"),
    )
    .with_reason("a core that receives all packets is fully busy long before the shards are. Give each core a queue with its own interrupt, or use RPS if the card has too few queues")
    .change_unless(cores_reached >= cores, Verdict::Advice, fixes)
}

fn check_rfs_entries(host: &Host, workload: &Workload) -> Check {
    const NAME: &str = "net.core.rps_sock_flow_entries";
    let recommended = formula::rfs_entries(workload.connections);
    Check::new(
        NAME,
        host.number(NAME).map(format_count),
        format!("0, or {} together with RPS and pinned shards", format_count(recommended)),
    )
    .with_reason("RFS sends a packet to the core whose shard has the connection. Its table needs an entry for each connection that is active at the same time (here: one in 16, at most 2^20). RFS gains little if the network card has a queue for each core")
    .with_verdict(Verdict::Note)
}

fn check_clock(host: &Host) -> Check {
    let value = host.clock.map(|clock| {
        let sync_text = if clock.synchronized {
            "synchronized"
        } else {
            "not synchronized"
        };
        format!(
            "{sync_text}, at most {} ms off",
            format_count(clock.error_us_max / 1_000)
        )
    });
    Check::new("clock", value, "synchronized by NTP or PTP")
        .with_reason("the validity of tokens and certificates depends on it, Last-Modified and logs contain its time, and latency between hosts is the difference of two clocks")
        .change_unless(
            host.clock.is_none_or(|clock| clock.synchronized),
            Verdict::Advice,
            ["start chrony or systemd-timesyncd (timedatectl set-ntp true)".to_string()],
        )
}
