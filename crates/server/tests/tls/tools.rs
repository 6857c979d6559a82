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
    let all = Certificates::new();
    let server = Server::with_admin(&all.settings("required = true"));
    let port = server.address().port();
    let url = format!("https://localhost:{port}");
    let ca = all.path("ca.pem");
    let to = ["--server", &url, "--ca", &ca];
    output(&[&["pub", "news", "one"][..], &to].concat());
    // All lines go over one connection. The server's session tickets arrive between two messages.
    let lines = [&["pub", "news", "--lines"][..], &to].concat();
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
        let read = output(&[&args[..], &["--protocol", protocol], &to].concat());
        assert_eq!(read, "one\ntwo\nthree\n", "{protocol}");
    }
    // The admin API shows that a connection is encrypted.
    let mut reader = Command::new(CRORE);
    let reader = reader
        .args([&["sub", "late"][..], &to].concat())
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
    let (all, others) = (Certificates::new(), Certificates::new());
    let server = Server::with(&all.settings(""));
    let port = server.address().port();
    let url = format!("https://localhost:{port}");
    let (ca, other) = (all.path("ca.pem"), others.path("ca.pem"));
    let to = |url: &str, ca: &str| {
        let publish = complaint(&["pub", "a", "x", "--server", url, "--ca", ca]);
        let subscribe = complaint(&["sub", "a", "--server", url, "--ca", ca]);
        for error_text in [&publish, &subscribe] {
            assert!(error_text.contains(url), "{error_text}");
        }
        publish
    };
    let error_text = to(&url, &other);
    let wanted = "TLS with localhost: the certificate leads to no root that is trusted here; name the file with its root by --ca";
    assert!(error_text.contains(wanted), "{error_text}");
    // The client's last message arrives.
    let heard = || {
        server
            .log()
            .contains("clients must trust the root")
            .then_some(())
    };
    eventually("the reason on the server's side", heard);
    // The roots of this host have not signed the certificate.
    let error_text = complaint(&["pub", "a", "x", "--server", &url]);
    assert!(error_text.contains("--ca"), "{error_text}");
    let elsewhere = Certificates::new();
    elsewhere.sign_for(
        &["b.example"],
        "server",
        ExtendedKeyUsagePurpose::ServerAuth,
    );
    let another = Server::with(&elsewhere.settings(""));
    let there = format!("https://localhost:{}", another.address().port());
    let error_text = to(&there, &elsewhere.path("ca.pem"));
    let wanted = "the certificate is for b.example, not for localhost; use one of the names in its certificate";
    assert!(error_text.contains(wanted), "{error_text}");
    let error_text = complaint(&["admin", "--url", &url, "--ca", &other, "topics"]);
    assert!(error_text.contains("--ca"), "{error_text}");
    // The message was not published.
    let read = output(&["pub", "a", "y", "--json", "--server", &url, "--ca", &ca]);
    assert!(read.contains("\"messages\": 1,"), "{read}");
}

