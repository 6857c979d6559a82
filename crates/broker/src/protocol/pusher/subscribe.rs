//! Begins and ends subscriptions.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use crore_wire::pusher::{CHANNEL_BYTES_MAX, ChannelKind, User, is_channel_name};
use crore_wire::topic;

use crate::base::journal::EventKind;
use crate::base::position::{self, Since};
use crate::base::pusher::USER_CHANNEL;
use crate::base::reason::Reason;
use crate::client::list::{check_room, index_of_topic, index_with_serial, remove_subscription};
use crate::client::subscribing::{
    FirstPage, SubscribeRequest, SubscribeTarget, SubscriptionKind, subscribe,
};
use crate::protocol::front::{Census, Clients, SubscriptionState, Subscriptions};
use crate::protocol::pusher::options::POSITIONS;
use crate::protocol::pusher::presence::{
    begin_membership, end_membership, enter_watcher, leave_watcher,
};
use crate::protocol::pusher::reply::{refuse, refuse_subscription};
use crate::protocol::pusher::signature::is_signed;
use crate::protocol::pusher::signin::{has_signed_in_as, is_user_id};
use crate::protocol::pusher::state::{
    PendingSubscribe, app_of, socket_id, state_mut, take_pending_subscribe,
};

/// The maximum bytes of a user's id. The table of members keeps its length in one byte.
const USER_BYTES_MAX: usize = 128;
/// The maximum bytes of what others may know of a user, as in a token.
const INFO_BYTES_MAX: usize = 1 << 10;

/// The data of `pusher:subscribe`.
pub(super) struct SubscribeEvent<'a> {
    pub channel: &'a str,
    pub auth: &'a str,
    pub channel_data: &'a str,
    pub since: Option<&'a str>,
}

/// Begins a subscription. The client is told when the home has answered.
pub(super) fn handle_subscribe_event(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    census: &Census,
    slot: u32,
    event: &SubscribeEvent<'_>,
) {
    match begin_subscription(clients, subs, census, slot, event) {
        Ok(()) => {}
        // A name that is not valid may be long, and is not repeated.
        Err((reason @ Reason::BadName, text)) => refuse(clients, slot, reason, &text),
        Err((reason, text)) => refuse_subscription(clients, slot, event.channel, reason, &text),
    }
}

fn begin_subscription(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    census: &Census,
    slot: u32,
    event: &SubscribeEvent<'_>,
) -> Result<(), (Reason, String)> {
    let channel = event.channel;
    let name = topic_of(clients, slot, channel)?;
    let kind = ChannelKind::of(channel);
    if kind.is_private {
        check_signature(clients, slot, event)?;
    }
    let user = match kind.is_presence {
        true => Some(member_in(event.channel_data)?),
        false => None,
    };
    let since = start_of(clients, slot, event)?;
    clients.move_to_list(slot);
    if index_of_topic(clients, subs, slot, &name).is_some() {
        let text = format!("there is a subscription to {channel} already");
        refuse(clients, slot, Reason::BadEvent, &text);
        return Ok(());
    }
    let with_text = |clients: &Clients, reason: Reason| {
        let text = reason.text_with_limit(&clients.ctx.world.settings);
        (reason, text.into_owned())
    };
    if let Err(reached) = check_room(clients, subs, slot, &name) {
        return Err(with_text(clients, reached));
    }
    if !clients.has_memory_for(census, slot, 0) {
        return Err(with_text(clients, Reason::MemoryFull));
    }
    if user.is_some() {
        enter_watcher(clients, slot).map_err(|reached| with_text(clients, reached))?;
    }
    let request = SubscribeRequest {
        target: SubscribeTarget::Topic(&name),
        since: &since,
        first_page: FirstPage {
            with_retained: kind.is_cache,
            ..FirstPage::ALL
        },
        kind: SubscriptionKind::New,
    };
    let subscribed = subscribe(clients, subs, slot, &request, SubscriptionState::default());
    let sub_index = match subscribed {
        Ok(sub_index) => sub_index,
        Err(reason) => {
            if user.is_some() {
                leave_watcher(clients, slot);
            }
            return Err(with_text(clients, reason));
        }
    };
    if let Some(user) = &user {
        begin_membership(clients, slot, sub_index, (&name, user));
    }
    if event.since.is_some() {
        clients.conns.get_mut(slot).consumer.options |= POSITIONS;
    }
    let pending = PendingSubscribe {
        sub_key: index_with_serial(&clients.conns, slot, sub_index),
        is_lost: false,
    };
    let state = state_mut(&mut clients.conns, slot);
    state.pending_subscribes.push(pending);
    clients.record_event(slot, EventKind::Subscribed, &name);
    Ok(())
}

