//! Tests keys that the server fetches from a URL. An HTTP server in this file takes the part of the issuer, which changes its keys, fails,
//! and redirects.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rcgen::{KeyPair, PublicKeyData};
use serde_json::{Value, json};

use crate::key_files::{publish, refusal};
use crate::support::{Server, until};
use crate::tokens::everything;

/// An issuer of tokens. It gives every request the same answer, and counts the requests.
#[derive(Default)]
struct Issuer {
    state: Mutex<(String, u32)>,
}

impl Issuer {
    /// Starts the issuer with this answer. Returns its URL.
    fn start(answer: String) -> (Arc<Issuer>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let issuer = Arc::new(Issuer::default());
        issuer.answers(answer);
        let shared = Arc::clone(&issuer);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let _ = shared.serve(stream);
            }
        });
        (issuer, format!("http://127.0.0.1:{port}/jwks.json"))
    }

    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let answer = {
            let mut state = self.state.lock().expect("nobody panics");
            state.1 += 1;
            state.0.clone()
        };
        stream.write_all(answer.as_bytes())
    }

    fn answers(&self, answer: String) {
        self.state.lock().expect("nobody panics").0 = answer;
    }

    fn request_count(&self) -> u32 {
        self.state.lock().expect("nobody panics").1
    }
}

fn answer(status: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
}

fn key_set(keys: &[&Value]) -> String {
    answer("200 OK", &json!({ "keys": keys }).to_string())
}

/// A key for ES256 with this `kid`: the public half that the issuer publishes, and the half that signs.
fn key(kid: &str) -> (Value, EncodingKey) {
    let pair = KeyPair::generate().expect("a key");
    let (x, y) = pair.der_bytes()[1..].split_at(32);
    let [x, y] = [x, y].map(|coordinate| URL_SAFE_NO_PAD.encode(coordinate));
    let jwk = json!({"kty": "EC", "crv": "P-256", "kid": kid, "x": x, "y": y});
    let signs = EncodingKey::from_ec_pem(pair.serialize_pem().as_bytes()).expect("a key");
    (jwk, signs)
}

/// A token with a number, so that the server has not seen it before and remembers no verdict on it.
fn token(kid: &str, key: &EncodingKey, number: u32) -> String {
    let mut header = Header::new(Algorithm::ES256);
    header.kid = Some(kid.to_string());
    let mut claims = everything();
    claims["number"] = json!(number);
    encode(&header, &claims, key).expect("a token")
}

fn settings(url: &str) -> String {
    format!("[access]\n[[access.key]]\nurl = '{url}'\n")
}

#[test]
fn new_key_is_fetched_once_and_unknown_key_ids_cause_no_further_fetch() {
    let (old, signs_old) = key("old");
    let (new, signs_new) = key("new");
    let (issuer, url) = Issuer::start(key_set(&[&old]));
    let server = Server::with(&settings(&url));
    assert_eq!(publish(&server, &token("old", &signs_old, 0)), 202);
    assert_eq!(issuer.request_count(), 1, "the set is kept");
    issuer.answers(key_set(&[&new]));
    assert_eq!(publish(&server, &token("new", &signs_new, 0)), 202);
    assert_eq!(issuer.request_count(), 2);
    let started = Instant::now();
    for number in 0..20 {
        let made_up = format!("made-up-{number}");
        assert_eq!(publish(&server, &token(&made_up, &signs_new, 0)), 401);
    }
    // For unknown kids the server fetches the set at most once in ten seconds.
    let allowed = 2 + started.elapsed().as_secs() / 10;
    assert!(
        u64::from(issuer.request_count()) <= allowed,
        "{}",
        issuer.request_count()
    );
    let withdrawn = token("old", &signs_old, 1);
    assert_eq!(publish(&server, &withdrawn), 401, "the set has it no more");
}

#[test]
fn keys_stay_in_use_while_the_issuer_fails_and_unknown_ones_are_503() {
    let (known, signs) = key("known");
    let (_, stranger) = key("stranger");
    for (failure, log_text) in [
        (answer("500 Oops", "{}"), "it answers with status 500"),
        (answer("200 OK", "<html>"), "is no JWKS"),
        (
            "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/x\r\nContent-Length: 0\r\n\r\n"
                .to_string(),
            "redirects are not followed",
        ),
        (String::new(), "closed the connection"),
    ] {
        let (issuer, url) = Issuer::start(key_set(&[&known]));
        let server = Server::with_admin(&settings(&url));
        assert_eq!(publish(&server, &token("known", &signs, 0)), 202);
        issuer.answers(failure);
        let unknown = token("unknown", &stranger, 0);
        assert_eq!(publish(&server, &unknown), 503, "{log_text}");
        assert_eq!(
            publish(&server, &token("known", &signs, 1)),
            202,
            "{log_text}"
        );
        server.await_log(log_text);
        crate::reload::reload(&server, &settings(&url));
        until("a fetch after the reload", || issuer.request_count() >= 3);
        assert_eq!(
            publish(&server, &token("known", &signs, 2)),
            202,
            "{log_text}"
        );
    }
}

#[test]
fn server_starts_without_the_issuer_and_answers_503() {
    let (_, signs) = key("known");
    let (issuer, url) = Issuer::start(answer("503 Later", ""));
    let server = Server::with(&settings(&url));
    until("the first fetch", || issuer.request_count() == 1);
    assert_eq!(publish(&server, &token("known", &signs, 0)), 503);
}

#[test]
fn secret_of_a_url_signs_nothing() {
    let (known, _) = key("known");
    let secret: [u8; 32] = std::array::from_fn(|n| (n * 37 + 11) as u8);
    let oct = json!({"kty": "oct", "kid": "s", "k": URL_SAFE_NO_PAD.encode(secret)});
    let (_issuer, url) = Issuer::start(key_set(&[&known, &oct]));
    let server = Server::with(&settings(&url));
    let mut header = Header::new(Algorithm::HS256);
    header.kid = Some("s".to_string());
    let signs = EncodingKey::from_secret(&secret);
    let token = encode(&header, &everything(), &signs).expect("a token");
    assert_eq!(publish(&server, &token), 401);
}

#[test]
fn key_has_one_source_and_a_url_of_http() {
    for (entry, expected_text) in [
        ("url = 'ftp://issuer/x'", "access.key[1].url"),
        ("url = 'http://i/x'\nfile = 'x.pem'", "write one of `file`"),
        ("url = 'http://i/x'\nca = 'x.pem'", "write https://"),
        ("url = 'http://i/x'\nalg = 'HS256'", "access.key[1].alg"),
        ("url = 'http://i/x'\nalg = 'none'", "`none` is not offered"),
        ("url = 'http://i/x'\nrefresh_s = 1", "refresh_s"),
    ] {
        let refused = refusal(&format!("[access]\n[[access.key]]\n{entry}\n"));
        let refused = refused.expect("it is refused");
        assert!(refused.contains(expected_text), "{entry}: {refused}");
    }
    assert_eq!(refusal(&settings("http://127.0.0.1:1/jwks")), None);
}
