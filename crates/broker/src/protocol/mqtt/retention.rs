//! Tells homes which messages they must keep for MQTT. A home (the shard that keeps a topic) keeps more messages than the rules require if a subscription of
//! QoS 1 or 2, or a shared one, needs them. So homes are told when such a subscription begins and ends, also a
//! [stored](crate::mail::session::stored) one of a session that ends while its client is away.

use alloc::vec::Vec;

use crore_wire::mqtt::split_shared;
use crore_wire::topic;

use crate::base::ids::ShardId;
use crate::base::planted::{self, Fault};
use crate::client::list::{self, count_asked_pages, filter_of, is_free_index, subscription_list};
use crate::client::row::SUBSCRIPTION_LIST;
use crate::mail::message::SessionKey;
use crate::mail::session::SavedSession;
use crate::mail::session::stored::{StoredSubscription, subscriptions};
use crate::mail::{Ask, ReleaseAt, Span};
use crate::protocol::front::{Clients, Context, Lanes, Sub, Subscriptions, Work};
use crate::protocol::mqtt::client::{self, mqtt_state_mut};
use crate::protocol::mqtt::options::{QOS_SHIFT, qos};
use crate::protocol::mqtt::subscription::WantedSubscription;
use crate::store::slab::NONE;

/// Tells a topic's home that a subscription needs its messages kept, or no longer needs them.
pub(super) fn count_qos_subscription(
    subs: &mut Subscriptions,
    ctx: &Context,
    topic: u32,
    is_needed: bool,
) {
    let hash = subs.topics.get(topic).hash;
    let name = subs.topics.name(topic).to_vec();
    count_qos_subscription_of(&mut subs.lanes, ctx, hash, &name, is_needed);
}

pub(crate) fn count_qos_subscription_of(
    lanes: &mut Lanes,
    ctx: &Context,
    hash: u32,
    name: &[u8],
    is_needed: bool,
) {
    for home in homes_of(ctx, name) {
        lanes.ask(home, |bytes| Ask::CountQosSubscription {
            hash,
            name: Span::append(bytes, name),
            begins: is_needed,
        });
    }
}

/// Lets the SUBACK wait until the homes know whether they must keep messages for the subscription, which [`count_qos_subscription`] tells them. The fences count
/// as pages, so that a client that changes its subscription again and again does not fill the lanes to the homes.
pub(super) fn await_retention(
    clients: &mut Clients,
    lanes: &mut Lanes,
    slot: u32,
    wanted: &WantedSubscription<'_>,
) {
    let packet_id = wanted.suback_entry.packet_id;
    let to = clients.conns.reply_to(slot, packet_id.into());
    let homes = homes_of(&clients.ctx, wanted.filter);
    let state = mqtt_state_mut(&mut clients.conns, slot);
    state.is_retention_unconfirmed = true;
    let mut all = state.subacks.iter_mut();
    if let Some(suback) = all.find(|suback| suback.packet_id == packet_id) {
        let fences = homes.len();
        suback.unanswered_homes += fences as u32;
        homes.for_each(|home| lanes.ask(home, |_| Ask::Fence(to)));
        count_asked_pages(&mut clients.conns, slot, fences as u32);
        clients.meter.work.steps.add(fences);
    }
}

/// Tells the homes that the session ends, so they need not keep messages for its subscriptions.
pub(super) fn release_logs(clients: &Clients, subs: &mut Subscriptions, slot: u32) {
    let row = clients.conns.get(slot);
    if !row.has_option(SUBSCRIPTION_LIST) {
        if row.consumer.topic != NONE && row.consumer.options >> QOS_SHIFT & 3 > 0 {
            count_qos_subscription(subs, &clients.ctx, row.consumer.topic, false);
        }
        return;
    }
    let list = subscription_list(&clients.conns, slot);
    let needs_log = |sub: &Sub| {
        !is_free_index(sub)
            && sub.protocol_state.group.is_none()
            && qos(sub.protocol_state.options) > 0
    };
    let sub_indexes = (0..list.len()).filter(|sub_index| needs_log(&list[*sub_index]));
    for sub_index in sub_indexes.collect::<Vec<_>>() {
        release_log(clients, subs, slot, sub_index as u32);
    }
}

