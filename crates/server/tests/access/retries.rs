//! Tests that an idempotency key belongs to its user, and that each user has a share of the answers kept for retries.

use serde_json::json;

use crate::support::Server;
use crate::support::http::{Response, once};
use crate::tokens::{key_settings, now_s, token};

fn post(server: &Server, user: &str, key: &str, body: &str) -> Response {
    let claims = json!({"sub": user, "exp": now_s() + 600, "publish": "#"});
    let authorization = format!("Bearer {}", token(claims));
    let headers = [
        ("Authorization", authorization.as_str()),
        ("Idempotency-Key", key),
    ];
    once(server, "POST", "/pub/a", &headers, body)
}

fn is_replayed(response: &Response) -> bool {
    assert_eq!(response.status, 202, "{response:?}");
    response.header("idempotency-replayed").is_some()
}

#[test]
fn two_users_may_choose_the_same_key() {
    let server = Server::with(&format!("[access]\n{}", key_settings()));
    assert!(!is_replayed(&post(&server, "ann", "k", "of ann")));
    assert!(!is_replayed(&post(&server, "bob", "k", "of bob")));
    assert!(is_replayed(&post(&server, "ann", "k", "of ann")));
    assert!(is_replayed(&post(&server, "bob", "k", "of bob")));
}

#[test]
fn many_keys_of_one_user_displace_no_keys_of_others() {
    let settings = format!(
        "[publish]\nidempotency_keys = 64\n[access]\n{}",
        key_settings()
    );
    let server = Server::with(&settings);
    let other_users = ["ann", "bob", "eve", "pat", "sam", "tom"];
    for user in other_users {
        assert!(!is_replayed(&post(&server, user, "k", "x")));
    }
    // All keys are of one topic, so of one home (the part of a shard that keeps the topic), which keeps 32 of the 64 answers.
    for n in 0..60 {
        let key = format!("k{n}");
        assert!(!is_replayed(&post(&server, "mallory", &key, "x")));
    }
    let has_kept_answer = |user: &&str| is_replayed(&post(&server, user, "k", "x"));
    let kept_count = other_users
        .iter()
        .filter(|user| has_kept_answer(user))
        .count();
    // A secret hash puts users into 64 groups. One of these users may be in mallory's group, and then shares its limit.
    assert!(kept_count >= other_users.len() - 2, "{kept_count}");
}
