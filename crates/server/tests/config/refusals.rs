//! Tests settings that are refused: the error names the place, the key and the remedy.

use crate::check;

#[test]
fn refusals_name_the_place_the_key_and_the_remedy() {
    let table: &[(&str, &[&str])] = &[
        // Not TOML, unknown keys, and wrong types.
        (
            "listen = [",
            &["crore.toml:1:10: the list that begins here is not closed; write ]"],
        ),
        (
            "[admin]\nlistn = ''",
            &["crore.toml:2:1: admin.listn: unknown setting; did you mean `admin.listen`?"],
        ),
        (
            "[mqtt]\ndurable_sessions = true",
            &["did you mean `state.durable_sessions` or `cluster.durable_sessions`?"],
        ),
        (
            "[log]\nformat = 'xml'",
            &["crore.toml:2:10: log.format: \"xml\" is not offered; write \"text\" or \"json\""],
        ),
        (
            "shards = 2\nshard = 2",
            &[
                "crore.toml:2:1: shard: unknown setting",
                "did you mean `shards`?",
                "remove the key",
            ],
        ),
        (
            "[limits]\n\ntopic_byte = 3",
            &[
                "crore.toml:3:1: limits.topic_byte: unknown setting",
                "did you mean `limits.topic_bytes`?",
            ],
        ),
        (
            "[http]\nloopback_hosts_only = false",
            &["crore.toml:2:1: http.loopback_hosts_only: unknown setting"],
        ),
        (
            "[[rule]]\nmatch = 'a'\n[[rule]]\nmatch = 'b'\nkeeps = 1",
            &["crore.toml:5:1: rule[2].keeps: unknown setting"],
        ),
        (
            "[limit]\nx = 1",
            &[
                "crore.toml:1:2: limit: unknown setting",
                "did you mean `limits`?",
            ],
        ),
        (
            "shards = -1",
            &[
                "crore.toml:1:10: shards: ",
                "-1 is out of range",
                "write 0 (one for each core) or a value from 1 to 256",
            ],
        ),
        (
            "shards = 'all'",
            &["crore.toml:1:10: shards: ", "\"all\"", "a whole number"],
        ),
        (
            "limits = 3",
            &["crore.toml:1:10: limits: 3 is not a table; write [limits]"],
        ),
        (
            "[deflate]\nlevel = 300",
            &[
                "crore.toml:2:9: deflate.level: 300 is out of range",
                "from 1 to 9",
            ],
        ),
        (
            "[timeouts]\nhead_s = '5 weeks'",
            &[
                "crore.toml:2:10: timeouts.head_s: `5 weeks` is not a time",
                "8h",
            ],
        ),
        (
            "[timeouts]\nhead_s = '1500ms'",
            &["timeouts.head_s: `1500ms` is no whole number of seconds"],
        ),
        (
            "[timeouts]\nhead_s = '2d'",
            &["crore.toml:2:10: timeouts.head_s: 172800 is out of range"],
        ),
        (
            "[timeouts]\nhead_s = -1",
            &[
                "crore.toml:2:10: timeouts.head_s: ",
                "-1 is out of range",
                "from 1 to 86400",
            ],
        ),
        (
            "[mqtt]\nkeep_alive_max_s = '1d'",
            &["mqtt.keep_alive_max_s: 86400 is out of range; write a value from 0 to 65535"],
        ),
        (
            "[limits]\nttl_s = 5",
            &["limits.ttl_s: unknown setting; did you mean `rule.ttl_s`?"],
        ),
        (
            "backlog = 99999999999",
            &[
                "crore.toml:1:11: backlog: ",
                "99999999999 is out of range",
                "1 to 65535",
            ],
        ),
        (
            "pin = 1",
            &["crore.toml:1:7: pin: 1 is not a boolean; write true or false"],
        ),
        // Values that have a syntax of their own.
        (
            "[limits]\nlog_bytes = '3 KB'",
            &["crore.toml:2:13: limits.log_bytes: `3 KB`", "64 KiB", "kB"],
        ),
        (
            "[limits]\nlog_bytes = 'lots'",
            &["crore.toml:2:13: limits.log_bytes: `lots`", "64 KiB"],
        ),
        (
            "[limits]\nlog_bytes = -1",
            &[
                "crore.toml:2:13: limits.log_bytes: -1 is out of range",
                "from 1 MiB",
            ],
        ),
        (
            "[limits]\nlog_bytes = '99999999999999 GiB'",
            &["limits.log_bytes: `99999999999999 GiB`", "more than"],
        ),
        (
            "listen = ['[::1]:1', '127.0.0.1']",
            &["crore.toml:1:22: listen[2]: `127.0.0.1`", "127.0.0.1:8800"],
        ),
        (
            "[http]\ntrusted_proxies = ['10.0.0.1/8']",
            &["crore.toml:2:20: http.trusted_proxies[1]", "\"10.0.0.0/8\""],
        ),
        (
            "[http]\ntrusted_proxies = ['10.0.0.0/33']",
            &["http.trusted_proxies[1]", "at most 32"],
        ),
        (
            "[http]\ntrusted_proxies = ['::ffff:0.0.0.0/90']",
            &[
                "http.trusted_proxies[1]",
                "mapped into IPv6",
                "\"10.0.0.0/8\"",
            ],
        ),
        (
            "[http]\ntrusted_proxies = ['::ffff:10.0.0.1/104']",
            &["http.trusted_proxies[1]", "write \"10.0.0.0/8\""],
        ),
        (
            "[http]\ntrusted_proxies = ['lan']",
            &["http.trusted_proxies[1]: `lan`", "10.0.0.0/8"],
        ),
        (
            "[[rule]]\nmatch = '#'\nfirst = 5",
            &["crore.toml:3:9: rule[1].first: `5`", "by-transport", "-N"],
        ),
        (
            "[[rule]]\nmatch = '#'\nfirst = 'newest'",
            &["rule[1].first: `newest`", "oldest", "-5"],
        ),
        (
            "[[rule]]\nmatch = '#'\nslow = 'drop'",
            &["rule[1].slow: \"drop\" is not offered; write \"disconnect\" or \"skip\""],
        ),
        (
            "[[rule]]\nmatch = '#'\nconcurrency = 'all'",
            &[
                "rule[1].concurrency: ",
                "\"broadcast\", \"first\" or \"last\"",
            ],
        ),
        // Values out of range.
        (
            "listen = []",
            &["crore.toml:1:10: listen: ", "at least one"],
        ),
        (
            "listen = ['127.0.0.1:1', '127.0.0.1:1']",
            &["crore.toml:1:26: listen[2]: 127.0.0.1:1", "twice"],
        ),
        (
            "listen = ['0.0.0.0:1']",
            &["crore.toml:1:11: listen[1]: 0.0.0.0:1", "--insecure"],
        ),
        (
            "shards = 257",
            &[
                "crore.toml:1:10: shards: 257",
                "0 (one for each core)",
                "256",
            ],
        ),
        (
            "backlog = 0",
            &["crore.toml:1:11: backlog: 0", "from 1 to 65535"],
        ),
        (
            "[limits]\ntopic_bytes = 1001",
            &[
                "crore.toml:2:15: limits.topic_bytes: 1001",
                "from 1 to 1000",
            ],
        ),
        (
            "[limits]\nmessage_bytes = 0",
            &["limits.message_bytes: 0", "from 1"],
        ),
        (
            "[[rule]]\nmatch = 'a'\nkeep = 'last'",
            &[
                "rule[1].keep: \"last\" is not offered; write \"log\" or \"latest\"; did you mean \"latest\"?",
            ],
        ),
        (
            "[limits]\nlog_bytes = \"1 GiB\nbatch_lines = 5",
            &["crore.toml:2:19: the string is not closed; write `\"` at its end"],
        ),
        (
            "rule = { match = 'a' }",
            &["crore.toml:1:8: rule: is a list of tables; write [[rule]] instead of [rule]"],
        ),
        (
            "[http]\nallowed_origins = 'null'",
            &["crore.toml:2:19: http.allowed_origins: is a list; write [\"null\"]"],
        ),
        (
            "[[rule]]\nmatch = 'a'\nlog_bytes = '10 GB'",
            &[
                "crore.toml:3:13: rule[1].log_bytes: 10 GB is out of range; write a value from 0 to 4095 MiB",
            ],
        ),
        (
            "[limits]\nmessage_bytes = '64 MiB'\nbatch_bytes = '16 MiB'",
            &[
                "limits.message_bytes: 64 MiB",
                "write a value from 1 to 8 MiB",
            ],
        ),
        (
            "[limits]\nbatch_bytes = '64 MiB'",
            &[
                "limits.batch_bytes: 64 MiB",
                "write a value from 1 to 16 MiB",
            ],
        ),
        (
            "[limits]\nmessage_bytes = '8 MiB'",
            &[
                "crore.toml:1:1: limits.publish_credit_bytes",
                "limits.message_bytes (8 MiB)",
            ],
        ),
        (
            "[limits]\nmemory_bytes = '16 MiB'",
            &[
                "crore.toml:2:16: limits.memory_bytes: 16 MiB",
                "4 times limits.batch_bytes (8 MiB)",
            ],
        ),
        (
            "[limits]\npublishes_per_s = 10\npublishes_burst = 9",
            &[
                "limits.publishes_burst: 9 is less than limits.publishes_per_s (10)",
                "0 (one second",
            ],
        ),
        (
            "[limits]\nlog_bytes = 5",
            &["limits.log_bytes: 5", "0 (an eighth of the memory)"],
        ),
        (
            "[http]\nproxy_protocol = true",
            &[
                "crore.toml:2:18: http.proxy_protocol: ",
                "http.trusted_proxies is empty",
            ],
        ),
        (
            "[timeouts]\ndrain_s = 0",
            &["timeouts.drain_s: 0", "from 1"],
        ),
        (
            "[heartbeat]\ninterval_s = 4",
            &[
                "crore.toml:2:14: heartbeat.interval_s: 4",
                "0 (off)",
                "from 5",
            ],
        ),
        (
            "[heartbeat]\njitter_percent = 100",
            &["heartbeat.jitter_percent: 100", "from 0 to 90"],
        ),
        (
            "deflate.level = 0",
            &["crore.toml:1:17: deflate.level: 0", "from 1 to 9"],
        ),
        (
            "deflate = { level = 10 }",
            &["crore.toml:1:21: deflate.level: 10", "from 1 to 9"],
        ),
        (
            "[[rule]]\nfirst = 'live'",
            &["crore.toml:1:1: rule[1].match: ", "missing", "chat/#"],
        ),
        (
            "[[rule]]\nmatch = 'a/#/b'",
            &["crore.toml:2:9: rule[1].match: `a/#/b`", "chat/+/room"],
        ),
        (
            "[[rule]]\nmatch = 'a'\n[[rule]]\nmatch = 'a'",
            &["crore.toml:4:9: rule[2].match", "rule[1]", "remove one"],
        ),
        (
            "[[rule]]\nmatch = 'a'\npoll_timeout_status = 200",
            &["rule[1].poll_timeout_status: 200", "204 or 408"],
        ),
        (
            "[[rule]]\nmatch = 'a'\nkeep = 'all'",
            &[
                "crore.toml:3:8: rule[1].keep: ",
                "\"all\" is not offered; write \"log\" or \"latest\"",
            ],
        ),
        (
            "[[backend]]\nurl = 'https://a.example'",
            &["backend[1].events: is empty", "[\"rpc\"]"],
        ),
        (
            "[[backend]]\nurl = 'https://a.example'\nevents = ['rpc']\n[[backend]]\nurl = 'https://b.example'\nevents = ['rpc']",
            &["backend[2].events: has a kind of call that another backend"],
        ),
        (
            "[[backend]]\nurl = 'ftp://a.example'\nevents = ['rpc']",
            &["backend[1].url: ", "https://HOST:PORT/PATH"],
        ),
        (
            "[[webhook]]\nurl = 'https://a.example'\nsecret_file = 'x'",
            &["webhook[1].events: is empty", "channel_occupied"],
        ),
        (
            "[[webhook]]\nevents = ['channel_ocupied']",
            &["webhook[1].events", "channel_occupied"],
        ),
        (
            "[[webhook]]\nevents = ['member_added']\nkey = 'a'",
            &["webhook[1].key: has no effect", "remove it"],
        ),
        (
            "[[webhook]]\nevents = ['member_added']\nmatch = ['a/#/b']",
            &["webhook[1].match: `a/#/b`"],
        ),
        (
            "[[webhook]]\nurl = 'https://a.example'\nevents = ['member_added']",
            &["webhook[1].secret_file: is missing", "openssl rand"],
        ),
        (
            "[[webhook]]\nurl = 'ftp://a.example'\nevents = ['member_added']",
            &["webhook[1].url: ", "https://HOST:PORT/PATH"],
        ),
        (
            "[limits]\nmemory_bytes = '64 MiB'\n[[rule]]\nmatch = 'a'\noutbox_bytes = '17 MiB'",
            &[
                "crore.toml:5:16: rule[1].outbox_bytes: 17 MiB",
                "more than a quarter of limits.memory_bytes (16 MiB)",
            ],
        ),
        (
            "[[rule]]\nmatch = 'a'\nkeys_max = 0",
            &["rule[1].keys_max: 0", "from 1 to 1000000"],
        ),
        (
            "[http]\npublish_paths = ['pub']",
            &["crore.toml:2:18: http.publish_paths[1]: `pub`", "\"/pub\""],
        ),
        (
            "[http]\npublish_paths = ['/sub/x']",
            &["http.subscribe_paths[1]: `/sub`", "overlap"],
        ),
        (
            "[http]\nallowed_origins = ['https://a/b']",
            &[
                "http.allowed_origins[1]: `https://a/b`",
                "https://app.example.com",
            ],
        ),
        (
            "[admin]\nconnections_max = 0",
            &["admin.connections_max: 0", "from 1 to 10000"],
        ),
        (
            "[admin]\nhead_s = 3601",
            &["admin.head_s: 3601", "from 1 to 3600"],
        ),
        (
            "[admin]\nbody_s = 0",
            &["admin.body_s: 0", "from 1 to 3600"],
        ),
    ];
    for (text, parts) in table {
        let output = check(Some(text), &[]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}\n{error}");
        assert!(output.stdout.is_empty(), "{text}");
        for part in *parts {
            assert!(error.contains(part), "{text}\n{error}\nlacks {part}");
        }
    }
}

