//! The events of webhooks, and the bodies of requests.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crore_broker::EventKind;
use crore_broker::mail::hooks::{HookNews, MemberChange};
use crore_broker::pusher::{TOPICS, channel_of};
use serde_json::{Value, json};

use crate::settings::webhook::{Webhook, WebhookEvent, WebhookFormat};

/// Limits of a request. A request of one event may have more bytes.
const EVENTS_MAX: usize = 1_000;
const BYTES_MAX: usize = 256 << 10;

/// What the events of a lane are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    Topics,
    Clients,
}

impl Subject {
    /// Whether the webhook gets events of this subject.
    pub fn is_wanted(self, entry: &Webhook) -> bool {
        let is_of_clients = |event: &WebhookEvent| {
            let of_clients = [
                WebhookEvent::ClientConnected,
                WebhookEvent::ClientDisconnected,
            ];
            of_clients.contains(event)
        };
        let mut events = entry.events.iter();
        events.any(|event| is_of_clients(event) == (self == Subject::Clients))
    }

    /// Makes the ids of events differ between the lanes of a webhook.
    pub fn letter(self) -> &'static str {
        match self {
            Subject::Topics => "",
            Subject::Clients => "c",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Subject::Topics => "topics",
            Subject::Clients => "clients",
        }
    }
}

/// The node and the lane that send a request. All events of a topic come from one lane.
pub struct Part {
    /// The name of the node, in a cluster.
    pub node: Option<Arc<str>>,
    /// If the part is a partition of a cluster: orders the stewards of the partition. See [`super::Steward`].
    pub term: Option<u64>,
    pub subject: Subject,
    pub part: usize,
    pub parts: usize,
}

/// Numbers the events of a lane.
pub struct EventIds {
    /// Begins each id. A number follows.
    prefix: String,
    made: u64,
}

impl EventIds {
    pub fn new(prefix: String) -> EventIds {
        EventIds { prefix, made: 0 }
    }

    /// Lets further ids begin with another prefix. The numbers go on.
    pub fn set_prefix(&mut self, prefix: String) {
        self.prefix = prefix;
    }

    fn next(&mut self) -> String {
        self.made += 1;
        format!("{}-{}", self.prefix, self.made)
    }
}

/// A request of a webhook.
pub struct Request {
    /// The id of its first event.
    pub id: String,
    pub body: String,
    /// The number of its events.
    pub events: u64,
}

/// An event.
pub enum Event {
    /// A snapshot begins. The receiver must forget the topics, members or clients of earlier events.
    Resync(Subject),
    /// The snapshot is complete.
    ResyncEnd(Subject),
    /// A topic has got its first subscriber (true), or has lost its last one.
    Subscribers(bool, String),
    /// A member has joined or left.
    Member(MemberChange),
    /// A client has connected (true) or disconnected.
    Client(bool, Value),
}

impl Event {
    /// The events of a shard: first the changes of subscribers, then members and clients, then those topics that have lost their last subscriber and got no
    /// other one. So a topic is occupied before its first member.
    pub fn all(news: HookNews) -> Vec<Event> {
        let changes = || news.subscribers.iter().enumerate();
        let last_changes: HashMap<&[u8], usize> =
            changes().map(|(index, (_, name))| (name, index)).collect();
        let event =
            |(_, (begins, name)): (usize, (bool, &[u8]))| Event::Subscribers(begins, text(name));
        let (ends, others): (Vec<_>, Vec<_>) =
            changes().partition(|(index, (begins, name))| !begins && last_changes[name] == *index);
        let mut all: Vec<Event> = others.into_iter().map(event).collect();
        let ends: Vec<Event> = ends.into_iter().map(event).collect();
        all.extend(news.members.into_iter().map(Event::Member));
        for event in news.clients {
            let conn = event.conn.map(|conn| conn.token().to_string());
            let begins = event.kind == EventKind::Connected;
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
            Event::Resync(_) | Event::ResyncEnd(_) => return None,
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
            Event::Resync(_) => json!("resync"),
            Event::ResyncEnd(_) => json!("resync_end"),
            _ => json!(self.kind()),
        }
    }

    /// Whether the webhook gets the event. In Pusher's form, events are about users and not about their connections.
    pub fn is_wanted(&self, entry: &Webhook) -> bool {
        let is_of_format = match self {
            Event::Member(change) if entry.format == WebhookFormat::Pusher => {
                change.is_of_user && !change.user.is_empty()
            }
            _ => true,
        };
        is_of_format && (self.kind()).is_none_or(|kind| entry.events.contains(&kind))
    }

