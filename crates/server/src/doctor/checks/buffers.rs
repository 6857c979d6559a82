//! Checks of the kernel's settings for socket buffers. These settings do not matter to idle sockets: Linux allocates a buffer only when
//! bytes arrive.

use super::check::{Check, Verdict, settings_fix, sysctl_fix};
use crate::doctor::formula;
use crate::doctor::host::Host;
use crate::doctor::workload::Workload;
use crate::settings::numbers::{format_bytes, format_count};

pub fn checks(host: &Host, workload: &Workload) -> Vec<Check> {
    vec![
        check_tcp_mem(host, workload),
        check_tcp_wmem(host, workload),
        check_tcp_rmem(host),
        check_rmem_max(host),
        check_wmem_max(host),
        check_moderate_rcvbuf(host),
    ]
}

/// The recommended value of `net.ipv4.tcp_mem`; `None` if the memory is unknown.
fn recommended_tcp_mem(host: &Host, workload: &Workload) -> Option<[u64; 3]> {
    let memory = host.memory?;
    let free_bytes = memory.available.saturating_sub(workload.memory_bytes(host));
    let busy_sockets = formula::busy_sockets(workload.connections, workload.cores);
    Some(formula::tcp_mem(memory.total, free_bytes, busy_sockets))
}

fn join_numbers([low, pressure, maximum]: [u64; 3]) -> String {
    format!("{low} {pressure} {maximum}")
}

fn check_tcp_mem(host: &Host, workload: &Workload) -> Check {
    const NAME: &str = "net.ipv4.tcp_mem";
    let value = host.numbers::<3>(NAME);
    let busy = formula::busy_sockets(workload.connections, workload.cores);
    let Some(recommended) = recommended_tcp_mem(host, workload) else {
        return Check::new(
            NAME,
            value.map(join_numbers),
            "by the memory, which is unknown",
        )
        .with_verdict(Verdict::Unknown);
    };
    let fix = || [sysctl_fix(NAME, join_numbers(recommended))];
    let [_, pressure, maximum] = value.unwrap_or(recommended);
    // The value is too large if it exceeds the memory that the connections leave free, and a smaller value would be enough.
    let exceeds_recommended = maximum > recommended[2] && recommended[1] > busy;
    let free_bytes = host.memory.map_or(0, |memory| {
        memory.available.saturating_sub(workload.memory_bytes(host))
    });
    let is_too_large = exceeds_recommended && maximum * formula::PAGE_BYTES > free_bytes;
    Check::new(
        NAME,
        value.map(join_numbers),
        format!("about {} (pages)", join_numbers(recommended)),
    )
    .with_reason(format!(
        "the pages that the bytes in all sockets may fill: a sixteenth of the memory, but at least a page for each of the {} sockets that wait for an \
         acknowledgement while {} cores send (150,000 a second each, 200 ms), and at most the memory that the connections leave free",
        format_count(busy),
        workload.cores
    ))
    .change_unless(maximum >= busy, Verdict::Change, fix())
    .change_unless(pressure >= busy && !is_too_large, Verdict::Advice, fix())
}

fn check_tcp_wmem(host: &Host, workload: &Workload) -> Check {
    const NAME: &str = "net.ipv4.tcp_wmem";
    let value = host.numbers::<3>(NAME);
    let tcp_mem_max = host
        .numbers::<3>("net.ipv4.tcp_mem")
        .or(recommended_tcp_mem(host, workload))
        .map_or(u64::MAX / formula::PAGE_BYTES, |[.., maximum]| maximum);
    let limit = formula::send_buffer_max(tcp_mem_max, workload.connections);
    let effective_max = value.map(|[.., maximum]| match workload.send_buffer_bytes {
        0 => maximum,
        set => set.min(maximum),
    });
    let value_text = value.map(|value| match workload.send_buffer_bytes {
        0 => join_numbers(value),
        set => format!(
            "{}, and limits.send_buffer_bytes is {}",
            join_numbers(value),
            format_count(set)
        ),
    });
    Check::new(
        NAME,
        value_text,
        format!("a maximum of at most {} for Crore's sockets", format_count(limit)),
    )
    .with_reason(format!(
        "if a hundredth of the connections stop reading, their unsent bytes must fit in tcp_mem: {} / ({} / 100), a power of two, at least 64 KiB. \
         The server's own setting limits only its own sockets; the server does not need guides' values such as 4096 16384, which limit all programs",
        format_bytes(tcp_mem_max.saturating_mul(formula::PAGE_BYTES)),
        format_count(workload.connections),
    ))
    .change_unless(
        effective_max.is_none_or(|maximum| maximum <= limit),
        Verdict::Advice,
        [settings_fix(format!("limits.send_buffer_bytes = {limit}"))],
    )
}

fn check_tcp_rmem(host: &Host) -> Check {
    const NAME: &str = "net.ipv4.tcp_rmem";
    Check::new(NAME, host.numbers::<3>(NAME).map(join_numbers), "any: the kernel's default is good")
        .with_reason(
            "this is a limit and reserves nothing: an idle socket holds no memory, and the server reads bytes soon after they arrive. \
             Smaller or larger values, which guides recommend, do not help it",
        )
        .with_verdict(Verdict::Note)
}

fn check_rmem_max(host: &Host) -> Check {
    const NAME: &str = "net.core.rmem_max";
    Check::new(NAME, host.number(NAME).map(format_count), "any")
        .with_reason("limits the buffers that programs request with SO_RCVBUF, and the server requests none. To raise it does nothing for TCP that tcp_rmem does not do")
        .with_verdict(Verdict::Note)
}

fn check_wmem_max(host: &Host) -> Check {
    const NAME: &str = "net.core.wmem_max";
    Check::new(NAME, host.number(NAME).map(format_count), "any")
        .with_reason(
            "limits the buffers that programs request with SO_SNDBUF, and the server requests none",
        )
        .with_verdict(Verdict::Note)
}

fn check_moderate_rcvbuf(host: &Host) -> Check {
    const NAME: &str = "net.ipv4.tcp_moderate_rcvbuf";
    Check::new(NAME, host.number(NAME).map(format_count), "1, the kernel's default")
        .with_reason("0, which guides recommend, keeps receive buffers small. But buffers grow only if a sender keeps them full, so 0 saves nothing with idle connections")
        .with_verdict(Verdict::Note)
}
