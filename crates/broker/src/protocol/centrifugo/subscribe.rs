//! The commands subscribe and unsubscribe.

use crore_wire::centrifugo::codes::{Disconnect, ErrorCode, Unsubscribe};
use crore_wire::centrifugo::{Answer, Push, SubRefresh, Subscribe};
use crore_wire::topic;

use crate::base::access::{Known, Right};
use crate::base::journal::EventKind;
use crate::base::position::{Position, Since};
use crate::base::reason::Reason;
use crate::base::verdict::Identity;
use crate::client::list::{has_room, leave, name_of, part_name, part_of_topic};
use crate::client::row::State;
use crate::client::subscribing::{First, Kind, Names, Wanted, subscribe};
use crate::io::Io;
use crate::protocol::centrifugo::close::end_saying;
use crate::protocol::centrifugo::delta::{begin_deltas, end_deltas};
use crate::protocol::centrifugo::join_leave::{begin_pushes, end_pushes};
use crate::protocol::centrifugo::reply::{Refused, write_error, write_push, write_reply};
use crate::protocol::centrifugo::state::{
    ByServer, Granted, Subscribing, is_subscribing, state, state_mut,
};
use crate::protocol::centrifugo::tokens::{check_subscription_token, ttl_of};
use crate::protocol::front::{Census, Clients, Queues, SubscriptionState, Subscriptions};

/// Digits of an epoch, which are hexadecimal.
const EPOCH_DIGITS: usize = 8;

