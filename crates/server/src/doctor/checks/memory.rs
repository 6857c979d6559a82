//! Checks of memory: of the host, its control groups, `limits.memory_bytes`, and the kernel's settings for memory.

use super::check::{Check, Verdict, settings_fix, sysctl_fix};
use crate::doctor::formula;
use crate::doctor::host::Host;
use crate::doctor::memory_estimate::{MEMORY_SETTING, MemoryEstimate};
use crate::doctor::workload::Workload;
use crate::settings::numbers::{format_bytes, format_count};

/// The highest acceptable `vm.swappiness`.
const SWAPPINESS_MAX: u64 = 10;
/// The recommended `vm.swappiness`: the kernel swaps only when it would otherwise kill programs.
const RECOMMENDED_SWAPPINESS: u64 = 1;
/// The value of `vm.overcommit_memory` with which the kernel promises at most `CommitLimit`.
const OVERCOMMIT_NEVER: u64 = 2;

pub fn checks(host: &Host, workload: &Workload) -> Vec<Check> {
    let mut checks = vec![check_memory(host, workload)];
    checks.extend(check_groups(host, workload));
    checks.extend([
        check_memory_setting(host, workload),
        check_overcommit(host, workload),
        check_mappings(host, workload),
        check_swappiness(host),
        check_min_free(host, workload),
    ]);
    checks
}

fn check_memory(host: &Host, workload: &Workload) -> Check {
    let recommended = workload.memory_bytes(host);
    let busy = formula::busy_sockets(workload.connections, workload.cores);
    let headroom = busy * formula::PAGE_BYTES;
    let available = host.memory.map(|memory| memory.available);
    let more_memory_fix = format!(
        "give the host {} more memory, or the server fewer connections",
        format_bytes(recommended.saturating_sub(available.unwrap_or(0)))
    );
    let headroom_fix = format!(
        "leave {} free for bytes that are not acknowledged yet, or connections may have to wait for memory while all cores send",
        format_bytes(headroom)
    );
    Check::new(
        "memory",
        available.map(|available| format!("{} available", format_bytes(available))),
        format!("at least {}", format_bytes(recommended)),
    )
    .with_reason(format!(
        "{} connections x ({} B of the process + {} B of the kernel) + {} of an empty server + {} of full logs. While messages are sent, \
         {} sockets hold a page each, which adds {}",
        format_count(workload.connections),
        workload.process_bytes(),
        workload.connection_bytes(host) - workload.process_bytes(),
        format_bytes(formula::server_bytes(workload.shards)),
        format_bytes(workload.log_bytes),
        format_count(busy),
        format_bytes(headroom),
    ))
    .change_unless(available >= Some(recommended), Verdict::Change, [more_memory_fix])
    .change_unless(available >= Some(recommended + headroom), Verdict::Advice, [headroom_fix])
}

fn check_groups(host: &Host, workload: &Workload) -> Vec<Check> {
    let check_group = |group: &crate::config::cgroups::Group| {
        let kernel_bytes = formula::charged_bytes(group.counts_sockets);
        let per_connection_bytes = workload.process_bytes() + kernel_bytes;
        let recommended =
            group.held + workload.fixed_bytes() + workload.connections * per_connection_bytes;
        let sockets_text = if group.counts_sockets {
            "the group counts accepted sockets"
        } else {
            "the group does not count accepted sockets (before Linux 6.12, or cgroup version 1 without a separate limit for sockets)"
        };
        Check::new(
            format!("memory limit of {}", group.path),
            Some(format_bytes(group.limit)),
            format!("at least {}", format_bytes(recommended)),
        )
        .with_reason(format!(
            "{} held now + {} of an empty server and full logs + {} connections x {per_connection_bytes} B; {sockets_text}. Above memory.max the kernel kills the server, above memory.high it makes the server very slow",
            format_bytes(group.held),
            format_bytes(workload.fixed_bytes()),
            format_count(workload.connections),
        ))
        .change_unless(
            group.limit >= recommended,
            Verdict::Change,
            [format!(
                "raise the limit (MemoryMax= and MemoryHigh= of the unit, --memory of the container) to {}",
                format_bytes(recommended)
            )],
        )
    };
    host.memory_groups.iter().map(check_group).collect()
}

