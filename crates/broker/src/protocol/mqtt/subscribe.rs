//! SUBSCRIBE, the requests to homes that follow from it, and SUBACK (MQTT 5.0 sections 3.8 and 3.9). The list of a client's subscriptions is in
//! `list`, their end in `unsubscribe`.

use crore_wire::mqtt::{
    Filter, Properties, Qos, ReasonCode, RetainHandling, Subscribe, SubscribeOptions, encode,
};
use crore_wire::topic;

use crate::base::access::Right;
use crate::base::journal::EventKind;
use crate::base::position::{Position, Since};
use crate::base::reason::Reason;
use crate::budget::admission::Client;
use crate::client::joining::filter_subscriptions;
use crate::client::row::COUNTED;
use crate::client::subscriptions::{ask_of, has_room_for};
use crate::mail::Attach;
use crate::protocol::front::{Census, Clients, Connections, Sub, Subscriptions, Topics};
use crate::protocol::mqtt::client::{
    self, count_asked_pages, is_bridge, mqtt_state, packet_bytes_max,
};
use crate::protocol::mqtt::filters::{join_wildcard, resubscribe_wildcard};
use crate::protocol::mqtt::list::{
    Wanted, add_sub, is_vacant, list_of, part_name, part_of, sub_mut,
};
use crate::protocol::mqtt::options::qos;
use crate::protocol::mqtt::retention::{await_retention, count_qos_subscription};
use crate::protocol::mqtt::shared::join_group;
use crate::protocol::mqtt::state::{RESUMED, Suback, Subscribed};
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
        let meter = &mut clients.meter;
        meter.refused_name("SUBSCRIBE", "filter", text.as_bytes(), &error);
        return Err(ReasonCode::TOPIC_FILTER_INVALID);
    }
    let name = text.as_bytes();
    if filter.share.is_some() && clients.ctx.world.is_replicated() {
        return Err(clients.refuse_subscription(Reason::NoSharedSubscriptions, name));
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
        since: Since::Live,
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
        return Err(clients.refuse_subscription(reached, name));
    }
    if !clients.may_take(census, slot, 0) {
        return Err(clients.refuse_subscription(Reason::MemoryFull, name));
    }
    if wildcard {
        let joined = join_wildcard(clients, subs, slot, &wanted, &[]);
        return joined.map_err(|reason| clients.refuse_subscription(reason, name));
    }
    match filter.share {
        Some(_) => join_group(clients, &mut subs.lanes, slot, &wanted, false),
        None => join_topic(clients, subs, slot, &wanted),
    }
    Ok(())
}

/// Whether the connection may have one more subscription, to this topic or filter.
fn has_room(clients: &Clients, subs: &Subscriptions, slot: u32, name: &[u8]) -> Result<(), Reason> {
    let limits = &clients.ctx.world.settings.limits;
    let list = list_of(&clients.conns, slot);
    clients.meter.work.steps.add(1 + list.len() / 8);
    let count = 1 + list.iter().filter(|sub| !is_vacant(sub)).count();
    // A few subscriptions are allowed however long their filters are.
    if limits.has_room_for_names(count, count * limits.topic_bytes) {
        return has_room_for(limits, count, 0);
    }
    clients.meter.work.steps.add(list.len());
    let topics = list.iter().map(|sub| match &sub.own.group {
        Some(group) => group.text.len(),
        None if sub.topic != NONE => subs.topics.name(sub.topic).len(),
        None => 0,
    });
    let filters = filter_subscriptions(&clients.conns, slot).into_iter();
    let filters = filters.flat_map(|all| all.parts());
    let filters = filters.map(|(_, part)| subs.matching.name(part.row).len());
    let bytes = name.len() + topics.sum::<usize>() + filters.sum::<usize>();
    has_room_for(limits, count, bytes)
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
    let waits = sub.own.granted != (0, 0);
    if waits {
        // The home has not answered the earlier SUBSCRIBE. Its answer grants both.
        let former = core::mem::replace(&mut sub.own.granted, granted);
        let behind = &mut mqtt_state(&mut clients.conns, slot).grants_behind;
        behind.push((granted, former));
    }
    let Some(sub) = sub_mut(&mut clients.conns, slot, part) else {
        return Err(ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR);
    };
    let (topic, former) = (sub.topic, qos(sub.own.options));
    (sub.own.options, sub.own.identifier) = (options.bits(), wanted.identifier);
    if sub.own.group.is_some() {
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
        sub.own.granted = granted;
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

/// Adds a subscription to the list and asks its home.
pub(super) fn join_topic(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    wanted: &Wanted<'_>,
) {
    let (hash, _) = clients.ctx.place_of(wanted.filter);
    let topic = subs.topics.open(hash, wanted.filter);
    let place = subs.topics.join(topic, slot);
    let (epoch, offset) = match wanted.since {
        Since::At(Position { epoch, offset }) => (epoch, offset),
        // It has seen nothing yet.
        _ => (!clients.ctx.world.epoch, 0),
    };
    let sub = Sub {
        topic,
        place,
        flags: 0,
        offset,
        epoch,
        own: Subscribed {
            options: wanted.options.bits(),
            identifier: wanted.identifier,
            granted: wanted.granted,
            ..Subscribed::default()
        },
    };
    let part = add_sub(&mut clients.conns, slot, sub);
    subs.topics.get_mut(topic).waiting += 1;
    // A resumed subscription was counted when it was made.
    let client = match wanted.granted {
        (0, 0) | RESUMED => Client::NOBODY,
        _ => clients.conns.get(slot).client,
    };
    let ask = Attach {
        retained: wanted.retained,
        client,
        ..page_of(clients, &subs.topics, slot, part, topic, wanted.since)
    };
    subs.attach(&clients.ctx, ask);
    if wanted.options.max_qos != Qos::AtMostOnce {
        count_qos_subscription(subs, &clients.ctx, topic, true);
    }
}

/// The request for the first page of a subscription's topic. Counts the page.
pub(super) fn page_of(
    clients: &mut Clients,
    topics: &Topics,
    slot: u32,
    part: u32,
    topic: u32,
    since: Since,
) -> Attach {
    count_asked_pages(&mut clients.conns, slot, 1);
    let name = part_name(&clients.conns, slot, part);
    let to = clients.conns.reply_to(slot, name);
    ask_of(clients, topics, topic, to, since)
}
