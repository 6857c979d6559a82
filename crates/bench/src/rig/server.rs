//! Starts and controls the server of a scenario: Crore, the floor (a minimal reference server) or a peer (another product). Each server has
//! a directory, which is deleted when the `Server` is dropped.
//!
//! Memory and processor time are those of the whole process tree, because nginx serves from a child process. The other servers have no
//! children.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use crore_net::kernel::listener::HeldPort;

use super::args::RunArgs;
use super::directory::Directory;
use super::kind::ServerKind;
use super::peers;
use super::ports::reserve_ports;
use crate::measure::sample::Process;
use crate::sys::{self, Signal};

/// The name of the server's program.
const PROGRAM_NAME: &str = "crore";
/// The flag for the number of shards.
const SHARDS_FLAG: &str = "--shards";
/// Timeout for the start of a server. A cluster node reads its log before it accepts connections.
const START_TIMEOUT: Duration = Duration::from_secs(180);
/// Timeout for the shutdown of a server with child processes. After that the whole process tree is killed.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// Crore's settings file, in the server's directory.
const SETTINGS_FILE: &str = "crore.toml";
/// The file for a peer's standard error, in its directory.
const STDERR_FILE: &str = "stderr";

/// The options of a server.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// The kind of server.
    pub kind: ServerKind,
    /// The number of shards. Peers always have one serving thread.
    pub shards: u32,
    /// The number of ports to listen on. Peers have one.
    pub ports: u16,
    /// Messages that a topic's log keeps.
    pub log_messages: u32,
    /// Whether a peer keeps acknowledged messages on disk.
    pub durable: bool,
    /// Whether Crore opens the admin port of its settings.
    pub admin: bool,
}

impl ServerOptions {
    /// Options with one port, not durable and without admin port.
    pub fn new(kind: ServerKind, shards: u32, log_messages: u32) -> ServerOptions {
        ServerOptions {
            kind,
            shards,
            ports: 1,
            log_messages,
            durable: false,
            admin: false,
        }
    }
}

/// A running server.
pub struct Server {
    child: Child,
    /// The kind of server.
    pub kind: ServerKind,
    /// The addresses on which the server listens.
    pub addresses: Vec<SocketAddr>,
    /// The ports of the addresses, reserved for restarts.
    ports: Vec<HeldPort>,
    /// The command that started the server.
    command: Command,
    directory: Directory,
}

impl Server {
    /// Starts a server and waits until it accepts connections.
    pub fn start(args: &RunArgs, options: ServerOptions) -> Result<Server> {
        let mut settings_text = format!(
            "[limits]\naccepts_per_s = {}\n\n[heartbeat]\ninterval_s = {}\n\n[[rule]]\nmatch = \"#\"\nlog_messages = {}\npoll_timeout_s = 0\n",
            args.accepts(),
            args.heartbeat,
            options.log_messages
        );
        if let Some(seconds) = args.keep_s {
            settings_text += &format!("log_age_s = {seconds}\n");
        }
        Server::start_with(args, options, &settings_text, None)
    }

    /// Like [`Server::start`], with this text as Crore's settings file, and in the control group (cgroup) with this file of members.
    pub fn start_with(
        args: &RunArgs,
        options: ServerOptions,
        settings: &str,
        members_file: Option<&Path>,
    ) -> Result<Server> {
        let ports = reserve_ports(options.ports)?;
        let addresses: Vec<SocketAddr> = ports.iter().map(HeldPort::addr).collect();
        let port = addresses[0].port();
        let directory = Directory::make(port)?;
        let tls = args.certificate.as_ref();
        let settings_with_tls = tls.map(|tls| format!("{settings}\n{}", tls.settings()));
        let settings = settings_with_tls.as_deref().unwrap_or(settings);
        let binary = args.server_binary.as_deref();
        let mut command = match options.kind {
            ServerKind::Floor | ServerKind::Crore => {
                server_command(binary, options, settings, &addresses, &directory)?
            }
            ServerKind::Nchan => peers::nchan(&directory, addresses[0], options.log_messages, tls)?,
            ServerKind::Mosquitto => peers::mosquitto(&directory, port, tls, options.durable)?,
            ServerKind::Nats => peers::nats(&directory, port, args.nats_server.as_deref())?,
            ServerKind::Other => bail!("a server of another kind is started by its command"),
        };
        if let Some(members_file) = members_file {
            command = in_control_group(&command, members_file);
        }
        let core = args.core_of_server();
        let mut server = Server::launch(command, options.kind, addresses, directory, core)?;
        server.ports = ports;
        Ok(server)
    }

