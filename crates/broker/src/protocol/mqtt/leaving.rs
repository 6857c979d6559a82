//! Sessions whose connection has ended before homes have answered all its publishes.
//!
//! Invariant: a session that lasts is given back only when each publish of its connection stands in a log or was
//! refused, and when all homes have heard which messages it needs kept. So the connection that has it next, and is sent one of
//! the publishes again, answers truly and keeps the order; and the end of the session releases all that is kept for it.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::base::ids::ConnId;
use crate::base::reason::Closed;
use crate::client::row::CLOSING;
use crate::io::Io;
use crate::mail::{Ask, ClosingSession, Outcome, ReplyTo};
use crate::protocol::front::{Clients, Context, Lanes, Queues};
use crate::protocol::mqtt::client::{home_of_session, took_page_of};
use crate::protocol::mqtt::farewells::{Leaving, NotDue};
use crate::protocol::mqtt::kept::forget_received;
use crate::protocol::mqtt::publish::{answered, reason_of};

/// Stands for the answer to a fence among those to publishes: no packet id is 0.
const FENCE: u32 = 0;

/// Gives a session back; one that lasts only when these publishes are answered.
pub(super) fn give_back(
    clients: &mut Clients,
    lanes: &mut Lanes,
    from: ConnId,
    farewell: Box<ClosingSession>,
    due: Vec<u32>,
) {
    let lasts = farewell.kept.is_some();
    let leaving = Leaving { farewell, due };
    if !lasts || leaving.due.is_empty() {
        return gave_back(lanes, &clients.ctx, leaving);
    }
    // A connection ends once; if it ended twice, the session given back first goes home too.
    if let Some(before) = clients.own.leaving.wait(from, leaving) {
        gave_back(lanes, &clients.ctx, before);
    }
}

fn gave_back(lanes: &mut Lanes, ctx: &Context, leaving: Leaving) {
    let home = home_of_session(ctx, leaving.farewell.id);
    let close = Ask::SessionClose(leaving.farewell);
    lanes.ask(home, |_| close);
}

/// Asks homes to confirm that they know which messages the session needs kept. The home of the client id may end the session
/// later and release them, and its request might arrive before that of this shard.
pub(super) fn fence_needs(clients: &Clients, lanes: &mut Lanes, slot: u32, due: &mut Vec<u32>) {
    let to = clients.conns.reply_to(slot, FENCE);
    for home in 0..clients.ctx.world.homes {
        lanes.ask(home, |_| Ask::Fence(to));
        due.push(FENCE);
    }
}

/// A home has done all that was asked of it before a fence: for a session that ends, or a SUBSCRIBE.
pub(crate) fn mqtt_fenced<I: Io>(
    clients: &mut Clients,
    lanes: &mut Lanes,
    queues: &mut Queues,
    to: ReplyTo,
    io: &mut I,
) {
    if to.part == FENCE {
        return late_answer(clients, lanes, to, None);
    }
    took_page_of(clients, queues, to.slot);
    if clients.conns.get(to.slot).is(CLOSING) {
        return;
    }
    clients.granted_at_home(to.slot, to.part);
    clients.send_reply(to.slot, io);
}

/// An answer for a connection that is gone: to a publish, with its outcome, or to a fence.
pub(crate) fn late_answer(
    clients: &mut Clients,
    lanes: &mut Lanes,
    to: ReplyTo,
    outcome: Option<Outcome>,
) {
    if outcome.is_none() && to.part != FENCE {
        // Of a SUBSCRIBE, which nobody waits for any more.
        return;
    }
    let refused = outcome.is_some_and(|outcome| reason_of(outcome).is_error());
    let from = ConnId {
        slot: to.slot,
        generation: to.generation,
    };
    let farewell = match clients.own.leaving.answered(from, to.part) {
        Some(Ok(farewell)) => farewell,
        Some(Err(NotDue)) => {
            // Each request has one answer, and this one has no request; its connection has ended.
            clients.meter.stats.closed[Closed::Broken as usize] += 1;
            return;
        }
        None => return,
    };
    let (id, exactly_once) = answered(to.part);
    if refused
        && exactly_once
        && let Some(kept) = &mut farewell.kept
    {
        // Its id is free again [MQTT-4.3.3-9].
        kept.state.bytes = forget_received(&kept.state.bytes, id);
    }
    if let Some(leaving) = clients.own.leaving.take_answered(from) {
        gave_back(lanes, &clients.ctx, leaving);
    }
}
