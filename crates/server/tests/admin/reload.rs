//! Tests settings that a running server reads again, by `POST /api/v1/reload`, by SIGHUP and by `crore admin reload`.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::port::{Answer, ask, get, line, metric, raw, stream};
use crate::support::program::output;
use crate::support::{Server, eventually, until};

/// The log's words for a reload that takes effect, and for one that is refused.
const READ: &str = "settings read again";
const REFUSED: &str = "settings not changed";

/// The settings of most tests here: the topic `a` keeps this many messages.
fn keeps(messages: u32) -> String {
    format!("shards = 2\n\n[[rule]]\nmatch = 'a'\nlog_messages = {messages}\n")
}

fn server() -> Server {
    Server::with_admin("[[rule]]\nmatch = 'a'\nlog_messages = 3\n")
}

fn write(server: &Server, text: impl AsRef<[u8]>) {
    std::fs::write(server.settings_file(), text).expect("a settings file");
}

fn reload(server: &Server) -> Answer {
    ask(server.admin(), "POST /api/v1/reload", Some("{}"))
}

/// The reason why a reload is refused.
fn refusal(server: &Server) -> String {
    let answer = reload(server);
    assert_eq!(answer.status, 422, "{}", answer.body);
    let error = answer.json()["error"].take();
    error.as_str().expect("a reason").to_string()
}

/// The settings in force, by the API.
fn config(server: &Server) -> Value {
    get(server.admin(), "config")["config"].take()
}

/// How many of ten messages the topic keeps. The number shows which rules its shard applies.
fn kept_settings(server: &Server) -> Value {
    for _ in 0..10 {
        let answer = raw(
            server.address(),
            "POST /pub/a",
            "Host: localhost\r\n",
            Some("x"),
        );
        assert_eq!(answer.status / 100, 2, "{}", answer.body);
    }
    get(server.admin(), "topic?name=a")["messages"].take()
}

fn count(server: &Server, text: &str) -> usize {
    server.log().matches(text).count()
}

#[test]
fn reload_names_changed_settings_and_those_that_need_a_restart() {
    let server = server();
    assert_eq!(kept_settings(&server), 3);
    let answer = reload(&server);
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json(), json!({"changed": [], "kept": []}));

    let waiting = "pin = true\nbacklog = 77\n[admin]\nhosts = ['x.example']\n[mqtt]\nsessions_per_address_max = 9\n\
        [limits]\nconnections_per_shard = 9\nconnections_per_address_max = 9\naccepts_per_s = 9\n\
        publishes_per_address_per_s = 9\npublishes_per_address_burst = 9\ntopics_per_address_per_s = 9\n\
        topics_per_address_burst = 9\nlog_bytes_per_address_max = '9 MiB'\nsend_buffer_bytes = 9000\n";
    let rule = &keeps(7)["shards = 2\n".len()..];
    let text = format!("shards = 3\n{waiting}{rule}[timeouts]\nbody_s = 21\n");
    write(&server, text);
    let answer = reload(&server).json();
    assert_eq!(answer["changed"], json!(["rule", "timeouts.body_s"]));
    let pending = [
        "admin.hosts",
        "backlog",
        "limits.accepts_per_s",
        "limits.connections_per_address_max",
        "limits.connections_per_shard",
        "limits.log_bytes_per_address_max",
        "limits.publishes_per_address_burst",
        "limits.publishes_per_address_per_s",
        "limits.send_buffer_bytes",
        "limits.topics_per_address_burst",
        "limits.topics_per_address_per_s",
        "mqtt.sessions_per_address_max",
        "pin",
        "shards",
    ];
    assert_eq!(answer["kept"], json!(pending));
    let config_after = config(&server);
    assert_eq!(config_after["timeouts"]["body_s"], 21);
    assert_eq!(config_after["shards"], 2, "what waits does not hold");
    assert_eq!(kept_settings(&server), 7);
    eventually("the log of both", || {
        let log = server.log();
        let changed = log.contains(&format!("{READ} changed=rule, timeouts.body_s"));
        let waiting = format!(
            "these change only with a restart kept={}",
            pending.join(", ")
        );
        (changed && log.contains(&waiting)).then_some(())
    });
}

