//! Descriptors and places: what each connection takes one of, and the server's own settings of how many there may be.

use super::check::{Check, State, set_line};
use crate::config::MAX_SHARDS;
use crate::doctor::formula;
use crate::doctor::host::Host;
use crate::doctor::need::Need;
use crate::settings::numbers::count;

pub fn checks(host: &Host, need: &Need) -> Vec<Check> {
    vec![
        limit(host, need),
        nr_open(host, need),
        file_max(host, need),
        watches(host, need),
        setting(
            "limits.connections_max",
            need.connections_max,
            need.connections,
            "connections of all shards together; 0 stands for what 8/10 of the memory has room for",
        ),
        setting(
            "limits.connections_per_shard",
            need.connections_per_shard,
            need.connections.div_ceil(need.shards),
            "connections / shards",
        ),
        topics(need),
    ]
}

fn limit(host: &Host, need: &Need) -> Check {
    let wanted = formula::descriptors_for(need.connections, need.shards);
    let is = host.descriptors;
    let shards = is.and_then(|is| {
        formula::shards_for(need.connections, is, MAX_SHARDS as u64)
            .filter(|shards| *shards > need.shards)
    });
    let or = shards.map_or(String::new(), |shards| {
        format!(". With the limit as it is, {shards} shards hold them too (--shards {shards})")
    });
    Check::new(
        "RLIMIT_NOFILE",
        is.map(|is| format!("{}, for each shard", count(is))),
        format!("at least {}", count(wanted)),
    )
    .because(format!(
        "each shard has a descriptor table of its own: connections / {} shards, and some for itself and for whom it turns away{or}. \
         This is the limit of this shell; a service has that of its unit (LimitNOFILE=)",
        need.shards,
    ))
    .unless(
        is.is_none_or(|is| formula::room_by_descriptors(is, need.shards) >= need.connections),
        State::Change,
        [format!("LimitNOFILE={wanted} in the unit, nofile {wanted} in limits.d")],
    )
}

fn nr_open(host: &Host, need: &Need) -> Check {
    let wanted = formula::descriptors_for(need.connections, need.shards);
    Check::at_least(host, "fs.nr_open", wanted, State::Change)
        .because("no table grows, and no RLIMIT_NOFILE may be raised, past it")
}

fn file_max(host: &Host, need: &Need) -> Check {
    let open = host.numbers::<3>("fs.file-nr").map_or(0, |[open, ..]| open);
    Check::at_least(host, "fs.file-max", need.connections + open, State::Change).because(format!(
        "one open file for each connection, and the {} that are open now; past it nobody on the host opens one",
        count(open)
    ))
}

fn watches(host: &Host, need: &Need) -> Check {
    let wanted = need.connections + 3 * need.shards;
    Check::at_least(host, "fs.epoll.max_user_watches", wanted, State::Change).because(
        "one for each connection and three for each shard; the kernel's default is 4 % of the memory at 184 B, which full hosts reach before they are full",
    )
}

fn setting(name: &str, is: u64, wanted: u64, why: &str) -> Check {
    Check::new(name, Some(count(is)), format!("at least {}", count(wanted)))
        .because(why)
        .unless(
            is >= wanted,
            State::Change,
            [set_line(format!("{name} = {wanted}"))],
        )
}

fn topics(need: &Need) -> Check {
    const NAME: &str = "limits.topics_per_shard";
    let each = need.topics_max / need.homes;
    let wanted = need.connections.div_ceil(need.homes);
    // Names are hashed: no home gets exactly its share.
    let wanted = wanted + wanted / 16;
    Check::new(NAME, Some(count(each)), format!("at least {}", count(wanted)))
        .because(format!(
            "a topic for each connection, over {} shards, and a sixteenth more, since names are hashed. Where connections share topics, fewer do",
            need.homes
        ))
        .unless(
            need.topics_max >= need.connections,
            State::Change,
            [set_line(format!("{NAME} = {wanted}"))],
        )
}
