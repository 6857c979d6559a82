//! Handlers that list, show, purge and delete topics, read their logs, and publish. Orders about a topic go to its home, the shard that
//! keeps the topic.

#![allow(unused_qualifications)] // what utoipa writes for `params`

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crore_broker::mail::fields::{check_fields, check_idempotency_key};
use crore_broker::mail::message::Headers;
use crore_broker::mail::presence::{PresenceChange, PresencePage};
use crore_broker::mail::{Outcome, TopicInfo};
use crore_broker::orders::{self, AdminPublish, LogPageRequest, TopicsPageRequest};
use crore_broker::position::{self, Position};
use crore_broker::protocol::check_message;
use crore_broker::{Control, Reason, ShardId};
use crore_wire::topic;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::answer::{Answer, ApiError, ErrorBody, PageRequest, page_len, text};
use super::cluster::Subscribers;
use crate::control::peer_nodes::writer_text;
use crate::control::state::AdminState;

/// The maximum length of a filter, in bytes.
const FILTER_BYTES_MAX: usize = 1_000;

/// A topic as its home sees it.
#[derive(Serialize, ToSchema)]
pub struct Topic {
    name: String,
    /// The shard that keeps its log.
    home: ShardId,
    /// The number of kept messages.
    messages: u32,
    /// The memory of the kept messages, in bytes.
    bytes: u32,
    /// Subscribers to the topic at this node, without those by filter and without tails of the admin port.
    subscribers: u32,
    /// The offset of the newest message, or the offset after which the topic begins.
    offset: u64,
    /// The epoch of the log.
    epoch: u32,
    /// Seconds since a subscriber last requested the topic.
    requested_s: Option<u32>,
    /// The filter of the rule that applies to the topic.
    rule: String,
    /// Whether this is the built-in rule, which no file contains.
    built_in_rule: bool,
}

/// A topic, with its subscribers at all nodes of a cluster.
#[derive(Serialize, ToSchema)]
pub struct TopicOfAll {
    #[serde(flatten)]
    topic: Topic,
    /// In a cluster, the subscribers at all nodes. Otherwise null.
    cluster: Option<Subscribers>,
}

/// A page of topics.
#[derive(Serialize, ToSchema)]
pub struct TopicPage {
    topics: Vec<Topic>,
    /// The `cursor` of the next page. A page before the last one may be short or empty.
    next: Option<String>,
}

/// Selects topics.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TopicsQuery {
    /// Only topics that match this filter. Without it, all topics.
    filter: Option<String>,
    /// The number of topics of a page, 1 to 1000. 100 without it.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// The `next` of the previous page.
    cursor: Option<String>,
}

/// Selects a topic.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TopicQuery {
    /// The topic's name.
    name: String,
}

/// Selects a part of a topic's log.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct MessagesQuery {
    /// The topic's name.
    name: String,
    /// Only messages after this offset. Without it, all kept messages.
    after: Option<u64>,
    /// The number of messages of a page, 1 to 1000. 100 without it.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Return the newest `limit` messages instead of the oldest ones. The order stays: oldest first.
    newest: Option<bool>,
}

/// A page of a topic's log, oldest first.
#[derive(Serialize, ToSchema)]
pub struct MessagePage {
    messages: Vec<Message>,
    /// The `after` of the next page.
    next: Option<u64>,
    /// Whether messages between `after` and the first message of this page were lost.
    lost: bool,
}

/// Selects the members of a topic.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PresenceQuery {
    /// The topic's name.
    name: String,
    /// Only members after the one with this id. Without it, all.
    after: Option<u64>,
    /// The number of members of a page, 1 to 1000. 100 without it.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// Who is present in a topic, in a cluster at all nodes, if the topic's rule has `presence`.
#[derive(Serialize, ToSchema)]
pub struct Presence {
    /// Number of connections that are present.
    clients: u32,
    /// Number of different users of the listed connections. All anonymous clients count as one user.
    users: u32,
    /// Number of connections in the list of members, which the rule limits.
    listed: u32,
    /// A page of the members, in the order in which they joined.
    members: Vec<PresentMember>,
    /// The `after` of the next page.
    next: Option<u64>,
}

