//! Tests every operation that the server authorizes with every kind of credential. The server accepts an operation only if the credential
//! grants it, and a refused operation has no effect.

use crore_wire::mqtt::{PropertyWriter, ReasonCode, Version};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::json;

use crate::doors::{
    Carrier, Credential, HTTP_OPERATIONS, MQTT_OPERATIONS, MqttOperation, Outcome, connected,
    exists,
};
use crate::support::Server;
use crate::support::broker::Broker;
use crate::support::http::once;
use crate::support::mqtt::plain_connect;
use crate::tokens::{PAIRS, everything, everything_but, key_settings, now_s, raw, token};

/// Kinds of credentials: the name, the credential, and whether the server refuses the credential itself (and not only the operation).
fn credentials(rights: &[&str]) -> Vec<(&'static str, Credential, bool)> {
    let changed = |name: &str, value: serde_json::Value| {
        let mut claims = everything();
        claims[name] = value;
        claims
    };
    let elsewhere = json!({"publish": ["other/#", "doors"], "subscribe": ["other/#", "doors"], "manage": "other/#", "info": "other/#", "interest": ["other/#", "doors/+"]});
    let wrong_key = EncodingKey::from_secret(b"fedcba9876543210fedcba9876543210");
    let signed =
        |header: Header, key: &EncodingKey| encode(&header, &everything(), key).expect("a token");
    let rsa_as_secret = EncodingKey::from_secret(PAIRS[0].public_pem().as_bytes());
    let of_other = |header: Header| signed(header, &wrong_key);
    let all_rights = token(everything());
    let cut = all_rights[..all_rights.len() - 4].to_string();
    vec![
        ("none", Credential::None, false),
        ("malformed", Credential::Token("eyJ0.e30.x".into()), true),
        ("cut", Credential::Token(cut), true),
        (
            "wrong key",
            Credential::Token(of_other(Header::new(Algorithm::HS256))),
            true,
        ),
        (
            "alg none",
            Credential::Token(raw(&json!({"alg": "none"}), &everything(), b"")),
            true,
        ),
        (
            "alg None",
            Credential::Token(raw(
                &json!({"alg": "None", "typ": "JWT"}),
                &everything(),
                b"x",
            )),
            true,
        ),
        (
            "a public key as secret",
            Credential::Token(signed(Header::new(Algorithm::HS256), &rsa_as_secret)),
            true,
        ),
        (
            "another algorithm",
            Credential::Token(signed(Header::new(Algorithm::HS384), &wrong_key)),
            true,
        ),
        (
            "expired",
            Credential::Token(token(changed("exp", json!(now_s() - 60)))),
            true,
        ),
        (
            "not yet",
            Credential::Token(token(changed("nbf", json!(now_s() + 60)))),
            true,
        ),
        (
            "oversized",
            Credential::Token(token(changed("pad", json!("p".repeat(2_000))))),
            true,
        ),
        ("wrong user", Credential::Password("nobody", "right"), true),
        ("wrong password", Credential::Password("ann", "wrong"), true),
        (
            "granted elsewhere",
            Credential::Token(token(elsewhere)),
            false,
        ),
        (
            "all but the first of its rights",
            Credential::Token(token(everything_but(&rights[..1]))),
            false,
        ),
        (
            "all but the last of its rights",
            Credential::Token(token(everything_but(&rights[rights.len() - 1..]))),
            false,
        ),
        ("right", Credential::Token(all_rights), false),
        (
            "right by an RSA key",
            Credential::Token(
                encode(
                    &Header::new(Algorithm::RS256),
                    &everything(),
                    &PAIRS[0].signs(),
                )
                .expect("a token"),
            ),
            false,
        ),
        (
            "right password",
            Credential::Password("ann", "right"),
            false,
        ),
    ]
}

fn settings() -> String {
    let user = crate::users::entry("ann", "right");
    format!(
        "[access]\ntoken_bytes = 1536\n[access.anonymous]\nsubscribe = ['open/#']\n{}{user}",
        key_settings()
    )
}

/// Publishes the messages that the operations read.
fn fill(server: &Server) {
    let authorization = format!("Bearer {}", token(everything()));
    for topic in ["doors/kept", "doors/kept2"] {
        let headers = [("Authorization", authorization.as_str())];
        let published = once(server, "POST", &format!("/pub/{topic}"), &headers, "kept");
        assert_eq!(published.status, 202);
    }
}

