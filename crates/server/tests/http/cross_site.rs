//! Tests requests that a page of another site makes in a visitor's browser. The server accepts only what the settings allow.

use crate::support::http::{Conn, once, publish};
use crate::support::ws::handshake;
use crate::support::{Server, until};

const EVIL: (&str, &str) = ("Origin", "https://evil.example");

#[test]
fn a_foreign_origin_neither_publishes_nor_upgrades() {
    let server = Server::start();
    publish(&server, "news", "one");
    for (method, target) in [
        ("POST", "/pub/news"),
        ("PUT", "/pub/new"),
        ("DELETE", "/pub/news"),
        ("POST", "/pub"),
    ] {
        for origin in [
            EVIL,
            ("Origin", "null"),
            ("Origin", "http://127.0.0.1.evil.example"),
        ] {
            assert_eq!(
                once(&server, method, target, &[origin], "").status,
                403,
                "{method} {target} {origin:?}"
            );
        }
    }
    for target in ["/sub/news", "/pub/news", "/pubsub/news"] {
        let mut conn = Conn::open(&server);
        conn.ask("GET", target, &handshake(&[EVIL]), "");
        assert_eq!(conn.head().status, 403, "{target}");
    }
    assert_eq!(crate::support::http::info(&server, "news")["messages"], 1);
    let read = once(&server, "GET", "/pub/news", &[EVIL], "");
    assert_eq!(
        read.header("access-control-allow-origin"),
        None,
        "a page may ask, and may not read the answer"
    );
}

/// A foreign page cannot read the answer, but a subscription would still create topics and use connections.
#[test]
fn a_foreign_origin_does_not_subscribe() {
    let server = Server::with("[[rule]]\nmatch = 'seat'\nconcurrency = 'last'\n");
    let mut holder = Conn::open(&server);
    holder.ask("GET", "/sub/seat?since=live", &[], "");
    server.await_subscribers("seat", 1);
    for target in [
        "/sub/seat?since=live",
        "/sub/made",
        "/sub?filter=%23",
        "/sub?topic=made&topic=seat",
        "/interest",
    ] {
        for accept in ["*/*", "text/event-stream"] {
            for method in ["GET", "HEAD"] {
                let headers = [EVIL, ("Accept", accept)];
                let mut conn = Conn::open(&server);
                conn.ask(method, target, &headers, "");
                let refused = conn.response_to(method);
                assert_eq!(refused.status, 403, "{method} {target} {accept}");
                let allowed = refused.header("access-control-allow-origin");
                assert_eq!(allowed, None, "{target}");
            }
        }
    }
    assert_eq!(once(&server, "GET", "/pub/made", &[], "").status, 404);
    publish(&server, "seat", "kept");
    assert_eq!(holder.response().text(), "kept");
}

/// A publisher chooses the content type of a message. No message may run as a script of the server's origin, whatever page embeds it.
#[test]
fn message_is_never_executed_in_a_page() {
    let server = Server::start();
    let script = [("Content-Type", "text/javascript")];
    once(&server, "POST", "/pub/evil", &script, "alert(1)");
    let fetched = |destination: &str, site: &str| {
        let headers = [("Sec-Fetch-Dest", destination), ("Sec-Fetch-Site", site)];
        once(&server, "GET", "/sub/evil?since=oldest", &headers, "")
    };
    for destination in [
        "script",
        "style",
        "worker",
        "sharedworker",
        "serviceworker",
        "audioworklet",
        "paintworklet",
        "xslt",
        "object",
        "embed",
    ] {
        for site in ["same-origin", "none"] {
            let refused = fetched(destination, site);
            assert_eq!(refused.status, 403, "{destination}");
            assert!(refused.text().contains(destination), "{refused:?}");
        }
    }
    for destination in ["empty", "document", "image", "of-a-later-standard"] {
        assert_eq!(
            fetched(destination, "same-origin").text(),
            "alert(1)",
            "{destination}"
        );
    }
    let named = ("Origin", &*format!("http://{}", server.address()));
    let headers = [("Sec-Fetch-Dest", "script"), named];
    assert_eq!(
        once(&server, "GET", "/history/evil", &headers, "").status,
        403
    );
}