/// A connection that is present in a topic.
#[derive(Serialize, ToSchema)]
pub struct PresentMember {
    /// The id of the member, which is unique in its topic.
    id: u64,
    /// The user's name; empty for an anonymous client.
    user: String,
    /// The id of the connection at its node.
    connection: String,
    /// The writer number with which the other node began whose connection this is; missing for a connection of this node.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    /// The Unix second in which the member joined.
    since_s: u32,
    /// The info about the member from its token (`presence_info`), as JSON.
    #[schema(value_type = Object)]
    info: serde_json::Value,
}

/// A kept message.
#[derive(Serialize, ToSchema)]
pub struct Message {
    offset: u64,
    /// The Unix second of the publish.
    published_s: u32,
    /// The data, if it is text.
    data: Option<String>,
    /// The data in Base64, if it is not text.
    data_base64: Option<String>,
    content_type: String,
    event: String,
    key: String,
}

/// A message to publish: `topic`, and one of `data` and `data_base64`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ToPublish {
    topic: String,
    data: Option<String>,
    /// Binary data in Base64, with the standard alphabet.
    data_base64: Option<String>,
    #[serde(default)]
    #[schema(max_length = 255)]
    content_type: String,
    #[serde(default)]
    #[schema(max_length = 255)]
    event: String,
    #[serde(default)]
    #[schema(max_length = 255)]
    key: String,
    /// The time to live in seconds.
    ttl_s: Option<u32>,
    /// Whether it replaces the topic's retained message.
    #[serde(default)]
    retain: bool,
}

/// The outcome of a publish.
#[derive(Serialize, ToSchema)]
pub struct Published {
    /// The message's offset.
    offset: u64,
    /// The epoch of the log.
    epoch: u32,
    /// The number of subscribers to the topic, without tails of the admin port, plus the number of shards with subscribers by filter.
    subscribers: u32,
    /// The number of kept messages.
    messages: u32,
    /// The message's id as clients get it.
    last_message_id: String,
}

/// Whether the topic was deleted.
#[derive(Serialize, ToSchema)]
pub struct Deleted {
    deleted: bool,
}

/// The number of deleted messages.
#[derive(Serialize, ToSchema)]
pub struct PurgedCount {
    purged: u64,
}

/// Checks a topic's name and finds its home.
pub fn name_and_home(state: &AdminState, name: &str) -> Result<(Box<[u8]>, ShardId), ApiError> {
    let world = state.lifecycle.world();
    topic::check_name(name.as_bytes(), world.settings.limits.topic_bytes)
        .map_err(|error| ApiError::bad(format!("{name:?} is not a topic: it {error}")))?;
    let home = world.placement().home_of_name(name.as_bytes());
    Ok((name.as_bytes().into(), home))
}

pub(super) fn filter(given: Option<&str>) -> Result<Box<[u8]>, ApiError> {
    let filter = given.unwrap_or("#");
    topic::check_filter(filter.as_bytes(), FILTER_BYTES_MAX)
        .map_err(|error| ApiError::bad(format!("{filter:?} is not a filter: it {error}")))?;
    Ok(filter.as_bytes().into())
}

fn described(state: &AdminState, home: ShardId, topic: &orders::Topic) -> Topic {
    let world = state.lifecycle.world();
    let name = text(&topic.name);
    let others = state
        .data_port
        .subscribers_without_tails(&name, topic.info.subscribers);
    Topic {
        name,
        home,
        messages: topic.info.messages,
        bytes: topic.bytes,
        subscribers: others,
        offset: topic.info.offset,
        epoch: topic.info.epoch,
        requested_s: topic.info.requested_s,
        rule: world.rules.get(topic.rule).filter.clone(),
        built_in_rule: usize::from(topic.rule) >= world.settings.rules.len(),
    }
}

/// Asks the home for a topic.
pub async fn topic_at(
    state: &AdminState,
    home: ShardId,
    name: Box<[u8]>,
) -> Result<Option<Box<orders::Topic>>, ApiError> {
    Ok(state.shards.ask(home, Control::Topic(name)).await?)
}

/// Asks the home for a topic that must exist.
async fn topic_of(
    state: &AdminState,
    home: ShardId,
    name: Box<[u8]>,
) -> Result<Box<orders::Topic>, ApiError> {
    let topic = topic_at(state, home, name).await?;
    topic.ok_or_else(|| ApiError::missing("topic"))
}

