//! Tests refusals at the start: each error names the fault and the remedy.

use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy};
use crore_nats::{ClusterIdentity, Credentials, Settings};

use crate::jetstream::JetStream;
use crate::node::{Node, PARTITIONS, identity, refusal, settings, start_node};
use crate::servers::{self, Servers, until};

/// Settings with a short timeout for servers that are starting.
fn at_once(servers: &Servers) -> Settings {
    Settings {
        patience: Duration::from_secs(1),
        ..settings(servers)
    }
}

#[track_caller]
fn assert_says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}

#[test]
fn wrong_credentials_are_refused() {
    let users = "max_payload: 2MB\nauthorization { users: [{ user: crore, password: secret }] }";
    let Some(servers) = Servers::with(1, "", users) else {
        return;
    };
    let with = |credentials| Settings {
        credentials,
        ..settings(&servers)
    };
    let user = |password: &str| Credentials::User("crore".to_string(), password.to_string());
    for wrong in [
        user("guess"),
        Credentials::None,
        Credentials::Token("guess".to_string()),
    ] {
        assert_says(
            &refusal(with(wrong), identity()),
            &["refuses our credentials", "cluster.user", "cluster.nkey"],
        );
    }
    let missing = Credentials::File("/nonexistent/a.creds".into());
    assert_says(
        &refusal(with(missing), identity()),
        &["cluster.credentials", "/nonexistent/a.creds"],
    );
    start_node(with(user("secret")), identity()).expect("the right password is taken");
}

#[test]
fn unreachable_server_is_named_with_its_url() {
    let Some(mut servers) = Servers::start(1) else {
        return;
    };
    servers.kill(0);
    let text = refusal(at_once(&servers), identity());
    assert_says(
        &text,
        &[
            "no server of NATS answers",
            &servers.urls()[0],
            "cluster.urls",
        ],
    );
}

#[test]
fn a_small_max_payload_is_refused() {
    let Some(servers) = Servers::with(1, "", "") else {
        return;
    };
    let text = refusal(settings(&servers), identity());
    assert_says(
        &text,
        &["max_payload", "1048576", "2097152", "max_payload: 2MB"],
    );
}

#[test]
fn three_replicas_at_one_server_are_refused() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let three = Settings {
        replicas: 3,
        ..at_once(&servers)
    };
    assert_says(
        &refusal(three, identity()),
        &["cluster.replicas = 3", "cluster.replicas = 1"],
    );
}

#[test]
fn a_history_larger_than_the_room_of_nats_is_refused() {
    for count in [1, 3] {
        let Some(servers) = Servers::with(count, "max_file_store: 1GB", "max_payload: 2MB") else {
            return;
        };
        // The size exceeds what a single stream may take. If several servers share it, they do not know at once what the others have reserved. The timeout
        // for transient faults is twice that of the other tests, so that the refusal comes before it.
        let large = Settings {
            history_bytes: 8 << 30,
            patience: servers::PATIENCE * 2,
            ..settings(&servers)
        };
        assert_says(
            &refusal(large, identity()),
            &["cluster.history_bytes = 8589934592", "max_file_store"],
        );
    }
}

#[test]
fn stream_of_others_with_the_subjects_of_the_log_is_named_as_the_reason() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    JetStream::of(&servers).make(Config {
        name: "EVERYTHING".to_string(),
        subjects: vec!["crore.>".to_string()],
        ..Config::default()
    });
    let text = refusal(at_once(&servers), identity());
    assert_says(
        &text,
        &["another stream", "crore.test.log.*", "cluster.name"],
    );
    assert!(!text.contains("JetStream is on"), "{text}");
}

#[test]
fn another_count_of_partitions_is_refused() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    drop(Node::start(&servers));
    let other = ClusterIdentity {
        partitions: 8,
        ..identity()
    };
    let text = refusal(settings(&servers), other);
    assert_says(&text, &["partitions = 8", "partitions = 4", "test"]);
    let any = ClusterIdentity {
        partitions: 0,
        ..identity()
    };
    let node = crore_nats::connect(settings(&servers)).expect("a connection");
    assert_eq!(
        node.read_or_create_identity(any, any.format)
            .expect("identity"),
        identity()
    );
    let old = ClusterIdentity {
        format: 0,
        ..identity()
    };
    let text = refusal(settings(&servers), old);
    assert_says(&text, &["format 1", "up to format 0", "install"]);
}

#[test]
fn a_node_ends_when_the_format_changes() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let node = Node::start(&servers);
    let jetstream = JetStream::of(&servers);
    let mut raised = jetstream.get("numbers");
    (raised["format"], raised["more"]) = (2.into(), 5.into());
    jetstream.put("numbers", &raised);
    until("the news", || node.log().ended.is_some());
    let why = node.log().ended.clone().expect("news");
    assert_says(&why, &["write format 2", "writes format 1"]);
    drop(node);
    // Keys that another version has written are kept.
    let newer = ClusterIdentity {
        format: 2,
        ..identity()
    };
    let node = start_node(settings(&servers), newer).expect("it begins");
    node.write(0, 1..=20);
    jetstream.make_anew(jetstream.config(0));
    until("another epoch", || jetstream.get("numbers")["epoch"] != 1);
    assert_eq!(jetstream.get("numbers")["more"], 5);
}

