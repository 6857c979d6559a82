//! The methods of the API that are about channels, which are topics.

use std::borrow::Cow;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crore_broker::mail::message::Headers;
use crore_broker::mail::presence::{PresenceChange, PresencePage};
use crore_broker::orders::{self, LogPageRequest, TopicsPageRequest};
use crore_broker::position::Position;
use crore_broker::protocol::{
    centrifugo_channel_names as channel_names, client_id_text, epoch_text,
};
use crore_broker::{Control, ShardId, World};
use crore_wire::centrifugo::codes::ErrorCode;
use crore_wire::json::is_json;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use super::nodes::call_all;
use super::{Empty, Failure, Reply, check_count, read, result};
use crate::control::api::answer::{ApiError, text};
use crate::control::api::topics::{
    NewMessage, name_and_home, publish_message, purge_topic, read_log, topic_at,
};
use crate::control::state::AdminState;
use crate::lifecycle::Lifecycle;
use crate::lifecycle::shards::Shards;

/// The most messages of a history.
const HISTORY_MAX: u32 = 1_000;
/// The most channels that `channels` lists.
const CHANNELS_MAX: usize = 10_000;
/// The most members of a channel that `presence` lists.
const MEMBERS_MAX: usize = 10_000;
/// Topics or members for which a home is asked at once.
const TOPICS_PER_ORDER: u32 = 1_000;

/// The message of `publish` and `broadcast`.
#[derive(Deserialize)]
struct Content<'a> {
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    b64data: Option<String>,
    skip_history: Option<bool>,
    tags: Option<BTreeMap<String, String>>,
    idempotency_key: Option<String>,
    version: Option<u64>,
}

impl Content<'_> {
    fn message(&self) -> Result<NewMessage, Failure> {
        if self.tags.as_ref().is_some_and(|tags| !tags.is_empty()) {
            return Err(Failure::not_built("tags"));
        }
        if self.version.is_some_and(|version| version > 0) {
            return Err(Failure::not_built("version"));
        }
        let data = data_of(self.data, self.b64data.as_deref())?;
        if data.is_empty() {
            return Err(Failure::bad("a publish without data"));
        }
        let key = self.idempotency_key.as_deref().unwrap_or_default();
        Ok(NewMessage {
            headers: Headers {
                qos: 1,
                // It expires at once: those who subscribe now get it.
                ttl_s: self.skip_history.unwrap_or_default().then_some(0),
                binary: std::str::from_utf8(&data).is_err(),
                ..Headers::default()
            },
            data,
            idempotency_key: (!key.is_empty()).then(|| key.as_bytes().into()),
        })
    }
}

/// The parameters of a method of one channel.
#[derive(Deserialize)]
pub struct Channel {
    #[serde(default)]
    channel: String,
}

/// The parameters of `broadcast`, besides the message.
#[derive(Deserialize)]
struct Channels {
    #[serde(default)]
    channels: Vec<String>,
}

/// A position in a channel.
#[derive(Deserialize, Serialize)]
pub struct Place {
    #[serde(default)]
    offset: u64,
    #[serde(default)]
    epoch: String,
}

/// The parameters of `history`.
#[derive(Deserialize)]
pub struct History {
    #[serde(default)]
    channel: String,
    limit: Option<i64>,
    since: Option<Place>,
    reverse: Option<bool>,
}

/// The parameters of `channels`.
#[derive(Deserialize)]
pub struct Pattern {
    pattern: Option<String>,
}

/// The answer to `presence`.
#[derive(Serialize)]
pub struct Present {
    presence: BTreeMap<String, ClientInfo>,
}

/// A client that is present in a channel.
#[derive(Serialize)]
struct ClientInfo {
    client: String,
    user: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    conn_info: Option<Box<RawValue>>,
}

/// The answer to `presence_stats`.
#[derive(Serialize)]
pub struct PresentCounts {
    num_clients: u32,
    num_users: u32,
}

