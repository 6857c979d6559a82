//! The admin API, `/api/v1/`: JSON in and out, described at `/api/v1/openapi.json` by what stands beside each handler
//! (a test walks every path and status of it).
//!
//! Listings come in pages: each asks shards for bounded pieces, one after the other, and a cursor says where to go on.
//! Errors are `{"error": "what is wrong, and what to do"}`, whatever refused the request.

mod answer;
mod cluster;
mod connections;
mod life;
mod openapi;
mod server;
mod sessions;
mod tail;
mod topics;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{any, get, post};

use super::plane::Plane;
use crate::client::occupant::ADMIN_PORT;
use answer::ApiError;

/// Bytes of a JSON body besides its message, which is in Base64 or has every character escaped.
const BODY_BYTES_MORE: usize = 64 << 10;

/// All of it.
pub fn routes(plane: &Plane) -> Router<Plane> {
    let bounded = middleware::from_fn_with_state(plane.clone(), bound_body);
    Router::new()
        .route("/api/v1/topics", get(topics::list))
        .route("/api/v1/topic", get(topics::info).delete(topics::delete))
        .route(
            "/api/v1/topic/messages",
            get(topics::messages).delete(topics::purge),
        )
        .route("/api/v1/publish", post(topics::publish))
        .route("/api/v1/connections", get(connections::list))
        .route(
            "/api/v1/connections/{id}",
            get(connections::inspect).delete(connections::end),
        )
        .route("/api/v1/connections/disconnect", post(connections::end_all))
        .route("/api/v1/sessions", get(sessions::list))
        .route("/api/v1/cluster", get(cluster::cluster))
        .route("/api/v1/rules", get(server::rules))
        .route("/api/v1/config", get(server::config))
        .route("/api/v1/reload", post(life::reload))
        .route("/api/v1/drain", post(life::drain))
        .route("/api/v1/tail", get(tail::tail))
        .route("/api/v1/openapi.json", get(openapi::describe))
        .route("/api/{*rest}", any(nowhere))
        .method_not_allowed_fallback(wrong_method)
        .layer(bounded)
}

/// A body may be as large as a message of the settings that hold asks for.
async fn bound_body(State(plane): State<Plane>, mut request: Request, next: Next) -> Response {
    let message_bytes = plane.life().world().settings.limits.message_bytes;
    DefaultBodyLimit::max(message_bytes * 2 + BODY_BYTES_MORE).apply(&mut request);
    next.run(request).await
}

/// The answer to paths outside of the API. Clients of a data port often come here by mistake.
pub async fn elsewhere() -> ApiError {
    let why = format!(
        "there is no such path; {ADMIN_PORT}, and clients publish and subscribe at the data port (listen, by default 127.0.0.1:8800)"
    );
    ApiError::new(StatusCode::NOT_FOUND, why)
}

async fn nowhere() -> ApiError {
    let why = "there is no such path; GET /api/v1/openapi.json lists them";
    ApiError::new(StatusCode::NOT_FOUND, why)
}

async fn wrong_method() -> ApiError {
    let why = "this path does not take this method; GET /api/v1/openapi.json lists them";
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, why)
}
