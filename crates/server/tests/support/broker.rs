//! The broker that MQTT tests connect to: a Crore server, or Mosquitto as the reference if `CRORE_MQTT_REFERENCE` has its path. A test that
//! also passes with the reference checks what the specification says, and not what Crore happens to do.

use super::{Server, hold_port, program, until};
use crore_net::kernel::listener::HeldPort;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The environment variable with the path of Mosquitto.
const REFERENCE: &str = "CRORE_MQTT_REFERENCE";
/// How long to wait until messages have expired at the reference. Mosquitto does not report how many it keeps.
const EXPIRY_WAIT: Duration = Duration::from_secs(3);

pub enum Broker {
    Crore(Server),
    Reference(Reference),
}

/// A running Mosquitto.
pub struct Reference {
    child: Child,
    directory: PathBuf,
    tcp: HeldPort,
    ws: HeldPort,
}

impl Broker {
    pub fn start() -> Broker {
        Broker::with("")
    }

    /// Starts a broker. The settings are for Crore; the reference ignores them.
    pub fn with(settings: &str) -> Broker {
        match std::env::var_os(REFERENCE) {
            Some(program) => Broker::Reference(Reference::start(program.into())),
            None => Broker::Crore(Server::with(settings)),
        }
    }

    /// A Crore server with these settings. `None` if the tests run against the reference.
    pub fn crore(settings: &str) -> Option<Broker> {
        Some(Broker::with(settings)).filter(Broker::is_crore)
    }

    /// A Crore server that listens at `address`, which a later server can use again. `None` if the tests run against the reference.
    pub fn crore_at(settings: &str, address: SocketAddr) -> Option<Broker> {
        let is_crore = std::env::var_os(REFERENCE).is_none();
        is_crore.then(|| Broker::Crore(Server::from_build_at(&program(), settings, address)))
    }

    /// Whether this is Crore. A test checks it before it asks for what the specification leaves open.
    pub fn is_crore(&self) -> bool {
        matches!(self, Broker::Crore(_))
    }

    /// The Crore server. Panics with the reference.
    pub fn server(&self) -> &Server {
        match self {
            Broker::Crore(server) => server,
            Broker::Reference(_) => panic!("this test is for Crore only"),
        }
    }

    /// Waits until the topic keeps only `count` messages, because the others have expired.
    pub fn await_kept(&self, topic: &str, count: u64) {
        match self {
            Broker::Crore(server) => server.await_kept(topic, count),
            Broker::Reference(_) => std::thread::sleep(EXPIRY_WAIT),
        }
    }

    /// Sends SIGTERM to a Crore server, and waits until it has exited.
    pub fn stop(self) {
        match self {
            Broker::Crore(server) => drop(server.stop()),
            Broker::Reference(_) => panic!("this test is for Crore only"),
        }
    }

    /// Kills a Crore server with SIGKILL.
    pub fn kill(self) {
        match self {
            Broker::Crore(server) => server.kill(),
            Broker::Reference(_) => panic!("this test is for Crore only"),
        }
    }

    /// Kills a Crore server with SIGKILL, and replaces it by the one that `start` returns.
    pub fn replace_after_crash(&mut self, start: impl FnOnce() -> Broker) {
        match self {
            Broker::Crore(server) => server.crash(),
            Broker::Reference(_) => panic!("this test is for Crore only"),
        }
        *self = start();
    }

    /// The port that speaks MQTT over TCP.
    pub fn tcp_port(&self) -> u16 {
        match self {
            Broker::Crore(server) => server.address().port(),
            Broker::Reference(reference) => reference.tcp.addr().port(),
        }
    }

    /// The port that speaks MQTT over WebSocket.
    pub fn ws_port(&self) -> u16 {
        match self {
            Broker::Crore(server) => server.address().port(),
            Broker::Reference(reference) => reference.ws.addr().port(),
        }
    }
}

impl Reference {
    fn start(program: PathBuf) -> Reference {
        let (tcp_port, ws_port) = (hold_port(), hold_port());
        let [tcp, ws] = [&tcp_port, &ws_port].map(|port| port.addr().port());
        let directory = std::env::temp_dir().join(format!("crore-reference-{tcp}"));
        std::fs::create_dir_all(&directory).expect("a temporary directory");
        let file = directory.join("mosquitto.conf");
        let text = format!(
            "listener {tcp} 127.0.0.1\nlistener {ws} 127.0.0.1\nprotocol websockets\n\
             allow_anonymous true\npersistence false\nset_tcp_nodelay true\n\
             max_queued_messages 0\nmax_inflight_messages 0\nsys_interval 1\nlog_type error\n"
        );
        std::fs::write(&file, text).expect("its settings");
        let mut command = Command::new(program);
        command.arg("-c").arg(&file);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().expect("the reference starts");
        let listens = |port| std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
        until("the reference", || listens(tcp) && listens(ws));
        Reference {
            child,
            directory,
            tcp: tcp_port,
            ws: ws_port,
        }
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
