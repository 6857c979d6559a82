//! The parts of answers that all handlers of the API share: errors, and the pages of listings.

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use crore_broker::orders::Page;
use crore_broker::{Control, Reason, Report, ShardId};
use serde::Serialize;
use utoipa::ToSchema;

use crate::control::state::AdminState;
use crate::lifecycle::shards::ShardTimeout;

/// The number of entries of a page if the request has no `limit`.
const PAGE_LEN: u32 = 100;
/// The maximum number of entries of a page.
const PAGE_MAX: u32 = 1_000;
/// The maximum number of orders to shards for one request. They take some milliseconds of the shards' time. If the answers do not fill the
/// page, the page is short.
const ORDERS_PER_PAGE_MAX: usize = 64;

/// The refusal of a request.
#[derive(Debug)]
pub struct ApiError {
    pub status: StatusCode,
    /// The reason in the broker's table, if it has one.
    pub reason: Option<Reason>,
    pub message: String,
}

/// An error's body.
#[derive(Serialize, ToSchema)]
pub struct ErrorBody {
    /// The fault, and its remedy.
    error: String,
}

impl ApiError {
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        ApiError {
            status,
            reason: None,
            message: message.into(),
        }
    }

    /// 400: the request is wrong.
    pub fn bad(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::BAD_REQUEST, message)
    }

    /// The refusal of a request for a reason of the broker.
    pub fn for_reason(status: StatusCode, reason: Reason, message: impl Into<String>) -> Self {
        ApiError {
            reason: Some(reason),
            ..ApiError::new(status, message)
        }
    }

    /// 404: the requested thing does not exist.
    pub fn missing(noun: &str) -> Self {
        ApiError::new(StatusCode::NOT_FOUND, format!("there is no such {noun}"))
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = ErrorBody {
            error: self.message,
        };
        (self.status, Json(body)).into_response()
    }
}

impl From<ShardTimeout> for ApiError {
    fn from(silent: ShardTimeout) -> Self {
        ApiError::new(StatusCode::GATEWAY_TIMEOUT, silent.to_string())
    }
}

impl From<JsonRejection> for ApiError {
    fn from(rejection: JsonRejection) -> Self {
        // A body with wrong fields gets the same status as one that is not JSON.
        let status = match rejection.status() {
            StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
            status => status,
        };
        let message = match (&rejection, status) {
            (JsonRejection::MissingJsonContentType(_), _) => {
                "the body is not said to be JSON; send it with Content-Type: application/json".into()
            }
            (_, StatusCode::PAYLOAD_TOO_LARGE) => {
                "the body is longer than limits.message_bytes has room for; publish less at once, or raise it".into()
            }
            _ => described(&rejection.body_text()),
        };
        ApiError::new(status, message)
    }
}

impl From<QueryRejection> for ApiError {
    fn from(rejection: QueryRejection) -> Self {
        ApiError::new(rejection.status(), described(&rejection.body_text()))
    }
}

/// Adds to the text of an error where the format of requests is described.
fn described(wrong: &str) -> String {
    // The extractors' messages begin with the fact that the extractor failed. This beginning is left out.
    let begins = [
        ("Failed to deserialize query string: ", "the query: "),
        (
            "Failed to deserialize the JSON body into the target type: ",
            "the body: ",
        ),
        (
            "Failed to parse the request body as JSON: ",
            "the body is no JSON: ",
        ),
    ];
    let plain =
        |(begin, place): (&str, &str)| Some(format!("{place}{}", wrong.strip_prefix(begin)?));
    let wrong = begins
        .into_iter()
        .find_map(plain)
        .unwrap_or_else(|| wrong.to_string());
    format!("{wrong}; GET /api/v1/openapi.json describes it")
}

/// The result of a handler.
pub type Answer<T> = Result<Json<T>, ApiError>;

/// The page of a list that a request asks for: the maximum number of entries, and the place where the page begins.
pub struct PageRequest {
    entries_max: u32,
    cursor: Cursor,
}

impl PageRequest {
    /// Parses the `limit` and the `cursor` of a request.
    ///
    /// # Errors
    /// One of them is invalid.
    pub fn new(limit: Option<u32>, cursor: Option<&str>) -> Result<PageRequest, ApiError> {
        Ok(PageRequest {
            entries_max: page_len(limit)?,
            cursor: Cursor::parse(cursor)?,
        })
    }

    /// Collects the page from the first `shards` shards: the entries, each with its shard, and the cursor of the next page. `order` makes
    /// the order to a shard from the row where the shard begins and the maximum number of entries.
    ///
    /// # Errors
    /// A shard does not answer.
    pub async fn page<T>(
        self,
        state: &AdminState,
        shards: ShardId,
        order: impl Fn(u32, u32) -> Control,
    ) -> Result<(Vec<(ShardId, T)>, Option<String>), ApiError>
    where
        Page<T>: TryFrom<Report>,
    {
        let (entries_max, mut cursor) = (self.entries_max as usize, self.cursor);
        let mut entries = Vec::new();
        for _ in 0..ORDERS_PER_PAGE_MAX {
            if cursor.shard >= shards || entries.len() >= entries_max {
                break;
            }
            let (shard, left) = (cursor.shard, entries_max - entries.len());
            let piece = order(cursor.row, left as u32);
            let piece: Page<T> = state.shards.ask(shard, piece).await?;
            entries.extend(piece.found.into_iter().map(|entry| (shard, entry)));
            cursor.advance(piece.next);
        }
        Ok((entries, cursor.next(shards)))
    }
}

/// Checks the `limit` of a request.
pub fn page_len(limit: Option<u32>) -> Result<u32, ApiError> {
    match limit.unwrap_or(PAGE_LEN) {
        n @ 1..=PAGE_MAX => Ok(n),
        n => Err(ApiError::bad(format!(
            "limit={n}; write a number from 1 to {PAGE_MAX}"
        ))),
    }
}

/// The place where a listing continues: a row of a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cursor {
    shard: ShardId,
    row: u32,
}

impl Cursor {
    /// Parses the cursor of a request. Without a cursor the list begins at its first entry.
    ///
    /// # Errors
    /// The text is not a cursor.
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
        let message =
            || ApiError::bad("cursor is not one that a page gave as next; leave it out to begin");
        cursor.ok_or_else(message)
    }

    /// Moves to `row` of the same shard, or to the next shard.
    fn advance(&mut self, row: Option<u32>) {
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

    /// The text of the cursor for the next page. None if no shard is left.
    fn next(self, shards: ShardId) -> Option<String> {
        (self.shard < shards).then(|| format!("{}.{}", self.shard, self.row))
    }
}

/// Converts bytes that should be UTF-8. Invalid bytes become U+FFFD.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_visits_all_shards_and_ends() {
        let mut cursor = Cursor::parse(None).unwrap();
        cursor.advance(Some(4096));
        assert_eq!(cursor.next(2).as_deref(), Some("0.4096"));
        assert_eq!(Cursor::parse(Some("0.4096")).unwrap(), cursor);
        cursor.advance(None);
        assert_eq!(cursor.next(2).as_deref(), Some("1.0"));
        cursor.advance(None);
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
