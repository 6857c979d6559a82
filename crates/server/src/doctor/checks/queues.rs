//! Checks of the kernel's tables and queues for opening and closing connections: accept queues, half-open connections, packet queues, the
//! table of sockets, closed connections, local ports.

use super::check::{Check, Verdict, settings_fix, sysctl_fix};
use crate::doctor::formula;
use crate::doctor::host::Host;
use crate::doctor::workload::Workload;
use crate::settings::numbers::format_count;

pub fn checks(host: &Host, workload: &Workload) -> Vec<Check> {
    vec![
        check_backlog(workload),
        check_somaxconn(host, workload),
        check_syn_backlog(host, workload),
        check_packet_queue(host),
        check_hash_buckets(host, workload),
        check_orphans(host, workload),
        check_time_wait(host, workload),
        check_tw_reuse(host),
        check_tw_recycle(host),
        check_port_range(host, workload),
    ]
}

fn arrivals_per_shard(workload: &Workload) -> u64 {
    formula::accept_queue_len(
        workload.connections,
        workload.shards,
        workload.accepts_per_s,
    )
}

fn check_backlog(workload: &Workload) -> Check {
    const BACKLOG_MAX: u64 = 65_535;
    let recommended = arrivals_per_shard(workload).min(BACKLOG_MAX);
    Check::new(
        "backlog",
        Some(format_count(workload.backlog)),
        format!("at least {}", format_count(recommended)),
    )
    .with_reason(format!(
        "the connections that arrive at one of {} shards in half a second, with limits.accepts_per_s = {}, as a power of two. If the queue is full, a client tries again after a second or more",
        workload.shards,
        format_count(workload.accepts_per_s)
    ))
    .change_unless(
        workload.backlog >= recommended,
        Verdict::Advice,
        [settings_fix(format!("backlog = {recommended}"))],
    )
}

fn check_somaxconn(host: &Host, workload: &Workload) -> Check {
    let recommended = workload.backlog.max(arrivals_per_shard(workload));
    let overflows_text = host.listen_overflows.map_or(String::new(), |overflows| {
        format!(
            "; {} connections have found a queue of this host full since it started",
            format_count(overflows)
        )
    });
    Check::at_least_check(host, "net.core.somaxconn", recommended, Verdict::Advice).with_reason(format!(
        "the kernel limits each listening socket's queue (backlog) to this length{overflows_text}"
    ))
}

fn check_syn_backlog(host: &Host, workload: &Workload) -> Check {
    const NAME: &str = "net.ipv4.tcp_max_syn_backlog";
    let cookies = host.number("net.ipv4.tcp_syncookies");
    // Without SYN cookies the kernel reserves the last quarter for known peers.
    let recommended = (arrivals_per_shard(workload) * 4 / 3).next_power_of_two();
    let value = host.number(NAME);
    let shown = value.map(|value| match cookies {
        Some(0) => format!("{}, without SYN cookies", format_count(value)),
        Some(_) => format!("{}, with SYN cookies", format_count(value)),
        None => format_count(value),
    });
    Check::new(
        NAME,
        shown,
        format!("at least {}, or net.ipv4.tcp_syncookies = 1", format_count(recommended)),
    )
    .with_reason("the backlog limits half-open connections; this setting limits them only if SYN cookies are off. 4/3 of the connections that arrive in half a second")
    .change_unless(
        cookies != Some(0) || value.is_none_or(|value| value >= recommended),
        Verdict::Advice,
        [
            sysctl_fix(NAME, recommended),
            sysctl_fix("net.ipv4.tcp_syncookies", "1"),
        ],
    )
}

fn check_packet_queue(host: &Host) -> Check {
    const NAME: &str = "net.core.netdev_max_backlog";
    let drops = host.backlog_drops.unwrap_or(0);
    let value = host.number(NAME).unwrap_or(0);
    // If the queue has dropped packets, recommend twice its present length.
    let recommended = match drops {
        0 => formula::packet_queue(),
        _ => formula::packet_queue().max(value * 2),
    };
    Check::at_least_check(host, NAME, recommended, Verdict::Advice).with_reason(format!(
        "packets that RPS, a tunnel or the loopback passes to a busy core wait in this queue: 150,000 a second for 10 ms, as a power of two. {} were dropped so far",
        format_count(drops)
    ))
}

