//! Sessions whose connections have ended while they still wait for answers of homes.
//!
//! Invariants:
//! * A session that is kept goes back to its home only when each publish of the connection is in a log or was refused. So if the client's next connection
//!   repeats a publish, the answer is correct and the order is kept.
//! * It goes back only when all homes know which messages they must keep for it. Otherwise its end might not release all of them.

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
use crate::protocol::mqtt::publish::{RELEASE_ANSWER, packet_of_answer, reason_code_of};
use crate::protocol::mqtt::record::{RECORD_ANSWER, session_recorded};

/// The number of the answer to a fence (an ask that a home answers after all earlier ones). No answer to a publish has it, since no packet id is 0.
const FENCE: u32 = 0;

/// The sessions that wait for answers, by the connection that had them.
#[derive(Default)]
pub(crate) struct ClosingSessions {
    waiting: BTreeMap<ConnId, WaitingSession>,
}

struct WaitingSession {
    session: Box<ClosingSession>,
    /// The numbers of the answers that are due. [`FENCE`] is in it once for each fence.
    answers_due: Vec<u32>,
}

/// An answer that is not due.
#[derive(Debug, PartialEq, Eq)]
struct UnexpectedAnswer;

impl ClosingSessions {
    /// The number of sessions that wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Notes an answer for a connection that has ended, and returns the connection's session. `None` if no session of this connection waits.
    fn note_answer(
        &mut self,
        conn: ConnId,
        number: u32,
    ) -> Option<Result<&mut ClosingSession, UnexpectedAnswer>> {
        let waiting = self.waiting.get_mut(&conn)?;
        let Some(index) = waiting.answers_due.iter().position(|due| *due == number) else {
            return Some(Err(UnexpectedAnswer));
        };
        waiting.answers_due.swap_remove(index);
        Some(Ok(&mut waiting.session))
    }

    /// Takes the session of this connection, if no answer is due any more.
    fn take_answered(&mut self, conn: ConnId) -> Option<Box<ClosingSession>> {
        if !self.waiting.get(&conn)?.answers_due.is_empty() {
            return None;
        }
        self.waiting.remove(&conn).map(|waiting| waiting.session)
    }
}

/// Returns the session of the ended connection `conn` to its home. A session that is kept or has a token first waits for the answers that are due.
pub(super) fn return_session(
    clients: &mut Clients,
    lanes: &mut Lanes,
    conn: ConnId,
    session: Box<ClosingSession>,
    answers_due: Vec<u32>,
) {
    if session.kept.is_none() && session.token == 0 || answers_due.is_empty() {
        return send_to_home(lanes, &clients.ctx, session);
    }
    let waiting = WaitingSession {
        session,
        answers_due,
    };
    let waiting_sessions = &mut clients.protocol_state.closing_sessions.waiting;
    // A connection ends once, so there is no former session. If there were one, it would go home too.
    if let Some(former) = waiting_sessions.insert(conn, waiting) {
        send_to_home(lanes, &clients.ctx, former.session);
    }
}

fn send_to_home(lanes: &mut Lanes, ctx: &Context, session: Box<ClosingSession>) {
    let home = home_of_session(ctx, session.id);
    lanes.ask(home, |_| Ask::SessionClose(session));
}

/// Asks all homes to confirm that they know which messages they must keep for the session, and adds the answers to those that are due. Otherwise the home of
/// the client id could end the session, and tell another home to release the messages before that home was told to keep them.
pub(super) fn ask_retention_fences(
    clients: &Clients,
    lanes: &mut Lanes,
    slot: u32,
    answers_due: &mut Vec<u32>,
) {
    let to = clients.conns.reply_to(slot, FENCE);
    for home in 0..clients.ctx.world.homes {
        lanes.ask(home, |_| Ask::Fence(to));
        answers_due.push(FENCE);
    }
}

/// Handles the answer to a fence, or to a record of the session. A fence belongs to a session that ends, or to a SUBSCRIBE: the home has carried out everything
/// that it was asked before.
pub(crate) fn handle_mqtt_fence<I: Io>(front: &mut Front, to: ReplyTo, io: &mut I) {
    let (clients, subs, _, queues) = front.parts();
    if to.part == FENCE {
        return handle_late_answer(clients, &mut subs.lanes, to, None);
    }
    let is_record = to.part == RECORD_ANSWER;
    if !is_record {
        count_answered_page(clients, queues, to.slot);
    }
    if clients.conns.get(to.slot).link.has(CLOSING) {
        return;
    }
    if is_record {
        return session_recorded(clients, queues, to.slot, io);
    }
    clients.count_home_confirmation(to.slot, to.part);
    clients.send_reply(to.slot, io);
}

/// Handles an answer for a connection that has ended: to a publish (with its outcome), to a release or to a fence.
pub(crate) fn handle_late_answer(
    clients: &mut Clients,
    lanes: &mut Lanes,
    to: ReplyTo,
    outcome: Option<Outcome>,
) {
    if outcome.is_none() && to.part != FENCE && to.part & RELEASE_ANSWER == 0 {
        // The fence of a SUBSCRIBE, or a record: nobody waits for the answer any more.
        return;
    }
    let is_refused = outcome.is_some_and(|outcome| reason_code_of(outcome).is_error());
    let conn = ConnId {
        slot: to.slot,
        generation: to.generation,
    };
    let session = match clients
        .protocol_state
        .closing_sessions
        .note_answer(conn, to.part)
    {
        Some(Ok(session)) => session,
        Some(Err(UnexpectedAnswer)) => {
            // A bug: each request has one answer.
            clients.meter.stats.closed[Closed::Broken as usize] += 1;
            return;
        }
        None => return,
    };
    let (packet_id, is_exactly_once) = packet_of_answer(to.part);
    if is_refused
        && is_exactly_once
        && let Some(kept) = &mut session.kept
    {
        forget_received_id(&mut kept.state, packet_id);
        session.patch = None;
    }
    if let Some(session) = clients.protocol_state.closing_sessions.take_answered(conn) {
        send_to_home(lanes, &clients.ctx, session);
    }
}

/// Removes the packet id of a refused QoS 2 message from a stored session, because the id is free again [MQTT-4.3.3-9].
fn forget_received_id(state: &mut EncodedSession, packet_id: u16) {
    // Decoding succeeds, since this process has encoded the session.
    if let Ok(mut session) = StoredSession::decode(state) {
        session
            .received
            .retain(|unreleased| *unreleased != packet_id);
        session
            .keyless
            .retain(|unreleased| *unreleased != packet_id);
        *state = session.encode();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::admission::Client;
    use crate::mail::session::SessionId;

    #[test]
    fn session_is_given_back_to_its_home_with_its_last_answer() {
        let conn = ConnId {
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
            answers_due: alloc::vec![7, 0, 7],
        };
        let mut closing = ClosingSessions::default();
        closing.waiting.insert(conn, waiting);
        for number in [7, 7] {
            assert!(
                closing
                    .note_answer(conn, number)
                    .is_some_and(|it| it.is_ok())
            );
            assert!(closing.take_answered(conn).is_none());
        }
        let unexpected = closing.note_answer(conn, 7).expect("it waits");
        assert_eq!(unexpected.err(), Some(UnexpectedAnswer));
        assert!(closing.note_answer(conn, 0).is_some_and(|it| it.is_ok()));
        assert!(closing.take_answered(conn).is_some());
        assert!(closing.note_answer(conn, 0).is_none() && closing.len() == 0);
    }
}
