//! Real NATS servers on 127.0.0.1, as child processes: a single one or a cluster. They end with the test.

#![allow(dead_code, reason = "no test program needs all of it")]

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crore_net::kernel::listener::HeldPort;

/// Timeout for an event. No test depends on how soon an event comes: the timeout only ends a test that would wait for ever.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Polls a condition until it is true.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what} never came");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The path of `nats-server`. `None` if it is missing and not required.
#[allow(
    clippy::print_stderr,
    reason = "whoever runs the tests is told what they leave out"
)]
pub fn program() -> Option<PathBuf> {
    let named = std::env::var_os("CRORE_NATS_SERVER").map(PathBuf::from);
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join("go/bin"));
    let mut places: Vec<PathBuf> = std::env::split_paths(&paths).chain(home).collect();
    places
        .iter_mut()
        .for_each(|place| place.push("nats-server"));
    let found = named.into_iter().chain(places).find(|path| path.is_file());
    let required = std::env::var_os("CRORE_TOOLS").is_some_and(|value| value == "required");
    assert!(
        found.is_some() || !required,
        "nats-server is missing, and CRORE_TOOLS=required"
    );
    if found.is_none() {
        eprintln!("left out: what needs nats-server, which is in no PATH");
    }
    found
}

/// Servers of NATS.
pub struct Servers {
    program: PathBuf,
    directory: PathBuf,
    ports: Vec<Ports>,
    children: Vec<Option<Child>>,
    extra: String,
}

/// The ports of a server, reserved so that it can be started again.
struct Ports {
    client: HeldPort,
    route: HeldPort,
    monitor: HeldPort,
}

impl Ports {
    fn choose() -> Ports {
        let port = || HeldPort::choose((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
        Ports {
            client: port(),
            route: port(),
            monitor: port(),
        }
    }
}

impl Servers {
    /// Starts this many servers, with `sync_interval: always`. `None` if the program is missing.
    pub fn start(count: usize) -> Option<Servers> {
        Servers::with(count, "sync_interval: always", "max_payload: 2MB")
    }

    /// Like `start`, with these lines in the section `jetstream` and in the rest of the configuration. A fixed `max_file_store` makes the
    /// space for streams independent of the machine's disk, which other files may fill.
    pub fn with(count: usize, jetstream: &str, extra: &str) -> Option<Servers> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let program = program()?;
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("crore-test-nats-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let mut servers = Servers {
            program,
            directory,
            ports: (0..count).map(|_| Ports::choose()).collect(),
            children: (0..count).map(|_| None).collect(),
            extra: extra.to_string(),
        };
        for at in 0..count {
            servers.configure(at, jetstream);
            servers.run(at);
        }
        servers.await_all();
        Some(servers)
    }

    fn configure(&self, at: usize, jetstream: &str) {
        let store = self.directory.join(format!("{at}"));
        fs::create_dir_all(&store).expect("a directory");
        let ports = &self.ports[at];
        let route = |ports: &Ports| format!("nats://{}", ports.route.addr());
        let routes: Vec<String> = self.ports.iter().map(route).collect();
        let cluster = match self.ports.len() {
            1 => String::new(),
            _ => format!(
                "cluster {{ name: test, listen: {}, routes: [{}] }}\n",
                ports.route.addr(),
                routes.join(", ")
            ),
        };
        let text = format!(
            "server_name: n{at}\nlisten: {}\nhttp: {}\n{cluster}jetstream {{ max_file_store: 64GB, store_dir: {store:?}, {jetstream} }}\n{}\n",
            ports.client.addr(),
            ports.monitor.addr(),
            self.extra
        );
        fs::write(self.directory.join(format!("{at}.conf")), text).expect("a file");
    }

    /// Starts a server, for the first time or again.
    pub fn run(&mut self, at: usize) {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.directory.join(format!("{at}.log")))
            .expect("a log");
        let child = Command::new(&self.program)
            .arg("-c")
            .arg(self.directory.join(format!("{at}.conf")))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("nats-server starts");
        self.children[at] = Some(child);
    }

    fn await_all(&self) {
        for ports in &self.ports {
            until("a server of NATS", || {
                TcpStream::connect(ports.client.addr()).is_ok()
            });
        }
    }

    /// Kills a server with SIGKILL.
    pub fn kill(&mut self, at: usize) {
        if let Some(mut child) = self.children[at].take() {
            child.kill().expect("it runs");
            child.wait().expect("it ends");
        }
    }

    /// The URLs of all servers.
    pub fn urls(&self) -> Vec<String> {
        let url = |ports: &Ports| format!("nats://{}", ports.client.addr());
        self.ports.iter().map(url).collect()
    }

    /// The URLs of the servers' monitoring ports.
    pub fn monitoring(&self) -> Vec<String> {
        let url = |ports: &Ports| format!("http://{}", ports.monitor.addr());
        self.ports.iter().map(url).collect()
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for at in 0..self.children.len() {
            self.kill(at);
        }
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}
