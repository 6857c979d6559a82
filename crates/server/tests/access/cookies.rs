//! Tests when a token in a cookie is accepted. A browser sends cookies with the requests of any page, so the origin of the page decides.

use crate::support::Server;
use crate::support::http::Conn;
use crate::support::ws::handshake;
use crate::tokens::{everything, key_settings, token};

#[test]
fn cookie_is_accepted_from_own_pages_and_from_origins_allowed_by_name() {
    let cookie = format!("crore_token={}", token(everything()));
    for (origins, expected) in [
        ("", [101, 101, 403, 403, 403]),
        (
            "allowed_origins = ['https://app.example']",
            [101, 101, 101, 403, 403],
        ),
        // With `*` pages of every origin may send requests, but the cookie of another origin's request does not count. `null` is the
        // origin that a browser sends for a sandboxed frame of any site.
        ("allowed_origins = ['*']", [101, 101, 401, 401, 401]),
        ("allowed_origins = ['null']", [101, 101, 403, 403, 401]),
    ] {
        let server = Server::with(&format!("[http]\n{origins}\n[access]\n{}", key_settings()));
        let own_origin = server.url("");
        let from = [
            None,
            Some(own_origin.as_str()),
            Some("https://app.example"),
            Some("https://evil.example"),
            Some("null"),
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
fn answers_never_allow_credentials_to_other_origins() {
    let origin = ("Origin", "https://app.example");
    let token = token(everything());
    let (cookie, bearer) = (format!("crore_token={token}"), format!("Bearer {token}"));
    let (plain, by_query) = ("/sub/doors/read", format!("/sub/doors/read?token={token}"));
    let preflight = [
        origin,
        ("Access-Control-Request-Method", "GET"),
        ("Access-Control-Request-Headers", "authorization"),
    ];
    let event_stream = [origin, ("Accept", "text/event-stream")];
    let by_header = [origin, ("Authorization", &bearer)];
    // A request with a cookie may succeed, but no answer allows credentials (CORS), so the browser does not show the answer to the page.
    let by_cookie = [origin, ("Cookie", &cookie)];
    for (listed, by_cookie_opens) in [("https://app.example", 204), ("*", 401)] {
        let rule = "[[rule]]\nmatch = '#'\npoll_timeout_s = 1\n";
        let server = Server::with(&format!(
            "[http]\nallowed_origins = ['{listed}']\n[access]\n{}{rule}",
            key_settings()
        ));
        for (method, target, headers, status) in [
            ("OPTIONS", plain, &preflight[..], 204),
            ("GET", plain, &by_header, 204),
            ("GET", &by_query, &[origin], 204),
            ("GET", &by_query, &event_stream, 200),
            ("GET", plain, &by_cookie, by_cookie_opens),
        ] {
            let mut conn = Conn::open(&server);
            conn.ask(method, target, headers, "");
            let answer = conn.head();
            let case = format!("{method} {target} of {listed}: {answer:?}");
            assert_eq!(answer.status, status, "{case}");
            let named = answer.header("access-control-allow-origin");
            assert_eq!(named.as_deref(), Some(listed), "{case}");
            let credentials = answer.header("access-control-allow-credentials");
            assert_eq!(credentials, None, "{case}");
            let may_send = answer.lists("access-control-allow-headers", "authorization");
            assert_eq!(may_send, method == "OPTIONS", "{case}");
        }
    }
}

#[test]
fn token_in_the_header_precedes_query_and_query_precedes_cookie() {
    let server = Server::with(&format!("[access]\n{}", key_settings()));
    let (valid, invalid) = (token(everything()), "eyJ0.e30.x");
    let header = |token: &str| format!("Bearer {token}");
    let cookie = |token: &str| format!("crore_token={token}");
    for (by_header, by_query, by_cookie, expected) in [
        (Some(valid.as_str()), Some(invalid), Some(invalid), 202),
        (Some(invalid), Some(&valid), Some(&valid), 401),
        (None, Some(&valid), Some(invalid), 202),
        (None, Some(invalid), Some(&valid), 401),
        (None, None, Some(&valid), 202),
    ] {
        let (authorization, cookie) = (by_header.map(header), by_cookie.map(cookie));
        let mut headers = Vec::new();
        headers.extend(
            authorization
                .as_deref()
                .map(|value| ("Authorization", value)),
        );
        headers.extend(cookie.as_deref().map(|value| ("Cookie", value)));
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
    // A request with two tokens of the same kind is refused, since it is not clear which one is meant.
    let authorization = header(&valid);
    let two_cookies = [
        ("Authorization", authorization.as_str()),
        ("Authorization", authorization.as_str()),
    ];
    assert_eq!(
        Conn::open(&server)
            .request("POST", "/pub/doors/order", &two_cookies, "x")
            .status,
        401
    );
    let target = format!("/pub/doors/order?token={valid}&token={valid}");
    assert_eq!(
        Conn::open(&server)
            .request("POST", &target, &[], "x")
            .status,
        401
    );
    let log = server.log();
    assert!(!log.contains(&valid), "no token stands in the log: {log}");
}

/// The request for a script or an image that a page of another site embeds carries the visitor's cookie and no `Origin` header.
#[test]
fn cookie_of_a_foreign_page_is_ignored_where_every_origin_is_allowed() {
    let token = token(everything());
    let cookie = format!("crore_token={token}");
    let server = Server::with(&format!(
        "[http]\nallowed_origins = ['*']\n[access]\n{}",
        key_settings()
    ));
    for (site, status) in [
        ("cross-site", 401),
        ("same-site", 401),
        ("same-origin", 404),
        ("none", 404),
    ] {
        let headers = [("Cookie", &cookie[..]), ("Sec-Fetch-Site", site)];
        let answer = Conn::open(&server).get("/pub/doors/none", &headers);
        assert_eq!(answer.status, status, "{site}");
    }
}
