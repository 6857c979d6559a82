//! Carries out the commands subscribe, unsubscribe and sub_refresh, and ends subscriptions.

use alloc::boxed::Box;

use crore_wire::centrifugo::codes::{Disconnect, ErrorCode, Unsubscribe};
use crore_wire::centrifugo::{Answer, Push, SubRefresh, Subscribe};
use crore_wire::topic;

use crate::base::access::Right;
use crate::base::call_kind::CallKind;
use crate::base::journal::EventKind;
use crate::base::position::{Position, Since};
use crate::base::reason::Reason;
use crate::base::verdict::Identity;
use crate::client::list::{
    check_room, index_of_topic, index_with_serial, name_of, remove_subscription,
};
use crate::client::row::State;
use crate::client::subscribing::{
    FirstPage, SubscribeRequest, SubscribeTarget, SubscriptionKind, subscribe,
};
use crate::io::Io;
use crate::mail::backend::SubscribeGrant;
use crate::protocol::centrifugo::close::end_with_text;
use crate::protocol::centrifugo::delta::{begin_deltas, end_deltas};
use crate::protocol::centrifugo::join_leave::{begin_granted_pushes, begin_pushes, end_pushes};
use crate::protocol::centrifugo::names::channel_names;
use crate::protocol::centrifugo::reply::{CommandRefusal, write_error, write_push, write_reply};
use crate::protocol::centrifugo::state::{
    PendingSubscribe, SeparateGrant, StartedBy, is_subscribing, state, state_mut,
};
use crate::protocol::centrifugo::tokens::{check_subscription_token, renewal_of, ttl_of};
use crate::protocol::centrifugo::user_channels::{
    check_room_of_user, count_channel, uncount_channel,
};
use crate::protocol::front::{Census, Clients, Queues, SubscriptionState, Subscriptions};

/// The number of digits of an epoch, which are hexadecimal.
const EPOCH_DIGITS: usize = 8;

