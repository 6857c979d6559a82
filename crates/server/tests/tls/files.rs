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
fn chain(certificates: &Certificates) -> (String, String, String) {
    let mut params = CertificateParams::new([]).expect("no names");
    params
        .distinguished_name
        .push(DnType::CommonName, "Between");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let intermediate = params
        .signed_by(&key, certificates.root())
        .expect("a certificate");
    let issuer = Issuer::new(params, key);
    let names = ["localhost", "127.0.0.1"].map(String::from);
    let mut params = CertificateParams::new(names).expect("names");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate().expect("a key");
    let leaf = params.signed_by(&key, &issuer).expect("a certificate");
    (leaf.pem(), intermediate.pem(), key.serialize_pem())
}

/// The text with these line ends.
fn with_line_end(text: &str, end: &str) -> String {
    text.lines().map(|line| format!("{line}{end}")).collect()
}

#[test]
fn every_block_is_read_however_the_file_is_laid_out() {
    let certificates = Certificates::new();
    let (leaf, intermediate, key) = chain(&certificates);
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
    let both_certificates = format!("{leaf}{intermediate}");
    let old_label = both_certificates.replace(" CERTIFICATE", " X509 CERTIFICATE");
    for (name, chain_pem, key) in [
        ("as they come", both_certificates.clone(), key.clone()),
        (
            "no line end between",
            format!("{}{}", leaf.trim_end(), intermediate.trim_end()),
            sec1.clone(),
        ),
        (
            "text before",
            format!("# of 2026\n{described}Bag Attributes\n  friendlyName: a\n{intermediate}"),
            format!("{parameters}{sec1}"),
        ),
        (
            "CR LF",
            with_line_end(&both_certificates, "\r\n"),
            with_line_end(&key, "\r\n"),
        ),
        (
            "CR",
            with_line_end(&both_certificates, "\r"),
            with_line_end(&key, "\r"),
        ),
        (
            "a byte order mark",
            format!("\u{feff}{both_certificates}"),
            format!("\u{feff}{key}"),
        ),
        (
            "spaces",
            with_line_end(&both_certificates, " \t \n"),
            with_line_end(&key, "  \n"),
        ),
        (
            "indented",
            both_certificates
                .lines()
                .map(|line| format!("    {line}\n"))
                .collect(),
            key.clone(),
        ),
        (
            "each on a line",
            format!("{} {}", one_line(&leaf), one_line(&intermediate)),
            one_line(&key),
        ),
        ("an old label", old_label, key.clone()),
        (
            "key and certificates in one",
            format!("{key}{both_certificates}"),
            format!("{both_certificates}{key}"),
        ),
        (
            "a block commented out",
            format!(
                "{}{both_certificates}",
                with_line_end(&leaf, "\n")
                    .replace("-----BEGIN", "# -----BEGIN")
                    .lines()
                    .map(|line| format!("#{line}\n"))
                    .collect::<String>()
            ),
            key.clone(),
        ),
    ] {
        file(&certificates, "server.pem", chain_pem.as_bytes());
        file(&certificates, "server.key", key.as_bytes());
        let server = Server::with(&certificates.settings(""));
        // curl knows only the root, so the server must send both certificates.
        curl(&server, &certificates, "/pub/a", &["-d", name]);
    }
}

/// A file that is refused: its name in the test, its bytes, the file name in the error, and words of the error.
type InvalidFile = (&'static str, Vec<u8>, String, &'static str);

fn invalid_file(
    name: &'static str,
    bytes: impl Into<Vec<u8>>,
    at: impl Into<String>,
    remedy: &'static str,
) -> InvalidFile {
    (name, bytes.into(), at.into(), remedy)
}

/// Certificates in other encodings.
fn encodings(certificates: &Certificates, leaf: &str, key: &str) -> Vec<InvalidFile> {
    let both_certificates = file(certificates, "both", leaf.as_bytes());
    let p7 = ["crl2pkcs7", "-nocrl", "-certfile", &both_certificates];
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
        invalid_file("DER", der, "in DER", "openssl x509 -inform DER"),
        invalid_file("PKCS #12", p12, "PKCS #12", "openssl pkcs12 -in"),
        invalid_file(
            "PKCS #7 in DER",
            openssl(&p7_der, b""),
            "PKCS #7",
            "openssl pkcs7 -inform DER",
        ),
        invalid_file(
            "PKCS #7",
            openssl(&p7, b""),
            "line 1: PKCS7",
            "openssl pkcs7 -in",
        ),
        invalid_file(
            "trust",
            trusted,
            "line 1: TRUSTED CERTIFICATE",
            "openssl x509 -in",
        ),
        invalid_file(
            "trust in second place",
            trusted_second,
            second,
            "TRUSTED CERTIFICATE",
        ),
        invalid_file("UTF-16 with a mark", marked, utf16, "iconv"),
        invalid_file("UTF-16", wide, utf16, "iconv"),
        invalid_file("base64 alone", bare, "only base64", "-----BEGIN"),
        invalid_file("nothing", "", "is empty", "name a PEM file"),
    ]
}

