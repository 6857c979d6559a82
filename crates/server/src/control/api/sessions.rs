//! MQTT sessions whose clients are away: pages of them. Those of connected clients are connections.

#![allow(unused_qualifications)] // what utoipa writes for `params`

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use crore_broker::{Control, Report};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::answer::{Answer, Cursor, ErrorBody, PIECES_MAX, page_len, text, unexpected};
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
    let (most, homes) = (page_len(asked.limit)?, plane.life().world().homes);
    let mut cursor = Cursor::parse(asked.cursor.as_deref())?;
    let mut sessions = Vec::new();
    for _ in 0..PIECES_MAX {
        let left = most - sessions.len() as u32;
        if cursor.shard >= homes || left == 0 {
            break;
        }
        let page = Control::Sessions {
            from: cursor.row,
            most: left,
        };
        let page = match plane.shards().ask(cursor.shard, page).await? {
            Report::Sessions(page) => page,
            other => unexpected(&other),
        };
        sessions.extend(page.sessions.iter().map(|it| Session {
            client_id: text(&it.client_id),
            user: Some(text(&it.user)).filter(|user| !user.is_empty()),
            expires_in_s: it.expires_in_s,
            bytes: it.bytes as u64,
        }));
        cursor.go_on(page.next);
    }
    Ok(Json(SessionPage {
        sessions,
        next: cursor.next(homes),
    }))
}