/// Begins a subscription. The client is answered when the home's first page has come. `granted` is the grant of the backend, if it was asked.
pub(super) fn handle_subscribe_command(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    census: &Census,
    slot: u32,
    (id, command): (u32, &Subscribe<'_>),
    (verdict, granted): (Option<Identity>, Option<SubscribeGrant>),
) -> Result<(), CommandRefusal> {
    if command.channel.is_empty() {
        return Err(CommandRefusal::bad_request("a subscribe without a channel"));
    }
    if command.kind != 0 || command.filter {
        return Err(CommandRefusal::error(ErrorCode::NOT_AVAILABLE));
    }
    check_name(clients, slot, command.channel)?;
    let name = command.channel.as_bytes();
    clients.move_to_list(slot);
    if index_of_topic(clients, subs, slot, name).is_some() {
        return Err(CommandRefusal::error(ErrorCode::ALREADY_SUBSCRIBED));
    }
    let token_grant = match verdict {
        Some(identity) => {
            let (token, channel) = (command.token, command.channel);
            Some(check_subscription_token(
                clients, slot, identity, token, channel,
            )?)
        }
        None => None,
    };
    if token_grant.is_none()
        && granted.is_none()
        && let Err(denied) = clients.check_right(slot, Right::Subscribe, name)
    {
        clients.report_denied(slot, denied, name);
        return Err(CommandRefusal::for_reason(clients, slot, denied));
    }
    let now_unix_s = clients.ctx.wall_s();
    if granted
        .as_ref()
        .is_some_and(|grant| grant.until_unix_s <= now_unix_s)
    {
        return Err(CommandRefusal::error(ErrorCode::EXPIRED));
    }
    let room = check_room(clients, subs, slot, name);
    if let Err(reached) = room.and_then(|()| check_room_of_user(clients, slot, 1)) {
        return Err(CommandRefusal::for_reason(clients, slot, reached));
    }
    if !clients.has_memory_for(census, slot, 0) {
        return Err(CommandRefusal::for_reason(
            clients,
            slot,
            Reason::MemoryFull,
        ));
    }
    let since = match command.recover {
        true => position(clients, command.epoch, command.offset).map_or(Since::Unknown, Since::At),
        false => Since::Default,
    };
    let request = SubscribeRequest {
        target: SubscribeTarget::Topic(name),
        since: &[since],
        first_page: FirstPage::ALL,
        kind: SubscriptionKind::New,
    };
    let subscribed = subscribe(clients, subs, slot, &request, SubscriptionState::default());
    let sub_index =
        subscribed.map_err(|reason| CommandRefusal::for_reason(clients, slot, reason))?;
    count_channel(clients, slot);
    if command.delta == "fossil" && clients.ctx.world.settings.centrifugo.delta_bytes > 0 {
        begin_deltas(&mut clients.conns, slot, sub_index);
    }
    let grants_pushes = token_grant.as_ref().is_some_and(|token| token.join_leave);
    let (data, separate) = match (token_grant, granted) {
        (Some(token), _) => (
            token.data,
            Some((token.until_unix_s, Some(token.grants), None)),
        ),
        (None, Some(grant)) => {
            let until_unix_s = grant.until_unix_s;
            let renewal = renewal_of(clients, CallKind::SubRefresh, until_unix_s);
            (grant.data, Some((until_unix_s, None, renewal)))
        }
        (None, None) => (Box::default(), None),
    };
    let ttl = separate.and_then(|(until_unix_s, token, renewal)| {
        let grant = SeparateGrant {
            sub_index,
            until_unix_s,
            token,
            renewal,
            started_by: StartedBy::Client,
        };
        state_mut(&mut clients.conns, slot)
            .separate_grants
            .push(grant);
        match renewal {
            // The client is not asked to renew it.
            Some(_) => None,
            None => ttl_of(clients, until_unix_s),
        }
    });
    let sub_key = index_with_serial(&clients.conns, slot, sub_index);
    let pending = PendingSubscribe {
        sub_key,
        id,
        wants_recovery: command.recover,
        rejects_loss: command.recover && command.reject_unrecovered,
        is_lost: false,
        ttl,
        data,
    };
    state_mut(&mut clients.conns, slot)
        .pending_subscribes
        .push(pending);
    match grants_pushes {
        true => begin_granted_pushes(clients, &mut subs.lanes, slot, (sub_key, name)),
        false if command.join_leave => {
            begin_pushes(clients, &mut subs.lanes, slot, (sub_key, name));
        }
        false => {}
    }
    clients.record_event(slot, EventKind::Subscribed, name);
    Ok(())
}

/// Whether an unsubscribe from this channel must wait for the answer to the subscribe before it. A client may send both in one frame. If the subscribe got an
/// error only because of the unsubscribe, libraries would take it for the answer to a later subscribe.
pub(super) fn awaits_subscribe(
    clients: &mut Clients,
    subs: &Subscriptions,
    slot: u32,
    channel: &str,
) -> bool {
    if state(&clients.conns, slot).is_none_or(|it| it.pending_subscribes.is_empty()) {
        return false;
    }
    clients.move_to_list(slot);
    let sub_index = index_of_topic(clients, subs, slot, channel.as_bytes());
    sub_index.is_some_and(|sub_index| is_subscribing(clients, slot, sub_index))
}

/// Called when a home has answered. Continues with held commands, since an unsubscribe may have waited for the answer.
pub(crate) fn resume_after_page(clients: &Clients, queues: &mut Queues, slot: u32) {
    let conns = &clients.conns;
    if conns.get(slot).consumer.state == State::Centrifugo
        && state(conns, slot).is_some_and(|it| !it.held_commands.is_empty())
    {
        queues.resume_later(clients, conns.id_of(slot));
    }
}

/// Carries out an unsubscribe. It succeeds whether or not there is a subscription.
pub(super) fn handle_unsubscribe_command(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    id: u32,
    channel: &str,
) -> Result<(), CommandRefusal> {
    if channel.is_empty() {
        return Err(CommandRefusal::bad_request(
            "an unsubscribe without a channel",
        ));
    }
    clients.move_to_list(slot);
    if let Some(sub_index) = index_of_topic(clients, subs, slot, channel.as_bytes()) {
        drop_subscription(clients, subs, slot, sub_index);
    }
    write_reply(clients, slot, id, Answer::Unsubscribe);
    Ok(())
}

/// Ends a subscription without telling the client.
pub(super) fn drop_subscription(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    sub_index: u32,
) {
    if state(&clients.conns, slot).is_some_and(|it| !it.separate_grants.is_empty()) {
        let grant = &mut state_mut(&mut clients.conns, slot).separate_grants;
        grant.retain(|grant| grant.sub_index != sub_index);
    }
    uncount_channel(clients, slot);
    end_deltas(&mut clients.conns, slot, sub_index);
    end_pushes(clients, &mut subs.lanes, slot, sub_index);
    remove_subscription(clients, subs, slot, sub_index);
}

/// Renews a subscription that a token has granted.
pub(super) fn handle_sub_refresh(
    clients: &mut Clients,
    subs: &Subscriptions,
    slot: u32,
    (id, refresh): (u32, &SubRefresh<'_>),
    verdict: Option<Identity>,
) -> Result<(), CommandRefusal> {
    let (channel, token) = (refresh.channel, refresh.token);
    if channel.is_empty() || token.is_empty() {
        return Err(CommandRefusal::bad_request(
            "a sub_refresh without a channel or a token",
        ));
    }
    let Some(identity) = verdict.filter(|_| refresh.kind == 0) else {
        return Err(CommandRefusal::error(ErrorCode::NOT_AVAILABLE));
    };
    let granted = check_subscription_token(clients, slot, identity, token, channel)?;
    let until_unix_s = granted.until_unix_s;
    clients.move_to_list(slot);
    let sub_index = index_of_topic(clients, subs, slot, channel.as_bytes());
    let state = state_mut(&mut clients.conns, slot);
    let grant = state
        .separate_grants
        .iter_mut()
        .find(|grant| Some(grant.sub_index) == sub_index);
    let Some(grant) = grant else {
        return Err(CommandRefusal::error(ErrorCode::PERMISSION_DENIED));
    };
    (grant.until_unix_s, grant.token) = (until_unix_s, Some(granted.grants));
    grant.renewal = None;
    let ttl = ttl_of(clients, until_unix_s);
    write_reply(clients, slot, id, Answer::SubRefresh(ttl));
    Ok(())
}

/// Removes and returns the unanswered subscribe command of the subscription with this index, if there is one. The caller must answer it.
pub(super) fn take_subscribing(
    clients: &mut Clients,
    slot: u32,
    sub_index: u32,
) -> Option<PendingSubscribe> {
    let key = index_with_serial(&clients.conns, slot, sub_index);
    let commands = &state(&clients.conns, slot)?.pending_subscribes;
    let index = commands.iter().position(|pending| pending.sub_key == key)?;
    let commands = &mut state_mut(&mut clients.conns, slot).pending_subscribes;
    let pending = commands.swap_remove(index);
    if commands.is_empty() {
        // Many clients subscribe to everything at once, and then never again.
        commands.shrink_to_fit();
    }
    Some(pending)
}

/// Notes that messages after the position of an unanswered subscribe are lost, for its reply. False if there is no such subscribe.
pub(super) fn note_lost(clients: &mut Clients, slot: u32, sub_index: u32) -> bool {
    let key = index_with_serial(&clients.conns, slot, sub_index);
    let commands = &mut state_mut(&mut clients.conns, slot).pending_subscribes;
    let pending = commands.iter_mut().find(|pending| pending.sub_key == key);
    pending.map(|pending| pending.is_lost = true).is_some()
}

/// Refuses an unanswered subscribe whose client wants an error since messages after its position are lost. False if there is no such subscribe.
pub(super) fn reject_loss<I: Io>(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    (slot, sub_index): (u32, u32),
    io: &mut I,
) -> bool {
    let key = index_with_serial(&clients.conns, slot, sub_index);
    let rejects = state(&clients.conns, slot).is_some_and(|it| {
        let mut all = it.pending_subscribes.iter();
        all.any(|pending| pending.sub_key == key && pending.rejects_loss)
    });
    if !rejects {
        return false;
    }
    if let Some(pending) = take_subscribing(clients, slot, sub_index) {
        drop_subscription(clients, subs, slot, sub_index);
        let code = ErrorCode::UNRECOVERABLE_POSITION;
        write_error(clients, slot, pending.id, code, code.text);
        clients.send_reply(slot, io);
    }
    true
}

/// Checks the name of a channel.
pub(super) fn check_name(
    clients: &mut Clients,
    slot: u32,
    channel: &str,
) -> Result<(), CommandRefusal> {
    let topic_bytes = clients.ctx.world.settings.limits.topic_bytes;
    topic::check_name(channel.as_bytes(), topic_bytes).map_err(|error| {
        clients.refused(slot, Reason::BadName);
        CommandRefusal::Error(
            ErrorCode::BAD_REQUEST,
            alloc::format!("the channel {error}").into(),
        )
    })
}

/// Parses a position of a client. `None` if the epoch does not have the form of this server's epochs. An empty epoch stands for the present one.
pub(super) fn position(clients: &Clients, epoch: &str, offset: u64) -> Option<Position> {
    if epoch.is_empty() {
        return Some(Position::new(clients.ctx.world.epoch, offset));
    }
    let has_epoch_length = epoch.len() == EPOCH_DIGITS;
    let epoch = u32::from_str_radix(epoch, 16)
        .ok()
        .filter(|_| has_epoch_length)?;
    Some(Position::new(epoch, offset))
}

/// Ends a subscription, and tells the client by a push. If its subscribe command is not answered, it is refused.
pub(super) fn end_subscription(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    (slot, sub_index): (u32, u32),
    code: Unsubscribe,
) {
    if let Some(pending) = take_subscribing(clients, slot, sub_index) {
        let (id, code_of_refusal) = (pending.id, ErrorCode::PERMISSION_DENIED);
        write_error(clients, slot, id, code_of_refusal, code.text);
    }
    let name = name_of(&clients.conns, subs, slot, sub_index);
    // Topics are UTF-8.
    let name = core::str::from_utf8(&name).unwrap_or_default();
    let push = Push::Unsubscribe {
        channel: &channel_names(&clients.ctx.world).exchange(name),
        code: code.code,
        reason: code.text,
    };
    write_push(clients, slot, &push);
    drop_subscription(clients, subs, slot, sub_index);
}

/// Whether the server has begun this subscription: by a token, the backend or the API.
pub(super) fn is_by_server(clients: &Clients, slot: u32, sub_index: u32) -> bool {
    let grants = state(&clients.conns, slot).map_or(&[][..], |it| &it.separate_grants);
    grants
        .iter()
        .any(|it| it.sub_index == sub_index && it.started_by != StartedBy::Client)
}

/// Ends a subscription with this code. Libraries cannot begin a subscription that the server has begun. So in that case the connection ends with the other code,
/// and the client connects again. Returns whether the connection has ended. If not, the caller sends the push.
pub(super) fn end_subscription_or_connection<I: Io>(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    (slot, sub_index): (u32, u32),
    (unsubscribe, disconnect): (Unsubscribe, Disconnect),
    io: &mut I,
) -> bool {
    let by_server = is_by_server(clients, slot, sub_index);
    if by_server {
        drop_subscription(clients, subs, slot, sub_index);
        end_with_text(clients, slot, disconnect, disconnect.text, io);
    } else {
        end_subscription(clients, subs, (slot, sub_index), unsubscribe);
    }
    by_server
}

/// Ends a subscription that has lost messages, so that the client subscribes or connects again, and recovers.
pub(super) fn end_for_lost_messages<I: Io>(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    (slot, sub_index): (u32, u32),
    io: &mut I,
) {
    let codes = (
        Unsubscribe::INSUFFICIENT_STATE,
        Disconnect::INSUFFICIENT_STATE,
    );
    if !end_subscription_or_connection(clients, subs, (slot, sub_index), codes, io) {
        clients.send_reply(slot, io);
    }
}

/// Ends a subscription that has expired, like `end_subscription_or_connection`.
pub(super) fn end_expired_subscription<I: Io>(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    (slot, sub_index): (u32, u32),
    io: &mut I,
) -> bool {
    let codes = (Unsubscribe::EXPIRED, Disconnect::SUB_EXPIRED);
    end_subscription_or_connection(clients, subs, (slot, sub_index), codes, io)
}