#[test]
fn nodes_share_the_identity_of_the_first_node() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let first = crore_nats::connect(settings(&servers)).expect("a connection");
    assert_eq!(
        first
            .read_or_create_identity(identity(), 1)
            .expect("identity"),
        identity()
    );
    let other = ClusterIdentity {
        id: 8,
        epoch: 9,
        seed: 10,
        ..identity()
    };
    let second = crore_nats::connect(settings(&servers)).expect("a connection");
    assert_eq!(
        second.read_or_create_identity(other, 1).expect("identity"),
        identity()
    );
}

#[test]
fn a_stream_that_does_not_fit_is_refused_with_its_field() {
    use async_nats::jetstream::stream::{RetentionPolicy, StorageType};
    let Some(servers) = Servers::start(1) else {
        return;
    };
    drop(Node::start(&servers));
    let jetstream = JetStream::of(&servers);
    let right = jetstream.config(1);
    type Spoil = fn(&mut Config);
    let wrong: [(&str, Spoil); 6] = [
        ("storage is Memory", |it| it.storage = StorageType::Memory),
        ("subjects is other", |it| {
            it.subjects = vec!["other".to_string()]
        }),
        ("max_msg_size is 1000", |it| it.max_message_size = 1000),
        ("max_msgs is 10", |it| it.max_messages = 10),
        ("retention", |it| it.retention = RetentionPolicy::WorkQueue),
        ("metadata crore.cluster is missing", |it| {
            it.metadata.clear()
        }),
    ];
    for (words, change) in wrong {
        let mut config = right.clone();
        change(&mut config);
        jetstream.make_anew(config);
        let text = refusal(settings(&servers), identity());
        assert_says(&text, &["CRORE_TEST_1", words, "must be"]);
    }
    jetstream.remove("CRORE_TEST_1");
    let text = refusal(settings(&servers), identity());
    assert_says(&text, &["stream CRORE_TEST_1 is gone", "nats kv del"]);
    assert_eq!(PARTITIONS, 4);
}

/// Streams of earlier versions discard old batches when they are full. A node changes this setting.
#[test]
fn stream_that_drops_batches_is_changed_so_that_nats_drops_none() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let limited = Settings {
        history_bytes: 64 << 20,
        ..settings(&servers)
    };
    drop(start_node(limited.clone(), identity()).expect("it begins"));
    let jetstream = JetStream::of(&servers);
    let made = jetstream.config(1);
    assert_eq!(
        (made.discard, made.max_bytes),
        (DiscardPolicy::New, 32 << 20)
    );
    assert!(made.max_age.is_zero());
    let mut before = made.clone();
    before.discard = DiscardPolicy::Old;
    before.max_age = Duration::from_secs(3600);
    before.max_bytes = 1000;
    jetstream.edit(before);
    drop(start_node(limited, identity()).expect("it begins"));
    let changed = jetstream.config(1);
    assert_eq!(changed.discard, DiscardPolicy::New);
    assert!(changed.max_age.is_zero());
    // The smallest size of a stream: four messages of `max_payload`.
    assert_eq!(changed.max_bytes, 8 << 20);
}

#[test]
fn partition_that_is_full_is_told_and_keeps_what_it_has() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let limited = Settings {
        history_bytes: 64 << 20,
        backlog_bytes_max: usize::MAX,
        ..settings(&servers)
    };
    let node = start_node(limited, identity()).expect("it begins");
    let jetstream = JetStream::of(&servers);
    assert_eq!(jetstream.fill(1, 20, 1_000_000), 20);
    until("all of them", || {
        node.cluster.status().partitions[0].read == 20
    });
    assert!(!node.log().is_full);
    let stored = 20 + jetstream.fill(1, 20, 1_000_000);
    assert_eq!(stored, 33, "a stream of 32 MiB");
    until("the news", || node.log().is_full);
    assert_eq!(jetstream.first(0), 1);
    assert!(node.cluster.status().partitions[0].is_full);
    jetstream.purge(0, 30);
    until("room", || !node.log().is_full);
}

#[test]
fn the_sync_interval_is_read_where_a_server_tells_it() {
    for (jetstream, always) in [("sync_interval: always", true), ("", false)] {
        let Some(servers) = Servers::with(1, jetstream, "max_payload: 2MB") else {
            return;
        };
        let monitored = Settings {
            monitoring: servers.monitoring(),
            ..settings(&servers)
        };
        let node = start_node(monitored, identity()).expect("it begins");
        let found = node.cluster.status().sync_intervals;
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].is_always, Ok(always));
    }
}
