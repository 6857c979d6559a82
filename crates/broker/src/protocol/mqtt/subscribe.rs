//! Handles SUBSCRIBE (MQTT 5.0 sections 3.8 and 3.9): checks each filter, asks the homes, and prepares the SUBACK. The list of a client's subscriptions is in
//! `client/list`, the end of a subscription in `unsubscribe`.

use crore_wire::mqtt::{
    Filter, Properties, Qos, ReasonCode, RetainHandling, Subscribe, SubscribeOptions, encode,
};
use crore_wire::topic;

use crate::base::access::Right;
use crate::base::journal::EventKind;
use crate::base::position::Since;
use crate::base::reason::Reason;
use crate::client::list::filters::resend_retained;
use crate::client::list::{check_room, subscription_at_mut};
use crate::client::row::COUNTED;
use crate::client::subscribing::{
    self, FirstPage, SubscribeTarget, SubscriptionKind, counted_page_request, subscribe,
};
use crate::mail::Attach;
use crate::protocol::front::{Census, Clients, Connections, Subscriptions};
use crate::protocol::mqtt::client::{self, client_packet_bytes_max, is_bridge, mqtt_state_mut};
use crate::protocol::mqtt::options::qos;
use crate::protocol::mqtt::retention::{
    await_retention, count_qos_subscription, count_qos_subscription_of,
};
use crate::protocol::mqtt::shared::join_group;
use crate::protocol::mqtt::state::{Suback, SubackEntry, SubscriptionState};
use crate::protocol::mqtt::subscription::{WantedSubscription, find_subscription};
use crate::store::slab::NONE;

/// A SUBACK or UNSUBACK without its codes: header, packet id, no properties.
const ACK_BYTES: usize = 6;
/// A turn handles at least this many filters of a SUBSCRIBE, even if its budget is spent, because the packet is decoded again in each turn.
const FILTERS_AT_ONCE: usize = 16;
/// The wildcards. In a valid filter a wildcard is a whole level, so a search for the character is enough.
const WILDCARDS: [char; 2] = ['+', '#'];

/// Carries out a SUBSCRIBE, as far as the budget of the turn allows. The SUBACK follows when the homes have answered.
pub(super) fn handle_subscribe(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    census: &Census,
    slot: u32,
    subscribe: &Subscribe<'_>,
) -> Result<(), ReasonCode> {
    let packet_id = subscribe.packet_id.get();
    let identifier = subscribe.properties.subscription_identifier().unwrap_or(0);
    let filter_count = subscribe.filters.iter().count();
    has_room_for_codes(&clients.conns, slot, filter_count)?;
    clients.move_to_list(slot);
    let mqtt = mqtt_state_mut(&mut clients.conns, slot);
    let first_index = usize::from(core::mem::take(&mut mqtt.filters_done));
    let is_id_in_use = mqtt.subacks.iter().any(|it| it.packet_id == packet_id);
    if first_index == 0 && is_id_in_use {
        // [MQTT-2.2.1-3]: the packet id is in use, so the answers could not be distinguished.
        let reasons = core::iter::repeat_n(ReasonCode::PACKET_IDENTIFIER_IN_USE, filter_count);
        let (version, id) = (
            client::version_of(&clients.conns, slot),
            subscribe.packet_id,
        );
        clients.write_packet(slot, |out| {
            encode::suback(out, version, id, &Properties::NONE, reasons)
        });
        return Ok(());
    }
    if first_index == 0 {
        mqtt.subacks.push(Suback {
            packet_id,
            unanswered_homes: filter_count as u32,
            is_record_in_flight: false,
            is_unsuback: false,
            reasons: alloc::vec![ReasonCode::SUCCESS; filter_count],
        });
    }
    for (index, (filter, options)) in subscribe.filters.iter().enumerate().skip(first_index) {
        if index >= first_index + FILTERS_AT_ONCE
            && (clients.meter.work.is_spent() || clients.mqtt_must_wait(slot))
        {
            mqtt_state_mut(&mut clients.conns, slot).filters_done = index as u16;
            return Ok(());
        }
        clients.meter.work.steps.add(1);
        let entry = SubackEntry {
            packet_id,
            code_index: index as u16,
        };
        let result = subscribe_filter(
            clients,
            subs,
            census,
            slot,
            (filter, options),
            identifier,
            entry,
        );
        match result {
            Ok(()) => clients.record_event(slot, EventKind::Subscribed, filter.as_bytes()),
            Err(reason) => {
                clients.note_refused(slot, "SUBSCRIBE", filter.as_bytes(), reason.name());
                clients.note_suback_code(slot, entry, reason);
            }
        }
    }
    Ok(())
}

