//! Pusher's server API: `/apps/{id}/…` with signed requests, for the server libraries of Pusher. `docs/PUSHER.md` says what is built.
//!
//! A request is signed with the secret of the app: its method, path, parameters, and the MD5 of its body. It needs no token of the admin port. The signature holds for
//! [`WINDOW_S`] seconds. Within them a copy of a request is carried out again, as by Pusher.
//!
//! Invariant: the body is read only after the signature is checked, since everybody may send a body.

use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::routing::{get, post};
use axum::{Json, Router};
use crore_broker::mail::message::Headers;
use crore_broker::mail::presence::{PresenceChange, PresencePage};
use crore_broker::orders::{self, ConnectionOrder, Selection, TopicsPageRequest};
use crore_broker::protocol::pusher_origin_of;
use crore_broker::pusher::{PusherApp, USER_CHANNEL, channel_of, user_name};
use crore_broker::{Control, Transport};
use crore_net::clock;
use crore_wire::pusher::{ChannelKind, is_channel_name, is_socket_id};
use md5::{Digest as _, Md5};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::answer::{ApiError, text};
use super::connections::order_each;
use super::topics::{NewMessage, check_new_message, name_and_home, publish_message, topic_at};
use crate::control::connection_slots::AuthenticatedFlag;
use crate::control::state::AdminState;

/// The maximum difference between the time in a request and the server's clock, in seconds.
const WINDOW_S: u64 = 600;
/// The maximum number of channels of an event, as in Pusher.
const CHANNELS_MAX: usize = 100;
/// The maximum number of events of a batch. Pusher accepts 10.
const EVENTS_MAX: usize = 100;
/// The maximum number of channels in a list.
const LISTED_MAX: usize = 10_000;
/// The maximum number of users in a list.
const USERS_MAX: usize = 10_000;
/// The number of topics or members for which one order asks a home.
const ROWS_PER_ORDER: u32 = 1_000;

/// A JSON answer.
type Answer = Result<Json<Value>, ApiError>;

/// The event of `events`, or one of `batch_events`.
#[derive(Deserialize)]
struct Event {
    name: String,
    data: Value,
    channel: Option<String>,
    #[serde(default)]
    channels: Vec<String>,
    socket_id: Option<String>,
    #[serde(default)]
    info: String,
}

/// The body of `batch_events`.
#[derive(Deserialize)]
struct Batch {
    batch: Vec<Event>,
}

/// The attributes of a channel that a request asks for.
#[derive(Clone, Copy, Default)]
struct Attributes {
    user_count: bool,
    subscription_count: bool,
}

/// A request whose signature is valid. Its body is not read.
struct Signed {
    app: PusherApp,
    parameters: BTreeMap<String, String>,
}

/// A request whose signature is valid, with its body.
struct SignedBody {
    app: PusherApp,
    body: Bytes,
}

/// The routes of the API.
pub fn routes() -> Router<AdminState> {
    Router::new()
        .route("/apps/{app}/events", post(events))
        .route("/apps/{app}/batch_events", post(batch_events))
        .route("/apps/{app}/channels", get(channels))
        .route("/apps/{app}/channels/{channel}", get(channel))
        .route("/apps/{app}/channels/{channel}/users", get(users))
        .route(
            "/apps/{app}/users/{user}/terminate_connections",
            post(terminate),
        )
}

fn unauthorized(reason: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, reason)
}

impl FromRequestParts<AdminState> for Signed {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AdminState) -> Result<Signed, ApiError> {
        let signed = check_signature(parts, state)?;
        if let Some(authenticated) = parts.extensions.get::<AuthenticatedFlag>() {
            authenticated.set();
        }
        Ok(signed)
    }
}

impl FromRequest<AdminState> for SignedBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AdminState) -> Result<SignedBody, ApiError> {
        let (mut parts, body) = request.into_parts();
        let Signed { app, parameters } = Signed::from_request_parts(&mut parts, state).await?;
        let body = Bytes::from_request(Request::from_parts(parts, body), state).await;
        let body =
            body.map_err(|rejection| ApiError::new(rejection.status(), rejection.body_text()))?;
        let signed_md5 = parameters.get("body_md5").map_or("", String::as_str);
        if !body.is_empty() && signed_md5 != hex(&Md5::digest(&body)) {
            return Err(unauthorized("body_md5 is not the MD5 of the body"));
        }
        Ok(SignedBody { app, body })
    }
}

