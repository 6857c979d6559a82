//! Tests the console's tail (a stream of a topic's messages) where the data port accepts TLS only.

use crate::support::Server;
use crate::support::port::{ask, line, stream};
use crate::tool::{Certificates, curl};

/// Checks that a tail from the oldest message on brings this message.
fn brings(server: &Server, data: &str) {
    let mut tail = stream(server.admin(), "/api/v1/tail?topic=news&since=-1");
    loop {
        let line = line(&mut tail);
        if let Some(envelope) = line.strip_prefix("data: ") {
            assert!(envelope.contains(data), "{envelope}");
            return;
        }
    }
}

#[test]
fn tail_works_over_tls_and_after_a_new_certificate() {
    let (certificates, new_certificates) = (Certificates::new(), Certificates::new());
    let server = Server::with_admin(&certificates.settings("required = true"));
    curl(&server, &certificates, "/pub/news", &["-d", "first"]);
    brings(&server, "first");
    for name in ["server.pem", "server.key"] {
        std::fs::copy(new_certificates.path(name), certificates.path(name)).expect("a copy");
    }
    server.signal("HUP");
    server.await_log("settings read again");
    curl(&server, &new_certificates, "/pub/news", &["-d", "second"]);
    brings(&server, "second");
    assert!(
        !server.log().contains("TLS: a connection was ended"),
        "{}",
        server.log()
    );
}

#[test]
fn tail_works_over_tls_behind_a_proxy() {
    let certificates = Certificates::new();
    let http = "[http]\nproxy_protocol = true\ntrusted_proxies = ['127.0.0.0/8']\n";
    let server = Server::with_admin(&format!(
        "{http}{}",
        certificates.settings("required = true")
    ));
    let body = r#"{"topic": "news", "data": "behind"}"#;
    let published = ask(server.admin(), "POST /api/v1/publish", Some(body));
    assert_eq!(published.status, 200, "{}", published.body);
    brings(&server, "behind");
}

#[test]
fn tail_is_refused_with_the_reason_where_clients_must_show_certificates() {
    let certificates = Certificates::new();
    let extra_settings = format!(
        "required = true\nclient_ca = '{}'",
        certificates.path("ca.pem")
    );
    let server = Server::with_admin(&certificates.settings(&extra_settings));
    let answer = ask(server.admin(), "GET /api/v1/tail?topic=news", None);
    assert_eq!(answer.status, 503, "{}", answer.body);
    let reason = answer.json()["error"].to_string();
    assert!(reason.contains("tls.client_certificates"), "{reason}");
    let optional = certificates.settings(&format!(
        "{extra_settings}\nclient_certificates = 'optional'"
    ));
    let server = Server::with_admin(&optional);
    let body = r#"{"topic": "news", "data": "without"}"#;
    let published = ask(server.admin(), "POST /api/v1/publish", Some(body));
    assert_eq!(published.status, 200, "{}", published.body);
    brings(&server, "without");
}
