//! Tests `crore admin` against a real server.

use std::io::Write as _;
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::support::port::{ask, stream};
use crate::support::program::{await_output, output};
use crate::support::{Server, eventually};

fn admin(server: &Server, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crore"));
    command
        .args(["admin", "--url", &format!("http://{}", server.admin())])
        .args(args)
        .env_remove("CRORE_ADMIN_TOKEN");
    output(&mut command)
}

/// The output of a command, which must succeed.
fn admin_output(server: &Server, args: &[&str]) -> String {
    let output = admin(server, args);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {error}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn admin_tool_publishes_lists_reads_purges_and_deletes_a_topic() {
    let server = Server::with_admin("");
    for text in ["one", "two", "three"] {
        assert!(admin_output(&server, &["publish", "a/b", text]).starts_with("id "));
    }
    let listed = admin_output(&server, &["topics", "a/#"]);
    assert!(
        listed.starts_with("name") && listed.contains("a/b"),
        "{listed}"
    );
    let read = admin_output(&server, &["messages", "a/b", "--limit", "2"]);
    assert!(
        read.contains("one") && read.contains("two") && !read.contains("three"),
        "{read}"
    );
    assert!(read.contains("and more"), "{read}");
    let newest = admin_output(&server, &["messages", "a/b", "--newest", "--limit", "2"]);
    let at = |text: &str| newest.find(text);
    assert!(
        at("three") < at("two") && at("two").is_some() && at("one").is_none(),
        "{newest}"
    );
    assert!(newest.contains("published (UTC)"), "{newest}");
    let json: Value =
        serde_json::from_str(&admin_output(&server, &["messages", "a/b", "--json"])).unwrap();
    let first = json["messages"][0]["offset"].to_string();
    let later_messages = admin_output(&server, &["messages", "a/b", "--after", &first]);
    assert!(
        !later_messages.contains("one") && later_messages.contains("three"),
        "{later_messages}"
    );
    assert_eq!(admin_output(&server, &["purge", "a/b"]), "purged  3\n");
    assert!(admin_output(&server, &["topic", "a/b", "--json"]).contains("\"messages\": 0"));
    let of_topic = admin_output(&server, &["topic", "a/b"]);
    let row = |name: &str| {
        let mut rows = of_topic
            .lines()
            .map(|line| line.split_whitespace().collect());
        rows.find(|row: &Vec<&str>| row[0] == name)
            .unwrap_or_default()
    };
    assert_eq!(
        (row("name"), row("messages")),
        (
            vec!["name", "a/b"],
            vec!["messages", "0", "kept,", "0", "B"]
        ),
        "{of_topic}"
    );
    assert!(admin_output(&server, &["delete", "a/b"]).contains("true"));
    let missing = admin(&server, &["topic", "a/b"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("no such topic (404"));
}

#[test]
fn topics_are_listed_by_name_or_by_their_largest_counts() {
    let server = Server::with_shards(2, "");
    for (topic, count) in [("b", 1), ("d", 3), ("a", 2), ("e", 1), ("c", 4)] {
        for n in 0..count {
            admin_output(&server, &["publish", topic, &n.to_string()]);
        }
    }
    let names = |args: &[&str]| -> String {
        let text = admin_output(&server, &[&["topics"], args].concat());
        let names = text
            .lines()
            .skip(1)
            .map(|line| line.split(' ').next().unwrap_or_default());
        names.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names(&[]), "a b c d e");
    assert_eq!(names(&["--sort", "messages", "--limit", "3"]), "c d a ...");
    assert_eq!(
        names(&["--sort", "Messages", "--limit", "5"])
            .split(' ')
            .collect::<Vec<_>>()[..3],
        ["c", "d", "a"]
    );
}

#[test]
fn topics_and_settings_are_shown_as_text() {
    let server = Server::with_admin("[limits]\nmessage_bytes = '64 KiB'\n");
    admin_output(&server, &["publish", "chat/a", "Hello."]);
    let topic = admin_output(&server, &["topic", "chat/a"]);
    let json: Value =
        serde_json::from_str(&admin_output(&server, &["messages", "chat/a", "--json"]))
            .expect("JSON");
    assert!(
        topic.contains("1 kept, ") && topic.contains("never"),
        "{topic}"
    );
    assert!(
        topic.contains(&format!("-{}\n", json["messages"][0]["offset"])),
        "{topic}"
    );
    // The printed settings are a file that a server accepts.
    let config = admin_output(&server, &["config"]);
    let table: toml::Table = config.parse().expect("TOML");
    assert_eq!(
        table["limits"]["message_bytes"].as_str(),
        Some("64 KiB"),
        "{config}"
    );
}

#[test]
fn selection_flags_have_the_names_that_users_expect() {
    let server = Server::with_admin("");
    for args in [
        &["disconnect", "--topic", "news"][..],
        &["disconnect", "-t", "news"],
        &["connections", "--topic", "news"],
        &["connections", "--protocol", "ws"],
        &["connections", "--transport", "EventSource"],
        &["connections", "--ip", "127.0.0.1"],
    ] {
        admin_output(&server, args);
    }
}

#[test]
fn drain_is_logged_as_a_drain() {
    let server = Server::with_admin("");
    admin_output(&server, &["drain"]);
    let log = server.await_end();
    assert!(log.contains("told to drain at the admin port"), "{log}");
    assert!(!log.contains("SIGTERM"), "{log}");
}

#[test]
fn connections_are_listed_and_ended() {
    let server = Server::with_admin("");
    let _readers = [
        stream(server.address(), "/sub/x/1"),
        stream(server.address(), "/sub/y"),
    ];
    eventually("both", || {
        let listed = admin_output(&server, &["connections", "--transport", "sse"]);
        (listed.lines().count() == 3).then_some(())
    });
    let listed = admin_output(&server, &["connections"]);
    let head = listed.lines().next().unwrap_or_default();
    assert!(head.ends_with("connected (UTC)"), "{listed}");
    assert!(
        admin_output(&server, &["disconnect", "--filter", "x/+", "--json"])
            .contains("\"disconnected\": 1")
    );
    eventually("one is gone", || {
        let listed = admin_output(&server, &["connections", "--transport", "sse"]);
        (listed.lines().count() == 2 && listed.contains("y")).then_some(())
    });
    for (address, lines) in [("127.0.0.1", 2), ("192.0.2.1", 1)] {
        let listed = admin_output(
            &server,
            &["connections", "--transport", "sse", "--address", address],
        );
        assert_eq!(listed.lines().count(), lines, "{listed}");
    }
    let refused = admin(&server, &["connections", "--address", "here"]);
    assert_eq!(refused.status.code(), Some(2));
    assert_eq!(admin(&server, &["disconnect"]).status.code(), Some(2));
    for (order, word) in [
        ("rules", "match"),
        ("config", "limits"),
        ("limits", "limits"),
        ("reload", "changed"),
    ] {
        let json: Value =
            serde_json::from_str(&admin_output(&server, &[order, "--json"])).expect("JSON");
        assert!(json.to_string().contains(&format!("\"{word}\"")), "{json}");
        let output = admin_output(&server, &[order]);
        assert!(output.contains(word) && !output.contains('{'), "{output}");
    }
    let first = eventually("the connection is counted", || {
        let first = admin_output(&server, &["stats"]);
        first.contains("(sse 1)").then_some(first)
    });
    assert!(first.lines().count() <= 25, "{first}");
    for words in ["127.0.0.1", "nearest limits", "stats --all"] {
        assert!(first.contains(words), "{words}: {first}");
    }
    let json: Value =
        serde_json::from_str(&admin_output(&server, &["stats", "--json"])).expect("JSON");
    assert!(json["connections"]["by_transport"]["sse"] == 1, "{json}");
    let stats = admin_output(&server, &["stats", "--all"]);
    assert!(
        stats.contains("connections.by_transport.sse  ") && stats.contains("\nshards:\nid  "),
        "{stats}"
    );
}

#[test]
fn memory_report_shows_parts_and_limits() {
    let server = Server::with_admin("[limits]\nmemory_bytes = \"64 MiB\"\n");
    // A server that has just started has no figures for up to a second.
    let report = eventually("figures", || {
        let report = admin_output(&server, &["memory"]);
        report.contains("MQTT sessions").then_some(report)
    });
    // The parts with a limit, and the parts of the process that are not empty, the largest first.
    assert!(
        report.starts_with("memory                     used"),
        "{report}"
    );
    let row = |words: &str| report.lines().find(|line| line.starts_with(words));
    let limited = row("what clients make it hold").expect("a row");
    assert!(
        limited.ends_with("64.0 MiB  limits.memory_bytes"),
        "{report}"
    );
    assert!(
        row("the whole process").expect("a row").contains(" MiB"),
        "{report}"
    );
    assert!(
        row("MQTT sessions")
            .expect("a row")
            .ends_with(" KiB  sessions"),
        "{report}"
    );
    assert!(
        row("messages that wait for slow clients").is_none() && report.contains("that are empty"),
        "{report}"
    );
    // A partly received request is one of the parts, and is in the sum.
    let mut incomplete = TcpStream::connect(server.address()).unwrap();
    let head = format!("GET /pub/a HTTP/1.1\r\nX: {}", "x".repeat(5_000));
    incomplete.write_all(head.as_bytes()).unwrap();
    eventually("it is held", || {
        let json: Value =
            serde_json::from_str(&admin_output(&server, &["memory", "--json"])).unwrap();
        let bytes = |name: &str| {
            let mut rows = json["memory"].as_array().unwrap().iter();
            rows.find(|row| row["name"] == name).unwrap()["bytes"].as_u64()
        };
        (bytes("received") >= Some(5_000) && bytes("limits.memory_bytes") >= bytes("received"))
            .then_some(())
    });
}

#[test]
fn admin_without_a_token_is_told_where_to_put_it() {
    let server = Server::with_admin("[admin]\ntoken = \"0123456789abcdef\"\n");
    let output = admin(&server, &["rules"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error.contains("--token") && error.contains("CRORE_ADMIN_TOKEN"),
        "{error}"
    );
    assert!(error.contains("wants a token"), "{error}");
    let refused = admin(&server, &["rules", "--token", "fedcba9876543210"]);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        error.contains("the token is not that of admin.token") && error.contains("--token"),
        "{error}"
    );
    assert!(admin_output(&server, &["rules", "--token", "0123456789abcdef"]).contains("match"));
    assert_eq!(ask(server.admin(), "GET /healthz", None).status, 200);
}

#[test]
fn each_port_refuses_requests_for_the_other_and_names_it() {
    let server = Server::with_admin("");
    let crore = |args: &[&str], flag: &str, address: std::net::SocketAddr| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_crore"));
        command
            .args(args)
            .args([flag, &format!("http://{address}")]);
        let output = output(&mut command);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let error = crore(&["admin", "stats"], "--url", server.address());
    assert!(
        error.contains("is no admin port") && error.contains("--url"),
        "{error}"
    );
    for args in [
        &["pub", "a", "x"][..],
        &["sub", "a"],
        &["sub", "a", "-p", "ws"],
    ] {
        let error = crore(args, "--server", server.admin());
        assert!(
            error.contains("this is the admin port") && error.contains("8800"),
            "{error}"
        );
    }
}

#[test]
fn subscriber_cut_off_before_its_first_message_misses_nothing() {
    let server = Server::with_admin("");
    let url = format!("http://{}", server.address());
    // A subscriber that is cut off before the server answered ends with an error, so the test tries another one.
    let mut topics = (0..).map(|n| format!("news/{n}"));
    let output = eventually("a subscriber that was answered", || {
        let output = cut_off(&server, &url, &topics.next()?);
        output.status.success().then_some(output)
    });
    assert_eq!(output.stdout, b"one\ntwo\n");
}

/// Ends the connection of a subscriber that waits for two messages, publishes them, and returns the subscriber's output.
fn cut_off(server: &Server, url: &str, topic: &str) -> Output {
    let child = Command::new(env!("CARGO_BIN_EXE_crore"))
        .args(["sub", topic, "--count", "2", "--server", url])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    eventually("it is cut off", || {
        let output = admin_output(server, &["disconnect", "--filter", topic, "--json"]);
        output.contains("\"disconnected\": 1").then_some(())
    });
    for text in ["one", "two"] {
        admin_output(server, &["publish", topic, text]);
    }
    await_output(child)
}

#[test]
fn rules_are_a_table_and_the_message_may_come_from_stdin() {
    let server = Server::with_admin("[[rule]]\nmatch = 'a/#'\nlog_age_s = '8h'\n");
    let rules = admin_output(&server, &["rules"]);
    let mut rows = rules.lines();
    assert!(
        rows.next().unwrap().starts_with("match         keep"),
        "{rules}"
    );
    let row = rows.next().unwrap();
    assert!(
        row.starts_with("a/#           log ") && row.contains(" 8h "),
        "{rules}"
    );
    let others = rows.next().unwrap();
    assert!(
        others.starts_with("(all others)  log ") && others.contains(" 1h "),
        "{rules}"
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_crore"));
    let url = format!("http://{}", server.admin());
    let mut child = command
        .args(["admin", "--url", &url, "publish", "a/b"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"piped").unwrap();
    assert!(child.wait().unwrap().success());
    assert!(admin_output(&server, &["messages", "a/b"]).contains("piped"));
}

#[test]
fn topics_of_the_server_itself_are_listed_on_request() {
    let server = Server::with_admin("");
    admin_output(&server, &["publish", "a/b", "x"]);
    let _reader = stream(server.address(), "/sub/%24SYS/broker/uptime");
    let system_topics = eventually("the server's own topics", || {
        let listed = admin_output(&server, &["topics", "$SYS/#"]);
        (listed.lines().count() > 1).then_some(listed)
    });
    assert!(system_topics.contains("$SYS/broker/"), "{system_topics}");
    let listed = admin_output(&server, &["topics"]);
    assert!(
        listed.contains("a/b") && !listed.contains("$SYS"),
        "{listed}"
    );
}