/// Subscribes to one filter of a SUBSCRIBE. The filter's reason code follows when the home answers.
fn subscribe_filter(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    census: &Census,
    slot: u32,
    (text, mut options): (&str, SubscribeOptions),
    identifier: u32,
    entry: SubackEntry,
) -> Result<(), ReasonCode> {
    let limits = &clients.ctx.world.settings.limits;
    let topic_bytes = limits.topic_bytes;
    let filter = Filter::parse(text).map_err(|_| ReasonCode::TOPIC_FILTER_INVALID)?;
    // The share name is stored by the session and by each home, so it has the limits of a topic.
    let share = filter.share.unwrap_or("-").as_bytes();
    let valid = topic::check_filter(filter.filter.as_bytes(), topic_bytes)
        .and_then(|()| topic::check_name(share, topic_bytes));
    if let Err(error) = valid {
        clients.refuse_name(slot, "SUBSCRIBE", "filter", text.as_bytes(), &error);
        return Err(ReasonCode::TOPIC_FILTER_INVALID);
    }
    let name = text.as_bytes();
    if filter.share.is_some() && clients.ctx.world.is_replicated() {
        return Err(clients.refuse_subscription(slot, Reason::NoSharedSubscriptions, name));
    }
    clients.require_right(slot, Right::Subscribe, filter.filter.as_bytes())?;
    if is_bridge(&clients.conns, slot) {
        // A bridge wants these, and 3.1.1 has no options to ask for them. Shared subscriptions may not have No Local [MQTT-3.8.3-4].
        (options.no_local, options.retain_as_published) = (filter.share.is_none(), true);
    }
    let sub_index = find_subscription(clients, subs, slot, name);
    let wants_retained = match options.retain_handling {
        RetainHandling::Send => true,
        RetainHandling::SendIfNew => sub_index.is_none(),
        RetainHandling::DoNotSend => false,
    };
    let wanted = WantedSubscription {
        filter: name,
        options,
        identifier,
        wants_retained,
        suback_entry: entry,
    };
    let is_wildcard = filter.share.is_none() && filter.filter.contains(WILDCARDS);
    if let Some(sub_index) = sub_index {
        return match is_wildcard {
            true => resubscribe_wildcard(clients, subs, slot, sub_index, &wanted),
            false => resubscribe(clients, subs, slot, sub_index, &wanted),
        };
    }
    if let Err(reason) = check_room(clients, subs, slot, name) {
        return Err(clients.refuse_subscription(slot, reason, name));
    }
    if !clients.has_memory_for(census, slot, 0) {
        return Err(clients.refuse_subscription(slot, Reason::MemoryFull, name));
    }
    if filter.share.is_some() {
        join_group(clients, &mut subs.lanes, slot, &wanted, false);
        return Ok(());
    }
    let result = begin_subscription(clients, subs, slot, &wanted, &[]).map(|_| ());
    result.map_err(|reason| clients.refuse_subscription(slot, reason, name))
}

/// Gives an existing subscription new options, and sends its retained message again if the client asks for it [MQTT-3.8.4-3].
fn resubscribe(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    sub_index: u32,
    wanted: &WantedSubscription<'_>,
) -> Result<(), ReasonCode> {
    let (options, entry) = (wanted.options, wanted.suback_entry);
    let Some(sub) = subscription_at_mut(&mut clients.conns, slot, sub_index) else {
        return Err(ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR);
    };
    let is_unanswered = sub.protocol_state.suback_entry != SubackEntry::NONE;
    if is_unanswered {
        // The home has not answered the earlier SUBSCRIBE. Its answer serves both.
        let former = core::mem::replace(&mut sub.protocol_state.suback_entry, entry);
        let repeated = &mut mqtt_state_mut(&mut clients.conns, slot).repeated_entries;
        repeated.push((entry, former));
    }
    let Some(sub) = subscription_at_mut(&mut clients.conns, slot, sub_index) else {
        return Err(ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR);
    };
    let (topic, former) = (sub.topic, qos(sub.protocol_state.options));
    (sub.protocol_state.options, sub.protocol_state.identifier) =
        (options.bits(), wanted.identifier);
    if sub.protocol_state.group.is_some() {
        if !is_unanswered {
            clients.note_suback_code(slot, entry, ReasonCode::granted(options.max_qos));
        }
        return Ok(());
    }
    let qos = options.max_qos.bits();
    if (former > 0) != (qos > 0) {
        count_qos_subscription(subs, &clients.ctx, topic, qos > 0);
        await_retention(clients, &mut subs.lanes, slot, wanted);
    }
    let Some(sub) = subscription_at_mut(&mut clients.conns, slot, sub_index) else {
        return Err(ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR);
    };
    // If the home has not answered yet, its answer fills the SUBACK's entry.
    let is_unanswered = is_unanswered || topic != NONE && sub.flags & COUNTED == 0;
    let wants_retained = options.retain_handling == RetainHandling::Send;
    if wants_retained || is_unanswered {
        sub.protocol_state.suback_entry = entry;
    } else {
        clients.note_suback_code(slot, entry, ReasonCode::granted(options.max_qos));
    }
    if !wants_retained {
        return Ok(());
    }
    // Only for the retained message. Live messages continue.
    let ask = Attach {
        is_next_page: true,
        retained: true,
        ..counted_page_request(clients, &subs.topics, slot, sub_index, topic, Since::Live)
    };
    subs.attach(&clients.ctx, ask);
    Ok(())
}

