//! Tests files of certificates and keys, in every form in which programs and people write them. The server reads a file completely, or
//! refuses it with its name and line.

use std::process::Command;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};

use crate::support::program::output;
use crate::support::{Server, program};
use crate::tool::{Certificates, curl, file, run};

/// The output of `openssl` with these arguments and this input.
fn openssl(args: &[&str], input: &[u8]) -> Vec<u8> {
    let output = run("openssl", args, input);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "openssl {args:?}: {complaint}");
    output.stdout
}

/// A server certificate signed by an intermediate authority, as PEM: that certificate, the authority's, and the key.
fn chain(all: &Certificates) -> (String, String, String) {
    let mut params = CertificateParams::new([]).expect("no names");
    params
        .distinguished_name
        .push(DnType::CommonName, "Between");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let between = params.signed_by(&key, all.root()).expect("a certificate");
    let issuer = Issuer::new(params, key);
    let names = ["localhost", "127.0.0.1"].map(String::from);
    let mut params = CertificateParams::new(names).expect("names");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate().expect("a key");
    let leaf = params.signed_by(&key, &issuer).expect("a certificate");
    (leaf.pem(), between.pem(), key.serialize_pem())
}

/// The text with these line ends.
fn ended(text: &str, end: &str) -> String {
    text.lines().map(|line| format!("{line}{end}")).collect()
}

#[test]
fn every_block_is_read_however_the_file_is_laid_out() {
    let all = Certificates::new();
    let (leaf, between, key) = chain(&all);
    let sec1 = openssl(&["ec"], key.as_bytes());
    let sec1 = String::from_utf8(sec1).expect("text");
    let parameters = openssl(&["ecparam", "-name", "prime256v1"], b"");
    let parameters = String::from_utf8(parameters).expect("text");
    let described = openssl(&["x509", "-text"], leaf.as_bytes());
    let described = String::from_utf8_lossy(&described).into_owned();
    let one_line = |pem: &str| {
        let (begin, rest) = pem.trim().split_once('\n').expect("lines");
        let (base64, end) = rest.rsplit_once('\n').expect("lines");
        format!("{begin}{}{end}", base64.replace(['\r', '\n'], ""))
    };
    let both = format!("{leaf}{between}");
    let old = both.replace(" CERTIFICATE", " X509 CERTIFICATE");
    for (name, certificates, key) in [
        ("as they come", both.clone(), key.clone()),
        (
            "no line end between",
            format!("{}{}", leaf.trim_end(), between.trim_end()),
            sec1.clone(),
        ),
        (
            "text before",
            format!("# of 2026\n{described}Bag Attributes\n  friendlyName: a\n{between}"),
            format!("{parameters}{sec1}"),
        ),
        ("CR LF", ended(&both, "\r\n"), ended(&key, "\r\n")),
        ("CR", ended(&both, "\r"), ended(&key, "\r")),
        (
            "a byte order mark",
            format!("\u{feff}{both}"),
            format!("\u{feff}{key}"),
        ),
        ("spaces", ended(&both, " \t \n"), ended(&key, "  \n")),
        (
            "indented",
            both.lines().map(|line| format!("    {line}\n")).collect(),
            key.clone(),
        ),
        (
            "each on a line",
            format!("{} {}", one_line(&leaf), one_line(&between)),
            one_line(&key),
        ),
        ("an old label", old, key.clone()),
        (
            "key and certificates in one",
            format!("{key}{both}"),
            format!("{both}{key}"),
        ),
        (
            "a block commented out",
            format!(
                "{}{both}",
                ended(&leaf, "\n")
                    .replace("-----BEGIN", "# -----BEGIN")
                    .lines()
                    .map(|line| format!("#{line}\n"))
                    .collect::<String>()
            ),
            key.clone(),
        ),
    ] {
        file(&all, "server.pem", certificates.as_bytes());
        file(&all, "server.key", key.as_bytes());
        let server = Server::with(&all.settings(""));
        // curl knows only the root, so the server must send both certificates.
        curl(&server, &all, "/pub/a", &["-d", name]);
    }
}

/// A file that is refused: its name in the test, its bytes, the file name in the error, and words of the error.
type Bad = (&'static str, Vec<u8>, String, &'static str);

fn bad(
    name: &'static str,
    bytes: impl Into<Vec<u8>>,
    at: impl Into<String>,
    remedy: &'static str,
) -> Bad {
    (name, bytes.into(), at.into(), remedy)
}