#[test]
fn page_of_the_servers_own_origin_may_publish_and_upgrade() {
    let server = Server::start();
    let own_origin = format!("http://{}", server.address());
    assert_eq!(
        once(
            &server,
            "POST",
            "/pub/news",
            &[("Origin", &own_origin)],
            "x"
        )
        .status,
        202
    );
    let mut conn = Conn::open(&server);
    conn.ask(
        "GET",
        "/sub/news",
        &handshake(&[("Origin", &own_origin)]),
        "",
    );
    assert_eq!(conn.head().status, 101);
    // Another port is another origin.
    let other = format!("http://127.0.0.1:{}", server.address().port() ^ 1);
    assert_eq!(
        once(&server, "POST", "/pub/news", &[("Origin", &other)], "x").status,
        403
    );
}

#[test]
fn allowed_origin_may_read_answers_without_credentials() {
    let server = Server::with("[http]\nallowed_origins = [\"https://app.example.com\"]\n");
    let origin = ("Origin", "https://app.example.com");
    assert_eq!(
        once(&server, "POST", "/pub/news", &[origin], "x").status,
        202
    );
    let response = once(&server, "GET", "/sub/news", &[origin], "");
    assert_eq!(
        response.header("access-control-allow-origin").as_deref(),
        Some(origin.1)
    );
    assert_eq!(response.header("access-control-allow-credentials"), None);
    assert!(response.lists("vary", "origin"));
    let preflight = [
        origin,
        ("Access-Control-Request-Method", "DELETE"),
        ("Access-Control-Request-Headers", "content-type"),
    ];
    let allowed = once(&server, "OPTIONS", "/pub/news", &preflight, "");
    assert_eq!(allowed.status, 204, "{allowed:?}");
    assert_eq!(
        allowed.header("access-control-allow-origin").as_deref(),
        Some(origin.1)
    );
    assert!(
        allowed.lists("access-control-allow-methods", "DELETE"),
        "{allowed:?}"
    );
    // The client NchanSubscriber sends the second header.
    for name in ["content-type", "cache-control"] {
        assert!(
            allowed.lists("access-control-allow-headers", name),
            "{allowed:?}"
        );
    }
    let stream = crate::support::stream::Stream::open(&server, "/sub/news", &[origin]);
    assert_eq!(
        stream.head.header("access-control-allow-origin").as_deref(),
        Some(origin.1)
    );
}

#[test]
fn scripts_of_an_allowed_origin_may_read_all_headers_of_a_poll() {
    let server = Server::with(
        "[http]\nallowed_origins = [\"*\"]\n[[rule]]\nmatch = '#'\nlog_messages = 1\n",
    );
    let origin = ("Origin", "https://app.example.com");
    let request_headers = [
        ("X-EventSource-Event", "score"),
        ("Crore-Key", "k"),
        ("Crore-TTL", "1000"),
        ("Crore-Property", "a=b"),
        origin,
    ];
    let send = || once(&server, "POST", "/pub/news", &request_headers, "x").status;
    send();
    let target = "/sub?topic=news&topic=other";
    let first = once(&server, "GET", target, &[origin], "");
    send();
    assert_eq!(send(), 202);
    let tag = first.header("etag").expect("a position");
    let response = once(
        &server,
        "GET",
        target,
        &[origin, ("If-None-Match", &tag)],
        "",
    );
    assert_eq!(response.status, 200);
    let crore_headers =
        |name: &str| name.starts_with("crore-") || ["etag", "last-modified"].contains(&name);
    let names = response.headers.iter().map(|(name, _)| name.as_str());
    let names: Vec<&str> = names.filter(|name| crore_headers(name)).collect();
    // The headers for position, time, topic, event, key, gap, time to live and property.
    assert_eq!(names.len(), 8, "{response:?}");
    for name in names
        .into_iter()
        .chain(["retry-after", "idempotency-replayed"])
    {
        assert!(
            response.lists("access-control-expose-headers", name),
            "{name}: {response:?}"
        );
    }
}

#[test]
fn a_preflight_of_a_foreign_origin_allows_it_nothing() {
    let server = Server::start();
    let preflight = [EVIL, ("Access-Control-Request-Method", "POST")];
    let response = once(&server, "OPTIONS", "/pub/news", &preflight, "");
    assert_eq!(response.status, 204, "{response:?}");
    assert_eq!(response.header("access-control-allow-origin"), None);
}

