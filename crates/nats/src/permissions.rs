//! Checks the permissions that a node needs at NATS. It tries all of them at the start, so that a missing permission is reported then, and not hours later
//! with the first checkpoint.
//!
//! To try a permission to publish to a stream's subject, the check sends a message that expects a stream of another name. No stream stores this message,
//! but NATS answers after it has checked the permission. If the permission is missing, NATS does not answer, and reports an error on the connection
//! ([`LogState::denials`]).

use std::time::Duration;

use async_nats::{Client, HeaderMap, Request, RequestErrorKind};
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use tokio::time::timeout;

use crate::error::Error;
use crate::log_state::LogState;
use crate::settings::Settings;

/// The time limit for an answer. If a permission is missing, no answer comes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// A name that no stream of a cluster has.
const NO_STREAM: &str = "crore-tries-its-rights";

/// The needed permissions, in the notation of NATS' configuration.
struct NeededPermissions {
    publish: [String; 6],
    subscribe: [String; 2],
}

impl NeededPermissions {
    fn new(settings: &Settings) -> NeededPermissions {
        let (name, bucket) = (&settings.name, settings.bucket_name());
        let cluster_subjects = format!("crore.{name}.>");
        let text = String::from;
        NeededPermissions {
            publish: [
                cluster_subjects.clone(),
                text("_INBOX.>"),
                text("$JS.API.>"),
                // The client reads objects with flow control.
                text("$JS.FC.>"),
                format!("$KV.{bucket}.>"),
                format!("$O.{bucket}.>"),
            ],
            subscribe: [cluster_subjects, text("_INBOX.>")],
        }
    }

    /// The needed permissions that are missing. Each error in `denials` names a subject.
    fn missing(&self, denials: &[String]) -> Vec<String> {
        let is_denied = |action: &str, right: &str| {
            let denial = format!("{action} to \"{}", right.trim_end_matches('>'));
            denials.iter().any(|text| text.contains(&denial))
        };
        let publish = self.publish.iter().filter(|it| is_denied("Publish", it));
        let publish = publish.map(|right| format!("publish to `{right}`"));
        let subscribe = (self.subscribe.iter()).filter(|it| is_denied("Subscription", it));
        let subscribe = subscribe.map(|right| format!("subscribe to `{right}`"));
        publish.chain(subscribe).collect()
    }
}

/// Tries all permissions.
///
/// # Errors
/// If one is missing: the error names it.
pub async fn check(client: &Client, settings: &Settings, log: &LogState) -> Result<(), Error> {
    let (name, bucket) = (&settings.name, settings.bucket_name());
    let stored_subjects = [
        "$JS.API.INFO".to_string(),
        "$JS.FC.check".to_string(),
        format!("$KV.{bucket}.check"),
        format!("$O.{bucket}.C.check"),
        format!("$O.{bucket}.M.check"),
        format!("crore.{name}.log.0"),
    ];
    let stored = join_all(stored_subjects.map(|subject| may_publish(client, subject)));
    let (may_publish_each, hears) = tokio::join!(stored, can_hear_itself(client, name));
    if hears && may_publish_each.iter().all(|it| *it) {
        return Ok(());
    }
    let needed = NeededPermissions::new(settings);
    let missing = needed.missing(&log.denials());
    if missing.is_empty() {
        let text =
            "NATS does not answer; see that JetStream is on, and that the account may use it";
        return Err(Error::transient(text.to_string()));
    }
    let (publish, subscribe) = (needed.publish.join(", "), needed.subscribe.join(", "));
    Err(Error::lasting(format!(
        "our user at NATS has no right to {}: a node needs the permissions to publish to {publish}, and to subscribe to {subscribe}",
        missing.join(", nor to ")
    )))
}

async fn may_publish(client: &Client, subject: String) -> bool {
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Expected-Stream", NO_STREAM);
    let request = Request::new()
        .headers(headers)
        .timeout(Some(ANSWER_TIMEOUT));
    match client.send_request(subject, request).await {
        Ok(_) => true,
        // The stream does not exist yet. NATS gives this answer only to users with the permission.
        Err(error) => error.kind() == RequestErrorKind::NoResponders,
    }
}

/// Asks this node a question, as nodes ask each other, and answers it. This needs the permissions to publish and to subscribe.
async fn can_hear_itself(client: &Client, name: &str) -> bool {
    let inbox = client.new_inbox();
    let unique = inbox.rsplit('.').next().unwrap_or_default();
    let subject = format!("crore.{name}.node.asked.{unique}");
    let Ok(mut questions) = client.subscribe(subject.clone()).await else {
        return false;
    };
    let answer = async {
        if let Some(question) = questions.next().await
            && let Some(reply) = question.reply
        {
            let _ = client.publish(reply, "".into()).await;
        }
    };
    let request = Request::new().timeout(Some(ANSWER_TIMEOUT));
    let question = client.send_request(subject, request);
    let (reply, _) = tokio::join!(question, timeout(ANSWER_TIMEOUT, answer));
    reply.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_right_is_that_of_the_subject_that_nats_names() {
        let right = |text: &str| text.to_string();
        let needed = NeededPermissions {
            publish: [
                "crore.a.>",
                "_INBOX.>",
                "$JS.API.>",
                "$JS.FC.>",
                "$KV.CRORE_A.>",
                "$O.CRORE_A.>",
            ]
            .map(right),
            subscribe: ["crore.a.>", "_INBOX.>"].map(right),
        };
        let denials = [
            "Permissions Violation for Publish to \"$O.CRORE_A.C.check\"",
            "Permissions Violation for Subscription to \"_INBOX.x.*\"",
        ];
        let missing = needed.missing(&denials.map(right));
        assert_eq!(
            missing,
            ["publish to `$O.CRORE_A.>`", "subscribe to `_INBOX.>`"]
        );
        assert!(needed.missing(&[]).is_empty());
    }
}