#[test]
fn http_operation_is_accepted_only_with_its_right() {
    let server = Server::with(&settings());
    fill(&server);
    let reader = token(everything());
    let mut failures = Vec::new();
    let mut tried = 0;
    for (d, operation) in HTTP_OPERATIONS.iter().enumerate() {
        for carrier in [Carrier::Header, Carrier::Query, Carrier::Cookie] {
            for (s, (state, credential, worthless)) in
                credentials(operation.rights).into_iter().enumerate()
            {
                let topic = format!("doors/{d}-{s}-{}", carrier as u8);
                let outcome = operation.attempt(&server, &credential, carrier, &topic);
                let expected = match state {
                    _ if state.starts_with("right") => Outcome::Accepted,
                    "none" => Outcome::Refused(401),
                    _ if worthless => Outcome::Refused(401),
                    _ => Outcome::Refused(403),
                };
                tried += 1;
                if outcome != expected {
                    failures.push(format!(
                        "{} by {carrier:?} with {state}: {outcome:?}, not {expected:?}",
                        operation.name
                    ));
                }
                if outcome != Outcome::Accepted && exists(&server, &reader, &topic) {
                    failures.push(format!(
                        "{} by {carrier:?} with {state}: refused, and the topic is there",
                        operation.name
                    ));
                }
            }
        }
    }
    assert!(failures.is_empty(), "of {tried}:\n{}", failures.join("\n"));
}

#[test]
fn white_space_around_a_token_is_ignored_everywhere() {
    let broker = Broker::with(&settings());
    let Broker::Crore(server) = &broker else {
        return; // the reference has other settings
    };
    let token = token(everything());
    for around in ["\n", "\r\n", " ", "\t"] {
        let escaped = around.replace(' ', "%20").replace('\t', "%09");
        let escaped = escaped.replace('\r', "%0D").replace('\n', "%0A");
        let credential = Credential::Token(format!("{escaped}{token}{escaped}"));
        let outcome =
            HTTP_OPERATIONS[0].attempt(server, &credential, Carrier::Query, "doors/around");
        assert_eq!(outcome, Outcome::Accepted, "{around:?} in the URL");
        let credential = Credential::Token(format!("{around}{token}{around}"));
        for (version, framed) in MQTT_TRANSPORTS {
            let outcome = MqttOperation::Publish1.attempt(
                &broker,
                version,
                framed,
                &credential,
                "doors/around",
            );
            assert_eq!(
                outcome,
                Outcome::Accepted,
                "{around:?} in a password, {version:?}"
            );
        }
    }
    // A token that is only white space is no token.
    let credential = Credential::Token("%20%0A".to_string());
    let outcome = HTTP_OPERATIONS[0].attempt(server, &credential, Carrier::Query, "doors/around");
    assert_eq!(outcome, Outcome::Refused(401));
}