    fn standard(&self, id: &str) -> Value {
        let mut event = json!({ "id": id, "event": self.name() });
        match self {
            Event::Resync(subject) | Event::ResyncEnd(subject) => {
                event["of"] = json!(subject.name());
            }
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

    /// Every event has a channel, which the library for PHP reads of each.
    fn pusher(&self) -> Value {
        let mut event = json!({ "name": self.name(), "channel": "" });
        match self {
            Event::Resync(subject) | Event::ResyncEnd(subject) => {
                event["of"] = json!(subject.name());
            }
            Event::Subscribers(_, topic) => event["channel"] = json!(channel(topic.as_bytes())),
            Event::Member(change) => {
                event["channel"] = json!(channel(&change.topic));
                event["user_id"] = json!(text(&change.user));
            }
            Event::Client(_, client) => event["client"] = client.clone(),
        }
        event
    }
}

/// The name of a topic for the operator. For a topic of a Pusher app, this is the name of the channel.
fn channel(topic: &[u8]) -> Cow<'_, str> {
    match topic.starts_with(TOPICS.as_bytes()) {
        true => channel_of(topic),
        false => String::from_utf8_lossy(topic),
    }
}

/// The requests with these events, in their order.
pub fn requests(
    format: WebhookFormat,
    part: &Part,
    events: &[Event],
    ids: &mut EventIds,
) -> Vec<Request> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_ms = now.unwrap_or_default().as_millis() as u64;
    let Part {
        node,
        term,
        part,
        parts,
        ..
    } = part;
    let node = node
        .as_ref()
        .map_or_else(String::new, |name| format!(r#""node":{},"#, json!(&**name)));
    let part = match (format, term) {
        (_, Some(term)) => format!(r#""part":{part},"parts":{parts},"term":{term},"#),
        (WebhookFormat::Standard, None) => format!(r#""part":{part},"parts":{parts},"#),
        (WebhookFormat::Pusher, None) => String::new(),
    };
    let begin = format!(r#"{{"time_ms":{now_ms},{node}{part}"events":["#);
    let mut requests: Vec<Request> = Vec::new();
    for event in events {
        let id = ids.next();
        let text = match format {
            WebhookFormat::Standard => event.standard(&id),
            WebhookFormat::Pusher => event.pusher(),
        };
        let text = text.to_string();
        let fits = |it: &&mut Request| {
            it.events < EVENTS_MAX as u64 && it.body.len() + text.len() < BYTES_MAX
        };
        match requests.last_mut().filter(fits) {
            Some(request) => {
                request.body += ",";
                request.body += &text;
                request.events += 1;
            }
            None => requests.push(Request {
                id,
                body: format!("{begin}{text}"),
                events: 1,
            }),
        }
    }
    for request in &mut requests {
        request.body += "]}";
    }
    requests
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crore_broker::ConnId;
    use crore_broker::mail::presence::MemberConn;

    #[test]
    fn pusher_form_names_the_channels_of_apps() {
        for (topic, channel) in [
            ("pusher/chat/news", "news"),
            ("pusher/chat/presence/presence-a", "presence-a"),
            ("other/news", "other/news"),
        ] {
            let event = Event::Subscribers(true, topic.into());
            assert_eq!(event.pusher()["channel"], channel);
            assert_eq!(event.standard("1")["topic"], topic);
        }
        assert_eq!(Event::Resync(Subject::Topics).pusher()["channel"], "");
    }

    #[test]
    fn topic_is_occupied_before_its_members_although_it_is_vacated_in_the_same_news() {
        let mut news = HookNews::default();
        for (begins, topic) in [(true, "a"), (false, "a"), (false, "b"), (true, "b")] {
            news.subscribers.push(begins, topic.as_bytes());
        }
        news.members.push(MemberChange {
            joins: true,
            is_of_user: true,
            topic: b"a"[..].into(),
            id: 1,
            at: MemberConn::here(
                0,
                ConnId {
                    slot: 1,
                    generation: 1,
                },
            ),
            user: b"ann"[..].into(),
            info: b""[..].into(),
        });
        let events = Event::all(news);
        let told = events.iter().map(|event| {
            let event = event.standard("1");
            format!(
                "{} {}",
                event["event"].as_str().unwrap(),
                event["topic"].as_str().unwrap()
            )
        });
        assert_eq!(
            told.collect::<Vec<_>>(),
            [
                "channel_occupied a",
                "channel_vacated b",
                "channel_occupied b",
                "member_added a",
                "channel_vacated a"
            ]
        );
    }

    #[test]
    fn requests_are_bounded_and_have_all_events_in_their_order() {
        let part = Part {
            node: Some("a:8800".into()),
            term: Some(7 << 12),
            subject: Subject::Topics,
            part: 0,
            parts: 1,
        };
        for name_bytes in [1, 255] {
            let topics = (0..3_000).map(|n| format!("{n:0name_bytes$}"));
            let topics: Vec<String> = topics.collect();
            let occupied = |topic: &String| Event::Subscribers(true, topic.clone());
            let events: Vec<Event> = topics.iter().map(occupied).collect();
            let mut ids = EventIds::new("a".into());
            let requests = requests(WebhookFormat::Standard, &part, &events, &mut ids);
            let mut told = Vec::new();
            for request in requests {
                assert!(request.body.len() <= BYTES_MAX + 2);
                let body: Value = serde_json::from_str(&request.body).unwrap();
                assert_eq!(
                    (&body["node"], &body["term"]),
                    (&json!("a:8800"), &json!(7 << 12))
                );
                let events = body["events"].as_array().unwrap();
                assert!(events.len() as u64 == request.events && events.len() <= EVENTS_MAX);
                assert_eq!(events[0]["id"], request.id);
                told.extend(events.clone());
            }
            let name = |n: usize| told[n]["topic"].as_str();
            assert!((0..3_000).all(|n| name(n) == Some(&topics[n])));
            assert!((0..3_000).all(|n| told[n]["id"] == format!("a-{}", n + 1)));
        }
    }
}
