//! Tests `crore token`, and the access settings that the server refuses at its start.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::support::Server;
use crate::support::http::once;
use crate::support::program::await_output;
use crate::tokens::{SECRET, everything, key_settings, token};

fn crore(args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_crore"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(input.as_bytes()).expect("it reads");
    drop(stdin);
    await_output(child)
}

fn succeed(output: Output) -> String {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("text")
}

fn refused(output: Output) -> String {
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr).expect("text")
}

fn file(name: &str, text: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("token-{}-{name}", std::process::id()));
    std::fs::write(&path, text).expect("a file");
    path
}

#[test]
fn suspicious_grant_gets_a_hint_and_the_token_is_minted() {
    let secret = file("hinted", SECRET);
    let secret = secret.to_str().expect("text");
    let mint = ["token", "mint", "--key", secret];
    let rights = ["--subscribe", "a/*", "--publish", "b,c", "--manage", "a/+"];
    let output = crore(&[&mint[..], &rights].concat(), "");
    let hints = String::from_utf8(output.stderr.clone()).expect("text");
    assert_eq!(
        hints,
        "hint: `b,c` is one filter; for several repeat the flag\n\
         hint: `*` and `>` are no wildcards in 'a/*'; topics match 'a/+' (any one level) or 'a/#' (all levels that follow)\n"
    );
    let token = succeed(output);
    let inspected: Value =
        serde_json::from_str(&succeed(crore(&["token", "inspect"], &token))).expect("JSON");
    assert_eq!(inspected["claims"]["subscribe"][0], "a/*");
}

#[test]
fn minted_token_can_be_inspected_and_grants_its_claims() {
    let secret = file("secret", &format!("{SECRET}\n"));
    let secret = secret.to_str().expect("text");
    let token = succeed(crore(
        &[
            "token",
            "mint",
            "--key",
            secret,
            "--user",
            "ann",
            "--publish",
            "doors/#",
            "--subscribe",
            "doors/#",
            "--info",
            "doors/news",
            "--ttl",
            "1h",
        ],
        "",
    ));
    let inspected: Value =
        serde_json::from_str(&succeed(crore(&["token", "inspect"], &token))).expect("JSON");
    assert_eq!(inspected["header"]["alg"], "HS256");
    assert_eq!(inspected["claims"]["sub"], "ann");
    assert_eq!(inspected["claims"]["publish"][0], "doors/#");
    assert_eq!(inspected["claims"].get("manage"), None);
    let life_s = inspected["claims"]["exp"].as_u64().expect("an end")
        - inspected["claims"]["iat"].as_u64().expect("a beginning");
    assert_eq!(life_s, 3600);

    let settings = format!("[access]\n[[access.key]]\nalg = 'HS256'\nfile = '{secret}'\n");
    let server = Server::with(&settings);
    let authorization = format!("Bearer {}", token.trim());
    let headers = [("Authorization", authorization.as_str())];
    assert_eq!(
        once(&server, "POST", "/pub/doors/a", &headers, "x").status,
        202
    );
    assert_eq!(
        once(&server, "POST", "/pub/other", &headers, "x").status,
        403
    );
    let config = file("config.toml", &settings);
    let config = config.to_str().expect("text");
    let verified = crore(&["token", "inspect", "--config", config, token.trim()], "");
    let error = String::from_utf8_lossy(&verified.stderr);
    let grants =
        "accepted, for user ann; it grants\n  doors/#: publish, subscribe\n  doors/news: info\n";
    assert!(error.ends_with(grants), "{error}");
    let without_rights = succeed(crore(&["token", "mint", "--key", secret], ""));
    let verified = crore(
        &[
            "token",
            "inspect",
            "--config",
            config,
            without_rights.trim(),
        ],
        "",
    );
    let error = String::from_utf8_lossy(&verified.stderr);
    assert!(
        error.ends_with("accepted, for nobody by name; it grants nothing\n"),
        "{error}"
    );
    let other_key_file = file("other", "fedcba9876543210fedcba9876543210");
    let other = succeed(crore(
        &[
            "token",
            "mint",
            "--key",
            other_key_file.to_str().expect("text"),
        ],
        "",
    ));
    let verified = crore(&["token", "inspect", "--config", config, other.trim()], "");
    assert!(String::from_utf8_lossy(&verified.stderr).contains("not signed by a key"));
}

