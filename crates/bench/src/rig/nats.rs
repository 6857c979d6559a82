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
const PROGRAM: &str = "nats-server";
const REMEDY: &str = "nats-server is not there: `go install github.com/nats-io/nats-server/v2@v2.15.2` makes it in ~/go/bin; \
     or name it with --nats-server or CRORE_NATS_SERVER";
/// The size that streams may reserve. The streams use only a small part of this size, so it may be larger than the disk.
const ROOM: &str = "64GB";
/// The maximum number of warnings that are shown for each server.
const WARNINGS: usize = 8;
/// Timeout for the start of a server.
const START: Duration = Duration::from_secs(60);

/// The path of the program: the named one, or else the first one in the places where the tests look, too.
pub fn program(named: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = named {
        let path = path.to_path_buf();
        ensure!(path.is_file(), "--nats-server: no file {}", path.display());
        return Ok(path);
    }
    let by_environment = std::env::var_os("CRORE_NATS_SERVER").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join("go/bin"));
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&paths).chain(home);
    let mut found = by_environment
        .into_iter()
        .chain(places.map(|place| place.join(PROGRAM)));
    found.find(|path| path.is_file()).context(REMEDY)
}

/// The configuration of a server that listens on `listen`, with the lines `more` added.
pub fn config(listen: &str, store: &Path, more: &str) -> String {
    format!(
        "listen: {listen}\njetstream {{ store_dir: {store:?}, sync_interval: always, max_file_store: {ROOM} }}\n{more}"
    )
}

/// The running servers.
pub struct Nats {
    program: PathBuf,
    directory: Directory,
    /// Each server's port for clients.
    ports: Vec<u16>,
    /// All ports, reserved for restarts.
    _held: Vec<HeldPort>,
    children: Vec<Option<Child>>,
}

impl Nats {
    /// Starts `count` servers, which listen for clients on this address.
    pub fn start(count: u16, listen: Ipv4Addr, named: Option<&Path>) -> Result<Nats> {
        let held = reserve_ports(2 * count)?;
        let addresses: Vec<SocketAddr> = held.iter().map(HeldPort::addr).collect();
        let (clients, routes) = addresses.split_at(usize::from(count));
        let mut nats = Nats {
            program: program(named)?,
            directory: Directory::make(format_args!("nats-{}", std::process::id()))?,
            ports: clients.iter().map(SocketAddr::port).collect(),
            _held: held,
            children: clients.iter().map(|_| None).collect(),
        };
        let route_urls: Vec<String> = routes
            .iter()
            .map(|route| format!("nats://{route}"))
            .collect();
        for (at, (client, route)) in clients.iter().zip(routes).enumerate() {
            let cluster_config = format!(
                "server_name: n{at}\nmax_payload: 2MB\ncluster {{ name: bench, listen: {route}, no_advertise: true, routes: [{}] }}\n",
                route_urls.join(", ")
            );
            let store = nats.directory.path().join(format!("{at}"));
            let listen = format!("{listen}:{}", client.port());
            let text = config(&listen, &store, &cluster_config);
            nats.directory.write(&format!("{at}.conf"), &text)?;
        }
        for at in 0..nats.count() {
            nats.spawn(at)?;
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
    pub fn spawn(&mut self, at: usize) -> Result<()> {
        let path = self.directory.path();
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(path.join(format!("{at}.log")))?;
        let mut command = Command::new(&self.program);
        command.arg("-c").arg(path.join(format!("{at}.conf")));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        sys::bind_child(&mut command, None, false);
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        self.children[at] = Some(child);
        Ok(())
    }

    /// Waits until all servers accept connections.
    pub fn wait(&mut self) -> Result<()> {
        let begin = Instant::now();
        for at in 0..self.count() {
            while TcpStream::connect((Ipv4Addr::LOCALHOST, self.ports[at])).is_err() {
                if let Some(child) = &mut self.children[at]
                    && let Some(status) = child.try_wait()?
                {
                    let log = self.directory.path().join(format!("{at}.log"));
                    let said = std::fs::read_to_string(log).unwrap_or_default();
                    let last = said.lines().next_back().unwrap_or_default();
                    anyhow::bail!("nats-server ended: {status}. {last}");
                }
                ensure!(begin.elapsed() < START, "nats-server does not accept");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// Kills a server.
    pub fn kill(&mut self, at: usize) {
        if let Some(mut child) = self.children[at].take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// The last warnings of the servers.
    pub fn warnings(&self) -> String {
        let mut text = String::from("the servers of NATS warned last:");
        for at in 0..self.count() {
            let log = self.directory.path().join(format!("{at}.log"));
            let said = std::fs::read_to_string(log).unwrap_or_default();
            let is_warning = |line: &&str| line.contains("[WRN]") || line.contains("[ERR]");
            let last: Vec<&str> = said
                .lines()
                .rev()
                .filter(is_warning)
                .take(WARNINGS)
                .collect();
            for line in last.iter().rev() {
                text += &format!("\n{at}: {line}");
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
        (0..self.count()).for_each(|at| self.kill(at));
    }
}