/// Topics
#[utoipa::path(
    get,
    path = "/api/v1/topics",
    tag = "topics",
    params(TopicsQuery),
    responses(
        (status = 200, body = TopicPage),
        (status = 400, body = ErrorBody, description = "A filter, limit or cursor that is none"),
    )
)]
pub async fn list(
    State(state): State<AdminState>,
    query: Result<Query<TopicsQuery>, QueryRejection>,
) -> Answer<TopicPage> {
    let query = query?.0;
    let filter = filter(query.filter.as_deref())?;
    let page_request = PageRequest::new(query.limit, query.cursor.as_deref())?;
    let homes = state.lifecycle.world().homes;
    let order = |from, topics_max| {
        let filter = filter.clone();
        Control::Topics(TopicsPageRequest {
            filter,
            from,
            topics_max,
        })
    };
    let (topics, next) = page_request.page(&state, homes, order).await?;
    let shown = |(home, topic): (_, orders::Topic)| described(&state, home, &topic);
    let topics = topics.into_iter().map(shown).collect();
    Ok(Json(TopicPage { topics, next }))
}

/// A topic
#[utoipa::path(
    get,
    path = "/api/v1/topic",
    tag = "topics",
    params(TopicQuery),
    responses(
        (status = 200, body = TopicOfAll),
        (status = 400, body = ErrorBody, description = "No topic can have this name"),
        (status = 404, body = ErrorBody),
    )
)]
pub async fn info(
    State(state): State<AdminState>,
    query: Result<Query<TopicQuery>, QueryRejection>,
) -> Answer<TopicOfAll> {
    let query = query?;
    let (name, home) = name_and_home(&state, &query.name)?;
    let topic = described(&state, home, &*topic_of(&state, home, name).await?);
    let cluster = Subscribers::of(&state, &query.name, topic.subscribers).await;
    Ok(Json(TopicOfAll { topic, cluster }))
}

/// Who is present in a topic
#[utoipa::path(
    get,
    path = "/api/v1/topic/presence",
    tag = "topics",
    params(PresenceQuery),
    responses(
        (status = 200, body = Presence),
        (status = 400, body = ErrorBody, description = "A name or limit that cannot be"),
    )
)]
pub async fn presence(
    State(state): State<AdminState>,
    query: Result<Query<PresenceQuery>, QueryRejection>,
) -> Answer<Presence> {
    let query = query?;
    let (name, home) = name_and_home(&state, &query.name)?;
    let (after, members_max) = (query.after.unwrap_or_default(), page_len(query.limit)?);
    let order = Control::Presence(name, after, members_max);
    let page: Box<PresencePage> = state.shards.ask(home, order).await?;
    let members = page.changes.iter().filter_map(|change| {
        let PresenceChange::Join(member) = change else {
            return None;
        };
        let conn = member.at.conn;
        Some(PresentMember {
            id: member.id,
            user: text(member.user),
            connection: format!("{}-{}-{}", member.at.shard, conn.slot, conn.generation),
            node: (member.process > 0).then(|| writer_text(member.process)),
            since_s: member.since_s,
            info: serde_json::from_slice(member.info).unwrap_or_default(),
        })
    });
    let members: Vec<PresentMember> = members.collect();
    let last = members.last().map(|member| member.id);
    Ok(Json(Presence {
        clients: page.counts.clients,
        users: page.counts.users,
        listed: page.counts.listed,
        members,
        next: last.filter(|_| page.more),
    }))
}

/// Delete a topic
///
/// Deletes the topic with its messages, and ends its subscriptions.
#[utoipa::path(
    delete,
    path = "/api/v1/topic",
    tag = "topics",
    params(TopicQuery),
    responses(
        (status = 200, body = Deleted),
        (status = 400, body = ErrorBody, description = "No topic can have this name"),
        (status = 404, body = ErrorBody),
    )
)]
pub async fn delete(
    State(state): State<AdminState>,
    query: Result<Query<TopicQuery>, QueryRejection>,
) -> Answer<Deleted> {
    let (name, home) = name_and_home(&state, &query?.name)?;
    match state.shards.ask(home, Control::Delete(name)).await? {
        Outcome::Missing => Err(ApiError::missing("topic")),
        Outcome::Unknown => Err(unknown()),
        _ => Ok(Json(Deleted { deleted: true })),
    }
}