#[test]
fn the_documented_command_makes_a_certificate_that_works_and_one_of_an_authority_is_named() {
    let all = Certificates::new();
    let document = include_str!("../../../../docs/TLS.md");
    let command = document
        .lines()
        .find_map(|line| line.strip_prefix("$ openssl req "));
    let command = command.expect("the command").split(' ');
    let made = all.path("");
    let openssl = |arguments: Vec<&str>| {
        let mut command = Command::new("openssl");
        let output = command
            .arg("req")
            .args(arguments)
            .current_dir(&made)
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
    let server = Server::with(&all.settings("required = true"));
    let url = format!("https://localhost:{}", server.address().port());
    let own = all.path("server.pem");
    output(&["pub", "news", "one", "--server", &url, "--ca", &own]);
    curl(&server, &all, "/pub/news", &["--cacert", &own, "-d", "two"]);

    let authority = command.map(|word| word.replace("CA:FALSE", "CA:TRUE"));
    let authority: Vec<String> = authority.collect();
    openssl(authority.iter().map(String::as_str).collect());
    let server = Server::with(&all.settings(""));
    let url = format!("https://localhost:{}", server.address().port());
    let error_text = complaint(&["pub", "news", "one", "--server", &url, "--ca", &own]);
    assert!(
        error_text.contains("that of an authority (CA:TRUE)"),
        "{error_text}"
    );
    assert!(error_text.contains("docs/TLS.md"), "{error_text}");
}

#[test]
fn client_without_a_required_certificate_is_told_so() {
    let all = Certificates::new();
    all.sign("client", ExtendedKeyUsagePurpose::ClientAuth);
    let ca = all.path("ca.pem");
    let (cert, key) = (all.path("client.pem"), all.path("client.key"));
    let server = Server::with(&all.settings(&format!("client_ca = '{ca}'")));
    let url = format!("https://localhost:{}", server.address().port());
    let to = ["--server", &url, "--ca", &ca];
    let error_text = complaint(&[&["pub", "news", "x"][..], &to].concat());
    assert!(error_text.contains("client_ca"), "{error_text}");
    assert!(error_text.contains("--cert and --cert-key"), "{error_text}");
    let shown = ["--cert", &cert, "--cert-key", &key];
    let to = [&to[..], &shown].concat();
    output(&[&["pub", "news", "one"][..], &to].concat());
    for protocol in ["sse", "ws", "poll"] {
        let args = ["sub", "news", "--since", "oldest", "--count", "1"];
        let read = output(&[&args[..], &["--protocol", protocol], &to].concat());
        assert_eq!(read, "one\n", "{protocol}");
    }
    // The admin port has no TLS. Here the data port answers: it accepted the client, and has no such path.
    let admin = ["admin", "stats", "--url", &url, "--ca", &ca];
    let error_text = complaint(&admin);
    assert!(error_text.contains("--cert and --cert-key"), "{error_text}");
    let error_text = complaint(&[&admin[..], &shown].concat());
    assert!(
        error_text.contains("is no admin port") && error_text.contains("404"),
        "{error_text}"
    );
}

#[test]
fn refused_or_invalid_certificate_is_named_with_its_fault() {
    let (all, others) = (Certificates::new(), Certificates::new());
    all.sign("client", ExtendedKeyUsagePurpose::ClientAuth);
    all.sign("not-for-clients", ExtendedKeyUsagePurpose::ServerAuth);
    others.sign("foreign", ExtendedKeyUsagePurpose::ClientAuth);
    all.write("torn.pem", "-----BEGIN CERTIFICATE-----\nMIIB");
    let ca = all.path("ca.pem");
    let server = Server::with(&all.settings(&format!("client_ca = '{ca}'")));
    let url = format!("https://localhost:{}", server.address().port());
    let error_text = |flags: &[&str]| {
        complaint(&[&["pub", "a", "x", "--server", &url, "--ca", &ca], flags].concat())
    };
    let (cert, key) = (all.path("client.pem"), all.path("client.key"));
    for (certificate, key, words) in [
        (
            others.path("foreign.pem"),
            others.path("foreign.key"),
            &["does not trust the root", "tls.client_ca"][..],
        ),
        (
            all.path("not-for-clients.pem"),
            all.path("not-for-clients.key"),
            &["it must be a client certificate"],
        ),
        (
            all.path("missing.pem"),
            key.clone(),
            &["missing.pem", "cannot be read", "--cert"],
        ),
        (all.path("torn.pem"), key.clone(), &["torn.pem", "no end"]),
        (key.clone(), key.clone(), &["client.key", "no certificate"]),
        (
            cert.clone(),
            cert.clone(),
            &["client.pem", "no private key", "--cert-key"],
        ),
        (cert.clone(), all.path("server.key"), &["its own key"]),
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
    let all = Certificates::new();
    let ca = all.path("ca.pem");
    let plain = Server::start();
    let url = format!("https://{}", plain.address());
    let error_text = complaint(&["pub", "a", "x", "--server", &url, "--ca", &ca]);
    assert!(error_text.contains("http://"), "{error_text}");
    let secure = Server::with(&all.settings("required = true"));
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
    let all = Certificates::new();
    all.write("empty.pem", "");
    all.write("torn.pem", "-----BEGIN CERTIFICATE-----\nMIIB");
    let url = "https://localhost:1";
    for (name, wrong) in [
        ("missing.pem", "cannot be read"),
        ("empty.pem", "is empty"),
        ("torn.pem", "line 1: CERTIFICATE has no end"),
        ("server.key", "no certificate"),
    ] {
        let file = all.path(name);
        let error_text = complaint(&["pub", "a", "x", "--server", url, "--ca", &file]);
        assert!(
            error_text.contains(&file) && error_text.contains(wrong),
            "{error_text}"
        );
    }
    let error_text = complaint(&["sub", "a", "--ca", &all.path("ca.pem")]);
    assert!(
        error_text.contains("--ca") && error_text.contains("https://"),
        "{error_text}"
    );
}