fn check_hash_buckets(host: &Host, workload: &Workload) -> Check {
    const NAME: &str = "net.ipv4.tcp_ehash_entries";
    // The number is negative in a network namespace that shares the table of the initial namespace.
    let actual: Option<i64> = host.sysctl(NAME).and_then(|text| text.parse().ok());
    let known = actual.map(i64::unsigned_abs).filter(|known| *known > 0);
    let estimate = host
        .memory
        .map(|memory| formula::buckets_by_kernel(memory.total));
    let value = known.or(estimate);
    let shown = value.map(|value| match known {
        Some(_) => format_count(value),
        None => format!(
            "{} by the kernel's rule (the kernel shows the number since Linux 6.1)",
            format_count(value)
        ),
    });
    let minimum = formula::buckets_min(workload.connections);
    let recommended = formula::buckets_recommended(workload.connections);
    Check::new(NAME, shown, format!("at least {}", format_count(minimum)))
        .with_reason(format!(
            "the hash table of established connections. With more than eight connections in a bucket, each packet searches a long chain; here they are {} on average. The kernel sets the size when the host starts; for two in a bucket it needs {}",
            value.map_or("?".to_string(), |value| format!("{:.1}", workload.connections as f64 / value as f64)),
            format_count(recommended)
        ))
        .change_unless(
            value.is_none_or(|value| value >= minimum),
            Verdict::Advice,
            [format!(
                "add thash_entries={recommended} to the kernel's command line (GRUB_CMDLINE_LINUX) and start the host again"
            )],
        )
}

fn check_orphans(host: &Host, workload: &Workload) -> Check {
    let recommended = formula::orphans(workload.connections);
    Check::at_least_check(host, "net.ipv4.tcp_max_orphans", recommended, Verdict::Advice).with_reason(
        "sockets that the server has closed and whose peers do not answer: an eighth of the connections. At the limit the kernel resets them",
    )
}

fn check_time_wait(host: &Host, workload: &Workload) -> Check {
    let recommended = formula::time_waits(workload.connections, workload.accepts_per_s);
    Check::at_least_check(host, "net.ipv4.tcp_max_tw_buckets", recommended, Verdict::Advice).with_reason(format!(
        "connections that the server closed first, which the kernel remembers for 60 s: as many a second as are accepted ({}), at most all. At the limit the kernel forgets them at once, and logs that",
        format_count(workload.accepts_per_s)
    ))
}

fn check_tw_reuse(host: &Host) -> Check {
    const NAME: &str = "net.ipv4.tcp_tw_reuse";
    Check::new(NAME, host.number(NAME).map(format_count), "1 on hosts of proxies and load tools")
        .with_reason("lets the side that connects use a port again that is in TIME_WAIT; it has no effect on a server's port. The default, 2, does it for the loopback")
        .with_verdict(Verdict::Note)
}

fn check_tw_recycle(host: &Host) -> Check {
    const NAME: &str = "net.ipv4.tcp_tw_recycle";
    let value = host.number(NAME);
    let reason = "removed in Linux 4.12. Before, 1 dropped clients that share an address. Only tcp_tw_reuse is left";
    match value {
        None => Check::new(NAME, Some("gone".to_string()), "gone")
            .with_reason(reason)
            .with_verdict(Verdict::Obsolete),
        Some(value) => Check::new(NAME, Some(format_count(value)), "0")
            .with_reason(reason)
            .change_unless(value == 0, Verdict::Change, [sysctl_fix(NAME, "0")]),
    }
}

fn check_port_range(host: &Host, workload: &Workload) -> Check {
    const NAME: &str = "net.ipv4.ip_local_port_range";
    let range = host.numbers::<2>(NAME);
    let connections_per_address = range.map_or(0, |range| {
        formula::connections_per_local_address(range) * workload.addresses
    });
    let addresses = match connections_per_address {
        0 => "?".to_string(),
        each => format_count(workload.connections.div_ceil(each)),
    };
    let affected_text = if workload.has_proxies {
        "This limits the proxies in http.trusted_proxies"
    } else {
        "A server that clients reach directly has no such limit: each client brings its own address and port"
    };
    Check::new(
        NAME,
        range.map(|[first, last]| format!("{first} {last}")),
        "1024 65535 on hosts of proxies and load tools",
    )
    .with_reason(format!(
        "one local address can open (last - first + 1) connections to each address and port that the server listens on, here {} with this range. \
         So {} connections through proxies or from load tools need {addresses} local addresses, or that many times more listening addresses. {affected_text}. \
         The range must not begin below 1024, where services listen",
        format_count(connections_per_address),
        format_count(workload.connections),
    ))
    .with_verdict(Verdict::Note)
}
