//! Centrifugo's server API: `POST /api/<method>` with a JSON body, for the API libraries of Centrifugo. `docs/CENTRIFUGO.md` says what is built.
//!
//! The methods do what the admin API does, by the same functions, and answer in Centrifugo's form: 200 with `result` or `error`, `batch` with `replies`. A body that cannot
//! be read is 400. `batch`, and `POST /api` with several commands, carry out their commands one after another.

mod clients;
pub mod nodes;
mod topics;

use std::borrow::Cow;
use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use crore_broker::protocol::centrifugo_error_of;
use crore_wire::centrifugo::codes::ErrorCode;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};

use super::answer::ApiError;
use crate::control::state::AdminState;

/// The methods with paths. Those behind `batch` are not built.
const METHODS: [&str; 14] = [
    "publish",
    "broadcast",
    "subscribe",
    "unsubscribe",
    "disconnect",
    "refresh",
    "history",
    "history_remove",
    "channels",
    "info",
    "batch",
    "presence",
    "presence_stats",
    "rpc",
];

/// Why a command failed.
#[derive(Debug, Serialize)]
struct Failure {
    #[serde(rename = "code", serialize_with = "number_of")]
    code: ErrorCode,
    #[serde(rename = "message")]
    words: Cow<'static, str>,
    /// Its parameters cannot be read.
    #[serde(skip)]
    is_unreadable: bool,
}

fn number_of<S: Serializer>(code: &ErrorCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u32(code.code)
}

impl Failure {
    fn new(code: ErrorCode, words: impl Into<Cow<'static, str>>) -> Failure {
        Failure {
            code,
            words: words.into(),
            is_unreadable: false,
        }
    }

    fn bad(words: impl Into<Cow<'static, str>>) -> Failure {
        Failure::new(ErrorCode::BAD_REQUEST, words)
    }

    fn not_built(feature: &'static str) -> Failure {
        Failure::new(ErrorCode::NOT_AVAILABLE, format!("{feature} is not built"))
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Failure {
        let code = match (error.reason, error.status) {
            (Some(reason), _) => centrifugo_error_of(reason),
            (None, StatusCode::BAD_REQUEST) => ErrorCode::BAD_REQUEST,
            _ => ErrorCode::INTERNAL,
        };
        Failure::new(code, error.message)
    }
}

/// The reply to a command.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Reply {
    Result(Box<RawValue>),
    Error(Failure),
}

impl Reply {
    fn of(outcome: Outcome) -> Reply {
        outcome.map_or_else(Reply::Error, Reply::Result)
    }
}

/// A result as JSON.
type Outcome = Result<Box<RawValue>, Failure>;

/// A result without fields.
#[derive(Serialize, Deserialize)]
struct Empty {}

/// The parameters of `batch`. Each command is an object with the method's name and its parameters.
#[derive(Deserialize)]
struct Batch<'a> {
    #[serde(borrow)]
    commands: Vec<BTreeMap<String, &'a RawValue>>,
}

/// A command in the body of `POST /api`.
#[derive(Deserialize)]
struct Single<'a> {
    method: String,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

/// The routes of the API.
pub fn routes() -> Router<AdminState> {
    let router = Router::new().route("/api", post(serve_lines));
    METHODS.into_iter().fold(router, |router, method| {
        let serve = move |state, body| serve(state, method, body);
        router.route(&format!("/api/{method}"), post(serve))
    })
}

async fn serve(
    State(state): State<AdminState>,
    method: &'static str,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let body = body_of(&state, &body)?;
    let outcome = match method {
        "batch" => batch(&state, body).await,
        method => carry_out(&state, method, body).await,
    };
    match outcome {
        Err(failure) if failure.is_unreadable => Err(ApiError::bad(failure.words)),
        // As Centrifugo has it.
        Ok(replies) if method == "batch" => Ok(Json(replies).into_response()),
        outcome => Ok(Json(Reply::of(outcome)).into_response()),
    }
}