/// Ends a subscription. The client is not told, whether or not there was one.
pub(super) fn handle_unsubscribe_event(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    channel: &str,
) {
    let name = match topic_of(clients, slot, channel) {
        Ok(name) => name,
        Err((reason, text)) => return refuse(clients, slot, reason, &text),
    };
    clients.move_to_list(slot);
    if let Some(sub_index) = index_of_topic(clients, subs, slot, &name) {
        drop_subscription(clients, subs, slot, sub_index);
    }
}

/// Ends a subscription without telling the client.
pub(super) fn drop_subscription(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    sub_index: u32,
) {
    take_pending_subscribe(clients, slot, sub_index);
    end_membership(clients, &mut subs.lanes, slot, sub_index);
    remove_subscription(clients, subs, slot, sub_index);
}

/// Checks the name of a channel. Returns its topic.
pub(super) fn topic_of(
    clients: &Clients,
    slot: u32,
    channel: &str,
) -> Result<Vec<u8>, (Reason, String)> {
    // A refusal repeats the name, so the name is checked first.
    let user = channel.strip_prefix(USER_CHANNEL);
    if !user.map_or_else(|| is_channel_name(channel), is_user_id) {
        let text = format!(
            "the name of a channel has 1 to {CHANNEL_BYTES_MAX} letters, digits and _-=@,.; only, or {USER_CHANNEL} and the id of a user"
        );
        return Err((Reason::BadName, text));
    }
    if user.is_some_and(|user| !has_signed_in_as(clients, slot, user)) {
        let text = "the channel of a user is for connections that have signed in as the user";
        return Err((Reason::PusherSignature, text.into()));
    }
    let Some(app) = app_of(clients, slot) else {
        return Err((Reason::PusherKey, Reason::PusherKey.text().into()));
    };
    let name = app.topic_of(channel);
    let topic_bytes = clients.ctx.world.settings.limits.topic_bytes;
    match topic::check_name(&name, topic_bytes) {
        Ok(()) => Ok(name),
        Err(error) => Err((Reason::BadName, format!("the topic of the channel {error}"))),
    }
}

/// Checks the signature of a subscription, which is for this connection and this channel only.
fn check_signature(
    clients: &Clients,
    slot: u32,
    event: &SubscribeEvent<'_>,
) -> Result<(), (Reason, String)> {
    let SubscribeEvent {
        channel,
        auth,
        channel_data,
        ..
    } = *event;
    let socket_id = socket_id(clients, slot);
    let parts = [socket_id.as_bytes(), b":", channel.as_bytes()];
    let data: &[&[u8]] = match channel_data {
        "" => &[],
        data => &[b":", data.as_bytes()],
    };
    match is_signed(clients, slot, auth, &[&parts[..], data].concat()) {
        true => Ok(()),
        false => {
            let text = format!(
                "the signature of the subscription to {channel} is missing or wrong: the secret of the app must sign {socket_id}:{channel}"
            );
            Err((Reason::PusherSignature, text))
        }
    }
}

/// No position of one topic is longer.
const POSITION_BYTES_MAX: usize = 64;

/// Where a subscription begins: with the next message, unless the client names a position.
fn start_of(
    clients: &Clients,
    slot: u32,
    event: &SubscribeEvent<'_>,
) -> Result<Vec<Since>, (Reason, String)> {
    let Some(text) = event.since else {
        return Ok(vec![Since::Live]);
    };
    if !app_of(clients, slot).is_some_and(|app| app.resume) {
        let text = "data.since is not allowed; pusher_app.resume = true permits it";
        return Err((Reason::BadEvent, text.into()));
    }
    let is_short = text.len() <= POSITION_BYTES_MAX;
    let start = if is_short {
        position::parse(text.as_bytes(), 0, 1).ok()
    } else {
        None
    };
    start.ok_or_else(|| {
        let text = "data.since is no position: write that of the last pusher:position, or live";
        (Reason::BadEvent, text.into())
    })
}

/// The user of a subscription to a presence channel.
fn member_in(channel_data: &str) -> Result<User<'_>, (Reason, String)> {
    let user = User::read_member(channel_data).map_err(|error| {
        let text = format!("channel_data is not valid: {error}");
        (Reason::BadEvent, text)
    })?;
    if user.id.len() > USER_BYTES_MAX || user.id.chars().any(char::is_control) {
        let text = format!(
            "channel_data.user_id has at most {USER_BYTES_MAX} bytes, without control characters"
        );
        return Err((Reason::BadEvent, text));
    }
    if user.info.len() > INFO_BYTES_MAX {
        let text = format!("channel_data.user_info has more than {INFO_BYTES_MAX} bytes");
        return Err((Reason::BadEvent, text));
    }
    Ok(user)
}
