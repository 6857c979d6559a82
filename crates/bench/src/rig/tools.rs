//! Starts the load tools of a scenario, subscriber and publisher, as child processes, and makes their arguments.
//!
//! A child is killed when it is dropped and when this process ends. With `--pin` the server runs on
//! core 0 and the tools on core 1.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::args::RunArgs;
use super::kind::ServerKind;
use super::server::Server;
use crate::measure::sample::Process;
use crate::sys::{self, Signal};

/// The pattern of the topics, one for each connection. Each topic has 13 bytes.
pub fn topic_pattern(connections: u32) -> String {
    if connections < 90_000 {
        format!("/topic/s{{10001..{}}}", 10_000 + connections)
    } else {
        format!("/p/s{{1000001..{}}}/-", 1_000_000 + connections)
    }
}

/// A pattern of local addresses with enough ports for `connections`, up to 2.5 million. An address usually has 28,000 ports. The kernel first
/// uses every second port. When these are used up, each connect searches the whole range. So an address gets only some 10,000 connections.
pub fn local_address_pattern(connections: u32) -> String {
    format!(
        "127.0.{{1..{}}}.1",
        connections.div_ceil(10_000).clamp(1, 250)
    )
}

/// A child process that is killed when dropped.
struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn tool_command(args: &RunArgs, name: &str, server: &Server) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(name).args(args.mqtt.flags());
    for address in &server.addresses {
        command.args(["--server", &address.to_string()]);
    }
    if let Some(certificate) = &args.certificate {
        command.arg("--tls").arg(&certificate.chain);
    }
    sys::bind_child(&mut command, args.core_of_tools(), false);
    Ok(command)
}

/// A running `crore-bench subscribe --control`.
pub struct Subscriber {
    child: KilledOnDrop,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Subscriber {
    /// Starts `crore-bench subscribe`. It connects only when [`Subscriber::open`] is called. Start it before you sample the
    /// server without connections. Both processes share memory pages, and each is charged a part of them. So a later start would change the
    /// server's part.
    pub fn start(
        args: &RunArgs,
        server: &Server,
        connections: u32,
        topics: &str,
        flags: &[&str],
    ) -> Result<Subscriber> {
        let mut command = tool_command(args, "subscribe", server)?;
        if server.kind == ServerKind::Floor {
            command.arg("--floor");
        }
        command.args([
            "--control",
            "--topics",
            topics,
            "--connections",
            &connections.to_string(),
        ]);
        command.args(flags);
        if let Some(rate) = args.connect_rate {
            command.args(["--connect-rate", &rate.to_string()]);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdin = child.stdin.take().context("a pipe was asked for")?;
        let stdout = BufReader::new(child.stdout.take().context("a pipe was asked for")?);
        let mut subscriber = Subscriber {
            child: KilledOnDrop(child),
            stdin,
            stdout,
        };
        subscriber.ask("report")?;
        Ok(subscriber)
    }

    /// Opens all connections and returns how long it took, in seconds.
    pub fn open(&mut self) -> Result<f64> {
        let start_report = self.ask("open")?;
        let end_report = self.wait_until_open()?;
        Ok((count_at(&end_report, "/now_ns") - count_at(&start_report, "/now_ns")) as f64 / 1e9)
    }

    /// Sends a command of `subscribe --control` and returns the answer.
    pub fn ask(&mut self, command: &str) -> Result<Value> {
        writeln!(self.stdin, "{command}").context("the subscriber ended")?;
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("the subscriber ended at `{command}`"))
    }

    /// Waits until all connections are open.
    ///
    /// # Errors
    /// If some connections could not be opened.
    pub fn wait_until_open(&mut self) -> Result<Value> {
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

    /// The process id of the tool. The MQTT client ids of its connections contain this number.
    pub fn process_id(&self) -> u32 {
        self.child.0.id()
    }

    /// The tool's memory and processor time so far.
    pub fn sample(&self) -> Result<Process> {
        Process::read(self.child.0.id())
    }
}

/// A running `crore-bench publish`.
pub struct Publisher(KilledOnDrop);

impl Publisher {
    /// Starts `crore-bench publish` with the flags that are fastest for this kind of server.
    pub fn start(
        args: &RunArgs,
        server: &Server,
        topics: &str,
        size: usize,
        flags: &[&str],
    ) -> Result<Publisher> {
        let server_flags = server.kind.publish_flags(args.publish_protocol()).0;
        Publisher::start_with(args, server, topics, size, &[server_flags, flags].concat())
    }

    /// Starts `crore-bench publish` with these flags.
    pub fn start_with(
        args: &RunArgs,
        server: &Server,
        topics: &str,
        size: usize,
        flags: &[&str],
    ) -> Result<Publisher> {
        let mut command = tool_command(args, "publish", server)?;
        command.args([
            "--quiet",
            "--json",
            "-",
            "--topics",
            topics,
            "--size",
            &size.to_string(),
        ]);
        let child = command.args(flags).stdout(Stdio::piped()).spawn()?;
        Ok(Publisher(KilledOnDrop(child)))
    }

    /// Ends the publisher and returns its result.
    pub fn stop(self) -> Result<Value> {
        sys::signal(self.0.0.id(), Signal::INT);
        self.wait_for_result()
    }

    /// Waits until the publisher ends and returns its result.
    pub fn wait_for_result(mut self) -> Result<Value> {
        let mut output = self.0.0.stdout.take().context("a pipe was asked for")?;
        let mut text = String::new();
        output.read_to_string(&mut text)?;
        self.0.0.wait()?;
        serde_json::from_str(text.trim()).context("the publisher ended without a result")
    }

    /// The tool's memory and processor time so far.
    pub fn sample(&self) -> Result<Process> {
        Process::read(self.0.0.id())
    }
}

/// Whether no message was lost, duplicated or delivered to the wrong client.
pub fn is_clean(report: &Value) -> bool {
    ["lost", "doubled", "misdelivered"]
        .iter()
        .all(|name| report[name] == 0)
}

/// A count in a report, by JSON pointer; 0 if it is missing.
pub fn count_at(report: &Value, pointer: &str) -> u64 {
    let value = report.pointer(pointer).and_then(Value::as_u64);
    value.unwrap_or(0)
}

/// A number in a report, by JSON pointer; NaN if it is missing.
pub fn number_at(report: &Value, pointer: &str) -> f64 {
    let value = report.pointer(pointer).and_then(Value::as_f64);
    value.unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::pattern::Pattern;

    #[test]
    fn every_topic_has_thirteen_bytes() {
        for connections in [1, 10_000, 89_999, 90_000, 1_000_000] {
            let pattern = Pattern::parse(&topic_pattern(connections)).unwrap();
            assert_eq!(pattern.count(), connections);
            for index in [0, connections / 2, connections - 1] {
                assert_eq!(pattern.name(index).len(), 13, "{}", pattern.name(index));
            }
        }
    }

    #[test]
    fn address_pattern_has_ports_for_all_connections() {
        for connections in [1, 10_000, 15_000, 1_000_000] {
            let addresses = Pattern::parse(&local_address_pattern(connections))
                .unwrap()
                .count();
            assert!(addresses * 14_000 >= connections);
        }
    }
}
