//! Tests of NATS servers that authenticate their clients with TLS, an nkey or a credentials file. Each test also checks that a client
//! without the right credentials is refused.

use std::fs;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use crore_nats::{Credentials, Settings, Tls};
use nkeys::KeyPair;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa};
use serde_json::{Value, json};

use crate::node::{identity, refusal, settings, start_node};
use crate::servers::Servers;

const PAYLOAD: &str = "max_payload: 2MB";

/// A directory for one test, removed at its end.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let name = format!("crore-test-nats-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("a directory");
        Directory(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).expect("a file");
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Checks that a node with these settings can start, write batches and read them.
fn takes_part(settings: Settings) {
    let node = start_node(settings, identity()).expect("it begins");
    node.write(1, 1..=3);
    assert_eq!(node.count(0), 3);
}

#[track_caller]
fn assert_refused(settings: Settings, word: &str) {
    let text = refusal(settings, identity());
    assert!(text.contains(word), "{word:?} is not in: {text}");
}

#[test]
fn a_node_takes_part_over_tls_with_a_certificate_of_its_own() {
    let directory = Directory::new("tls");
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = || rcgen::KeyPair::generate().expect("a key");
    let ca = CertifiedIssuer::self_signed(params, key()).expect("an authority");
    let ca_file = directory.write("ca.pem", &ca.pem());
    let certificate = |name: &str, of: ExtendedKeyUsagePurpose| {
        let names = vec!["127.0.0.1".to_string()];
        let mut params = CertificateParams::new(names).expect("parameters");
        params.extended_key_usages = vec![of];
        let key = key();
        let certificate = params.signed_by(&key, &ca).expect("a certificate");
        (
            directory.write(&format!("{name}.pem"), &certificate.pem()),
            directory.write(&format!("{name}.key"), &key.serialize_pem()),
        )
    };
    let (chain, secret) = certificate("server", ExtendedKeyUsagePurpose::ServerAuth);
    let ours = certificate("client", ExtendedKeyUsagePurpose::ClientAuth);
    let tls = format!(
        "{PAYLOAD}\ntls {{ cert_file: {chain:?}, key_file: {secret:?}, ca_file: {ca_file:?}, verify: true }}"
    );
    let Some(servers) = Servers::with(1, "", &tls) else {
        return;
    };
    let with = |tls| Settings {
        urls: vec![servers.urls()[0].replace("nats://", "tls://")],
        tls,
        ..settings(&servers)
    };
    takes_part(with(Tls {
        ca: Some(ca_file.clone()),
        identity: Some(ours),
        required: true,
    }));
    assert_refused(with(Tls::default()), "cluster.tls_ca");
    let without_identity = Tls {
        ca: Some(ca_file),
        ..Tls::default()
    };
    assert_refused(with(without_identity), "cluster.tls_certificate");
}

#[test]
fn a_node_takes_part_with_an_nkey() {
    let (ours, other) = (KeyPair::new_user(), KeyPair::new_user());
    let users = format!(
        "{PAYLOAD}\nauthorization {{ users: [{{ nkey: {} }}] }}",
        ours.public_key()
    );
    let Some(servers) = Servers::with(1, "", &users) else {
        return;
    };
    let with = |key: &KeyPair| Settings {
        credentials: Credentials::Nkey(key.seed().expect("a seed")),
        ..settings(&servers)
    };
    takes_part(with(&ours));
    assert_refused(with(&other), "refuses our credentials");
}

/// A JWT of NATS: claims about `of`, signed by `by`.
fn token(by: &KeyPair, of: &KeyPair, name: &str, mut claims: Value) -> String {
    claims["version"] = json!(2);
    let claims = json!({
        "jti": name, "iat": 1_700_000_000, "iss": by.public_key(), "sub": of.public_key(), "name": name, "nats": claims,
    });
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let head = json!({ "typ": "JWT", "alg": "ed25519-nkey" });
    let text = format!("{}.{}", part(&head), part(&claims));
    let signature = by.sign(text.as_bytes()).expect("a signature");
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
}

#[test]
fn a_node_takes_part_with_a_credentials_file() {
    let directory = Directory::new("creds");
    let operator = KeyPair::new_operator();
    let (system, account) = (KeyPair::new_account(), KeyPair::new_account());
    let of_operator = token(
        &operator,
        &operator,
        "operator",
        json!({ "type": "operator" }),
    );
    let limits = |storage: i64| {
        json!({ "type": "account", "limits": {
            "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1,
            "mem_storage": storage, "disk_storage": storage, "streams": -1, "consumer": -1,
        } })
    };
    let of_system = token(&operator, &system, "system", limits(0));
    let of_account = token(&operator, &account, "crore", limits(-1));
    let trust = format!(
        "{PAYLOAD}\noperator: {of_operator}\nsystem_account: {system}\nresolver: MEMORY\nresolver_preload: {{ {system}: {of_system}, {account}: {of_account} }}",
        system = system.public_key(),
        account = account.public_key()
    );
    let Some(servers) = Servers::with(1, "", &trust) else {
        return;
    };
    let file = |by: &KeyPair, name: &str| {
        let user = KeyPair::new_user();
        let claims =
            json!({ "type": "user", "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1 });
        let text = format!(
            "-----BEGIN NATS USER JWT-----\n{}\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
            token(by, &user, name, claims),
            user.seed().expect("a seed")
        );
        directory.write(&format!("{name}.creds"), &text)
    };
    let with = |file| Settings {
        credentials: Credentials::File(file),
        ..settings(&servers)
    };
    takes_part(with(file(&account, "node")));
    let stranger = KeyPair::new_account();
    assert_refused(with(file(&stranger, "stranger")), "refuses our credentials");
}
