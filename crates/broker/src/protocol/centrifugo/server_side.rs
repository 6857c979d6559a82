//! Subscriptions that the server begins: those of the claims `channels` and `subs` of a connection token, those that the backend names for a connect, and those
//! of the API.
//!
//! First the homes (the parts of shards that keep topics) are asked for the positions where the subscriptions begin. Then the client is told the positions: by
//! the reply to its connect, which waits for all homes, or by a push. Only then do the subscriptions begin. So the client knows a channel before it gets
//! the channel's first message, and no reply has to contain messages.
//!
//! Invariant: a client that has lost messages is told: by `recovered: false` in the reply, or its connection ends with code 3010 and it connects again.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

use crore_wire::centrifugo::codes::Disconnect;
use crore_wire::centrifugo::{ClaimedSub, Connect, ConnectClaims, Push, SubscribeResult};

use crate::base::call_kind::CallKind;
use crate::base::journal::EventKind;
use crate::base::position::{Position, Since};
use crate::base::reason::Reason;
use crate::client::list::{check_room, index_of_topic, index_with_serial};
use crate::client::protocols::TopicPage;
use crate::client::subscribing::{
    FirstPage, SubscribeRequest, SubscribeTarget, SubscriptionKind, subscribe,
};
use crate::io::Io;
use crate::mail::AttachOutcome;
use crate::mail::orders::ServerSide;
use crate::protocol::centrifugo::claims::data_of;
use crate::protocol::centrifugo::close::end_with_text;
use crate::protocol::centrifugo::history::ask_for_page;
use crate::protocol::centrifugo::join_leave::begin_granted_pushes;
use crate::protocol::centrifugo::names::channel_names;
use crate::protocol::centrifugo::options::format_of;
use crate::protocol::centrifugo::publication::Data;
use crate::protocol::centrifugo::reasons::disconnect_of;
use crate::protocol::centrifugo::reply::{CommandRefusal, write_push};
use crate::protocol::centrifugo::state::{
    PendingConnect, SeparateGrant, ServerStart, StartedBy, epoch_text, state, state_mut,
};
use crate::protocol::centrifugo::subscribe::{check_name, position};
use crate::protocol::centrifugo::tokens::renewal_of;
use crate::protocol::centrifugo::user_channels::{check_room_of_user, count_channel};
use crate::protocol::centrifugo::welcome::finish_connect;
use crate::protocol::front::{Clients, Front, SubscriptionState, Subscriptions};

/// A channel to which the server subscribes a client when it connects.
pub(super) struct WantedChannel<'a> {
    pub channel: &'a str,
    /// Data for the client; empty for none.
    pub data: &'a [u8],
    /// The Unix second in which the subscription ends; `u32::MAX` without an end.
    pub until_unix_s: u32,
    /// Whether the client is told of joins and leaves.
    pub join_leave: bool,
}