/// Certificates in other encodings.
fn encodings(all: &Certificates, leaf: &str, key: &str) -> Vec<Bad> {
    let both = file(all, "both", leaf.as_bytes());
    let p7 = ["crl2pkcs7", "-nocrl", "-certfile", &both];
    let p7_der = [&p7[..], &["-outform", "DER"]].concat();
    let p12 = ["pkcs12", "-export", "-passout", "pass:x"];
    let p12 = openssl(&p12, format!("{key}{leaf}").as_bytes());
    let der = openssl(&["x509", "-outform", "DER"], leaf.as_bytes());
    let trusted = ["x509", "-trustout", "-addtrust", "serverAuth"];
    let trusted = openssl(&trusted, leaf.as_bytes());
    let second = format!("line {}: ", leaf.lines().count() + 1);
    let trusted_second = [leaf.as_bytes(), &trusted].concat();
    let wide: Vec<u8> = leaf.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let marked = [&[0xff, 0xfe][..], &wide].concat();
    let lines = leaf.lines().filter(|line| !line.starts_with('-'));
    let bare = lines.collect::<Vec<_>>().join("\n");
    let utf16 = "line 1: is text in UTF-16";
    vec![
        bad("DER", der, "in DER", "openssl x509 -inform DER"),
        bad("PKCS #12", p12, "PKCS #12", "openssl pkcs12 -in"),
        bad(
            "PKCS #7 in DER",
            openssl(&p7_der, b""),
            "PKCS #7",
            "openssl pkcs7 -inform DER",
        ),
        bad(
            "PKCS #7",
            openssl(&p7, b""),
            "line 1: PKCS7",
            "openssl pkcs7 -in",
        ),
        bad(
            "trust",
            trusted,
            "line 1: TRUSTED CERTIFICATE",
            "openssl x509 -in",
        ),
        bad(
            "trust in second place",
            trusted_second,
            second,
            "TRUSTED CERTIFICATE",
        ),
        bad("UTF-16 with a mark", marked, utf16, "iconv"),
        bad("UTF-16", wide, utf16, "iconv"),
        bad("base64 alone", bare, "only base64", "-----BEGIN"),
        bad("nothing", "", "is empty", "name a PEM file"),
    ]
}

/// Other PEM blocks, and lines that look like boundaries, after a valid certificate.
fn blocks(leaf: &str, key: &str) -> Vec<Bad> {
    let second = format!("line {}: ", leaf.lines().count() + 1);
    let behind = |name, text: &str, word| bad(name, format!("{leaf}{text}"), &second, word);
    let label = |label: &str| leaf.replace(" CERTIFICATE", label);
    let hyphens = |with: &str| leaf.replace("-----BEGIN", with);
    let quoted: String = leaf.lines().map(|line| format!("> {line}\n")).collect();
    let parts: Vec<&str> = leaf.lines().collect();
    let short = [parts[0], &parts[1][..32], parts[parts.len() - 1]].join("\n");
    let old_end = leaf.replace("END CERTIFICATE", "END PUBLIC KEY");
    let cut = &leaf[..leaf.len() / 2];
    let begun = "line 1: CERTIFICATE has no end";
    let key_found = "a private key (PKCS #8) (line 1)";
    vec![
        behind(
            "a request",
            &label(" CERTIFICATE REQUEST"),
            "CERTIFICATE REQUEST is a request",
        ),
        behind(
            "a revocation list",
            &label(" X509 CRL"),
            "X509 CRL is a revocation list",
        ),
        behind(
            "an unknown block",
            &label(" PIGEON"),
            "PIGEON is nothing that is read",
        ),
        behind(
            "dashes of a word processor",
            &hyphens("\u{2014}BEGIN"),
            "five hyphens",
        ),
        behind("four hyphens", &hyphens("----BEGIN"), "five hyphens"),
        behind("small letters", &leaf.to_lowercase(), "five hyphens"),
        behind("quoted", &quoted, "nothing before"),
        behind("cut off", cut, "has no end"),
        behind("cut off within", &short, "cut off"),
        bad(
            "no beginning",
            parts[1..].join("\n"),
            "ends a block that has not",
            "whole block",
        ),
        bad("an end of another", old_end, begun, "whole block"),
        bad("two in one", format!("{cut}\n{leaf}"), begun, "whole block"),
        bad(
            "no base64",
            leaf.replacen("MII", "M!I", 1),
            "line 2: CERTIFICATE",
            "'!'",
        ),
        bad(
            "line ends as text",
            leaf.trim().replace('\n', "\\n"),
            "line 1: ",
            "backslash",
        ),
        bad("a key", key, "has no certificate", key_found),
    ]
}