#[test]
fn user_is_accepted_with_a_hashed_password() {
    let hash = succeed(crore(&["token", "hash"], "right\n"));
    let user = format!(
        "[access]\n[[access.user]]\nname = 'ann'\npassword = '{}'\npublish = ['#']\n",
        hash.trim()
    );
    let server = Server::with(&user);
    for (word, expected) in [("YW5uOnJpZ2h0", 202), ("YW5uOndyb25n", 401)] {
        let authorization = format!("Basic {word}");
        let headers = [("Authorization", authorization.as_str())];
        assert_eq!(
            once(&server, "POST", "/pub/a", &headers, "x").status,
            expected
        );
    }
}

#[test]
fn password_file_with_a_byte_order_mark_is_hashed_without_it_and_utf16_is_refused() {
    let hash = succeed(crore(&["token", "hash"], "\u{feff}right\r\n"));
    let user = format!(
        "name = 'ann'\npassword = '{}'\npublish = ['#']\n",
        hash.trim()
    );
    let server = Server::with(&format!("[access]\n[[access.user]]\n{user}"));
    let headers = [("Authorization", "Basic YW5uOnJpZ2h0")];
    assert_eq!(once(&server, "POST", "/pub/a", &headers, "x").status, 202);
    // UTF-16 without a byte order mark, and with line ends.
    let error = refused(crore(&["token", "hash"], "r\0i\0g\0h\0t\0\r\0\n\0"));
    assert!(
        error.contains("UTF-16") && error.contains("iconv"),
        "{error}"
    );
}

#[test]
fn invalid_key_filter_or_token_is_refused_with_the_remedy() {
    let short = file("short", "secret\n");
    let secret = file("long", SECRET);
    let (short, secret) = (
        short.to_str().expect("text"),
        secret.to_str().expect("text"),
    );
    for (args, words) in [
        (
            vec!["token", "mint", "--key", "nowhere"],
            ["nowhere", "No such file"],
        ),
        (
            vec!["token", "mint", "--key", short],
            ["6 bytes", "openssl rand -hex 32"],
        ),
        (
            vec!["token", "mint", "--key", secret, "--alg", "none"],
            ["`none` is not offered", "EdDSA"],
        ),
        (
            vec!["token", "mint", "--key", secret, "--alg", "RS256"],
            ["private key in PEM", "HS256"],
        ),
        (
            vec!["token", "mint", "--key", secret, "--publish", "a/#/b"],
            ["publish", "wildcard"],
        ),
        (
            vec!["token", "inspect", "a.b"],
            ["is no JWT", "three parts"],
        ),
        (
            vec!["token", "hash"],
            ["no password", "crore token hash < FILE"],
        ),
    ] {
        let error = refused(crore(&args, ""));
        for word in words {
            assert!(error.contains(word), "{args:?}: {error} lacks {word}");
        }
    }
}

