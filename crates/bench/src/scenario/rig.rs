//! A scenario's processes: the server, the subscriber, the publisher, each a child of this one.
//!
//! A child ends when it is dropped, and when this process ends. With `--pin` the server runs on
//! core 0 and the tools on core 1.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::RunArgs;
use crate::sample::Process;
use crate::sys;

/// Longest start of a server.
const START: Duration = Duration::from_secs(20);
/// Connections of one shard: a descriptor table holds 20,000 where the limit cannot be raised, and
/// the kernel spreads connections over listeners only on average.
const PER_SHARD: u32 = 18_600;
/// Core of the server and of the tools, when pinned.
const CORES: (usize, usize) = (0, 1);

/// Who serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The product.
    Crore,
    /// The reference.
    Floor,
}

/// What a server is started with.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Who serves.
    pub kind: Kind,
    /// Shard threads.
    pub shards: u32,
    /// Ports to listen on.
    pub ports: u16,
    /// Messages that a topic's log keeps.
    pub keep: u32,
}

/// As many shards as `connections` need, at least `least`.
pub fn shards_for(connections: u32, ports: u16, least: u32) -> u32 {
    connections
        .div_ceil(PER_SHARD - u32::from(ports))
        .max(least)
}

/// A child that is ended when dropped.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server that runs.
pub struct Server {
    guard: Guard,
    /// Where it listens.
    pub addresses: Vec<SocketAddr>,
    /// Files that go with it.
    files: Vec<PathBuf>,
}

impl Server {
    /// Starts a server and waits until it accepts.
    pub fn start(args: &RunArgs, setting: Setting) -> Result<Server> {
        let addresses = free_ports(setting.ports)?;
        let this = std::env::current_exe()?;
        let origin = match setting.kind {
            Kind::Floor => &this,
            Kind::Crore => args.server_binary.as_ref().unwrap_or(&this),
        };
        let binary = copy(origin, addresses[0].port())?;
        let mut command = Command::new(&binary);
        let mut files = vec![binary];
        match setting.kind {
            Kind::Floor => {
                command.args(["bench", "floor", "--listen", &addresses[0].to_string()]);
            }
            Kind::Crore => {
                command.args(["--log", "warn", "serve"]);
                command.args(["--shards", &setting.shards.to_string()]);
                for address in &addresses {
                    command.args(["--listen", &address.to_string()]);
                }
                let path = write_config(args, setting, addresses[0].port())?;
                command.arg("--config").arg(&path);
                files.push(path);
            }
        }
        sys::bind_child(&mut command, args.pin.then_some(CORES.0));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        let mut server = Server {
            guard: Guard(child),
            addresses,
            files,
        };
        server.wait()?;
        Ok(server)
    }

    fn wait(&mut self) -> Result<()> {
        let begin = Instant::now();
        while TcpStream::connect(self.addresses[self.addresses.len() - 1]).is_err() {
            if let Some(status) = self.guard.0.try_wait()? {
                bail!("the server ended: {status}");
            }
            ensure!(begin.elapsed() < START, "the server does not accept");
            std::thread::sleep(Duration::from_millis(20));
        }
        // Tables and threads that are made at first use are part of an empty server.
        std::thread::sleep(Duration::from_secs(1));
        Ok(())
    }

    /// The server's memory and processor time.
    pub fn sample(&mut self) -> Result<Process> {
        if let Some(status) = self.guard.0.try_wait()? {
            bail!("the server ended in the middle: {status}");
        }
        Process::read(self.guard.0.id())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for path in &self.files {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A copy of the server's executable. Tools that ran from the same file would share its pages with
/// the server, and the server's PSS would fall as they start.
fn copy(origin: &Path, port: u16) -> Result<PathBuf> {
    let path = std::env::temp_dir().join(format!("crore-bench-{port}"));
    std::fs::copy(origin, &path).with_context(|| format!("cannot copy {}", origin.display()))?;
    Ok(path)
}

/// Ports that nobody listens on now, all held until all are found.
fn free_ports(count: u16) -> Result<Vec<SocketAddr>> {
    let listeners: Vec<TcpListener> = (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0"))
        .collect::<Result<_, _>>()?;
    Ok(listeners
        .iter()
        .map(TcpListener::local_addr)
        .collect::<Result<_, _>>()?)
}

fn write_config(args: &RunArgs, setting: Setting, port: u16) -> Result<PathBuf> {
    let path = std::env::temp_dir().join(format!("crore-bench-{port}.toml"));
    let text = format!(
        "[heartbeat]\ninterval_s = {}\n\n[[rule]]\nmatch = \"#\"\nlog_messages = {}\npoll_timeout_s = 0\n",
        args.heartbeat, setting.keep
    );
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

fn tool(args: &RunArgs, name: &str, server: &Server, kind: Kind) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["bench", name]);
    for address in &server.addresses {
        command.args(["--server", &address.to_string()]);
    }
    if kind == Kind::Floor {
        command.arg("--floor");
    }
    sys::bind_child(&mut command, args.pin.then_some(CORES.1));
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
        let mut command = tool(args, "subscribe", server, kind)?;
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
        let mut command = tool(args, "publish", server, kind)?;
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
