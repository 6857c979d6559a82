//! Tests the permissions that a node needs at NATS. With those that `docs/CLUSTER.md` lists everything works. If one is missing, the error at the start
//! names it.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use crore_nats::{Credentials, NewCheckpoint, Settings};

use crate::node::{identity, refusal, settings, start_node};
use crate::servers::Servers;

/// The permissions of `docs/CLUSTER.md`, for a cluster named `test`.
const PUBLISH: [&str; 6] = [
    "crore.test.>",
    "_INBOX.>",
    "$JS.API.>",
    "$JS.FC.>",
    "$KV.CRORE_TEST.>",
    "$O.CRORE_TEST.>",
];
const SUBSCRIBE: [&str; 2] = ["crore.test.>", "_INBOX.>"];

/// A server with a user who has these permissions.
fn with_rights(publish: &[&str], subscribe: &[&str]) -> Option<(Servers, Settings)> {
    let users = format!(
        "max_payload: 2MB\nauthorization {{ users: [{{ user: crore, password: secret, permissions: {{ publish: {publish:?}, subscribe: {subscribe:?} }} }}] }}"
    );
    let servers = Servers::with(1, "", &users)?;
    let settings = Settings {
        credentials: Credentials::User("crore".to_string(), "secret".to_string()),
        patience: Duration::from_secs(1),
        ..settings(&servers)
    };
    Some((servers, settings))
}

#[test]
fn a_node_works_with_the_rights_of_the_page_also_after_its_cluster_was_made() {
    let Some((_servers, settings)) = with_rights(&PUBLISH, &SUBSCRIBE) else {
        return;
    };
    let node = start_node(settings.clone(), identity()).expect("it begins");
    node.write(1, 1..=3);
    assert_eq!(node.count(0), 3);
    // More bytes than NATS sends before the reader must send a flow control message.
    let bytes: Vec<u8> = (0..24 << 20).map(|n: u32| (n / 7) as u8).collect();
    let (sequence, batch) = node.log().batches[&0][2].clone();
    let mut upload = node.store.write(&NewCheckpoint {
        partition: 0,
        sequence,
        batch: &batch,
        log_s: 1_700_000_000,
        writer: 9,
        format: 1,
    });
    upload.write_all(&bytes).expect("it is taken");
    upload.end().expect("it is there");
    let late = start_node(settings, identity()).expect("it begins");
    let all = late.store.list_and_update_status().expect("checkpoints");
    let mut read = Vec::new();
    let mut from = late.store.read(&all[0]).expect("it is there");
    from.read_to_end(&mut read).expect("its bytes");
    assert!(read == bytes);
    let denied = [&node, &late].map(|it| it.cluster.status().last_error);
    assert_eq!(denied, [None, None]);
}

#[test]
fn missing_permission_is_named_at_the_start() {
    let without = |all: &[&'static str], one: &str| -> Vec<&'static str> {
        all.iter().copied().filter(|it| *it != one).collect()
    };
    let publish = PUBLISH.map(|one| ("publish", one, without(&PUBLISH, one), SUBSCRIBE.to_vec()));
    let subscribe =
        SUBSCRIBE.map(|one| ("subscribe", one, PUBLISH.to_vec(), without(&SUBSCRIBE, one)));
    for (verb, missing, publish, subscribe) in publish.into_iter().chain(subscribe) {
        let Some((_servers, settings)) = with_rights(&publish, &subscribe) else {
            return;
        };
        let text = refusal(settings, identity());
        let words = format!("no right to {verb} to `{missing}`:");
        assert!(text.contains(&words), "{words:?} is not in: {text}");
    }
}
