//! Begins and ends subscriptions.

use alloc::format;
use alloc::string::String;

use crore_wire::pusher::{CHANNEL_BYTES_MAX, ChannelKind, is_channel_name};
use crore_wire::topic;

use crate::base::journal::EventKind;
use crate::base::position::Since;
use crate::base::pusher::PusherApp;
use crate::base::reason::Reason;
use crate::client::list::{check_room, index_of_topic, index_with_serial, remove_subscription};
use crate::client::subscribing::{
    FirstPage, SubscribeRequest, SubscribeTarget, SubscriptionKind, subscribe,
};
use crate::protocol::front::{Census, Clients, SubscriptionState, Subscriptions};
use crate::protocol::pusher::reply::{refuse, refuse_subscription};
use crate::protocol::pusher::state::{app_of, socket_id, state_mut, take_pending_subscribe};

/// The number of bytes that are hashed in the time in which one byte is copied.
const HASH_WORK: usize = 8;

/// The data of `pusher:subscribe`.
pub(super) struct SubscribeEvent<'a> {
    pub channel: &'a str,
    pub auth: &'a str,
    pub channel_data: &'a str,
}

/// Begins a subscription. The client is told when the home has answered.
pub(super) fn handle_subscribe_event(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    census: &Census,
    slot: u32,
    event: &SubscribeEvent<'_>,
) {
    if let Err((reason, text)) = begin_subscription(clients, subs, census, slot, event) {
        refuse_subscription(clients, slot, event.channel, reason, &text);
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
    if kind.is_presence {
        return Err((Reason::BadEvent, "presence channels are not built".into()));
    }
    if kind.is_private {
        check_signature(clients, slot, event)?;
    }
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
    let request = SubscribeRequest {
        target: SubscribeTarget::Topic(&name),
        since: &[Since::Live],
        first_page: FirstPage {
            with_retained: kind.is_cache,
            ..FirstPage::ALL
        },
        kind: SubscriptionKind::New,
    };
    let subscribed = subscribe(clients, subs, slot, &request, SubscriptionState::default());
    let sub_index = subscribed.map_err(|reason| with_text(clients, reason))?;
    let key = index_with_serial(&clients.conns, slot, sub_index);
    let pending = &mut state_mut(&mut clients.conns, slot).pending_subscribes;
    pending.push(key);
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
    remove_subscription(clients, subs, slot, sub_index);
}

/// Checks the name of a channel. Returns its topic.
pub(super) fn topic_of(
    clients: &Clients,
    slot: u32,
    channel: &str,
) -> Result<alloc::vec::Vec<u8>, (Reason, String)> {
    if !is_channel_name(channel) {
        let text = format!(
            "the name of a channel has 1 to {CHANNEL_BYTES_MAX} letters, digits and _-=@,.; only"
        );
        return Err((Reason::BadName, text));
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
    } = *event;
    let bytes = channel.len() + channel_data.len();
    clients.meter.work.steps.add_bytes(bytes * HASH_WORK);
    let socket_id = socket_id(clients, slot);
    let is_signed = |app: &PusherApp| {
        let signature = signature_of(app, auth);
        let parts = [socket_id.as_bytes(), b":", channel.as_bytes()];
        let data: &[&[u8]] = match channel_data {
            "" => &[],
            data => &[b":", data.as_bytes()],
        };
        app.is_signed(&[&parts[..], data].concat(), signature)
    };
    match app_of(clients, slot).is_some_and(is_signed) {
        true => Ok(()),
        false => {
            let text = format!(
                "the signature of the subscription to {channel} is missing or wrong: the secret of the app must sign {socket_id}:{channel}"
            );
            Err((Reason::PusherSignature, text))
        }
    }
}

/// The signature in `auth`, which begins with the key of the app; empty without it.
fn signature_of<'a>(app: &PusherApp, auth: &'a str) -> &'a str {
    let signature = auth.strip_prefix(&*app.key);
    signature
        .and_then(|rest| rest.strip_prefix(':'))
        .unwrap_or_default()
}
