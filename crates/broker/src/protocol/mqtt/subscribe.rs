//! Handles SUBSCRIBE: sends the requests to homes, and the SUBACK (MQTT 5.0 sections 3.8 and 3.9). The list of a client's subscriptions is in
//! `client/list`, their end in `unsubscribe`.

use crore_wire::mqtt::{
    Filter, Properties, Qos, ReasonCode, RetainHandling, Subscribe, SubscribeOptions, encode,
};
use crore_wire::topic;

use crate::base::access::Right;
use crate::base::journal::EventKind;
use crate::base::position::Since;
use crate::base::reason::Reason;
use crate::client::list::filters::resend_retained;
use crate::client::list::{has_room, sub_mut};
use crate::client::row::COUNTED;
use crate::client::subscribing::{self, First, Kind, Names, page_of, subscribe};
use crate::mail::Attach;
use crate::protocol::front::{Census, Clients, Connections, Subscriptions};
use crate::protocol::mqtt::client::{self, is_bridge, mqtt_state, packet_bytes_max};
use crate::protocol::mqtt::options::qos;
use crate::protocol::mqtt::retention::{
    await_retention, count_qos_subscription, count_qos_subscription_of,
};
use crate::protocol::mqtt::shared::join_group;
use crate::protocol::mqtt::state::{RESUMED, Suback, SubscriptionState};
use crate::protocol::mqtt::subscription::{Wanted, part_of};
use crate::store::slab::NONE;

/// A SUBACK or UNSUBACK without its codes: header, packet id, no properties.
const ACK_BYTES: usize = 6;
/// The fewest filters of a SUBSCRIBE that one turn carries out, even if its budget is spent: the packet is decoded again for each turn.
const FILTERS_AT_ONCE: usize = 16;
/// In a checked filter a wildcard is a whole level, so the search for the byte is enough.
const WILDCARDS: [char; 2] = ['+', '#'];

/// Carries out a SUBSCRIBE within the budget of the turn. The SUBACK follows when the homes have answered.
pub(super) fn client_subscribed(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    census: &Census,
    slot: u32,
    subscribe: &Subscribe<'_>,
) -> Result<(), ReasonCode> {
    let packet_id = subscribe.packet_id.get();
    let identifier = subscribe.properties.subscription_identifier().unwrap_or(0);
    let count = subscribe.filters.iter().count();
    has_room_for_codes(&clients.conns, slot, count)?;
    clients.expand(slot);
    let mqtt = mqtt_state(&mut clients.conns, slot);
    let done = usize::from(core::mem::take(&mut mqtt.filters_done));
    let in_use = mqtt.subacks.iter().any(|it| it.packet_id == packet_id);
    if done == 0 && in_use {
        // [MQTT-2.2.1-3]: the packet id is in use, so the answers could not be distinguished.
        let reasons = core::iter::repeat_n(ReasonCode::PACKET_IDENTIFIER_IN_USE, count);
        let (version, id) = (client::version(&clients.conns, slot), subscribe.packet_id);
        clients.write_packet(slot, |out| {
            encode::suback(out, version, id, &Properties::NONE, reasons)
        });
        return Ok(());
    }
    if done == 0 {
        mqtt.subacks.push(Suback {
            packet_id,
            waiting: count as u32,
            is_asked: false,
            is_unsuback: false,
            reasons: alloc::vec![ReasonCode::SUCCESS; count],
        });
    }
    for (n, (filter, options)) in subscribe.filters.iter().enumerate().skip(done) {
        if n >= done + FILTERS_AT_ONCE
            && (clients.meter.work.is_spent() || clients.mqtt_must_wait(slot))
        {
            mqtt_state(&mut clients.conns, slot).filters_done = n as u16;
            return Ok(());
        }
        clients.meter.work.steps.add(1);
        let granted = (packet_id, n as u16);
        let subscribed = subscribe_one(
            clients,
            subs,
            census,
            slot,
            (filter, options),
            identifier,
            granted,
        );
        match subscribed {
            Ok(()) => clients.note(slot, EventKind::Subscribed, filter.as_bytes()),
            Err(reason) => {
                clients.note_refused(slot, "SUBSCRIBE", filter.as_bytes(), reason.name());
                clients.grant(slot, granted, reason);
            }
        }
    }
    Ok(())
}

