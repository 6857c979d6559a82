//! Runs the test suites of Centrifugo's client libraries for JavaScript, Go and Python, with the addresses changed, and the courses of
//! [`crate::centrifugo`] with the libraries for Go and Java. `cargo xtask conformance centrifugo` prepares them; no other run has them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::{Value, json};

use crate::centrifugo::{Library, backend_library_publishes_reads_and_ends};
use crate::client::{Client, path_of, tools};
use crate::support::Server;

/// What Centrifugo's settings for the suites say, as far as it has a meaning here. Channels `a:b` are topics `a/b`, since rules match levels.
const SETTINGS: &str = "[centrifugo]\nenabled = true\ncolon_for_slash = true\n\
    [admin]\napi_key = 'test-api-key-of-a-suite'\n\
    [[rule]]\nmatch = 'smallhistory/#'\npresence = true\nlog_messages = 2\n";
const PRESENCE: &str = "[[rule]]\nmatch = '#'\npresence = true\n";
/// In place of the secret of a suite, which is too short for a key.
const SECRET: &str = "a secret of a suite, which is long enough";

/// The name and the state of a test, and why it failed.
type State = (String, bool, String);

/// Copies a directory of sources, with the addresses of this server and these changes.
fn copy_sources(from: &Path, to: &Path, server: &Server, changes: &[(&str, &str)]) {
    fs::create_dir_all(to).expect("a directory");
    let (data, admin) = (server.address().to_string(), server.admin().to_string());
    for entry in fs::read_dir(from).expect("sources") {
        let path = entry.expect("a file").path();
        let copy = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy_sources(&path, &copy, server, changes);
            continue;
        }
        let bytes = fs::read(&path).expect("a file");
        let Ok(mut text) = String::from_utf8(bytes.clone()) else {
            fs::write(copy, bytes).expect("a copy");
            continue;
        };
        text = text
            .replace("localhost:8000/api", &format!("{admin}/api"))
            .replace("localhost:8000", &data);
        for (old, new) in changes {
            text = text.replace(old, new);
        }
        fs::write(copy, text).expect("a copy");
    }
}

