//! Checks of the kernel's settings for socket buffers. These settings do not matter to idle sockets: Linux allocates a buffer only when
//! bytes arrive.

use super::check::{Check, State, set_line, sysctl};
use crate::doctor::formula;
use crate::doctor::host::Host;
use crate::doctor::workload::Workload;
use crate::settings::numbers::{format_bytes, format_count};

pub fn checks(host: &Host, workload: &Workload) -> Vec<Check> {
    vec![
        tcp_mem(host, workload),
        send(host, workload),
        receive(host),
        receive_max(host),
        send_max(host),
        moderate(host),
    ]
}

/// The recommended value of `net.ipv4.tcp_mem`; `None` if the memory is unknown.
fn wanted(host: &Host, workload: &Workload) -> Option<[u64; 3]> {
    let memory = host.memory?;
    let left = memory.available.saturating_sub(workload.memory_bytes(host));
    let busy = formula::busy_sockets(workload.connections, workload.cores);
    Some(formula::tcp_mem(memory.total, left, busy))
}

fn spaced([low, pressure, most]: [u64; 3]) -> String {
    format!("{low} {pressure} {most}")
}

fn tcp_mem(host: &Host, workload: &Workload) -> Check {
    const NAME: &str = "net.ipv4.tcp_mem";
    let value = host.numbers::<3>(NAME);
    let busy = formula::busy_sockets(workload.connections, workload.cores);
    let Some(wanted) = wanted(host, workload) else {
        return Check::new(NAME, value.map(spaced), "by the memory, which is unknown")
            .with_state(State::Unknown);
    };
    let fix = || [sysctl(NAME, spaced(wanted))];
    let [_, pressure, most] = value.unwrap_or(wanted);
    // The value is too large if it exceeds the memory that is left beside the connections, and a smaller value would suffice.
    let too_large = most > wanted[2] && wanted[1] > busy;
    let left = host.memory.map_or(0, |memory| {
        memory.available.saturating_sub(workload.memory_bytes(host))
    });
    let too_large = too_large && most * formula::PAGE_BYTES > left;
    Check::new(
        NAME,
        value.map(spaced),
        format!("about {} (pages)", spaced(wanted)),
    )
    .because(format!(
        "pages that all sockets' bytes may fill: a sixteenth of the memory, at least a page for each of the {} sockets that wait for an \
         acknowledgement while {} cores send (150,000 a second each, 200 ms), at most what the connections leave",
        format_count(busy),
        workload.cores
    ))
    .unless(most >= busy, State::Change, fix())
    .unless(pressure >= busy && !too_large, State::Advice, fix())
}

fn send(host: &Host, workload: &Workload) -> Check {
    const NAME: &str = "net.ipv4.tcp_wmem";
    let value = host.numbers::<3>(NAME);
    let most = host
        .numbers::<3>("net.ipv4.tcp_mem")
        .or(wanted(host, workload))
        .map_or(u64::MAX / formula::PAGE_BYTES, |[.., most]| most);
    let limit = formula::send_buffer_max(most, workload.connections);
    let reach = value.map(|[.., most]| match workload.send_buffer_bytes {
        0 => most,
        set => set.min(most),
    });
    let shown = value.map(|value| match workload.send_buffer_bytes {
        0 => spaced(value),
        set => format!(
            "{}, and limits.send_buffer_bytes is {}",
            spaced(value),
            format_count(set)
        ),
    });
    Check::new(
        NAME,
        shown,
        format!("a maximum of at most {} for Crore's sockets", format_count(limit)),
    )
    .because(format!(
        "when a hundredth of the connections stops reading, their unsent bytes must fit tcp_mem: {} / ({} / 100), a power of two, at least 64 KiB. \
         The server's setting does it for its sockets alone: guides that set 4096 16384 here for everything are of no use to it",
        format_bytes(most.saturating_mul(formula::PAGE_BYTES)),
        format_count(workload.connections),
    ))
    .unless(
        reach.is_none_or(|reach| reach <= limit),
        State::Advice,
        [set_line(format!("limits.send_buffer_bytes = {limit}"))],
    )
}

fn receive(host: &Host) -> Check {
    const NAME: &str = "net.ipv4.tcp_rmem";
    Check::new(NAME, host.numbers::<3>(NAME).map(spaced), "any: the kernel's default is good")
        .because(
            "a bound and no reservation: an idle socket holds nothing, and the server reads what comes within the turn. \
             Guides that set smaller or larger values here gain nothing for it",
        )
        .with_state(State::Note)
}

fn receive_max(host: &Host) -> Check {
    const NAME: &str = "net.core.rmem_max";
    Check::new(NAME, host.number(NAME).map(format_count), "any")
        .because("bounds what programs ask for with SO_RCVBUF, and the server does not ask. Guides that raise it do nothing for TCP that tcp_rmem does not do")
        .with_state(State::Note)
}

fn send_max(host: &Host) -> Check {
    const NAME: &str = "net.core.wmem_max";
    Check::new(NAME, host.number(NAME).map(format_count), "any")
        .because("bounds what programs ask for with SO_SNDBUF, and the server does not ask")
        .with_state(State::Note)
}

fn moderate(host: &Host) -> Check {
    const NAME: &str = "net.ipv4.tcp_moderate_rcvbuf";
    Check::new(NAME, host.number(NAME).map(format_count), "1, the kernel's default")
        .because("0, as guides have it, keeps receive buffers small; they grow only where a sender keeps them full, so that idle connections gain nothing by it")
        .with_state(State::Note)
}
