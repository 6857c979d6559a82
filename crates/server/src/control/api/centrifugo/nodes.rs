//! Carries the methods for clients to all nodes of a cluster. Each node answers when it has carried out the call for its own clients.

use std::time::Duration;

use crore_wire::centrifugo::codes::ErrorCode;
use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::sleep;

use super::{Empty, Failure, clients};
use crate::control::peer_nodes::{PeerNodes, json};
use crate::control::state::AdminState;
use crate::lifecycle::Lifecycle;
use crate::lifecycle::shards::Shards;

/// Timeout of the other nodes' answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Delay before a lost NATS subscription is renewed.
const RESUBSCRIBE_DELAY: Duration = Duration::from_secs(1);

/// A call that a node passes on to the others.
#[derive(Serialize, Deserialize)]
struct Call {
    /// The node that asks.
    caller: String,
    method: String,
    params: Box<RawValue>,
}

/// The answer of a node that has carried out a call.
#[derive(Serialize, Deserialize)]
struct Called {
    writer: String,
}

/// Carries out a method for the clients of all nodes.
pub(super) async fn call_all(
    state: &AdminState,
    method: &str,
    params: &str,
) -> Result<Empty, Failure> {
    clients::call(&state.shards, &state.lifecycle, method, params).await?;
    if state.peer_nodes.peers().is_none() {
        return Ok(Empty {});
    }
    let unknown = || Failure::new(ErrorCode::INTERNAL, "the other nodes cannot be asked now");
    let caller = state.peer_nodes.own_writer().await.ok_or_else(unknown)?;
    let params = RawValue::from_string(params.to_string());
    let call = Call {
        caller,
        method: method.to_string(),
        params: params.map_err(|error| Failure::bad(error.to_string()))?,
    };
    let called = |answer: Called| (answer.writer, ());
    let asked = state
        .peer_nodes
        .ask_others(json(&call), ANSWER_TIMEOUT, called);
    let (_, unanswered) = asked.await.ok_or_else(unknown)?;
    if unanswered.is_empty() {
        return Ok(Empty {});
    }
    let words = format!("not done at these nodes: {}", unanswered.join(", "));
    Err(Failure::new(ErrorCode::INTERNAL, words))
}

/// Carries out the calls that other nodes pass on. Never returns.
pub async fn answer_calls(lifecycle: Lifecycle, shards: Shards, peer_nodes: PeerNodes) {
    loop {
        if let Some(peers) = peer_nodes.peers()
            && let Some(questions) = peers.questions().await
        {
            let mut questions = std::pin::pin!(questions);
            while let Some(question) = questions.next().await {
                // Other questions have another form.
                let Ok(call) = serde_json::from_slice::<Call>(question.bytes()) else {
                    continue;
                };
                let Some(writer) = peer_nodes.own_writer().await else {
                    continue;
                };
                if call.caller != writer {
                    let called =
                        clients::call(&shards, &lifecycle, &call.method, call.params.get());
                    if called.await.is_ok() {
                        question.answer(json(&Called { writer })).await;
                    }
                }
            }
        }
        sleep(RESUBSCRIBE_DELAY).await;
    }
}