/// Panics if another test fails than those that begin with one of these, or one of these passes.
fn expect_failures(states: &[State], known: &[&str]) {
    let wrong: Vec<_> = (states.iter())
        .filter(|(name, has_passed, _)| {
            let is_known = known.iter().any(|begin| name.starts_with(begin));
            is_known == *has_passed
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    for begin in known {
        let is_there = states.iter().any(|(name, ..)| name.starts_with(begin));
        assert!(is_there, "no test is called {begin}");
    }
}

/// The suites of centrifuge-js for what is built here.
const JS_SUITES: [&str; 5] = [
    "centrifuge",
    "centrifuge.protobuf",
    "recovery",
    "delta",
    "getstate",
];

/// How the names of the tests of centrifuge-js begin that fail: they are for subscriptions to maps. `docs/CENTRIFUGO.md` names all failures, too.
const JS_FAILURES: [&str; 2] = ["map: ", "map delta: "];

/// The states of the tests of a suite of centrifuge-js.
fn run_jest(suite: &Path, copy: &Path, name: &str) -> Vec<State> {
    let results = copy.join(format!("{name}.json"));
    let output = Command::new("node")
        .arg(suite.join("node_modules/jest/bin/jest.js"))
        .args(["--forceExit", "--json", "--outputFile"])
        .arg(&results)
        .arg(format!("src/{name}.test.ts"))
        .current_dir(copy)
        .output()
        .expect("node starts");
    let said = String::from_utf8_lossy(&output.stderr);
    let results = fs::read(&results).unwrap_or_else(|error| panic!("{name}: {error}: {said}"));
    let results: Value = serde_json::from_slice(&results).expect("JSON");
    let files = results["testResults"].as_array().expect("files");
    let tests = files.iter().flat_map(|file| {
        let tests = file["assertionResults"].as_array().expect("tests");
        assert!(!tests.is_empty(), "{name}: {}", file["message"]);
        tests
    });
    tests
        .map(|test| {
            let full_name = test["fullName"].as_str().expect("a name").to_string();
            (full_name, test["status"] == "passed", said_of(test))
        })
        .collect()
}

fn said_of(test: &Value) -> String {
    test["failureMessages"].to_string()
}

#[test]
#[ignore = "needs what `cargo xtask conformance centrifugo` prepares"]
fn suites_of_centrifuge_js_pass_except_those_for_maps() {
    let suite = tools().join("centrifuge-js");
    let copy = suite.join("changed");
    let server = Server::with_admin(&format!("{SETTINGS}{PRESENCE}"));
    let key = ("test-api-key", "test-api-key-of-a-suite");
    copy_sources(&suite.join("src"), &copy.join("src"), &server, &[key]);
    for name in ["jest.config.js", "tsconfig.json"] {
        fs::copy(suite.join(name), copy.join(name)).expect("a copy");
    }
    let mut states = Vec::new();
    for name in JS_SUITES {
        let tests = run_jest(&suite, &copy, name);
        assert!(tests.len() > 2, "{name}: {tests:?}");
        states.extend(tests);
    }
    expect_failures(&states, &JS_FAILURES);
}

/// A module of the programs in Go, as `conformance/go-clients` pins them.
fn go_module(name: &str) -> PathBuf {
    let output = Command::new("go")
        .args(["list", "-m", "-f", "{{.Dir}}", name])
        .current_dir(tools().join("go-clients"))
        .output();
    let directory = text_of(output.expect("go starts"));
    directory.trim().into()
}

/// What a program printed that must have succeeded.
fn text_of(output: Output) -> String {
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
#[ignore = "needs what `cargo xtask conformance centrifugo` prepares"]
fn tests_of_centrifuge_go_pass() {
    // Everybody may do everything with channels that are in no namespace. Others are refused, as Centrifugo refuses unknown namespaces. The token in the
    // URL gives a name to the publisher of a message.
    let server = Server::with_admin(&format!(
        "{SETTINGS}[[rule]]\nmatch = '+'\npublisher = true\n[access]\n\
         [access.anonymous]\npublish = ['+', 'smallhistory/#']\n\
         subscribe = ['+', 'smallhistory/#']\npresence = ['+']\n\
         [[access.key]]\nalg = 'HS256'\nsecret = '{SECRET}'\n"
    ));
    let key = EncodingKey::from_secret(SECRET.as_bytes());
    let token = encode(&Header::default(), &json!({"sub": "suite"}), &key).expect("a token");
    let credentials = format!("?token={token}");
    let copy = tools().join("go-clients/centrifuge-go");
    let source = go_module("github.com/centrifugal/centrifuge-go");
    let changes = [("?cf_protocol_version=v2", credentials.as_str())];
    copy_sources(&source, &copy, &server, &changes);
    // A failed test is known by its line, and the exit status says only that there is one.
    let output = Command::new("go")
        .args(["test", "-json", "-count", "1", "-timeout", "300s", "."])
        .current_dir(&copy)
        .output()
        .expect("go starts");
    let lines = String::from_utf8_lossy(&output.stdout);
    let events: Vec<Value> = (lines.lines())
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let states: Vec<State> = (events.iter())
        .filter(|event| event["Action"] == "pass" || event["Action"] == "fail")
        .filter_map(|event| {
            let name = event["Test"].as_str()?;
            let printed = events.iter().filter(|other| other["Test"] == name);
            let why = printed.filter_map(|other| other["Output"].as_str());
            Some((name.to_string(), event["Action"] == "pass", why.collect()))
        })
        .collect();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(states.len() > 50, "{complaint}: {states:?}");
    expect_failures(&states, &[]);
}

/// The test of centrifuge-python that fails. It waits for the channel `#42`, to which Centrifugo subscribes the user 42 by a setting. Here the token,
/// the server API or the backend name such channels.
const PYTHON_FAILURES: [&str; 1] = ["TestServerSideSubscriptions.test_server_side_subs"];
/// Passes by chance: it counts on the offsets 1 to 10 in a new channel with a random name, but offsets here rise with the messages of other channels, too.
const PYTHON_BY_CHANCE: &str = "TestAutoRecovery.test_auto_recovery";

#[test]
#[ignore = "needs what `cargo xtask conformance centrifugo` prepares"]
fn tests_of_centrifuge_python_pass_with_the_known_exceptions() {
    let server = Server::with_admin(&format!(
        "{SETTINGS}{PRESENCE}[access]\n[access.anonymous]\npublish = ['#']\nsubscribe = ['#']\n\
         presence = ['#']\n[[access.key]]\nalg = 'HS256'\nsecret = '{SECRET}'\n"
    ));
    let suite = tools().join("centrifuge-python");
    let copy = suite.join("changed");
    let secret = format!("\"{SECRET}\"");
    // Centrifugo can send joins and leaves to clients that do not ask for them.
    let subscription =
        "sub1 = client1.new_subscription(channel, get_token=test_get_subscription_token";
    let changes = [
        ("\"secret\"", secret.as_str()),
        (subscription, &format!("{subscription}, join_leave=True")),
    ];
    copy_sources(&suite.join("tests"), &copy.join("tests"), &server, &changes);
    let output = Command::new(tools().join("venv/bin/python"))
        .args([&path_of("unittest_states.py"), "tests.test_client"])
        .current_dir(&copy)
        .output();
    let text = text_of(output.expect("python starts"));
    let mut states: Vec<State> = (text.lines())
        .map(|line| {
            let test: Value = serde_json::from_str(line).expect("JSON");
            let text = |name: &str| test[name].as_str().expect("a text").to_string();
            let name = text("name").replace("tests.test_client.", "");
            (name, test["state"] == "passed", text("why"))
        })
        .collect();
    assert!(states.len() > 40, "{states:?}");
    states.retain(|(name, ..)| name != PYTHON_BY_CHANCE);
    expect_failures(&states, &PYTHON_FAILURES);
}

/// Builds a program of this directory with the pinned modules.
fn go_program(source: &str) -> PathBuf {
    let modules = tools().join("go-clients");
    let program = modules.join(source.trim_end_matches(".go"));
    let output = Command::new("go")
        .args(["build", "-o"])
        .args([&program, Path::new(&path_of(source))])
        .current_dir(&modules)
        .output();
    text_of(output.expect("go starts"));
    program
}

static CENTRIFUGE_GO: LazyLock<PathBuf> = LazyLock::new(|| go_program("centrifuge_client.go"));

const GO: Library = Library {
    start: |args| Client::start(CENTRIFUGE_GO.clone(), args),
    forms: &["json", "protobuf"],
};

const JAVA: Library = Library {
    start: |args| {
        let packages = format!("{}/java-clients/*", tools().display());
        let source = path_of("CentrifugeClient.java");
        let first = ["-cp", packages.as_str(), source.as_str()];
        Client::start("java".into(), &[&first, args].concat())
    },
    forms: &["protobuf"],
};

#[test]
#[ignore = "needs what `cargo xtask conformance centrifugo` prepares"]
fn centrifuge_go_subscribes_publishes_and_asks_for_history() {
    GO.subscribes_publishes_and_asks_for_history();
}

#[test]
#[ignore = "needs what `cargo xtask conformance centrifugo` prepares"]
fn centrifuge_go_is_told_of_joins_and_leaves() {
    GO.is_told_of_joins_and_leaves();
}

#[test]
#[ignore = "needs what `cargo xtask conformance centrifugo` prepares"]
fn centrifuge_go_recovers_from_a_crash_without_a_loss() {
    GO.recovers_from_a_crash_without_a_loss();
}

#[test]
#[ignore = "needs what `cargo xtask conformance centrifugo` prepares"]
fn gocent_publishes_reads_and_ends_subscriptions_and_clients() {
    let program = go_program("cent_client.go");
    backend_library_publishes_reads_and_ends(|args| Client::start(program, args));
}

#[test]
#[ignore = "needs what `cargo xtask conformance centrifugo` prepares"]
fn centrifuge_java_subscribes_publishes_and_asks_for_history() {
    JAVA.subscribes_publishes_and_asks_for_history();
}

#[test]
#[ignore = "needs what `cargo xtask conformance centrifugo` prepares"]
fn centrifuge_java_is_told_of_joins_and_leaves() {
    JAVA.is_told_of_joins_and_leaves();
}

#[test]
#[ignore = "needs what `cargo xtask conformance centrifugo` prepares"]
fn centrifuge_java_recovers_from_a_crash_without_a_loss() {
    JAVA.recovers_from_a_crash_without_a_loss();
}
