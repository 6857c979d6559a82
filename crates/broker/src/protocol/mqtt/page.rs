//! Answers of homes to a client's subscriptions: grants, retained messages and pages of the log (MQTT 5.0 sections 3.8.4 and 3.9). Requests the next
//! pages of subscriptions that have fallen behind.
//!
//! Order of a subscription's messages: retained messages first, then pages of the log up to the page marked `at_head`, then live messages.

use crore_wire::mqtt::ReasonCode;

use crate::base::planted::{self, Fault};
use crate::base::position::{Position, Since};
use crate::base::reason::Reason;
use crate::client::row::{COUNTED, HELD, LIVE, MULTI, State};
use crate::client::side::Behind;
use crate::client::subscriptions::ask_behind;
use crate::io::Io;
use crate::mail::{Attach, Attached, Frames, LatestValues, Page};
use crate::protocol::front::{Clients, Deliveries, Queues, Subscriptions};
use crate::protocol::mqtt::client::{count_asked_pages, mqtt_state};
use crate::protocol::mqtt::close::end_unplaced;
use crate::protocol::mqtt::deliver::{has_room, places, send_in_order, send_waiting};
use crate::protocol::mqtt::filters::catch_up_wildcards;
use crate::protocol::mqtt::give::{Wants, send_or_hold, topic_name};
use crate::protocol::mqtt::list::{self, collapse, part_name, sub_mut};
use crate::protocol::mqtt::options::qos_of;
use crate::protocol::mqtt::overlap::{start_anew, start_live};
use crate::protocol::mqtt::retained_latest::{
    ask_latest_values, begin_latest_values, end_latest_values, send_latest_values,
};
use crate::protocol::mqtt::shared::return_owed_credit;
use crate::protocol::mqtt::state::RESUMED;
use crate::protocol::mqtt::subscribe::page_of;
use crate::protocol::mqtt::suspend::text_of;
use crate::protocol::mqtt::unsubscribe::leave_part;
use crate::store::slab::NONE;

/// A home's answer to an attach.
pub(crate) fn mqtt_page<I: Io>(
    clients: &mut Clients,
    subs: &Subscriptions,
    deliveries: &Deliveries,
    queues: &mut Queues,
    (slot, part): (u32, u32),
    (page, frames): (&Page, &Frames),
    io: &mut I,
) {
    // A subscription in the row has noted there that it has fallen behind.
    clients.expand(slot);
    let Some(sub) = sub_mut(&mut clients.conns, slot, part) else {
        return clients.broken(slot);
    };
    let granted = core::mem::take(&mut sub.own.granted);
    let (options, identifiers) = (sub.own.options, [sub.own.identifier]);
    if granted != (0, 0) {
        let reason = ReasonCode::granted(qos_of(options));
        clients.grant(slot, granted, reason);
        clients.send_reply(slot, io);
        clients.confirm_resumed(slot, io);
    }
    let (first, count) = (page.first as usize, page.count as usize);
    let records = frames.pages.get(first..first + count).unwrap_or_default();
    if page.values == LatestValues::These {
        return send_latest_values(
            clients,
            &subs.topics,
            queues,
            (slot, part),
            page,
            (records, frames),
            io,
        );
    }
    let (retained, records) = records.split_at(records.len().min(page.retained as usize));
    let name = topic_name(&clients.conns, &subs.topics, slot, part);
    for record in retained {
        let wants = Wants {
            options,
            identifiers: &identifiers,
            retained: true,
            unbound: true,
            ..Wants::default()
        };
        send_or_hold(clients, slot, &wants, (&name, record, frames), io);
    }
    if page.values == LatestValues::Wait {
        // Values after the position of a resumed session are sent by the subscription.
        let position = list::sub(&clients.conns, slot, part).filter(|sub| sub.epoch == page.epoch);
        let until = position.filter(|_| !page.only_retained);
        let until = until.map_or(page.head, |sub| sub.offset);
        begin_latest_values(clients, queues, slot, part, until);
    }
    if page.only_retained {
        return;
    }
    let (mut head, mut at_head) = (page.head, page.at_head);
    if let Some(left) = send_in_order(clients, subs, deliveries, (slot, part), records, frames, io)
    {
        (head, at_head) = (left.previous, false);
    }
    let Some(sub) = sub_mut(&mut clients.conns, slot, part) else {
        return clients.broken(slot);
    };
    (sub.offset, sub.epoch) = (head, page.epoch);
    if at_head {
        sub.flags |= LIVE;
        let partition = clients.ctx.partition_of(&name);
        start_live(&mut clients.conns, slot, part, partition, head);
        collapse(&mut clients.conns, slot);
    } else {
        let seen = Behind::at(part, head, page.epoch);
        clients.conns.extra(slot).behind.push(seen);
        if !planted::is(Fault::LostWake) {
            queues.resume_later(clients, clients.conns.id_of(slot));
        }
    }
}