#[test]
fn invalid_settings_change_nothing_and_the_error_names_the_line() {
    let server = server();
    let config_before = config(&server);
    let table: &[(&str, &[&str])] = &[
        ("oops = 1\n", &["crore.toml:1:1: oops: unknown setting"]),
        (
            "[limits]\ntopic_bytes = 'x'\n",
            &["crore.toml:2:15: limits.topic_bytes: "],
        ),
        // Not TOML: the end is missing, as while the file is being written.
        ("shards = 2\n[[rule]]\nmatch = 'a", &["crore.toml:3:11: "]),
        ("shards = 2\n[[rule]]\nmat", &["crore.toml:3:"]),
        ("shards = 2\n[[rul", &["crore.toml:2:"]),
        ("shards = 2\n[[rule]]\n", &["crore.toml:2:1: ", "match"]),
        // An empty file, as between truncating and writing.
        ("\n", &["crore.toml: is empty", "leave a comment in it"]),
        // Several errors, which are reported at once.
        (
            "[drain]\nrate_per_s = 0\n[timeouts]\nbody_s = 0\n",
            &[
                "crore.toml:2:14: drain.rate_per_s: ",
                "crore.toml:4:10: timeouts.body_s: ",
            ],
        ),
        // A key file that does not exist.
        (
            "[access]\n[[access.key]]\nalg = 'ES256'\nfile = '/nowhere'\n",
            &["access.key[1].file", "No such file"],
        ),
    ];
    for (n, (text, parts)) in table.iter().enumerate() {
        write(&server, text);
        let reason = refusal(&server);
        for part in *parts {
            assert!(reason.contains(part), "{text}\n{reason}\nlacks {part}");
        }
        assert_eq!(config(&server), config_before, "{text}");
        assert_eq!(kept_settings(&server), 3, "{text}");
        let logged = eventually("the log", || {
            Some(count(&server, REFUSED)).filter(|logged| *logged > n)
        });
        assert_eq!(logged, n + 1, "each is logged once:\n{}", server.log());
        assert!(
            server
                .log()
                .contains(reason.lines().next().expect("a line"))
        );
    }
    write(&server, [b'#', 0xff, b'\n']);
    assert!(refusal(&server).contains("UTF-8"));
    std::fs::remove_file(server.settings_file()).expect("it is there");
    assert!(refusal(&server).contains("cannot be read"));
    // The file is valid again, so the reload works as before.
    write(&server, keeps(5));
    assert_eq!(reload(&server).json()["changed"], json!(["rule"]));
    assert_eq!(kept_settings(&server), 5);
}

#[test]
fn as_many_rules_as_are_allowed_work_and_one_more_changes_nothing() {
    let rules = |count: usize| {
        let rule = |n| format!("[[rule]]\nmatch = 'r/{n}'\n");
        let other_rules: String = (1..count).map(rule).collect();
        other_rules + "[[rule]]\nmatch = 'a'\nlog_messages = 3\n"
    };
    let server = Server::with_admin(&rules(253));
    assert_eq!(kept_settings(&server), 3, "the last rule governs");
    write(&server, format!("shards = 2\n{}", rules(254)));
    let reason = refusal(&server);
    assert!(
        reason.contains("rule: 254 rules") && reason.contains("at most 253"),
        "{reason}"
    );
    server.signal("HUP");
    until("both refusals", || count(&server, REFUSED) == 2);
    assert_eq!(kept_settings(&server), 3);
    write(&server, format!("shards = 2\n{}", rules(253)));
    assert_eq!(reload(&server).status, 200);
}