#[derive(Serialize)]
pub struct Responses {
    responses: Vec<Reply>,
}

/// A message in the form of JSON clients.
#[derive(Serialize)]
struct Publication {
    data: Box<RawValue>,
    offset: u64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    tags: BTreeMap<&'static str, &'static str>,
}

#[derive(Serialize)]
pub struct Publications {
    publications: Vec<Publication>,
    #[serde(flatten)]
    head: Place,
}

#[derive(Serialize, Deserialize)]
pub struct Subscribed {
    channels: BTreeMap<String, Clients>,
}

#[derive(Serialize, Deserialize)]
struct Clients {
    num_clients: u32,
}

/// The data of a call: Base64 before JSON. Empty without any.
pub fn data_of(data: Option<&RawValue>, b64data: Option<&str>) -> Result<Vec<u8>, Failure> {
    match (b64data, data) {
        (Some(data), _) if !data.is_empty() => STANDARD
            .decode(data)
            .map_err(|error| Failure::bad(format!("b64data is not Base64: {error}"))),
        (_, Some(data)) => Ok(data.get().into()),
        _ => Ok(Vec::new()),
    }
}

impl Place {
    /// The position. An epoch of another server becomes one that no server has.
    pub fn position(&self) -> Position {
        let epoch = u32::from_str_radix(&self.epoch, 16);
        Position::new(epoch.unwrap_or_default(), self.offset)
    }
}

/// The topic of a channel.
pub fn topic_of<'a>(world: &World, channel: &'a str) -> Result<Cow<'a, str>, Failure> {
    match channel {
        "" => Err(Failure::bad("a channel is missing")),
        channel => Ok(channel_names(world).exchange(channel)),
    }
}

/// The topic of a channel, and its home.
fn name_and_home_of(state: &AdminState, channel: &str) -> Result<(Box<[u8]>, ShardId), Failure> {
    let topic = topic_of(&state.lifecycle.world(), channel)?;
    Ok(name_and_home(state, &topic)?)
}

async fn publish_to(
    state: &AdminState,
    channel: &str,
    message: NewMessage,
) -> Result<Place, Failure> {
    let info = publish_message(
        state,
        &topic_of(&state.lifecycle.world(), channel)?,
        message,
    )
    .await?;
    Ok(Place {
        offset: info.offset,
        epoch: epoch_text(info.epoch),
    })
}

pub async fn publish(state: &AdminState, params: &str) -> Result<Place, Failure> {
    let message = read::<Content<'_>>(params)?.message()?;
    publish_to(state, &read::<Channel>(params)?.channel, message).await
}

pub async fn broadcast(state: &AdminState, params: &str) -> Result<Responses, Failure> {
    let content: Content<'_> = read(params)?;
    let channels = read::<Channels>(params)?.channels;
    if channels.is_empty() {
        return Err(Failure::bad("channels are missing"));
    }
    check_count(state, channels.len(), "channels")?;
    let mut responses = Vec::new();
    for channel in channels {
        let published = publish_to(state, &channel, content.message()?).await;
        responses.push(Reply::of(published.and_then(result)));
    }
    Ok(Responses { responses })
}

