//! Checks of the kernel's tables and queues for opening and closing connections: accept queues, half-open connections, packet queues, the
//! table of sockets, closed connections, local ports.

use super::check::{Check, State, set_line, sysctl};
use crate::doctor::formula;
use crate::doctor::host::Host;
use crate::doctor::workload::Workload;
use crate::settings::numbers::format_count;

pub fn checks(host: &Host, workload: &Workload) -> Vec<Check> {
    vec![
        backlog(workload),
        somaxconn(host, workload),
        half_open(host, workload),
        packets(host),
        buckets(host, workload),
        orphans(host, workload),
        time_wait(host, workload),
        reuse(host),
        recycle(host),
        ports(host, workload),
    ]
}

fn arrivals(workload: &Workload) -> u64 {
    formula::accept_queue_len(
        workload.connections,
        workload.shards,
        workload.accepts_per_s,
    )
}

fn backlog(workload: &Workload) -> Check {
    const BACKLOG_MAX: u64 = 65_535;
    let wanted = arrivals(workload).min(BACKLOG_MAX);
    Check::new(
        "backlog",
        Some(format_count(workload.backlog)),
        format!("at least {}", format_count(wanted)),
    )
    .because(format!(
        "connections that arrive at one of {} shards in half a second, at limits.accepts_per_s = {}, a power of two: whom the queue does not hold tries again after a second or more",
        workload.shards,
        format_count(workload.accepts_per_s)
    ))
    .unless(
        workload.backlog >= wanted,
        State::Advice,
        [set_line(format!("backlog = {wanted}"))],
    )
}

fn somaxconn(host: &Host, workload: &Workload) -> Check {
    let wanted = workload.backlog.max(arrivals(workload));
    let seen = host.listen_overflows.map_or(String::new(), |overflows| {
        format!(
            "; {} connections have found a queue of this host full since it started",
            format_count(overflows)
        )
    });
    Check::at_least(host, "net.core.somaxconn", wanted, State::Advice).because(format!(
        "the kernel cuts each listening socket's queue (backlog) at it{seen}"
    ))
}

fn half_open(host: &Host, workload: &Workload) -> Check {
    const NAME: &str = "net.ipv4.tcp_max_syn_backlog";
    let cookies = host.number("net.ipv4.tcp_syncookies");
    // Without SYN cookies the kernel reserves the last quarter for known peers.
    let wanted = (arrivals(workload) * 4 / 3).next_power_of_two();
    let value = host.number(NAME);
    let shown = value.map(|value| match cookies {
        Some(0) => format!("{}, without SYN cookies", format_count(value)),
        Some(_) => format!("{}, with SYN cookies", format_count(value)),
        None => format_count(value),
    });
    Check::new(
        NAME,
        shown,
        format!("at least {}, or net.ipv4.tcp_syncookies = 1", format_count(wanted)),
    )
    .because("half-open connections are bounded by the backlog, and by this only where SYN cookies are off: 4/3 of half a second's arrivals")
    .unless(
        cookies != Some(0) || value.is_none_or(|value| value >= wanted),
        State::Advice,
        [
            sysctl(NAME, wanted),
            sysctl("net.ipv4.tcp_syncookies", "1"),
        ],
    )
}

fn packets(host: &Host) -> Check {
    const NAME: &str = "net.core.netdev_max_backlog";
    let drops = host.backlog_drops.unwrap_or(0);
    let value = host.number(NAME).unwrap_or(0);
    // If the queue has dropped packets, recommend twice its present length.
    let wanted = match drops {
        0 => formula::packet_queue(),
        _ => formula::packet_queue().max(value * 2),
    };
    Check::at_least(host, NAME, wanted, State::Advice).because(format!(
        "packets that wait for a busy core where RPS, a tunnel or the loopback passes them on: 150,000 a second for 10 ms, a power of two; {} were dropped so far",
        format_count(drops)
    ))
}

