//! The events of webhooks, and the bodies of requests.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use crore_broker::EventKind;
use crore_broker::mail::hooks::{HookNews, MemberChange};
use serde_json::{Value, json};

use crate::settings::webhook::{Webhook, WebhookEvent, WebhookFormat};

/// The lane that sends a request: each topic belongs to one part.
#[derive(Clone, Copy)]
pub struct Part {
    pub part: usize,
    pub parts: usize,
}

/// An event.
pub enum Event {
    /// A snapshot begins: what was told before is void.
    Resync,
    /// The snapshot is complete.
    ResyncEnd,
    /// A topic has got its first subscriber (true), or has lost its last one.
    Subscribers(bool, String),
    /// A member has joined or left.
    Member(MemberChange),
    /// A client has connected (true) or disconnected.
    Client(bool, Value),
}

impl Event {
    /// The events of a shard: first the topics that have subscribers now, then members and clients, then the topics without subscribers. So a topic is
    /// occupied before its first member, and vacated after its last one.
    pub fn all(news: HookNews) -> Vec<Event> {
        let last: HashMap<&[u8], bool> = (news.subscribers.iter())
            .map(|(begins, name)| (name, begins))
            .collect();
        let subscribers = |are_there: bool| -> Vec<Event> {
            let changes = news.subscribers.iter();
            changes
                .filter(|(_, name)| last[name] == are_there)
                .map(|(begins, name)| Event::Subscribers(begins, text(name)))
                .collect()
        };
        let mut all = subscribers(true);
        let ends = subscribers(false);
        all.extend(news.members.into_iter().map(Event::Member));
        for event in news.clients {
            let conn = event.conn.map(|conn| conn.token().to_string());
            let begins = event.what == EventKind::Connected;
            all.push(Event::Client(
                begins,
                json!({
                    "connection": conn,
                    "address": event.address.map(|address| address.to_string()),
                    "user": Some(event.user).filter(|user| !user.is_empty()),
                    "client_id": Some(event.client_id).filter(|id| !id.is_empty()),
                    "reason": Some(event.detail).filter(|_| !begins),
                }),
            ));
        }
        all.extend(ends);
        all
    }

    fn kind(&self) -> Option<WebhookEvent> {
        Some(match self {
            Event::Resync | Event::ResyncEnd => return None,
            Event::Subscribers(true, _) => WebhookEvent::ChannelOccupied,
            Event::Subscribers(false, _) => WebhookEvent::ChannelVacated,
            Event::Member(change) if change.joins => WebhookEvent::MemberAdded,
            Event::Member(_) => WebhookEvent::MemberRemoved,
            Event::Client(true, _) => WebhookEvent::ClientConnected,
            Event::Client(false, _) => WebhookEvent::ClientDisconnected,
        })
    }

    fn name(&self) -> Value {
        match self {
            Event::Resync => json!("resync"),
            Event::ResyncEnd => json!("resync_end"),
            _ => json!(self.kind()),
        }
    }

    /// Whether the webhook gets the event. Pusher tells of users, not of their connections.
    pub fn is_wanted(&self, entry: &Webhook) -> bool {
        let is_of_format = match self {
            Event::Member(change) if entry.format == WebhookFormat::Pusher => {
                change.is_of_user && !change.user.is_empty()
            }
            _ => true,
        };
        is_of_format && (self.kind()).is_none_or(|kind| entry.events.contains(&kind))
    }

    fn standard(&self, id: String) -> Value {
        let mut event = json!({ "id": id, "event": self.name() });
        match self {
            Event::Resync | Event::ResyncEnd => {}
            Event::Subscribers(_, topic) => event["topic"] = json!(topic),
            Event::Member(change) => {
                event["topic"] = json!(text(&change.topic));
                event["member"] = json!(change.id.to_string());
                if !change.user.is_empty() {
                    event["user"] = json!(text(&change.user));
                }
                if let Ok(info) = serde_json::from_slice::<Value>(&change.info) {
                    event["info"] = info;
                }
            }
            Event::Client(_, client) => event["client"] = client.clone(),
        }
        event
    }

    fn pusher(&self) -> Value {
        let mut event = json!({ "name": self.name() });
        match self {
            Event::Resync | Event::ResyncEnd => {}
            Event::Subscribers(_, topic) => event["channel"] = json!(topic),
            Event::Member(change) => {
                event["channel"] = json!(text(&change.topic));
                event["user_id"] = json!(text(&change.user));
            }
            Event::Client(_, client) => event["client"] = client.clone(),
        }
        event
    }
}

/// The body of a request with these events and their ids.
pub fn of_events<'a>(
    format: WebhookFormat,
    Part { part, parts }: Part,
    events: impl Iterator<Item = (String, &'a Event)>,
) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_ms = now.unwrap_or_default().as_millis() as u64;
    let body = match format {
        WebhookFormat::Standard => {
            let events: Vec<Value> = events.map(|(id, event)| event.standard(id)).collect();
            json!({ "time_ms": now_ms, "part": part, "parts": parts, "events": events })
        }
        WebhookFormat::Pusher => {
            let events: Vec<Value> = events.map(|(_, event)| event.pusher()).collect();
            json!({ "time_ms": now_ms, "events": events })
        }
    };
    body.to_string()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
