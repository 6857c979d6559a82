//! Tests certificates that are replaced while connections go on.

use crate::support::Server;
use crate::tool::{Certificates, curl, try_curl};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

#[test]
fn a_new_certificate_is_shown_after_a_reload_and_streams_go_on() {
    let (old_certificates, new_certificates) = (Certificates::new(), Certificates::new());
    let server = Server::with(&old_certificates.settings(""));
    let url = format!("https://{}/sub/a", server.address());
    let stream = Command::new("curl")
        .args([
            "-sSN",
            "--cacert",
            &old_certificates.path("ca.pem"),
            "-H",
            "Accept: text/event-stream",
            &url,
        ])
        .stdout(Stdio::piped())
        .spawn();
    let mut stream = stream.expect("curl");
    let mut lines = BufReader::new(stream.stdout.take().expect("a pipe")).lines();
    let mut await_line = |expected: &str| {
        assert!(
            lines
                .by_ref()
                .map_while(Result::ok)
                .any(|line| line == expected),
            "{expected}"
        );
    };
    server.await_subscribers("a", 1);
    curl(&server, &old_certificates, "/pub/a", &["-d", "early"]);
    await_line("data: early");
    for name in ["server.pem", "server.key"] {
        std::fs::copy(new_certificates.path(name), old_certificates.path(name)).expect("a copy");
    }
    server.signal("HUP");
    server.await_log("settings read again");
    curl(&server, &new_certificates, "/pub/a", &["-d", "late"]);
    await_line("data: late");
    assert!(
        !try_curl(&server, &old_certificates, "/pub/a", &["-d", "x"])
            .status
            .success()
    );
    // A half-written file changes nothing, and the log says why.
    old_certificates.write("server.pem", "-----BEGIN CERTIFICATE-----\nMIIB");
    server.signal("HUP");
    server.await_log("settings not changed: tls.certificate");
    curl(&server, &new_certificates, "/pub/a", &["-d", "last"]);
    await_line("data: last");
    stream.kill().expect("it runs");
    stream.wait().expect("it ends");
}

#[test]
fn tls_is_neither_switched_off_nor_made_a_duty_while_the_server_runs() {
    let certificates = Certificates::new();
    let server = Server::with(&certificates.settings(""));
    let settings_before = std::fs::read_to_string(server.settings_file()).expect("the settings");
    server.reload("shards = 2\n");
    server.await_log("restart kept=tls.certificate, tls.key");
    curl(&server, &certificates, "/pub/a", &["-d", "still"]);
    server.reload(&format!(
        "{settings_before}required = true\nhandshakes_max = 9\n"
    ));
    server.await_log("restart kept=tls.handshakes_max, tls.required");
    let plain = format!("http://{}/pub/a", server.address());
    let status = Command::new("curl")
        .args(["-fsS", "-d", "x", &plain])
        .status();
    assert!(status.expect("curl").success());
    // A wrong file changes nothing, and the log names the remedy.
    server.reload(&settings_before.replace("server.key", "ca.pem"));
    server.await_log("settings not changed");
    assert!(server.log().contains("tls.key"), "{}", server.log());
    curl(&server, &certificates, "/pub/a", &["-d", "still"]);
}
