//! The present violations. These lists may only shrink: an entry that excuses nothing any more is a violation, too.

/// Crates with a circle of imports that is wider than [`crate::layout::circles`] allows.
pub const CIRCLES: &[&str] = &["crates/broker", "crates/sim", "crates/wire"];

/// Crates without floors, and imports that do not lead to a lower floor, as `crate: importer -> imported`.
pub const FLOORS: &[&str] = &["crates/net", "crates/sim"];

/// Files that are too long.
pub const FILES: &[&str] = &[
    "crates/broker/src/budget/admission.rs",
    "crates/broker/src/home.rs",
    "crates/broker/src/home/filters.rs",
    "crates/broker/src/home/groups.rs",
    "crates/broker/src/log.rs",
    "crates/broker/src/log/history_tests.rs",
    "crates/broker/src/mail.rs",
    "crates/broker/src/protocol/filtered.rs",
    "crates/broker/src/protocol/mqtt/mod.rs",
    "crates/broker/src/protocol/mqtt/subscribe.rs",
    "crates/broker/src/protocol/publish.rs",
    "crates/broker/src/protocol/subscribe.rs",
    "crates/broker/src/protocol/subscribe/respond.rs",
    "crates/sim/src/plan.rs",
];

/// Functions that are too long, as `path: name`.
pub const FUNCTIONS: &[&str] = &[
    "crates/broker/src/home.rs: publish",
    "crates/broker/src/home/attach.rs: page",
    "crates/broker/src/home/filters.rs: match_page",
    "crates/broker/src/home/interest/tests.rs: step",
    "crates/broker/src/home/snapshot.rs: restore_message",
    "crates/broker/src/log/history_tests.rs: check",
    "crates/broker/src/protocol/http.rs: run",
    "crates/broker/src/protocol/mqtt/kept.rs: restore",
    "crates/broker/src/protocol/mqtt/mod.rs: packets",
    "crates/broker/src/protocol/subscribe.rs: subscribe",
    "crates/broker/src/protocol/subscribe/respond.rs: answer_poll_with",
    "crates/broker/src/protocol/websocket.rs: frames_received",
    "crates/server/tests/access/callback.rs: serve",
    "crates/server/tests/admin/api.rs: every_path_and_status_of_the_description_is_what_the_server_does",
    "crates/server/tests/admin/api.rs: walk_connections",
    "crates/server/tests/admin/crowd.rs: a_body_that_is_not_there_in_time_is_answered_and_ended_and_a_fast_one_is_not",
    "crates/server/tests/http/admission.rs: topics_that_one_address_makes_have_a_rate_and_a_burst",
    "crates/server/tests/mqtt/sys.rs: every_topic_is_there_and_moves_with_what_it_counts",
    "crates/server/tests/support/mod.rs: launch",
    "crates/sim/src/client/mqtt/subscribe.rs: subscribe",
    "crates/sim/src/client/subscriber.rs: request",
    "crates/sim/src/plan.rs: new",
];

/// Violations, given as the entry that would excuse one and its text: those that `known` does not excuse, and entries that
/// excuse none.
pub fn besides(known: &[&str], found: Vec<(String, String)>) -> Vec<String> {
    let idle = known
        .iter()
        .filter(|entry| !found.iter().any(|(key, _)| key == **entry));
    let idle: Vec<String> = idle
        .map(|entry| format!("`{entry}` keeps the rule: delete it from the list"))
        .collect();
    let fresh = found
        .into_iter()
        .filter(|(key, _)| !known.contains(&key.as_str()));
    fresh.map(|(_, what)| what).chain(idle).collect()
}
