//! The admin API, `/api/v1/`: JSON in and out, described at `/api/v1/openapi.json` by what stands beside each handler
//! (a test walks every path and status of it).
//!
//! Listings come in pages: each asks shards for bounded pieces, one after the other, and a cursor says where to go on.
//! Errors are `{"error": "what is wrong, and what to do"}`, whatever refused the request.

mod connections;
mod openapi;
mod server;
mod topics;

use axum::Json;
use axum::Router;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use crore_broker::{Report, ShardId};
use serde::Serialize;
use utoipa::ToSchema;

use super::Plane;
use super::shards::Silent;

/// Entries of a page, unless the request says how many.
const PAGE: u32 = 100;
/// Entries of a page at most.
const PAGE_MAX: u32 = 1_000;
/// Pieces that one request asks shards for at most: some milliseconds of their time. What is not found by then is left
/// to the next page.
const PIECES_MAX: usize = 64;
/// What a JSON body has besides a message in Base64 or with every character escaped.
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
        .route("/api/v1/rules", get(server::rules))
        .route("/api/v1/config", get(server::config))
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

/// Why a request is refused.
#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    why: String,
}

/// An error's body.
#[derive(Serialize, ToSchema)]
pub struct ErrorBody {
    /// What is wrong, and what to do.
    error: String,
}

impl ApiError {
    fn new(status: StatusCode, why: impl Into<String>) -> Self {
        ApiError {
            status,
            why: why.into(),
        }
    }

    fn bad(why: impl Into<String>) -> Self {
        ApiError::new(StatusCode::BAD_REQUEST, why)
    }

    fn missing(what: &str) -> Self {
        ApiError::new(StatusCode::NOT_FOUND, format!("there is no such {what}"))
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = ErrorBody { error: self.why };
        (self.status, Json(body)).into_response()
    }
}

impl From<Silent> for ApiError {
    fn from(Silent(shard): Silent) -> Self {
        ApiError::new(
            StatusCode::GATEWAY_TIMEOUT,
            format!("shard {shard} does not answer"),
        )
    }
}

impl From<JsonRejection> for ApiError {
    fn from(rejection: JsonRejection) -> Self {
        // What does not fit is as bad as what cannot be parsed.
        let status = match rejection.status() {
            StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
            status => status,
        };
        let why = match (&rejection, status) {
            (JsonRejection::MissingJsonContentType(_), _) => {
                "the body is not said to be JSON; send it with Content-Type: application/json".into()
            }
            (_, StatusCode::PAYLOAD_TOO_LARGE) => {
                "the body is longer than limits.message_bytes has room for; publish less at once, or raise it".into()
            }
            _ => described(&rejection.body_text()),
        };
        ApiError::new(status, why)
    }
}

impl From<QueryRejection> for ApiError {
    fn from(rejection: QueryRejection) -> Self {
        ApiError::new(rejection.status(), described(&rejection.body_text()))
    }
}

/// What is wrong with a request, and where it stands how it should be.
fn described(wrong: &str) -> String {
    format!("{wrong}; GET /api/v1/openapi.json describes it")
}

type Answer<T> = Result<Json<T>, ApiError>;

/// A shard answered something else than was asked: a fault of ours.
fn unexpected(report: &Report) -> ! {
    unreachable!("an answer to another question: {report:?}")
}

async fn nowhere() -> ApiError {
    let why = "there is no such path; GET /api/v1/openapi.json lists them";
    ApiError::new(StatusCode::NOT_FOUND, why)
}

async fn wrong_method() -> ApiError {
    let why = "this path does not take this method; GET /api/v1/openapi.json lists them";
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, why)
}

/// How many entries a page has.
fn page_len(limit: Option<u32>) -> Result<u32, ApiError> {
    match limit.unwrap_or(PAGE) {
        n @ 1..=PAGE_MAX => Ok(n),
        n => Err(ApiError::bad(format!(
            "limit={n}; write a number from 1 to {PAGE_MAX}"
        ))),
    }
}

/// Where a listing goes on: a row of a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cursor {
    shard: ShardId,
    row: u32,
}

impl Cursor {
    fn parse(text: Option<&str>) -> Result<Cursor, ApiError> {
        let Some(text) = text else {
            return Ok(Cursor::default());
        };
        let parts = text.split_once('.');
        let cursor = parts.and_then(|(shard, row)| {
            Some(Cursor {
                shard: shard.parse().ok()?,
                row: row.parse().ok()?,
            })
        });
        let why =
            || ApiError::bad("cursor is not one that a page gave as next; leave it out to begin");
        cursor.ok_or_else(why)
    }

    /// Goes on within the shard, or with the next one.
    fn go_on(&mut self, row: Option<u32>) {
        match row {
            Some(row) => self.row = row,
            None => {
                *self = Cursor {
                    shard: self.shard + 1,
                    row: 0,
                };
            }
        }
    }

    /// What the next page is asked with, if any shard is left.
    fn next(self, shards: ShardId) -> Option<String> {
        (self.shard < shards).then(|| format!("{}.{}", self.shard, self.row))
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_goes_through_all_shards_and_ends() {
        let mut cursor = Cursor::parse(None).unwrap();
        cursor.go_on(Some(4096));
        assert_eq!(cursor.next(2).as_deref(), Some("0.4096"));
        assert_eq!(Cursor::parse(Some("0.4096")).unwrap(), cursor);
        cursor.go_on(None);
        assert_eq!(cursor.next(2).as_deref(), Some("1.0"));
        cursor.go_on(None);
        assert_eq!(cursor.next(2), None);
        for bad in [
            "",
            "1",
            "1.",
            ".1",
            "-1.0",
            "0.x",
            "99999.0",
            "0.99999999999",
        ] {
            assert!(Cursor::parse(Some(bad)).is_err(), "{bad}");
        }
    }
}
