//! Runs the test suites of centrifuge-js itself, with the addresses changed. `cargo xtask conformance centrifugo` fetches them; no other run has them.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::client::tools;
use crate::support::Server;

/// The suites for what is built here.
const SUITES: [&str; 4] = ["centrifuge", "centrifuge.protobuf", "recovery", "delta"];

/// How the names of the tests begin that fail, since they are for other kinds of subscriptions: those to maps. `docs/CENTRIFUGO.md` names them too.
const NOT_BUILT: [&str; 2] = ["map: ", "map delta: "];

/// What Centrifugo's settings for the suites say, as far as it has a meaning here.
const SETTINGS: &str = "[centrifugo]\nenabled = true\n[admin]\napi_key = 'test-api-key-of-a-suite'\n\
    [[rule]]\nmatch = 'smallhistory/#'\npresence = true\nlog_messages = 2\n\
    [[rule]]\nmatch = '#'\npresence = true\n";

/// Copies the sources with the addresses of this server. A channel `a:b` becomes `a/b`, since rules match levels.
fn copy_sources(suite: &Path, to: &Path, server: &Server) {
    fs::create_dir_all(to.join("src")).expect("a directory");
    for name in ["jest.config.js", "tsconfig.json"] {
        fs::copy(suite.join(name), to.join(name)).expect("a copy");
    }
    let (data, admin) = (server.address().to_string(), server.admin().to_string());
    for entry in fs::read_dir(suite.join("src")).expect("sources") {
        let path = entry.expect("a file").path();
        let text = fs::read_to_string(&path).expect("text");
        let text = text
            .replace("localhost:8000/api", &format!("{admin}/api"))
            .replace("localhost:8000", &data)
            .replace("test-api-key", "test-api-key-of-a-suite")
            .replace("${ns}:", "${ns}/");
        fs::write(to.join("src").join(path.file_name().expect("a name")), text).expect("a copy");
    }
}

/// The names and the states of the tests of a suite.
fn run(suite: &Path, copy: &Path, name: &str) -> Vec<(String, String)> {
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
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    tests
        .map(|test| (text(&test["fullName"]), text(&test["status"])))
        .collect()
}

#[test]
#[ignore = "needs what `cargo xtask conformance centrifugo` prepares"]
fn suites_of_centrifuge_js_pass_except_those_for_maps() {
    let suite = tools().join("centrifuge-js");
    let copy = suite.join("changed");
    let server = Server::with_admin(SETTINGS);
    copy_sources(&suite, &copy, &server);
    let mut wrong = Vec::new();
    for name in SUITES {
        let tests = run(&suite, &copy, name);
        assert!(tests.len() > 2, "{name}: {tests:?}");
        for (test, state) in tests {
            let is_built = !NOT_BUILT.iter().any(|begin| test.starts_with(begin));
            if is_built != (state == "passed") {
                wrong.push(format!("{name}: {test}: {state}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