#[test]
fn impossible_access_settings_are_refused_with_their_place() {
    let garbage = file("garbage", "{\"keys\": [}");
    let empty = file("empty", "{\"keys\": []}");
    let private = rcgen::KeyPair::generate().expect("a key");
    let private = file("private", &private.serialize_pem());
    let broken = file(
        "broken",
        "-----BEGIN PUBLIC KEY-----\nMC4=\n-----END PUBLIC KEY-----\n",
    );
    let key = |alg: &str, path: &PathBuf| {
        format!(
            "[access]\n[[access.key]]\nalg = '{alg}'\nfile = '{}'\n",
            path.display()
        )
    };
    let table = [
        (key("", &garbage), ["access.key[1].file", "is no JWKS"]),
        (key("", &empty), ["access.key[1].file", "has no key"]),
        (
            key("ES256", &private),
            ["access.key[1].file", "openssl pkey"],
        ),
        (
            key("ES256", &broken),
            ["access.key[1].file", "line 1: PUBLIC KEY is cut off"],
        ),
        (
            key("HS256", &broken),
            ["access.key[1].file", "HS256 takes a secret"],
        ),
        (
            key("none", &broken),
            ["access.key[1].alg", "`none` is not offered"],
        ),
        (key("", &broken), ["access.key[1].alg", "is missing"]),
        (
            key("RS256", &PathBuf::from("/nowhere")),
            ["access.key[1].file", "No such file"],
        ),
        (
            "[access]\n[[access.key]]\nalg = 'HS256'\nsecret = 'short'\n".into(),
            ["access.key[1].secret", "needs 32"],
        ),
        (
            "[access]\n[[access.key]]\nalg = 'HS256'\n".into(),
            ["access.key[1]", "write one of `file`"],
        ),
        (
            "[access]\n[[access.user]]\nname = 'a'\npassword = 'plain'\n".into(),
            ["access.user[1].password", "crore token hash"],
        ),
        (
            "[access]\n[access.callback]\nurl = 'a/b'\n".into(),
            ["access.callback.url", "https://HOST:PORT"],
        ),
        (
            "[access]\n[access.callback]\nurl = 'https://a/b'\nca = '/nowhere'\n".into(),
            ["access.callback.ca", "No such file"],
        ),
        (
            "[access]\n[access.callback]\nurl = 'http://a/b'\nca = '/nowhere'\n".into(),
            ["access.callback.ca", "write https://"],
        ),
        (
            "[access]\n[access.anonymous]\npublish = ['a/#/b']\n".into(),
            ["access.anonymous", "wildcard"],
        ),
        (
            "[access]\nquestions_max = 0\n".into(),
            ["access.questions_max", "from 1"],
        ),
        (
            "[[rule]]\nmatch = 'a'\nopen = ['publish']\n".into(),
            ["rule[1].open", "[access]"],
        ),
        (
            "[access]\n[[rule]]\nmatch = 'a'\nopen = ['write']\n".into(),
            [
                "rule[1].open",
                "write \"publish\", \"subscribe\", \"manage\", \"info\", \"interest\" or \"presence\"",
            ],
        ),
        (
            "listen = ['0.0.0.0:8800']\n".into(),
            ["listen[1]", "[access]"],
        ),
    ];
    for (text, words) in table {
        let config = file("refused.toml", &text);
        let error = refused(crore(
            &[
                "serve",
                "--check",
                "--config",
                config.to_str().expect("text"),
            ],
            "",
        ));
        for word in words {
            assert!(error.contains(word), "{text}\n{error}\nlacks {word}");
        }
    }
}

#[test]
fn with_a_table_of_access_the_server_may_listen_anywhere_and_no_secret_is_printed() {
    let text = format!(
        "listen = ['0.0.0.0:8800']\n[access]\n[[access.key]]\nalg = 'HS256'\nsecret = '{SECRET}'\n"
    );
    let config = file("anywhere.toml", &text);
    let printed = succeed(crore(
        &[
            "serve",
            "--check",
            "--config",
            config.to_str().expect("text"),
        ],
        "",
    ));
    assert!(
        printed.contains("(hidden)") && !printed.contains(SECRET),
        "{printed}"
    );
}

#[test]
fn pub_and_sub_take_a_token() {
    let server = Server::with(&format!("[access]\n{}", key_settings()));
    let (url, valid_token) = (server.url(""), token(everything()));
    let error = refused(crore(&["pub", "doors/a", "x", "--server", &url], ""));
    assert!(error.contains("401"), "{error}");
    succeed(crore(
        &[
            "pub",
            "doors/a",
            "hello",
            "--server",
            &url,
            "--token",
            &valid_token,
        ],
        "",
    ));
    for protocol in ["sse", "ws", "poll"] {
        let args = [
            "sub",
            "doors/a",
            "--server",
            &url,
            "--token",
            &valid_token,
            "--count",
            "1",
            "--since",
            "oldest",
            "--protocol",
            protocol,
        ];
        assert_eq!(succeed(crore(&args, "")).trim(), "hello", "{protocol}");
    }
}
