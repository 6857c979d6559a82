//! A server that a scenario starts: the product, the floor or a peer, with a directory of its own
//! that goes when the server does.
//!
//! Memory and processor time are those of the whole process tree: nginx serves from a child of the
//! process that was started, the others have no children.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::{CORES, peers};
use crate::sample::Process;
use crate::scenario::RunArgs;
use crate::subscribe::Protocol;
use crate::sys;

/// Longest start of a server.
const START: Duration = Duration::from_secs(20);
/// Longest end of a server that has children to end; then all of them are killed.
const END: Duration = Duration::from_secs(5);
/// The product's settings, in its directory.
const SETTINGS: &str = "crore.toml";
/// What a peer writes to its standard error, in its directory.
const STDERR: &str = "stderr";
/// Connections of one shard: a descriptor table holds 20,000 where the limit cannot be raised, and
/// the kernel spreads connections over listeners only on average.
const PER_SHARD: u32 = 18_600;

/// Who serves.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The reference, which is always there
    Floor,
    /// The product.
    #[value(skip)]
    Crore,
    /// Debian's nginx with its Nchan module
    Nchan,
    /// Debian's Mosquitto, over MQTT
    Mosquitto,
}

impl Kind {
    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Floor => "floor",
            Kind::Crore => "crore",
            Kind::Nchan => "nchan",
            Kind::Mosquitto => "mosquitto",
        }
    }

    /// How it is subscribed to when `wanted` is asked for: as asked if it speaks that, else in the
    /// one protocol that it does speak.
    pub fn protocol(self, wanted: Protocol) -> Protocol {
        match (self, wanted) {
            (Kind::Crore, _) | (Kind::Nchan, Protocol::Sse | Protocol::Poll) => wanted,
            (Kind::Mosquitto, _) => Protocol::Mqtt,
            (Kind::Floor | Kind::Nchan, _) => Protocol::Ws,
        }
    }

    /// The publisher's flags, and in words how messages reach the server. Each is fed in the way in
    /// which it was seen to take most over one connection for each topic's messages; ours over MQTT as
    /// Mosquitto is, where that is `wanted`.
    pub fn feed(self, wanted: Protocol) -> (&'static [&'static str], &'static str) {
        match self {
            Kind::Crore if wanted == Protocol::Mqtt => (
                &["--protocol", "mqtt", "--connections", "8"],
                "PUBLISH over 8 connections (1 for 1 topic)",
            ),
            Kind::Crore if wanted == Protocol::MqttWs => (
                &["--protocol", "mqtt-ws", "--connections", "8"],
                "PUBLISH over 8 WebSockets (1 for 1 topic)",
            ),
            Kind::Floor => (&["--floor"], "ready frames over one connection, no answers"),
            Kind::Crore => (
                &[],
                "POST /pub, NDJSON of at most 60 kB, over one connection, 16 in flight, all answered",
            ),
            // It has no batches; more connections or more in flight do not make it faster.
            Kind::Nchan => (
                &["--single"],
                "POST /pub/TOPIC for each message over one connection, 16 in flight, all answered",
            ),
            // It takes one packet of a connection in each turn of its loop.
            Kind::Mosquitto => (
                &["--protocol", "mqtt", "--connections", "8"],
                "PUBLISH over 8 connections (1 for 1 topic)",
            ),
        }
    }
}

/// What a server is started with.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Who serves.
    pub kind: Kind,
    /// Shard threads; peers have one anyway.
    pub shards: u32,
    /// Ports to listen on; one for peers.
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

/// A server that runs.
pub struct Server {
    child: Child,
    kind: Kind,
    /// Where it listens.
    pub addresses: Vec<SocketAddr>,
    /// How it was started.
    command: Command,
    directory: Directory,
}

