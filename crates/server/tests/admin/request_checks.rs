//! Tests the admin port's checks (hosts, origins, tokens and content types), and the settings that the server refuses at its start.

use crate::support::Server;
use crate::support::port::{ask, raw};

const TOKEN: &str = "0123456789abcdef0123";

#[test]
fn foreign_host_or_origin_is_refused_on_the_admin_port() {
    let server = Server::with_admin("");
    let admin = server.admin();
    let port = admin.port();
    let paths = [
        "/",
        "/metrics",
        "/api/v1/stats",
        "/api/v1/config",
        "/healthz",
    ];
    for path in paths {
        let line = format!("GET {path}");
        for (host, origin, expected) in [
            (format!("127.0.0.1:{port}"), "", 200),
            (format!("localhost:{port}"), "", 200),
            (format!("rebound.example:{port}"), "", 403),
            (
                format!("127.0.0.1:{port}"),
                "Origin: http://evil.example\r\n",
                403,
            ),
            (format!("127.0.0.1:{port}"), "Origin: null\r\n", 403),
        ] {
            let answer = raw(admin, &line, &format!("Host: {host}\r\n{origin}"), None);
            // The health check answers under any host name, since a load balancer uses whatever name it has.
            let probe = path == "/healthz" && origin.is_empty();
            let expected = if probe { 200 } else { expected };
            assert_eq!(answer.status, expected, "{path} {host} {origin}");
            assert!(!answer.head.to_lowercase().contains("access-control"));
        }
    }
    // A form that a page of another origin submits: the classic cross-site request forgery.
    let headers = format!(
        "Host: {admin}\r\nOrigin: http://evil.example\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    );
    let answer = raw(admin, "POST /api/v1/drain", &headers, Some("a=b"));
    assert_eq!(answer.status, 403, "{}", answer.body);
    let body = r#"{"topic":"a","data":"x"}"#;
    let headers = format!("Host: {admin}\r\nContent-Type: text/plain\r\n");
    let answer = raw(admin, "POST /api/v1/publish", &headers, Some(body));
    assert_eq!(answer.status, 415, "{}", answer.body);
}

#[test]
fn admin_port_on_all_addresses_answers_only_to_addresses_as_host() {
    let settings = format!("listen = ['127.0.0.1:0']\n[admin]\ntoken = '{TOKEN}'\n");
    let server = Server::listening(&settings, "0.0.0.0:0");
    let (admin, port) = (server.admin(), server.admin().port());
    let token = format!("Authorization: Bearer {TOKEN}\r\n");
    for (host, expected) in [
        (format!("127.0.0.1:{port}"), 200),
        (format!("192.0.2.7:{port}"), 200),
        (format!("localhost:{port}"), 200),
        (format!("rebound.example:{port}"), 403),
        ("127.0.0.1".to_string(), 200),
        (format!("192.0.2.7:{}", port ^ 1), 200),
        ("localhost:9000".to_string(), 200),
    ] {
        let status_with = |path: &str, rest: &str| {
            let headers = format!("Host: {host}\r\n{rest}");
            raw(admin, &format!("GET {path}"), &headers, None).status
        };
        assert_eq!(status_with("/api/v1/stats", &token), expected, "{host}");
        assert_eq!(status_with("/", ""), expected, "{host}");
        for path in ["/healthz", "/readyz"] {
            assert_eq!(status_with(path, ""), 200, "{path} {host}");
        }
    }
    let elsewhere = format!("Host: {admin}\r\nOrigin: http://192.0.2.7:{port}\r\n{token}");
    let answer = raw(admin, "GET /api/v1/stats", &elsewhere, None);
    assert_eq!(answer.status, 403, "a page of another address");
}

#[test]
fn probes_and_console_page_need_no_token() {
    let server = Server::with_admin(&format!("[admin]\ntoken = \"{TOKEN}\"\n"));
    let admin = server.admin();
    for path in ["/healthz", "/readyz", "/", "/api/v1/openapi.json"] {
        assert_eq!(
            ask(admin, &format!("GET {path}"), None).status,
            200,
            "{path}"
        );
    }
    let headers = format!("Host: {admin}\r\nAuthorization: Bearer {TOKEN}\r\n");
    let config = raw(admin, "GET /api/v1/config", &headers, None).body;
    assert!(
        !config.contains(TOKEN) && config.contains("(secret)"),
        "{config}"
    );
}

#[test]
fn tunnel_with_another_port_is_accepted_and_a_rebound_name_is_not() {
    let server = Server::with_admin("");
    let admin = server.admin();
    for (headers, expected) in [
        ("Host: localhost\r\n", 200),
        ("Host: localhost:9000\r\n", 200),
        ("Host: 127.0.0.1:9000\r\n", 200),
        ("Host: [::1]:9000\r\n", 200),
        (
            "Host: localhost:9000\r\nOrigin: http://localhost:9000\r\n",
            200,
        ),
        (
            "Host: localhost:9000\r\nOrigin: http://localhost:3000\r\n",
            403,
        ),
        ("Host: evil.example:9000\r\n", 403),
        ("Host: 127.0.0.1.evil.example\r\n", 403),
        ("Host: localhost.evil.example:9000\r\n", 403),
        ("Host: localhost\r\nSec-Fetch-Site: cross-site\r\n", 403),
        ("Host: localhost\r\nSec-Fetch-Site: same-site\r\n", 403),
        ("Host: localhost\r\nSec-Fetch-Site: same-origin\r\n", 200),
        (
            "Host: localhost\r\nOrigin: http://localhost\r\nOrigin: http://localhost\r\n",
            400,
        ),
    ] {
        for path in ["/api/v1/topics", "/metrics", "/api/v1/stats"] {
            let answer = raw(admin, &format!("GET {path}"), headers, None);
            assert_eq!(
                answer.status, expected,
                "{path} {headers:?}: {}",
                answer.body
            );
            if headers.starts_with("Host: evil") {
                assert!(answer.body.contains("admin.hosts"), "{}", answer.body);
            }
        }
    }
}
