//! Handlers of the admin API that reload the settings and drain the server.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde_json::json;

use super::answer::ApiError;
use crate::control::state::AdminState;

/// Read the settings again
///
/// 200 with the changes, or 422 with the faults of the settings, line by line.
#[utoipa::path(
    post,
    path = "/api/v1/reload",
    tag = "server",
    responses(
        (status = 200, description = "What changed, and what cannot change before a restart"),
        (status = 422, description = "What is wrong with the settings; nothing has changed"),
    )
)]
pub async fn reload(State(state): State<AdminState>) -> Response {
    match state.lifecycle.reload().await {
        Ok(reloaded) => Json(reloaded).into_response(),
        Err(error) => ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, error).into_response(),
    }
}

/// Drain
///
/// 202: from now on the server disconnects its clients, a few at a time, so that they reconnect to another server or to the next process.
/// When all have left, or at `drain.deadline_s`, the process ends.
#[utoipa::path(
    post,
    path = "/api/v1/drain",
    tag = "server",
    responses((status = 202, description = "How many connections there are"))
)]
pub async fn drain(State(state): State<AdminState>) -> Response {
    state.lifecycle.drain();
    let connections = state.lifecycle.world().admission.connections();
    let body = Json(json!({ "connections": connections }));
    (StatusCode::ACCEPTED, body).into_response()
}