/// At most a page of the log.
pub async fn history(state: &AdminState, asked: History) -> Result<Publications, Failure> {
    let (name, home) = name_and_home_of(state, &asked.channel)?;
    let is_reverse = asked.reverse == Some(true);
    let (after, epoch) = match &asked.since {
        Some(_) if is_reverse => {
            return Err(Failure::not_built("history from a position backwards"));
        }
        Some(place) => (place.offset, Some(place.position().epoch)),
        None => (0, None),
    };
    let Some(topic) = topic_at(state, home, name.clone()).await? else {
        return match asked.since {
            Some(_) => Err(unrecoverable()),
            None => Ok(Publications {
                publications: Vec::new(),
                head: Place {
                    offset: 0,
                    epoch: epoch_text(state.lifecycle.world().epoch),
                },
            }),
        };
    };
    let limit = u32::try_from(asked.limit.unwrap_or_default()).unwrap_or(HISTORY_MAX);
    let page = LogPageRequest {
        name,
        after,
        epoch,
        messages_max: limit.clamp(1, HISTORY_MAX),
        newest: is_reverse,
    };
    let read = read_log(state, home, page).await?.unwrap_or_default();
    if asked.since.is_some() && read.lost {
        return Err(unrecoverable());
    }
    if is_reverse && limit > 0 && read.next.is_some() {
        let words = "so many messages do not fit into one answer; ask for fewer";
        return Err(Failure::new(ErrorCode::LIMIT_EXCEEDED, words));
    }
    let last = read.messages.last().map_or(0, |message| message.offset);
    let messages = read.messages.into_iter().take(limit as usize);
    let mut publications: Vec<_> = messages.map(publication).collect();
    if is_reverse {
        publications.reverse();
    }
    Ok(Publications {
        publications,
        head: Place {
            // Messages may have come since the topic was asked for.
            offset: topic.info.offset.max(last),
            epoch: epoch_text(topic.info.epoch),
        },
    })
}

fn unrecoverable() -> Failure {
    let code = ErrorCode::UNRECOVERABLE_POSITION;
    Failure::new(code, code.text)
}

fn publication(message: orders::Message) -> Publication {
    let (offset, mut tags) = (message.offset, BTreeMap::new());
    let string = |text: &str| to_raw_value(text).expect("a text is JSON");
    let data = match String::from_utf8(message.data) {
        Ok(data) if is_json(data.as_bytes()) => {
            RawValue::from_string(data).expect("`is_json` has checked it")
        }
        Ok(data) => string(&data),
        Err(error) => {
            tags.insert("encoding", "base64");
            string(&STANDARD.encode(error.as_bytes()))
        }
    };
    Publication { data, offset, tags }
}

pub async fn history_remove(state: &AdminState, asked: Channel) -> Result<Empty, Failure> {
    let (name, home) = name_and_home_of(state, &asked.channel)?;
    if topic_at(state, home, name.clone()).await?.is_some() {
        purge_topic(state, home, name).await?;
    }
    Ok(Empty {})
}

/// Who is present in a channel, in a cluster at all nodes.
pub async fn presence(state: &AdminState, asked: Channel) -> Result<Present, Failure> {
    let (mut presence, mut after) = (BTreeMap::new(), Some(0));
    let world = state.lifecycle.world();
    while let Some(last) = after {
        let page = members(state, &asked.channel, last).await?;
        after = None;
        for change in page.changes.iter() {
            if let PresenceChange::Join(member) = change {
                let client = client_id_text(&world, member.at, member.process);
                let info = ClientInfo {
                    client: client.clone(),
                    user: text(member.user),
                    conn_info: serde_json::from_slice(member.info).ok(),
                };
                presence.insert(client, info);
                after = page.more.then_some(member.id);
            }
        }
        if presence.len() > MEMBERS_MAX {
            let words =
                format!("more than {MEMBERS_MAX} clients are present; presence_stats counts them");
            return Err(Failure::new(ErrorCode::LIMIT_EXCEEDED, words));
        }
    }
    Ok(Present { presence })
}

/// How many are present in a channel, in a cluster at all nodes.
pub async fn presence_stats(state: &AdminState, asked: Channel) -> Result<PresentCounts, Failure> {
    // Nobody came after the last number, so the counts come alone.
    let counts = members(state, &asked.channel, u64::MAX).await?.counts;
    Ok(PresentCounts {
        num_clients: counts.clients,
        num_users: counts.users,
    })
}