/// Tells the homes that they need not keep messages for one subscription.
pub(super) fn release_log(clients: &Clients, subs: &mut Subscriptions, slot: u32, sub_index: u32) {
    let topic = list::sub(&clients.conns, slot, sub_index).map_or(NONE, |sub| sub.topic);
    if topic != NONE {
        count_qos_subscription(subs, &clients.ctx, topic, false);
    } else if let Some(filter) = filter_of(&clients.conns, &subs.matching, slot, sub_index) {
        count_qos_subscription_of(&mut subs.lanes, &clients.ctx, 0, &filter, false);
    }
}

/// The homes whose messages a filter may match.
pub(crate) fn homes_of(ctx: &Context, filter: &[u8]) -> core::ops::Range<ShardId> {
    if topic::has_wildcard(filter) {
        return 0..ctx.world.homes;
    }
    let (_, home) = ctx.hash_and_home_of(filter);
    home..home + 1
}

/// Tells the homes that a stored session ends, so they need not keep messages for its subscriptions. Its QoS 2 messages are
/// [released](release_published) later, when its end is in the log.
pub(crate) fn session_ended(
    lanes: &mut Lanes,
    work: &Work,
    ctx: &Context,
    session: Option<SavedSession>,
) {
    let Some(session) = session else { return };
    let bytes = &session.state.bytes;
    work.steps.add_bytes(bytes.len());
    release_needs(lanes, work, ctx, bytes);
}

/// Tells the homes that they need not keep messages for a stored session.
pub(crate) fn release_needs(lanes: &mut Lanes, work: &Work, ctx: &Context, stored: &[u8]) {
    for subscription in subscriptions(stored).filter(StoredSubscription::needs_log) {
        work.steps.add(1);
        release_stored(lanes, ctx, &subscription.filter);
    }
}

/// Tells the homes to keep messages for a stored session. Used in a cluster, where stored sessions have no shared subscriptions.
pub(crate) fn count_stored_needs(lanes: &mut Lanes, work: &Work, ctx: &Context, stored: &[u8]) {
    for subscription in subscriptions(stored).filter(|it| it.qos() > 0 && !it.is_shared()) {
        work.steps.add(1);
        let (hash, _) = ctx.hash_and_home_of(&subscription.filter);
        count_qos_subscription_of(lanes, ctx, hash, &subscription.filter, true);
    }
}

/// Tells the homes to forget the messages of the session or the will with this token, which ends. Does nothing for the token 0, and in a cluster, where the
/// homes forget the messages when they read the record of the end.
pub(crate) fn release_published(lanes: &mut Lanes, ctx: &Context, token: u64) {
    if token != 0 && !ctx.world.replicates_sessions() {
        release_token(lanes, ctx, token);
    }
}

/// Tells the homes to forget which QoS 2 messages of the session with this token are not released, or that the will with this token was published.
pub(crate) fn release_token(lanes: &mut Lanes, ctx: &Context, token: u64) {
    let key = SessionKey::new(token, 0);
    for home in 0..ctx.world.homes {
        lanes.ask(home, |_| Ask::Release {
            key,
            claim: 0,
            at: ReleaseAt::Known,
            to: None,
        });
    }
}

/// Tells the homes that they need not keep messages for a stored subscription with this filter.
pub(super) fn release_stored(lanes: &mut Lanes, ctx: &Context, filter: &[u8]) {
    if let Some((group, filter)) = split_shared(filter) {
        for home in homes_of(ctx, filter) {
            let (name, filter) = (group.into(), filter.into());
            lanes.ask(home, |_| Ask::ReleaseGroup { name, filter });
        }
        return;
    }
    let (hash, _) = ctx.hash_and_home_of(filter);
    count_qos_subscription_of(lanes, ctx, hash, filter, false);
    if planted::is(Fault::DoubleRelease) {
        count_qos_subscription_of(lanes, ctx, hash, filter, false);
    }
}

/// Tells the homes that the session ends, for the subscriptions for which this connection had no room.
pub(super) fn release_unplaced(clients: &Clients, lanes: &mut Lanes, slot: u32) {
    let Some(mqtt) = client::mqtt_state(&clients.conns, slot) else {
        return;
    };
    for subscription in mqtt.decode_unplaced().filter(StoredSubscription::needs_log) {
        release_stored(lanes, &clients.ctx, &subscription.filter);
    }
}
