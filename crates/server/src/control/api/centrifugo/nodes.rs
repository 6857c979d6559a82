//! Carries the methods for clients, `channels` and the users of `info` to all nodes of a cluster. Each node answers when it has carried out the call for its own
//! clients.

use std::time::Duration;

use crore_wire::centrifugo::codes::ErrorCode;
use futures_util::StreamExt as _;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::sleep;

use super::{Failure, Outcome, clients, read, result, topics};
use crate::control::peer_nodes::{PeerNodes, json};
use crate::control::state::AdminState;
use crate::lifecycle::Lifecycle;
use crate::lifecycle::shards::Shards;

/// Timeout of the other nodes' answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum bytes of a result in an answer. NATS accepts messages of 1 MiB by default.
const RESULT_BYTES_MAX: usize = 512 << 10;
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
    /// The result. Nodes of earlier versions send none, and carry out only methods whose result is empty.
    #[serde(default)]
    result: Option<Box<RawValue>>,
    /// The limit that the result exceeds, in which case it is absent.
    #[serde(default)]
    limit: Option<String>,
}

/// The results of a call at all nodes.
pub(super) struct Results<T> {
    /// The result at this node.
    pub own: T,
    /// The results at other nodes, with their writer numbers.
    pub others: Vec<(String, T)>,
    /// The names of nodes that have not answered in time.
    unanswered: Vec<String>,
}

impl<T> Results<T> {
    /// The result of each node.
    ///
    /// # Errors
    /// When a node has not answered.
    pub fn of_all(self) -> Result<Vec<T>, Failure> {
        if !self.unanswered.is_empty() {
            let words = format!("not done at these nodes: {}", self.unanswered.join(", "));
            return Err(Failure::new(ErrorCode::INTERNAL, words));
        }
        let others = self.others.into_iter().map(|(_, result)| result);
        Ok(std::iter::once(self.own).chain(others).collect())
    }
}

/// Carries out a method at this node.
async fn call_here(lifecycle: &Lifecycle, shards: &Shards, method: &str, params: &str) -> Outcome {
    match method {
        "channels" => result(topics::channels(shards, lifecycle, read(params)?).await?),
        "users" => result(clients::users(shards).await?),
        method => result(clients::call(shards, lifecycle, method, params).await?),
    }
}

/// Carries out a method at all nodes.
pub(super) async fn call_all<T: DeserializeOwned>(
    state: &AdminState,
    method: &str,
    params: &str,
) -> Result<Results<T>, Failure> {
    let own = call_here(&state.lifecycle, &state.shards, method, params).await?;
    let mut results = Results {
        own: read(own.get())?,
        others: Vec::new(),
        unanswered: Vec::new(),
    };
    if state.peer_nodes.peers().is_none() {
        return Ok(results);
    }
    let unknown = || Failure::new(ErrorCode::INTERNAL, "the other nodes cannot be asked now");
    let caller = state.peer_nodes.own_writer().await.ok_or_else(unknown)?;
    let params = RawValue::from_string(params.to_string());
    let call = Call {
        caller,
        method: method.to_string(),
        params: params.map_err(|error| Failure::bad(error.to_string()))?,
    };
    let called = |answer: Called| (answer.writer.clone(), answer);
    let asked = state
        .peer_nodes
        .ask_others(json(&call), ANSWER_TIMEOUT, called);
    let (answers, unanswered) = asked.await.ok_or_else(unknown)?;
    results.unanswered = unanswered;
    for answer in answers {
        if let Some(limit) = answer.limit {
            return Err(Failure::new(ErrorCode::LIMIT_EXCEEDED, limit));
        }
        let result = read(answer.result.as_deref().map_or("{}", RawValue::get));
        results.others.push((answer.writer, result?));
    }
    Ok(results)
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
                if call.caller == writer {
                    continue;
                }
                let called = call_here(&lifecycle, &shards, &call.method, call.params.get());
                if let Some(answer) = answer_of(writer, called.await) {
                    question.answer(json(&answer)).await;
                }
            }
        }
        sleep(RESUBSCRIBE_DELAY).await;
    }
}

/// The answer to a call. None if the call has failed in a way that the node that asks need not know.
fn answer_of(writer: String, outcome: Outcome) -> Option<Called> {
    let (result, limit) = match outcome {
        Ok(result) if result.get().len() > RESULT_BYTES_MAX => {
            let limit = "the list of a node is too long for one answer; ask with a pattern";
            (None, Some(limit.to_string()))
        }
        Ok(result) => (Some(result), None),
        Err(failure) if failure.code == ErrorCode::LIMIT_EXCEEDED => {
            (None, Some(failure.words.into_owned()))
        }
        Err(_) => return None,
    };
    Some(Called {
        writer,
        result,
        limit,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_that_is_too_long_for_one_message_names_the_remedy() {
        let of_length = |len: usize| {
            let answer = answer_of("7".into(), result("c".repeat(len - 2)));
            let answer = answer.expect("an answer");
            (answer.result.is_some(), answer.limit.is_some())
        };
        assert_eq!(of_length(RESULT_BYTES_MAX), (true, false));
        assert_eq!(of_length(RESULT_BYTES_MAX + 1), (false, true));
        let limit = Failure::new(ErrorCode::LIMIT_EXCEEDED, "so many");
        let answer = answer_of("7".into(), Err(limit)).expect("an answer");
        assert_eq!(answer.limit.as_deref(), Some("so many"));
        assert!(answer_of("7".into(), Err(Failure::bad("wrong"))).is_none());
    }
}