#[test]
fn truncated_settings_file_is_applied_completely_or_not_at_all() {
    let server = server();
    let text = keeps(9) + "\n[timeouts]\nbody_s = 30 # seconds\nhead_s = 9\n";
    let (mut accepted, mut refused) = (0, 0);
    for end in 0..=text.len() {
        let config_before = config(&server);
        write(&server, &text[..end]);
        let answer = reload(&server);
        match answer.status {
            200 => accepted += 1,
            422 => {
                refused += 1;
                assert_eq!(config(&server), config_before, "{:?}", &text[..end]);
                let line = text[..end].lines().count().max(1);
                let reason = answer.json()["error"].to_string();
                assert!(reason.contains("crore.toml:"), "{reason} at line {line}");
            }
            status => panic!("{status} to {:?}: {}", &text[..end], answer.body),
        }
    }
    assert!(
        accepted > 0 && refused > 40,
        "{accepted} in order, {refused} not"
    );
    let config_after = config(&server);
    assert_eq!(config_after["timeouts"]["head_s"], 9);
    assert_eq!(kept_settings(&server), 9);
}

#[test]
fn sighup_reloads_the_settings_and_each_reload_is_logged_once() {
    let server = server();
    let config_before = config(&server);
    write(&server, "shards = 2\n[limits]\nnonsense = 1\n");
    server.signal("HUP");
    until("the refusal", || count(&server, REFUSED) > 0);
    assert!(server.log().contains("crore.toml:3:1: limits.nonsense"));
    assert_eq!(config(&server), config_before);
    write(&server, keeps(4));
    server.signal("HUP");
    until("the reading", || count(&server, READ) > 0);
    assert_eq!(kept_settings(&server), 4);
    assert_eq!(reload(&server).json()["changed"], json!([]));
    // The log line may appear a moment after the reload.
    until("two readings", || count(&server, READ) == 2);
    assert_eq!(count(&server, REFUSED), 1, "{}", server.log());
}

#[test]
fn settings_of_the_admin_port_follow_a_reload() {
    let server = server();
    let admin = server.admin();
    let body = json!({"topic": "a", "data": "x".repeat(3_000_000)}).to_string();
    let publish = || ask(admin, "POST /api/v1/publish", Some(&body)).status;
    assert_eq!(publish(), 413);
    let limits = "[limits]\nmessage_bytes = \"4 MiB\"\n";
    let http = "[http]\nsubscribe_paths = [\"/listen\"]\n";
    write(&server, format!("{}{limits}{http}", keeps(9)));
    assert_eq!(reload(&server).status, 200);
    assert_eq!(publish(), 200);
    // The tail is a client of the data port, so it uses the path prefix that is in force now.
    let mut tail = stream(admin, "/api/v1/tail?topic=b");
    let body = r#"{"topic":"b","data":"hello"}"#;
    assert_eq!(ask(admin, "POST /api/v1/publish", Some(body)).status, 200);
    while !line(&mut tail).contains("hello") {}
    let proxy = "proxy_protocol = true\ntrusted_proxies = [\"127.0.0.0/8\"]\n";
    write(&server, format!("{}{limits}{http}{proxy}", keeps(9)));
    assert_eq!(reload(&server).status, 200);
    stream(admin, "/api/v1/tail?topic=b");
}

