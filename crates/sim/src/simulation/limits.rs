//! The limits that are checked after every turn (round of a shard's loop). Each limit is a setting, plus the work that may be in flight
//! when the setting's value is reached. An ask is a request of one shard to the home of a topic, which is the shard that owns the topic.
//!
//! Words: a *follower* is a client that is told which topics have subscribers; a *visit* is the work of a delivery to one connection.

use crore_broker::work::STEP_BYTES;
use crore_broker::{Accounts, Shard};

use super::{PENDING_MAX, Simulation};
use crate::plan::Plan;
use crate::truth::Violation;

/// The maximum number of bytes in an outbox besides messages: the answers to all pipelined requests of one read.
const ANSWERS_BYTES: usize = 64 << 10;
/// The minimum number of bytes of a publish in a mail: a name of three bytes and a message of four.
const ASK_BYTES_MIN: usize = 7;
/// The maximum number of bytes of a message in a mail besides its data: topic, key, content type, idempotency key.
const FIELDS_BYTES: usize = 64;
/// The maximum number of bytes of a client's requests in mail besides publishes: topic names, in one request on each of its connections.
const CONTROL_BYTES: usize = 100;
/// The maximum number of unanswered requests of a client, on its current connection and the one before. Each may be a batch.
const CLIENT_BATCHES: usize = 2 * PENDING_MAX;
/// The maximum number of bytes that an encoding adds to a message: an id of several topics, names, chunk sizes.
const ENCODING_BYTES: usize = 300;

/// A turn is in flight until all shards have handled the mail that the turn sent. With more turns in flight than `backpressure_turns` times
/// this factor, all publishers wait. With fewer, only the busiest publishers wait.
const ALL_WAIT_FACTOR: usize = 4;

/// Steps of a search in a list of the log: the marks, and the entries between two marks.
const MARK_STEPS: usize = 66;
/// The minimum number of bytes of a kept message, with its row.
const ENTRY_BYTES: usize = 64;
/// Rows read for each entry that a page by filter visits.
const READ_ROWS: usize = 4;
/// The maximum number of steps for the names of one input: filters of a packet, topics of a request, or subscriptions of a session.
const NAMES_STEPS: usize = 100;
/// The maximum number of steps in which a turn reports to followers which topics have no subscribers any more, with the largest possible
/// number of followers.
const ENDS_STEPS: usize = 64 * 5;

/// The maximum number of steps of a unit of work. A shard completes a unit even if that exceeds the budget. The largest units are a page of
/// old messages and a publish. A page visits at most `page_entries` entries to remove old ones, the same number to find its first entry,
/// and the same number for messages. It also searches each list of the log, and copies messages. A publish may displace many small
/// messages. After the last subscriber of QoS 1 or 2 has left, the next publish removes the messages that were kept for it beyond the rule.
fn unit_steps(plan: &Plan) -> u64 {
    let turn_limits = &plan.turn_limits;
    let lists = plan.settings.rules.len() + 2;
    let copied =
        (turn_limits.page_bytes + plan.part_bytes + plan.message_bytes + FIELDS_BYTES) / STEP_BYTES;
    let page = (3 + READ_ROWS) * turn_limits.page_entries
        + lists * MARK_STEPS
        + turn_limits.page_messages
        + copied;
    let publish = 4 * (plan.message_bytes + FIELDS_BYTES) / STEP_BYTES
        + (plan.message_bytes + FIELDS_BYTES) / ENTRY_BYTES
        + 4 * plan.turn_limits.removals_per_turn
        + 2 * lists
        + plan.settings.mqtt.session_messages as usize;
    (page + publish + NAMES_STEPS) as u64
}

/// The maximum number of steps of an input: the budget of a turn and one unit of work.
pub fn input_steps(plan: &Plan) -> u64 {
    u64::from(plan.turn_limits.steps_per_turn) + unit_steps(plan)
}

/// The maximum number of steps at the end of a turn: the budget, one unit of each kind of queued work (an ask of a lane, a page, a
/// connection, the end of a session, forgetting), and the reports of topics that have no subscribers any more. Expiry adds nothing: a turn
/// expires no more messages than were published in it. Each expiry costs one step, and the publish of the message cost at least two.
pub fn flush_steps(plan: &Plan) -> u64 {
    let forgets = plan.turn_limits.removals_per_turn + ENDS_STEPS;
    u64::from(plan.turn_limits.steps_per_turn) + 5 * unit_steps(plan) + forgets as u64
}