/// The log of a topic
#[utoipa::path(
    get,
    path = "/api/v1/topic/messages",
    tag = "topics",
    params(MessagesQuery),
    responses(
        (status = 200, body = MessagePage),
        (status = 400, body = ErrorBody, description = "A name, offset or limit that is none"),
        (status = 404, body = ErrorBody),
    )
)]
pub async fn messages(
    State(state): State<AdminState>,
    query: Result<Query<MessagesQuery>, QueryRejection>,
) -> Answer<MessagePage> {
    let query = query?.0;
    let (name, home) = name_and_home(&state, &query.name)?;
    let page = LogPageRequest {
        name,
        after: query.after.unwrap_or_default(),
        epoch: None,
        messages_max: page_len(query.limit)?,
        newest: query.newest.unwrap_or_default(),
    };
    let read = read_log(&state, home, page).await?;
    let read = read.ok_or_else(|| ApiError::missing("topic"))?;
    let message = |message: orders::Message| {
        let data = match String::from_utf8(message.data) {
            Ok(data) if !message.binary => (Some(data), None),
            Ok(data) => (None, Some(STANDARD.encode(data))),
            Err(error) => (None, Some(STANDARD.encode(error.as_bytes()))),
        };
        Message {
            offset: message.offset,
            published_s: message.time_s,
            data: data.0,
            data_base64: data.1,
            content_type: text(&message.content_type),
            event: text(&message.event),
            key: text(&message.key),
        }
    };
    Ok(Json(MessagePage {
        next: read.next,
        lost: read.lost,
        messages: read.messages.into_iter().map(message).collect(),
    }))
}

/// Reads a page of a topic's log. A long search for its first message takes several orders, so that the shard serves its clients in between.
pub(super) async fn read_log(
    state: &AdminState,
    home: ShardId,
    request: LogPageRequest,
) -> Result<Option<orders::Messages>, ApiError> {
    let mut request = request;
    let mut is_lost = false;
    loop {
        let order = Control::Log(request.clone());
        let page: Option<orders::Messages> = state.shards.ask(home, order).await?;
        let Some(mut page) = page else {
            return Ok(None);
        };
        is_lost |= page.lost;
        match page.next {
            // The epoch was compared with the offset that the client has named.
            Some(next) if page.messages.is_empty() => (request.after, request.epoch) = (next, None),
            _ => {
                page.lost = is_lost;
                return Ok(Some(page));
            }
        }
    }
}

/// Purge a topic
///
/// Removes the messages of its log and its retained message. Subscribers stay. Clients that have not seen the messages are told a gap.
#[utoipa::path(
    delete,
    path = "/api/v1/topic/messages",
    tag = "topics",
    params(TopicQuery),
    responses(
        (status = 200, body = PurgedCount),
        (status = 400, body = ErrorBody, description = "No topic can have this name"),
        (status = 404, body = ErrorBody),
    )
)]
pub async fn purge(
    State(state): State<AdminState>,
    query: Result<Query<TopicQuery>, QueryRejection>,
) -> Answer<PurgedCount> {
    let (name, home) = name_and_home(&state, &query?.name)?;
    let purged = purge_topic(&state, home, name).await?;
    Ok(Json(PurgedCount { purged }))
}

/// Removes the messages of a topic, and returns how many they were. Messages that are published from now on are kept.
pub async fn purge_topic(
    state: &AdminState,
    home: ShardId,
    name: Box<[u8]>,
) -> Result<u64, ApiError> {
    let until = topic_of(state, home, name.clone()).await?.info.offset;
    let mut purged = 0;
    loop {
        let order = Control::Purge(name.clone(), until);
        match state.shards.ask(home, order).await? {
            Outcome::Purged(more) if more > 0 => purged += u64::from(more),
            Outcome::Unknown => return Err(unknown()),
            _ => return Ok(purged),
        }
    }
}

