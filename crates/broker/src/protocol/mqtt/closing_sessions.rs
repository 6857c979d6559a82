//! Sessions whose connections have ended while they still wait for answers of homes.
//!
//! Invariants:
//! * A session that is kept goes back to its home only when each publish of the connection is in a log or was refused. If the next connection sends one of
//!   them again, the answer is correct, and the order is kept.
//! * It goes back only when all homes know which messages they must keep for it, so the end of the session releases all of them.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::base::ids::ConnId;
use crate::base::reason::Closed;
use crate::client::list::count_answered_page;
use crate::client::row::CLOSING;
use crate::io::Io;
use crate::mail::session::EncodedSession;
use crate::mail::session::stored::StoredSession;
use crate::mail::{Ask, ClosingSession, Outcome, ReplyTo};
use crate::protocol::front::{Clients, Context, Front, Lanes};
use crate::protocol::mqtt::client::home_of_session;
use crate::protocol::mqtt::publish::{RELEASED, answered, reason_of};
use crate::protocol::mqtt::record::{RECORDED, session_recorded};

/// Stands for the answer to a fence among those to publishes: no packet id is 0.
const FENCE: u32 = 0;

/// The sessions that wait for answers, by the connection that had them.
#[derive(Default)]
pub(crate) struct ClosingSessions {
    waiting: BTreeMap<ConnId, WaitingSession>,
}

struct WaitingSession {
    session: Box<ClosingSession>,
    /// The answers that are due: the numbers of publishes, and [`FENCE`] for each fence.
    due: Vec<u32>,
}

/// An answer that is not due.
#[derive(Debug, PartialEq, Eq)]
struct NotDue;

impl ClosingSessions {
    /// The number of sessions that wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Notes an answer for a connection that has ended. Returns its session; `None` if none waits.
    fn answered(
        &mut self,
        from: ConnId,
        number: u32,
    ) -> Option<Result<&mut ClosingSession, NotDue>> {
        let waiting = self.waiting.get_mut(&from)?;
        let Some(at) = waiting.due.iter().position(|due| *due == number) else {
            return Some(Err(NotDue));
        };
        waiting.due.swap_remove(at);
        Some(Ok(&mut waiting.session))
    }

    /// Takes the session of this connection, if no answer is due any more.
    fn take_answered(&mut self, from: ConnId) -> Option<Box<ClosingSession>> {
        if !self.waiting.get(&from)?.due.is_empty() {
            return None;
        }
        self.waiting.remove(&from).map(|waiting| waiting.session)
    }
}

/// Gives a session back to its home. One that outlives its connection `from`, or has a token, waits for the answers that are `due`.
pub(super) fn give_back(
    clients: &mut Clients,
    lanes: &mut Lanes,
    from: ConnId,
    session: Box<ClosingSession>,
    due: Vec<u32>,
) {
    if session.kept.is_none() && session.token == 0 || due.is_empty() {
        return send_home(lanes, &clients.ctx, session);
    }
    let waiting = WaitingSession { session, due };
    let all = &mut clients.protocol_state.closing_sessions.waiting;
    // A connection ends once. If it ended twice, the first session would go home too.
    if let Some(before) = all.insert(from, waiting) {
        send_home(lanes, &clients.ctx, before.session);
    }
}

fn send_home(lanes: &mut Lanes, ctx: &Context, session: Box<ClosingSession>) {
    let home = home_of_session(ctx, session.id);
    lanes.ask(home, |_| Ask::SessionClose(session));
}

/// Asks all homes to confirm that they know which messages the session needs kept, and adds the answers to those that are due. Without that, the
/// home of the client id could end the session and release the messages before a home has heard that it needs them.
pub(super) fn fence_retention(clients: &Clients, lanes: &mut Lanes, slot: u32, due: &mut Vec<u32>) {
    let to = clients.conns.reply_to(slot, FENCE);
    for home in 0..clients.ctx.world.homes {
        lanes.ask(home, |_| Ask::Fence(to));
        due.push(FENCE);
    }
}

/// A home has carried out everything that it was asked before a fence. The fence belongs to a session that ends, or to a SUBSCRIBE.
pub(crate) fn mqtt_fenced<I: Io>(front: &mut Front, to: ReplyTo, io: &mut I) {
    let (clients, subs, _, queues) = front.parts();
    if to.part == FENCE {
        return late_answer(clients, &mut subs.lanes, to, None);
    }
    let is_record = to.part == RECORDED;
    if !is_record {
        count_answered_page(clients, queues, to.slot);
    }
    if clients.conns.get(to.slot).link.has(CLOSING) {
        return;
    }
    if is_record {
        return session_recorded(clients, queues, to.slot, io);
    }
    clients.granted_at_home(to.slot, to.part);
    clients.send_reply(to.slot, io);
}

/// An answer for a connection that has ended: to a publish, with its outcome, to a release or to a fence.
pub(crate) fn late_answer(
    clients: &mut Clients,
    lanes: &mut Lanes,
    to: ReplyTo,
    outcome: Option<Outcome>,
) {
    if outcome.is_none() && to.part != FENCE && to.part & RELEASED == 0 {
        // The fence of a SUBSCRIBE: nobody waits for it any more.
        return;
    }
    let refused = outcome.is_some_and(|outcome| reason_of(outcome).is_error());
    let from = ConnId {
        slot: to.slot,
        generation: to.generation,
    };
    let session = match clients
        .protocol_state
        .closing_sessions
        .answered(from, to.part)
    {
        Some(Ok(session)) => session,
        Some(Err(NotDue)) => {
            // Each request has one answer.
            clients.meter.stats.closed[Closed::Broken as usize] += 1;
            return;
        }
        None => return,
    };
    let (id, exactly_once) = answered(to.part);
    if refused
        && exactly_once
        && let Some(kept) = &mut session.kept
    {
        forget_received(&mut kept.state, id);
        session.patch = None;
    }
    if let Some(session) = clients.protocol_state.closing_sessions.take_answered(from) {
        send_home(lanes, &clients.ctx, session);
    }
}

/// A QoS 2 message of the client was refused, so its packet id is free again [MQTT-4.3.3-9].
fn forget_received(state: &mut EncodedSession, id: u16) {
    // This process has encoded it.
    if let Ok(mut session) = StoredSession::decode(state) {
        session.received.retain(|received| *received != id);
        session.keyless.retain(|received| *received != id);
        *state = session.encode();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::admission::Client;
    use crate::mail::session::SessionId;

    #[test]
    fn a_session_goes_home_with_its_last_answer() {
        let from = ConnId {
            slot: 3,
            generation: 1,
        };
        let waiting = WaitingSession {
            session: Box::new(ClosingSession {
                id: SessionId::none(2),
                owner: Client::NOBODY,
                kept: None,
                patch: None,
                will: None,
                is_recorded: false,
                token: 0,
                recorded_for: None,
                charge: Default::default(),
            }),
            due: alloc::vec![7, 0, 7],
        };
        let mut all = ClosingSessions::default();
        all.waiting.insert(from, waiting);
        for number in [7, 7] {
            assert!(all.answered(from, number).is_some_and(|it| it.is_ok()));
            assert!(all.take_answered(from).is_none());
        }
        let again = all.answered(from, 7).expect("it waits");
        assert_eq!(again.err(), Some(NotDue));
        assert!(all.answered(from, 0).is_some_and(|it| it.is_ok()));
        assert!(all.take_answered(from).is_some());
        assert!(all.answered(from, 0).is_none() && all.len() == 0);
    }
}