#[test]
fn star_allows_every_origin_but_no_credentials() {
    let server = Server::with("[http]\nallowed_origins = [\"*\"]\n");
    assert_eq!(once(&server, "POST", "/pub/news", &[EVIL], "x").status, 202);
    let response = once(&server, "GET", "/sub/news", &[EVIL], "");
    assert!(response.header("access-control-allow-origin").is_some());
    assert_eq!(response.header("access-control-allow-credentials"), None);
}

#[test]
fn pages_from_files_are_allowed_by_the_origin_null() {
    let server = Server::with("[http]\nallowed_origins = [\"null\"]\n");
    let file = ("Origin", "null");
    assert_eq!(once(&server, "POST", "/pub/news", &[file], "x").status, 202);
    let read = once(&server, "GET", "/sub/news", &[file], "");
    assert_eq!(
        read.header("access-control-allow-origin").as_deref(),
        Some("null")
    );
    let mut conn = Conn::open(&server);
    conn.ask("GET", "/sub/news", &handshake(&[file]), "");
    assert_eq!(conn.head().status, 101);
    // An origin that is not listed is still refused.
    assert_eq!(once(&server, "POST", "/pub/news", &[EVIL], "x").status, 403);
    let read = once(&server, "GET", "/pub/news", &[EVIL], "");
    assert_eq!(read.header("access-control-allow-origin"), None);
}

#[test]
fn server_on_the_loopback_accepts_only_its_names_as_host() {
    let server = Server::start();
    let port = server.address().port();
    for host in [
        format!("127.0.0.1:{port}"),
        format!("localhost:{port}"),
        format!("LOCALHOST:{port}"),
        format!("[::1]:{port}"),
        "localhost".into(),
    ] {
        assert_eq!(
            once(&server, "GET", "/pub/a", &[("Host", &host)], "").status,
            404,
            "{host}"
        );
    }
    // DNS rebinding: an attacker's host name that resolves to this machine.
    for host in [
        "evil.example",
        "evil.example:8800",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "192.0.2.1",
    ] {
        for (method, target) in [
            ("GET", "/pub/a"),
            ("POST", "/pub/a"),
            ("GET", "/sub/a?since=live"),
        ] {
            let status = once(&server, method, target, &[("Host", host)], "").status;
            assert_eq!(status, 403, "{method} {target} at {host}");
        }
        let mut conn = Conn::open(&server);
        let mut headers = handshake(&[]);
        headers.push(("Host", host));
        conn.ask("GET", "/sub/a", &headers, "");
        assert_eq!(conn.head().status, 403, "upgrade at {host}");
    }
}

/// Rights do not replace `http.hosts`: a page that reaches the server by a foreign name (DNS rebinding) may not use what anonymous clients
/// may do.
#[test]
fn foreign_host_on_the_loopback_is_accepted_only_if_listed() {
    let rights = "[access]\nanonymous = { publish = ['#'], subscribe = ['#'], info = ['#'] }\n";
    let hosts = "[http]\nhosts = ['Push.example', 'push.example:8443']\n";
    for settings in [
        rights.to_string(),
        format!("{hosts}{rights}"),
        hosts.to_string(),
    ] {
        let server = Server::with(&settings);
        let lists = settings.contains("hosts");
        for (host, listed) in [
            ("localhost:8800", true),
            ("127.0.0.1", true),
            ("push.example", lists),
            ("push.example:8443", lists),
            ("push.example:80", false),
            ("evil.example", false),
            ("evil.push.example", false),
        ] {
            let expected = |status| if listed { status } else { 403 };
            let headers = [("Host", host)];
            let post = once(&server, "POST", "/pub/a", &headers, "x");
            assert!(
                post.status == expected(202) || listed && post.status == 201,
                "{host}: {post:?}"
            );
            let read = once(&server, "GET", "/sub/a?since=oldest", &headers, "");
            assert_eq!(read.status, expected(200), "{host}: {settings}");
            if !listed {
                assert!(read.text().contains("http.hosts"), "{read:?}");
            }
            for (target, protocol) in [("/sub/a", None), ("/mqtt", Some("mqtt"))] {
                let mut upgrade = handshake(&[headers[0]]);
                upgrade.extend(protocol.map(|name| ("Sec-WebSocket-Protocol", name)));
                let mut conn = Conn::open(&server);
                conn.ask("GET", target, &upgrade, "");
                assert_eq!(conn.head().status, expected(101), "{target} at {host}");
            }
        }
    }
}

