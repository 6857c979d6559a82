//! A subscription of an MQTT client, whether the client is connected or away.

use crore_wire::mqtt::split_shared;
use serde::Serialize;
use utoipa::ToSchema;

use super::answer::text;

/// A subscription of an MQTT client.
#[derive(Serialize, ToSchema)]
pub struct Subscription {
    /// The topic or filter as in the client's SUBSCRIBE. A shared subscription has `$share/GROUP/FILTER`.
    filter: String,
    qos: u8,
    /// The group of a shared subscription.
    share: Option<String>,
}

/// Converts a subscription of a shard's report: its filter, and its QoS.
pub fn subscription((filter, qos): (Box<[u8]>, u8)) -> Subscription {
    Subscription {
        filter: text(&filter),
        qos,
        share: split_shared(&filter).map(|(group, _)| text(group)),
    }
}