fn keys(leaf: &str, key: &str) -> Vec<Bad> {
    let locked = ["pkcs8", "-topk8", "-passout", "pass:x"];
    let locked = openssl(&locked, key.as_bytes());
    let old = ["ec", "-aes128", "-passout", "pass:x"];
    let old = openssl(&old, key.as_bytes());
    let p12 = ["pkcs12", "-export", "-passout", "pass:x"];
    let p12 = openssl(&p12, format!("{key}{leaf}").as_bytes());
    let der = openssl(&["pkey", "-outform", "DER"], key.as_bytes());
    let other = KeyPair::generate().expect("a key").serialize_pem();
    let ssh = key.replace(" PRIVATE", " OPENSSH PRIVATE");
    let second = format!("line {}: ", key.lines().count() + 1);
    let found = "an X.509 certificate (line 1)";
    let passphrase = "line 1: ENCRYPTED PRIVATE KEY has a passphrase";
    vec![
        bad("a passphrase", locked, passphrase, "openssl pkey -in"),
        bad(
            "a passphrase of old",
            old,
            "EC PRIVATE KEY has a passphrase",
            "openssl pkey -in",
        ),
        bad("DER", der, "in DER", "openssl pkey -inform DER"),
        bad("PKCS #12", p12, "PKCS #12", "openssl pkcs12 -in"),
        bad("two", format!("{key}{other}"), second, "second private key"),
        bad("a certificate", leaf, "has no private key", found),
        bad(
            "OpenSSH",
            ssh,
            "line 1: OPENSSH PRIVATE KEY",
            "ssh-keygen -p",
        ),
    ]
}

/// The error output of `crore` with these arguments. It must exit with 1.
fn complaint(args: &[&str]) -> String {
    let done = output(Command::new(program()).args(args));
    let error_text = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(1), "{args:?}: {error_text}");
    error_text
}

/// The error output of a server that is started with these settings.
fn refusal(all: &Certificates, settings: &str) -> String {
    all.write("crore.toml", settings);
    complaint(&["serve", "--check", "--config", &all.path("crore.toml")])
}

#[test]
fn unreadable_keys_and_certificates_are_refused_by_file_and_line_with_the_remedy() {
    let all = Certificates::new();
    let (leaf, _, key) = chain(&all);
    let cert = file(&all, "good.pem", leaf.as_bytes());
    let cert_key = file(&all, "good.key", key.as_bytes());
    let path = all.path("bad");
    let says = |error_text: &str, place: &str, (name, _, at, remedy): &Bad| {
        for word in [place, &path, at, remedy] {
            assert!(
                error_text.contains(word),
                "{place}, {name}: {word}: {error_text}"
            );
        }
    };
    let tls = |certificate: &str, key: &str| {
        format!("[tls]\ncertificate = '{certificate}'\nkey = '{key}'\n")
    };
    let url = "https://localhost:1";
    let tool = ["pub", "a", "x", "--server", url, "--ca"];
    for row in encodings(&all, &leaf, &key)
        .iter()
        .chain(&blocks(&leaf, &key))
    {
        file(&all, "bad", &row.1);
        says(
            &refusal(&all, &tls(&path, &cert_key)),
            "tls.certificate",
            row,
        );
        let roots = format!("{}client_ca = '{path}'\n", tls(&cert, &cert_key));
        says(&refusal(&all, &roots), "tls.client_ca", row);
        let callback = format!("[access.callback]\nurl = '{url}/'\nca = '{path}'\n");
        says(&refusal(&all, &callback), "access.callback.ca", row);
        says(&complaint(&[&tool[..], &[&path]].concat()), "", row);
    }
    for row in &keys(&leaf, &key) {
        file(&all, "bad", &row.1);
        says(&refusal(&all, &tls(&cert, &path)), "tls.key", row);
        let shown = [&tool[..], &[&cert, "--cert", &cert, "--cert-key", &path]].concat();
        says(&complaint(&shown), "--cert-key", row);
    }
}