/// Carries out one command for each line of the body, as API libraries of Centrifugo 3 and 4 send them. Libraries parse each line of the answer, so its last
/// one has no line end.
async fn serve_lines(
    State(state): State<AdminState>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let body = body_of(&state, &body)?;
    let commands = serde_json::Deserializer::from_str(body).into_iter::<Single<'_>>();
    let commands: Result<Vec<_>, _> = commands.collect();
    let commands = commands.map_err(|error| ApiError::bad(format!("the body: {error}")))?;
    check_count(&state, commands.len(), "commands")
        .map_err(|failure| ApiError::bad(failure.words))?;
    let mut lines = Vec::new();
    for command in commands {
        if !lines.is_empty() {
            lines.push(b'\n');
        }
        let params = command.params.map_or("{}", RawValue::get);
        let reply = Reply::of(carry_out(&state, &command.method, params).await);
        serde_json::to_writer(&mut lines, &reply).expect("it is text and numbers");
    }
    Ok(([(header::CONTENT_TYPE, "application/json")], lines).into_response())
}

/// The body, if the API is on.
fn body_of<'a>(
    state: &AdminState,
    body: &'a Result<Bytes, BytesRejection>,
) -> Result<&'a str, ApiError> {
    if !state.lifecycle.world().settings.centrifugo.enabled {
        let reason = "Centrifugo's protocol and its server API are off; set centrifugo.enabled = true, and reload";
        return Err(ApiError::new(StatusCode::NOT_FOUND, reason));
    }
    let body = body
        .as_ref()
        .map_err(|rejection| ApiError::new(rejection.status(), rejection.body_text()))?;
    match std::str::from_utf8(body) {
        Ok("") => Ok("{}"),
        Ok(body) => Ok(body),
        Err(_) => Err(ApiError::bad("the body is not UTF-8")),
    }
}

/// Refuses a request with more entries of a kind (`noun`) than a frame of a client may have commands.
fn check_count(state: &AdminState, count: usize, noun: &str) -> Result<(), Failure> {
    let most = state
        .lifecycle
        .world()
        .settings
        .centrifugo
        .frame_commands_max;
    if count <= most {
        return Ok(());
    }
    let words = format!("{count} {noun}; centrifugo.frame_commands_max allows {most}");
    Err(Failure::new(ErrorCode::LIMIT_EXCEEDED, words))
}

fn read<'a, T: Deserialize<'a>>(params: &'a str) -> Result<T, Failure> {
    serde_json::from_str(params).map_err(|error| Failure {
        is_unreadable: true,
        ..Failure::bad(format!("the parameters: {error}"))
    })
}

fn result(value: impl Serialize) -> Outcome {
    Ok(to_raw_value(&value).expect("it is text and numbers"))
}

async fn batch(state: &AdminState, params: &str) -> Outcome {
    let commands = read::<Batch<'_>>(params)?.commands;
    check_count(state, commands.len(), "commands")?;
    let mut replies = Vec::new();
    for command in commands {
        let reply = match command.into_iter().next() {
            Some((method, params)) => match carry_out(state, &method, params.get()).await {
                Ok(result) => (method, result),
                Err(failure) => ("error".to_string(), result(failure)?),
            },
            None => (
                "error".to_string(),
                result(Failure::bad("a command without a method"))?,
            ),
        };
        replies.push(BTreeMap::from([reply]));
    }
    result(BTreeMap::from([("replies", replies)]))
}

/// Carries out a command, except `batch`.
async fn carry_out(state: &AdminState, method: &str, params: &str) -> Outcome {
    match method {
        "publish" => result(topics::publish(state, params).await?),
        "broadcast" => result(topics::broadcast(state, params).await?),
        "history" => result(topics::history(state, read(params)?).await?),
        "history_remove" => result(topics::history_remove(state, read(params)?).await?),
        "channels" => result(topics::channels_of_all(state, params).await?),
        "subscribe" | "unsubscribe" | "disconnect" | "refresh" => {
            nodes::call_all::<Empty>(state, method, params)
                .await?
                .of_all()?;
            result(Empty {})
        }
        "info" => result(clients::info(state).await?),
        "presence" => result(topics::presence(state, read(params)?).await?),
        "presence_stats" => result(topics::presence_stats(state, read(params)?).await?),
        _ => Err(Failure::new(
            ErrorCode::METHOD_NOT_FOUND,
            format!("there is no method {method:?}"),
        )),
    }
}
