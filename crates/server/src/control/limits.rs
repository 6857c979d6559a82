//! The configured limits, and how much of each is used.

use crore_broker::ShardId;
use crore_shard_loop::counters::ShardCounters;
use serde::Serialize;
use utoipa::ToSchema;

use super::process;
use super::state::AdminState;

/// A limit.
#[derive(Serialize, ToSchema)]
pub struct Limit {
    /// The key in the settings, or the name of a limit of the host.
    pub name: &'static str,
    /// The unit of `used` and `limit`.
    pub unit: &'static str,
    /// The part of the limit that is used.
    pub used: u64,
    /// The limit itself.
    pub limit: u64,
    /// `used / limit`.
    pub share: f64,
    /// If each shard has this limit: the shard that uses most of it, whose numbers are shown.
    pub shard: Option<ShardId>,
}

impl Limit {
    fn new(
        name: &'static str,
        unit: &'static str,
        used: u64,
        limit: u64,
        shard: Option<ShardId>,
    ) -> Limit {
        let share = used as f64 / limit.max(1) as f64;
        Limit {
            name,
            unit,
            used,
            limit,
            share: (share * 1e6).round() / 1e6,
            shard,
        }
    }
}

/// All limits that are set. A limit of 0 counts as not set. A caller that shows the process's memory passes it as `memory_bytes`, so that
/// both numbers are the same. Without it the resident memory is read here.
pub fn all(state: &AdminState, shards: &[ShardCounters], memory_bytes: Option<u64>) -> Vec<Limit> {
    let settings = state.effective_settings().file;
    let (limits, world) = (&settings.limits, state.lifecycle.world());
    let together = |name, unit, counter: fn(&ShardCounters) -> u64, limit: u64| {
        let used = shards.iter().map(counter).sum();
        (limit > 0).then(|| Limit::new(name, unit, used, limit, None))
    };
    let fullest = |name, unit, counter: fn(&ShardCounters) -> u64, limit: u64| {
        let (id, used) = (0..)
            .zip(shards.iter().map(counter))
            .max_by_key(|(_, used)| *used)?;
        Some(Limit::new(name, unit, used, limit, Some(id)))
    };
    // A shard reports 0 before its first turn, a pass of its loop. Until all shards have made one, this limit is not shown.
    let room = shards
        .iter()
        .map(|shard| shard.loop_stats.connections_max)
        .min()
        .filter(|room| *room > 0);
    let connections: fn(&ShardCounters) -> u64 = |s| u64::from(s.accounts.connections);
    [
        together(
            "limits.connections_max",
            "connections",
            connections,
            limits.connections_max as u64,
        ),
        fullest(
            "limits.connections_per_shard",
            "connections",
            connections,
            limits.connections_per_shard as u64,
        ),
        // This limit is the smaller of limits.connections_per_shard and the limit of open files.
        room.and_then(|room| fullest("descriptors", "connections", connections, room)),
        together(
            "limits.topics_max",
            "topics",
            |s| u64::from(s.accounts.home_topics),
            limits.topics_max as u64,
        ),
        fullest(
            "limits.topics_per_shard",
            "topics",
            |s| u64::from(s.accounts.home_topics),
            limits.topics_per_shard as u64,
        ),
        fullest(
            "limits.filters_per_shard",
            "filters",
            |s| u64::from(s.accounts.carrier_filters),
            limits.filters_per_shard as u64,
        ),
        together(
            "limits.log_bytes",
            "bytes",
            |s| s.accounts.log_bytes as u64,
            limits.log_bytes as u64,
        ),
        together(
            "limits.memory_bytes",
            "bytes",
            |s| s.accounts.parts.iter().sum::<usize>() as u64,
            limits.memory_bytes as u64,
        ),
        together(
            "publish.idempotency_keys",
            "keys",
            |s| u64::from(s.accounts.answers),
            settings.publish.idempotency_keys as u64,
        ),
        // Each publisher has a share of the keys, so the publisher with the most keys can be refused before all keys are used.
        Some(
            world
                .admission
                .keys
                .largest_group(settings.publish.idempotency_keys),
        )
        .filter(|_| world.appends())
        .map(|(used, limit)| {
            Limit::new(
                "publish.idempotency_keys (largest publisher)",
                "keys",
                used,
                limit,
                None,
            )
        }),
        together(
            "mqtt.sessions_max",
            "sessions",
            |s| u64::from(s.accounts.sessions),
            u64::from(settings.mqtt.sessions_max),
        ),
        together(
            "tls.handshakes_max",
            "handshakes",
            |s| u64::from(s.tls_usage.unfinished_handshakes),
            match settings.tls.is_on() {
                true => u64::from(settings.tls.handshakes_max),
                false => 0,
            },
        ),
        Some(Limit::new(
            "admin.connections_max",
            "connections",
            state.port_counters.open_connections(),
            u64::from(settings.admin.connections_max),
            None,
        )),
        memory_bytes
            .or_else(process::resident_bytes)
            .map(|used| Limit::new("memory", "bytes", used, crate::config::memory_bytes(), None)),
    ]
    .into_iter()
    .flatten()
    .collect()
}