/// A page of the members of a channel whose rule has presence.
async fn members(
    state: &AdminState,
    channel: &str,
    after: u64,
) -> Result<Box<PresencePage>, Failure> {
    let (name, home) = name_and_home_of(state, channel)?;
    let rules = &state.lifecycle.world().rules;
    if !rules.get(rules.number_for(&name)).presence {
        let words = "presence is off for this channel: its rule has no presence = true";
        return Err(Failure::new(ErrorCode::NOT_AVAILABLE, words));
    }
    let order = Control::Presence(name, after, TOPICS_PER_ORDER);
    let page = state.shards.ask(home, order).await;
    Ok(page.map_err(ApiError::from)?)
}

/// The channels with subscribers at any node, and the number of subscribers at all nodes.
pub async fn channels_of_all(state: &AdminState, params: &str) -> Result<Subscribed, Failure> {
    let mut channels = BTreeMap::new();
    let of_nodes = call_all::<Subscribed>(state, "channels", params).await?;
    for of_node in of_nodes.of_all()? {
        for (name, Clients { num_clients }) in of_node.channels {
            let all = channels.entry(name).or_insert(Clients { num_clients: 0 });
            all.num_clients = all.num_clients.saturating_add(num_clients);
        }
    }
    check_channels(channels.len())?;
    Ok(Subscribed { channels })
}

fn check_channels(count: usize) -> Result<(), Failure> {
    if count <= CHANNELS_MAX {
        return Ok(());
    }
    let words = format!("more than {CHANNELS_MAX} channels; ask with a pattern");
    Err(Failure::new(ErrorCode::LIMIT_EXCEEDED, words))
}

/// The topics with subscribers at this node.
pub async fn channels(
    shards: &Shards,
    lifecycle: &Lifecycle,
    asked: Pattern,
) -> Result<Subscribed, Failure> {
    let pattern = asked.pattern.as_deref().unwrap_or_default();
    if pattern.contains(['[', ']', '{', '}', '!', '\\']) {
        return Err(Failure::not_built("a pattern with more than * and ?"));
    }
    let world = lifecycle.world();
    let names = channel_names(&world);
    let mut channels = BTreeMap::new();
    for home in 0..world.homes {
        let mut from = Some(0);
        while let Some(row) = from {
            let page = TopicsPageRequest {
                filter: b"#"[..].into(),
                from: row,
                topics_max: TOPICS_PER_ORDER,
            };
            let page: orders::Page<orders::Topic> = shards
                .ask(home, Control::Topics(page))
                .await
                .map_err(ApiError::from)?;
            from = page.next;
            for topic in page.found {
                let name = names.exchange(&text(&topic.name)).into_owned();
                let num_clients = topic.info.subscribers;
                if num_clients > 0 && (pattern.is_empty() || matches(pattern, &name)) {
                    channels.insert(name, Clients { num_clients });
                }
            }
            check_channels(channels.len())?;
        }
    }
    Ok(Subscribed { channels })
}

/// Whether a pattern matches a name: `*` is any text, `?` one character.
fn matches(pattern: &str, name: &str) -> bool {
    let (mut pattern, mut name) = (pattern.chars(), name.chars());
    // Where to go on if the text of the last `*` was too short.
    let mut longer = None;
    loop {
        let (before, rest) = (pattern.clone(), name.clone());
        match (pattern.next(), name.next()) {
            (None, None) => return true,
            (Some('*'), _) => {
                longer = Some((before, rest.clone()));
                name = rest;
            }
            (Some('?'), Some(_)) => {}
            (Some(one), Some(other)) if one == other => {}
            _ => {
                let Some((star, mut rest)) = longer.take() else {
                    return false;
                };
                if rest.next().is_none() {
                    return false;
                }
                pattern = star;
                name = rest;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_matches_any_text_for_a_star_and_one_character_for_a_question_mark() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("*", "news", true),
            ("news", "news", true),
            ("news", "new", false),
            ("new", "news", false),
            ("n?ws", "news", true),
            ("n?ws", "nws", false),
            ("*:a", "b:a:a", true),
            ("*:a", "b:a:b", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("?", "\u{e9}", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