#[test]
fn cross_site_refusal_names_the_setting_and_is_logged_once() {
    let server = Server::start();
    let host = "a.example";
    for _ in 0..3 {
        let refused = once(&server, "POST", "/pub/a", &[EVIL], "x");
        let refusal_text = refused.text();
        assert!(
            refusal_text.contains(EVIL.1) && refusal_text.contains("http.allowed_origins"),
            "{refusal_text:?}"
        );
        let refused = once(&server, "GET", "/pub/a", &[("Host", host)], "");
        let refusal_text = refused.text();
        for words in [host, "http.hosts", "Host: localhost"] {
            assert!(refusal_text.contains(words), "{refusal_text:?}");
        }
        assert_eq!(refusal_text.lines().count(), 1);
    }
    let count_in_log = |words: &str| server.log().matches(words).count();
    // How long a repeated refusal is not logged is tested with a simulated clock (`control/refusal_log.rs`).
    until("both in the log", || {
        [
            count_in_log("http.allowed_origins"),
            count_in_log("Host: localhost"),
        ] == [1, 1]
    });
    // The answer quotes a header's value as harmless text, and cuts a long one.
    let odd = [b'a'; 5_000];
    let odd = String::from_utf8_lossy(&odd);
    let refused = once(&server, "POST", "/pub/a", &[("Origin", &odd)], "x");
    assert!(refused.body.len() < 2_000, "{}", refused.body.len());
}

/// The setting that the 403 advises is valid, and lets the page in.
#[test]
fn setting_advised_for_an_origin_allows_it() {
    let server = Server::start();
    for origin in [
        "file://",
        "HTTPS://App.Example.com",
        "https://app.example.com:443",
        "http://app.example.com:80",
        "https://app.example.com/",
        "https://m\u{fc}nchen.example",
        "https://XN--MNCHEN-3YA.example:8443",
        "http://[0:0::1]:3000",
        "capacitor://localhost",
        "safari-web-extension://E4D2-AB",
        "null",
    ] {
        let from = [("Origin", origin)];
        let refused = once(&server, "POST", "/pub/a", &from, "x");
        assert_eq!(refused.status, 403, "{origin}");
        let refusal = refused.text();
        let advice = refusal
            .split_once("allowed_origins = ")
            .expect("an advice")
            .1;
        let value = advice.split(']').next().expect("its end").to_string() + "]";
        let value = if value.ends_with("::1]") {
            advice.split(" under").next().expect("its end").to_string()
        } else {
            value
        };
        let advised = Server::with(&format!("[http]\nallowed_origins = {value}\n"));
        let mut conn = Conn::open(&advised);
        conn.ask("GET", "/sub/a", &handshake(&from), "");
        assert_eq!(conn.head().status, 101, "{origin} by {value}");
        assert_eq!(
            once(&advised, "POST", "/pub/a", &from, "x").status,
            201,
            "{origin}"
        );
        assert_eq!(once(&advised, "POST", "/pub/a", &[EVIL], "x").status, 403);
    }
    for origin in [
        "https://a/b",
        "https://u@a.example",
        "evil",
        "https://a, https://b",
        "a\"]",
    ] {
        let refused = once(&server, "POST", "/pub/a", &[("Origin", origin)], "x");
        assert_eq!(refused.status, 403, "{origin}");
        assert!(
            !refused.text().contains("allowed_origins = "),
            "{refused:?}"
        );
    }
}

#[test]
fn allowed_origin_in_any_form_matches_the_browsers_origin() {
    for (setting, sent) in [
        ("https://app.example.com:443", "https://app.example.com"),
        ("http://app.example.com:80", "http://app.example.com"),
        ("HTTPS://App.Example.com", "https://app.example.com"),
        ("https://app.example.com/", "https://app.example.com"),
        ("http://10.1:3000", "http://10.0.0.1:3000"),
        (
            "https://m\u{fc}nchen.example",
            "https://xn--mnchen-3ya.example",
        ),
        (
            "https://app.example.com:8443",
            "https://app.example.com:8443",
        ),
    ] {
        let server = Server::with(&format!("[http]\nallowed_origins = [\"{setting}\"]\n"));
        let answer = once(&server, "POST", "/pub/a", &[("Origin", sent)], "x");
        assert_eq!(answer.status, 202, "{setting}");
        let allowed = answer.header("access-control-allow-origin");
        assert_eq!(allowed.as_deref(), Some(sent), "{setting}");
    }
}

