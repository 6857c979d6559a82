//! Tests the access callback: an HTTP server of the operator that decides about credentials. An HTTP server in this file takes its part. It
//! grants, refuses, and fails in every way.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::Value;

use crate::reload::reload;
use crate::support::http::{Conn, once};
use crate::support::{Server, connect_from, until};

/// The operator's HTTP server. It counts its requests, and can delay its answers.
#[derive(Default)]
struct Endpoint {
    request_count: AtomicU32,
    is_held: Mutex<bool>,
    let_go: Condvar,
}

/// A long timeout of the answer, since a machine that runs other tests may be slow.
const PATIENT: &str = "timeout_s = 30\n";

impl Endpoint {
    /// Starts the endpoint. Returns it with the settings for it, which end with `extra_settings`.
    fn start(extra_settings: &str) -> (Arc<Endpoint>, String) {
        let (endpoint, port) = Endpoint::listen(None);
        let url = format!("http://127.0.0.1:{port}/auth");
        let settings =
            format!("[access]\n[access.callback]\nurl = '{url}'\n{PATIENT}{extra_settings}");
        (endpoint, settings)
    }

    /// Starts the endpoint on a port of 127.0.0.1, with TLS if a configuration is given.
    fn listen(tls: Option<Arc<ServerConfig>>) -> (Arc<Endpoint>, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let endpoint = Arc::new(Endpoint::default());
        let shared = Arc::clone(&endpoint);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (endpoint, tls) = (Arc::clone(&shared), tls.clone());
                thread::spawn(move || match tls {
                    None => endpoint.serve(stream),
                    Some(tls) => {
                        let greeted = ServerConnection::new(tls).expect("settings that fit");
                        endpoint.serve(StreamOwned::new(greeted, stream))
                    }
                });
            }
        });
        (endpoint, port)
    }

    /// Answers the questions of a connection one after another. The credential in a question selects the answer.
    fn serve(&self, mut stream: impl Read + Write) -> Option<()> {
        let mut bytes = Vec::new();
        loop {
            let request = next_question(&mut stream, &mut bytes)?;
            self.request_count.fetch_add(1, Ordering::SeqCst);
            let mut is_held = self.is_held.lock().expect("nobody panics");
            while *is_held {
                is_held = self.let_go.wait(is_held).expect("nobody panics");
            }
            drop(is_held);
            let word = request
                .get("token")
                .or(request.get("password"))
                .and_then(Value::as_str)
                .expect("a credential");
            match word {
                "closes" => return None,
                // Sends nothing until the server closes the connection.
                _ if word.starts_with("silence") => return stream.read(&mut [0]).ok().map(drop),
                _ => {}
            }
            if let Some(answer) = odd_answer(word) {
                stream.write_all(&answer).ok()?;
                continue;
            }
            let (status, body) = answer(word);
            let length = body.len();
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}");
            stream.write_all(answer.as_bytes()).ok()?;
        }
    }

    fn hold(&self, hold: bool) {
        *self.is_held.lock().expect("nobody panics") = hold;
        self.let_go.notify_all();
    }

    fn request_count(&self) -> u32 {
        self.request_count.load(Ordering::SeqCst)
    }

    fn await_asked(&self) {
        until("a question", || self.request_count() > 0);
    }
}