/// Publish
#[utoipa::path(
    post,
    path = "/api/v1/publish",
    tag = "topics",
    request_body = ToPublish,
    responses(
        (status = 200, body = Published),
        (status = 400, body = ErrorBody, description = "A body that is none, or a name or field that cannot be"),
        (status = 413, body = ErrorBody, description = "More than limits.message_bytes"),
        (status = 415, body = ErrorBody, description = "Not application/json"),
        (status = 503, body = ErrorBody, description = "No room for another topic"),
    )
)]
pub async fn publish(
    State(state): State<AdminState>,
    message: Result<Json<ToPublish>, JsonRejection>,
) -> Answer<Published> {
    let message = message?.0;
    let (data, binary) = match (message.data, message.data_base64) {
        (Some(data), None) => (data.into_bytes(), false),
        (None, Some(data)) => {
            let data = STANDARD.decode(data);
            let bad_base64 = |error| ApiError::bad(format!("data_base64 is not Base64: {error}"));
            (data.map_err(bad_base64)?, true)
        }
        _ => return Err(ApiError::bad("give one of data and data_base64")),
    };
    let topic = message.topic;
    let message = NewMessage {
        data,
        headers: Headers {
            content_type: message.content_type.into(),
            event: message.event.into(),
            key: message.key.into(),
            ttl_s: message.ttl_s,
            retain: message.retain,
            binary,
            ..Headers::default()
        },
        idempotency_key: None,
    };
    let info = publish_message(&state, &topic, message).await?;
    Ok(Json(Published {
        offset: info.offset,
        epoch: info.epoch,
        subscribers: state
            .data_port
            .subscribers_without_tails(&topic, info.subscribers),
        messages: info.messages,
        last_message_id: position::text(Position {
            epoch: info.epoch,
            offset: info.offset,
        }),
    }))
}

/// A message that the operator publishes.
pub struct NewMessage {
    pub data: Vec<u8>,
    pub headers: Headers<Vec<u8>>,
    pub idempotency_key: Option<Box<[u8]>>,
}

/// Checks a message of a topic. Returns the topic's name and its home.
pub fn check_new_message(
    state: &AdminState,
    topic: &str,
    message: &NewMessage,
) -> Result<(Box<[u8]>, ShardId), ApiError> {
    let (name, home) = name_and_home(state, topic)?;
    let NewMessage {
        data,
        headers,
        idempotency_key,
    } = message;
    let settings = &state.lifecycle.world().settings;
    check_message(&settings.limits, &name, data.len(), || false).map_err(|refused| {
        let reason = refused.reason();
        let status = match reason {
            Reason::MessageTooLong => StatusCode::PAYLOAD_TOO_LARGE,
            _ => StatusCode::BAD_REQUEST,
        };
        ApiError::for_reason(status, reason, reason.text_with_limit(settings))
    })?;
    check_fields(&headers.content_type, &headers.event, &headers.key).map_err(ApiError::bad)?;
    if let Some(key) = idempotency_key {
        check_idempotency_key(key).map_err(ApiError::bad)?;
    }
    Ok((name, home))
}

/// Checks a message and publishes it. Returns the state of the topic after the publish.
pub async fn publish_message(
    state: &AdminState,
    topic: &str,
    message: NewMessage,
) -> Result<TopicInfo, ApiError> {
    let (name, home) = check_new_message(state, topic, &message)?;
    let NewMessage {
        data,
        headers,
        idempotency_key,
    } = message;
    let settings = &state.lifecycle.world().settings;
    let order = Control::Publish(Box::new(AdminPublish {
        name,
        data,
        headers,
        idempotency_key,
    }));
    let outcome: Outcome = state.shards.ask(home, order).await?;
    match (outcome, outcome.refusal()) {
        (Outcome::Done(info) | Outcome::Replayed(info), _) => Ok(info),
        (Outcome::Unknown, _) => Err(unknown()),
        (outcome, reason) => {
            let status = match outcome {
                Outcome::OtherMessage => StatusCode::BAD_REQUEST,
                _ => StatusCode::SERVICE_UNAVAILABLE,
            };
            let reason = reason.unwrap_or(Reason::TopicsFull);
            Err(ApiError::for_reason(
                status,
                reason,
                reason.text_with_limit(settings),
            ))
        }
    }
}

/// The error if the home or the log does not answer in time: the outcome of the order is not known.
fn unknown() -> ApiError {
    let text = "the outcome is not known: the log has not answered in time";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, text)
}