/// Carries out one filter of a SUBSCRIBE. Its reason code follows with the answer of the home.
fn subscribe_one(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    census: &Census,
    slot: u32,
    (text, mut options): (&str, SubscribeOptions),
    identifier: u32,
    granted: (u16, u16),
) -> Result<(), ReasonCode> {
    let limits = &clients.ctx.world.settings.limits;
    let topic_bytes = limits.topic_bytes;
    let filter = Filter::parse(text).map_err(|_| ReasonCode::TOPIC_FILTER_INVALID)?;
    // The name of a share is stored like a filter, by the session and by each home.
    let share = filter.share.unwrap_or("-").as_bytes();
    let checked = topic::check_filter(filter.filter.as_bytes(), topic_bytes)
        .and_then(|()| topic::check_name(share, topic_bytes));
    if let Err(error) = checked {
        clients.refused_name(slot, "SUBSCRIBE", "filter", text.as_bytes(), &error);
        return Err(ReasonCode::TOPIC_FILTER_INVALID);
    }
    let name = text.as_bytes();
    if filter.share.is_some() && clients.ctx.world.is_replicated() {
        return Err(clients.refuse_subscription(slot, Reason::NoSharedSubscriptions, name));
    }
    clients.grants(slot, Right::Subscribe, filter.filter.as_bytes())?;
    if is_bridge(&clients.conns, slot) {
        // 3.1.1 has no options to ask for it with. Shared subscriptions have no No Local [MQTT-3.8.3-4].
        (options.no_local, options.retain_as_published) = (filter.share.is_none(), true);
    }
    let part = part_of(clients, subs, slot, name);
    let retained = match options.retain_handling {
        RetainHandling::Send => true,
        RetainHandling::SendIfNew => part.is_none(),
        RetainHandling::DoNotSend => false,
    };
    let wanted = Wanted {
        filter: name,
        options,
        identifier,
        retained,
        granted,
    };
    let wildcard = filter.share.is_none() && filter.filter.contains(WILDCARDS);
    if let Some(part) = part {
        return match wildcard {
            true => resubscribe_wildcard(clients, subs, slot, part, &wanted),
            false => resubscribe(clients, subs, slot, part, &wanted),
        };
    }
    if let Err(reached) = has_room(clients, subs, slot, name) {
        return Err(clients.refuse_subscription(slot, reached, name));
    }
    if !clients.has_memory_for(census, slot, 0) {
        return Err(clients.refuse_subscription(slot, Reason::MemoryFull, name));
    }
    if filter.share.is_some() {
        join_group(clients, &mut subs.lanes, slot, &wanted, false);
        return Ok(());
    }
    let joined = join(clients, subs, slot, &wanted, &[]).map(|_| ());
    joined.map_err(|reason| clients.refuse_subscription(slot, reason, name))
}

/// Gives an existing subscription new options, and sends its retained message again if the client asks for it [MQTT-3.8.4-3].
fn resubscribe(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    part: u32,
    wanted: &Wanted<'_>,
) -> Result<(), ReasonCode> {
    let (options, granted) = (wanted.options, wanted.granted);
    let Some(sub) = sub_mut(&mut clients.conns, slot, part) else {
        return Err(ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR);
    };
    let waits = sub.protocol_state.granted != (0, 0);
    if waits {
        // The home has not answered the earlier SUBSCRIBE. Its answer grants both.
        let former = core::mem::replace(&mut sub.protocol_state.granted, granted);
        let behind = &mut mqtt_state(&mut clients.conns, slot).grants_behind;
        behind.push((granted, former));
    }
    let Some(sub) = sub_mut(&mut clients.conns, slot, part) else {
        return Err(ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR);
    };
    let (topic, former) = (sub.topic, qos(sub.protocol_state.options));
    (sub.protocol_state.options, sub.protocol_state.identifier) =
        (options.bits(), wanted.identifier);
    if sub.protocol_state.group.is_some() {
        if !waits {
            clients.grant(slot, granted, ReasonCode::granted(options.max_qos));
        }
        return Ok(());
    }
    let needs_log = options.max_qos.bits();
    if (former > 0) != (needs_log > 0) {
        count_qos_subscription(subs, &clients.ctx, topic, needs_log > 0);
        await_retention(clients, &mut subs.lanes, slot, wanted);
    }
    let Some(sub) = sub_mut(&mut clients.conns, slot, part) else {
        return Err(ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR);
    };
    // If the home has not answered yet, its answer gives the grant.
    let waits = waits || topic != NONE && sub.flags & COUNTED == 0;
    let shows = options.retain_handling == RetainHandling::Send;
    if shows || waits {
        sub.protocol_state.granted = granted;
    } else {
        clients.grant(slot, granted, ReasonCode::granted(options.max_qos));
    }
    if !shows {
        return Ok(());
    }
    // Only for the retained message. Live messages continue.
    let ask = Attach {
        is_next_page: true,
        retained: true,
        ..page_of(clients, &subs.topics, slot, part, topic, Since::Live)
    };
    subs.attach(&clients.ctx, ask);
    Ok(())
}

