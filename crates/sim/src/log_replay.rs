//! Replays the committed batches of the engine (the simulated log) in another server, with other limits, rules, clock and number of homes
//! (shards that own topics). The state that a log describes must not depend on any of these, so the other server must have the same digest
//! as the server that wrote the log.
//!
//! The seed, the number of partitions and the window of idempotency keys are the same in both servers, since the state depends on them.

use std::sync::Arc;

use crore_broker::admission::Admission;
use crore_broker::rules::Rules;
use crore_broker::settings::Rule;
use crore_broker::{Batch, Input, Now, Shard, ShardId, World};

use crate::net::Net;

/// The digest of another server that has replayed the batches of `log` in order. `writer` is the server that wrote them.
///
/// # Errors
/// When a batch cannot be read.
pub fn digest(writer: &World, log: &[Batch]) -> Result<u64, String> {
    let mut settings = writer.settings.clone();
    settings.rules = vec![Rule {
        log_messages: 1,
        log_age_s: 1,
        position_age_s: u32::MAX,
        ..Rule::default()
    }];
    settings.limits.log_bytes /= 7;
    settings.limits.topics_per_address_per_s = 1;
    settings.limits.message_bytes = 1;
    settings.mqtt.session_messages = 0;
    let shards = if writer.homes == 1 {
        writer.partitions.min(3)
    } else {
        1
    } as ShardId;
    let server = Arc::new(World {
        admission: Admission::new(&settings, writer.seed),
        rules: Rules::new(&settings.rules),
        settings,
        shards,
        homes: shards,
        writer: None,
        ..*writer
    });
    // The clock begins far ahead of the writer's, and advances by a second with each batch.
    let mut now = Now {
        s: 1,
        unix_s: 1_800_000_000,
    };
    let shard = |id| Shard::new(id, server.clone(), now);
    let mut shards: Vec<Shard> = (0..shards).map(shard).collect();
    let mut net = Net::new(1, shards.len(), 0, None);
    for batch in log {
        (now.s, now.unix_s) = (now.s + 1, now.unix_s + 1);
        for (id, shard) in shards.iter_mut().enumerate() {
            net.current_shard = id as ShardId;
            shard.handle(Input::Tick, now, &mut net);
            let folded = shard.apply_logged_batch(&batch.header, &batch.bytes, now);
            folded.map_err(|error| error.to_string())?;
            shard.flush(now, &mut net);
        }
    }
    Ok(shards
        .iter()
        .fold(0, |digest, shard| digest ^ shard.digest()))
}
