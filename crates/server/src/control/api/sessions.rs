//! MQTT sessions whose clients are away: pages of them. Those of connected clients are connections.

#![allow(unused_qualifications)] // what utoipa writes for `params`

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use crore_broker::Control;
use crore_broker::orders;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::answer::{Answer, Asked, ErrorBody, text};
use crate::control::plane::Plane;

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
    State(plane): State<Plane>,
    asked: Result<Query<Listed>, QueryRejection>,
) -> Answer<SessionPage> {
    let asked = asked?.0;
    let asked = Asked::new(asked.limit, asked.cursor.as_deref())?;
    let homes = plane.life.world().homes;
    let order = |from, most| Control::Sessions { from, most };
    let (sessions, next) = asked.page(&plane, homes, order).await?;
    let shown = |(_, it): (_, orders::Session)| Session {
        client_id: text(&it.client_id),
        user: Some(text(&it.user)).filter(|user| !user.is_empty()),
        expires_in_s: it.expires_in_s,
        bytes: it.bytes as u64,
    };
    let sessions = sessions.into_iter().map(shown).collect();
    Ok(Json(SessionPage { sessions, next }))
}
