//! Runs a client script as a subprocess that prints JSON, and `curl` as the publisher.

use crate::support::{PATIENCE, Server};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Time without a message after which no more are expected.
const QUIET: Duration = Duration::from_millis(700);

pub struct Client {
    child: Child,
    lines: Receiver<Value>,
    name: String,
}

impl Client {
    /// Starts `program` with `args`. Each line that it prints must be a JSON object.
    pub fn start(program: PathBuf, args: &[&str]) -> Client {
        let name = format!("{} {}", program.display(), args.join(" "));
        let mut command = Command::new(&program);
        command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let (sender, lines) = mpsc::channel();
        let output_lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        std::thread::spawn(move || {
            for line in output_lines.map_while(Result::ok) {
                let value = serde_json::from_str(&line).unwrap_or(Value::String(line));
                if sender.send(value).is_err() {
                    break; // the test is over
                }
            }
        });
        Client { child, lines, name }
    }

    /// Starts a script of this directory in Node.
    pub fn node(script: &str, args: &[&str]) -> Client {
        Client::start("node".into(), &[&[path_of(script).as_str()], args].concat())
    }

    /// Starts a script of this directory in the Python that has the pinned libraries.
    pub fn python(script: &str, args: &[&str]) -> Client {
        Client::start(
            tools().join("venv/bin/python"),
            &[&[path_of(script).as_str()], args].concat(),
        )
    }

    /// Writes a line to the client's standard input.
    pub fn tell(&mut self, line: &Value) {
        let input = self.child.stdin.as_mut().expect("a pipe");
        writeln!(input, "{line}").expect("the client listens");
    }

    /// The client's next event of this kind. Other events are skipped.
    pub fn next(&self, kind: &str) -> Value {
        loop {
            let value = self.next_of_kind(kind);
            if value["kind"] == kind {
                return value;
            }
        }
    }

    /// The client's next event, which must be of this kind.
    pub fn at_once(&self, kind: &str) -> Value {
        let value = self.next_of_kind(kind);
        assert_eq!(value["kind"], kind, "{}: {value}", self.name);
        value
    }

    /// The client's next event, if it comes within this time.
    pub fn within(&self, time: Duration) -> Option<Value> {
        self.lines.recv_timeout(time).ok()
    }

    /// Kills the client, as a crash would.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn next_of_kind(&self, kind: &str) -> Value {
        let value = match self.lines.recv_timeout(PATIENCE) {
            Ok(value) => value,
            Err(error) => panic!("{}: no {kind}: {error}", self.name),
        };
        assert_ne!(value["kind"], "error", "{}: {value}", self.name);
        value
    }

    /// The data of the next `count` messages, and the position of the last.
    pub fn messages(&self, count: usize) -> (Vec<String>, String) {
        let messages: Vec<Value> = (0..count).map(|_| self.next("message")).collect();
        let text = |value: &Value| value.as_str().expect("a string").to_string();
        let position = messages
            .last()
            .map(|last| text(&last["id"]))
            .unwrap_or_default();
        (
            messages
                .iter()
                .map(|message| text(&message["data"]))
                .collect(),
            position,
        )
    }

    /// Panics if another message comes.
    pub fn expect_quiet(&self) {
        let started = Instant::now();
        while let Some(remaining) = QUIET.checked_sub(started.elapsed()) {
            match self.lines.recv_timeout(remaining) {
                Ok(value) => assert_ne!(
                    value["kind"], "message",
                    "{}: {value} came too much",
                    self.name
                ),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The end of its input tells the client to end. A browser needs this to end its child processes.
        drop(self.child.stdin.take());
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(5) {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The directory that `cargo xtask test` prepared.
pub fn tools() -> PathBuf {
    std::env::var_os("CRORE_CLIENT_TESTS")
        .expect("CRORE_CLIENT_TESTS: run `cargo xtask test`")
        .into()
}

pub fn path_of(script: &str) -> String {
    format!("{}/tests/clients/{script}", env!("CARGO_MANIFEST_DIR"))
}

/// Runs `curl` and returns its output.
pub fn curl(args: &[&str]) -> String {
    let output = Command::new("curl")
        .args(["-sS", "--max-time", "30"])
        .args(args)
        .output()
        .expect("curl starts");
    assert!(
        output.status.success(),
        "curl {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("text")
}

/// Publishes with `curl`, as a person would.
pub fn publish(server: &Server, topic: &str, text: &str) {
    let url = server.url(&format!("/pub/{topic}"));
    let body = [
        "--fail",
        "-H",
        "Content-Type: text/plain",
        "--data-binary",
        text,
        &url,
    ];
    curl(&body);
}
