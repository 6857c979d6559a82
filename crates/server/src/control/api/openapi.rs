//! `GET /api/v1/openapi.json`: the description of the API, from what stands beside the handlers.

use axum::Json;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi};

use super::{cluster, connections, life, server, sessions, tail, topics};
use crate::control::{metrics, stats};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Crore admin API",
        description = "For those who run the server. Every path under /api/ and /metrics also answers 401 (no token, where admin.token is \
            set) and 403 (a Host or an Origin that is not the admin port's); a shard that does not answer is 504.",
    ),
    paths(
        stats::stats,
        stats::recent,
        metrics::metrics,
        tail::tail,
        topics::list,
        topics::info,
        topics::delete,
        topics::messages,
        topics::purge,
        topics::publish,
        connections::list,
        connections::inspect,
        connections::end,
        connections::end_all,
        sessions::list,
        cluster::cluster,
        server::rules,
        server::config,
        life::reload,
        life::drain,
        describe,
    ),
    modifiers(&Token),
    security(("token" = []))
)]
struct Api;

/// How the token is sent.
struct Token;

impl Modify for Token {
    fn modify(&self, api: &mut utoipa::openapi::OpenApi) {
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
pub async fn describe() -> Json<utoipa::openapi::OpenApi> {
    Json(Api::openapi())
}
