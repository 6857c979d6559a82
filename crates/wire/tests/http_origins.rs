//! Tests origins of pages and host names of the loopback.

use crore_wire::http::origin;

#[test]
fn origins_are_equal_only_with_equal_host_and_port() {
    for (page, host, is_same) in [
        ("http://example.com", "example.com", true),
        ("http://Example.com", "example.COM:80", true),
        ("https://example.com", "example.com:443", true),
        ("https://example.com:8443", "example.com:8443", true),
        ("http://127.0.0.1:8800", "127.0.0.1:8800", true),
        ("http://[::1]:8800", "[::1]:8800", true),
        ("http://example.com/", "example.com", true),
        ("http://[::1]:8800/", "[::1]:8800", true),
        ("http://example.com//", "example.com", false),
        ("http://example.com/a", "example.com", false),
        ("http:///", "", false),
        ("http://example.com:8443", "example.com", false),
        ("http://example.com", "example.com:8443", false),
        ("http://example.com.evil", "example.com", false),
        ("http://evil.example.com", "example.com", false),
        ("http://example.com@evil", "evil", false),
        ("http://", "", false),
        ("null", "null", false),
        ("file://", "h", false),
        ("chrome-extension://h", "h", false),
        ("http://h:99999", "h:99999", false),
        ("http://[::1", "[::1", false),
    ] {
        assert_eq!(
            origin::same_origin(page.as_bytes(), host.as_bytes()),
            is_same,
            "{page} {host}"
        );
    }
}

#[test]
fn only_real_loopback_hosts_count_as_loopback() {
    for host in [
        "localhost",
        "LOCALHOST:8800",
        "localhost.",
        "a.b.localhost",
        "127.0.0.1",
        "127.9.9.9:1",
        "[::1]",
        "[::1]:8800",
        "[::ffff:127.0.0.1]",
        "[0:0:0:0:0:0:0:1]",
        "127.0.0.1.",
        "127.0.0.1.:8800",
        "127.1",
        "0x7f.1",
        "2130706433",
    ] {
        assert!(origin::is_loopback_host(host.as_bytes()), "{host}");
    }
    for host in [
        "",
        ":80",
        "example.com",
        "localhost.example.com",
        "notlocalhost",
        "127.0.0.1.example.com",
        "127.0.0.256",
        "128.0.0.1",
        "[::2]",
        "::1",
        "[127.0.0.1]",
        "localhost:x",
        "localhost:123456",
        "localhost..",
        ".localhost",
        "[::1]x",
        "0.0.0.0",
        "[::ffff:10.0.0.1]",
        "0127.0.0.1",
        "127.0.0.1..",
        "127.0.0.0.1",
        "127.0.0.0x100",
        "127.+1",
    ] {
        assert!(!origin::is_loopback_host(host.as_bytes()), "{host}");
    }
}

#[test]
fn origins_are_normalized() {
    for (origin, expected) in [
        ("https://app.example.com", "https://app.example.com"),
        ("HTTPS://App.Example.COM", "https://app.example.com"),
        ("https://app.example.com:443", "https://app.example.com"),
        ("http://app.example.com:80", "http://app.example.com"),
        ("http://app.example.com:", "http://app.example.com"),
        ("wss://app.example.com:443", "wss://app.example.com"),
        ("https://app.example.com:80", "https://app.example.com:80"),
        (
            "https://app.example.com:08443",
            "https://app.example.com:8443",
        ),
        ("https://a_b.example.", "https://a_b.example."),
        ("https://app.example.com/", "https://app.example.com"),
        (
            "https://app.example.com:8443/",
            "https://app.example.com:8443",
        ),
        // Forms of an address that the IPv4 parser of the URL standard accepts.
        ("http://127.1", "http://127.0.0.1"),
        ("http://0x7f.1:3000", "http://127.0.0.1:3000"),
        ("http://010.0.0.1", "http://8.0.0.1"),
        ("http://10.0.0.1.", "http://10.0.0.1"),
        ("http://2130706433", "http://127.0.0.1"),
        ("http://1.65536", "http://1.1.0.0"),
        ("http://0x.0", "http://0.0.0.0"),
        ("http://\u{ff11}\u{ff12}\u{ff17}.1", "http://127.0.0.1"),
        ("http://4294967295", "http://255.255.255.255"),
        ("http://1.2.3.4.example", "http://1.2.3.4.example"),
        ("http://0x7g", "http://0x7g"),
        ("http://[0:0:0:0:0:0:0:1]:80", "http://[::1]"),
        ("http://[2001:DB8::5]:8080", "http://[2001:db8::5]:8080"),
        // RFC 3492 section 7.1 contains the last one. Browsers agree on the others.
        (
            "https://m\u{fc}nchen.example",
            "https://xn--mnchen-3ya.example",
        ),
        (
            "https://M\u{dc}NCHEN.Example:443",
            "https://xn--mnchen-3ya.example",
        ),
        (
            "https://XN--MNCHEN-3YA.example",
            "https://xn--mnchen-3ya.example",
        ),
        (
            "https://\u{65e5}\u{672c}.example",
            "https://xn--wgv71a.example",
        ),
        ("https://\u{df}.example", "https://xn--zca.example"),
        ("https://\u{212a}.example", "https://k.example"),
        (
            "http://3\u{5e74}b\u{7d44}\u{91d1}\u{516b}\u{5148}\u{751f}:3000",
            "http://xn--3b-ww4c5e180e575a65lsy2b:3000",
        ),
        ("file://", "file://"),
        ("FILE://", "file://"),
        ("null", "null"),
        ("app+x://.", "app+x://."),
        ("capacitor://localhost", "capacitor://localhost"),
        (
            "safari-web-extension://E4D2-AB",
            "safari-web-extension://E4D2-AB",
        ),
    ] {
        let normal = origin::normalize(origin.as_bytes());
        assert_eq!(normal.as_deref(), Some(expected), "{origin}");
        let normalized_twice = origin::normalize(expected.as_bytes());
        assert_eq!(normalized_twice.as_deref(), Some(expected), "{expected}");
    }
}

