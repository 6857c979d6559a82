//! Tests client certificates, and server certificates with a fault.

use crate::support::Server;
use crate::tool::{Certificates, curl, run, s_client, try_curl};
use rcgen::ExtendedKeyUsagePurpose;

#[test]
fn client_without_a_valid_certificate_is_refused_where_one_is_required() {
    let (all, strangers) = (Certificates::new(), Certificates::new());
    all.sign("client", ExtendedKeyUsagePurpose::ClientAuth);
    strangers.sign("client", ExtendedKeyUsagePurpose::ClientAuth);
    let client_ca = format!("client_ca = \"{}\"", all.path("ca.pem"));
    let server = Server::with(&all.settings(&client_ca));
    for version in ["1.2", "1.3"] {
        let shows = |all: &Certificates| {
            [
                "--tls-max",
                version,
                "--cert",
                &all.path("client.pem"),
                "--key",
                &all.path("client.key"),
                "-d",
                "x",
            ]
            .map(str::to_string)
        };
        let good = shows(&all);
        curl(
            &server,
            &all,
            "/pub/a",
            &good.each_ref().map(String::as_str),
        );
        let bad = shows(&strangers);
        let bad = try_curl(&server, &all, "/pub/a", &bad.each_ref().map(String::as_str));
        assert!(
            !bad.status.success(),
            "another root's certificate with TLS {version}"
        );
        let none = try_curl(&server, &all, "/pub/a", &["--tls-max", version, "-d", "x"]);
        assert!(!none.status.success(), "no certificate with TLS {version}");
    }
    let expected_error = s_client(&server, &all, &["-tls1_3", "-ign_eof"], b"");
    assert!(
        expected_error.contains("certificate required"),
        "{expected_error}"
    );
}

#[test]
fn an_optional_certificate_may_be_left_out_but_not_be_bad() {
    let (all, strangers) = (Certificates::new(), Certificates::new());
    strangers.sign("client", ExtendedKeyUsagePurpose::ClientAuth);
    let client_ca = all.path("ca.pem");
    let rest = format!("client_ca = \"{client_ca}\"\nclient_certificates = \"optional\"");
    let server = Server::with(&all.settings(&rest));
    curl(&server, &all, "/pub/a", &["-d", "x"]);
    let (certificate, key) = (strangers.path("client.pem"), strangers.path("client.key"));
    let bad = ["--cert", &certificate, "--key", &key, "-d", "x"];
    assert!(!try_curl(&server, &all, "/pub/a", &bad).status.success());
}

#[test]
fn files_that_are_not_in_order_are_named_with_the_remedy() {
    let (all, other) = (Certificates::new(), Certificates::new());
    let good = (all.path("server.pem"), all.path("server.key"));
    all.write("nothing.pem", "no PEM");
    let nothing = all.path("nothing.pem");
    let missing = all.path("missing.pem");
    for (certificate, key, expected_error) in [
        (&missing, &good.1, "tls.certificate: "),
        (&nothing, &good.1, "is no PEM"),
        (
            &good.0,
            &nothing,
            "name a PEM file with a private key without a passphrase",
        ),
        (
            &good.0,
            &other.path("server.key"),
            "name the key of the first certificate in tls.certificate",
        ),
    ] {
        all.write(
            "crore.toml",
            &format!("[tls]\ncertificate = \"{certificate}\"\nkey = \"{key}\"\n"),
        );
        let config = all.path("crore.toml");
        let program = env!("CARGO_BIN_EXE_crore");
        let output = run(program, &["serve", "--check", "--config", &config], b"");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success());
        assert!(complaint.contains(expected_error), "{complaint}");
    }
}

#[test]
fn the_oldest_version_is_a_setting() {
    let all = Certificates::new();
    let server = Server::with(&all.settings("min_version = \"1.3\""));
    curl(&server, &all, "/pub/a", &["--tlsv1.3", "-d", "x"]);
    let old = try_curl(&server, &all, "/pub/a", &["--tls-max", "1.2", "-d", "x"]);
    assert!(!old.status.success());
}
