//! Tests how the log tells the operator about refused clients: each kind of fault once, with the remedy, and with a count.

use std::collections::BTreeMap;

use crore_wire::mqtt::{Packet, PropertyWriter, ReasonCode, Version, encode};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};

use crate::support::broker::Broker;
use crate::support::http::{Response, once};
use crate::support::mqtt::{self as packets, plain_connect};
use crate::support::port::{await_metric, metric, raw as ask_raw};
use crate::support::{Server, until};
use crate::tokens::{SECRET, everything, key_settings, now_s, raw, token};

/// Number of credentials of each kind. They differ, since the server remembers its verdict on a credential.
const CREDENTIALS_PER_KIND: usize = 3;

/// A kind of invalid token: what the client is told, part of the remedy in the log, and a function that makes the token with a number.
type Kind = (&'static str, &'static str, Box<dyn Fn(usize) -> String>);

fn claims(number: usize, name: &str, value: Value) -> Value {
    let mut claims = everything();
    claims["jti"] = json!(number);
    claims["aud"] = json!("crore");
    claims[name] = value;
    claims
}

fn signed(algorithm: Algorithm, secret: &str, number: usize) -> String {
    let key = EncodingKey::from_secret(secret.as_bytes());
    let claims = claims(number, "iat", json!(1));
    jsonwebtoken::encode(&Header::new(algorithm), &claims, &key).expect("a token")
}

fn kinds() -> Vec<Kind> {
    fn kind(
        reason: &'static str,
        remedy: &'static str,
        make_token: impl Fn(usize) -> String + 'static,
    ) -> Kind {
        (reason, remedy, Box::new(make_token))
    }
    let none = |n| raw(&json!({"alg": "none"}), &claims(n, "iat", json!(1)), b"");
    vec![
        kind("the token has expired", "must get a new token", |n| {
            token(claims(n, "exp", json!(now_s() - 60)))
        }),
        kind("the token is not valid yet", "access.leeway_s", |n| {
            token(claims(n, "nbf", json!(now_s() + 60)))
        }),
        kind("not signed by a key", "[[access.key]]", |n| {
            signed(Algorithm::HS256, &SECRET.replace('0', "9"), n)
        }),
        kind("has the token's algorithm", "[[access.key]] alg", none),
        kind("another audience", "access.audience", |n| {
            token(claims(n, "aud", json!("else")))
        }),
        kind("claim of the token is not valid", "docs/ACCESS.md", |n| {
            token(claims(n, "publish", json!(7)))
        }),
        kind("cannot be read", "crore token inspect", |n| {
            format!("eyJ{n}.e30.x")
        }),
        kind(
            "longer than access.token_bytes",
            "raise access.token_bytes",
            |n| token(claims(n, "pad", json!("p".repeat(2_000)))),
        ),
    ]
}

fn settings() -> String {
    format!(
        "[access]\ntoken_bytes = 1536\naudience = 'crore'\nleeway_s = 0\n{}{}",
        key_settings(),
        crate::users::entry("ann", "right")
    )
}

/// By reason, the number of log lines about refused credentials.
fn refusals_in_log(server: &Server) -> BTreeMap<String, usize> {
    let log = server.log();
    let mut refusals_in_log = BTreeMap::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("credentials refused: ") {
            let (reason, _) = rest.split_once("; ").expect("a reason and a remedy");
            *refusals_in_log.entry(reason.to_string()).or_default() += 1;
        }
    }
    refusals_in_log
}

