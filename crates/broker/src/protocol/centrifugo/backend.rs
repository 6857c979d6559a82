//! Commands that the operator's backend decides (`[[backend]]`): connect, subscribe and publish. Before such a command is carried out, the backend is asked. The
//! command and those behind it wait for the answer, so that they take effect in their order. Calls of methods (`rpc`) wait for nothing.
//!
//! Invariant: without an answer that grants it, no such command is carried out.

use crore_wire::centrifugo::codes::ErrorCode;
use crore_wire::centrifugo::{Command, Request};

use crate::base::call_kind::CallKind;
use crate::base::ids::ConnId;
use crate::client::credit::stop_reading;
use crate::client::list::index_of_topic;
use crate::client::publishing::check_message;
use crate::client::rights::grants_of;
use crate::client::row::State;
use crate::io::Io;
use crate::mail::backend::{BackendAnswer, BackendResult, BorrowedSubject, CallSubject};
use crate::protocol::centrifugo::calls::{ask, next_call_number};
use crate::protocol::centrifugo::options::CONNECTED;
use crate::protocol::centrifugo::renewal::{connection_answered, subscription_answered};
use crate::protocol::centrifugo::reply::CommandRefusal;
use crate::protocol::centrifugo::rpc::answer_rpc;
use crate::protocol::centrifugo::state::{BackendCheck, backend_mut, state, take_backend_check};
use crate::protocol::front::{Clients, Front, Subscriptions};

/// What the backend must be asked before this command is carried out; `None` if it needs not. A command that is not valid is refused without the backend.
fn subject_of<'a>(
    clients: &mut Clients,
    subs: &Subscriptions,
    slot: u32,
    request: &Request<'a>,
) -> Option<BorrowedSubject<'a>> {
    let settings = &clients.ctx.world.settings;
    let (calls, is_closed) = (settings.backend_calls, settings.access.closed);
    let is_connected = clients.conns.get(slot).has_option(CONNECTED);
    match request {
        Request::Connect(connect) => {
            // The backend is not asked about a client that its credential identifies. Without access control, tokens are not read.
            let is_known = is_closed
                && (!connect.token.is_empty() || grants_of(&clients.conns, slot).is_some());
            let is_asked = calls.has(CallKind::Connect) && !is_connected && !is_known;
            is_asked.then_some(CallSubject::Connect {
                data: connect.data,
                name: connect.name,
                version: connect.version,
            })
        }
        Request::Subscribe(subscribe) => {
            let (channel, data) = (subscribe.channel, subscribe.data);
            let is_asked = calls.has(CallKind::Subscribe)
                && is_connected
                && (!is_closed || subscribe.token.is_empty())
                && subscribe.kind == 0
                && !subscribe.filter
                && check_message(&settings.limits, channel.as_bytes(), 0, || true).is_ok();
            if !is_asked {
                return None;
            }
            clients.move_to_list(slot);
            let is_new = index_of_topic(clients, subs, slot, channel.as_bytes()).is_none();
            is_new.then_some(CallSubject::Subscribe { channel, data })
        }
        Request::Publish(publish) => {
            let (channel, data) = (publish.channel, publish.data);
            let (limits, name) = (&settings.limits, channel.as_bytes());
            let is_asked = calls.has(CallKind::Publish)
                && is_connected
                && publish.kind == 0
                && !data.is_empty()
                && check_message(limits, name, data.len(), || false).is_ok();
            is_asked.then_some(CallSubject::Publish { channel, data })
        }
        _ => None,
    }
}