#[test]
fn unparsable_key_file_is_refused_with_its_place() {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("reload-{}.jwks", std::process::id()));
    let secret = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY"; // 32 bytes in base64url
    let accepted = json!({"keys": [{"kty": "oct", "kid": "a", "alg": "HS256", "k": secret}]});
    let accepted = accepted.to_string();
    std::fs::write(&path, &accepted).expect("a file");
    let access = format!("[access]\n[[access.key]]\nfile = {path:?}\n");
    let server = Server::with_admin(&access);
    // Cut short, without keys, with a key that is too short, and not JSON at all.
    let short = accepted.replace(secret, "c2hvcnQ");
    for (text, part) in [
        (&accepted[..accepted.len() - 5], "is no JWKS"),
        ("{\"keys\": []}", "has no key"),
        (&short, "k has 5 bytes, and HS256 needs 32"),
        ("nonsense", "access.key[1].alg"),
    ] {
        std::fs::write(&path, text).expect("a file");
        let reason = refusal(&server);
        assert!(
            reason.contains("access.key[1]") && reason.contains(part),
            "{reason}"
        );
        assert!(!reason.contains(secret), "{reason}");
    }
    std::fs::write(&path, &accepted).expect("a file");
    assert_eq!(reload(&server).status, 200);
    let refused = eventually("the log", || {
        Some(count(&server, REFUSED)).filter(|logged| *logged >= 4)
    });
    assert_eq!(refused, 4, "each is logged once");
    let _ = std::fs::remove_file(path);
}

#[test]
fn changed_secret_is_named_and_not_shown() {
    let access = |secret: &str, cache_s: u32| {
        format!(
            "shards = 2\n[access]\ncache_s = {cache_s}\n[[access.key]]\nalg = 'HS256'\nsecret = '{secret}'\n"
        )
    };
    let (old, new) = ("01".repeat(16), "12".repeat(16));
    let server = Server::with_admin(&access(&old, 60)["shards = 2\n".len()..]);
    write(&server, access(&new, 60));
    let answer = reload(&server);
    assert_eq!(answer.json()["changed"], json!(["access.key"]));
    until("the log", || count(&server, READ) > 0);
    let log = server.log();
    assert!(log.contains("changed=access.key"), "{log}");
    assert!(!log.contains(&new) && !answer.body.contains(&new), "{log}");
    write(&server, access(&new, 61));
    assert_eq!(reload(&server).json()["changed"], json!(["access.cache_s"]));
}

#[test]
fn changed_cluster_secrets_are_named_and_need_a_restart() {
    let cluster =
        |password: &str| format!("shards = 2\n[cluster]\nuser = 'ann'\npassword = '{password}'\n");
    let server = Server::with_admin(&cluster("first")["shards = 2\n".len()..]);
    write(&server, cluster("second"));
    for _ in 0..2 {
        let answer = reload(&server);
        let kept = json!({"changed": [], "kept": ["cluster.password"]});
        assert_eq!(answer.json(), kept, "it waits still");
    }
    assert!(!server.log().contains("second"), "{}", server.log());
}

#[test]
fn reloads_are_counted_by_result_with_the_time_of_the_last_success() {
    let server = server();
    let refresh_count = || {
        let metric_value = |name: &str| metric(server.admin(), name).expect("a metric");
        let reloads =
            |result: &str| metric_value(&format!("crore_reloads_total{{result=\"{result}\"}}"));
        let time_s = metric_value("crore_reload_success_timestamp_seconds");
        (reloads("applied"), reloads("refused"), time_s)
    };
    let (applied, refused, began_s) = refresh_count();
    assert_eq!((applied, refused), (0.0, 0.0));
    assert!(began_s > 1.7e9, "{began_s} is a time of this century");
    write(&server, "nonsense = 1\n");
    refusal(&server);
    assert_eq!(refresh_count(), (0.0, 1.0, began_s));
    server.signal("HUP");
    until("the signal's", || refresh_count() == (0.0, 2.0, began_s));
    write(&server, keeps(4));
    let mut accepted = 0.0;
    eventually("a later second", || {
        assert_eq!(reload(&server).status, 200);
        accepted += 1.0;
        let (applied, refused, time_s) = refresh_count();
        assert_eq!((applied, refused), (accepted, 2.0));
        (time_s > began_s).then_some(())
    });
}

/// The status of an anonymous publish to this host name of the server.
fn publishes_as(server: &Server, host: &str) -> u16 {
    let headers = format!("Host: {host}\r\n");
    raw(server.address(), "POST /pub/a", &headers, Some("x")).status
}