/// Gives a subscription with wildcards new options.
fn resubscribe_wildcard(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    part: u32,
    wanted: &Wanted<'_>,
) -> Result<(), ReasonCode> {
    let Some(sub) = sub_mut(&mut clients.conns, slot, part) else {
        return Err(ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR);
    };
    let former = qos(sub.protocol_state.options);
    (sub.protocol_state.options, sub.protocol_state.identifier) =
        (wanted.options.bits(), wanted.identifier);
    let waits = sub.protocol_state.granted != (0, 0);
    if waits {
        // Homes have not answered the earlier SUBSCRIBE. Their last answer grants both.
        let former = core::mem::replace(&mut sub.protocol_state.granted, wanted.granted);
        let behind = &mut mqtt_state(&mut clients.conns, slot).grants_behind;
        behind.push((wanted.granted, former));
    }
    let needs_log = wanted.options.max_qos != Qos::AtMostOnce;
    if (former > 0) != needs_log {
        count_qos_subscription_of(&mut subs.lanes, &clients.ctx, 0, wanted.filter, needs_log);
        await_retention(clients, &mut subs.lanes, slot, wanted);
    }
    if !waits {
        let reason = ReasonCode::granted(wanted.options.max_qos);
        clients.grant(slot, wanted.granted, reason);
    }
    if wanted.options.retain_handling == RetainHandling::Send {
        // [MQTT-3.8.4-3]. Live messages continue.
        resend_retained(clients, subs, slot, part, wanted.filter);
    }
    Ok(())
}

/// Whether the client's Maximum Packet Size allows a SUBACK or UNSUBACK with `count` reason codes [MQTT-3.1.2-24].
pub(super) fn has_room_for_codes(
    conns: &Connections,
    slot: u32,
    count: usize,
) -> Result<(), ReasonCode> {
    match ACK_BYTES + count <= packet_bytes_max(conns, slot) {
        true => Ok(()),
        false => Err(ReasonCode::PACKET_TOO_LARGE),
    }
}

/// Subscribes to a topic or, with a position for each partition or none, to a filter. Returns the index in the list.
///
/// # Errors
/// There is no room for the filter.
pub(super) fn join(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    wanted: &Wanted<'_>,
    since: &[Since],
) -> Result<u32, Reason> {
    let is_filter = topic::has_wildcard(wanted.filter);
    let partitions = usize::from(clients.ctx.world.partitions);
    let first = match wanted.retained {
        true => Since::Default,
        false => Since::Live,
    };
    let all;
    let since = match is_filter {
        false if since.is_empty() => &[Since::Live][..],
        true if since.len() != partitions => {
            all = alloc::vec![first; partitions];
            &all
        }
        _ => since,
    };
    let kind = match wanted.granted {
        (0, 0) | RESUMED => Kind::Resumed,
        _ => Kind::New,
    };
    let names = match is_filter {
        true => Names::Filters(&[wanted.filter]),
        false => Names::Topic(wanted.filter),
    };
    let begins = subscribing::Wanted {
        names,
        since,
        first: First {
            retained: wanted.retained,
            ..First::ALL
        },
        kind,
    };
    let own = SubscriptionState {
        options: wanted.options.bits(),
        identifier: wanted.identifier,
        granted: wanted.granted,
        ..SubscriptionState::default()
    };
    let part = subscribe(clients, subs, slot, &begins, own)?;
    if wanted.options.max_qos != Qos::AtMostOnce {
        let (hash, _) = match is_filter {
            true => (0, 0),
            false => clients.ctx.hash_and_home_of(wanted.filter),
        };
        count_qos_subscription_of(&mut subs.lanes, &clients.ctx, hash, wanted.filter, true);
        mqtt_state(&mut clients.conns, slot).needs_told |= is_filter;
    }
    Ok(part)
}
