//! The admin API, `/api/v1/`, in JSON. Its description at `/api/v1/openapi.json` is generated from the attributes and comments of the handlers
//! (a test requests every path and status of it).
//!
//! Lists are divided into pages. For each page the handler asks the shards, one after the other, for a bounded number of entries. A cursor says where the
//! next page begins. All errors have the form `{"error": "the error, and the remedy"}`.

mod answer;
mod centrifugo;
pub(super) mod cluster;
mod connections;
mod description;
mod lifecycle;
mod pusher;
mod revocations;
mod server;
mod sessions;
mod subscription;
mod tail;
mod topics;
mod webhooks;

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::any;
use axum::{Json, Router};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi, openapi};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::state::AdminState;
use super::{metrics, stats};
use crate::http_client::port_in_use::ADMIN_PORT;
use answer::ApiError;
pub use centrifugo::nodes::answer_calls;

/// Room in a JSON body besides the encoded message, in bytes.
const BODY_BYTES_MORE: usize = 64 << 10;

/// The routes of the API and of `/metrics`.
pub fn routes(state: &AdminState) -> Router<AdminState> {
    let bounded = middleware::from_fn_with_state(state.clone(), bound_body);
    Router::from(described())
        .merge(centrifugo::routes())
        .merge(pusher::routes())
        .route("/api/{*rest}", any(nowhere))
        .method_not_allowed_fallback(wrong_method)
        .layer(bounded)
}

/// The routes that are in the description of the API.
fn described() -> OpenApiRouter<AdminState> {
    OpenApiRouter::with_openapi(Described::openapi())
        .routes(routes!(stats::stats))
        .routes(routes!(stats::recent))
        .routes(routes!(metrics::metrics))
        .routes(routes!(tail::tail))
        .routes(routes!(topics::list))
        .routes(routes!(topics::info, topics::delete))
        .routes(routes!(topics::messages, topics::purge))
        .routes(routes!(topics::presence))
        .routes(routes!(topics::publish))
        .routes(routes!(connections::list))
        .routes(routes!(connections::inspect, connections::end))
        .routes(routes!(connections::end_selected))
        .routes(routes!(sessions::list))
        .routes(routes!(sessions::inspect, sessions::end))
        .routes(routes!(revocations::list, revocations::revoke))
        .routes(routes!(revocations::reinstate))
        .routes(routes!(webhooks::list))
        .routes(routes!(cluster::cluster))
        .routes(routes!(server::rules))
        .routes(routes!(server::config))
        .routes(routes!(lifecycle::reload))
        .routes(routes!(lifecycle::drain))
        .routes(routes!(describe))
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Crore admin API",
        description = "For those who run the server. The token is that of admin.token, and needed where one is set. Every path under /api/ and /metrics also answers 401 (no token, where admin.token is \
            set) and 403 (a Host or an Origin that is not the admin port's); a shard that does not answer is 504.",
    ),
    modifiers(&Token),
    security((), ("token" = []))
)]
struct Described;

/// Adds the token to the description, as its security scheme.
struct Token;

impl Modify for Token {
    fn modify(&self, api: &mut openapi::OpenApi) {
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        let components = api.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(bearer));
    }
}

/// This description
#[utoipa::path(
    get,
    path = "/api/v1/openapi.json",
    tag = "server",
    security(()),
    responses((status = 200, description = "OpenAPI 3.1"))
)]
async fn describe(State(state): State<AdminState>) -> Json<openapi::OpenApi> {
    let mut api = described().into_openapi();
    description::complete(&mut api, &state.lifecycle.world().settings.limits);
    Json(api)
}

/// Limits the size of a request body. The limit has room for the largest message of the current settings.
async fn bound_body(State(state): State<AdminState>, mut request: Request, next: Next) -> Response {
    let message_bytes = state.lifecycle.world().settings.limits.message_bytes;
    DefaultBodyLimit::max(message_bytes * 2 + BODY_BYTES_MORE).apply(&mut request);
    next.run(request).await
}

/// The answer to unknown paths outside of the API. Clients that want the data port often come here by mistake, so the answer names it.
pub async fn not_found() -> ApiError {
    let reason = format!(
        "there is no such path; {ADMIN_PORT}, and clients publish and subscribe at the data port (listen, by default 127.0.0.1:8800)"
    );
    ApiError::new(StatusCode::NOT_FOUND, reason)
}

async fn nowhere() -> ApiError {
    let reason = "there is no such path; GET /api/v1/openapi.json lists them";
    ApiError::new(StatusCode::NOT_FOUND, reason)
}

async fn wrong_method() -> ApiError {
    let reason = "this path does not take this method; GET /api/v1/openapi.json lists them";
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, reason)
}