/// Whether a command must wait for the backend. Asks the backend if the command has not been asked about.
pub(super) fn waits_for_backend<I: Io>(
    front: &mut Front,
    slot: u32,
    command: &Command<'_>,
    io: &mut I,
) -> Result<bool, CommandRefusal> {
    if front.clients.ctx.world.settings.backend_calls.is_empty() {
        return Ok(false);
    }
    if let Some(check) = check_of(&front.clients, slot) {
        let is_pending = matches!(check, BackendCheck::Pending(_));
        if is_pending {
            stop_reading(&mut front.clients.conns, slot, io);
        }
        return Ok(is_pending);
    }
    let (clients, subs) = (&mut front.clients, &front.subs);
    let Some(subject) = subject_of(clients, subs, slot, &command.request) else {
        return Ok(false);
    };
    if matches!(subject, CallSubject::Publish { .. })
        && let Err(reason) = clients.check_publish_rate(slot)
    {
        return Err(CommandRefusal::for_reason(clients, slot, reason));
    }
    let number = next_call_number(&mut front.clients);
    ask(front, slot, number, &subject, io)?;
    backend_mut(&mut front.clients.conns, slot).check = Some(BackendCheck::Pending(number));
    // The answer resumes it.
    stop_reading(&mut front.clients.conns, slot, io);
    Ok(true)
}

fn check_of(clients: &Clients, slot: u32) -> Option<&BackendCheck> {
    let backend = state(&clients.conns, slot)?.backend.as_ref()?;
    backend.check.as_ref()
}

/// Whether a command of the connection waits for the backend.
pub(super) fn awaits_backend(clients: &Clients, slot: u32) -> bool {
    matches!(check_of(clients, slot), Some(BackendCheck::Pending(_)))
}

/// Whether the backend decides a command of the connection that is not carried out yet.
pub(super) fn has_backend_check(clients: &Clients, slot: u32) -> bool {
    check_of(clients, slot).is_some()
}

/// Takes the backend's grant of the command that is carried out now, which `of` takes from the result. `None` if the backend need not be asked.
pub(super) fn take_grant<G>(
    clients: &mut Clients,
    subs: &Subscriptions,
    slot: u32,
    request: &Request<'_>,
    grant_of: impl FnOnce(BackendResult) -> Option<G>,
) -> Result<Option<G>, CommandRefusal> {
    if clients.ctx.world.settings.backend_calls.is_empty() {
        return Ok(None);
    }
    match take_backend_check(&mut clients.conns, slot) {
        Some(BackendCheck::Answered(BackendResult::Error(error))) => {
            Err(CommandRefusal::Backend(error))
        }
        Some(BackendCheck::Answered(BackendResult::Disconnect { code, reason })) => {
            Err(CommandRefusal::Disconnect(code, reason))
        }
        Some(BackendCheck::Answered(grant)) => {
            // A grant of another kind would be a fault of the server.
            let grant = grant_of(grant).ok_or(CommandRefusal::error(ErrorCode::INTERNAL))?;
            Ok(Some(grant))
        }
        Some(BackendCheck::Pending(_)) => Err(CommandRefusal::error(ErrorCode::INTERNAL)),
        None => match subject_of(clients, subs, slot, request) {
            // It was not asked about, which would be a fault of the server.
            Some(_) => Err(CommandRefusal::error(ErrorCode::INTERNAL)),
            None => Ok(None),
        },
    }
}

/// The backend has answered a call.
pub(crate) fn backend_answered<I: Io>(
    front: &mut Front,
    conn: ConnId,
    answer: BackendAnswer,
    io: &mut I,
) {
    let Front {
        clients,
        subs,
        queues,
        ..
    } = front;
    let slot = conn.slot;
    if !clients.conns.is_current(conn)
        || clients.conns.get(slot).consumer.state != State::Centrifugo
    {
        return;
    }
    match answer.kind {
        CallKind::Rpc => answer_rpc(clients, queues, conn, &answer, io),
        CallKind::Refresh => connection_answered(clients, slot, &answer, io),
        CallKind::SubRefresh => subscription_answered(clients, subs, slot, &answer, io),
        CallKind::Connect | CallKind::Subscribe | CallKind::Publish => {
            let is_open = matches!(
                check_of(clients, slot),
                Some(BackendCheck::Pending(number)) if *number == answer.number
            );
            if is_open {
                let check = BackendCheck::Answered(answer.result);
                backend_mut(&mut clients.conns, slot).check = Some(check);
                queues.resume_later(clients, conn);
            }
        }
    }
}