/// Checks the signature of a request, which covers its body by the MD5 in the parameters.
fn check_signature(parts: &Parts, state: &AdminState) -> Result<Signed, ApiError> {
    let (method, uri) = (&parts.method, &parts.uri);
    // No valid id of an app has characters that a path must escape.
    let id = uri.path().split('/').nth(2).unwrap_or_default();
    let apps = &state.lifecycle.world().settings.pusher_apps;
    let app = apps.iter().find(|app| app.id == id);
    let app = app.ok_or_else(|| ApiError::missing("app; a [[pusher_app]] makes one"))?;
    let pairs: Vec<(String, String)> = Query::try_from_uri(uri)?.0;
    let mut parameters = BTreeMap::new();
    for (name, value) in pairs {
        if parameters
            .insert(name.to_ascii_lowercase(), value)
            .is_some()
        {
            return Err(unauthorized(format!("the parameter {name} comes twice")));
        }
    }
    let signature = parameters.remove("auth_signature").unwrap_or_default();
    let parameter = |name: &str| parameters.get(name).map_or("", String::as_str);
    if parameter("auth_version") != "1.0" {
        return Err(unauthorized("auth_version must be 1.0"));
    }
    if parameter("auth_key") != app.key {
        return Err(unauthorized("auth_key is not the key of the app"));
    }
    let now_s = clock::unix_s();
    let is_in_window = |sent: u64| sent.abs_diff(now_s) <= WINDOW_S;
    if !parameter("auth_timestamp").parse().is_ok_and(is_in_window) {
        return Err(unauthorized(format!(
            "auth_timestamp must be within {WINDOW_S} s of the server's time, which is {now_s}; compare the clocks"
        )));
    }
    let pairs = parameters
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    let pairs: Vec<String> = pairs.collect();
    let text = format!("{method}\n{}\n{}", uri.path(), pairs.join("&"));
    if !app.is_signed(&[text.as_bytes()], &signature) {
        return Err(unauthorized(format!(
            "auth_signature is not the signature of this text with the secret of the app: {text:?}"
        )));
    }
    Ok(Signed {
        app: app.clone(),
        parameters,
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::bad(format!("the body: {error}")))
}

/// The topic of a channel, or of the channel of a user.
fn topic_of(app: &PusherApp, channel: &str) -> Result<String, ApiError> {
    let is_valid = match channel.strip_prefix(USER_CHANNEL) {
        Some(user) => !user.is_empty() && !user.contains('/'),
        None => is_channel_name(channel),
    };
    if !is_valid {
        return Err(ApiError::bad(format!(
            "{channel:?} is no name of a channel: it has 1 to 164 letters, digits and _-=@,.;"
        )));
    }
    // The names of channels, and of the levels before them, are UTF-8.
    Ok(text(&app.topic_of(channel)))
}

/// The topic and the message of an event in a channel, both checked.
fn message_of(
    state: &AdminState,
    app: &PusherApp,
    event: &Event,
    channel: &str,
) -> Result<(String, NewMessage), ApiError> {
    let topic = topic_of(app, channel)?;
    let data = match &event.data {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    if event.name.is_empty() {
        return Err(ApiError::bad("name is empty"));
    }
    let attributes = match event.socket_id.as_deref() {
        None | Some("") => Vec::new(),
        Some(id) => {
            let origin = Some(id).filter(|id| is_socket_id(id));
            let origin = origin.and_then(pusher_origin_of);
            let origin = origin.ok_or_else(|| ApiError::bad(format!("{id:?} is no socket_id")))?;
            origin.to_le_bytes().into()
        }
    };
    let message = NewMessage {
        data: data.into_bytes(),
        headers: Headers {
            qos: 1,
            event: event.name.as_bytes().into(),
            attributes,
            retain: ChannelKind::of(channel).is_cache,
            ..Headers::default()
        },
        idempotency_key: None,
    };
    check_new_message(state, &topic, &message)?;
    Ok((topic, message))
}

/// Publishes the events, each in its channel. All events are checked first, so that nothing is published if one of them is wrong. Each message is made
/// twice, for the check and for the publish, since the messages of many channels together may be large.
async fn publish(
    state: &AdminState,
    app: &PusherApp,
    events: &[(&Event, &str)],
) -> Result<(), ApiError> {
    for (event, channel) in events {
        message_of(state, app, event, channel)?;
    }
    for (event, channel) in events {
        let (topic, message) = message_of(state, app, event, channel)?;
        publish_message(state, &topic, message).await?;
    }
    Ok(())
}

async fn events(State(state): State<AdminState>, SignedBody { app, body }: SignedBody) -> Answer {
    let mut event: Event = read(&body)?;
    let mut channels = std::mem::take(&mut event.channels);
    channels.extend(event.channel.take());
    if !(1..=CHANNELS_MAX).contains(&channels.len()) {
        let reason = format!(
            "{} channels; name 1 to {CHANNELS_MAX} in channels, or one in channel",
            channels.len()
        );
        return Err(ApiError::bad(reason));
    }
    let in_each = channels.iter().map(|channel| (&event, channel.as_str()));
    let in_each: Vec<_> = in_each.collect();
    publish(&state, &app, &in_each).await?;
    let wanted = attributes_of(&event.info);
    if event.info.is_empty() {
        return Ok(Json(json!({})));
    }
    let mut infos = Map::new();
    for channel in channels {
        let info = info_of(&state, &app, &channel, wanted).await?;
        infos.insert(channel, info.into());
    }
    Ok(Json(json!({ "channels": infos })))
}

async fn batch_events(
    State(state): State<AdminState>,
    SignedBody { app, body }: SignedBody,
) -> Answer {
    let Batch { batch } = read(&body)?;
    if batch.len() > EVENTS_MAX {
        let reason = format!("{} events; send at most {EVENTS_MAX}", batch.len());
        return Err(ApiError::bad(reason));
    }
    let with_channel = batch.iter().map(|event| match event.channel.as_deref() {
        Some(channel) if event.channels.is_empty() => Ok((event, channel)),
        Some(_) => Err(ApiError::bad(
            "an event of a batch has channels; name one in channel",
        )),
        None => Err(ApiError::bad("an event has no channel")),
    });
    let events = with_channel.collect::<Result<Vec<_>, _>>()?;
    publish(&state, &app, &events).await?;
    let (mut infos, mut has_infos) = (Vec::new(), false);
    for (event, channel) in events {
        has_infos |= !event.info.is_empty();
        let wanted = attributes_of(&event.info);
        infos.push(match event.info.is_empty() {
            true => Map::new(),
            false => info_of(&state, &app, channel, wanted).await?,
        });
    }
    Ok(Json(match has_infos {
        true => json!({ "batch": infos }),
        false => json!({}),
    }))
}

fn attributes_of(info: &str) -> Attributes {
    let has = |name| info.split(',').any(|part| part.trim() == name);
    Attributes {
        user_count: has("user_count"),
        subscription_count: has("subscription_count"),
    }
}

/// A page of the members of a presence channel.
async fn members(
    state: &AdminState,
    topic: &str,
    after: u64,
) -> Result<Box<PresencePage>, ApiError> {
    let (name, home) = name_and_home(state, topic)?;
    let order = Control::Presence(name, after, ROWS_PER_ORDER);
    Ok(state.shards.ask(home, order).await?)
}

/// The requested attributes of a channel: its subscriptions at this node, and its users at all nodes.
async fn info_of(
    state: &AdminState,
    app: &PusherApp,
    channel: &str,
    wanted: Attributes,
) -> Result<Map<String, Value>, ApiError> {
    let topic = topic_of(app, channel)?;
    let mut info = Map::new();
    if wanted.subscription_count {
        let (name, home) = name_and_home(state, &topic)?;
        let found = topic_at(state, home, name).await?;
        let count = found.map_or(0, |topic| topic.info.subscribers);
        info.insert("subscription_count".into(), count.into());
    }
    if wanted.user_count && ChannelKind::of(channel).is_presence {
        // No member has a number after the largest one, so the page has only the counts.
        let users = members(state, &topic, u64::MAX).await?.counts.users;
        info.insert("user_count".into(), users.into());
    }
    Ok(info)
}

/// The channels with subscribers at this node.
async fn channels(State(state): State<AdminState>, Signed { app, parameters }: Signed) -> Answer {
    let parameter = |name: &str| parameters.get(name).map_or("", String::as_str);
    let (prefix, wanted) = (
        parameter("filter_by_prefix"),
        attributes_of(parameter("info")),
    );
    if wanted.user_count && !prefix.starts_with("presence-") {
        let reason = "user_count is of presence channels only; add filter_by_prefix=presence-";
        return Err(ApiError::bad(reason));
    }
    let mut found = Vec::new();
    for home in 0..state.lifecycle.world().homes {
        let mut from = Some(0);
        while let Some(row) = from {
            let page = Control::Topics(TopicsPageRequest {
                filter: app.topic_filter().into(),
                from: row,
                topics_max: ROWS_PER_ORDER,
            });
            let page: orders::Page<orders::Topic> = state.shards.ask(home, page).await?;
            from = page.next;
            let occupied = page.found.iter().filter(|it| it.info.subscribers > 0);
            // Clients of other protocols may subscribe to topics of the app that are no channels.
            let channels = occupied.filter_map(|topic| {
                let channel = channel_of(&topic.name);
                let is_channel = is_channel_name(&channel) && app.topic_of(&channel) == *topic.name;
                is_channel.then(|| channel.into_owned())
            });
            found.extend(channels.filter(|channel| channel.starts_with(prefix)));
            if found.len() > LISTED_MAX {
                let reason = format!("more than {LISTED_MAX} channels; ask with filter_by_prefix");
                return Err(ApiError::bad(reason));
            }
        }
    }
    let mut channels = Map::new();
    for channel in found {
        let info = info_of(&state, &app, &channel, wanted).await?;
        channels.insert(channel, info.into());
    }
    Ok(Json(json!({ "channels": channels })))
}

async fn channel(
    State(state): State<AdminState>,
    Signed { app, parameters }: Signed,
    Path((_, channel)): Path<(String, String)>,
) -> Answer {
    let wanted = attributes_of(parameters.get("info").map_or("", String::as_str));
    if wanted.user_count && !ChannelKind::of(&channel).is_presence {
        return Err(ApiError::bad("user_count is of presence channels only"));
    }
    let (name, home) = name_and_home(&state, &topic_of(&app, &channel)?)?;
    let found = topic_at(&state, home, name).await?;
    let is_occupied = found.is_some_and(|topic| topic.info.subscribers > 0);
    let mut info = info_of(&state, &app, &channel, wanted).await?;
    info.insert("occupied".into(), is_occupied.into());
    Ok(Json(info.into()))
}

/// The users of a presence channel.
async fn users(
    State(state): State<AdminState>,
    Signed { app, .. }: Signed,
    Path((_, channel)): Path<(String, String)>,
) -> Answer {
    if !ChannelKind::of(&channel).is_presence {
        return Err(ApiError::bad("only presence channels have users"));
    }
    let topic = topic_of(&app, &channel)?;
    let (mut users, mut after) = (BTreeMap::new(), Some(0));
    while let Some(last) = after {
        let page = members(&state, &topic, last).await?;
        after = None;
        for change in page.changes.iter() {
            if let PresenceChange::Join(member) = change {
                // Anonymous clients of other protocols are no users.
                if !member.user.is_empty() {
                    users.insert(text(member.user), ());
                }
                after = page.more.then_some(member.id);
            }
        }
        if users.len() > USERS_MAX {
            let reason = format!("more than {USERS_MAX} users; ask for user_count");
            return Err(ApiError::bad(reason));
        }
    }
    let users: Vec<Value> = users.into_keys().map(|id| json!({ "id": id })).collect();
    Ok(Json(json!({ "users": users })))
}

/// Ends the connections of this node that have signed in as a user.
async fn terminate(
    State(state): State<AdminState>,
    Path((_, user)): Path<(String, String)>,
    SignedBody { app, .. }: SignedBody,
) -> Answer {
    let name = user_name(&app.id, &user);
    let which = |_| {
        Some(Selection {
            transport: Some(Transport::Pusher),
            user: Some(name.as_str().into()),
            ..Selection::default()
        })
    };
    order_each(&state.shards, &ConnectionOrder::Disconnect, which).await?;
    Ok(Json(json!({})))
}
