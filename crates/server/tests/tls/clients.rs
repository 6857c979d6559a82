//! Tests TLS with real clients, for each version and cipher.

use crate::support::Server;
use crate::support::program::await_output;
use crate::support::tools::has;
use crate::tool::{Certificates, Interactive, curl, file, run, s_client};
use std::process::{Command, Stdio};

/// A body that is longer than a TLS record may be.
fn large() -> Vec<u8> {
    (0..400_000_u32).map(|n| b'a' + (n % 23) as u8).collect()
}

#[test]
fn curl_publishes_and_reads_back_with_every_version_and_cipher() {
    let certificates = Certificates::new();
    let server = Server::with(&certificates.settings(""));
    let body = file(&certificates, "large", &large());
    let body = format!("@{body}");
    let ciphers = [
        ("1.3", "--tls13-ciphers", "TLS_AES_128_GCM_SHA256"),
        ("1.3", "--tls13-ciphers", "TLS_AES_256_GCM_SHA384"),
        ("1.3", "--tls13-ciphers", "TLS_CHACHA20_POLY1305_SHA256"),
        ("1.2", "--ciphers", "ECDHE-ECDSA-AES128-GCM-SHA256"),
        ("1.2", "--ciphers", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        ("1.2", "--ciphers", "ECDHE-ECDSA-CHACHA20-POLY1305"),
    ];
    for (n, (version, flag, cipher)) in ciphers.into_iter().enumerate() {
        let arguments = ["--tls-max", version, flag, cipher];
        let topic = format!("/t{n}");
        let publish = [
            &arguments[..],
            &[
                "--data-binary",
                &body,
                "-o",
                "/dev/null",
                "-w",
                "%{http_code}",
            ],
        ];
        let status = curl(
            &server,
            &certificates,
            &format!("/pub{topic}"),
            &publish.concat(),
        );
        assert_eq!(status, b"202", "{cipher}");
        let read = curl(&server, &certificates, &format!("/sub{topic}"), &arguments);
        assert!(read == large(), "{cipher}: {} bytes", read.len());
    }
}

#[test]
fn plain_clients_share_the_port() {
    let certificates = Certificates::new();
    let server = Server::with(&certificates.settings(""));
    let url = server.url("/pub/a");
    assert!(
        run("curl", &["-sS", "-d", "plain", &url], b"")
            .status
            .success()
    );
    assert_eq!(curl(&server, &certificates, "/sub/a", &[]), b"plain");
}

#[test]
fn alpn_offers_http_and_mqtt_and_refuses_what_is_not_spoken() {
    let certificates = Certificates::new();
    let server = Server::with(&certificates.settings("[http]\nh2 = false\n"));
    for (offered, answer) in [
        ("http/1.1", "ALPN protocol: http/1.1"),
        ("mqtt", "ALPN protocol: mqtt"),
        ("h2,http/1.1", "ALPN protocol: http/1.1"),
        ("h2", "no application protocol"),
    ] {
        let program_output = s_client(&server, &certificates, &["-alpn", offered], b"");
        assert!(
            program_output.contains(answer),
            "{offered}: {program_output}"
        );
    }
}

#[test]
fn browsers_may_choose_http2_by_default() {
    let certificates = Certificates::new();
    let server = Server::with(&certificates.settings(""));
    for (offered, answer) in [
        ("h2,http/1.1", "ALPN protocol: h2"),
        ("h2", "ALPN protocol: h2"),
        ("http/1.1", "ALPN protocol: http/1.1"),
        ("mqtt", "ALPN protocol: mqtt"),
    ] {
        let program_output = s_client(&server, &certificates, &["-alpn", offered], b"");
        assert!(
            program_output.contains(answer),
            "{offered}: {program_output}"
        );
    }
    let body = file(&certificates, "large", &large());
    let body = format!("@{body}");
    let arguments = [
        "--http2",
        "-o",
        "/dev/null",
        "-w",
        "%{http_version} %{http_code}",
    ];
    let publish = [&arguments[..], &["--data-binary", &body]].concat();
    let program_output = curl(&server, &certificates, "/pub/news", &publish);
    assert_eq!(String::from_utf8_lossy(&program_output), "2 202");
    let read = curl(&server, &certificates, "/sub/news", &["--http2"]);
    assert!(read == large(), "{} bytes", read.len());
    // Without TLS the port speaks HTTP/1.1 only, unless another setting says so.
    let plain = ["-s", "--http2-prior-knowledge", &server.url("/sub/news")];
    assert!(!run("curl", &plain, b"").status.success());
}

#[test]
fn openssl_resumes_with_a_ticket_in_both_versions() {
    let certificates = Certificates::new();
    let server = Server::with(&certificates.settings(""));
    let request = format!(
        "POST /pub/x HTTP/1.1\r\nHost: {}\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx",
        server.address()
    );
    for version in ["-tls1_2", "-tls1_3"] {
        let session = certificates.path("session");
        let first = [version, "-ign_eof", "-sess_out", &session];
        let program_output = s_client(&server, &certificates, &first, request.as_bytes());
        assert!(program_output.contains("New, TLS"), "{program_output}");
        let resumed = [version, "-ign_eof", "-sess_in", &session];
        let program_output = s_client(&server, &certificates, &resumed, request.as_bytes());
        assert!(
            program_output.contains("Reused, TLS"),
            "{version}: {program_output}"
        );
        assert!(
            program_output.contains("Verify return code: 0 (ok)"),
            "{program_output}"
        );
    }
}

#[test]
fn openssl_updates_its_keys_and_goes_on() {
    let certificates = Certificates::new();
    let server = Server::with(&certificates.settings(""));
    let mut client = Interactive::start(&server, &certificates, "-tls1_3");
    // To `openssl s_client`, `K` means new keys for both sides, and `k` a new key for its own side.
    for order in ["K\n", "k\n"] {
        client.type_line(order, "KEYUPDATE");
        let request = format!(
            "POST /pub/keys HTTP/1.1\nHost: {}\nContent-Length: 5\n\nhello",
            server.address()
        );
        client.type_line(&request, "HTTP/1.1 202");
    }
    assert_eq!(curl(&server, &certificates, "/sub/keys", &[]), b"hello");
}

#[test]
fn mosquitto_and_python_meet_over_tls() {
    if !has("mosquitto_sub") || !has("python3") {
        return;
    }
    let certificates = Certificates::new();
    let server = Server::with(&certificates.settings(""));
    let (port, root) = (
        server.address().port().to_string(),
        certificates.path("ca.pem"),
    );
    let fixed = [
        "-h",
        "localhost",
        "-p",
        &port,
        "--cafile",
        &root,
        "-t",
        "door",
    ];
    let subscriber = Command::new("mosquitto_sub")
        .args(fixed)
        .args(["-C", "2", "-W", "60", "-q", "1"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("mosquitto_sub");
    server.await_subscribers("door", 1);
    let publish = [&fixed[..], &["-m", "from mosquitto", "-q", "2"]].concat();
    assert!(run("mosquitto_pub", &publish, b"").status.success());
    let script = "
import socket, ssl, sys
context = ssl.create_default_context(cafile=sys.argv[2])
with context.wrap_socket(socket.create_connection(('127.0.0.1', int(sys.argv[1]))), server_hostname='localhost') as s:
    s.sendall(b'POST /pub/door HTTP/1.1\\r\\nHost: localhost:%s\\r\\nContent-Length: 11\\r\\n\\r\\nfrom python' % sys.argv[1].encode())
    print(s.version(), s.recv(1000).split(b' ')[1].decode())
";
    let program_output = run("python3", &["-c", script, &port, &root], b"");
    assert_eq!(
        String::from_utf8_lossy(&program_output.stdout).trim(),
        "TLSv1.3 201"
    );
    let output = await_output(subscriber);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "from mosquitto\nfrom python\n"
    );
}

#[test]
fn the_log_says_which_ports_speak_what() {
    let certificates = Certificates::new();
    for (settings, spoken) in [
        (String::new(), "http://ADDR"),
        (certificates.settings(""), "http://ADDR and https://ADDR"),
        (
            certificates.settings("required = true"),
            "https://ADDR (tls.required is on: TLS only)",
        ),
    ] {
        let server = Server::with(&settings);
        let spoken = spoken.replace("ADDR", &server.address().to_string());
        let program_output = format!("listening on {spoken}\n");
        server.await_log(&program_output);
    }
}