#[test]
fn all_problems_are_told_at_once() {
    let text = "shards = 999\nshard = 1\n[deflate]\nlevel = 0\n[timeouts]\nhead_s = 'soon'\n[http]\nallowed_origins = [1, 'x']\n\
                [[rule]]\nmatch = 'a'\nttl = 5\nslow = 'drop'\n[[rule]]\nmatch = 'a/#/b'\n[limits]\nhead_bytes = 'x'\nbatch_bytes = '1 GiB'";
    let output = check(Some(text), &["--cluster", "a"]);
    let error = String::from_utf8(output.stderr).unwrap();
    let prefixes: Vec<&str> = error
        .lines()
        .map(|line| {
            let rest = line.strip_prefix("crore: ").expect(line);
            &rest[..rest.find(": ").expect(line)]
        })
        .collect();
    let expected = [
        "crore.toml:1:10",
        "crore.toml:2:1",
        "crore.toml:4:9",
        "crore.toml:6:10",
        "crore.toml:8:20",
        "crore.toml:11:1",
        "crore.toml:12:8",
        "crore.toml:14:9",
        "crore.toml:16:14",
        "crore.toml:17:15",
        "--cluster",
    ];
    assert_eq!(prefixes, expected, "{error}");
}

#[test]
fn all_faults_of_the_syntax_are_told_at_once() {
    let output = check(
        Some("shards = \nbacklog = 7\nlisten = ['a'\npin = true"),
        &[],
    );
    let error = String::from_utf8(output.stderr).unwrap();
    let prefixes: Vec<&str> = error.lines().map(|line| &line[..20]).collect();
    assert_eq!(
        prefixes,
        ["crore: crore.toml:1:", "crore: crore.toml:4:"],
        "{error}"
    );
}

