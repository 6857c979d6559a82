//! Renews what the operator's backend has granted: connections and subscriptions with an end. The server asks the backend before the end, at times that are spread
//! (`tokens.rs`), and each second about as many subscriptions as it must so that all are asked about in time. The client is told nothing.
//!
//! Invariant: without an answer, what was granted ends when the grant says. A failure of the backend extends nothing.

use alloc::vec::Vec;

use crore_wire::centrifugo::codes::Disconnect;

use crate::base::access::VerifiedClient;
use crate::base::call_kind::CallKind;
use crate::client::list::name_of;
use crate::io::Io;
use crate::mail::backend::{BackendAnswer, BackendResult, CallSubject};
use crate::protocol::centrifugo::calls::{ask, next_call_number};
use crate::protocol::centrifugo::close::{end_for_order, end_with_text};
use crate::protocol::centrifugo::options::CONNECTED;
use crate::protocol::centrifugo::state::{
    Renewal, backend_mut, renewal_of_connection, state, state_mut,
};
use crate::protocol::centrifugo::subscribe::end_expired_subscription;
use crate::protocol::centrifugo::tokens::renewal_of;
use crate::protocol::front::{Clients, Front, Subscriptions};

/// The seconds between two questions if the backend fails.
const RETRY_S: u32 = 5;
/// The subscriptions of a connection that are asked about in one second, if that is enough for all to be renewed before their ends.
const CALLS_PER_SECOND: usize = 16;

/// Called once a second: asks the backend about what ends soon.
pub(super) fn ask_for_renewals<I: Io>(front: &mut Front, slot: u32, io: &mut I) {
    let clients = &front.clients;
    let Some(state) = state(&clients.conns, slot) else {
        return;
    };
    if !clients.conns.get(slot).has_option(CONNECTED) {
        return;
    }
    let unix_s = clients.ctx.wall_s();
    let is_due = |it: &Renewal| it.pending.is_none() && it.ask_unix_s <= unix_s;
    let of_connection = state.backend.as_ref().and_then(|it| it.renewal.as_ref());
    let connection_is_due = of_connection.is_some_and(is_due);
    let due = state.separate_grants.iter().enumerate();
    let due = due.filter(|(_, it)| it.renewal.as_ref().is_some_and(is_due));
    let mut due: Vec<(u32, usize)> = due.map(|(index, it)| (it.until_unix_s, index)).collect();
    if connection_is_due {
        let number = next_call_number(&mut front.clients);
        // Without room for the question, it is asked in the next second.
        if ask(front, slot, number, &CallSubject::Refresh, io).is_ok()
            && let Some(renewal) = &mut backend_mut(&mut front.clients.conns, slot).renewal
        {
            renewal.note_asked(number, unix_s);
        }
    }
    if due.is_empty() {
        return;
    }
    front.clients.meter.work.steps.add(due.len());
    due.sort_unstable();
    due.truncate(calls_in_this_second(&due, unix_s));
    front.clients.move_to_list(slot);
    for (_, index) in due {
        let grants = &state_mut(&mut front.clients.conns, slot).separate_grants;
        let sub_index = grants[index].sub_index;
        let name = name_of(&front.clients.conns, &front.subs, slot, sub_index);
        // Topics are UTF-8.
        let channel = core::str::from_utf8(&name).unwrap_or_default();
        let number = next_call_number(&mut front.clients);
        if ask(
            front,
            slot,
            number,
            &CallSubject::SubRefresh { channel },
            io,
        )
        .is_err()
        {
            // There is no room for more questions.
            return;
        }
        let grants = &mut state_mut(&mut front.clients.conns, slot).separate_grants;
        if let Some(renewal) = &mut grants[index].renewal {
            renewal.note_asked(number, unix_s);
        }
    }
}

/// How many of these subscriptions, sorted by their ends, are asked about in this second, so that each is asked about in the first half of the time until its end.
fn calls_in_this_second(due: &[(u32, usize)], unix_s: u32) -> usize {
    let needed = due.iter().enumerate().map(|(earlier, (until_unix_s, _))| {
        let seconds = until_unix_s.saturating_sub(unix_s) / 2;
        (earlier + 1).div_ceil(seconds.max(1) as usize)
    });
    needed.max().unwrap_or(0).max(CALLS_PER_SECOND)
}

impl Renewal {
    fn answered(self) -> Renewal {
        Renewal {
            pending: None,
            ..self
        }
    }

    fn note_asked(&mut self, number: u32, unix_s: u32) {
        self.pending = Some(number);
        self.ask_unix_s = unix_s.saturating_add(RETRY_S);
    }
}

/// The backend has answered whether the connection goes on.
pub(super) fn connection_answered<I: Io>(
    clients: &mut Clients,
    slot: u32,
    answer: &BackendAnswer,
    io: &mut I,
) {
    let renewal = renewal_of_connection(&clients.conns, slot);
    // Meanwhile a token or the API may have extended the connection.
    let Some(renewal) = renewal.filter(|it| it.pending == Some(answer.number)) else {
        return;
    };
    backend_mut(&mut clients.conns, slot).renewal = Some(renewal.answered());
    match &answer.result {
        BackendResult::Extension(Some(until_unix_s)) if *until_unix_s > clients.ctx.wall_s() => {
            let Some((grants, _)) = clients.conns.grants.get(slot) else {
                return;
            };
            let known = VerifiedClient {
                grants: grants.clone(),
                until_unix_s: *until_unix_s,
            };
            clients.conns.grants.set(slot, known);
            let renewal = renewal_of(clients, CallKind::Refresh, *until_unix_s);
            backend_mut(&mut clients.conns, slot).renewal = renewal;
        }
        BackendResult::Extension(_) => {
            let code = Disconnect::EXPIRED;
            end_with_text(clients, slot, code, code.text, io);
        }
        BackendResult::Disconnect { code, reason } => {
            end_for_order(clients, slot, *code, reason, io)
        }
        // It is asked again later.
        _ => {}
    }
}

/// The backend has answered whether a subscription goes on.
pub(super) fn subscription_answered<I: Io>(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    answer: &BackendAnswer,
    io: &mut I,
) {
    let grants = state(&clients.conns, slot).map_or(&[][..], |it| &it.separate_grants);
    let is_meant = |it: &Renewal| it.pending == Some(answer.number);
    let mut found = grants.iter().enumerate().filter_map(|(index, grant)| {
        let renewal = grant.renewal.filter(is_meant)?;
        Some((index, grant.sub_index, renewal))
    });
    // It may have ended meanwhile, or a token may have extended it.
    let Some((index, sub_index, renewal)) = found.next() else {
        return;
    };
    let renewal = match &answer.result {
        BackendResult::Extension(Some(until_unix_s)) if *until_unix_s > clients.ctx.wall_s() => {
            let renewal = renewal_of(clients, CallKind::SubRefresh, *until_unix_s);
            let grant = &mut state_mut(&mut clients.conns, slot).separate_grants[index];
            grant.until_unix_s = *until_unix_s;
            renewal
        }
        BackendResult::Extension(_) => {
            if !end_expired_subscription(clients, subs, (slot, sub_index), io) {
                clients.send_reply(slot, io);
            }
            return;
        }
        BackendResult::Disconnect { code, reason } => {
            return end_for_order(clients, slot, *code, reason, io);
        }
        // It is asked again later.
        _ => Some(renewal.answered()),
    };
    state_mut(&mut clients.conns, slot).separate_grants[index].renewal = renewal;
}
