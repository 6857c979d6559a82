//! Writes the log of clients: one line for each connect, subscription, refusal and disconnect, at level `debug` with the target [`TARGET`]
//! (`--log info,clients=debug`).
//!
//! If that level is off, the shard has no [`ClientLog`] and collects no events.

use std::sync::Arc;

use crore_broker::{ClientEvent, EventKind, ShardId};
use crore_settings::ClientFilter;
use tracing::Level;

/// The target of the log lines, as `--log` names it.
const TARGET: &str = "clients";

/// Logs the clients of one shard.
pub struct ClientLog {
    shard: ShardId,
    /// The clients to log; empty for all.
    filters: Arc<[ClientFilter]>,
}

impl ClientLog {
    /// The log of this shard, if the level is on.
    pub fn if_enabled(shard: ShardId, filters: &Arc<[ClientFilter]>) -> Option<ClientLog> {
        let filters = Arc::clone(filters);
        tracing::enabled!(target: TARGET, Level::DEBUG).then_some(ClientLog { shard, filters })
    }

    /// Logs an event, if a filter selects its client.
    pub fn write(&self, event: &ClientEvent) {
        if let EventKind::Dropped(count) = event.kind {
            tracing::debug!(target: TARGET, count, "events of clients were dropped: too many at once");
            return;
        }
        if !self.filters.is_empty()
            && !self
                .filters
                .iter()
                .any(|filter| matches_filter(event, filter))
        {
            return;
        }
        let connection = event.conn.map(|conn| {
            tracing::field::display(format!("{}-{}-{}", self.shard, conn.slot, conn.generation))
        });
        let address = event
            .address
            .map(|ip| tracing::field::display(ip.to_canonical()));
        let non_empty =
            |text: &'_ str| (!text.is_empty()).then(|| tracing::field::display(text.to_string()));
        let (user, client) = (non_empty(&event.user), non_empty(&event.client_id));
        let detail = non_empty(&event.detail);
        match event.kind {
            EventKind::Connected => {
                tracing::debug!(target: TARGET, connection, address, "connected");
            }
            EventKind::SessionOpened => {
                tracing::debug!(target: TARGET, connection, address, user, client, "MQTT session opened");
            }
            EventKind::Subscribed => {
                tracing::debug!(target: TARGET, connection, address, user, client, topic = detail, "subscribed");
            }
            EventKind::Refused => {
                tracing::debug!(target: TARGET, connection, address, user, client, reason = detail, "refused");
            }
            EventKind::Disconnected => {
                tracing::debug!(target: TARGET, connection, address, user, client, reason = detail, "disconnected");
            }
            EventKind::Dropped(_) => {}
        }
    }
}

fn matches_filter(event: &ClientEvent, filter: &ClientFilter) -> bool {
    match filter {
        ClientFilter::User(user) => **user == *event.user,
        ClientFilter::Address(ip) => event.address.is_some_and(|from| from.to_canonical() == *ip),
        ClientFilter::Client(id) => **id == *event.client_id,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_selects_by_user_address_in_either_form_and_client_id() {
        let event = ClientEvent {
            kind: EventKind::Subscribed,
            conn: None,
            address: Some("::ffff:10.0.0.7".parse().unwrap()),
            user: "ann".into(),
            client_id: "sensor-7".into(),
            detail: "news".into(),
        };
        for (filter, is_match) in [
            ("user=ann", true),
            ("user=an", false),
            ("address=10.0.0.7", true),
            ("address=::ffff:10.0.0.7", true),
            ("address=10.0.0.8", false),
            ("client=sensor-7", true),
            ("client=sensor", false),
        ] {
            assert_eq!(
                matches_filter(&event, &filter.parse().unwrap()),
                is_match,
                "{filter}"
            );
        }
    }
}
