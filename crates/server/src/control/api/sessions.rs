//! Handlers that list the MQTT sessions of disconnected clients, show one, and end one. Connected clients are listed as connections.

#![allow(unused_qualifications)] // what utoipa writes for `params`

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use crore_broker::Control;
use crore_broker::orders::{self, SessionName};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::answer::{Answer, ApiError, ErrorBody, PageRequest, text};
use super::subscription::{Subscription, subscription};
use crate::control::state::AdminState;

/// A session whose client is away.
#[derive(Serialize, ToSchema)]
pub struct Session {
    client_id: String,
    /// Its user, where it is known.
    user: Option<String>,
    /// Seconds after which it ends; null: never.
    expires_in_s: Option<u32>,
    /// Bytes that it occupies: its subscriptions, and messages that were not acknowledged.
    bytes: u64,
    /// Its subscriptions; null in a list.
    subscriptions: Option<Vec<Subscription>>,
}

/// Which session.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Named {
    /// The MQTT client id.
    client_id: String,
    /// Its user, where the list names one.
    user: Option<String>,
}

impl Named {
    fn name(self) -> SessionName {
        SessionName {
            client_id: self.client_id.into_bytes().into(),
            user: self.user.unwrap_or_default().into_bytes().into(),
        }
    }
}

/// How many sessions were ended.
#[derive(Serialize, ToSchema)]
pub struct EndedSessions {
    ended: u32,
}

fn shown(it: orders::Session, with_subscriptions: bool) -> Session {
    let all = it.subscriptions.into_iter().map(subscription).collect();
    Session {
        client_id: text(&it.client_id),
        user: Some(text(&it.user)).filter(|user| !user.is_empty()),
        expires_in_s: it.expires_in_s,
        bytes: it.bytes as u64,
        subscriptions: with_subscriptions.then_some(all),
    }
}

/// A page of sessions.
#[derive(Serialize, ToSchema)]
pub struct SessionPage {
    sessions: Vec<Session>,
    /// `cursor` of the next page; a page may be short, or empty, before the last one.
    next: Option<String>,
}

/// Which part of the list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Listed {
    /// Sessions of a page, 1 to 1000; 100 without it.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// `next` of the page before.
    cursor: Option<String>,
}

/// MQTT sessions whose clients are away
#[utoipa::path(
    get,
    path = "/api/v1/sessions",
    tag = "connections",
    params(Listed),
    responses(
        (status = 200, body = SessionPage),
        (status = 400, body = ErrorBody, description = "A limit or cursor that is none"),
    )
)]
pub async fn list(
    State(state): State<AdminState>,
    asked: Result<Query<Listed>, QueryRejection>,
) -> Answer<SessionPage> {
    let asked = asked?.0;
    let asked = PageRequest::new(asked.limit, asked.cursor.as_deref())?;
    let homes = state.lifecycle.world().homes;
    let order = |from, most| Control::Sessions { from, most };
    let (sessions, next) = asked.page(&state, homes, order).await?;
    let sessions = sessions.into_iter().map(|(_, it)| shown(it, false));
    let sessions = sessions.collect();
    Ok(Json(SessionPage { sessions, next }))
}

/// An MQTT session whose client is away
#[utoipa::path(
    get,
    path = "/api/v1/session",
    tag = "connections",
    params(Named),
    responses(
        (status = 200, body = Session),
        (status = 400, body = ErrorBody, description = "No client id"),
        (status = 404, body = ErrorBody, description = "There is none, or its client is connected"),
    )
)]
pub async fn inspect(
    State(state): State<AdminState>,
    asked: Result<Query<Named>, QueryRejection>,
) -> Answer<Session> {
    let name = asked?.0.name();
    for home in 0..state.lifecycle.world().homes {
        let order = Control::Session(name.clone());
        let found: Option<Box<orders::Session>> = state.shards.ask(home, order).await?;
        if let Some(session) = found {
            return Ok(Json(shown(*session, true)));
        }
    }
    Err(ApiError::missing("session whose client is away"))
}

/// End an MQTT session whose client is away
///
/// As if it had expired: its subscriptions and the messages that wait for it are gone, and its will is published. A session of a connected
/// client ends with its connection, or stays for as long as the client has asked.
#[utoipa::path(
    delete,
    path = "/api/v1/session",
    tag = "connections",
    params(Named),
    responses(
        (status = 200, body = EndedSessions),
        (status = 400, body = ErrorBody, description = "No client id"),
        (status = 404, body = ErrorBody, description = "There is none, or its client is connected"),
    )
)]
pub async fn end(
    State(state): State<AdminState>,
    asked: Result<Query<Named>, QueryRejection>,
) -> Answer<EndedSessions> {
    let name = asked?.0.name();
    for home in 0..state.lifecycle.world().homes {
        let order = Control::EndSession(name.clone());
        let ended: orders::Ended = state.shards.ask(home, order).await?;
        if ended.count > 0 {
            return Ok(Json(EndedSessions { ended: ended.count }));
        }
    }
    Err(ApiError::missing("session whose client is away"))
}