/// The endpoint's answer to a credential: the status and the body.
fn answer(word: &str) -> (&'static str, String) {
    match word {
        "yes" => (
            "200 OK",
            r#"{"allow": true, "user": "ann", "publish": ["doors/#"]}"#.to_string(),
        ),
        "no cache" => (
            "200 OK",
            r#"{"allow": true, "publish": "doors/#", "cache_s": 0}"#.to_string(),
        ),
        "no" => (
            "200 OK",
            r#"{"allow": false, "publish": ["doors/#"]}"#.to_string(),
        ),
        "silent no" => ("200 OK", r#"{"publish": ["doors/#"]}"#.to_string()),
        "true as text" => (
            "200 OK",
            r#"{"allow": "true", "publish": ["doors/#"]}"#.to_string(),
        ),
        "403" => (
            "403 Forbidden",
            r#"{"allow": true, "publish": ["doors/#"]}"#.to_string(),
        ),
        "401" => ("401 Unauthorized", String::new()),
        "500" => (
            "500 Oops",
            r#"{"allow": true, "publish": ["doors/#"]}"#.to_string(),
        ),
        "redirect" => (
            "302 Found",
            r#"{"allow": true, "publish": ["doors/#"]}"#.to_string(),
        ),
        "garbage" => ("200 OK", "yes!".to_string()),
        "bad claims" => ("200 OK", r#"{"allow": true, "publish": 7}"#.to_string()),
        "long" => (
            "200 OK",
            format!(
                r#"{{"allow": true, "publish": "doors/#", "pad": "{}"}}"#,
                "p".repeat(70_000)
            ),
        ),
        "over" => (
            "200 OK",
            r#"{"allow": true, "publish": "doors/#", "expires": 1}"#.to_string(),
        ),
        // Any other credential is itself the body of the answer.
        other_root => ("200 OK", other_root.to_string()),
    }
}

/// Answers with unusual heads: bytes that are not ASCII, a folded field, a content coding. `None` for other words.
fn odd_answer(word: &str) -> Option<Vec<u8>> {
    let yes = &br#"{"allow": true, "publish": ["doors/#"]}"#[..];
    let response = |status: &[u8], field: &[u8], body: &[u8]| {
        let head = [b"HTTP/1.1 ", status, b"\r\n", field].concat();
        let length = format!("\r\nContent-Length: {}\r\n\r\n", body.len());
        Some([&head[..], length.as_bytes(), body].concat())
    };
    match word {
        "Latin-1 in the reason" => response(b"401 Non autoris\xe9", b"A: b", b""),
        "Latin-1 in a field" => response(b"200 OK", b"Server: Caf\xe9", yes),
        "a folded field" => response(b"200 OK", b"A: b\r\n c\r\n\td", yes),
        "gzip" => response(b"200 OK", b"Content-Encoding: gzip", b"\x1f\x8b\x08\x00"),
        _ => None,
    }
}

/// Reads the next question of a connection. `bytes` are the bytes that were read before.
fn next_question(stream: &mut impl Read, bytes: &mut Vec<u8>) -> Option<Value> {
    loop {
        if let Some(request) = take_body(bytes) {
            return Some(request);
        }
        let mut buffer = [0; 1024];
        let len = stream.read(&mut buffer).ok().filter(|len| *len > 0)?;
        bytes.extend_from_slice(&buffer[..len]);
    }
}

/// Removes the first request from `bytes`, and returns its body. `None` if the request is incomplete.
fn take_body(bytes: &mut Vec<u8>) -> Option<Value> {
    let text = String::from_utf8_lossy(bytes).to_string();
    let (head, _) = text.split_once("\r\n\r\n")?;
    assert!(head.starts_with("POST /auth HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("\r\nAccept-Encoding: identity\r\n"), "{head}");
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "))?;
    let end = head.len() + 4 + length.parse::<usize>().expect("a length");
    let body = bytes.get(head.len() + 4..end)?.to_vec();
    bytes.drain(..end);
    Some(serde_json::from_slice(&body).expect("JSON"))
}

fn publish(server: &Server, authorization: &str) -> u16 {
    once(
        server,
        "POST",
        "/pub/doors/callback",
        &[("Authorization", authorization)],
        "x",
    )
    .status
}

#[test]
fn client_is_accepted_only_by_a_clear_grant_of_the_callback() {
    let (_, settings) = Endpoint::start("");
    let impatient = Server::with(&settings.replace(PATIENT, "timeout_s = 1\n"));
    assert_eq!(publish(&impatient, "Bearer silence"), 503);
    let server = Server::with(&settings);
    let table = [
        ("yes", 202),
        ("no", 401),
        ("silent no", 401),
        ("true as text", 503),
        ("403", 401),
        ("401", 401),
        ("bad claims", 503),
        ("over", 401),
        ("500", 503),
        ("redirect", 503),
        ("garbage", 503),
        ("Latin-1 in the reason", 401),
        ("Latin-1 in a field", 202),
        ("a folded field", 202),
        ("long", 503),
        ("closes", 503),
        ("yes", 202),
    ];
    for (word, expected) in table {
        let authorization = format!("Basic {}", STANDARD.encode(format!("who:{word}")));
        assert_eq!(publish(&server, &authorization), expected, "{word}");
    }
    assert_eq!(
        publish(&server, "Bearer yes"),
        202,
        "a token of no form that we know"
    );
    let outside = once(
        &server,
        "POST",
        "/pub/elsewhere",
        &[("Authorization", "Bearer yes")],
        "x",
    );
    assert_eq!(outside.status, 403, "it grants what it says and no more");
    let log = server.log();
    assert!(
        log.contains("access.callback"),
        "the operator is told: {log}"
    );
}

#[test]
fn null_and_unknown_members_of_an_answer_are_ignored() {
    let (_, settings) = Endpoint::start("");
    let server = Server::with(&settings);
    for (number, members) in [
        r#""user": null"#,
        r#""subscribe": null, "manage": null, "info": null, "interest": null"#,
        r#""expires": null"#,
        r#""cache_s": null"#,
        r#""expires": 4000000000.5, "cache_s": 1.5"#,
        r#""reason": {"a": [1]}, "result": "ok", "sub": 7, "publishes": false"#,
    ]
    .into_iter()
    .enumerate()
    {
        let answer =
            format!(r#"{{"allow": true, "n": {number}, "publish": ["doors/#"], {members}}}"#);
        for answer in [answer.clone(), format!("\u{feff}{answer}")] {
            let authorization = format!("Basic {}", STANDARD.encode(format!("who:{answer}")));
            assert_eq!(publish(&server, &authorization), 202, "{answer}");
        }
    }
    for no in [r#"{"allow": null}"#, "{}", r#"{"result": "deny"}"#] {
        let authorization = format!("Basic {}", STANDARD.encode(format!("who:{no}")));
        assert_eq!(publish(&server, &authorization), 401, "{no}");
    }
    server.await_log("its answer has no `allow`");
    let null = r#"{"allow": true, "publish": null}"#;
    let authorization = format!("Basic {}", STANDARD.encode(format!("who:{null}")));
    assert_eq!(publish(&server, &authorization), 403, "it grants nothing");
}

#[test]
fn a_malformed_answer_is_503_and_the_log_names_its_member() {
    let (_, settings) = Endpoint::start("");
    let server = Server::with(&settings);
    for (members, members_named) in [
        (r#""allow": "true""#, "`allow` is text"),
        (r#""allow": 1"#, "`allow` is a number"),
        (
            r#""allow": true, "expires": "tomorrow""#,
            "`expires` is text",
        ),
        (
            r#""allow": true, "expires": -1"#,
            "`expires` is less than 0",
        ),
        (r#""allow": true, "cache_s": "60""#, "`cache_s` is text"),
        (
            r#""allow": true, "cache_s": true"#,
            "`cache_s` is true or false",
        ),
        (r#""allow": true, "user": 7"#, "`user` is a number"),
        (
            r##""allow": true, "user": ["ann"], "publish": "#""##,
            "`user` is a list",
        ),
        (r#""allow": true, "publish": ["a#"]"#, "in `publish`: "),
        (
            r#""allow": true, "subscribe": [null]"#,
            "`subscribe[0]` is null",
        ),
        (
            r#""allow": true, "interest": {"a": true}"#,
            "`interest` is an object",
        ),
    ] {
        let answer = format!("{{{members}}}");
        let authorization = format!("Basic {}", STANDARD.encode(format!("who:{answer}")));
        assert_eq!(publish(&server, &authorization), 503, "{answer}");
        server.await_log(&format!("malformed: {members_named}"));
    }
    let log = server.log();
    assert!(!log.contains("the token's claims"), "{log}");
}

#[test]
fn unreadable_answer_is_503_and_the_log_says_why() {
    let (_, settings) = Endpoint::start("");
    let server = Server::with(&settings);
    for (answer, members_named) in [
        ("gzip", "it has the content coding `gzip`"),
        ("[]", "it is a list, not an object"),
        ("\"my secret\"", "it is text, not an object"),
        (
            "{\"allow\": true, \"expires\": 1e400}",
            "it is no JSON: number out of range at line 1 column 32",
        ),
        ("{\"allow\":\n true oops", "at line 2 column 7"),
    ] {
        let authorization = format!("Basic {}", STANDARD.encode(format!("who:{answer}")));
        assert_eq!(publish(&server, &authorization), 503, "{answer}");
        server.await_log(members_named);
    }
    assert!(!server.log().contains("my secret"), "{}", server.log());
}

#[test]
fn no_client_is_accepted_while_the_callback_is_unreachable() {
    // Nobody listens on port 1, since the kernel does not choose it. The kernel may give a port that was bound and dropped to the server
    // of another test.
    let server = Server::with("[access.callback]\nurl = 'http://127.0.0.1:1/auth'\n");
    assert_eq!(publish(&server, "Bearer yes"), 503);
    assert_eq!(
        once(&server, "POST", "/pub/doors/callback", &[], "x").status,
        401
    );
}

#[test]
fn callback_is_asked_once_for_all_waiting_requests_and_again_when_its_answer_expires() {
    let (endpoint, settings) = Endpoint::start("concurrency = 4\n");
    let server = Server::with(&settings);
    endpoint.hold(true);
    let mut clients: Vec<Conn> = (0..20).map(|_| Conn::open(&server)).collect();
    for client in &mut clients {
        client.ask(
            "POST",
            "/pub/doors/callback",
            &[("Authorization", "Bearer yes")],
            "x",
        );
    }
    endpoint.await_asked();
    endpoint.hold(false);
    for client in &mut clients {
        assert_eq!(client.response().status, 202);
    }
    assert_eq!(publish(&server, "Bearer yes"), 202);
    assert_eq!(
        endpoint.request_count(),
        1,
        "one flight, and then what is remembered"
    );
    for _ in 0..3 {
        assert_eq!(publish(&server, "Bearer no cache"), 202);
    }
    assert_eq!(
        endpoint.request_count(),
        4,
        "what it says may not be kept is not"
    );
}

#[test]
fn one_address_cannot_hold_all_requests_to_the_callback() {
    let (endpoint, settings) = Endpoint::start("concurrency = 2\n");
    let server = Server::with(&settings);
    let mut storm: Vec<Conn> = (0..4)
        .map(|_| Conn::from_stream(connect_from(2, server.address()), &server))
        .collect();
    for (n, conn) in storm.iter_mut().enumerate() {
        let authorization = format!("Bearer silence {n}");
        let headers = [("Authorization", authorization.as_str())];
        conn.ask("POST", "/pub/doors/callback", &headers, "x");
    }
    endpoint.await_asked();
    assert_eq!(publish(&server, "Bearer yes"), 202);
    assert_eq!(endpoint.request_count(), 2, "one for each address");
}

#[test]
fn request_after_a_reload_gets_no_answer_of_the_former_settings() {
    let (former, settings) = Endpoint::start("");
    let server = Server::with_admin(&settings);
    former.hold(true);
    let mut early_client = Conn::open(&server);
    let authorization = [("Authorization", "Bearer yes")];
    early_client.ask("POST", "/pub/doors/callback", &authorization, "x");
    former.await_asked();
    let (new, settings) = Endpoint::start("");
    reload(&server, &settings);
    // The endpoint of the former settings has not answered yet.
    assert_eq!(publish(&server, "Bearer yes"), 202);
    assert_eq!((former.request_count(), new.request_count()), (1, 1));
    former.hold(false);
    assert_eq!(
        early_client.response().status,
        202,
        "it is answered all the same"
    );
    assert_eq!(publish(&server, "Bearer yes"), 202);
    assert_eq!(
        (former.request_count(), new.request_count()),
        (1, 1),
        "what the new one said holds"
    );
}

/// A server certificate for this name, and the file with the certificate, which is also its own root.
fn certificate(name: &str, file: &str) -> (Arc<ServerConfig>, PathBuf) {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed([name.to_string()]).expect("a certificate");
    let path = std::env::temp_dir().join(format!("crore-callback-{}-{file}", std::process::id()));
    std::fs::write(&path, cert.pem()).expect("a file");
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key);
    (Arc::new(config.expect("they fit")), path)
}

#[test]
fn callback_over_tls_is_asked_only_if_its_certificate_is_valid() {
    let (tls, root) = certificate("localhost", "good.pem");
    let (_, other_root) = certificate("localhost", "other.pem");
    let (endpoint, port) = Endpoint::listen(Some(tls));
    let settings_with = |host: &str, ca: Option<&PathBuf>| {
        let ca = ca.map_or(String::new(), |ca| format!("ca = '{}'\n", ca.display()));
        let url = format!("https://{host}:{port}/auth");
        Server::with(&format!("[access.callback]\nurl = '{url}'\n{PATIENT}{ca}"))
    };
    let server = settings_with("localhost", Some(&root));
    assert_eq!(publish(&server, "Bearer yes"), 202);
    assert_eq!(publish(&server, "Bearer no"), 401);
    assert_eq!(publish(&server, "Bearer no cache"), 202);
    assert_eq!(publish(&server, "Bearer closes"), 503);
    assert_eq!(publish(&server, "Bearer no cache"), 202);
    let request = endpoint.request_count();
    let cases = [
        (
            settings_with("localhost", Some(&other_root)),
            "access.callback.ca",
        ),
        // This host trusts no root that signed the certificate.
        (settings_with("localhost", None), "access.callback.ca"),
        (
            settings_with("127.0.0.1", Some(&root)),
            "use one of the names in its certificate",
        ),
    ];
    for (server, remedy) in cases {
        assert_eq!(publish(&server, "Bearer yes"), 503);
        let log_line = format!(":{port}/auth: TLS with ");
        server.await_log(&log_line);
        server.await_log(remedy);
    }
    assert_eq!(
        endpoint.request_count(),
        request,
        "nobody learns a credential who is not trusted"
    );
    for file in [root, other_root] {
        std::fs::remove_file(file).expect("it was written");
    }
}

#[test]
fn callback_without_a_tls_handshake_times_out() {
    // The kernel accepts connections to this port, and no program reads from them.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("an address").port();
    let (_, root) = certificate("localhost", "silent.pem");
    let server = Server::with(&format!(
        "[access.callback]\nurl = 'https://localhost:{port}/auth'\ntimeout_s = 1\nca = '{}'\n",
        root.display()
    ));
    assert_eq!(publish(&server, "Bearer yes"), 503);
    std::fs::remove_file(root).expect("it was written");
}
