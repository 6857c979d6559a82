//! Tests values that are empty or that a request cannot carry. The tool refuses them by name, and sends nothing.

use std::ffi::OsString;
use std::net::TcpListener;
use std::os::unix::ffi::OsStringExt as _;
use std::process::{Command, Output, Stdio};

use crate::scripted::Scripted;
use crate::support::program;
use crate::support::program::output;
use crate::text;

/// A port to which the tool must not connect.
struct SilentServer(TcpListener);

impl SilentServer {
    fn new() -> SilentServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a socket");
        SilentServer(listener)
    }

    fn url(&self) -> String {
        format!("http://{}", self.0.local_addr().expect("an address"))
    }

    /// Runs `crore` with the URL of this port. It must exit with 2, print these words, and not connect.
    fn refuses(
        &self,
        flag: &str,
        args: &[&str],
        variable: Option<(&str, OsString)>,
        words: &[&str],
    ) {
        let mut command = Command::new(program());
        command
            .args(args)
            .args([flag, &self.url()])
            .stdin(Stdio::null());
        command
            .env_remove("CRORE_TOKEN")
            .env_remove("CRORE_ADMIN_TOKEN");
        command.envs(variable.clone());
        let Output {
            status,
            stdout,
            stderr,
        } = output(&mut command);
        let error_text = String::from_utf8_lossy(&stderr);
        let case = format!("{args:?} {variable:?}: {error_text}");
        assert_eq!(status.code(), Some(2), "{case}");
        assert!(stdout.is_empty(), "{case}");
        assert!(self.0.accept().is_err(), "it has connected: {case}");
        for word in words {
            assert!(error_text.contains(word), "{word}: {case}");
        }
    }
}

#[test]
fn a_token_that_no_header_may_carry_is_refused_by_name_and_never_shown() {
    let server = SilentServer::new();
    for (flag, command, variable) in [
        ("--server", &["pub", "a", "x"][..], "CRORE_TOKEN"),
        ("--server", &["sub", "a"], "CRORE_TOKEN"),
        ("--server", &["sub", "a", "--protocol", "ws"], "CRORE_TOKEN"),
        (
            "--server",
            &["sub", "a", "--protocol", "poll"],
            "CRORE_TOKEN",
        ),
        ("--url", &["admin", "stats"], "CRORE_ADMIN_TOKEN"),
        (
            "--url",
            &["admin", "publish", "a", "x"],
            "CRORE_ADMIN_TOKEN",
        ),
    ] {
        for (token, word) in [
            ("", "is empty"),
            (" \n", "is empty"),
            ("hidden\r\nX-Other: 1", "no header may carry"),
            ("hidden\nX-Other: 1", "no header may carry"),
            ("hidden\rX", "no header may carry"),
            ("hidden word", "no header may carry"),
            ("hidden\tword", "no header may carry"),
            ("hiddengr\u{fc}n", "no header may carry"),
            ("hidden\u{7f}", "no header may carry"),
        ] {
            let with_flag = [command, &["--token", token]].concat();
            server.refuses(flag, &with_flag, None, &["--token", word]);
            server.refuses(
                flag,
                command,
                Some((variable, token.into())),
                &[variable, word],
            );
        }
        let bytes = OsString::from_vec(b"hidden\xff".to_vec());
        server.refuses(
            flag,
            command,
            Some((variable, bytes)),
            &[variable, "no header may carry"],
        );
    }
    let mut command = Command::new(program());
    let args = [
        "pub",
        "a",
        "x",
        "--token",
        "hidden\nword",
        "--server",
        &server.url(),
    ];
    let error_text = output(command.args(args)).stderr;
    assert!(
        !text(&error_text).contains("hidden"),
        "{}",
        text(&error_text)
    );
}

#[test]
fn line_end_of_a_token_file_is_removed() {
    for (flag, variable) in [
        (Some("secret-token\n"), None),
        (None, Some("secret-token\r\n")),
    ] {
        let server = Scripted::start(&[|peer| {
            let request = peer.request();
            assert_eq!(request.header("authorization"), Some("Bearer secret-token"));
            // The token's line end did not end the head: the fields after it are read.
            assert_eq!(
                (request.header("content-length"), &request.body[..]),
                (Some("1"), "x")
            );
            peer.respond("202 Accepted", "");
        }]);
        let mut command = Command::new(program());
        command.args(["pub", "a", "x", "--server", &server.url]);
        command.env_remove("CRORE_TOKEN");
        command.args(flag.iter().flat_map(|token| ["--token", token]));
        command.envs(variable.map(|token| ("CRORE_TOKEN", token)));
        let output = output(&mut command);
        assert!(output.status.success(), "{}", text(&output.stderr));
        server.await_end();
    }
}