/// Gives a subscription with wildcards new options.
fn resubscribe_wildcard(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    sub_index: u32,
    wanted: &WantedSubscription<'_>,
) -> Result<(), ReasonCode> {
    let Some(sub) = subscription_at_mut(&mut clients.conns, slot, sub_index) else {
        return Err(ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR);
    };
    let former = qos(sub.protocol_state.options);
    (sub.protocol_state.options, sub.protocol_state.identifier) =
        (wanted.options.bits(), wanted.identifier);
    let is_unanswered = sub.protocol_state.suback_entry != SubackEntry::NONE;
    if is_unanswered {
        // Homes have not answered the earlier SUBSCRIBE. Their last answer serves both.
        let former = core::mem::replace(&mut sub.protocol_state.suback_entry, wanted.suback_entry);
        let repeated = &mut mqtt_state_mut(&mut clients.conns, slot).repeated_entries;
        repeated.push((wanted.suback_entry, former));
    }
    let needs_log = wanted.options.max_qos != Qos::AtMostOnce;
    if (former > 0) != needs_log {
        count_qos_subscription_of(&mut subs.lanes, &clients.ctx, 0, wanted.filter, needs_log);
        await_retention(clients, &mut subs.lanes, slot, wanted);
    }
    if !is_unanswered {
        let reason = ReasonCode::granted(wanted.options.max_qos);
        clients.note_suback_code(slot, wanted.suback_entry, reason);
    }
    if wanted.options.retain_handling == RetainHandling::Send {
        // [MQTT-3.8.4-3]. Live messages continue.
        resend_retained(clients, subs, slot, sub_index, wanted.filter);
    }
    Ok(())
}

/// Whether the client's Maximum Packet Size allows a SUBACK or UNSUBACK with `count` reason codes [MQTT-3.1.2-24].
pub(super) fn has_room_for_codes(
    conns: &Connections,
    slot: u32,
    count: usize,
) -> Result<(), ReasonCode> {
    match ACK_BYTES + count <= client_packet_bytes_max(conns, slot) {
        true => Ok(()),
        false => Err(ReasonCode::PACKET_TOO_LARGE),
    }
}

/// Subscribes to a topic or, with a position for each partition or none, to a filter. Returns the index in the list.
///
/// # Errors
/// There is no room for the filter.
pub(super) fn begin_subscription(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    wanted: &WantedSubscription<'_>,
    since: &[Since],
) -> Result<u32, Reason> {
    let is_filter = topic::has_wildcard(wanted.filter);
    let partitions = usize::from(clients.ctx.world.partitions);
    let default_since = match wanted.wants_retained {
        true => Since::Default,
        false => Since::Live,
    };
    let all_partitions;
    let since = match is_filter {
        false if since.is_empty() => &[Since::Live][..],
        true if since.len() != partitions => {
            all_partitions = alloc::vec![default_since; partitions];
            &all_partitions
        }
        _ => since,
    };
    let kind = match wanted.suback_entry {
        SubackEntry::NONE | SubackEntry::RESUMED => SubscriptionKind::Resumed,
        _ => SubscriptionKind::New,
    };
    let target = match is_filter {
        true => SubscribeTarget::Filters(&[wanted.filter]),
        false => SubscribeTarget::Topic(wanted.filter),
    };
    let request = subscribing::SubscribeRequest {
        target,
        since,
        first_page: FirstPage {
            with_retained: wanted.wants_retained,
            ..FirstPage::ALL
        },
        kind,
    };
    let mqtt_options = SubscriptionState {
        options: wanted.options.bits(),
        identifier: wanted.identifier,
        suback_entry: wanted.suback_entry,
        ..SubscriptionState::default()
    };
    let sub_index = subscribe(clients, subs, slot, &request, mqtt_options)?;
    if wanted.options.max_qos != Qos::AtMostOnce {
        let (hash, _) = match is_filter {
            true => (0, 0),
            false => clients.ctx.hash_and_home_of(wanted.filter),
        };
        count_qos_subscription_of(&mut subs.lanes, &clients.ctx, hash, wanted.filter, true);
        mqtt_state_mut(&mut clients.conns, slot).is_retention_unconfirmed |= is_filter;
    }
    Ok(sub_index)
}
