//! Tests key files: which the server reads, which it refuses at its start, and that it never uses a public key as a secret.

use std::path::PathBuf;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rcgen::{
    CertificateParams, DnType, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384,
    PKCS_ED25519, PKCS_RSA_SHA256, PublicKeyData,
};
use serde_json::{Value, json};

use crate::support::http::once;
use crate::support::program::output;
use crate::support::{Server, program};
use crate::tokens::{SECRET, everything};

/// Writes a file with a name that no other test uses.
pub fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let thread = std::thread::current();
    let test = thread.name().expect("a test").replace("::", "-");
    let name = format!("keys-{}-{test}-{name}", std::process::id());
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, bytes).expect("a file");
    path
}

/// Runs `openssl` with this input, and returns its output.
fn openssl(args: &[&str], input: &[u8]) -> Vec<u8> {
    let path = file("openssl-input", input);
    let mut command = Command::new("openssl");
    let output = output(
        command
            .args(args)
            .args(["-in", &path.display().to_string()]),
    );
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "openssl {args:?}: {complaint}");
    output.stdout
}

/// The error of a server that is started with these settings. `None` if the server starts.
pub fn refusal(settings: &str) -> Option<String> {
    let config = file("refusal.toml", settings.as_bytes());
    let mut command = Command::new(program());
    let output = output(command.args(["serve", "--check", "--config"]).arg(config));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    (!output.status.success()).then_some(error)
}

pub fn of_file(alg: &str, bytes: &[u8]) -> String {
    let path = file("key", bytes);
    let alg = match alg {
        "" => String::new(),
        alg => format!("alg = '{alg}'\n"),
    };
    format!(
        "[access]\n[[access.key]]\n{alg}file = '{}'\n",
        path.display()
    )
}

/// Publishes with this token. Returns the status.
pub fn publish(server: &Server, token: &str) -> u16 {
    let authorization = format!("Bearer {token}");
    let headers = [("Authorization", authorization.as_str())];
    once(server, "POST", "/pub/doors/keys", &headers, "x").status
}

pub fn signed(algorithm: Algorithm, key: &EncodingKey) -> String {
    encode(&Header::new(algorithm), &everything(), key).expect("a token")
}

/// A self-signed certificate of this key, as PEM.
fn certificate(key: &KeyPair, name: &str) -> String {
    let mut params = CertificateParams::new([]).expect("no names");
    params.distinguished_name.push(DnType::CommonName, name);
    params.self_signed(key).expect("a certificate").pem()
}

/// The result of `crore token mint` with this file as its key.
fn mint(name: &str, bytes: &[u8]) -> Result<String, String> {
    let path = file(name, bytes);
    let mut command = Command::new(program());
    let output = output(
        command
            .args(["token", "mint", "--publish", "doors/#", "--key"])
            .arg(path),
    );
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    match output.status.success() {
        true => Ok(text(output.stdout)),
        false => Err(text(output.stderr)),
    }
}

#[test]
fn public_key_is_read_with_any_text_around_it() {
    let pair = KeyPair::generate().expect("a key");
    let signs = EncodingKey::from_ec_pem(pair.serialize_pem().as_bytes()).expect("a key");
    let token = signed(Algorithm::ES256, &signs);
    let public = pair.public_key_pem();
    let certificate_text = certificate(&pair, "issuer");
    let described = openssl(&["x509", "-text"], certificate_text.as_bytes());
    for bytes in [
        public.clone().into_bytes(),
        format!("# of 2026\n{public}").into_bytes(),
        format!("\u{feff}{public}").into_bytes(),
        public.replace('\n', "\r\n").into_bytes(),
        certificate_text.clone().into_bytes(),
        described,
        // The certificate followed by a second one (of its issuer), as `openssl pkcs12 -nokeys` writes them.
        format!("Bag Attributes\n{certificate_text}{certificate_text}").into_bytes(),
    ] {
        let server = Server::with(&of_file("ES256", &bytes));
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(publish(&server, &token), 202, "{text}");
    }
    let rsa = KeyPair::generate_for(&PKCS_RSA_SHA256).expect("a key");
    let signs = EncodingKey::from_rsa_pem(rsa.serialize_pem().as_bytes()).expect("a key");
    let token = signed(Algorithm::RS256, &signs);
    let pkcs1 = openssl(
        &["rsa", "-pubin", "-RSAPublicKey_out"],
        rsa.public_key_pem().as_bytes(),
    );
    for bytes in [rsa.public_key_pem().into_bytes(), pkcs1] {
        let server = Server::with(&of_file("RS256", &bytes));
        assert_eq!(publish(&server, &token), 202);
    }
    let ed = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
    let signs = EncodingKey::from_ed_pem(ed.serialize_pem().as_bytes()).expect("a key");
    let server = Server::with(&of_file("EdDSA", ed.public_key_pem().as_bytes()));
    assert_eq!(publish(&server, &signed(Algorithm::EdDSA, &signs)), 202);
}

