//! Runs the programs of `docs/CLIENTS.md` as they are, except for ports. Each publisher publishes, and each subscriber prints the
//! messages, also those that were published while its connection was cut.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::client::{Client, curl, publish, tools};
use crate::proxy::Proxy;
use crate::recipes::{NAMED, Recipe};
use crate::support::{PATIENCE, Server};

/// A program of the page, written to a file, with the server's address in it. Returns what runs it, and the arguments.
fn program(recipe: &Recipe, language: &str, server: SocketAddr) -> (PathBuf, Vec<String>) {
    let text = recipe.block(language);
    assert!(text.contains(NAMED), "the program names {NAMED}");
    let text = text.replace(NAMED, &server.to_string());
    match language {
        "js" => {
            // Node looks for packages beside the program.
            let packages = recipe.path("node_modules");
            std::os::unix::fs::symlink(tools().join("node_modules"), packages).expect("a link");
            ("node".into(), vec![recipe.write("program.mjs", &text)])
        }
        "python" => {
            let python = tools().join("venv/bin/python");
            (python, vec![recipe.write("program.py", &text)])
        }
        "go" => {
            let (source, built) = (recipe.write("program.go", &text), recipe.path("program"));
            recipe.run(Command::new("go").args(["build", "-o", &built, &source]));
            (built.into(), Vec::new())
        }
        "bash" => ("bash".into(), vec!["-euc".into(), text]),
        language => panic!("no way to run {language}"),
    }
}

fn prints_and_resumes(title: &str, language: &str) {
    let server = Server::with("[[rule]]\nmatch = \"#\"\nsse_retry_ms = 200\n");
    let proxy = Proxy::to(server.address());
    let recipe = Recipe::of("CLIENTS.md", title);
    let (path, args) = program(&recipe, language, proxy.address());
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut client = Client::start(path, &args);
    let expect = |client: &Client, text: &str| {
        // Between the messages the program may print that its connection was cut.
        let printed = || client.within(PATIENCE).expect("a line");
        while printed() != text {}
    };
    server.await_subscribers("news", 1);
    publish(&server, "news", "one");
    expect(&client, "one");
    proxy.cut();
    server.await_subscribers("news", 0);
    publish(&server, "news", "two");
    proxy.mend();
    expect(&client, "two");
    server.await_subscribers("news", 1);
    publish(&server, "news", "three");
    expect(&client, "three");
    client.kill();
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn node_resumes_an_event_stream() {
    prints_and_resumes("Node: Server-Sent Events", "js");
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn node_resumes_a_websocket() {
    prints_and_resumes("Node: WebSocket", "js");
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn python_resumes_an_event_stream() {
    prints_and_resumes("Python: Server-Sent Events", "python");
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn go_resumes_an_event_stream() {
    prints_and_resumes("Go: Server-Sent Events", "go");
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn mqtt_over_websocket_changes_its_topics_while_connected() {
    let server = Server::start();
    let recipe = Recipe::of("CLIENTS.md", "Topics that change: MQTT over WebSocket");
    let (path, args) = program(&recipe, "js", server.address());
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut client = Client::start(path, &args);
    let received = [0; 2].map(|_| client.within(PATIENCE).expect("a line"));
    assert_eq!(received, ["rooms/lobby: hello", "rooms/kitchen: dinner"]);
    server.await_subscribers("rooms/kitchen", 1);
    publish(&server, "rooms/lobby", "nor this");
    publish(&server, "rooms/kitchen", "from outside");
    assert_eq!(
        client.within(PATIENCE).expect("a line"),
        "rooms/kitchen: from outside"
    );
    client.kill();
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn each_language_publishes() {
    for (language, texts) in [
        ("bash", json!(["from curl", "from crore"])),
        ("js", json!(["from JavaScript"])),
        ("python", json!(["from Python"])),
        ("go", json!(["from Go"])),
    ] {
        let server = Server::start();
        let recipe = Recipe::of("CLIENTS.md", "Publishing");
        let (path, args) = program(&recipe, language, server.address());
        recipe.run(Command::new(path).args(args));
        let messages: Vec<Value> =
            serde_json::from_str(&curl(&[&server.url("/history/news")])).expect("JSON");
        let messages: Value = messages
            .iter()
            .map(|message| message["data"].clone())
            .collect();
        assert_eq!(messages, texts, "{language}");
    }
}
