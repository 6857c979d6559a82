//! Tests several `--server` flags: the nodes of a cluster, which the tool tries in the given order.

use crate::scripted::{Scripted, Step};
use crate::support::Server;
use crate::support::http::publish;
use crate::support::program::output;
use crate::{crore, run, text};

/// A URL at which nobody listens, since the kernel does not choose port 1.
const AWAY: &str = "http://127.0.0.1:1";

#[test]
fn first_reachable_server_serves_each_command() {
    let server = Server::with("");
    publish(&server, "news", "kept");
    let url = server.url("");
    for args in [
        &["pub", "a", "b"][..],
        &["history", "news"],
        &["sub", "news", "--since", "oldest", "--count", "1"],
        &[
            "sub",
            "news",
            "--since",
            "oldest",
            "--count",
            "1",
            "--protocol",
            "ws",
        ],
        &[
            "sub",
            "news",
            "--since",
            "oldest",
            "--count",
            "1",
            "--protocol",
            "poll",
        ],
    ] {
        let flags = [
            "--server",
            AWAY,
            "--server",
            &url,
            "--server",
            "http://127.0.0.1:2",
        ];
        let of_flags = run(&[args, &flags].concat());
        let of_variable = output(crore(args).env("CRORE_SERVER", format!("{AWAY} {url}")));
        for output in [of_flags, of_variable] {
            let log = text(&output.stderr);
            assert!(output.status.success(), "{args:?}: {log}");
            assert!(
                log.contains("trying the next server") && log.contains(AWAY),
                "{log}"
            );
            if args[0] != "pub" {
                assert_eq!(text(&output.stdout), "kept\n", "{args:?}");
            }
        }
    }
}

#[test]
fn error_is_that_of_the_last_server_if_none_is_reachable() {
    let last = "http://127.0.0.1:2";
    for command in [&["pub", "a", "b"][..], &["sub", "a"], &["history", "a"]] {
        let output = run(&[command, &["-s", AWAY, "-s", last]].concat());
        assert_eq!(output.status.code(), Some(1), "{command:?}");
        let log = text(&output.stderr);
        let error = log.lines().last();
        assert!(error.is_some_and(|it| it.contains(last)), "{log}");
        assert!(log.contains(AWAY), "{log}");
    }
}

const STREAM: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n:\n\n";

#[test]
fn subscription_continues_at_the_next_server_after_its_last_message() {
    let first: &'static [Step] = &[|peer| {
        peer.request();
        peer.send(format!(
            "{STREAM}id: e:1\ndata: {{\"topic\":\"a\",\"id\":\"e:1\",\"data\":\"one\"}}\n\n"
        ));
    }];
    let second: &'static [Step] = &[|peer| {
        let request = peer.request();
        assert!(request.line.contains("since=e%3A1"), "{}", request.line);
        peer.send(format!(
            "{STREAM}id: e:2\ndata: {{\"topic\":\"a\",\"id\":\"e:2\",\"data\":\"two\"}}\n\n"
        ));
        assert!(peer.is_closed());
    }];
    let (first, second) = (Scripted::start(first), Scripted::start(second));
    let output = run(&[
        "sub",
        "a",
        "--count",
        "2",
        "--server",
        &first.url,
        "--server",
        &second.url,
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "one\ntwo\n");
    first.await_end();
    second.await_end();
}