/// Other PEM blocks, and lines that look like boundaries, after a valid certificate.
fn blocks(leaf: &str, key: &str) -> Vec<InvalidFile> {
    let second = format!("line {}: ", leaf.lines().count() + 1);
    let followed_by =
        |name, text: &str, word| invalid_file(name, format!("{leaf}{text}"), &second, word);
    let label = |label: &str| leaf.replace(" CERTIFICATE", label);
    let hyphens = |with: &str| leaf.replace("-----BEGIN", with);
    let quoted: String = leaf.lines().map(|line| format!("> {line}\n")).collect();
    let parts: Vec<&str> = leaf.lines().collect();
    let short = [parts[0], &parts[1][..32], parts[parts.len() - 1]].join("\n");
    let old_end = leaf.replace("END CERTIFICATE", "END PUBLIC KEY");
    let cut = &leaf[..leaf.len() / 2];
    let no_end = "line 1: CERTIFICATE has no end";
    let key_found = "a private key (PKCS #8) (line 1)";
    vec![
        followed_by(
            "a request",
            &label(" CERTIFICATE REQUEST"),
            "CERTIFICATE REQUEST is a request",
        ),
        followed_by(
            "a revocation list",
            &label(" X509 CRL"),
            "X509 CRL is a revocation list",
        ),
        followed_by(
            "an unknown block",
            &label(" PIGEON"),
            "PIGEON is nothing that is read",
        ),
        followed_by(
            "dashes of a word processor",
            &hyphens("\u{2014}BEGIN"),
            "five hyphens",
        ),
        followed_by("four hyphens", &hyphens("----BEGIN"), "five hyphens"),
        followed_by("small letters", &leaf.to_lowercase(), "five hyphens"),
        followed_by("quoted", &quoted, "nothing before"),
        followed_by("cut off", cut, "has no end"),
        followed_by("cut off within", &short, "cut off"),
        invalid_file(
            "no beginning",
            parts[1..].join("\n"),
            "ends a block that has not",
            "whole block",
        ),
        invalid_file("an end of another", old_end, no_end, "whole block"),
        invalid_file(
            "two in one",
            format!("{cut}\n{leaf}"),
            no_end,
            "whole block",
        ),
        invalid_file(
            "no base64",
            leaf.replacen("MII", "M!I", 1),
            "line 2: CERTIFICATE",
            "'!'",
        ),
        invalid_file(
            "line ends as text",
            leaf.trim().replace('\n', "\\n"),
            "line 1: ",
            "backslash",
        ),
        invalid_file("a key", key, "has no certificate", key_found),
    ]
}

fn keys(leaf: &str, key: &str) -> Vec<InvalidFile> {
    let locked = ["pkcs8", "-topk8", "-passout", "pass:x"];
    let locked = openssl(&locked, key.as_bytes());
    let old_label = ["ec", "-aes128", "-passout", "pass:x"];
    let old_label = openssl(&old_label, key.as_bytes());
    let p12 = ["pkcs12", "-export", "-passout", "pass:x"];
    let p12 = openssl(&p12, format!("{key}{leaf}").as_bytes());
    let der = openssl(&["pkey", "-outform", "DER"], key.as_bytes());
    let other = KeyPair::generate().expect("a key").serialize_pem();
    let ssh = key.replace(" PRIVATE", " OPENSSH PRIVATE");
    let second = format!("line {}: ", key.lines().count() + 1);
    let found = "an X.509 certificate (line 1)";
    let passphrase = "line 1: ENCRYPTED PRIVATE KEY has a passphrase";
    vec![
        invalid_file("a passphrase", locked, passphrase, "openssl pkey -in"),
        invalid_file(
            "a passphrase of old",
            old_label,
            "EC PRIVATE KEY has a passphrase",
            "openssl pkey -in",
        ),
        invalid_file("DER", der, "in DER", "openssl pkey -inform DER"),
        invalid_file("PKCS #12", p12, "PKCS #12", "openssl pkcs12 -in"),
        invalid_file("two", format!("{key}{other}"), second, "second private key"),
        invalid_file("a certificate", leaf, "has no private key", found),
        invalid_file(
            "OpenSSH",
            ssh,
            "line 1: OPENSSH PRIVATE KEY",
            "ssh-keygen -p",
        ),
    ]
}

/// The error output of `crore` with these arguments. It must exit with 1.
fn complaint(args: &[&str]) -> String {
    let output = output(Command::new(program()).args(args));
    let error_text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{args:?}: {error_text}");
    error_text
}

/// The error output of a server that is started with these settings.
fn refusal(certificates: &Certificates, settings: &str) -> String {
    certificates.write("crore.toml", settings);
    complaint(&[
        "serve",
        "--check",
        "--config",
        &certificates.path("crore.toml"),
    ])
}

#[test]
fn unreadable_keys_and_certificates_are_refused_by_file_and_line_with_the_remedy() {
    let certificates = Certificates::new();
    let (leaf, _, key) = chain(&certificates);
    let cert = file(&certificates, "good.pem", leaf.as_bytes());
    let cert_key = file(&certificates, "good.key", key.as_bytes());
    let path = certificates.path("bad");
    let assert_names = |error_text: &str, place: &str, (name, _, at, remedy): &InvalidFile| {
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
    for row in encodings(&certificates, &leaf, &key)
        .iter()
        .chain(&blocks(&leaf, &key))
    {
        file(&certificates, "bad", &row.1);
        assert_names(
            &refusal(&certificates, &tls(&path, &cert_key)),
            "tls.certificate",
            row,
        );
        let roots = format!("{}client_ca = '{path}'\n", tls(&cert, &cert_key));
        assert_names(&refusal(&certificates, &roots), "tls.client_ca", row);
        let callback = format!("[access.callback]\nurl = '{url}/'\nca = '{path}'\n");
        assert_names(
            &refusal(&certificates, &callback),
            "access.callback.ca",
            row,
        );
        assert_names(&complaint(&[&tool[..], &[&path]].concat()), "", row);
    }
    for row in &keys(&leaf, &key) {
        file(&certificates, "bad", &row.1);
        assert_names(&refusal(&certificates, &tls(&cert, &path)), "tls.key", row);
        let arguments = [&tool[..], &[&cert, "--cert", &cert, "--cert-key", &path]].concat();
        assert_names(&complaint(&arguments), "--cert-key", row);
    }
}
