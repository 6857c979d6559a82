//! Tests a client that stops reading its stream over TLS, and continues later. It receives every message once and in order, although the
//! server had to go back to reading from the log.

use crate::support::Server;
use crate::tool::{Certificates, curl};
use std::io::Read;
use std::process::{Command, Stdio};

const MESSAGES: usize = 400;

#[test]
fn a_stream_that_stalls_resumes_exactly_from_the_log() {
    let certificates = Certificates::new();
    // On a busy machine the client may read nothing for a long time, so `body_s` is long.
    let limits =
        "[timeouts]\nbody_s = 600\n[limits]\noutbox_bytes = 30000\nsend_buffer_bytes = 8192\n";
    let rule = "[[rule]]\nmatch = \"#\"\nlog_messages = 100000\nlog_bytes = \"64 MiB\"\n";
    let server = Server::with(&format!("{limits}{}{rule}", certificates.settings("")));
    for version in ["1.2", "1.3"] {
        let topic = format!("stall{}", version.replace('.', ""));
        let url = format!("https://{}/sub/{topic}", server.address());
        // Nobody reads curl's output pipe yet. When the pipe is full, curl stops reading from its socket, and the socket fills.
        let stream = Command::new("curl")
            .args([
                "-sSN",
                "--tls-max",
                version,
                "--cacert",
                &certificates.path("ca.pem"),
            ])
            .args(["-H", "Accept: text/event-stream", &url])
            .stdout(Stdio::piped())
            .spawn();
        let mut stream = stream.expect("curl");
        server.await_subscribers(&topic, 1);
        let mut batch = String::new();
        for n in 0..MESSAGES {
            let data = format!("{n:06}{}", "x".repeat(30_000));
            batch.push_str(&format!("{{\"topic\":\"{topic}\",\"data\":\"{data}\"}}\n"));
        }
        for (n, part) in batch.lines().collect::<Vec<_>>().chunks(40).enumerate() {
            let name = format!("batch{n}");
            certificates.write(&name, &(part.join("\n") + "\n"));
            let body = format!("@{}", certificates.path(&name));
            let head = [
                "-H",
                "Content-Type: application/x-ndjson",
                "--data-binary",
                &body,
            ];
            curl(&server, &certificates, "/pub", &head);
        }
        let mut received = String::new();
        let mut output = stream.stdout.take().expect("a pipe");
        let mut buffer = [0; 65_536];
        while !received.contains(&format!("data: {:06}x", MESSAGES - 1))
            || !received.ends_with("\n\n")
        {
            let count = output.read(&mut buffer).expect("a pipe");
            assert!(count > 0, "the stream goes on");
            received.push_str(std::str::from_utf8(&buffer[..count]).expect("text"));
        }
        let numbers: Vec<usize> = received
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .map(|data| {
                assert_eq!(data.len(), 30_006, "a whole message");
                data[..6].parse().expect("a number")
            })
            .collect();
        assert!(numbers.iter().copied().eq(0..MESSAGES), "{numbers:?}");
        stream.kill().expect("it runs");
        stream.wait().expect("it ends");
    }
}
