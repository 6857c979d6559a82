//! Tests access with third-party MQTT libraries: a token as the password, a user's password, and the reason code when the token expires.

use super::for_each_variant_on;
use super::peer::Peer;
use crate::access::{PASSWORD, SOON_S, expiring, settings, token};
use crate::support::broker::Broker;
use serde_json::json;

/// Runs a scenario with every library, transport and version, on a Crore server with settings of access.
fn for_each_variant(scenario: fn(&mut Peer)) {
    let broker = Broker::with(&settings());
    if broker.is_crore() {
        for_each_variant_on(broker, &[4, 5], scenario);
    }
}

/// The reason code of the CONNACK for these credentials. For 3.1.1 some libraries give the return code as it is, others the MQTT 5 code of
/// the same meaning; this function returns the latter.
fn refused(peer: &mut Peer, client: &str, user: &str, password: &str) -> u64 {
    peer.start_connect(client, json!({ "user": user, "password": password }));
    let connack = peer.next_event(client, "connack");
    match connack["reason"].as_u64().expect("a code") {
        4 => 0x86,
        5 => 0x87,
        other => other,
    }
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_token_or_a_users_password_opens_what_it_grants_and_nothing_else() {
    for_each_variant(|peer| {
        for (client, user, password) in [("t", "any", token()), ("u", "ann", PASSWORD.into())] {
            peer.connect(client, json!({ "user": user, "password": password }));
            assert_eq!(peer.subscribe(client, &[("news/#", 1)]), [1]);
            assert_eq!(peer.publish(client, "news/a", "hello", 1), 0);
            assert_eq!(peer.data(client, 1), ["hello"]);
            let codes = peer.subscribe(client, &[("secret", 1)]);
            assert!(codes.iter().all(|code| *code >= 0x80), "{codes:?}");
            if peer.is_v5() {
                assert_eq!(peer.publish(client, "secret", "x", 1), 0x87);
            }
            peer.disconnect(client);
        }
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn worthless_credentials_are_refused_with_the_reason() {
    for_each_variant(|peer| {
        assert_eq!(refused(peer, "p", "ann", "wrong"), 0x86);
        assert_eq!(refused(peer, "n", "nobody", PASSWORD), 0x86);
        assert_eq!(refused(peer, "e", "any", &expiring(-60)), 0x87);
        let cut = token();
        assert_eq!(refused(peer, "c", "any", &cut[..cut.len() - 4]), 0x87);
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_connection_ends_with_its_token_and_5_is_told_so() {
    for_each_variant(|peer| {
        // Connect once before, since the first connection of a process is slow, and the token lives only for seconds.
        peer.connect("first", json!({ "user": "any", "password": token() }));
        let short = expiring(SOON_S);
        peer.connect("it", json!({ "user": "any", "password": short }));
        assert_eq!(peer.subscribe("it", &[("news/#", 1)]), [1]);
        let closed = peer.next_event("it", "closed");
        // 0xa0 is Maximum connect time. MQTT 3.1.1 cannot give a reason.
        if peer.is_v5() {
            assert_eq!(closed["reason"], 0xa0, "{closed}");
        }
        assert_eq!(closed["said"], peer.is_v5(), "{closed}");
        assert_eq!(refused(peer, "again", "any", &short), 0x87);
    });
}
