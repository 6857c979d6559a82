//! A scenario's processes: the server, the subscriber, the publisher, each a child of this one.
//!
//! A child ends when it is dropped, and when this process ends. With `--pin` the server runs on
//! core 0 and the tools on core 1.

mod certificate;
mod peers;
mod server;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::RunArgs;
use crate::sample::Process;
use crate::sys;
pub use certificate::Certificate;
pub use peers::versions;
pub use server::{Kind, Server, Setting, shards_for, within};

/// Core of the server and of the tools, when pinned.
const CORES: (usize, usize) = (0, 1);

/// A tool that is ended when dropped.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// With `--pin`, puts a scenario that is its own tool where the tools are.
pub fn pin_tool(args: &RunArgs) -> Result<()> {
    if args.pin {
        sys::pin(CORES.1)?;
    }
    Ok(())
}

fn tool(args: &RunArgs, name: &str, server: &Server) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["bench", name]).args(args.mqtt.flags());
    for address in &server.addresses {
        command.args(["--server", &address.to_string()]);
    }
    if let Some(certificate) = &args.certificate {
        command.arg("--tls").arg(&certificate.chain);
    }
    sys::bind_child(&mut command, args.pin.then_some(CORES.1), false);
    Ok(command)
}

/// A subscriber that runs and obeys.
pub struct Subscriber {
    guard: Guard,
    words: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Subscriber {
    /// Starts `crore bench subscribe`, which connects when [`Subscriber::open`] is called: so it is
    /// there, and shares what pages it will, when the empty server is looked at.
    pub fn start(
        args: &RunArgs,
        server: &Server,
        kind: Kind,
        connections: u32,
        topics: &str,
        rest: &[&str],
    ) -> Result<Subscriber> {
        let mut command = tool(args, "subscribe", server)?;
        if kind == Kind::Floor {
            command.arg("--floor");
        }
        command.args([
            "--control",
            "--topics",
            topics,
            "--connections",
            &connections.to_string(),
        ]);
        command.args(rest);
        if let Some(rate) = args.connect_rate {
            command.args(["--connect-rate", &rate.to_string()]);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let words = child.stdin.take().context("a pipe was asked for")?;
        let answers = BufReader::new(child.stdout.take().context("a pipe was asked for")?);
        let mut subscriber = Subscriber {
            guard: Guard(child),
            words,
            answers,
        };
        subscriber.ask("report")?;
        Ok(subscriber)
    }

    /// Opens all connections and returns how long it took, in seconds.
    pub fn open(&mut self) -> Result<f64> {
        let begin = self.ask("open")?;
        let end = self.settle()?;
        let at = |report: &Value| report["now_ns"].as_u64().unwrap_or(0) as f64 / 1e9;
        Ok(at(&end) - at(&begin))
    }

    /// Says a word of `subscribe --control` and returns the answer.
    pub fn ask(&mut self, word: &str) -> Result<Value> {
        writeln!(self.words, "{word}").context("the subscriber ended")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("the subscriber ended at `{word}`"))
    }

    /// Waits until all connections are open; an error when some could not be.
    pub fn settle(&mut self) -> Result<Value> {
        let report = self.ask("settle")?;
        let connections = &report["connections"];
        ensure!(
            connections["given_up"] == 0,
            "{} connections could not be opened: {}",
            connections["given_up"],
            connections["first_failure"]
        );
        Ok(report)
    }

    /// The tool's process, which the names of its clients tell.
    pub fn process(&self) -> u32 {
        self.guard.0.id()
    }

    /// From now on it reads nothing and answers nothing.
    pub fn stop_reading(&self) {
        sys::halt(self.guard.0.id());
    }

    /// The tool's processor time so far, in seconds.
    pub fn sample(&self) -> Result<Process> {
        Process::read(self.guard.0.id())
    }
}

/// A publisher that runs.
pub struct Publisher(Guard);

impl Publisher {
    /// Starts `crore bench publish`.
    pub fn start(
        args: &RunArgs,
        server: &Server,
        kind: Kind,
        topics: &str,
        size: usize,
        rest: &[&str],
    ) -> Result<Publisher> {
        let mut command = tool(args, "publish", server)?;
        command.args(kind.feed(args.fed()).0);
        command.args([
            "--quiet",
            "--json",
            "-",
            "--topics",
            topics,
            "--size",
            &size.to_string(),
        ]);
        let child = command.args(rest).stdout(Stdio::piped()).spawn()?;
        Ok(Publisher(Guard(child)))
    }

    /// Ends it and returns its result.
    pub fn stop(self) -> Result<Value> {
        sys::interrupt(self.0.0.id());
        self.result()
    }

    /// Waits for its end and returns its result.
    pub fn result(mut self) -> Result<Value> {
        let mut output = self.0.0.stdout.take().context("a pipe was asked for")?;
        let mut text = String::new();
        std::io::Read::read_to_string(&mut output, &mut text)?;
        self.0.0.wait()?;
        serde_json::from_str(text.trim()).context("the publisher ended without a result")
    }

    /// The tool's processor time so far, in seconds.
    pub fn sample(&self) -> Result<Process> {
        Process::read(self.0.0.id())
    }
}

/// Which side of a window was busy all the time.
pub fn bottleneck(
    server_busy: f64,
    server_cores: f64,
    tools_busy: f64,
    tools_cores: f64,
) -> &'static str {
    /// A core is saturated from here on: the rest is the sampling's error.
    const FULL: f64 = 0.93;
    match (
        server_busy >= FULL * server_cores,
        tools_busy >= FULL * tools_cores,
    ) {
        (true, true) => "both",
        (true, false) => "server",
        (false, true) => "TOOL: the server could do more",
        (false, false) => "neither",
    }
}

/// The server's path, for the result.
pub fn binary(args: &RunArgs) -> String {
    let path: Option<&Path> = args.server_binary.as_deref();
    path.map_or("this executable".into(), |path| path.display().to_string())
}
