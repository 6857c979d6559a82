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

/// The session of an MQTT client that is not connected.
#[derive(Serialize, ToSchema)]
pub struct Session {
    /// The MQTT client id.
    client_id: String,
    /// The user of the client; null if it had no credentials.
    user: Option<String>,
    /// Seconds until the session expires; null if it never expires.
    expires_in_s: Option<u32>,
    /// Memory of the session in bytes: its subscriptions and its unacknowledged messages.
    bytes: u64,
    /// The subscriptions of the session; null in a list of sessions.
    subscriptions: Option<Vec<Subscription>>,
}

/// The session to show or to end.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SessionQuery {
    /// The MQTT client id.
    client_id: String,
    /// The user of the session, if the list of sessions has one.
    user: Option<String>,
}

impl SessionQuery {
    fn name(self) -> SessionName {
        SessionName {
            client_id: self.client_id.into_bytes().into(),
            user: self.user.unwrap_or_default().into_bytes().into(),
        }
    }
}

/// The result of ending a session.
#[derive(Serialize, ToSchema)]
pub struct EndedSessions {
    /// Number of sessions that were ended.
    ended: u32,
}

fn to_session(it: orders::Session, with_subscriptions: bool) -> Session {
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
    /// The `cursor` for the next page; null on the last page. Other pages may have fewer sessions than `limit`, or none.
    next: Option<String>,
}

/// The page of the list to return.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SessionsQuery {
    /// The largest number of sessions on the page, 1 to 1000. The default is 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// The value of `next` of the previous page. Without it, the list begins with the first page.
    cursor: Option<String>,
}

/// List the MQTT sessions of disconnected clients
#[utoipa::path(
    get,
    path = "/api/v1/sessions",
    tag = "connections",
    params(SessionsQuery),
    responses(
        (status = 200, body = SessionPage),
        (status = 400, body = ErrorBody, description = "The limit or the cursor is not valid"),
    )
)]
pub async fn list(
    State(state): State<AdminState>,
    query: Result<Query<SessionsQuery>, QueryRejection>,
) -> Answer<SessionPage> {
    let query = query?.0;
    let page_request = PageRequest::new(query.limit, query.cursor.as_deref())?;
    let homes = state.lifecycle.world().homes;
    let order = |from, sessions_max| Control::Sessions { from, sessions_max };
    let (sessions, next) = page_request.page(&state, homes, order).await?;
    let sessions = sessions.into_iter().map(|(_, it)| to_session(it, false));
    let sessions = sessions.collect();
    Ok(Json(SessionPage { sessions, next }))
}

/// Show the MQTT session of a disconnected client
#[utoipa::path(
    get,
    path = "/api/v1/session",
    tag = "connections",
    params(SessionQuery),
    responses(
        (status = 200, body = Session),
        (status = 400, body = ErrorBody, description = "The client id is missing"),
        (status = 404, body = ErrorBody, description = "There is no such session, or its client is connected"),
    )
)]
pub async fn inspect(
    State(state): State<AdminState>,
    query: Result<Query<SessionQuery>, QueryRejection>,
) -> Answer<Session> {
    let name = query?.0.name();
    for home in 0..state.lifecycle.world().homes {
        let order = Control::Session(name.clone());
        let found: Option<Box<orders::Session>> = state.shards.ask(home, order).await?;
        if let Some(session) = found {
            return Ok(Json(to_session(*session, true)));
        }
    }
    Err(ApiError::missing("session whose client is away"))
}

/// End the MQTT session of a disconnected client
///
/// This has the same effect as the expiry of the session: its subscriptions and its waiting messages are deleted, and its will is published.
/// The session of a connected client cannot be ended here. It ends with the connection, or after the expiry interval that the client has set.
#[utoipa::path(
    delete,
    path = "/api/v1/session",
    tag = "connections",
    params(SessionQuery),
    responses(
        (status = 200, body = EndedSessions),
        (status = 400, body = ErrorBody, description = "The client id is missing"),
        (status = 404, body = ErrorBody, description = "There is no such session, or its client is connected"),
    )
)]
pub async fn end(
    State(state): State<AdminState>,
    query: Result<Query<SessionQuery>, QueryRejection>,
) -> Answer<EndedSessions> {
    let name = query?.0.name();
    for home in 0..state.lifecycle.world().homes {
        let order = Control::EndSession(name.clone());
        let ended: orders::Ended = state.shards.ask(home, order).await?;
        if ended.count > 0 {
            return Ok(Json(EndedSessions { ended: ended.count }));
        }
    }
    Err(ApiError::missing("session whose client is away"))
}