#[test]
fn public_listener_keeps_its_access_control_over_a_reload() {
    let access = "[access]\n[access.anonymous]\nsubscribe = ['a']\n";
    let listens = |address: &str| format!("listen = ['{address}:0']\n");
    let server = Server::listening(&(listens("0.0.0.0") + access), "127.0.0.1:0");
    let config_before = config(&server);
    assert_eq!(publishes_as(&server, "localhost"), 401);
    // This access setting is valid alone, but the server still has the socket that other machines reach.
    write(&server, "shards = 2\n".to_string() + &listens("127.0.0.1"));
    let reason = refusal(&server);
    for part in ["access: ", "0.0.0.0:0 until a restart", "keep the table"] {
        assert!(reason.contains(part), "{reason}\nlacks {part}");
    }
    assert_eq!(config(&server), config_before);
    assert_eq!(publishes_as(&server, "localhost"), 401);
    // With the table the reload is accepted; `listen` changes only at the next start.
    let opened = access.replace("subscribe", "publish");
    write(
        &server,
        "shards = 2\n".to_string() + &listens("127.0.0.1") + &opened,
    );
    assert_eq!(reload(&server).json()["kept"], json!(["listen"]));
    assert_eq!(publishes_as(&server, "localhost"), 202);
}

#[test]
fn loopback_server_answers_a_host_name_after_the_reload_that_lists_it() {
    let access = "[access]\n[access.anonymous]\npublish = ['a']\n";
    let server = Server::with_admin(access);
    assert_eq!(publishes_as(&server, "rebound.example"), 403);
    let hosts = "[http]\nhosts = ['rebound.example']\n";
    for (hosts, status) in [(hosts, 202), ("", 403)] {
        write(&server, format!("shards = 2\n{hosts}{access}"));
        assert_eq!(reload(&server).status, 200);
        assert_eq!(publishes_as(&server, "rebound.example"), status);
        assert_eq!(publishes_as(&server, "localhost"), 202);
    }
}

#[test]
fn the_command_prints_what_changed_or_fails_with_the_reason() {
    let server = server();
    let admin = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_crore"));
        command
            .args(["admin", "reload", "--json", "--url"])
            .arg(format!("http://{}", server.admin()))
            .env_remove("CRORE_ADMIN_TOKEN");
        output(&mut command)
    };
    write(&server, keeps(8));
    let output = admin();
    assert!(output.status.success(), "{output:?}");
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(answer, json!({"changed": ["rule"], "kept": []}));
    write(&server, "shards = 2\n[[rule]]\nmatch = 7\n");
    let output = admin();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let answer = String::from_utf8_lossy(&output.stderr);
    assert!(answer.contains("crore.toml:3:9"), "{answer}");
}

#[test]
fn each_setting_says_where_it_was_given() {
    let server = Server::with_admin("[limits]\ntopics_max = 4\n[heartbeat]\ninterval_s = 50\n");
    let source = |name: &str| {
        let config = get(server.admin(), "config");
        let settings = config["settings"].as_array().expect("a list");
        let setting = settings.iter().find(|it| it["name"] == name);
        setting.expect(name)["source"].clone()
    };
    assert_eq!(source("limits.topics_max"), "file");
    // The source is the file also if the file has the default value.
    assert_eq!(source("heartbeat.interval_s"), "file");
    assert_eq!(source("limits.outbox_bytes"), "default");
    assert_eq!(source("limits.connections_max"), "host");
    assert_eq!(source("shards"), "file");
    // The tests start a server with this flag.
    assert_eq!(source("admin.listen"), "--admin-listen");
    let settings = std::fs::read_to_string(server.settings_file()).expect("settings");
    let next = settings.replace("topics_max = 4", "outbox_bytes = 100000");
    std::fs::write(server.settings_file(), next).expect("a file");
    let answer = reload(&server);
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(source("limits.topics_max"), "default");
    assert_eq!(source("limits.outbox_bytes"), "file");
}