#[test]
fn mqtt_operation_is_accepted_only_with_its_right() {
    let broker = Broker::with(&settings());
    let Broker::Crore(server) = &broker else {
        return; // the reference has other settings
    };
    let reader = token(everything());
    let mut failures = Vec::new();
    for (d, operation) in MQTT_OPERATIONS.into_iter().enumerate() {
        for (version, framed) in MQTT_TRANSPORTS {
            for (s, (state, credential, worthless)) in
                credentials(operation.rights()).into_iter().enumerate()
            {
                let topic = format!("doors/m{d}-{s}-{}{framed}", version.level());
                let outcome = operation.attempt(&broker, version, framed, &credential, &topic);
                let expected = match state {
                    _ if state.starts_with("right") => Outcome::Accepted,
                    _ if worthless => refused_connect(&credential),
                    _ => operation.refused(version),
                };
                if outcome != expected {
                    failures.push(format!(
                        "{operation:?} {version:?} framed {framed} with {state}: {outcome:?}, not {expected:?}"
                    ));
                }
                if outcome != Outcome::Accepted
                    && operation.is_publish()
                    && exists(server, &reader, &topic)
                {
                    failures.push(format!(
                        "{operation:?} {version:?} with {state}: refused, and the topic is there"
                    ));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The refusal of a CONNECT whose credential is not valid. The return codes 4 and 5 of MQTT 3.1.1 appear here as the reason codes of MQTT
/// 5.
fn refused_connect(credential: &Credential) -> Outcome {
    match credential {
        Credential::Password(..) => Outcome::Refused(0x86),
        _ => Outcome::Refused(0x87),
    }
}

/// The ways to connect: MQTT 5.0 and 3.1.1, each over TCP and over WebSocket.
const MQTT_TRANSPORTS: [(Version, bool); 4] = [
    (Version::V5, false),
    (Version::V311, false),
    (Version::V5, true),
    (Version::V311, true),
];

#[test]
fn a_connect_needs_credentials_unless_something_that_mqtt_has_is_open_to_everybody() {
    let users = format!("{}{}", key_settings(), crate::users::entry("ann", "right"));
    let table = [
        ("", "", false),
        ("[access.anonymous]\ninfo = ['#']\n", "", false),
        ("[access.anonymous]\nsubscribe = ['open/#']\n", "", true),
        (
            "",
            "[[rule]]\nmatch = 'a'\nopen = ['info', 'publish']\n",
            true,
        ),
        ("", "[[rule]]\nmatch = 'a'\nopen = ['manage']\n", false),
    ];
    let mut failures = Vec::new();
    for (anonymous, rule, open) in table {
        let broker = Broker::with(&format!(
            "[access]\ntoken_bytes = 1536\n{anonymous}{users}{rule}"
        ));
        for (version, framed) in MQTT_TRANSPORTS {
            for (state, credential, worthless) in credentials(&["publish", "subscribe"]) {
                let outcome = connected(&broker, framed, &credential, plain_connect(version, ""));
                let outcome = outcome.err().unwrap_or(Outcome::Accepted);
                let expected = match worthless || state == "none" && !open {
                    true => refused_connect(&credential),
                    false => Outcome::Accepted,
                };
                if outcome != expected {
                    failures.push(format!(
                        "{anonymous}{rule}: {version:?} framed {framed} with {state}: {outcome:?}, not {expected:?}"
                    ));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn only_the_session_of_a_known_user_outlives_its_connection() {
    let anonymous = "[access.anonymous]\nsubscribe = ['open/#']\n";
    let broker = Broker::with(&format!("[access]\n{anonymous}{}", key_settings()));
    let mut will_properties = PropertyWriter::new();
    will_properties.session_expiry_interval_s(600);
    let mut claims = everything();
    claims["sub"] = json!(""); // nobody's name, and a right token all the same
    let nameless = Credential::Token(token(claims));
    for (version, framed) in MQTT_TRANSPORTS {
        let id = format!("{}{framed}", version.level());
        let connect = |credential: &Credential, clean: bool| {
            let mut connect = plain_connect(version, &id);
            connect.clean_start = clean;
            if version == Version::V5 {
                connect.properties = will_properties.properties();
            }
            connected(&broker, framed, credential, connect).expect("it may come")
        };
        let expiry_s = (version == Version::V5).then_some(0);
        let (known, session) = connect(&nameless, false);
        assert_eq!(session, (false, None), "{id}");
        drop(known);
        for clean in [false, true, false] {
            let (mut conn, session) = connect(&Credential::None, clean);
            assert_eq!(session, (false, expiry_s), "{id}");
            assert_eq!(conn.subscribe("open/a", 1), ReasonCode::GRANTED_QOS_1);
        }
        let (_, session) = connect(&nameless, false);
        assert_eq!(session, (true, None), "{id}: nobody has ended it");
    }
}

#[test]
fn public_topic_is_open_without_and_with_valid_credentials() {
    let rules = "[[rule]]\nmatch = 'free/secret/#'\n[[rule]]\nmatch = 'free/#'\nopen = ['publish', 'subscribe']\n";
    let server = Server::with(&format!("{}{rules}", settings()));
    let authorization = format!("Bearer {}", token(everything()));
    for headers in [vec![], vec![("Authorization", authorization.as_str())]] {
        let refused = if headers.is_empty() { 401 } else { 403 };
        let table = [
            ("POST", "/pub/free/a", 202),
            ("GET", "/sub/free/a", 200),
            ("POST", "/pub/free/secret/a", refused),
            ("GET", "/sub/free/secret/a", refused),
            ("PUT", "/pub/free/a", refused),
            ("GET", "/pub/free/a", refused),
            ("POST", "/pub/open/a", refused),
            ("HEAD", "/sub/open/a", 204),
            // Anonymous clients get no wildcards unless the settings grant them.
            ("GET", "/sub?filter=open/%23&since=oldest", refused),
            ("GET", "/sub?filter=free/%23&since=oldest", refused),
            ("GET", "/interest?match=open/%23", refused),
        ];
        for (method, target, expected) in table {
            let body = if method == "POST" { "x" } else { "" };
            let mut conn = crate::support::http::Conn::open(&server);
            conn.ask(method, target, &headers, body);
            let status = conn.head().status;
            assert_eq!(status, expected, "{method} {target} with {headers:?}");
        }
    }
    // Invalid credentials are refused also where none are needed.
    let headers = [("Authorization", "Bearer eyJ0.e30.x")];
    assert_eq!(
        once(&server, "POST", "/pub/free/a", &headers, "x").status,
        401
    );
}

#[test]
fn anonymous_wildcards_are_a_setting_and_stay_within_the_rights_of_anonymous_clients() {
    let rules =
        "[[rule]]\nmatch = 'free/secret/#'\n[[rule]]\nmatch = 'free/#'\nopen = ['subscribe']\n";
    let server = Server::with(&format!(
        "[access]\nanonymous_wildcards = true\n[access.anonymous]\nsubscribe = ['open/+/x']\n{rules}"
    ));
    for (filter, expected) in [
        ("open/%2B/x", 101),
        ("open/a/x", 101),
        ("open/%2B/%2B", 401),
        ("open/%23", 401),
        ("%23", 401),
        ("free/a/%23", 101),
        ("free/%23", 401),
        ("free/%2B/a", 401),
        ("$SYS/%23", 401),
    ] {
        let mut conn = crate::support::http::Conn::open(&server);
        conn.ask(
            "GET",
            &format!("/sub?filter={filter}"),
            &crate::support::ws::handshake(&[]),
            "",
        );
        assert_eq!(conn.head().status, expected, "{filter}");
    }
}