#[test]
fn each_kind_of_invalid_credential_is_logged_once_with_the_remedy_and_counted() {
    let server = Server::with_admin(&settings());
    let kinds = kinds();
    let mut reasons = Vec::new();
    for number in 0..CREDENTIALS_PER_KIND {
        for (reason, _, make_token) in &kinds {
            let token = make_token(number);
            let authorization = format!("Bearer {token}");
            let headers = [("Authorization", authorization.as_str())];
            let answer = once(&server, "POST", "/pub/doors/told", &headers, "x");
            assert_eq!(answer.status, 401, "{reason}: {answer:?}");
            assert!(answer.text().contains(reason), "{reason}: {answer:?}");
            reasons.push(token);
        }
        let headers = [("Authorization", "Basic YW5uOndyb25n")]; // ann:wrong
        let answer = once(&server, "GET", "/sub/doors/told", &headers, "");
        assert_eq!(answer.text().trim(), "the user or the password is wrong");
    }
    let refused = (CREDENTIALS_PER_KIND * (kinds.len() + 1)) as f64;
    let refusal_count = |name: &str| metric(server.admin(), name).expect("a metric");
    until("the count", || {
        refusal_count("crore_refused_credentials_total") == refused
    });
    let oversized = refusal_count("crore_oversized_credentials_total");
    assert_eq!(oversized, CREDENTIALS_PER_KIND as f64);
    until("each kind in the log", || {
        refusals_in_log(&server).len() == kinds.len() + 1
    });
    let log = server.log();
    for (reason, count) in refusals_in_log(&server) {
        assert_eq!(count, 1, "{reason}:\n{log}");
    }
    assert_eq!(
        log.matches("came with worthless credentials").count(),
        1,
        "{log}"
    );
    for (reason, remedy, _) in &kinds {
        let line = log
            .lines()
            .find(|line| line.contains("credentials refused: ") && line.contains(reason));
        let line = line.unwrap_or_else(|| panic!("nothing of {reason} in:\n{log}"));
        assert!(line.contains(remedy), "{line}");
    }
    for token in reasons {
        let signature = token.rsplit('.').next().expect("a part");
        assert!(!log.contains(&token), "a token stands in the log:\n{log}");
        assert!(signature.len() < 8 || !log.contains(signature), "{log}");
    }
}

#[test]
fn invalid_credentials_over_mqtt_are_logged_once_and_counted() {
    let broker = Broker::Crore(Server::with_admin(&settings()));
    let kinds = kinds();
    for (reason, _, make_token) in &kinds {
        let token = make_token(1);
        let mut conn = packets::Conn::open(&broker, Version::V5);
        let mut connect = plain_connect(Version::V5, "");
        (connect.user_name, connect.password) = (Some("any"), Some(token.as_bytes()));
        conn.write(|out| encode::connect(out, &connect));
        match conn.packet().packet() {
            Packet::ConnAck(connack) => {
                assert_eq!(connack.reason, ReasonCode::NOT_AUTHORIZED, "{reason}");
            }
            other => panic!("{reason}: {other:?}"),
        }
    }
    let Broker::Crore(server) = &broker else {
        return;
    };
    let refused = "crore_refused_credentials_total";
    await_metric(server.admin(), refused, kinds.len() as f64);
    until("each kind in the log", || {
        refusals_in_log(server).len() == kinds.len()
    });
}

#[test]
fn refusal_of_the_admin_port_is_logged_once_for_each_reason_and_counted() {
    let server = Server::with_admin("[admin]\ntoken = '0123456789abcdef'\n");
    let admin = server.admin();
    let host = format!("Host: {admin}\r\n");
    let valid_credentials = format!("{host}Authorization: Bearer 0123456789abcdef\r\n");
    for _ in 0..CREDENTIALS_PER_KIND {
        // The console of a user without a token, a page of another origin, and a host name that was rebound to this address.
        for (path, headers, status) in [
            ("/api/v1/stats", host.clone(), 401),
            ("/api/v1/tail?filter=%23", host.clone(), 401),
            ("/", format!("{host}Origin: https://evil.example\r\n"), 403),
            ("/", "Host: evil.example\r\n".to_string(), 403),
        ] {
            let answer = ask_raw(admin, &format!("GET {path}"), &headers, None);
            assert_eq!(answer.status, status, "{path} {headers}");
        }
    }
    let page = ask_raw(admin, "GET /", &host, None);
    assert_eq!(page.status, 200, "the page itself is nobody's secret");
    let metrics = ask_raw(admin, "GET /metrics", &valid_credentials, None).body;
    let line = format!(
        "crore_admin_refused_requests_total {}",
        4 * CREDENTIALS_PER_KIND
    );
    assert!(metrics.contains(&line), "{metrics}");
    for remedy in [
        "send Authorization: Bearer with that of admin.token",
        "pages of another origin may not ask",
        "name the host in admin.hosts",
    ] {
        server.await_log(remedy);
        let log = server.log();
        assert_eq!(log.matches(remedy).count(), 1, "{log}");
    }
}