/// Checks all limits after a turn of this shard.
pub fn check(sim: &Simulation, shard: usize) -> Result<(), Violation> {
    if let Some(violation) = &sim.net.violation {
        return Err(violation.clone());
    }
    let (plan, limits) = (&sim.plan, &sim.plan.settings.limits);
    let all: Vec<Accounts> = sim.shards.iter().map(Shard::accounts).collect();
    let accounts = &all[shard];
    let log_bytes = limits.log_bytes / usize::from(sim.server.homes);
    let kept_bytes = accounts.log_bytes;
    let message = 2 * plan.message_bytes + ENCODING_BYTES;
    // The last message may displace many others, which the home removes in the next turns. It may be stored twice: in the log and as the
    // retained message.
    if kept_bytes > log_bytes + 2 * message {
        return Err(format!("{kept_bytes} bytes in a log of {log_bytes}"));
    }
    check_topics(sim, accounts.home_topics as usize)?;
    let page = plan
        .turn_limits
        .page_messages
        .min(plan.turn_limits.page_bytes / 8 + 1)
        * ENCODING_BYTES
        + 2 * plan.turn_limits.page_bytes
        + message;
    // Pages for several topics of a connection may follow in an outbox that is already full.
    let rules = plan.settings.rules.iter().map(|rule| rule.outbox_bytes);
    let outbox_bytes = rules.fold(limits.outbox_bytes, usize::max);
    let per_connection = outbox_bytes + 3 * page + ANSWERS_BYTES;
    let outbox_bytes = accounts.connections as usize * per_connection;
    if accounts.outbox_bytes > outbox_bytes {
        return Err(format!("{} bytes in outboxes", accounts.outbox_bytes));
    }
    if let Some(waiting_max) = plan.waiting_max() {
        let waiting = sim.shards[shard].most_messages_waiting();
        if waiting > waiting_max {
            return Err(format!("{waiting} messages wait, at most {waiting_max}"));
        }
    }
    // A publish may begin while any credit is left, so one batch may exceed the credit. Other asks are limited to one request for each
    // connection.
    let publish = plan.batch_lines_max() * (plan.message_bytes + FIELDS_BYTES);
    let in_flight_max = limits.publish_credit_bytes + publish + sim.clients.count() * CONTROL_BYTES;
    let bytes = sim.net.mail.ask_bytes_max();
    if bytes > in_flight_max {
        return Err(format!(
            "{bytes} bytes of asks under way from one shard to another"
        ));
    }
    // Each ask that was sent before all publishers had to wait may need a turn of its own: the publishes within the credit, one batch that
    // exceeds it, and a few requests of each client, on one connection after another.
    let publishes = limits.publish_credit_bytes / ASK_BYTES_MIN + plan.batch_lines_max();
    // A request by filter is answered once for each partition, possibly in separate turns. A connection that its client has lost counts
    // until the server has closed it.
    let open = all.iter().map(|it| it.connections);
    let requests = sim.clients.count() + open.sum::<u32>() as usize;
    let asks = publishes + (4 + plan.partitions) * requests + 8;
    let under_way = ALL_WAIT_FACTOR * plan.turn_limits.backpressure_turns;
    let turns_max = under_way + plan.shards * asks;
    if accounts.turns_held > turns_max {
        return Err(format!("{} turns under way", accounts.turns_held));
    }
    // The same numbers limit the inputs that wait for a starved shard. Each ask, and each turn that answers an ask, may come in a mail of its
    // own, and so may the next ask of the same client.
    let waiting_asks = asks.min(sim.clients.count() * CLIENT_BATCHES * plan.batch_lines_max());
    let inputs_max = 4 * (plan.shards * waiting_asks + under_way);
    for (to, held) in all.iter().enumerate() {
        let inputs = sim.net.mail.inputs_for(to) + held.asks + held.pages;
        if inputs > inputs_max {
            return Err(format!(
                "shard {to} is {inputs} inputs behind, at most {inputs_max}"
            ));
        }
    }
    Ok(())
}

fn check_topics(sim: &Simulation, topics: usize) -> Result<(), Violation> {
    // After a restart a home may have the topics of several former homes. After a crash the log may restore forgotten topics.
    let former = match sim.coverage.restarts {
        0 => 1,
        _ => sim.plan.homes,
    };
    let topics_max = sim.plan.settings.limits.topics_per_shard * former;
    match topics > topics_max && sim.truth.crash_step.is_none() {
        true => Err(format!("{topics} topics at a home")),
        false => Ok(()),
    }
}
