//! Cookies, which a browser sends from any page.

use crate::conn::Conn;
use crate::support::Server;
use crate::tokens::{everything, key_settings, token};
use crate::ws::handshake;

#[test]
fn a_cookie_counts_from_the_servers_own_pages_and_from_those_that_are_allowed_by_name() {
    let cookie = format!("crore_token={}", token(everything()));
    for (origins, expected) in [
        ("", [101, 101, 403, 403]),
        (
            "allowed_origins = ['https://app.example']",
            [101, 101, 101, 403],
        ),
        // Everybody may ask from anywhere, and nobody with the cookies of another.
        ("allowed_origins = ['*']", [101, 101, 401, 401]),
    ] {
        let server = Server::with(&format!("[http]\n{origins}\n[access]\n{}", key_settings()));
        let own = server.url("");
        let from = [
            None,
            Some(own.as_str()),
            Some("https://app.example"),
            Some("https://evil.example"),
        ];
        for (origin, expected) in from.into_iter().zip(expected) {
            let mut headers = vec![("Cookie", cookie.as_str())];
            headers.extend(origin.map(|origin| ("Origin", origin)));
            let mut conn = Conn::open(&server);
            conn.ask("GET", "/pubsub/doors/cookie", &handshake(&headers), "");
            assert_eq!(conn.head().status, expected, "{origins} from {origin:?}");
        }
    }
}

#[test]
fn what_a_cookie_opened_is_read_by_pages_of_origins_that_are_listed_by_name() {
    let listed = "[http]\nallowed_origins = ['https://app.example']\n";
    let any = "[http]\nallowed_origins = ['*']\n";
    let access = format!("[access]\n{}", key_settings());
    let cookie = format!("crore_token={}", token(everything()));
    for (settings, status, may_read) in [
        (format!("{listed}{access}"), 204, Some("true")),
        (format!("{any}{access}"), 401, None),
        // Where nothing is decided a cookie is nothing to be read by.
        (listed.to_string(), 204, None),
    ] {
        let rule = "[[rule]]\nmatch = '#'\npoll_timeout_s = 1\n";
        let server = Server::with(&format!("{settings}{rule}"));
        let headers = [
            ("Cookie", cookie.as_str()),
            ("Origin", "https://app.example"),
        ];
        let answer = Conn::open(&server).get("/sub/doors/read", &headers);
        assert_eq!(answer.status, status, "{settings}");
        let credentials = answer.header("access-control-allow-credentials");
        assert_eq!(credentials.as_deref(), may_read, "{settings}");
    }
}

#[test]
fn the_header_goes_before_the_query_and_the_query_before_the_cookie() {
    let server = Server::with(&format!("[access]\n{}", key_settings()));
    let (right, wrong) = (token(everything()), "eyJ0.e30.x");
    let header = |token: &str| format!("Bearer {token}");
    let cookie = |token: &str| format!("crore_token={token}");
    for (by_header, by_query, by_cookie, expected) in [
        (Some(right.as_str()), Some(wrong), Some(wrong), 202),
        (Some(wrong), Some(&right), Some(&right), 401),
        (None, Some(&right), Some(wrong), 202),
        (None, Some(wrong), Some(&right), 401),
        (None, None, Some(&right), 202),
    ] {
        let (authorization, cookie) = (by_header.map(header), by_cookie.map(cookie));
        let mut headers = Vec::new();
        headers.extend(authorization.as_deref().map(|it| ("Authorization", it)));
        headers.extend(cookie.as_deref().map(|it| ("Cookie", it)));
        let query = by_query
            .map(|token| format!("?token={token}"))
            .unwrap_or_default();
        let target = format!("/pub/doors/order{query}");
        assert_eq!(
            Conn::open(&server)
                .request("POST", &target, &headers, "x")
                .status,
            expected
        );
    }
    // Two of them cannot both be meant.
    let authorization = header(&right);
    let twice = [
        ("Authorization", authorization.as_str()),
        ("Authorization", authorization.as_str()),
    ];
    assert_eq!(
        Conn::open(&server)
            .request("POST", "/pub/doors/order", &twice, "x")
            .status,
        401
    );
    let target = format!("/pub/doors/order?token={right}&token={right}");
    assert_eq!(
        Conn::open(&server)
            .request("POST", &target, &[], "x")
            .status,
        401
    );
    let log = server.log();
    assert!(!log.contains(&right), "no token stands in the log: {log}");
}
