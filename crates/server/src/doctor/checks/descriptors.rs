//! Checks of the limits that connections can reach: descriptors, open files, epoll watches, and the server's own limits.

use super::check::{Check, State, set_line};
use crate::config::MAX_SHARDS;
use crate::doctor::formula;
use crate::doctor::host::Host;
use crate::doctor::workload::Workload;
use crate::settings::numbers::format_count;

pub fn checks(host: &Host, workload: &Workload) -> Vec<Check> {
    vec![
        limit(host, workload),
        nr_open(host, workload),
        file_max(host, workload),
        watches(host, workload),
        setting(
            "limits.connections_max",
            workload.connections_max,
            workload.connections,
            "connections of all shards together; 0 stands for what 8/10 of the memory has room for",
        ),
        setting(
            "limits.connections_per_shard",
            workload.connections_per_shard,
            workload.connections.div_ceil(workload.shards),
            "connections / shards",
        ),
        topics(workload),
    ]
}

fn limit(host: &Host, workload: &Workload) -> Check {
    let wanted = formula::descriptors_for(workload.connections, workload.shards);
    let value = host.descriptors;
    let shards = value.and_then(|value| {
        formula::shards_for(workload.connections, value, MAX_SHARDS as u64)
            .filter(|shards| *shards > workload.shards)
    });
    let or = shards.map_or(String::new(), |shards| {
        format!(". With the limit as it is, {shards} shards hold them too (--shards {shards})")
    });
    Check::new(
        "RLIMIT_NOFILE",
        value.map(|value| format!("{}, for each shard", format_count(value))),
        format!("at least {}", format_count(wanted)),
    )
    .because(format!(
        "each shard has a descriptor table of its own: connections / {} shards, and some for itself and for whom it turns away{or}. \
         This is the limit of this shell; a service has that of its unit (LimitNOFILE=)",
        workload.shards,
    ))
    .unless(
        value.is_none_or(|value| formula::room_by_descriptors(value, workload.shards) >= workload.connections),
        State::Change,
        [format!("LimitNOFILE={wanted} in the unit, nofile {wanted} in limits.d")],
    )
}

fn nr_open(host: &Host, workload: &Workload) -> Check {
    let wanted = formula::descriptors_for(workload.connections, workload.shards);
    Check::at_least(host, "fs.nr_open", wanted, State::Change)
        .because("no table grows, and no RLIMIT_NOFILE may be raised, past it")
}

fn file_max(host: &Host, workload: &Workload) -> Check {
    let open = host.numbers::<3>("fs.file-nr").map_or(0, |[open, ..]| open);
    Check::at_least(host, "fs.file-max", workload.connections + open, State::Change).because(format!(
        "one open file for each connection, and the {} that are open now; past it nobody on the host opens one",
        format_count(open)
    ))
}

fn watches(host: &Host, workload: &Workload) -> Check {
    let wanted = workload.connections + 3 * workload.shards;
    Check::at_least(host, "fs.epoll.max_user_watches", wanted, State::Change).because(
        "one for each connection and three for each shard; by default the kernel lets watches (184 B each) use 4 % of the memory, which a busy host reaches before its memory is full",
    )
}

fn setting(name: &str, value: u64, wanted: u64, why: &str) -> Check {
    Check::new(
        name,
        Some(format_count(value)),
        format!("at least {}", format_count(wanted)),
    )
    .because(why)
    .unless(
        value >= wanted,
        State::Change,
        [set_line(format!("{name} = {wanted}"))],
    )
}

fn topics(workload: &Workload) -> Check {
    const NAME: &str = "limits.topics_per_shard";
    let each = workload.topics_max / workload.homes;
    let wanted = workload.connections.div_ceil(workload.homes);
    // Topics are distributed by a hash of their names, so some homes (shards that keep topics) get more topics than others.
    let wanted = wanted + wanted / 16;
    Check::new(NAME, Some(format_count(each)), format!("at least {}", format_count(wanted)))
        .because(format!(
            "a topic for each connection, over {} shards, and a sixteenth more, since names are hashed. Where connections share topics, fewer do",
            workload.homes
        ))
        .unless(
            workload.topics_max >= workload.connections,
            State::Change,
            [set_line(format!("{NAME} = {wanted}"))],
        )
}