    /// Starts Crore, the floor or Nchan, which listens on this address. Crore has this text as its settings file.
    pub fn start_at(
        binary: Option<&Path>,
        options: ServerOptions,
        settings: &str,
        address: SocketAddr,
    ) -> Result<Server> {
        let directory = Directory::make(std::process::id())?;
        let addresses = vec![address];
        let command = match options.kind {
            ServerKind::Floor | ServerKind::Crore => {
                server_command(binary, options, settings, &addresses, &directory)?
            }
            ServerKind::Nchan => peers::nchan(&directory, address, options.log_messages, None)?,
            other => bail!("{} is not measured there", other.name()),
        };
        Server::launch(command, options.kind, addresses, directory, None)
    }

    /// Starts a server by any shell command. The server must listen on `address`.
    pub fn start_by(command: &str, address: SocketAddr) -> Result<Server> {
        let directory = Directory::make(std::process::id())?;
        let mut shell = Command::new("sh");
        shell.args(["-c", command]);
        Server::launch(shell, ServerKind::Other, vec![address], directory, None)
    }

    fn launch(
        mut command: Command,
        kind: ServerKind,
        addresses: Vec<SocketAddr>,
        directory: Directory,
        core: Option<usize>,
    ) -> Result<Server> {
        sys::bind_child(&mut command, core, kind.has_children());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        if matches!(
            kind,
            ServerKind::Nchan | ServerKind::Mosquitto | ServerKind::Nats
        ) {
            // Peers print a warning when they are started as root. The warning does not belong into a result.
            let stderr = directory.path().join(STDERR_FILE);
            command.stderr(std::fs::File::create(stderr).context("a file for its errors")?);
        }
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        let mut server = Server {
            child,
            kind,
            addresses,
            ports: Vec::new(),
            command,
            directory,
        };
        server.wait()?;
        Ok(server)
    }

