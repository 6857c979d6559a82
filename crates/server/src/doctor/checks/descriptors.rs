//! Checks of the limits that connections can reach: descriptors, open files, epoll watches, and the server's own limits.

use super::check::{Check, Verdict, settings_fix};
use crate::config::MAX_SHARDS;
use crate::doctor::formula;
use crate::doctor::host::Host;
use crate::doctor::workload::Workload;
use crate::settings::numbers::format_count;

pub fn checks(host: &Host, workload: &Workload) -> Vec<Check> {
    vec![
        check_rlimit_nofile(host, workload),
        check_nr_open(host, workload),
        check_file_max(host, workload),
        check_epoll_watches(host, workload),
        check_server_setting(
            "limits.connections_max",
            workload.connections_max,
            workload.connections,
            "the limit for all shards together; 0 means: as many as fit in 8/10 of the memory",
        ),
        check_server_setting(
            "limits.connections_per_shard",
            workload.connections_per_shard,
            workload.connections.div_ceil(workload.shards),
            "connections / shards",
        ),
        check_topics(workload),
    ]
}

fn check_rlimit_nofile(host: &Host, workload: &Workload) -> Check {
    let recommended = formula::descriptors_needed(workload.connections, workload.shards);
    let value = host.descriptors_max;
    let more_shards = value.and_then(|value| {
        formula::shards_needed(workload.connections, value, MAX_SHARDS as u64)
            .filter(|shards| *shards > workload.shards)
    });
    let alternative = more_shards.map_or(String::new(), |shards| {
        format!(". With the limit as it is, {shards} shards hold them too (--shards {shards})")
    });
    Check::new(
        "RLIMIT_NOFILE",
        value.map(|value| format!("{}, for each shard", format_count(value))),
        format!("at least {}", format_count(recommended)),
    )
    .with_reason(format!(
        "each shard has its own descriptor table, with connections / {} shards, and some for the shard itself and for clients that it refuses{alternative}. \
         This is the limit of this shell; a service has that of its unit (LimitNOFILE=)",
        workload.shards,
    ))
    .change_unless(
        value.is_none_or(|value| formula::connections_by_descriptors(value, workload.shards) >= workload.connections),
        Verdict::Change,
        [format!("LimitNOFILE={recommended} in the unit, nofile {recommended} in limits.d")],
    )
}

fn check_nr_open(host: &Host, workload: &Workload) -> Check {
    let recommended = formula::descriptors_needed(workload.connections, workload.shards);
    Check::at_least_check(host, "fs.nr_open", recommended, Verdict::Change).with_reason(
        "the kernel's upper bound for RLIMIT_NOFILE and for a process's descriptor table",
    )
}

fn check_file_max(host: &Host, workload: &Workload) -> Check {
    let open_files = host.numbers::<3>("fs.file-nr").map(|[open, ..]| open);
    let recommended = workload.connections + open_files.unwrap_or(0);
    let others = open_files.map_or("those".to_string(), |open| {
        format!("the {}", format_count(open))
    });
    Check::at_least_check(host, "fs.file-max", recommended, Verdict::Change).with_reason(format!(
        "one open file for each connection, and {others} that are open now; at the limit no program on the host can open a file",
    ))
}

fn check_epoll_watches(host: &Host, workload: &Workload) -> Check {
    let recommended = workload.connections + 3 * workload.shards;
    Check::at_least_check(host, "fs.epoll.max_user_watches", recommended, Verdict::Change).with_reason(
        "one for each connection and three for each shard. By default watches (184 B each) may use 4 % of the memory, and a busy host reaches this limit before its memory is full",
    )
}

fn check_server_setting(name: &str, value: u64, recommended: u64, reason: &str) -> Check {
    Check::new(
        name,
        Some(format_count(value)),
        format!("at least {}", format_count(recommended)),
    )
    .with_reason(reason)
    .change_unless(
        value >= recommended,
        Verdict::Change,
        [settings_fix(format!("{name} = {recommended}"))],
    )
}

fn check_topics(workload: &Workload) -> Check {
    const NAME: &str = "limits.topics_per_shard";
    let topics_per_home = workload.topics_max / workload.homes;
    let connections_per_home = workload.connections.div_ceil(workload.homes);
    // Topics are distributed by a hash of their names, so some homes (shards that keep topics) get more topics than others.
    let recommended = connections_per_home + connections_per_home / 16;
    Check::new(NAME, Some(format_count(topics_per_home)), format!("at least {}", format_count(recommended)))
        .with_reason(format!(
            "a topic for each connection, distributed over the {} shards that keep topics, and a sixteenth more, since names are hashed. If connections share topics, a lower limit is enough",
            workload.homes
        ))
        .change_unless(
            workload.topics_max >= workload.connections,
            Verdict::Change,
            [settings_fix(format!("{NAME} = {recommended}"))],
        )
}
