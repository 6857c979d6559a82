//! Describes an MQTT connection to the operator.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::client::list::{is_free_index, name_of, subscription_list};
use crate::client::row::{SUBSCRIPTION_LIST, State};
use crate::mail::orders::MqttState;
use crate::protocol::front::{Clients, Subscriptions};
use crate::protocol::mqtt::client::mqtt_state;
use crate::protocol::mqtt::options::{QOS_SHIFT, V5, qos};
use crate::store::slab::NONE;

/// The state of a connection that has sent its CONNECT, with its first `subscriptions_max` subscriptions.
pub(crate) fn mqtt_details(
    clients: &Clients,
    subs: &Subscriptions,
    slot: u32,
    subscriptions_max: usize,
) -> Option<MqttState> {
    let row = clients.conns.get(slot);
    if row.consumer.state != State::Mqtt || row.consumer.protocol_row == NONE {
        return None;
    }
    let mqtt_row = clients.conns.protocol_row(slot);
    let state = mqtt_state(&clients.conns, slot);
    Some(MqttState {
        is_v5: row.has_option(V5),
        keep_alive_s: mqtt_row.keep_alive_s,
        in_flight: state.map_or(0, |it| it.inflight.len()),
        receive_max: mqtt_row.receive_max,
        waiting: state.map_or(0, |it| it.waiting.len()),
        expiry_s: state.map_or(0, |it| it.expiry_s),
        subscriptions: subscriptions(clients, subs, slot, subscriptions_max),
    })
}

/// The first `count_max` subscriptions in the order of the list: each with its filter as in the SUBSCRIBE, and its QoS.
fn subscriptions(
    clients: &Clients,
    subs: &Subscriptions,
    slot: u32,
    count_max: usize,
) -> Vec<(Box<[u8]>, u8)> {
    let row = clients.conns.get(slot);
    if !row.has_option(SUBSCRIPTION_LIST) {
        let only =
            (row.consumer.topic != NONE).then(|| subs.topics.name(row.consumer.topic).into());
        let qos = (row.consumer.options >> QOS_SHIFT & 3) as u8;
        return only.map(|topic| (topic, qos)).into_iter().collect();
    }
    let list = (0..).zip(subscription_list(&clients.conns, slot));
    list.filter(|(_, sub)| !is_free_index(sub))
        .take(count_max)
        .map(|(sub_index, sub)| {
            let text = name_of(&clients.conns, subs, slot, sub_index);
            (text.into(), qos(sub.protocol_state.options))
        })
        .collect()
}