    /// Waits until the server accepts connections.
    pub fn wait(&mut self) -> Result<()> {
        let start = Instant::now();
        while TcpStream::connect(self.addresses[self.addresses.len() - 1]).is_err() {
            self.ensure_running()?;
            ensure!(
                start.elapsed() < START_TIMEOUT,
                "the server does not accept"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        // The connection above made the server allocate memory that it needs for its first connection. That memory counts as memory of the
        // server without connections.
        std::thread::sleep(Duration::from_secs(1));
        Ok(())
    }

    fn ensure_running(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let output = [STDERR_FILE, peers::LOG].map(|name| self.read(name).unwrap_or_default());
            bail!("{} ended: {status}. {}", self.kind.name(), output.concat());
        }
        Ok(())
    }

    /// Asks the server to shut down (SIGTERM).
    pub fn terminate(&self) {
        sys::signal(self.child.id(), Signal::TERM);
    }

    /// Starts the server again and waits until it accepts connections.
    pub fn restart(&mut self) -> Result<()> {
        self.respawn()?;
        self.wait()
    }

    /// Starts the server again without waiting.
    pub fn respawn(&mut self) -> Result<()> {
        self.child = self.command.spawn()?;
        Ok(())
    }

    /// Starts the server again with `shards` shards on all cores, and waits until it accepts connections.
    pub fn restart_with_shards(&mut self, shards: u32) -> Result<()> {
        self.respawn_with_shards(shards)?;
        self.wait()
    }

    /// Starts the server again with `shards` shards on all cores. Returns the seconds until it accepted connections, or an error after
    /// `timeout`.
    pub fn timed_restart(&mut self, shards: u32, timeout: Duration) -> Result<f64> {
        let start = Instant::now();
        self.respawn_with_shards(shards)?;
        while TcpStream::connect(self.addresses[0]).is_err() {
            self.ensure_running()?;
            ensure!(start.elapsed() < timeout, "the start takes too long");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(start.elapsed().as_secs_f64())
    }

    /// Starts the server again with `shards` shards on all cores, without waiting.
    pub fn respawn_with_shards(&mut self, shards: u32) -> Result<()> {
        let mut command = Command::new(self.command.get_program());
        let mut args = self.command.get_args();
        while let Some(arg) = args.next() {
            command.arg(arg);
            if arg == SHARDS_FLAG {
                args.next();
                command.arg(shards.to_string());
            }
        }
        sys::bind_child(&mut command, None, false);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        self.command = command;
        self.respawn()
    }

    /// Kills the server (SIGKILL).
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Stops the execution of the server (SIGSTOP).
    pub fn pause(&self) {
        sys::signal(self.child.id(), Signal::STOP);
    }

    /// Replaces the settings file and makes the server reload it (SIGHUP).
    pub fn reload(&self, settings: &str) -> Result<()> {
        self.directory.write(SETTINGS_FILE, settings)?;
        sys::signal(self.child.id(), Signal::HUP);
        Ok(())
    }

    /// Whether the process has ended.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Samples the server's memory and processor time.
    pub fn sample(&mut self) -> Result<Process> {
        self.ensure_running()?;
        Process::read_tree(self.child.id())
    }

    /// The server's processor time, in seconds.
    pub fn cpu_s(&mut self) -> Result<f64> {
        self.ensure_running()?;
        let pids = Process::tree(self.child.id()).into_iter();
        Ok(pids.filter_map(|pid| sys::cpu_ns_of(pid).ok()).sum::<u64>() as f64 / 1e9)
    }

    /// The beginning of a peer's error log, if it is not empty.
    pub fn error_log(&self) -> Option<String> {
        self.read(peers::LOG)
    }

    fn read(&self, name: &str) -> Option<String> {
        /// Enough bytes to see the reason. The log may repeat the same line a million times.
        const BYTES_MAX: usize = 1000;
        let mut bytes = std::fs::read(self.directory.path().join(name)).ok()?;
        bytes.truncate(BYTES_MAX);
        Some(String::from_utf8_lossy(&bytes).trim().to_string()).filter(|text| !text.is_empty())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.kind.has_children() {
            // The server ends its worker processes itself. If the server were killed, they would keep running.
            let tree = Process::tree(self.child.id());
            sys::signal(self.child.id(), Signal::INT);
            let start = Instant::now();
            while matches!(self.child.try_wait(), Ok(None)) && start.elapsed() < SHUTDOWN_TIMEOUT {
                std::thread::sleep(Duration::from_millis(20));
            }
            if let Ok(None) = self.child.try_wait() {
                tree.into_iter()
                    .for_each(|pid| sys::signal(pid, Signal::KILL));
            }
        }
        self.kill();
    }
}

/// The command, run by a shell that first joins the control group with this file of members.
pub fn in_control_group(command: &Command, members_file: &Path) -> Command {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
        .arg(members_file)
        .arg(command.get_program())
        .args(command.get_args());
    shell
}

/// The command for a server of this project.
fn server_command(
    binary: Option<&Path>,
    options: ServerOptions,
    settings: &str,
    addresses: &[SocketAddr],
    directory: &Directory,
) -> Result<Command> {
    if options.kind == ServerKind::Floor {
        let own_program = std::env::current_exe()?;
        let mut command = Command::new(copy_executable(&own_program, directory)?);
        command.args(["floor", "--listen", &addresses[0].to_string()]);
        return Ok(command);
    }
    let mut command = Command::new(copy_executable(&server_program(binary)?, directory)?);
    command.args(["--log", "warn", "serve"]);
    if !options.admin {
        command.arg("--no-admin");
    }
    command.args([SHARDS_FLAG, &options.shards.to_string()]);
    if addresses.iter().any(|address| !address.ip().is_loopback()) {
        // The address is in a swarm's namespace, which has no route to the outside, so an address that is not the loopback is safe without
        // TLS.
        command.arg("--insecure");
    }
    for address in addresses {
        command.args(["--listen", &address.to_string()]);
    }
    command.arg("--config");
    command.arg(directory.write(SETTINGS_FILE, settings)?);
    Ok(command)
}

/// The path of Crore's executable: the one that the flag names, or the one in the directory of this program, or the first one in `PATH`.
pub fn server_program(named: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = named {
        return Ok(path.to_path_buf());
    }
    let in_own_directory = std::env::current_exe()?.with_file_name(PROGRAM_NAME);
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&paths).map(|directory| directory.join(PROGRAM_NAME));
    let mut candidates = std::iter::once(in_own_directory).chain(in_path);
    candidates.find(|path| path.is_file()).with_context(|| {
        format!("{PROGRAM_NAME} is neither beside this program nor in PATH: build it with `cargo build --release`, or name it with --server-binary")
    })
}

/// Copies the server's executable. Tools that ran from the same file would share pages with the server, and the server's PSS would fall
/// whenever a tool starts.
fn copy_executable(origin: &Path, directory: &Directory) -> Result<PathBuf> {
    let path = directory.path().join("server");
    std::fs::copy(origin, &path).with_context(|| format!("cannot copy {}", origin.display()))?;
    Ok(path)
}
