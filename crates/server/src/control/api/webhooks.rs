//! Handler that lists the webhooks and what they have sent.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::control::state::AdminState;
use crate::control::webhooks::RunningWebhook;

/// A webhook.
#[derive(Serialize, ToSchema)]
pub struct Webhook {
    url: String,
    /// The names of the webhook's events.
    #[schema(value_type = Vec<String>)]
    events: serde_json::Value,
    /// Number of events that were sent and wait for an answer. Later events wait at the shards.
    waiting: u64,
    /// Seconds for which the oldest of these events has waited. Null if none waits.
    waiting_s: Option<u64>,
    /// The last answer: its status, or why there was none. Null before the first request.
    last_answer: Option<String>,
    /// Seconds since the last answer.
    last_answer_s: Option<u64>,
    /// Number of events that the endpoint has accepted.
    delivered: u64,
    /// Number of requests without a good answer.
    failed: u64,
    /// How often the whole state was sent (`resync`); the start of the server counts too.
    resyncs: u64,
}

impl From<&RunningWebhook> for Webhook {
    fn from(it: &RunningWebhook) -> Webhook {
        let counts = it.counts();
        let (last_answer, answered_at) = counts.last_answer.unzip();
        Webhook {
            url: it.entry.url.clone(),
            events: serde_json::json!(it.entry.events),
            waiting: counts.waiting,
            waiting_s: counts.waiting_since.map(|at| at.elapsed().as_secs()),
            last_answer,
            last_answer_s: answered_at.map(|at| at.elapsed().as_secs()),
            delivered: counts.delivered,
            failed: counts.failed,
            resyncs: counts.resyncs,
        }
    }
}

/// All webhooks.
#[derive(Serialize, ToSchema)]
pub struct Webhooks {
    webhooks: Vec<Webhook>,
}

/// Webhooks, and what they have sent
#[utoipa::path(
    get,
    path = "/api/v1/webhooks",
    tag = "server",
    responses((status = 200, body = Webhooks))
)]
pub async fn list(State(state): State<AdminState>) -> Json<Webhooks> {
    Json(Webhooks {
        webhooks: state.webhooks.iter().map(Webhook::from).collect(),
    })
}