/// Begins the channels that a token names, as [`begin_channels`].
pub(super) fn begin_by_token(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    (id, connect): (u32, &Connect<'_>),
    claims: &ConnectClaims<'_>,
) -> Result<(), CommandRefusal> {
    let mut seen_channels = BTreeSet::new();
    let mut channels: Vec<(ClaimedSub<'_>, Cow<'_, [u8]>)> = Vec::new();
    for sub in claims.subs.iter() {
        if seen_channels.insert(sub.channel) {
            let data = data_of(sub.data)
                .map_err(|text| CommandRefusal::End(Disconnect::INVALID_TOKEN, text.into()))?;
            channels.push((sub, data));
        }
    }
    let wanted = channels.iter().map(|(sub, data)| WantedChannel {
        channel: sub.channel,
        data,
        until_unix_s: u32::MAX,
        join_leave: sub.join_leave,
    });
    let wanted: Vec<_> = wanted.collect();
    begin_channels(clients, subs, slot, (id, connect), (&wanted, b""))
}

/// Asks for the positions of these channels, each of which is named once. The reply to the connect, with this data, waits for them.
pub(super) fn begin_channels(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    (id, connect): (u32, &Connect<'_>),
    (wanted, data): (&[WantedChannel<'_>], &[u8]),
) -> Result<(), CommandRefusal> {
    if wanted.is_empty() {
        finish_connect(clients, slot, (id, data), &[]);
        return Ok(());
    }
    let mut bytes = 0;
    for it in wanted {
        check_name(clients, slot, it.channel)?;
        if it.until_unix_s <= clients.ctx.wall_s() {
            let code = Disconnect::EXPIRED;
            return Err(CommandRefusal::End(code, code.text.into()));
        }
        bytes += it.channel.len();
    }
    let limits = &clients.ctx.world.settings.limits;
    if wanted.len() > limits.subscriptions_max() {
        let code = Disconnect::CHANNEL_LIMIT;
        return Err(CommandRefusal::End(code, code.text.into()));
    }
    if check_room_of_user(clients, slot, wanted.len()).is_err() {
        clients.refused(slot, Reason::ChannelsOfUser);
        let reason = Reason::ChannelsOfUser.text_with_limit(&clients.ctx.world.settings);
        return Err(CommandRefusal::End(Disconnect::CHANNEL_LIMIT, reason));
    }
    let limits = &clients.ctx.world.settings.limits;
    if !limits.has_room_for_names(wanted.len(), bytes) {
        return Err(CommandRefusal::for_reason(
            clients,
            slot,
            Reason::NamesTooLong,
        ));
    }
    let recoveries: BTreeMap<&str, _> = (connect.subs.iter())
        .filter(|sub| sub.recover)
        .map(|sub| (sub.channel, (sub.epoch, sub.offset)))
        .collect();
    (clients.meter.work.steps).add(connect.subs.iter().count() + wanted.len());
    for it in wanted {
        let recovery = recoveries.get(it.channel);
        let since = recovery.map(|(epoch, offset)| {
            position(clients, epoch, *offset).map_or(Since::Unknown, Since::At)
        });
        // The channels of a token have no end.
        let renewal = renewal_of(clients, CallKind::SubRefresh, it.until_unix_s);
        ask_position(
            clients,
            subs,
            slot,
            it.channel,
            ServerStart {
                since,
                data: it.data.into(),
                until_unix_s: it.until_unix_s,
                join_leave: it.join_leave,
                renewal,
                ..ServerStart::default()
            },
        );
    }
    let data = data.into();
    let pending = PendingConnect { id, data };
    state_mut(&mut clients.conns, slot).pending_connect = Some(Box::new(pending));
    Ok(())
}

/// Asks for the position of a channel to which the API subscribes a client. False if the client has it already, or has no room.
pub(super) fn begin_by_order(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    order: &ServerSide,
) -> bool {
    let Ok(channel) = core::str::from_utf8(&order.name) else {
        return false;
    };
    clients.move_to_list(slot);
    if index_of_topic(clients, subs, slot, &order.name).is_some()
        || check_room(clients, subs, slot, &order.name).is_err()
        || check_room_of_user(clients, slot, 1).is_err()
    {
        return false;
    }
    let start = ServerStart {
        since: order.since.map(Since::At),
        data: order.data.clone(),
        until_unix_s: order.until_unix_s,
        ..ServerStart::default()
    };
    ask_position(clients, subs, slot, channel, start);
    true
}

fn ask_position(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    channel: &str,
    start: ServerStart,
) {
    let since = start.since.unwrap_or(Since::Live);
    let number = ask_for_page(clients, subs, slot, channel.as_bytes(), (since, 1));
    let pending_start = ServerStart {
        number,
        channel: channel.into(),
        ..start
    };
    state_mut(&mut clients.conns, slot)
        .server_starts
        .push(pending_start);
}

/// Whether the connect command waits for positions.
pub(super) fn is_connecting(clients: &Clients, slot: u32) -> bool {
    state(&clients.conns, slot).is_some_and(|it| it.pending_connect.is_some())
}

/// Handles a home's answer with the position where a subscription begins. Returns false if the answer is for another request.
pub(super) fn handle_told_position<I: Io>(
    front: &mut Front,
    (slot, number): (u32, u16),
    (page, frames): TopicPage<'_>,
    io: &mut I,
) -> bool {
    let Front {
        clients,
        subs,
        queues,
        ..
    } = front;
    let starts_so_far = state(&clients.conns, slot).map_or(&[][..], |it| &it.server_starts);
    let Some(index) = starts_so_far.iter().position(|it| it.number == number) else {
        return false;
    };
    if page.attached != AttachOutcome::Yes && page.attached != AttachOutcome::Gone {
        refuse_start(clients, slot, index, page.attached.refusal(), io);
        return true;
    }
    let first_record = frames.pages.get(page.first as usize);
    let first_record = first_record.filter(|_| page.count > 0);
    let has_loss = page.gap || page.attached == AttachOutcome::Gone;
    let start = &mut state_mut(&mut clients.conns, slot).server_starts[index];
    let offset = match start.since {
        None => page.head,
        Some(Since::At(seen)) if !has_loss => seen.offset,
        Some(_) => first_record.map_or(page.head, |record| record.previous),
    };
    start.position = Some(Position::new(page.epoch, offset));
    start.is_recovered = start.since.is_some() && !has_loss;
    let state = state_mut(&mut clients.conns, slot);
    let all_are_told = state.server_starts.iter().all(|it| it.position.is_some());
    match state.pending_connect.take_if(|_| all_are_told) {
        Some(pending) => {
            let starts = core::mem::take(&mut state.server_starts);
            reply_to_connect(clients, slot, &pending, &starts);
            starts
                .iter()
                .for_each(|it| begin_subscription(clients, subs, slot, it));
            queues.resume_later(clients, clients.conns.id_of(slot));
        }
        None if state.pending_connect.is_some() => {}
        None => {
            let it = state.server_starts.swap_remove(index);
            if index_of_topic(clients, subs, slot, it.channel.as_bytes()).is_some() {
                // Meanwhile another command or order has subscribed to the channel.
                return true;
            }
            push_subscribe(clients, slot, &it);
            begin_subscription(clients, subs, slot, &it);
        }
    }
    clients.send_reply(slot, io);
    true
}

/// Handles a home's refusal of a subscription. If its token names the channel, the client may not connect without it, so the connection ends. An order of the
/// API was answered already, so nobody is told.
fn refuse_start<I: Io>(clients: &mut Clients, slot: u32, index: usize, reason: Reason, io: &mut I) {
    let state = state_mut(&mut clients.conns, slot);
    state.server_starts.swap_remove(index);
    if state.pending_connect.is_some() {
        end_for_refused_start(clients, slot, reason, io);
    }
}

/// Ends a connection that cannot have a subscription that the server has begun.
pub(super) fn end_for_refused_start<I: Io>(
    clients: &mut Clients,
    slot: u32,
    reason: Reason,
    io: &mut I,
) {
    clients.refused(slot, reason);
    let code = disconnect_of(reason).unwrap_or(Disconnect::PERMISSION_DENIED);
    end_with_text(clients, slot, code, reason.text(), io);
}

fn reply_to_connect(
    clients: &mut Clients,
    slot: u32,
    pending: &PendingConnect,
    starts: &[ServerStart],
) {
    let names = channel_names(&clients.ctx.world);
    let channels: Vec<_> = starts
        .iter()
        .map(|start| names.exchange(&start.channel))
        .collect();
    let epochs: Vec<String> = starts
        .iter()
        .map(|start| epoch_text(start.position.unwrap_or_default().epoch))
        .collect();
    let format = format_of(clients.conns.get(slot));
    let data: Vec<_> = starts
        .iter()
        .map(|start| Data::optional(format, &start.data))
        .collect();
    let subs = starts.iter().zip(&epochs).zip(&channels).zip(&data);
    let subs = subs.map(|(((start, epoch), channel), data)| {
        let result = SubscribeResult {
            ttl: None,
            recoverable: true,
            epoch,
            publications: &[],
            recovered: start.is_recovered,
            offset: start.position.unwrap_or_default().offset,
            positioned: true,
            data: data.payload(),
            was_recovering: start.since.is_some(),
            delta: false,
        };
        (&**channel, result)
    });
    let subs: Vec<_> = subs.collect();
    finish_connect(clients, slot, (pending.id, &pending.data), &subs);
}

/// Whether a page is the first one of a subscription that the server began. Such a subscription begins with it, so messages before it are no loss. Notes that
/// the page has come.
pub(super) fn take_begin_by_server(clients: &mut Clients, slot: u32, sub_index: u32) -> bool {
    let is_waiting = |it: &SeparateGrant| {
        it.sub_index == sub_index && it.started_by == StartedBy::ServerBeforeFirstPage
    };
    let grants = state(&clients.conns, slot).map_or(&[][..], |it| &it.separate_grants);
    let index = grants.iter().position(is_waiting);
    if let Some(index) = index {
        state_mut(&mut clients.conns, slot).separate_grants[index].started_by = StartedBy::Server;
    }
    index.is_some()
}

fn push_subscribe(clients: &mut Clients, slot: u32, start: &ServerStart) {
    let position = start.position.unwrap_or_default();
    let data = Data::optional(format_of(clients.conns.get(slot)), &start.data);
    let push = Push::Subscribe {
        channel: &channel_names(&clients.ctx.world).exchange(&start.channel),
        recoverable: true,
        epoch: &epoch_text(position.epoch),
        offset: position.offset,
        positioned: true,
        data: data.payload(),
    };
    write_push(clients, slot, &push);
}

/// Begins a subscription whose position the client knows.
fn begin_subscription(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    start: &ServerStart,
) {
    let name = start.channel.as_bytes();
    clients.move_to_list(slot);
    let since = start.position.map_or(Since::Live, Since::At);
    let request = SubscribeRequest {
        target: SubscribeTarget::Topic(name),
        since: &[since],
        // The rest comes in pages, as fast as the client reads.
        first_page: FirstPage {
            messages_max: 1,
            ..FirstPage::ALL
        },
        kind: SubscriptionKind::New,
    };
    let Ok(sub_index) = subscribe(clients, subs, slot, &request, SubscriptionState::default())
    else {
        return;
    };
    count_channel(clients, slot);
    let grant = SeparateGrant {
        sub_index,
        until_unix_s: start.until_unix_s,
        token: None,
        renewal: start.renewal,
        started_by: match start.since {
            None => StartedBy::ServerBeforeFirstPage,
            Some(_) => StartedBy::Server,
        },
    };
    state_mut(&mut clients.conns, slot)
        .separate_grants
        .push(grant);
    if start.join_leave {
        let sub_key = index_with_serial(&clients.conns, slot, sub_index);
        begin_granted_pushes(clients, &mut subs.lanes, slot, (sub_key, name));
    }
    clients.record_event(slot, EventKind::Subscribed, name);
}
