//! Checks of memory: of the host, its control groups, `limits.memory_bytes`, and the kernel's settings for memory.

use super::check::{Check, State, set_line, sysctl};
use crate::doctor::account::{Account, MEMORY_SETTING};
use crate::doctor::formula;
use crate::doctor::host::Host;
use crate::doctor::workload::Workload;
use crate::settings::numbers::{format_bytes, format_count};

/// The highest acceptable `vm.swappiness`.
const SWAPPINESS_MAX: u64 = 10;
/// The recommended `vm.swappiness`: the kernel swaps only when it would otherwise kill programs.
const SWAPPINESS: u64 = 1;
/// The value of `vm.overcommit_memory` with which the kernel promises at most `CommitLimit`.
const OVERCOMMIT_NEVER: u64 = 2;

pub fn checks(host: &Host, workload: &Workload) -> Vec<Check> {
    let mut checks = vec![memory(host, workload)];
    checks.extend(groups(host, workload));
    checks.extend([
        held(host, workload),
        overcommit(host, workload),
        mappings(host, workload),
        swappiness(host),
        min_free(host, workload),
    ]);
    checks
}

fn memory(host: &Host, workload: &Workload) -> Check {
    let wanted = workload.memory_bytes(host);
    let busy = formula::busy_sockets(workload.connections, workload.cores);
    let spare = busy * formula::PAGE_BYTES;
    let available = host.memory.map(|memory| memory.available);
    let by_hand = format!(
        "give the host {} more memory, or the server fewer connections",
        format_bytes(wanted.saturating_sub(available.unwrap_or(0)))
    );
    let more = format!(
        "leave {} free for bytes under way, or expect connections to wait for memory while all cores send",
        format_bytes(spare)
    );
    Check::new(
        "memory",
        available.map(|available| format!("{} available", format_bytes(available))),
        format!("at least {}", format_bytes(wanted)),
    )
    .because(format!(
        "{} connections x ({} B of the process + {} B of the kernel) + {} of an empty server + {} of full logs. While messages go out, \
         {} sockets that hold a page each add {}",
        format_count(workload.connections),
        workload.process_bytes(),
        workload.connection_bytes(host) - workload.process_bytes(),
        format_bytes(formula::server_bytes(workload.shards)),
        format_bytes(workload.log_bytes),
        format_count(busy),
        format_bytes(spare),
    ))
    .unless(available >= Some(wanted), State::Change, [by_hand])
    .unless(available >= Some(wanted + spare), State::Advice, [more])
}

fn groups(host: &Host, workload: &Workload) -> Vec<Check> {
    let one = |group: &crate::config::cgroups::Group| {
        let kernel = formula::charged_bytes(group.counts_sockets);
        let each = workload.process_bytes() + kernel;
        let wanted = group.held + workload.fixed_bytes() + workload.connections * each;
        let counted = if group.counts_sockets {
            "accepted sockets count"
        } else {
            "accepted sockets do not count here (before Linux 6.12, or version 1 without a limit of its own for sockets)"
        };
        Check::new(
            format!("memory limit of {}", group.path),
            Some(format_bytes(group.limit)),
            format!("at least {}", format_bytes(wanted)),
        )
        .because(format!(
            "{} held now + {} of an empty server and full logs + {} connections x {each} B; {counted}. Past memory.max the kernel kills the server, past memory.high it hardly gets on",
            format_bytes(group.held),
            format_bytes(workload.fixed_bytes()),
            format_count(workload.connections),
        ))
        .unless(
            group.limit >= wanted,
            State::Change,
            [format!(
                "raise the limit (MemoryMax= and MemoryHigh= of the unit, --memory of the container) to {}",
                format_bytes(wanted)
            )],
        )
    };
    host.groups.iter().map(one).collect()
}

/// Checks `limits.memory_bytes` against the memory that remains when everything else is full.
fn held(host: &Host, workload: &Workload) -> Check {
    const MIB: u64 = 1 << 20;
    let account = Account::new(host, workload);
    let value = Some(format_bytes(workload.memory_bytes_max));
    let Some(room) = account.room else {
        return Check::new(MEMORY_SETTING, value, "by the memory, which is unknown")
            .with_state(State::Unknown);
    };
    let others = account.bytes() - workload.memory_bytes_max;
    let left = room.saturating_sub(others);
    let fix = if left >= workload.memory_bytes_least.next_multiple_of(MIB) {
        set_line(format!("{MEMORY_SETTING} = \"{} MiB\"", left / MIB))
    } else {
        let over = account.bytes().saturating_sub(room);
        let fewer = over.div_ceil(workload.connection_bytes(host));
        let fewer = match workload.connections.saturating_sub(fewer) {
            0 => String::new(),
            holds => format!("limits.connections_max = {holds} in the server's settings, "),
        };
        format!(
            "{fewer}less of limits.log_bytes and net.ipv4.tcp_mem, or {} more memory",
            format_bytes(over)
        )
    };
    let recommended = match left {
        0 => "some of the memory: all else leaves nothing".to_string(),
        left => format!("at most {}", format_bytes(left)),
    };
    Check::new(MEMORY_SETTING, value, recommended)
        .because(format!(
            "all else that has a limit takes {} of {} when it is full. The server makes room when \
             {MEMORY_SETTING} is reached; where that does not fit, the kernel ends it before",
            format_bytes(others),
            format_bytes(room)
        ))
        .unless(!account.is_over(), State::Advice, [fix])
}

fn overcommit(host: &Host, workload: &Workload) -> Check {
    const NAME: &str = "vm.overcommit_memory";
    let mode = host.number(NAME);
    let process = workload.fixed_bytes() + workload.connections * workload.process_bytes();
    let room = host.memory.map_or(u64::MAX, |memory| {
        memory.commit_limit.saturating_sub(memory.committed)
    });
    Check::new(NAME, mode.map(format_count), "0 or 1")
        .because(format!(
            "with 2 the kernel promises no more than CommitLimit, and the process asks for {}",
            format_bytes(process)
        ))
        .unless(
            mode != Some(OVERCOMMIT_NEVER) || room >= process,
            State::Change,
            [sysctl(NAME, "0")],
        )
}

fn mappings(host: &Host, workload: &Workload) -> Check {
    let heap = workload.fixed_bytes() + workload.connections * workload.process_bytes();
    let wanted = formula::mappings(heap, workload.shards);
    Check::at_least(host, "vm.max_map_count", wanted, State::Change).because(
        "two mappings for each 64 MiB of heap, eight for each shard, 256 for the program; past it the process gets no memory",
    )
}

fn swappiness(host: &Host) -> Check {
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
        .because(
            "the tables of a million connections are read at random: a page that is swapped out costs a disk's time for each message. \
             Not 0, which kills programs before it swaps",
        )
        .unless(
            no_swap || value.is_none_or(|value| value <= SWAPPINESS_MAX),
            State::Advice,
            [sysctl(NAME, SWAPPINESS)],
        )
}

fn min_free(host: &Host, workload: &Workload) -> Check {
    const NAME: &str = "vm.min_free_kbytes";
    let total = host.memory.map_or(u64::MAX, |memory| memory.total);
    Check::at_least(host, NAME, formula::min_free_kib(total, workload.cores), State::Advice).because(
        "16 MiB for each core, at least 64 MiB, at most a 64th of the memory: packets that arrive cannot wait for memory to be freed, and are dropped",
    )
}