/// A home has refused a subscription, or its topic was deleted.
pub(crate) fn mqtt_not_attached<I: Io>(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    queues: &mut Queues,
    slot: u32,
    part: u32,
    page: &Page,
    io: &mut I,
) {
    let attached = page.attached;
    clients.expand(slot);
    if page.only_retained && end_latest_values(clients, queues, slot, part) {
        // The subscription itself continues, and will learn of the deletion.
        return;
    }
    let Some(sub) = sub_mut(&mut clients.conns, slot, part) else {
        return clients.broken(slot);
    };
    if attached == Attached::Gone {
        // The kept messages were deleted. It continues after the deletion.
        (sub.offset, sub.epoch) = (page.head, page.epoch);
        mqtt_state(&mut clients.conns, slot).fresh.push(part);
        let partition =
            clients
                .ctx
                .partition_of(&topic_name(&clients.conns, &subs.topics, slot, part));
        start_anew(clients, &subs.topics, slot, part, partition, page.head);
        return queues.resume_later(clients, clients.conns.id_of(slot));
    }
    refuse_part(clients, subs, queues, slot, part, attached.refusal(), io);
}

/// A home has no room for a subscription. A new subscription is refused. For a resumed one the connection ends, since MQTT has no other way to tell
/// the client. The session keeps it, so that the next connection tries again.
pub(crate) fn refuse_part<I: Io>(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    queues: &mut Queues,
    slot: u32,
    part: u32,
    reason: Reason,
    io: &mut I,
) {
    let Some(sub) = sub_mut(&mut clients.conns, slot, part) else {
        return clients.broken(slot);
    };
    let granted = core::mem::take(&mut sub.own.granted);
    let text = text_of(&clients.conns, subs, slot, part);
    if matches!(granted, (0, 0) | RESUMED) {
        return end_unplaced(clients, slot, &text, reason, io);
    }
    let code = clients.refuse_subscription(reason, &text);
    clients.grant(slot, granted, code);
    leave_part(clients, subs, queues, slot, part);
    clients.send_reply(slot, io);
}

/// Requests the next pages of subscriptions that have fallen behind, as far as there is room for their messages.
pub(super) fn mqtt_catch_up<I: Io>(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    queues: &mut Queues,
    slot: u32,
    io: &mut I,
) {
    send_waiting(clients, &mut subs.lanes, queues, slot, io);
    return_owed_credit(clients, &mut subs.lanes, slot);
    let row = clients.conns.get(slot);
    let full = row.outbox != NONE;
    // Nothing may overtake a CONNACK that waits in the outbox for resumed subscriptions.
    if full && !row.is(HELD) || row.extra() == NONE || row.state != State::Mqtt {
        return;
    }
    let fresh = core::mem::take(&mut mqtt_state(&mut clients.conns, slot).fresh);
    for part in fresh {
        let Some(sub) = list::sub(&clients.conns, slot, part) else {
            return clients.broken(slot);
        };
        let (topic, is_next_page) = (sub.topic, sub.flags & COUNTED != 0);
        let since = Since::At(Position::new(sub.epoch, sub.offset));
        if topic == NONE {
            continue;
        }
        subs.topics.get_mut(topic).waiting += u32::from(!is_next_page);
        let ask = page_of(clients, &subs.topics, slot, part, topic, since);
        subs.attach(
            &clients.ctx,
            Attach {
                is_next_page,
                ..ask
            },
        );
    }
    if full {
        return;
    }
    ask_latest_values(clients, subs, slot);
    catch_up_wildcards(clients, subs, slot);
    if has_room(&clients.conns, slot) {
        catch_up_list(clients, subs, slot);
    }
}

/// The outbox is empty: subscriptions that have fallen behind read on from the log, as far as the client takes messages.
fn catch_up_list(clients: &mut Clients, subs: &mut Subscriptions, slot: u32) {
    if clients.conns.get(slot).extra() == NONE {
        return;
    }
    let behind = core::mem::take(&mut clients.conns.extra(slot).behind);
    if behind.is_empty() {
        return;
    }
    for seen in behind {
        let most = places(&clients.conns, slot, seen.part);
        if most == 0 {
            clients.conns.extra(slot).behind.push(seen);
            continue;
        }
        count_asked_pages(&mut clients.conns, slot, 1);
        ask_behind(
            clients,
            subs,
            slot,
            &seen,
            (part_name(&clients.conns, slot, seen.part), most),
            false,
        );
    }
    if clients.conns.extra(slot).is_idle() && !clients.conns.get(slot).wants(MULTI) {
        clients.conns.drop_extra(slot);
    }
}
