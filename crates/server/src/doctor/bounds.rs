//! Computes how many connections each limit of the host and of the server permits. The lowest of these numbers decides.

use serde::Serialize;

use super::formula;
use super::host::Host;
use super::workload::Workload;
use crate::settings::numbers::{format_bytes, format_count};

/// A limit, as a number of connections.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bound {
    pub name: String,
    /// The number of connections that the limit permits.
    #[serde(rename = "holds")]
    pub connections: u64,
    /// How `connections` was computed.
    pub how: String,
}

/// Every known bound, the tightest first.
pub fn all_bounds(host: &Host, workload: &Workload) -> Vec<Bound> {
    let mut bounds = Vec::new();
    let mut add = |name: &str, holds: u64, how: String| {
        bounds.push(Bound {
            name: name.to_string(),
            connections: holds,
            how,
        });
    };
    add_memory_bounds(host, workload, &mut add);
    add_kernel_bounds(host, workload, &mut add);
    add_setting_bounds(workload, &mut add);
    bounds.sort_by_key(|bound| bound.connections);
    bounds
}

/// Bounds by the available memory of the machine and of the control groups.
fn add_memory_bounds(host: &Host, workload: &Workload, add: &mut impl FnMut(&str, u64, String)) {
    let fixed_bytes = workload.fixed_bytes();
    let fixed_text = format!(
        "{} of an empty server - {} of logs",
        format_bytes(fixed_bytes - workload.log_bytes),
        format_bytes(workload.log_bytes)
    );
    if let Some(memory) = host.memory {
        let per_connection_bytes = workload.connection_bytes(host);
        add(
            "memory",
            memory.available.saturating_sub(fixed_bytes) / per_connection_bytes,
            format!(
                "({} available - {fixed_text}) / {per_connection_bytes} B",
                format_bytes(memory.available)
            ),
        );
    }
    for group in &host.memory_groups {
        let kernel_bytes = formula::charged_bytes(group.counts_sockets);
        let per_connection_bytes = workload.process_bytes() + kernel_bytes;
        let free_bytes = group.limit.saturating_sub(group.held + fixed_bytes);
        add(
            &format!("memory of the control group {}", group.path),
            free_bytes / per_connection_bytes,
            format!(
                "({} limit - {} held - {fixed_text}) / {per_connection_bytes} B",
                format_bytes(group.limit),
                format_bytes(group.held)
            ),
        );
    }
}

/// Bounds by objects that the kernel counts: descriptors, files, watches, tracked connections, promised memory.
fn add_kernel_bounds(host: &Host, workload: &Workload, add: &mut impl FnMut(&str, u64, String)) {
    if let Some(limit) = host.descriptors_max {
        let table_len = limit.min(host.number("fs.nr_open").unwrap_or(limit));
        add(
            "descriptors of the shards",
            formula::connections_by_descriptors(table_len, workload.shards),
            format!(
                "{} shards with {} descriptors each; each shard needs some of them itself",
                workload.shards,
                format_count(table_len)
            ),
        );
    }
    if let Some(limit) = host.number("fs.file-max") {
        let open_files = host.numbers::<3>("fs.file-nr").map_or(0, |[open, ..]| open);
        add(
            "fs.file-max",
            limit.saturating_sub(open_files),
            format!(
                "{} files - {} open",
                format_count(limit),
                format_count(open_files)
            ),
        );
    }
    if let Some(limit) = host.number("fs.epoll.max_user_watches") {
        add(
            "fs.epoll.max_user_watches",
            limit,
            "one watch for each connection; the limit is for all programs of one user together"
                .to_string(),
        );
    }
    if host.tracks_connections()
        && let Some(limit) = host.number("net.netfilter.nf_conntrack_max")
    {
        add(
            "net.netfilter.nf_conntrack_max",
            limit,
            "connections are tracked, one entry each".to_string(),
        );
    }
    if let (Some(memory), Some(2)) = (host.memory, host.number("vm.overcommit_memory")) {
        let free_bytes = memory
            .commit_limit
            .saturating_sub(memory.committed + workload.fixed_bytes());
        add(
            "memory that may be promised",
            free_bytes / workload.process_bytes(),
            "vm.overcommit_memory is 2: CommitLimit - Committed_AS - the empty server".to_string(),
        );
    }
}

/// Bounds by the server's own settings.
fn add_setting_bounds(workload: &Workload, add: &mut impl FnMut(&str, u64, String)) {
    add(
        "limits.connections_max",
        workload.connections_max,
        "the server's setting; by default 8/10 of the memory".to_string(),
    );
    add(
        "limits.connections_per_shard",
        workload
            .connections_per_shard
            .saturating_mul(workload.shards),
        format!(
            "{} shards, {} each",
            workload.shards,
            format_count(workload.connections_per_shard)
        ),
    );
    add(
        "limits.topics_per_shard, limits.topics_max",
        workload.topics_max,
        format!(
            "a topic for each connection, over {} shards",
            workload.homes
        ),
    );
}