#[test]
fn a_public_key_that_could_verify_nothing_is_refused_at_the_start() {
    let pair = KeyPair::generate().expect("a key");
    let other = KeyPair::generate().expect("a key");
    let wide = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).expect("a key");
    let rsa = KeyPair::generate_for(&PKCS_RSA_SHA256).expect("a key");
    let mut command = Command::new("openssl");
    let small = output(command.args(["genrsa", "1024"])).stdout;
    let small = openssl(&["rsa", "-pubout"], &small);
    let public = pair.public_key_pem();
    let second = format!("line {}: is a second key", public.lines().count() + 1);
    for (alg, bytes, words) in [
        (
            "ES256",
            format!("{public}{}", other.public_key_pem()).into_bytes(),
            [&second[..], "[[access.key]]"],
        ),
        (
            "ES256",
            format!("{}{}", certificate(&pair, "a"), certificate(&other, "b")).into_bytes(),
            ["is a second key", "after that of line 1"],
        ),
        (
            "ES256",
            wide.public_key_pem().into_bytes(),
            ["line 1: is no public key for ES256", "P-256"],
        ),
        (
            "ES256",
            rsa.public_key_pem().into_bytes(),
            ["line 1: is no public key for ES256", "P-256"],
        ),
        (
            "EdDSA",
            public.clone().into_bytes(),
            ["line 1: is no public key for EdDSA", "Ed25519"],
        ),
        ("RS256", small, ["1024 bits", "2048 to 8192"]),
        (
            "ES256",
            pair.serialize_pem().into_bytes(),
            ["line 1: is a private key", "openssl pkey"],
        ),
        (
            "ES256",
            pair.subject_public_key_info(),
            ["in DER", "openssl pkey -pubin"],
        ),
        (
            "ES256",
            format!("{public}{public}")
                .replace("-----END PUBLIC KEY-----\n", "")
                .into_bytes(),
            ["line 1: PUBLIC KEY", "no end"],
        ),
    ] {
        let error = refusal(&of_file(alg, &bytes)).unwrap_or_default();
        for word in ["access.key[1].file"].iter().chain(&words) {
            assert!(error.contains(word), "{alg}, {word}: {error}");
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Each byte in hex, between the texts `prefix` and `suffix`.
fn surrounded(bytes: &[u8], prefix: &str, suffix: &str) -> String {
    let pairs = bytes
        .iter()
        .map(|byte| format!("{prefix}{byte:02X}{suffix}"));
    pairs.collect()
}

/// The text in lines of 64 characters.
fn wrapped(text: &str) -> String {
    let lines = text.as_bytes().chunks(64).map(String::from_utf8_lossy);
    lines.map(|line| format!("{line}\n")).collect()
}

/// A form of a key file: the name of the form, and the bytes of the file.
type KeyForm = (&'static str, Vec<u8>);

fn key_form(name: &'static str, bytes: impl Into<Vec<u8>>) -> KeyForm {
    (name, bytes.into())
}

/// Forms of a public key that contain its DER encoding: PEM, DER, a certificate, and encodings of these.
fn forms_of_der(pair: &KeyPair) -> Vec<KeyForm> {
    let (spki, pem) = (pair.subject_public_key_info(), pair.public_key_pem());
    let certificate_text = certificate(pair, "issuer");
    let own_der = openssl(&["x509", "-outform", "DER"], certificate_text.as_bytes());
    let described = openssl(&["x509", "-text"], certificate_text.as_bytes());
    let base64 = STANDARD.encode(&spki);
    let wide: Vec<u8> = pem.encode_utf16().flat_map(u16::to_be_bytes).collect();
    vec![
        key_form("PEM", &pem[..]),
        key_form("PEM behind a comment", format!("# the issuer's\n{pem}")),
        key_form("PEM behind an empty line", format!("\n\n{pem}")),
        key_form("PEM behind a mark", format!("\u{feff}{pem}")),
        key_form("PEM, its hyphens gone", pem.replace("-----", "")),
        key_form("PEM in UTF-16", wide),
        key_form("PEM with line ends as text", pem.replace('\n', "\\n")),
        key_form("a certificate", certificate_text),
        key_form("a certificate described", described),
        key_form("DER", &spki[..]),
        key_form("DER and a line end", [&spki[..], b"\n"].concat()),
        key_form("a certificate in DER", &own_der[..]),
        key_form("base64", &base64[..]),
        key_form("base64 in lines", wrapped(&STANDARD.encode(&own_der))),
        key_form("base64 in words", wrapped(&base64).replace('\n', " ")),
        key_form("base64url", URL_SAFE_NO_PAD.encode(&spki)),
        key_form(
            "base64 behind a comment",
            format!("# the issuer's\n{}", wrapped(&base64)),
        ),
        key_form(
            "base64 behind a name",
            format!("v=DKIM1; k=rsa; p={base64}"),
        ),
        key_form("base64 of PEM", STANDARD.encode(&pem)),
        key_form("hex", hex(&spki)),
        key_form("hex in pairs", surrounded(&spki, "", ":")),
        key_form("hex behind 0x", format!("0x{}", hex(&spki))),
        key_form("hex in a list", surrounded(&spki, "0x", ", ")),
        key_form("hex in escapes", surrounded(&spki, "\\x", "")),
        key_form("hex of PEM", hex(pem.as_bytes())),
        key_form("hex of base64", hex(base64.as_bytes())),
        key_form("a private key", pair.serialize_pem()),
        key_form("a private key in DER", pair.serialize_der()),
    ]
}

/// Forms of a public key that are text.
fn forms_of_text(pair: &KeyPair) -> Vec<KeyForm> {
    let x = URL_SAFE_NO_PAD.encode(&pair.der_bytes()[..32]);
    let jwk = json!({"kty": "EC", "crv": "P-256", "x": x, "y": x});
    let jwks = json!({"keys": [jwk]});
    let xml = format!("<RSAKeyValue><Modulus>{x}</Modulus><Exponent>AQAB</Exponent></RSAKeyValue>");
    let minisign = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3";
    let pgp = [&[0x99, 0, 51, 4, 0x60, 0, 0, 0, 22, 9][..], &[7; 44]].concat();
    vec![
        key_form("JWK", jwk.to_string()),
        key_form("JWKS", jwks.to_string()),
        key_form("JWKS behind a comment", format!("// keys\n{jwks}")),
        key_form("XML", xml),
        key_form(
            "minisign",
            format!("untrusted comment: minisign public key\n{minisign}\n"),
        ),
        key_form("minisign's line", minisign),
        key_form("PGP", STANDARD.encode(&pgp)),
        key_form(
            "PGP's armour",
            format!(
                "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n{}",
                wrapped(&hex(&pgp))
            ),
        ),
    ]
}

/// Forms of a public key that only some kinds have.
fn forms_of_kind(kind: &str, pair: &KeyPair) -> Vec<KeyForm> {
    let mut forms_of_this_kind = Vec::new();
    let path = file("ssh", pair.public_key_pem().as_bytes());
    let mut command = Command::new("ssh-keygen");
    let ssh = output(command.args(["-i", "-m", "PKCS8", "-f"]).arg(path)).stdout;
    let line = String::from_utf8(ssh).expect("text");
    // The server does not read Ed25519 keys of OpenSSH.
    if let Some(blob) = line.split(' ').nth(1) {
        forms_of_this_kind.push(key_form("OpenSSH's base64", blob.trim()));
        forms_of_this_kind.push(key_form(
            "OpenSSH behind a comment",
            format!("# ann's\n{line}"),
        ));
        forms_of_this_kind.push(key_form("OpenSSH", line));
    }
    if kind == "EC" {
        let point = pair.der_bytes();
        forms_of_this_kind.push(key_form("a point in hex", hex(point)));
        forms_of_this_kind.push(key_form("a point in base64", STANDARD.encode(point)));
        forms_of_this_kind.push(key_form("a point", point));
    }
    forms_of_this_kind
}

/// All forms of a public key.
fn all_forms(kind: &str, pair: &KeyPair) -> Vec<KeyForm> {
    [
        forms_of_der(pair),
        forms_of_text(pair),
        forms_of_kind(kind, pair),
    ]
    .concat()
}

#[test]
fn a_public_key_is_refused_as_a_secret_in_every_form() {
    for (kind, algorithm) in [
        ("EC", &PKCS_ECDSA_P256_SHA256),
        ("RSA", &PKCS_RSA_SHA256),
        ("Ed25519", &PKCS_ED25519),
    ] {
        let pair = KeyPair::generate_for(algorithm).expect("a key");
        for (name, bytes) in all_forms(kind, &pair) {
            // A file that begins with a brace is a JWKS, whatever its alg says.
            let json = bytes.starts_with(b"{");
            if !json {
                let error = refusal(&of_file("HS256", &bytes)).unwrap_or_default();
                let is_named =
                    error.contains("access.key[1].file") && error.contains("HS256 takes a secret");
                assert!(is_named, "{kind}, file, {name}: {error}");
            }
            let Ok(text) = String::from_utf8(bytes.clone()) else {
                continue;
            };
            let text = Value::String(text.clone()).to_string();
            let inline = format!("[access]\n[[access.key]]\nalg = 'HS256'\nsecret = {text}\n");
            let error = refusal(&inline).unwrap_or_default();
            let is_named =
                error.contains("access.key[1].secret") && error.contains("HS256 takes a secret");
            assert!(is_named, "{kind}, secret, {name}: {error}");
            // The same bytes in the base64 of a JWKS.
            let jwk = json!({"kty": "oct", "kid": "a", "k": URL_SAFE_NO_PAD.encode(&bytes)});
            let set = json!({"keys": [jwk]}).to_string();
            let error = refusal(&of_file("", set.as_bytes())).unwrap_or_default();
            assert!(
                error.contains("the key \"a\": k is"),
                "{kind}, JWKS, {name}: {error}"
            );
        }
    }
}

#[test]
fn mint_refuses_a_key_of_another_kind_as_a_secret() {
    for (kind, algorithm) in [("EC", &PKCS_ECDSA_P256_SHA256), ("Ed25519", &PKCS_ED25519)] {
        let pair = KeyPair::generate_for(algorithm).expect("a key");
        for (name, bytes) in all_forms(kind, &pair) {
            let minted = mint("mint", &bytes);
            match name == "a private key" {
                true => assert!(minted.is_ok(), "{kind}, {name}: {minted:?}"),
                false => assert!(minted.is_err(), "{kind}, {name}: {minted:?}"),
            }
        }
    }
}

#[test]
fn a_private_key_signs_in_every_form_of_pem() {
    let alg = |minted: Result<String, String>| {
        let token = minted.expect("a token");
        let header = URL_SAFE_NO_PAD.decode(token.split('.').next().expect("a head"));
        let header: Value = serde_json::from_slice(&header.expect("base64")).expect("JSON");
        (
            header["alg"].as_str().expect("text").to_string(),
            token.trim().to_string(),
        )
    };
    for (algorithm, name, command) in [
        (&PKCS_ECDSA_P256_SHA256, "ES256", &["ec"][..]),
        (&PKCS_RSA_SHA256, "RS256", &["rsa", "-traditional"]),
        (&PKCS_ED25519, "EdDSA", &[]),
    ] {
        let pair = KeyPair::generate_for(algorithm).expect("a key");
        let key = pair.serialize_pem();
        let server = Server::with(&of_file(name, pair.public_key_pem().as_bytes()));
        // OpenSSL does not read this key in the form of RFC 5958, so the key is converted.
        let old_form = match name {
            "EdDSA" => key.clone(),
            _ => String::from_utf8(openssl(command, key.as_bytes())).expect("text"),
        };
        for text in [
            key.clone(),
            format!("Bag Attributes\n    localKeyID: 01\nKey Attributes: <No Attributes>\n{key}"),
            format!("\u{feff}{key}"),
            key.replace('\n', "\r\n"),
            format!("{}{key}", certificate(&pair, "a")),
            old_form.clone(),
            format!(
                "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n{old_form}"
            ),
        ] {
            let (alg, token) = alg(mint("sign", text.as_bytes()));
            assert_eq!(alg, name, "{text}");
            assert_eq!(publish(&server, &token), 202, "{text}");
        }
    }
    let key = KeyPair::generate().expect("a key").serialize_pem();
    let locked = openssl(&["pkcs8", "-topk8", "-passout", "pass:x"], key.as_bytes());
    let error = mint("locked", &locked).expect_err("it has a passphrase");
    let is_named = error.contains("line 1: ENCRYPTED PRIVATE KEY has a passphrase");
    assert!(is_named, "{error}");
}

#[test]
fn rsa_pss_key_is_refused_for_rs256_by_name() {
    let mut command = Command::new("openssl");
    let genpkey = command.args(["genpkey", "-algorithm", "RSA-PSS"]);
    let key = output(genpkey.args(["-pkeyopt", "rsa_keygen_bits:2048"])).stdout;
    let public = openssl(&["pkey", "-pubout"], &key);
    let error = refusal(&of_file("RS256", &public)).unwrap_or_default();
    let is_named =
        error.contains("access.key[1].file") && error.contains("line 1: is an RSA-PSS key");
    assert!(is_named, "{error}");
    let error = mint("pss", &key).expect_err("it signs with PS256 only");
    assert!(error.contains("is an RSA-PSS key"), "{error}");
}

#[test]
fn secret_file_with_windows_line_ends_is_equal_for_server_and_mint() {
    let marked = format!("\u{feff}{SECRET}\r\n");
    let server = Server::with(&of_file("HS256", marked.as_bytes()));
    assert_eq!(publish(&server, &crate::tokens::token(everything())), 202);
    let minted = mint("marked", marked.as_bytes()).expect("a token");
    assert_eq!(publish(&server, minted.trim()), 202);
    let wide: Vec<u8> = marked.encode_utf16().flat_map(u16::to_le_bytes).collect();
    for alg in ["HS256", ""] {
        let error = refusal(&of_file(alg, &wide)).unwrap_or_default();
        assert!(
            error.contains("access.key[1].file") && error.contains("UTF-16"),
            "{error}"
        );
    }
    let error = mint("wide", &wide).expect_err("UTF-16");
    assert!(error.contains("UTF-16"), "{error}");
    let error = mint("braces", br#"{"keys": [], "name": "no secret at all"}"#).expect_err("a JWKS");
    assert!(error.contains("reads it as a JWKS"), "{error}");
}

#[test]
fn secret_files_of_earlier_versions_are_still_accepted() {
    for secret in [
        "0123456789abcdef0123456789abcdef".to_string(),
        "correct horse battery staple, and then some more".to_string(),
        STANDARD.encode([7; 48]),
        "30".repeat(32),
        "{braces} are no JSON, and 32 bytes long".to_string(),
    ] {
        let text = Value::String(secret.clone());
        let settings = format!("[access]\n[[access.key]]\nalg = 'HS256'\nsecret = {text}\n");
        assert_eq!(refusal(&settings), None, "{secret}");
        // The server would read a file that begins with a brace as a JWKS, so `mint` refuses it.
        let minted = mint("secret", format!("{secret}\n").as_bytes());
        assert_eq!(minted.is_ok(), !secret.starts_with('{'), "{minted:?}");
    }
}
