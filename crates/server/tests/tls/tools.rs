//! Tests `crore pub`, `crore sub` and `crore admin` over TLS.

use crate::support::port::{await_metric, get, metric};
use crate::support::{Server, eventually, until};
use crate::tool::{Certificates, curl, run};
use rcgen::ExtendedKeyUsagePurpose;
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

const CRORE: &str = env!("CARGO_BIN_EXE_crore");

fn crore(args: &[&str]) -> Output {
    run(CRORE, args, b"")
}

/// The standard output of a run that succeeds.
fn output(args: &[&str]) -> String {
    let output = crore(args);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {complaint}");
    String::from_utf8(output.stdout).expect("text")
}

/// The error message of a run that fails with exit status 1.
fn complaint(args: &[&str]) -> String {
    let output = crore(args);
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{args:?}: {complaint}");
    complaint
}

#[test]
fn message_published_over_tls_is_read_over_tls_by_each_transport() {
    let certificates = Certificates::new();
    let server = Server::with_admin(&certificates.settings("required = true"));
    let port = server.address().port();
    let url = format!("https://localhost:{port}");
    let ca = certificates.path("ca.pem");
    let server_flags = ["--server", &url, "--ca", &ca];
    output(&[&["pub", "news", "one"][..], &server_flags].concat());
    // All lines go over one connection. The server's session tickets arrive between two messages.
    let lines = [&["pub", "news", "--lines"][..], &server_flags].concat();
    let lines = run(CRORE, &lines, b"two\nthree\n");
    assert!(lines.status.success(), "{lines:?}");
    let handshakes = |kind: &str| {
        let name = format!("crore_tls_handshakes_total{{kind=\"{kind}\"}}");
        metric(server.admin(), &name).expect("a metric")
    };
    // A shard reports the count of messages together with that of handshakes.
    await_metric(server.admin(), "crore_published_messages_total", 3.0);
    assert_eq!((handshakes("full"), handshakes("resumed")), (2.0, 0.0));
    for protocol in ["sse", "ws", "poll"] {
        let args = ["sub", "news", "--since", "oldest", "--count", "3"];
        let read = output(&[&args[..], &["--protocol", protocol], &server_flags].concat());
        assert_eq!(read, "one\ntwo\nthree\n", "{protocol}");
    }
    // The admin API shows that a connection is encrypted.
    let mut reader = Command::new(CRORE);
    let reader = reader
        .args([&["sub", "late"][..], &server_flags].concat())
        .stderr(Stdio::null());
    let mut reader = reader.spawn().expect("it starts");
    until("an encrypted stream", || {
        let page = get(server.admin(), "connections?transport=sse");
        page["connections"][0]["tls"] == true
    });
    let _ = reader.kill();
    let _ = reader.wait();
    // The certificate is valid for an IP address too, and the URL may have the scheme of WebSockets.
    let url = format!("wss://127.0.0.1:{port}");
    output(&["pub", "news", "four", "--server", &url, "--ca", &ca]);
}

#[test]
fn untrusted_server_gets_nothing_and_the_error_names_the_remedy() {
    let (certificates, foreign_certificates) = (Certificates::new(), Certificates::new());
    let server = Server::with(&certificates.settings(""));
    let port = server.address().port();
    let url = format!("https://localhost:{port}");
    let (ca, other) = (
        certificates.path("ca.pem"),
        foreign_certificates.path("ca.pem"),
    );
    let server_flags = |url: &str, ca: &str| {
        let publish = complaint(&["pub", "a", "x", "--server", url, "--ca", ca]);
        let subscribe = complaint(&["sub", "a", "--server", url, "--ca", ca]);
        for error_text in [&publish, &subscribe] {
            assert!(error_text.contains(url), "{error_text}");
        }
        publish
    };
    let error_text = server_flags(&url, &other);
    let expected = "TLS with localhost: the certificate leads to no root that is trusted here; name the file with its root by --ca";
    assert!(error_text.contains(expected), "{error_text}");
    // The client's last message arrives.
    let received_messages = || {
        server
            .log()
            .contains("clients must trust the root")
            .then_some(())
    };
    eventually("the reason on the server's side", received_messages);
    // The roots of this host have not signed the certificate.
    let error_text = complaint(&["pub", "a", "x", "--server", &url]);
    assert!(error_text.contains("--ca"), "{error_text}");
    let elsewhere = Certificates::new();
    elsewhere.sign_for(
        &["b.example"],
        "server",
        ExtendedKeyUsagePurpose::ServerAuth,
    );
    let second_server = Server::with(&elsewhere.settings(""));
    let second_url = format!("https://localhost:{}", second_server.address().port());
    let error_text = server_flags(&second_url, &elsewhere.path("ca.pem"));
    let expected = "the certificate is for b.example, not for localhost; use one of the names in its certificate";
    assert!(error_text.contains(expected), "{error_text}");
    let error_text = complaint(&["admin", "--url", &url, "--ca", &other, "topics"]);
    assert!(error_text.contains("--ca"), "{error_text}");
    // The message was not published.
    let read = output(&["pub", "a", "y", "--json", "--server", &url, "--ca", &ca]);
    assert!(read.contains("\"messages\": 1,"), "{read}");
}