/// Carries out a subscribe. The home's first page is the answer.
pub(super) fn client_subscribes(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    census: &Census,
    slot: u32,
    (id, wanted): (u32, &Subscribe<'_>),
    verdict: Option<Identity>,
) -> Result<(), Refused> {
    if wanted.channel.is_empty() {
        return Err(Refused::bad("a subscribe without a channel"));
    }
    if wanted.kind != 0 || wanted.filter {
        return Err(Refused::error(ErrorCode::NOT_AVAILABLE));
    }
    check_name(clients, slot, wanted.channel)?;
    let name = wanted.channel.as_bytes();
    clients.expand(slot);
    if part_of_topic(clients, subs, slot, name).is_some() {
        return Err(Refused::error(ErrorCode::ALREADY_SUBSCRIBED));
    }
    let granted = match verdict {
        Some(who) => {
            let (token, channel) = (wanted.token, wanted.channel);
            Some(check_subscription_token(
                clients, slot, who, token, channel,
            )?)
        }
        None => None,
    };
    if granted.is_none()
        && let Err(denied) = clients.check_right(slot, Right::Subscribe, name)
    {
        clients.note_denied(slot, denied, name);
        return Err(Refused::for_reason(clients, slot, denied));
    }
    if let Err(reached) = has_room(clients, subs, slot, name) {
        return Err(Refused::for_reason(clients, slot, reached));
    }
    if !clients.has_memory_for(census, slot, 0) {
        return Err(Refused::for_reason(clients, slot, Reason::MemoryFull));
    }
    let since = match wanted.recover {
        true => position(clients, wanted.epoch, wanted.offset).map_or(Since::Unknown, Since::At),
        false => Since::Default,
    };
    let begins = Wanted {
        names: Names::Topic(name),
        since: &[since],
        first: First::ALL,
        kind: Kind::New,
    };
    let begun = subscribe(clients, subs, slot, &begins, SubscriptionState::default());
    let part = begun.map_err(|reason| Refused::for_reason(clients, slot, reason))?;
    if wanted.delta == "fossil" && clients.ctx.world.settings.centrifugo.delta_bytes > 0 {
        begin_deltas(&mut clients.conns, slot, part);
    }
    let ttl = granted.and_then(|known| {
        let Known {
            grants: token,
            until_unix_s,
        } = known;
        let granted = Granted {
            part,
            until_unix_s,
            token: Some(token),
            by_server: ByServer::No,
        };
        state_mut(&mut clients.conns, slot).granted.push(granted);
        ttl_of(clients, until_unix_s)
    });
    let part = part_name(&clients.conns, slot, part);
    let waits = Subscribing {
        part,
        id,
        recovers: wanted.recover,
        is_lost: false,
        ttl,
    };
    state_mut(&mut clients.conns, slot).subscribing.push(waits);
    if wanted.join_leave {
        begin_pushes(clients, &mut subs.lanes, slot, (part, name));
    }
    clients.note(slot, EventKind::Subscribed, name);
    Ok(())
}

/// Whether an unsubscribe from this channel must wait for the answer to the subscribe before it. A client may send both in one frame, and libraries take
/// an error for the answer to a later subscribe.
pub(super) fn awaits_subscribe(
    clients: &mut Clients,
    subs: &Subscriptions,
    slot: u32,
    channel: &str,
) -> bool {
    if state(&clients.conns, slot).is_none_or(|it| it.subscribing.is_empty()) {
        return false;
    }
    clients.expand(slot);
    let part = part_of_topic(clients, subs, slot, channel.as_bytes());
    part.is_some_and(|part| is_subscribing(clients, slot, part))
}

/// A home has answered. Goes on with an unsubscribe that may have waited for it.
pub(crate) fn page_answered(clients: &Clients, queues: &mut Queues, slot: u32) {
    let conns = &clients.conns;
    if conns.get(slot).consumer.state == State::Centrifugo
        && state(conns, slot).is_some_and(|it| !it.held.is_empty())
    {
        queues.resume_later(clients, conns.id_of(slot));
    }
}

/// Carries out an unsubscribe. Whether there was a subscription does not matter.
pub(super) fn client_unsubscribes(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    id: u32,
    channel: &str,
) -> Result<(), Refused> {
    if channel.is_empty() {
        return Err(Refused::bad("an unsubscribe without a channel"));
    }
    clients.expand(slot);
    if let Some(part) = part_of_topic(clients, subs, slot, channel.as_bytes()) {
        leave_part(clients, subs, slot, part);
    }
    write_reply(clients, slot, id, Answer::Unsubscribe);
    Ok(())
}

/// Ends a subscription.
pub(super) fn leave_part(clients: &mut Clients, subs: &mut Subscriptions, slot: u32, part: u32) {
    if state(&clients.conns, slot).is_some_and(|it| !it.granted.is_empty()) {
        let granted = &mut state_mut(&mut clients.conns, slot).granted;
        granted.retain(|granted| granted.part != part);
    }
    end_deltas(&mut clients.conns, slot, part);
    end_pushes(clients, &mut subs.lanes, slot, part);
    leave(clients, subs, slot, part);
}

/// Renews a subscription that a token has granted.
pub(super) fn client_refreshes_subscription(
    clients: &mut Clients,
    subs: &Subscriptions,
    slot: u32,
    (id, refresh): (u32, &SubRefresh<'_>),
    verdict: Option<Identity>,
) -> Result<(), Refused> {
    let (channel, token) = (refresh.channel, refresh.token);
    if channel.is_empty() || token.is_empty() {
        return Err(Refused::bad("a sub_refresh without a channel or a token"));
    }
    let Some(who) = verdict.filter(|_| refresh.kind == 0) else {
        return Err(Refused::error(ErrorCode::NOT_AVAILABLE));
    };
    let known = check_subscription_token(clients, slot, who, token, channel)?;
    let until_unix_s = known.until_unix_s;
    clients.expand(slot);
    let part = part_of_topic(clients, subs, slot, channel.as_bytes());
    let state = state_mut(&mut clients.conns, slot);
    let granted = state
        .granted
        .iter_mut()
        .find(|granted| Some(granted.part) == part);
    let Some(granted) = granted else {
        return Err(Refused::error(ErrorCode::PERMISSION_DENIED));
    };
    (granted.until_unix_s, granted.token) = (until_unix_s, Some(known.grants));
    let ttl = ttl_of(clients, until_unix_s);
    write_reply(clients, slot, id, Answer::SubRefresh(ttl));
    Ok(())
}

/// The subscribe command of the subscription with this index, if it is not answered. The caller answers it.
pub(super) fn take_subscribing(clients: &mut Clients, slot: u32, part: u32) -> Option<Subscribing> {
    let name = part_name(&clients.conns, slot, part);
    let waiting = &state(&clients.conns, slot)?.subscribing;
    let at = waiting.iter().position(|waits| waits.part == name)?;
    let waiting = &mut state_mut(&mut clients.conns, slot).subscribing;
    let waits = waiting.swap_remove(at);
    if waiting.is_empty() {
        // Many subscribe at once and then never again.
        waiting.shrink_to_fit();
    }
    Some(waits)
}

/// Notes that messages after the position of an unanswered subscribe are lost, for its reply. False if there is no such subscribe.
pub(super) fn note_lost(clients: &mut Clients, slot: u32, part: u32) -> bool {
    let name = part_name(&clients.conns, slot, part);
    let waiting = &mut state_mut(&mut clients.conns, slot).subscribing;
    let waits = waiting.iter_mut().find(|waits| waits.part == name);
    waits.map(|waits| waits.is_lost = true).is_some()
}

/// Checks the name of a channel.
pub(super) fn check_name(clients: &mut Clients, slot: u32, channel: &str) -> Result<(), Refused> {
    let topic_bytes = clients.ctx.world.settings.limits.topic_bytes;
    topic::check_name(channel.as_bytes(), topic_bytes).map_err(|error| {
        clients.refused(slot, Reason::BadName);
        Refused::Error(
            ErrorCode::BAD_REQUEST,
            alloc::format!("the channel {error}").into(),
        )
    })
}

/// A position that the server gave; `None` if it is of another server. An empty epoch is the present one.
pub(super) fn position(clients: &Clients, epoch: &str, offset: u64) -> Option<Position> {
    if epoch.is_empty() {
        return Some(Position::new(clients.ctx.world.epoch, offset));
    }
    let is_ours = epoch.len() == EPOCH_DIGITS;
    let epoch = u32::from_str_radix(epoch, 16).ok().filter(|_| is_ours)?;
    Some(Position::new(epoch, offset))
}

/// Ends a subscription, and tells the client by a push. If its subscribe command is not answered, it is refused.
pub(super) fn end_subscription(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    (slot, part): (u32, u32),
    code: Unsubscribe,
) {
    if let Some(waits) = take_subscribing(clients, slot, part) {
        let (id, refused) = (waits.id, ErrorCode::PERMISSION_DENIED);
        write_error(clients, slot, id, refused, code.text);
    }
    let name = name_of(&clients.conns, subs, slot, part);
    let push = Push::Unsubscribe {
        // Topics are UTF-8.
        channel: core::str::from_utf8(&name).unwrap_or_default(),
        code: code.code,
        reason: code.text,
    };
    write_push(clients, slot, &push);
    leave_part(clients, subs, slot, part);
}

/// Ends a subscription that lacks messages. The client subscribes again and recovers. What the server began, the client cannot begin again, so the
/// connection ends, and the client connects again.
pub(super) fn messages_lost<I: Io>(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    (slot, part): (u32, u32),
    io: &mut I,
) {
    let granted = state(&clients.conns, slot).map_or(&[][..], |it| &it.granted);
    if granted
        .iter()
        .any(|it| it.part == part && it.by_server != ByServer::No)
    {
        leave_part(clients, subs, slot, part);
        let code = Disconnect::INSUFFICIENT_STATE;
        return end_saying(clients, slot, code, code.text, io);
    }
    end_subscription(clients, subs, (slot, part), Unsubscribe::INSUFFICIENT_STATE);
    clients.send_reply(slot, io);
}