/// Checks `limits.memory_bytes` against the memory that remains when everything else is full.
fn check_memory_setting(host: &Host, workload: &Workload) -> Check {
    const MIB: u64 = 1 << 20;
    let estimate = MemoryEstimate::new(host, workload);
    let value = Some(format_bytes(workload.memory_bytes_max));
    let Some(available_bytes) = estimate.available else {
        return Check::new(MEMORY_SETTING, value, "by the memory, which is unknown")
            .with_verdict(Verdict::Unknown);
    };
    let other_bytes = estimate.bytes() - workload.memory_bytes_max;
    let left_bytes = available_bytes.saturating_sub(other_bytes);
    let fix = if left_bytes >= workload.memory_bytes_min.next_multiple_of(MIB) {
        settings_fix(format!("{MEMORY_SETTING} = \"{} MiB\"", left_bytes / MIB))
    } else {
        let excess_bytes = estimate.bytes().saturating_sub(available_bytes);
        let excess_connections = excess_bytes.div_ceil(workload.connection_bytes(host));
        let fewer_connections = match workload.connections.saturating_sub(excess_connections) {
            0 => String::new(),
            holds => format!("limits.connections_max = {holds} in the server's settings, "),
        };
        format!(
            "{fewer_connections}lower limits.log_bytes and net.ipv4.tcp_mem, or {} more memory",
            format_bytes(excess_bytes)
        )
    };
    let recommended = match left_bytes {
        0 => "some of the memory, but everything else leaves none".to_string(),
        left => format!("at most {}", format_bytes(left)),
    };
    Check::new(MEMORY_SETTING, value, recommended)
        .with_reason(format!(
            "everything else that has a limit takes {} of {} when it is full. The server drops data when \
             {MEMORY_SETTING} is reached; if the memory is full before that, the kernel kills the server",
            format_bytes(other_bytes),
            format_bytes(available_bytes)
        ))
        .change_unless(!estimate.exceeds_available(), Verdict::Advice, [fix])
}

fn check_overcommit(host: &Host, workload: &Workload) -> Check {
    const NAME: &str = "vm.overcommit_memory";
    let mode = host.number(NAME);
    let process_bytes = workload.fixed_bytes() + workload.connections * workload.process_bytes();
    let commit_left = host.memory.map_or(u64::MAX, |memory| {
        memory.commit_limit.saturating_sub(memory.committed)
    });
    Check::new(NAME, mode.map(format_count), "0 or 1")
        .with_reason(format!(
            "with 2 the kernel promises at most CommitLimit, and the process requests {}",
            format_bytes(process_bytes)
        ))
        .change_unless(
            mode != Some(OVERCOMMIT_NEVER) || commit_left >= process_bytes,
            Verdict::Change,
            [sysctl_fix(NAME, "0")],
        )
}

fn check_mappings(host: &Host, workload: &Workload) -> Check {
    let heap_bytes = workload.fixed_bytes() + workload.connections * workload.process_bytes();
    let recommended = formula::mappings(heap_bytes, workload.shards);
    Check::at_least_check(host, "vm.max_map_count", recommended, Verdict::Change).with_reason(
        "two mappings for each 64 MiB of heap, eight for each shard, 256 for the program; at the limit the process gets no memory",
    )
}

fn check_swappiness(host: &Host) -> Check {
    const NAME: &str = "vm.swappiness";
    let value = host.number(NAME);
    let no_swap = host.memory.is_some_and(|memory| memory.swap == 0);
    let shown = value.map(|value| {
        if no_swap {
            format!("{value}, and there is no swap")
        } else {
            format_count(value)
        }
    });
    Check::new(NAME, shown, format!("at most {SWAPPINESS_MAX}, or no swap"))
        .with_reason(
            "the server reads its tables of connections in random order, so with pages swapped out each message waits for the disk. \
             Not 0: then the kernel kills programs before it swaps",
        )
        .change_unless(
            no_swap || value.is_none_or(|value| value <= SWAPPINESS_MAX),
            Verdict::Advice,
            [sysctl_fix(NAME, RECOMMENDED_SWAPPINESS)],
        )
}

fn check_min_free(host: &Host, workload: &Workload) -> Check {
    const NAME: &str = "vm.min_free_kbytes";
    let total = host.memory.map_or(u64::MAX, |memory| memory.total);
    Check::at_least_check(host, NAME, formula::min_free_kib(total, workload.cores), Verdict::Advice).with_reason(
        "16 MiB for each core, at least 64 MiB, at most a 64th of the memory. Packets that arrive cannot wait until memory is freed: without free memory the kernel drops them",
    )
}