#[test]
fn the_documented_command_makes_a_certificate_that_works_and_one_of_an_authority_is_named() {
    let certificates = Certificates::new();
    let document = include_str!("../../../../docs/TLS.md");
    let command = document
        .lines()
        .find_map(|line| line.strip_prefix("$ openssl req "));
    let command = command.expect("the command").split(' ');
    let directory = certificates.path("");
    let openssl = |arguments: Vec<&str>| {
        let mut command = Command::new("openssl");
        let output = command
            .arg("req")
            .args(arguments)
            .current_dir(&directory)
            .output();
        let output = output.expect("openssl");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    // The documented command overwrites the files that the test made before.
    openssl(command.clone().collect());
    let server = Server::with(&certificates.settings("required = true"));
    let url = format!("https://localhost:{}", server.address().port());
    let server_certificate = certificates.path("server.pem");
    output(&[
        "pub",
        "news",
        "one",
        "--server",
        &url,
        "--ca",
        &server_certificate,
    ]);
    curl(
        &server,
        &certificates,
        "/pub/news",
        &["--cacert", &server_certificate, "-d", "two"],
    );

    let authority = command.map(|word| word.replace("CA:FALSE", "CA:TRUE"));
    let authority: Vec<String> = authority.collect();
    openssl(authority.iter().map(String::as_str).collect());
    let server = Server::with(&certificates.settings(""));
    let url = format!("https://localhost:{}", server.address().port());
    let error_text = complaint(&[
        "pub",
        "news",
        "one",
        "--server",
        &url,
        "--ca",
        &server_certificate,
    ]);
    assert!(
        error_text.contains("that of an authority (CA:TRUE)"),
        "{error_text}"
    );
    assert!(error_text.contains("docs/TLS.md"), "{error_text}");
}

#[test]
fn client_without_a_required_certificate_is_told_so() {
    let certificates = Certificates::new();
    certificates.sign("client", ExtendedKeyUsagePurpose::ClientAuth);
    let ca = certificates.path("ca.pem");
    let (cert, key) = (
        certificates.path("client.pem"),
        certificates.path("client.key"),
    );
    let server = Server::with(&certificates.settings(&format!("client_ca = '{ca}'")));
    let url = format!("https://localhost:{}", server.address().port());
    let server_flags = ["--server", &url, "--ca", &ca];
    let error_text = complaint(&[&["pub", "news", "x"][..], &server_flags].concat());
    assert!(error_text.contains("client_ca"), "{error_text}");
    assert!(error_text.contains("--cert and --cert-key"), "{error_text}");
    let client_flags = ["--cert", &cert, "--cert-key", &key];
    let server_flags = [&server_flags[..], &client_flags].concat();
    output(&[&["pub", "news", "one"][..], &server_flags].concat());
    for protocol in ["sse", "ws", "poll"] {
        let args = ["sub", "news", "--since", "oldest", "--count", "1"];
        let read = output(&[&args[..], &["--protocol", protocol], &server_flags].concat());
        assert_eq!(read, "one\n", "{protocol}");
    }
    // The admin port has no TLS. Here the data port answers: it accepted the client, and has no such path.
    let admin = ["admin", "stats", "--url", &url, "--ca", &ca];
    let error_text = complaint(&admin);
    assert!(error_text.contains("--cert and --cert-key"), "{error_text}");
    let error_text = complaint(&[&admin[..], &client_flags].concat());
    assert!(
        error_text.contains("is no admin port") && error_text.contains("404"),
        "{error_text}"
    );
}

#[test]
fn refused_or_invalid_certificate_is_named_with_its_fault() {
    let (certificates, foreign_certificates) = (Certificates::new(), Certificates::new());
    certificates.sign("client", ExtendedKeyUsagePurpose::ClientAuth);
    certificates.sign("not-for-clients", ExtendedKeyUsagePurpose::ServerAuth);
    foreign_certificates.sign("foreign", ExtendedKeyUsagePurpose::ClientAuth);
    certificates.write("torn.pem", "-----BEGIN CERTIFICATE-----\nMIIB");
    let ca = certificates.path("ca.pem");
    let server = Server::with(&certificates.settings(&format!("client_ca = '{ca}'")));
    let url = format!("https://localhost:{}", server.address().port());
    let error_text = |flags: &[&str]| {
        complaint(&[&["pub", "a", "x", "--server", &url, "--ca", &ca], flags].concat())
    };
    let (cert, key) = (
        certificates.path("client.pem"),
        certificates.path("client.key"),
    );
    for (certificate, key, words) in [
        (
            foreign_certificates.path("foreign.pem"),
            foreign_certificates.path("foreign.key"),
            &["does not trust the root", "tls.client_ca"][..],
        ),
        (
            certificates.path("not-for-clients.pem"),
            certificates.path("not-for-clients.key"),
            &["it must be a client certificate"],
        ),
        (
            certificates.path("missing.pem"),
            key.clone(),
            &["missing.pem", "cannot be read", "--cert"],
        ),
        (
            certificates.path("torn.pem"),
            key.clone(),
            &["torn.pem", "no end"],
        ),
        (key.clone(), key.clone(), &["client.key", "no certificate"]),
        (
            cert.clone(),
            cert.clone(),
            &["client.pem", "no private key", "--cert-key"],
        ),
        (
            cert.clone(),
            certificates.path("server.key"),
            &["its own key"],
        ),
    ] {
        let error_text = error_text(&["--cert", &certificate, "--cert-key", &key]);
        for word in words {
            assert!(error_text.contains(word), "{word}: {error_text}");
        }
    }
    let alone = error_text(&["--cert", &cert]);
    assert!(alone.contains("--cert-key"), "{alone}");
    let alone = error_text(&["--cert-key", &key]);
    assert!(alone.contains("with --cert"), "{alone}");
    let plain = complaint(&["sub", "a", "--cert", &cert, "--cert-key", &key]);
    assert!(
        plain.contains("--cert") && plain.contains("https://"),
        "{plain}"
    );
    // The message was not published.
    let read = output(&[
        "pub",
        "a",
        "y",
        "--json",
        "--server",
        &url,
        "--ca",
        &ca,
        "--cert",
        &cert,
        "--cert-key",
        &key,
    ]);
    assert!(read.contains("\"messages\": 1,"), "{read}");
}

#[test]
fn tool_reports_that_only_one_side_uses_tls() {
    let certificates = Certificates::new();
    let ca = certificates.path("ca.pem");
    let plain = Server::start();
    let url = format!("https://{}", plain.address());
    let error_text = complaint(&["pub", "a", "x", "--server", &url, "--ca", &ca]);
    assert!(error_text.contains("http://"), "{error_text}");
    let secure = Server::with(&certificates.settings("required = true"));
    let url = format!("http://{}", secure.address());
    let error_text = complaint(&["pub", "a", "x", "--server", &url]);
    assert!(error_text.contains("use https://"), "{error_text}");
    let closes = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("https://{}", closes.local_addr().expect("an address"));
    let closer = std::thread::spawn(move || closes.accept().map(drop));
    let error_text = complaint(&["pub", "a", "x", "--server", &url, "--ca", &ca]);
    assert!(error_text.contains("within the handshake"), "{error_text}");
    closer.join().expect("it ends").expect("somebody came");
}

#[test]
fn invalid_file_of_roots_is_named_with_its_fault() {
    let certificates = Certificates::new();
    certificates.write("empty.pem", "");
    certificates.write("torn.pem", "-----BEGIN CERTIFICATE-----\nMIIB");
    let url = "https://localhost:1";
    for (name, invalid) in [
        ("missing.pem", "cannot be read"),
        ("empty.pem", "is empty"),
        ("torn.pem", "line 1: CERTIFICATE has no end"),
        ("server.key", "no certificate"),
    ] {
        let file = certificates.path(name);
        let error_text = complaint(&["pub", "a", "x", "--server", url, "--ca", &file]);
        assert!(
            error_text.contains(&file) && error_text.contains(invalid),
            "{error_text}"
        );
    }
    let error_text = complaint(&["sub", "a", "--ca", &certificates.path("ca.pem")]);
    assert!(
        error_text.contains("--ca") && error_text.contains("https://"),
        "{error_text}"
    );
}