#[test]
fn request_with_several_origins_is_400() {
    let server = Server::with("[http]\nallowed_origins = [\"https://app.example.com\"]\n");
    let good = ("Origin", "https://app.example.com");
    for origins in [[good, EVIL], [EVIL, good], [good, good]] {
        for (method, target) in [("GET", "/sub/a"), ("POST", "/pub/a"), ("OPTIONS", "/pub/a")] {
            let answer = once(&server, method, target, &origins, "");
            assert_eq!(answer.status, 400, "{method} {origins:?}");
            assert_eq!(answer.header("access-control-allow-origin"), None);
        }
        let mut conn = Conn::open(&server);
        conn.ask("GET", "/sub/a", &handshake(&origins), "");
        assert_eq!(conn.head().status, 400, "{origins:?}");
    }
}

/// A request without `Origin` from a page of another site (`Sec-Fetch-Site`) is refused, since the page could show or run the answer.
#[test]
fn page_of_another_site_without_an_origin_is_refused() {
    let named = Server::with("[http]\nallowed_origins = [\"https://app.example.com\"]\n");
    let server = Server::start();
    publish(&server, "news", "x");
    let targets = [
        "/sub/news",
        "/pub/news",
        "/interest",
        "/interest?match=news",
        "/sub?filter=%23",
    ];
    for site in ["cross-site", "same-site"] {
        let from = ("Sec-Fetch-Site", site);
        for target in targets {
            for method in ["GET", "HEAD"] {
                let answer = once(&server, method, target, &[from], "");
                assert_eq!(answer.status, 403, "{method} {target} {site}");
            }
            let events = [from, ("Accept", "text/event-stream")];
            let answer = once(&named, "GET", target, &events, "");
            assert_eq!(answer.status, 403, "{target} {site}");
            let body = answer.text();
            assert!(
                body.contains(site) && body.contains("http.allowed_origins"),
                "{body}"
            );
        }
        let mut conn = Conn::open(&server);
        conn.ask("GET", "/sub/news", &handshake(&[from]), "");
        assert_eq!(conn.head().status, 403, "{site}");
        // A request with an `Origin` is answered: from a listed origin, and from another one, whose page does not get to see the answer.
        for origin in ["https://app.example.com", "https://other.example"] {
            let headers = [from, ("Origin", origin)];
            assert_eq!(once(&named, "GET", "/pub/none", &headers, "").status, 404);
        }
        let any_origin = Server::with("[http]\nallowed_origins = [\"*\"]\n");
        assert_eq!(
            once(&any_origin, "GET", "/pub/none", &[from], "").status,
            404
        );
    }
    for site in ["same-origin", "none", "something-new"] {
        let headers = [("Sec-Fetch-Site", site)];
        assert_eq!(
            once(&server, "GET", "/sub/news", &headers, "").text(),
            "x",
            "{site}"
        );
    }
}

/// Scripts may send the headers that EventSource polyfills, Mercure's clients, htmx and tracing add to those of the standard's
/// EventSource.
#[test]
fn scripts_of_an_allowed_origin_may_send_the_headers_of_common_clients() {
    let server = Server::with("[http]\nallowed_origins = [\"https://app.example.com\"]\n");
    let preflight = [
        ("Origin", "https://app.example.com"),
        ("Access-Control-Request-Method", "GET"),
    ];
    for target in ["/sub/news", "/pub/news", "/interest"] {
        let answer = once(&server, "OPTIONS", target, &preflight, "");
        for name in [
            "X-Requested-With",
            "Authorization",
            "Accept",
            "Cache-Control",
            "Pragma",
            "Content-Type",
            "Last-Event-ID",
            "If-None-Match",
            "If-Modified-Since",
            "Idempotency-Key",
            "Crore-Key",
            "Crore-TTL",
            "*",
        ] {
            assert!(
                answer.lists("access-control-allow-headers", name),
                "{name}: {answer:?}"
            );
        }
        assert_eq!(answer.header("access-control-allow-credentials"), None);
    }
}
