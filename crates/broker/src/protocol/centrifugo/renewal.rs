//! Renews what the operator's backend has granted: connections and subscriptions with an end. The server asks the backend some seconds before the end. The client
//! is told nothing.
//!
//! Invariant: without an answer, what was granted ends when the grant says. A failure of the backend extends nothing.

use alloc::vec::Vec;

use crore_wire::centrifugo::codes::{Disconnect, Unsubscribe};

use crate::base::access::VerifiedClient;
use crate::base::call_kind::CallKind;
use crate::client::list::{index_with_serial, name_of};
use crate::client::row::SUBSCRIPTION_LIST;
use crate::io::Io;
use crate::mail::backend::{BackendResult, CallSubject};
use crate::protocol::centrifugo::calls::ask;
use crate::protocol::centrifugo::close::{end_for_order, end_with_text};
use crate::protocol::centrifugo::options::CONNECTED;
use crate::protocol::centrifugo::state::{
    Renewal, SeparateGrant, backend_mut, renewal_of_connection, state, state_mut,
};
use crate::protocol::centrifugo::subscribe::end_subscription;
use crate::protocol::centrifugo::tokens::renewal_of;
use crate::protocol::front::{Clients, Front, Subscriptions};

/// The seconds between two questions if the backend fails.
const RETRY_S: u32 = 5;
/// The subscriptions of a connection that are asked about in one second.
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
    let is_due = |it: &Renewal| !it.is_pending && it.ask_unix_s <= unix_s;
    let of_connection = state.backend.as_ref().and_then(|it| it.renewal.as_ref());
    let connection_is_due = of_connection.is_some_and(is_due);
    let due = state.separate_grants.iter();
    let due = due.filter(|it| it.renewal.as_ref().is_some_and(is_due));
    let due: Vec<u32> = due.map(|it| it.sub_index).take(CALLS_PER_SECOND).collect();
    if connection_is_due {
        let is_asked = ask(front, slot, 0, &CallSubject::Refresh, io).is_ok();
        if let Some(renewal) = &mut backend_mut(&mut front.clients.conns, slot).renewal {
            renewal.note_asked(is_asked, unix_s);
        }
    }
    if due.is_empty() {
        return;
    }
    front.clients.move_to_list(slot);
    for sub_index in due {
        let name = name_of(&front.clients.conns, &front.subs, slot, sub_index);
        // Topics are UTF-8.
        let channel = core::str::from_utf8(&name).unwrap_or_default();
        let key = index_with_serial(&front.clients.conns, slot, sub_index);
        let is_asked = ask(front, slot, key, &CallSubject::SubRefresh { channel }, io).is_ok();
        let grants = &mut state_mut(&mut front.clients.conns, slot).separate_grants;
        let grant = grants.iter_mut().find(|it| it.sub_index == sub_index);
        if let Some(renewal) = grant.and_then(|it| it.renewal.as_mut()) {
            renewal.note_asked(is_asked, unix_s);
        }
    }
}

impl Renewal {
    fn note_asked(&mut self, is_asked: bool, unix_s: u32) {
        self.is_pending = is_asked;
        self.ask_unix_s = unix_s.saturating_add(RETRY_S);
    }
}

/// The backend has answered whether the connection goes on.
pub(super) fn connection_answered<I: Io>(
    clients: &mut Clients,
    slot: u32,
    result: &BackendResult,
    io: &mut I,
) {
    if renewal_of_connection(&clients.conns, slot).is_none() {
        return;
    }
    if let Some(renewal) = &mut backend_mut(&mut clients.conns, slot).renewal {
        renewal.is_pending = false;
    }
    match result {
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

/// The backend has answered whether the subscription with this key goes on.
pub(super) fn subscription_answered<I: Io>(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    (slot, sub_key): (u32, u32),
    result: &BackendResult,
    io: &mut I,
) {
    if !clients.conns.get(slot).has_option(SUBSCRIPTION_LIST) {
        clients.move_to_list(slot);
    }
    let grants = state(&clients.conns, slot).map_or(&[][..], |it| &it.separate_grants);
    let is_meant =
        |it: &SeparateGrant| index_with_serial(&clients.conns, slot, it.sub_index) == sub_key;
    // It may have ended meanwhile.
    let Some(index) = grants.iter().position(is_meant) else {
        return;
    };
    let sub_index = grants[index].sub_index;
    let renewal = match result {
        BackendResult::Extension(Some(until_unix_s)) if *until_unix_s > clients.ctx.wall_s() => {
            let renewal = renewal_of(clients, CallKind::SubRefresh, *until_unix_s);
            let grant = &mut state_mut(&mut clients.conns, slot).separate_grants[index];
            grant.until_unix_s = *until_unix_s;
            renewal
        }
        BackendResult::Extension(_) => {
            end_subscription(clients, subs, (slot, sub_index), Unsubscribe::EXPIRED);
            return clients.send_reply(slot, io);
        }
        BackendResult::Disconnect { code, reason } => {
            return end_for_order(clients, slot, *code, reason, io);
        }
        // It is asked again later.
        _ => grants[index].renewal.map(|renewal| Renewal {
            is_pending: false,
            ..renewal
        }),
    };
    state_mut(&mut clients.conns, slot).separate_grants[index].renewal = renewal;
}