fn buckets(host: &Host, workload: &Workload) -> Check {
    const NAME: &str = "net.ipv4.tcp_ehash_entries";
    // The number is negative in a network namespace that shares the table of the initial namespace.
    let known: Option<i64> = host.sysctl(NAME).and_then(|text| text.parse().ok());
    let known = known.map(i64::unsigned_abs).filter(|known| *known > 0);
    let estimate = host
        .memory
        .map(|memory| formula::buckets_by_kernel(memory.total));
    let value = known.or(estimate);
    let shown = value.map(|value| match known {
        Some(_) => format_count(value),
        None => format!(
            "{} by the kernel's rule (it tells since Linux 6.1)",
            format_count(value)
        ),
    });
    let least = formula::buckets_min(workload.connections);
    let wanted = formula::buckets_wanted(workload.connections);
    Check::new(NAME, shown, format!("at least {}", format_count(least)))
        .because(format!(
            "the table of established connections: with more than eight in a bucket each packet walks a long chain, {} on average here. Set when the host starts; two in a bucket are {}",
            value.map_or("?".to_string(), |value| format!("{:.1}", workload.connections as f64 / value as f64)),
            format_count(wanted)
        ))
        .unless(
            value.is_none_or(|value| value >= least),
            State::Advice,
            [format!(
                "add thash_entries={wanted} to the kernel's command line (GRUB_CMDLINE_LINUX) and start the host again"
            )],
        )
}

fn orphans(host: &Host, workload: &Workload) -> Check {
    let wanted = formula::orphans(workload.connections);
    Check::at_least(host, "net.ipv4.tcp_max_orphans", wanted, State::Advice).because(
        "sockets that the server has closed and whose peers do not answer: an eighth of the connections; past it the kernel resets them",
    )
}

fn time_wait(host: &Host, workload: &Workload) -> Check {
    let wanted = formula::time_waits(workload.connections, workload.accepts_per_s);
    Check::at_least(host, "net.ipv4.tcp_max_tw_buckets", wanted, State::Advice).because(format!(
        "connections that the server closed first, for 60 s each, as many a second as come ({}), at most all of them; past it they are forgotten at once, and logged",
        format_count(workload.accepts_per_s)
    ))
}

fn reuse(host: &Host) -> Check {
    const NAME: &str = "net.ipv4.tcp_tw_reuse";
    Check::new(NAME, host.number(NAME).map(format_count), "1 on hosts of proxies and load tools")
        .because("lets whoever connects use a port again that is in TIME_WAIT; a server's port is not concerned. The default, 2, does it for the loopback")
        .with_state(State::Note)
}

fn recycle(host: &Host) -> Check {
    const NAME: &str = "net.ipv4.tcp_tw_recycle";
    let value = host.number(NAME);
    let why = "gone since Linux 4.12; before, 1 dropped clients that share an address. tcp_tw_reuse is what is left of it";
    match value {
        None => Check::new(NAME, Some("gone".to_string()), "gone")
            .because(why)
            .with_state(State::Obsolete),
        Some(value) => Check::new(NAME, Some(format_count(value)), "0")
            .because(why)
            .unless(value == 0, State::Change, [sysctl(NAME, "0")]),
    }
}

fn ports(host: &Host, workload: &Workload) -> Check {
    const NAME: &str = "net.ipv4.ip_local_port_range";
    let range = host.numbers::<2>(NAME);
    let each = range.map_or(0, |range| {
        formula::connections_per_local_address(range) * workload.addresses
    });
    let addresses = match each {
        0 => "?".to_string(),
        each => format_count(workload.connections.div_ceil(each)),
    };
    let whom = if workload.proxies {
        "The proxies in http.trusted_proxies are concerned"
    } else {
        "A server that clients reach directly has no such limit: each client brings its own address and port"
    };
    Check::new(
        NAME,
        range.map(|[first, last]| format!("{first} {last}")),
        "1024 65535 on hosts of proxies and load tools",
    )
    .because(format!(
        "one local address makes (last - first + 1) connections to each address and port that the server listens on, {} here with this range: \
         {} connections through proxies or from load tools need {addresses} local addresses or as many more listening ones. {whom}. \
         Not below 1024, where services listen",
        format_count(each),
        format_count(workload.connections),
    ))
    .with_state(State::Note)
}
