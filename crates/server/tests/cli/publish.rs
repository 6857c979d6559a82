//! Tests `crore pub`: the requests that it sends, and what it prints about the answers.

use std::io::Write;
use std::process::{Output, Stdio};

use crate::scripted::Scripted;
use crate::support::program::{await_output, output};
use crate::support::{Server, tools};
use crate::{crore, text};

#[test]
fn pub_sends_one_message_and_prints_the_info() {
    let server = Scripted::start(&[|peer| {
        let request = peer.request();
        assert_eq!(request.line, "POST /pub/a/b%20c HTTP/1.1");
        assert_eq!(request.header("content-type"), Some("text/html"));
        assert_eq!(request.header("x-eventsource-event"), Some("news"));
        assert_eq!(request.header("crore-key"), Some("ACME"));
        assert_eq!(request.header("crore-ttl"), Some("60"));
        assert_eq!(request.header("accept"), Some("application/json"));
        assert_eq!(request.body, "hello");
        peer.send("HTTP/1.1 100 Continue\r\n\r\n");
        peer.respond("201 Created", "{\"messages\":1}\r\n");
    }]);
    let output = server.run(&[
        "pub",
        "a/b c",
        "hello",
        "--json",
        "--content-type",
        "text/html",
        "--event",
        "news",
        "--key",
        "ACME",
        "--ttl",
        "60",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "{\"messages\":1}\n");
}

#[test]
fn pub_exits_with_1_and_the_servers_reason() {
    let server = Scripted::start(&[|peer| {
        peer.request();
        peer.respond(
            "413 Content Too Large",
            "the message has more than\u{1b}[1m 9 bytes\n",
        );
    }]);
    let output = server.run(&["pub", "a", "hello"]);
    assert_eq!(output.status.code(), Some(1));
    let reason = "crore: the server refused the message: 413 Content Too Large: the message has more than [1m 9 bytes\n";
    assert_eq!(text(&output.stderr), reason);
}

#[test]
fn tool_without_a_token_says_where_to_put_it() {
    for args in [
        &["pub", "a", "hello"][..],
        &["sub", "a"],
        &["sub", "a", "--protocol", "ws"],
        &["history", "a"],
    ] {
        let server = Scripted::start(&[|peer| {
            peer.request();
            peer.respond("401 Unauthorized", "this needs credentials\n");
        }]);
        let output = server.run(args);
        let error_text = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {error_text}");
        assert!(
            error_text
                .contains("this needs credentials; give a token with --token or in CRORE_TOKEN"),
            "{args:?}: {error_text}"
        );
    }
}

#[test]
fn pub_reads_stdin_as_one_message_or_by_lines() {
    let scripted = Scripted::start(&[|peer| {
        let request = peer.request();
        assert_eq!(request.body, "one\ntwo\n");
        let other_headers = ["crore-key", "crore-ttl", "x-eventsource-event"];
        assert!(
            other_headers
                .iter()
                .all(|name| request.header(name).is_none())
        );
        peer.respond("202 Accepted", "");
    }]);
    assert!(pipe(scripted, &["pub", "a"], "one\ntwo\n").status.success());

    let lines = Scripted::start(&[
        |peer| {
            assert_eq!(peer.request().body, "one");
            peer.respond("202 Accepted", "");
            assert_eq!(peer.request().body, "");
            // The server closes the connection after this answer, so the tool opens a new one.
            peer.send("HTTP/1.1 202 Accepted\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        },
        |peer| {
            assert_eq!(peer.request().body, "three");
            peer.respond("202 Accepted", "");
            assert!(peer.is_closed());
        },
    ]);
    assert!(
        pipe(lines, &["pub", "a", "--lines"], "one\n\r\nthree")
            .status
            .success()
    );
}

/// The tool prints this only for a user at a terminal, not into a pipe or for a script.
#[test]
fn tool_confirms_publish_and_subscribe_at_a_terminal() {
    if !tools::has("script") {
        return;
    }
    let server = Server::start();
    let at_terminal = |args: &str| {
        let command = format!(
            "{} {args} --server {}",
            env!("CARGO_BIN_EXE_crore"),
            server.url("")
        );
        let mut shell = std::process::Command::new("script");
        let result = output(
            shell
                .args(["-qec", &command, "/dev/null"])
                .stdin(Stdio::null()),
        );
        assert!(result.status.success(), "{result:?}");
        text(&result.stdout).replace('\r', "")
    };
    assert_eq!(
        at_terminal("pub news one"),
        "crore: published to `news`: 0 subscribers receive it\n"
    );
    let url = format!("http://{}", server.address());
    for protocol in ["sse", "ws"] {
        let terminal_output = at_terminal(&format!(
            "sub news --since oldest --count 1 --protocol {protocol}"
        ));
        assert_eq!(
            terminal_output,
            format!("crore: subscribed to `news` at {url}; Ctrl-C ends it\none\n")
        );
    }
    let piped = output_of(&["pub", "news", "two", "--server", &url]);
    assert_eq!((text(&piped.stdout), text(&piped.stderr)), ("", ""));
}

/// Like mosquitto_pub, the tool publishes nothing for an empty input: in a pipe, the command before it has probably failed.
#[test]
fn empty_input_is_no_message_but_an_empty_argument_is() {
    let empty = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("empty-{}", std::process::id()));
    std::fs::write(&empty, "").unwrap();
    let empty = empty.to_str().unwrap();
    // Nobody listens at this address.
    for (args, source) in [
        (&["pub", "a"][..], "stdin"),
        (&["pub", "a", "--retain"], "stdin"),
        (&["pub", "a", "--file", "-"], "stdin"),
        (&["pub", "a", "--file", empty], empty),
        (&["admin", "publish", "a"], "stdin"),
    ] {
        let result = output(crore(args).args(["--server", "http://127.0.0.1:1"]));
        let error_text = text(&result.stderr);
        assert_eq!(result.status.code(), Some(1), "{args:?}: {error_text}");
        assert!(
            error_text.contains(&format!(
                "{source} is empty, so nothing is published; write ''"
            )),
            "{args:?}: {error_text}"
        );
    }
    let _ = std::fs::remove_file(empty);
    // With `--lines`, an empty input is no error: a log file that is followed may have no line yet.
    let output = output_of(&["pub", "a", "--lines", "--server", "http://127.0.0.1:1"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let server = Scripted::start(&[|peer| {
        assert_eq!(peer.request().body, "");
        peer.respond("202 Accepted", "");
    }]);
    let output = server.run(&["pub", "a", ""]);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn failed_line_is_named_with_the_number_of_published_lines() {
    let server = Scripted::start(&[|peer| {
        for _ in 0..2 {
            peer.request();
            peer.respond("202 Accepted", "");
        }
        peer.request();
        peer.respond("413 Content Too Large", "too long");
    }]);
    let output = pipe(server, &["pub", "a", "--lines"], "one\ntwo\nthree\nfour\n");
    assert_eq!(output.status.code(), Some(1));
    let error_text = "crore: stdin, line 3, after 2 that were published: the server refused the message: 413 Content Too Large: too long\n";
    assert_eq!(text(&output.stderr), error_text);
}

#[test]
fn each_file_is_a_message_and_may_be_retained() {
    let path = |name: &str| {
        let name = format!("publish-{name}-{}", std::process::id());
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        path.to_str().unwrap().to_string()
    };
    let (first_file, second_file) = (path("one"), path("two"));
    std::fs::write(&first_file, "1\n2\n").unwrap();
    std::fs::write(&second_file, "3").unwrap();
    let server = Scripted::start(&[|peer| {
        for body in ["1\n2\n", "3"] {
            let request = peer.request();
            assert_eq!(request.body, body);
            assert_eq!(request.header("crore-retain"), Some("true"));
            peer.respond("202 Accepted", "");
        }
    }]);
    let output = server.run(&["pub", "a", "-r", "-f", &first_file, "--file", &second_file]);
    assert!(output.status.success(), "{}", text(&output.stderr));

    let server = Scripted::start(&[|peer| {
        for body in ["1", "2"] {
            let request = peer.request();
            assert_eq!(request.body, body);
            assert_eq!(request.header("crore-ttl"), Some("28800"));
            peer.respond("202 Accepted", "");
        }
    }]);
    let output = server.run(&["pub", "a", "-l", "-f", &first_file, "--ttl", "8h"]);
    assert!(output.status.success(), "{}", text(&output.stderr));

    let missing = output_of(&["pub", "a", "--file", "nowhere.txt"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).starts_with("crore: --file nowhere.txt: "));
    let _ = (
        std::fs::remove_file(first_file),
        std::fs::remove_file(second_file),
    );
}

#[test]
fn repeated_publish_with_a_key_publishes_only_the_missing_messages() {
    let server = Scripted::start(&[|peer| {
        let request = peer.request();
        assert_eq!(request.header("idempotency-key"), Some("today"));
        peer.respond("202 Accepted", "");
    }]);
    let output = server.run(&["pub", "a", "one", "--idempotency-key", "today"]);
    assert!(output.status.success(), "{}", text(&output.stderr));

    let server = Server::start();
    let publish = |input: &str| {
        let url = format!("http://{}", server.address());
        let mut child = crore(&[
            "pub",
            "a",
            "--lines",
            "--idempotency-key",
            "today",
            "--json",
        ])
        .args(["--server", &url])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).unwrap();
        drop(stdin);
        let output = await_output(child);
        assert!(output.status.success(), "{}", text(&output.stderr));
    };
    publish("one\ntwo\n");
    publish("one\ntwo\nthree\n");
    let url = format!("http://{}", server.address());
    let history = output_of(&["history", "a", "--server", &url]);
    assert_eq!(text(&history.stdout), "one\ntwo\nthree\n");
}

#[test]
fn detail_of_a_problem_is_printed_as_text() {
    let server = Server::start();
    let url = format!("http://{}", server.address());
    let output = output_of(&["pub", "$SYS/a", "x", "--server", &url]);
    let error_text = "crore: the server refused the message: 403 Forbidden: topics that begin with $ are the server's own\n";
    assert_eq!(text(&output.stderr), error_text);
}

#[test]
fn a_topic_with_the_wildcards_of_other_servers_can_be_published_to() {
    let server = Server::start();
    let url = format!("http://{}", server.address());
    let output = output_of(&["pub", "scores/*", "x", "--server", &url]);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn error_of_the_admin_port_is_printed_as_text() {
    let server = Scripted::start(&[|peer| {
        peer.request();
        peer.respond("404 Not Found", r#"{"error":"this is the admin port"}"#);
    }]);
    let output = server.run(&["pub", "a", "hello"]);
    let error_text =
        "crore: the server refused the message: 404 Not Found: this is the admin port\n";
    assert_eq!(text(&output.stderr), error_text);
}

#[test]
fn a_variable_names_the_server_and_a_flag_wins() {
    let server = Scripted::start(&[|peer| {
        peer.request();
        peer.respond("202 Accepted", "");
    }]);
    let mut command = crore(&["pub", "a", "hello"]);
    let result = output(
        command
            .env("CRORE_SERVER", &server.url)
            .env("CRORE_CA", "/nowhere"),
    );
    // A file of root certificates is used for servers with TLS only, and ignored otherwise.
    assert!(result.status.success(), "{}", text(&result.stderr));
    server.await_end();
    let server = Scripted::start(&[|peer| {
        peer.request();
        peer.respond("202 Accepted", "");
    }]);
    let mut command = crore(&["pub", "a", "hello", "-s", &server.url]);
    let result = output(command.env("CRORE_SERVER", "http://127.0.0.1:1"));
    assert!(result.status.success(), "{}", text(&result.stderr));
    server.await_end();
    let refused = output(crore(&["pub", "a", "b"]).env("CRORE_SERVER", "ftp://x"));
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("CRORE_SERVER: `ftp://x`"));
    let roots =
        output(crore(&["pub", "a", "b", "-s", "https://127.0.0.1:1"]).env("CRORE_CA", "/nowhere"));
    assert!(text(&roots.stderr).contains("/nowhere: it cannot be read"));
}

fn output_of(args: &[&str]) -> Output {
    output(&mut crore(args))
}

fn pipe(server: Scripted, args: &[&str], input: &str) -> Output {
    let mut child = crore(args)
        .args(["--server", &server.url])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = await_output(child);
    server.await_end();
    output
}
