//! Client events: events that a client publishes in a private or presence channel to which it is subscribed.

use alloc::format;
use alloc::string::String;

use crore_wire::pusher::ChannelKind;

use crate::base::reason::Reason;
use crate::client::asking::publish;
use crate::client::list::index_of_topic;
use crate::client::publishing::check_message;
use crate::client::subscriptions::topic_of as topic_of_subscription;
use crate::home::Home;
use crate::io::Io;
use crate::mail::fields::check_fields;
use crate::mail::message::{self, Headers, is_binary};
use crate::mail::properties::with_publisher;
use crate::mail::{Outcome, WantedAnswer};
use crate::protocol::front::{Clients, Subscriptions};
use crate::protocol::pusher::reply::refuse;
use crate::protocol::pusher::state::{app_of, origin_of, state};
use crate::protocol::pusher::subscribe::topic_of;

/// A client event.
pub(super) struct ClientEvent<'a> {
    pub name: &'a str,
    pub channel: &'a str,
    pub data: &'a [u8],
}

/// Publishes a client event. The client is told only if it is refused.
pub(super) fn handle_client_event(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    event: &ClientEvent<'_>,
    home: &mut Option<Home>,
) {
    let outcome = publish_client_event(clients, subs, slot, event, home);
    if let Err((reason, text)) = outcome {
        refuse(clients, slot, reason, &text);
    }
}

fn publish_client_event(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    event: &ClientEvent<'_>,
    home: &mut Option<Home>,
) -> Result<(), (Reason, String)> {
    let not_allowed = |why: &str| (Reason::ClientEvent, format!("client events {why}"));
    let channel = event.channel;
    let name = topic_of(clients, slot, channel)?;
    if !app_of(clients, slot).is_some_and(|app| app.client_events) {
        return Err(not_allowed("are not enabled for this app"));
    }
    let kind = ChannelKind::of(channel);
    if !kind.is_private || kind.is_encrypted {
        return Err(not_allowed(
            "are for private and presence channels only, and not for encrypted ones",
        ));
    }
    clients.move_to_list(slot);
    let Some(sub_index) = index_of_topic(clients, subs, slot, &name) else {
        return Err(not_allowed("need a subscription to their channel"));
    };
    let with_text = |clients: &Clients, reason: Reason| {
        let text = reason.text_with_limit(&clients.ctx.world.settings);
        (reason, text.into_owned())
    };
    check_fields(b"", event.name.as_bytes(), b"")
        .map_err(|what| (Reason::BadField, what.into()))?;
    let limits = &clients.ctx.world.settings.limits;
    check_message(limits, &name, event.data.len(), || false)
        .map_err(|refusal| with_text(clients, refusal.reason()))?;
    clients
        .check_publish_rate(slot)
        .map_err(|reason| with_text(clients, reason))?;
    let (hash, home_shard) = clients.ctx.hash_and_home_of(&name);
    let origin = origin_of(clients, slot).to_le_bytes();
    let topic = topic_of_subscription(&clients.conns, slot, sub_index);
    let member = state(&clients.conns, slot).and_then(|it| it.member_of(topic));
    let attributes = match member.map(|(user, _)| core::str::from_utf8(user)) {
        Some(Ok(user)) => with_publisher(&origin, user),
        _ => origin.into(),
    };
    let message = message::Publish {
        hash,
        name: &name,
        data: event.data,
        headers: Headers {
            qos: 1,
            event: event.name.as_bytes(),
            attributes: &attributes,
            binary: is_binary(b"", event.data),
            ..Headers::default()
        },
        dedup: None,
        client: clients.conns.get(slot).consumer.client,
    };
    let answer = WantedAnswer::OutcomeAndInfo(clients.conns.reply_to(slot, 0));
    match publish(clients, subs, home, home_shard, &message, answer) {
        Some(outcome) => match outcome.refusal() {
            Some(reason) => Err(with_text(clients, reason)),
            None => Ok(()),
        },
        None => Ok(()),
    }
}

/// Handles another shard's answer to a client event.
pub(super) fn handle_outcome<I: Io>(
    clients: &mut Clients,
    slot: u32,
    outcome: Outcome,
    io: &mut I,
) {
    if let Some(reason) = outcome.refusal() {
        let text = reason.text_with_limit(&clients.ctx.world.settings);
        refuse(clients, slot, reason, &text);
        clients.send_reply(slot, io);
    }
}
