//! The limits that hold after every turn. Each is a setting plus what may be on its way when the
//! setting begins to hold.

use crate::truth::Wrong;
use crate::world::World;

/// The answers to as many pipelined requests as one read may hold: what a connection is owed besides
/// messages.
const ANSWERS_BYTES: usize = 64 << 10;
/// What an encoding adds to a message: an id of several topics, names, chunk sizes.
const ENCODING_BYTES: usize = 300;

/// Looks at what a shard holds.
pub fn check(world: &World, shard: usize) -> Result<(), Wrong> {
    if let Some(wrong) = &world.net.wrong {
        return Err(wrong.clone());
    }
    let (plan, limits) = (&world.plan, &world.plan.settings.limits);
    let accounts = world.shards[shard].accounts();
    let log_bytes = limits.log_bytes / plan.homes;
    if accounts.log_bytes > log_bytes {
        return Err(format!(
            "{} bytes in a log of {log_bytes}",
            accounts.log_bytes
        ));
    }
    if accounts.home_topics as usize > limits.topics_per_shard {
        return Err(format!("{} topics at a home", accounts.home_topics));
    }
    let message = 2 * plan.message_bytes + ENCODING_BYTES;
    let page = plan.pace.page_messages.min(plan.pace.page_bytes / 8 + 1) * ENCODING_BYTES
        + 2 * plan.pace.page_bytes
        + message;
    // A page for each topic of a connection may come behind a full outbox.
    let per_connection = limits.outbox_bytes + 3 * page + ANSWERS_BYTES;
    let outbox_bytes = accounts.connections as usize * per_connection;
    if accounts.outbox_bytes > outbox_bytes {
        return Err(format!("{} bytes in outboxes", accounts.outbox_bytes));
    }
    let (mails, bytes) = world.net.most_under_way();
    _ = mails;
    // A publisher is looked at again after each piece that it sent; none sends more than this.
    let piece = 16 * (message + ENCODING_BYTES);
    let most = limits.publish_credit_bytes + (plan.publishers + plan.subscribers) * piece;
    if bytes > most {
        return Err(format!("{bytes} bytes of publishes under way to one shard"));
    }
    Ok(())
}
