//! Runs a cluster of NATS servers with JetStream. The servers sync every message before they acknowledge it.
//!
//! If the run has a network namespace, each server listens on all addresses, and each node connects through addresses that no other node
//! uses. Servers do not advertise further addresses to clients.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use crore_net::kernel::listener::HeldPort;

use super::directory::Directory;
use super::ports::reserve_ports;
use crate::sys;

/// The program's name, and the error if it is missing.
const PROGRAM_NAME: &str = "nats-server";
const MISSING_PROGRAM: &str = "nats-server is not there: `go install github.com/nats-io/nats-server/v2@v2.15.2` makes it in ~/go/bin; \
     or name it with --nats-server or CRORE_NATS_SERVER";
/// The size that streams may reserve. They use only a small part of it, so it may be larger than the disk.
const STREAM_BYTES_MAX: &str = "64GB";
/// The maximum number of warnings that are shown for each server.
const WARNINGS_MAX: usize = 8;
/// Timeout for the start of a server.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The path of the program: the configured one, or the first one of those that the tests use, too (`CRORE_NATS_SERVER`, `PATH`, `~/go/bin`).
pub fn program(configured_path: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = configured_path {
        let path = path.to_path_buf();
        ensure!(path.is_file(), "--nats-server: no file {}", path.display());
        return Ok(path);
    }
    let environment_path = std::env::var_os("CRORE_NATS_SERVER").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join("go/bin"));
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&paths).chain(home);
    let mut candidates = environment_path
        .into_iter()
        .chain(directories.map(|directory| directory.join(PROGRAM_NAME)));
    candidates
        .find(|path| path.is_file())
        .context(MISSING_PROGRAM)
}

/// The configuration of a server that listens on `listen`, with these additional lines.
pub fn config(listen: &str, store: &Path, additional_lines: &str) -> String {
    format!(
        "listen: {listen}\njetstream {{ store_dir: {store:?}, sync_interval: always, max_file_store: {STREAM_BYTES_MAX} }}\n{additional_lines}"
    )
}

/// The running servers.
pub struct Nats {
    program: PathBuf,
    directory: Directory,
    /// Each server's port for clients.
    ports: Vec<u16>,
    /// All ports, reserved for restarts.
    _held_ports: Vec<HeldPort>,
    children: Vec<Option<Child>>,
}

impl Nats {
    /// Starts `count` servers, which listen for clients on this address.
    pub fn start(count: u16, listen: Ipv4Addr, configured_path: Option<&Path>) -> Result<Nats> {
        let held_ports = reserve_ports(2 * count)?;
        let addresses: Vec<SocketAddr> = held_ports.iter().map(HeldPort::addr).collect();
        let (clients, routes) = addresses.split_at(usize::from(count));
        let mut nats = Nats {
            program: program(configured_path)?,
            directory: Directory::make(format_args!("nats-{}", std::process::id()))?,
            ports: clients.iter().map(SocketAddr::port).collect(),
            _held_ports: held_ports,
            children: clients.iter().map(|_| None).collect(),
        };
        let route_urls: Vec<String> = routes
            .iter()
            .map(|route| format!("nats://{route}"))
            .collect();
        for (index, (client, route)) in clients.iter().zip(routes).enumerate() {
            let cluster_config = format!(
                "server_name: n{index}\nmax_payload: 2MB\ncluster {{ name: bench, listen: {route}, no_advertise: true, routes: [{}] }}\n",
                route_urls.join(", ")
            );
            let store = nats.directory.path().join(format!("{index}"));
            let listen = format!("{listen}:{}", client.port());
            let text = config(&listen, &store, &cluster_config);
            nats.directory.write(&format!("{index}.conf"), &text)?;
        }
        for index in 0..nats.count() {
            nats.spawn(index)?;
        }
        nats.wait()?;
        Ok(nats)
    }

    /// The number of servers.
    pub fn count(&self) -> usize {
        self.ports.len()
    }

    /// The servers' ports for clients.
    pub fn ports(&self) -> &[u16] {
        &self.ports
    }

    /// Starts a server, or starts it again.
    pub fn spawn(&mut self, index: usize) -> Result<()> {
        let path = self.directory.path();
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(path.join(format!("{index}.log")))?;
        let mut command = Command::new(&self.program);
        command.arg("-c").arg(path.join(format!("{index}.conf")));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        sys::bind_child(&mut command, None, false);
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        self.children[index] = Some(child);
        Ok(())
    }

    /// Waits until all servers accept connections.
    pub fn wait(&mut self) -> Result<()> {
        let begin = Instant::now();
        for index in 0..self.count() {
            while TcpStream::connect((Ipv4Addr::LOCALHOST, self.ports[index])).is_err() {
                if let Some(child) = &mut self.children[index]
                    && let Some(status) = child.try_wait()?
                {
                    let log = self.directory.path().join(format!("{index}.log"));
                    let log_text = std::fs::read_to_string(log).unwrap_or_default();
                    let last_line = log_text.lines().next_back().unwrap_or_default();
                    anyhow::bail!("nats-server ended: {status}. {last_line}");
                }
                ensure!(
                    begin.elapsed() < START_TIMEOUT,
                    "nats-server does not accept"
                );
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// Kills a server.
    pub fn kill(&mut self, index: usize) {
        if let Some(mut child) = self.children[index].take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// The last warnings of the servers.
    pub fn warnings(&self) -> String {
        let mut text = String::from("the servers of NATS warned last:");
        for index in 0..self.count() {
            let log = self.directory.path().join(format!("{index}.log"));
            let log_text = std::fs::read_to_string(log).unwrap_or_default();
            let is_warning = |line: &&str| line.contains("[WRN]") || line.contains("[ERR]");
            let last_warnings: Vec<&str> = log_text
                .lines()
                .rev()
                .filter(is_warning)
                .take(WARNINGS_MAX)
                .collect();
            for line in last_warnings.iter().rev() {
                text += &format!("\n{index}: {line}");
            }
        }
        text
    }

    /// The process ids of the running servers.
    pub fn processes(&self) -> impl Iterator<Item = u32> {
        self.children.iter().flatten().map(Child::id)
    }

    /// The program's version.
    pub fn version(&self) -> Option<String> {
        let output = Command::new(&self.program).arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout);
        text.lines().next().map(String::from)
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        (0..self.count()).for_each(|index| self.kill(index));
    }
}
