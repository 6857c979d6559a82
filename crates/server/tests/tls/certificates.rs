//! Tests client certificates, and server certificates with a fault.

use crate::support::Server;
use crate::tool::{Certificates, curl, run, s_client, try_curl};
use rcgen::ExtendedKeyUsagePurpose;

#[test]
fn client_without_a_valid_certificate_is_refused_where_one_is_required() {
    let (certificates, foreign_certificates) = (Certificates::new(), Certificates::new());
    certificates.sign("client", ExtendedKeyUsagePurpose::ClientAuth);
    foreign_certificates.sign("client", ExtendedKeyUsagePurpose::ClientAuth);
    let client_ca = format!("client_ca = \"{}\"", certificates.path("ca.pem"));
    let server = Server::with(&certificates.settings(&client_ca));
    for version in ["1.2", "1.3"] {
        let client_arguments = |certificates: &Certificates| {
            [
                "--tls-max",
                version,
                "--cert",
                &certificates.path("client.pem"),
                "--key",
                &certificates.path("client.key"),
                "-d",
                "x",
            ]
            .map(str::to_string)
        };
        let accepted = client_arguments(&certificates);
        curl(
            &server,
            &certificates,
            "/pub/a",
            &accepted.each_ref().map(String::as_str),
        );
        let refused = client_arguments(&foreign_certificates);
        let refused = try_curl(
            &server,
            &certificates,
            "/pub/a",
            &refused.each_ref().map(String::as_str),
        );
        assert!(
            !refused.status.success(),
            "another root's certificate with TLS {version}"
        );
        let without_certificate = try_curl(
            &server,
            &certificates,
            "/pub/a",
            &["--tls-max", version, "-d", "x"],
        );
        assert!(
            !without_certificate.status.success(),
            "no certificate with TLS {version}"
        );
    }
    let expected_error = s_client(&server, &certificates, &["-tls1_3", "-ign_eof"], b"");
    assert!(
        expected_error.contains("certificate required"),
        "{expected_error}"
    );
}

#[test]
fn an_optional_certificate_may_be_left_out_but_not_be_bad() {
    let (certificates, foreign_certificates) = (Certificates::new(), Certificates::new());
    foreign_certificates.sign("client", ExtendedKeyUsagePurpose::ClientAuth);
    let client_ca = certificates.path("ca.pem");
    let rest = format!("client_ca = \"{client_ca}\"\nclient_certificates = \"optional\"");
    let server = Server::with(&certificates.settings(&rest));
    curl(&server, &certificates, "/pub/a", &["-d", "x"]);
    let (certificate, key) = (
        foreign_certificates.path("client.pem"),
        foreign_certificates.path("client.key"),
    );
    let refused = ["--cert", &certificate, "--key", &key, "-d", "x"];
    assert!(
        !try_curl(&server, &certificates, "/pub/a", &refused)
            .status
            .success()
    );
}

#[test]
fn files_that_are_not_in_order_are_named_with_the_remedy() {
    let (certificates, other_certificates) = (Certificates::new(), Certificates::new());
    let accepted = (
        certificates.path("server.pem"),
        certificates.path("server.key"),
    );
    certificates.write("nothing.pem", "no PEM");
    let nothing = certificates.path("nothing.pem");
    let missing = certificates.path("missing.pem");
    for (certificate, key, expected_error) in [
        (&missing, &accepted.1, "tls.certificate: "),
        (&nothing, &accepted.1, "is no PEM"),
        (
            &accepted.0,
            &nothing,
            "name a PEM file with a private key without a passphrase",
        ),
        (
            &accepted.0,
            &other_certificates.path("server.key"),
            "name the key of the first certificate in tls.certificate",
        ),
    ] {
        certificates.write(
            "crore.toml",
            &format!("[tls]\ncertificate = \"{certificate}\"\nkey = \"{key}\"\n"),
        );
        let config = certificates.path("crore.toml");
        let program = env!("CARGO_BIN_EXE_crore");
        let output = run(program, &["serve", "--check", "--config", &config], b"");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success());
        assert!(complaint.contains(expected_error), "{complaint}");
    }
}

#[test]
fn the_oldest_version_is_a_setting() {
    let certificates = Certificates::new();
    let server = Server::with(&certificates.settings("min_version = \"1.3\""));
    curl(&server, &certificates, "/pub/a", &["--tlsv1.3", "-d", "x"]);
    let old_version = try_curl(
        &server,
        &certificates,
        "/pub/a",
        &["--tls-max", "1.2", "-d", "x"],
    );
    assert!(!old_version.status.success());
}