/// A directory that goes when it is dropped.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Server {
    /// Starts a server and waits until it accepts.
    pub fn start(args: &RunArgs, setting: Setting) -> Result<Server> {
        let mut text = format!(
            "[limits]\naccepts_per_s = {}\n\n[heartbeat]\ninterval_s = {}\n\n[[rule]]\nmatch = \"#\"\nlog_messages = {}\npoll_timeout_s = 0\n",
            args.accepts(),
            args.heartbeat,
            setting.keep
        );
        if let Some(seconds) = args.keep_s {
            text += &format!("log_age_s = {seconds}\n");
        }
        Server::start_with(args, setting, &text)
    }

    /// The same, with this text as the product's settings file.
    pub fn start_with(args: &RunArgs, setting: Setting, settings: &str) -> Result<Server> {
        Server::start_within(args, setting, settings, None)
    }

    /// The same, in the control group with this list of members.
    pub fn start_within(
        args: &RunArgs,
        setting: Setting,
        settings: &str,
        members: Option<&Path>,
    ) -> Result<Server> {
        let addresses = free_ports(setting.ports)?;
        let port = addresses[0].port();
        let directory = std::env::temp_dir().join(format!("crore-bench-{port}"));
        std::fs::create_dir_all(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let directory = Directory(directory);
        let tls = args.certificate.as_ref();
        let with_tls = tls.map(|tls| format!("{settings}\n{}", tls.settings()));
        let settings = with_tls.as_deref().unwrap_or(settings);
        let mut command = match setting.kind {
            Kind::Floor | Kind::Crore => ours(args, setting, settings, &addresses, &directory.0)?,
            Kind::Nchan => peers::nchan(&directory.0, port, setting.keep, tls)?,
            Kind::Mosquitto => peers::mosquitto(&directory.0, port, tls)?,
        };
        if let Some(members) = members {
            command = within(&command, members);
        }
        sys::bind_child(
            &mut command,
            args.pin.then_some(CORES.0),
            setting.kind == Kind::Nchan,
        );
        command.stdin(Stdio::null()).stdout(Stdio::null());
        if matches!(setting.kind, Kind::Nchan | Kind::Mosquitto) {
            // A word of warning to whoever starts them as root is nobody's result.
            let stderr = directory.0.join(STDERR);
            command.stderr(std::fs::File::create(stderr).context("a file for its errors")?);
        }
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        let mut server = Server {
            child,
            kind: setting.kind,
            addresses,
            command,
            directory,
        };
        server.wait()?;
        Ok(server)
    }

    fn wait(&mut self) -> Result<()> {
        let begin = Instant::now();
        while TcpStream::connect(self.addresses[self.addresses.len() - 1]).is_err() {
            self.is_there()?;
            ensure!(begin.elapsed() < START, "the server does not accept");
            std::thread::sleep(Duration::from_millis(20));
        }
        // Tables and threads that are made at first use are part of an empty server.
        std::thread::sleep(Duration::from_secs(1));
        Ok(())
    }

    fn is_there(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let said = [STDERR, peers::LOG].map(|name| self.read(name).unwrap_or_default());
            bail!("{} ended: {status}. {}", self.kind.name(), said.concat());
        }
        Ok(())
    }

    /// Asks it to end in order.
    pub fn terminate(&self) {
        sys::terminate(self.child.id());
    }

    /// Starts another one in its place.
    pub fn start_again(&mut self) -> Result<()> {
        self.child = self.command.spawn()?;
        self.wait()
    }

    /// Gives it other settings, and asks it to read them.
    pub fn reload(&self, settings: &str) -> Result<()> {
        write(&self.directory.0, SETTINGS, settings)?;
        sys::hang_up(self.child.id());
        Ok(())
    }

    /// Whether the server is gone.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// The server's memory and processor time.
    pub fn sample(&mut self) -> Result<Process> {
        self.is_there()?;
        Process::read_tree(self.child.id())
    }

    /// What a peer has written into its log of errors.
    pub fn complaints(&self) -> Option<String> {
        self.read(peers::LOG)
    }

    fn read(&self, name: &str) -> Option<String> {
        /// Enough to know what it is; the same line may be there a million times.
        const BYTES_MAX: usize = 1000;
        let mut bytes = std::fs::read(self.directory.0.join(name)).ok()?;
        bytes.truncate(BYTES_MAX);
        Some(String::from_utf8_lossy(&bytes).trim().to_string()).filter(|text| !text.is_empty())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.kind == Kind::Nchan {
            // Its workers end when it asks them to, not when it is killed.
            let tree = Process::tree(self.child.id());
            sys::interrupt(self.child.id());
            let begin = Instant::now();
            while matches!(self.child.try_wait(), Ok(None)) && begin.elapsed() < END {
                std::thread::sleep(Duration::from_millis(20));
            }
            if let Ok(None) = self.child.try_wait() {
                tree.into_iter().for_each(sys::kill);
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The same command, run by a shell that first joins the control group with this list of members.
pub fn within(command: &Command, members: &Path) -> Command {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
        .arg(members)
        .arg(command.get_program())
        .args(command.get_args());
    shell
}

/// The command of a server of this project.
fn ours(
    args: &RunArgs,
    setting: Setting,
    settings: &str,
    addresses: &[SocketAddr],
    directory: &Path,
) -> Result<Command> {
    let this = std::env::current_exe()?;
    if setting.kind == Kind::Floor {
        let mut command = Command::new(copy(&this, directory)?);
        command.args(["bench", "floor", "--listen", &addresses[0].to_string()]);
        return Ok(command);
    }
    let origin = args.server_binary.as_ref().unwrap_or(&this);
    let mut command = Command::new(copy(origin, directory)?);
    command.args(["--log", "warn", "serve", "--no-admin"]);
    command.args(["--shards", &setting.shards.to_string()]);
    for address in addresses {
        command.args(["--listen", &address.to_string()]);
    }
    command.arg("--config");
    command.arg(write(directory, SETTINGS, settings)?);
    Ok(command)
}

/// A copy of the server's executable. Tools that ran from the same file would share its pages with
/// the server, and the server's PSS would fall as they start.
fn copy(origin: &Path, directory: &Path) -> Result<PathBuf> {
    let path = directory.join("server");
    std::fs::copy(origin, &path).with_context(|| format!("cannot copy {}", origin.display()))?;
    Ok(path)
}

/// Writes a file of the server's directory and returns its path.
pub(super) fn write(directory: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let path = directory.join(name);
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_is_asked_in_a_protocol_that_it_speaks() {
        let all = [Protocol::Ws, Protocol::Sse, Protocol::Poll, Protocol::Mqtt];
        assert!(
            all.iter()
                .all(|wanted| Kind::Crore.protocol(*wanted) == *wanted)
        );
        assert!(
            all.iter()
                .all(|wanted| Kind::Floor.protocol(*wanted) == Protocol::Ws)
        );
        assert!(
            all.iter()
                .all(|wanted| Kind::Mosquitto.protocol(*wanted) == Protocol::Mqtt)
        );
        assert_eq!(Kind::Nchan.protocol(Protocol::Poll), Protocol::Poll);
        assert_eq!(Kind::Nchan.protocol(Protocol::Mqtt), Protocol::Ws);
    }
}