#[test]
fn request_without_a_grant_is_logged_with_the_missing_right() {
    let server = Server::with("[access.anonymous]\nsubscribe = ['public/#']\n");
    let by_filter = once(&server, "GET", "/sub?filter=public/%23", &[], "");
    assert_eq!(by_filter.status, 401);
    assert!(by_filter.text().contains("access.anonymous_wildcards"));
    let by_name = once(&server, "GET", "/sub?filter=secret/%23", &[], "");
    assert_eq!(by_name.status, 401);
    assert!(!by_name.text().contains("access.anonymous_wildcards"));
    until("it is in the log", || server.log().contains("grant, such"));
    let log = server.log();
    let refusals_in_log = log.lines().find(|line| line.contains("grant, such"));
    let refusals_in_log = refusals_in_log.expect("a line");
    for words in ["an anonymous client asked for /sub", "needs credentials"] {
        assert!(refusals_in_log.contains(words), "{refusals_in_log}");
    }
}

#[test]
fn client_without_a_token_is_told_how_to_send_one() {
    let server = Server::with("[access]\n");
    let challenge = |answer: &Response| answer.header("www-authenticate");
    for (method, path) in [
        ("GET", "/sub/news"),
        ("GET", "/sub?filter=%23"),
        ("GET", "/pub/news"),
        ("POST", "/pub/news"),
        ("PUT", "/pub/news"),
        ("GET", "/interest"),
    ] {
        let answer = once(&server, method, path, &[], "");
        let text = answer.text().to_string();
        assert_eq!(answer.status, 401, "{method} {path}: {text}");
        let end = "; send a token as Authorization: Bearer TOKEN, or in the URL as ?token=TOKEN (docs/ACCESS.md)\n";
        assert!(text.ends_with(end), "{method} {path}: {text}");
        // RFC 6750 section 3.1: the answer has no error code if the request had no credentials.
        assert_eq!(
            challenge(&answer).as_deref(),
            Some("Bearer realm=\"crore\"")
        );
    }
    let json = [("Accept", "application/json")];
    let problem = once(&server, "GET", "/sub/news", &json, "").json();
    let detail = problem["detail"].as_str().expect("a detail");
    assert!(detail.contains("as ?token=TOKEN"), "{problem}");
    // The query parameter for the token has another name, or is switched off.
    for (name, words) in [("key", "as ?key=TOKEN"), ("", "Bearer TOKEN (docs")] {
        let server = Server::with(&format!("[access]\nquery = '{name}'\n"));
        let answer = once(&server, "GET", "/sub/news", &[], "");
        assert!(answer.text().contains(words), "{answer:?}");
    }
}

#[test]
fn challenge_distinguishes_an_invalid_token_from_insufficient_rights() {
    let server = Server::with(&settings());
    let challenge = |token: &str| {
        let authorization = format!("Bearer {token}");
        let headers = [("Authorization", authorization.as_str())];
        let answer = once(&server, "POST", "/pub/elsewhere", &headers, "x");
        let challenge = answer.header("www-authenticate").expect("a challenge");
        assert!(!answer.text().contains("send a token"), "{answer:?}");
        (answer.status, challenge)
    };
    let worthless = "Bearer realm=\"crore\", error=\"invalid_token\"";
    assert_eq!(challenge("no.jwt.x"), (401, worthless.to_string()));
    let too_little = "Bearer realm=\"crore\", error=\"insufficient_scope\"";
    let granted = token(claims(1, "iat", json!(1)));
    assert_eq!(challenge(&granted), (403, too_little.to_string()));
}

#[test]
fn mqtt_client_without_credentials_is_told_how_to_send_a_token() {
    let broker = Broker::Crore(Server::with("[access]\n"));
    let words = |limit: Option<u32>| {
        let mut properties = PropertyWriter::new();
        if let Some(limit) = limit {
            properties.maximum_packet_size_bytes(limit);
        }
        let mut connect = plain_connect(Version::V5, "it");
        connect.properties = properties.properties();
        let mut conn = packets::Conn::open(&broker, Version::V5);
        conn.write(|out| encode::connect(out, &connect));
        match conn.packet().packet() {
            Packet::ConnAck(connack) => {
                assert_eq!(connack.reason, ReasonCode::NOT_AUTHORIZED);
                connack.properties.reason_string().map(str::to_string)
            }
            other => panic!("{other:?}"),
        }
    };
    let reason_string = words(None).expect("words");
    assert!(
        reason_string.contains("a token as the password"),
        "{reason_string}"
    );
    // [MQTT-3.2.2-19]: the reason string is left out if the packet would exceed the client's Maximum Packet Size.
    assert_eq!(words(Some(40)), None);
    let Broker::Crore(server) = &broker else {
        return;
    };
    server.await_log("an MQTT client came without credentials, and nothing is open to everybody");
}