#[test]
fn invalid_origin_has_no_normal_form() {
    for origin in [
        "",
        "*",
        "NULL",
        "a.example",
        "https://",
        "https:///",
        "https://a//",
        "https://a/b",
        "https://a/b/",
        "http://127.0.0.256",
        "http://256.1",
        "http://1.2.3.4.5",
        "http://1.65536.1",
        "http://4294967296",
        "http://08",
        "http://a.1",
        "http://a.0x1",
        "http://1..2",
        "https://a?b",
        "://a",
        "https://a b",
        "https://a\"b",
        "https://u@a",
        "https://a:x",
        "https://a:99999",
        "https://a..b",
        "https://*.a",
        "https://[::1",
        "https://[1.2.3.4]",
        "1x://a",
        "https://a, https://b",
        "file:///",
        "file://\"]",
    ] {
        assert_eq!(origin::normalize(origin.as_bytes()), None, "{origin}");
    }
    assert_eq!(
        origin::normalize(b"https://caf\xe9.example"),
        None,
        "no UTF-8"
    );
    let long = format!("https://{}", "\u{fc}".repeat(64));
    assert_eq!(
        origin::normalize(long.as_bytes()),
        None,
        "longer than a label may be"
    );
}

#[test]
fn a_host_of_more_than_253_bytes_is_cut_before_it_is_made_ascii() {
    let label = "a".repeat(63);
    let longest = format!("https://{label}.{label}.{label}.{}", "b".repeat(61));
    assert_eq!(
        origin::normalize(longest.as_bytes()).as_deref(),
        Some(&longest[..])
    );
    let rooted = format!("{longest}.");
    assert_eq!(
        origin::normalize(rooted.as_bytes()).as_deref(),
        Some(&rooted[..])
    );
    assert_eq!(origin::normalize(format!("{longest}b").as_bytes()), None);
    // The ASCII form of this name would be short enough; only the text itself is too long.
    let label = "\u{4e00}".repeat(55);
    let wide = format!("https://{label}.{label}");
    assert_eq!(origin::normalize(wide.as_bytes()), None);
}

#[test]
fn loopback_alias_differs_only_in_its_name() {
    for (left, right, alias) in [
        ("http://localhost:3000", "http://127.0.0.1:3000", true),
        ("http://[::1]", "http://localhost", true),
        ("http://localhost:3000", "http://localhost:3000", false),
        ("http://localhost:3000", "http://127.0.0.1", false),
        ("https://localhost", "http://127.0.0.1", false),
        ("http://localhost", "http://a.example", false),
        ("null", "http://localhost", false),
    ] {
        assert_eq!(
            origin::is_loopback_alias(left, right),
            alias,
            "{left} {right}"
        );
    }
}

#[test]
fn only_a_page_of_another_origin_is_cross_site() {
    for site in ["cross-site", "same-site", " cross-site ", "cross-site;v=1"] {
        assert!(origin::is_cross_origin(site.as_bytes()), "{site}");
    }
    for site in ["", "none", "same-origin", "Cross-Site-2", "across-site"] {
        assert!(!origin::is_cross_origin(site.as_bytes()), "{site}");
    }
}