#[test]
fn value_that_would_change_the_request_is_refused_by_name() {
    let server = SilentServer::new();
    for (args, name) in [
        (
            &["pub", "a", "x", "--content-type", ""][..],
            "--content-type",
        ),
        (
            &["pub", "a", "x", "--content-type", "text/plain\r\nA: b"],
            "--content-type",
        ),
        (
            &["pub", "a", "x", "--content-type", "text/gr\u{fc}n"],
            "--content-type",
        ),
        (&["pub", "a", "x", "--event", ""], "--event"),
        (&["pub", "a", "x", "--event", "a\rb"], "--event"),
        (&["pub", "a", "x", "--event", " a"], "--event"),
        (&["pub", "a", "x", "--event", "a\u{85}b"], "--event"),
        (&["pub", "a", "x", "--key", ""], "--key"),
        (&["pub", "a", "x", "--key", "a "], "--key"),
        (&["pub", "", "x"], "<TOPIC>"),
        (&["pub", "a\nb", "x"], "<TOPIC>"),
        (&["sub", ""], "<TOPIC>"),
        (&["sub", "a", "b\r\nc"], "<TOPIC>"),
        (&["sub", "a", "--since", ""], "--since"),
        (&["sub", "a", "--since", "1\r\n2"], "--since"),
        (&["pub", "chat/+", "x"], "crore sub"),
        (&["history", "chat/#"], "crore sub"),
        (&["sub", "chat/a+"], "chat/+/help"),
        (&["sub", "a", "--since", "newest"], "-N for the newest N"),
        (&["history", "a", "--since", "5"], "-N for the newest N"),
        (&["history", "a", "--since", "live"], "nothing that is kept"),
        (&["sub", "a", "--timeout", "0"], "leave it out"),
        // Flags as other tools have them.
        (&["sub", "-t", "news"], "crore sub news"),
        (&["sub", "news", "-q", "1"], "leave it out"),
        (&["pub", "-t", "news", "-m", "hi"], "crore pub news"),
        (&["pub", "news", "-m", "hi"], "crore pub TOPIC hi"),
    ] {
        server.refuses("--server", args, None, &[name]);
    }
    for (args, name) in [
        (
            &["admin", "publish", "a", "x", "--event", ""][..],
            "--event",
        ),
        (&["admin", "publish", "a", "x", "--key", "a\nb"], "--key"),
        (
            &["admin", "publish", "a", "x", "--content-type", ""],
            "--content-type",
        ),
        (&["admin", "publish", "", "x"], "<TOPIC>"),
        (&["admin", "topic", ""], "<NAME>"),
        (&["admin", "purge", ""], "<NAME>"),
        (&["admin", "topics", ""], "[FILTER]"),
        (&["admin", "connection", ""], "<ID>"),
        (&["admin", "disconnect", ""], "[ID]"),
        (&["admin", "disconnect", "--user", ""], "--user"),
        (&["admin", "disconnect", "--filter", ""], "--filter"),
        (&["admin", "disconnect", "--transport", ""], "--transport"),
        (&["admin", "connections", "--user", "a\nb"], "--user"),
    ] {
        server.refuses("--url", args, None, &[name]);
    }
}

#[test]
fn a_url_that_no_request_can_carry_is_refused_by_name() {
    let server = SilentServer::new();
    let address = server.url().replace("http://", "");
    for url in [
        String::new(),
        "http://".to_string(),
        format!("http://{address}/a b"),
        format!("http://{address}/a\r\nX: y"),
        format!("http://{address}/gr\u{fc}n"),
        format!("http://{address}/{{a}}"),
        format!("http://{address}/<a>"),
        format!("http://{address}?token=a"),
        format!("http://ann:secret@{address}"),
        format!("http://{}", address.replace(':', ":+")),
    ] {
        for args in [
            &["pub", "a", "x", "--server"][..],
            &["sub", "a", "--server"],
            &["admin", "stats", "--url"],
        ] {
            let mut command = Command::new(program());
            let output = output(command.args(args).arg(&url));
            let error_text = text(&output.stderr);
            assert_eq!(
                output.status.code(),
                Some(2),
                "{args:?} {url:?}: {error_text}"
            );
            assert!(
                server.0.accept().is_err(),
                "it has connected: {args:?} {url:?}"
            );
            assert!(
                error_text.contains(args[args.len() - 1]),
                "{args:?} {url:?}: {error_text}"
            );
        }
    }
}

#[test]
fn a_name_in_a_new_token_is_not_empty() {
    let key = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("values-{}", std::process::id()));
    std::fs::write(&key, "0123456789abcdef0123456789abcdef\n").expect("a file");
    let key = key.display().to_string();
    for flag in ["--user", "--kid", "--audience", "--issuer"] {
        for value in ["", "a\nb", "a\u{7f}"] {
            let mut command = Command::new(program());
            let output = output(command.args(["token", "mint", "--key", &key, flag, value]));
            assert_eq!(
                output.status.code(),
                Some(2),
                "{flag} {value:?}: {}",
                text(&output.stdout)
            );
            assert!(
                text(&output.stderr).contains(flag),
                "{}",
                text(&output.stderr)
            );
        }
    }
    let mut command = Command::new(program());
    let output = output(command.args(["token", "mint", "--key", &key, "--user", "gr\u{fc}n"]));
    assert!(output.status.success(), "{}", text(&output.stderr));
}