#[test]
fn times_may_have_units() {
    let text = "[timeouts]\nhead_s = '90s'\nbody_s = 7\n[mqtt]\nsession_expiry_max_s = '2h'\n\
                [[rule]]\nmatch = '#'\nttl_s = '1d'\nsse_retry_ms = '3s'\n[admin]\nhead_s = '1m'\n[state]\ndeadline_s = '5m'";
    let table = crate::effective(Some(text), &["--heartbeat", "2m"]);
    for (section, key, seconds) in [
        ("timeouts", "head_s", 90),
        ("timeouts", "body_s", 7),
        ("mqtt", "session_expiry_max_s", 7_200),
        ("admin", "head_s", 60),
        ("state", "deadline_s", 300),
        ("heartbeat", "interval_s", 120),
    ] {
        assert_eq!(
            table[section][key].as_integer(),
            Some(seconds),
            "{section}.{key}"
        );
    }
    let rule = &table["rule"][0];
    assert_eq!(rule["ttl_s"].as_integer(), Some(86_400));
    assert_eq!(rule["sse_retry_ms"].as_integer(), Some(3_000));
}

#[test]
fn more_rules_than_a_topic_can_name_are_refused_and_the_one_that_keep_adds_counts() {
    let code = |count: usize, flags: &[&str]| {
        let rule = |n| format!("[[rule]]\nmatch = 'r/{n}'\n");
        let rules: String = (0..count).map(rule).collect();
        check(Some(&rules), flags).status.code()
    };
    assert_eq!((code(253, &[]), code(254, &[])), (Some(0), Some(1)));
    let keep_flag = ["--keep", "5"];
    assert_eq!(
        (code(252, &keep_flag), code(253, &keep_flag)),
        (Some(0), Some(1))
    );
}

#[test]
fn values_that_a_request_could_not_carry_are_refused_by_their_key() {
    let urls = [
        "http://a/b c",
        "http://a/b\\r\\nX: y",
        "http://a/gr\\u00fcn",
        "http://gr\\u00fcn/",
        "http://a/{b}",
        "http://a/<b>",
        "http://a:+80/",
        "http://ann:secret@a/",
        "http://a/?b",
        "http://a/\\u0000",
        "",
    ];
    let url = |url: &str| format!("[access.callback]\nurl = \"{url}\"");
    let token = |token: &str| format!("[admin]\ntoken = \"{token}\"");
    let tokens = [
        "0123456789abcdef\\n",
        "0123456789abcdef\\r\\nX: y",
        "0123456789 abcdef",
        "0123456789abcd\\u00fc",
        "0123456789abcdef\\u0000",
    ];
    let urls = urls.map(|it| (url(it), "access.callback.url: "));
    let tokens = tokens.map(|it| (token(it), "admin.token: "));
    for (text, key) in urls.into_iter().chain(tokens) {
        let output = check(Some(&text), &[]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}\n{error}");
        assert!(error.contains(key), "{text}\n{error}");
        assert!(!error.contains("secret@"), "{text}\n{error}");
    }
}
