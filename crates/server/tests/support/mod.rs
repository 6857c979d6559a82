//! The real binary as a child process, for tests: started on a port of the kernel's choice with
//! settings of the test's own, ended with the test.
//!
//! A server that ended or panicked while it was tested fails the test, whatever else was seen. Beside it stand the
//! clients that several test programs use.

#![allow(dead_code, reason = "no test program needs all of it")]

pub mod broker;
pub mod clock;
pub mod http;
pub mod interest;
pub mod mqtt;
pub mod port;
pub mod program;
pub mod state;
pub mod stream;
pub mod tools;
mod waiting;
pub mod ws;

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use crore_net::kernel::listener::HeldPort;

use program::REAL_MONOTONIC;
use waiting::LOOKS_EVERY;
pub use waiting::{PATIENCE, connect, connect_from, eventually, is_timeout, read_again, until};

/// The words that the server prints, with its address behind them, once it accepts connections.
const READY: &str = "listening on http://";

/// The same where it speaks TLS only.
const READY_TLS: &str = "listening on https://";

/// The same of the admin port.
const ADMIN: &str = "admin port at http://";

/// The name of a server's settings file.
const SETTINGS: &str = "crore.toml";

/// An address of the loopback with a port of the kernel's choice.
const ANY_PORT: &str = "127.0.0.1:0";

/// A port for another program that is told where to listen.
pub fn hold_port() -> HeldPort {
    HeldPort::choose((Ipv4Addr::LOCALHOST, 0).into()).expect("a port")
}

/// The arguments that a server is started with.
struct Launch<'a> {
    program: PathBuf,
    shards: u32,
    settings: &'a str,
    descriptors: Option<u32>,
    /// Where it listens; none: where the settings say.
    listen: Option<&'a str>,
    /// Where its admin port is, if it has one.
    admin: Option<&'a str>,
    environment: &'a [(&'a str, &'a str)],
}

impl<'a> Launch<'a> {
    fn new(settings: &'a str) -> Self {
        Launch {
            program: program(),
            shards: 2,
            settings,
            descriptors: None,
            listen: Some(ANY_PORT),
            admin: None,
            environment: &[],
        }
    }

    fn start(&self) -> Server {
        Server::launch(self)
    }

    /// The server's command, in the directory that has its settings.
    fn command(&self, directory: &Path) -> Command {
        let mut command = match self.descriptors {
            None => Command::new(&self.program),
            Some(limit) => {
                let mut shell = Command::new("sh");
                shell
                    .args(["-c", &format!("ulimit -n {limit} && exec \"$0\" \"$@\"")])
                    .arg(&self.program);
                shell
            }
        };
        command
            .args(["serve", "--config"])
            .arg(directory.join(SETTINGS));
        if let Some(listen) = self.listen {
            command.args(["--listen", listen]);
        }
        match self.admin {
            Some(listen) => command.args(["--admin-listen", listen]),
            None => command.arg("--no-admin"),
        };
        command
            .env("NO_COLOR", "1")
            .env("RUST_LOG", "info")
            .env(REAL_MONOTONIC, "1")
            .envs(self.environment.iter().copied())
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command
    }
}

/// A running `crore serve`.
pub struct Server {
    child: Child,
    address: SocketAddr,
    admin: Option<SocketAddr>,
    log: Arc<Mutex<String>>,
    directory: PathBuf,
    /// The test has asked it to end.
    may_end: AtomicBool,
}

impl Server {
    /// With the defaults, two shards.
    pub fn start() -> Server {
        Server::with("")
    }

    /// With `settings`, the text of a `crore.toml`. Tables only: the top level is ours.
    pub fn with(settings: &str) -> Server {
        Launch::new(settings).start()
    }

    /// With an admin port, on a port of the kernel's choice too.
    pub fn with_admin(settings: &str) -> Server {
        let admin = Some(ANY_PORT);
        let launch = Launch::new(settings);
        Launch { admin, ..launch }.start()
    }

    /// The same of another build.
    pub fn of(program: &Path, settings: &str) -> Server {
        let launch = Launch::new(settings);
        Launch {
            program: program.to_path_buf(),
            admin: Some(ANY_PORT),
            ..launch
        }
        .start()
    }

    /// The same at this address, with an admin port.
    pub fn of_at(program: &Path, settings: &str, address: SocketAddr) -> Server {
        let address = address.to_string();
        let launch = Launch::new(settings);
        Launch {
            program: program.to_path_buf(),
            listen: Some(&address),
            admin: Some(ANY_PORT),
            ..launch
        }
        .start()
    }

    /// With the data ports that `settings` name, which begin with the top level, and an admin port at this address.
    ///
    /// A server that listens on all addresses is asked by that of the loopback.
    pub fn listening(settings: &str, admin: &str) -> Server {
        let launch = Launch::new(settings);
        let (listen, admin) = (None, Some(admin));
        Launch {
            listen,
            admin,
            ..launch
        }
        .start()
    }

    /// With an admin port, and these variables in its environment.
    pub fn with_environment(settings: &str, environment: &[(&str, &str)]) -> Server {
        let admin = Some(ANY_PORT);
        let launch = Launch::new(settings);
        Launch {
            admin,
            environment,
            ..launch
        }
        .start()
    }

    /// With so many shards, and an admin port.
    pub fn with_shards(shards: u32, settings: &str) -> Server {
        let (launch, admin) = (Launch::new(settings), Some(ANY_PORT));
        Launch {
            shards,
            admin,
            ..launch
        }
        .start()
    }

    /// With `settings` and a limit on descriptors, which the server must live with.
    pub fn with_descriptors(settings: &str, descriptors: u32) -> Server {
        let descriptors = Some(descriptors);
        let launch = Launch::new(settings);
        Launch {
            descriptors,
            ..launch
        }
        .start()
    }

    fn launch(launch: &Launch<'_>) -> Server {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let directory =
            std::env::temp_dir().join(format!("crore-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a temporary directory");
        let settings = format!("shards = {}\n{}", launch.shards, launch.settings);
        std::fs::write(directory.join(SETTINGS), settings).expect("a settings file");
        let mut child = launch
            .command(&directory)
            .spawn()
            .expect("the server starts");

        let log = Arc::new(Mutex::new(String::new()));
        let addresses = keep_log(child.stderr.take().expect("a pipe"), &log);
        let mut await_address = |wanted| loop {
            match addresses.recv_timeout(PATIENCE) {
                Ok((what, address)) if what == wanted => return address,
                Ok(_) => {}
                Err(_) => {
                    let _ = child.kill();
                    let _ = child.wait();
                    let log = log.lock().expect("the log");
                    panic!("the server did not say where it listens:\n{log}");
                }
            }
        };
        let address = await_address(READY);
        let admin = launch.admin.map(|_| await_address(ADMIN));
        Server {
            child,
            address,
            admin,
            log,
            directory,
            may_end: AtomicBool::new(false),
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where its admin port is.
    pub fn admin(&self) -> SocketAddr {
        self.admin.expect("a server with an admin port")
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The URL of `path`, which begins with a slash.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The file that its settings were read from.
    pub fn settings_file(&self) -> PathBuf {
        self.directory.join(SETTINGS)
    }

    /// Its proportional share of memory, in bytes, which the kernel counts page by page.
    pub fn pss_bytes(&self) -> u64 {
        self.bytes_of("smaps_rollup", "Pss:")
    }

    /// Its resident memory without pages of files: it lets go of its text after the start, and reads it back as it serves.
    pub fn resident_bytes(&self) -> u64 {
        self.bytes_of("status", "RssAnon:")
    }

    /// A value of a file of `/proc` that is in kilobytes there, in bytes.
    fn bytes_of(&self, file: &str, name: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/{file}", self.pid()));
        let text = text.expect("it runs");
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.expect("its line").trim().trim_end_matches(" kB");
        kib.parse::<u64>().expect("kilobytes") * 1024
    }

    /// Fails when it takes `most` bytes more than `before` within two seconds: for memory that it must not keep, where no event
    /// tells when the danger is over.
    pub fn never_grows(&self, before: u64, most: u64) {
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            let grown = self.pss_bytes().saturating_sub(before);
            assert!(grown < most, "it has grown by {} MiB", grown >> 20);
            std::thread::sleep(LOOKS_EVERY);
        }
    }

    /// Sends a signal, by its name without `SIG`.
    pub fn signal(&self, name: &str) {
        self.may_end.fetch_or(name != "HUP", Ordering::Relaxed);
        let id = self.pid().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status();
        assert!(sent.expect("kill").success());
    }

    /// Ends it at once, as a crash does.
    pub fn kill(mut self) {
        self.signal("KILL");
        self.child.wait().expect("it ends");
    }

    /// Asks it to end, and waits until it has; returns what it printed.
    pub fn stop(self) -> String {
        self.signal("TERM");
        self.ended()
    }

    /// Waits until it has ended in order, and returns what it printed.
    pub fn ended(mut self) -> String {
        self.may_end.store(true, Ordering::Relaxed);
        let status = eventually("its end", || self.child.try_wait().expect("it runs"));
        assert!(status.success(), "{status}:\n{}", self.log());
        self.log()
    }

    /// Waits until it has ended by itself, in whatever way; returns its exit code and what it printed.
    pub fn failed(mut self) -> (Option<i32>, String) {
        self.may_end.store(true, Ordering::Relaxed);
        let status = eventually("its end", || self.child.try_wait().expect("it runs"));
        (status.code(), self.log())
    }

    /// Its output until now.
    pub fn log(&self) -> String {
        self.log.lock().expect("the log").clone()
    }

    /// Waits until it has printed this.
    pub fn await_log(&self, text: &str) {
        until(text, || self.log().contains(text));
    }

    /// Has it read these settings while it runs. Whether it took them stands in its log.
    pub fn reread(&self, settings: &str) {
        std::fs::write(self.settings_file(), settings).expect("a settings file");
        self.signal("HUP");
    }

    /// Waits until the server's clock has gone on by so much: it needs an admin port.
    pub fn passes(&self, seconds: f64) {
        let uptime = || port::metric(self.admin(), "crore_uptime_seconds").expect("a metric");
        let began = uptime();
        until("its time", || uptime() >= began + seconds);
    }

    /// Waits until so many subscribe to the topic: one is counted when its request was read, which no answer tells.
    pub fn await_subscribers(&self, topic: &str, count: u64) {
        until(&format!("{count} subscribers of {topic}"), || {
            self.info(topic)
                .map_or(0, |info| info["subscribers"].as_u64().expect("a count"))
                == count
        });
    }

    /// Waits until so many messages of the topic are kept.
    pub fn await_kept(&self, topic: &str, count: u64) {
        until(&format!("{count} messages of {topic}"), || {
            self.info(topic)
                .map_or(0, |info| info["messages"].as_u64().expect("a count"))
                == count
        });
    }

    /// The server's information on a topic, if there is one.
    pub fn info(&self, topic: &str) -> Option<serde_json::Value> {
        let target = format!("/pub/{topic}");
        let json = [("Accept", "application/json")];
        let answer = http::once(self, "GET", &target, &json, "");
        (answer.status == 200).then(|| answer.json())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let ended = self.child.try_wait().ok().flatten();
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
        let log = self.log();
        if std::thread::panicking() {
            eprint_log(&log);
        } else {
            assert!(
                ended.is_none() || self.may_end.load(Ordering::Relaxed),
                "the server ended by itself, {ended:?}:\n{log}"
            );
            assert!(!log.contains("panicked at"), "the server panicked:\n{log}");
        }
    }
}

/// Keeps what the server prints; returns where the addresses come that it tells, each with the words that announce it.
fn keep_log(
    stderr: ChildStderr,
    log: &Arc<Mutex<String>>,
) -> mpsc::Receiver<(&'static str, SocketAddr)> {
    let (ready, addresses) = mpsc::channel();
    let lines = BufReader::new(stderr).lines();
    let kept = Arc::clone(log);
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            for (what, text) in [(READY, READY), (READY, READY_TLS), (ADMIN, ADMIN)] {
                if let Some(address) = address_behind(&line, text) {
                    let _ = ready.send((what, address)); // nobody waits for a second address
                }
            }
            let mut kept = kept.lock().expect("the log");
            kept.push_str(&line);
            kept.push('\n');
        }
    });
    addresses
}

/// The address that a line of the log tells behind `what`, as a client on this machine reaches it.
fn address_behind(line: &str, what: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once(what)?;
    let text = rest.split([' ', '/', '"', '\u{1b}']).next()?;
    let mut address: SocketAddr = text
        .parse()
        .unwrap_or_else(|_| panic!("{text:?} is no address"));
    if address.ip().is_unspecified() {
        address.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    Some(address)
}

#[allow(
    clippy::print_stderr,
    reason = "the test harness shows it with the failure"
)]
fn eprint_log(log: &str) {
    eprintln!("--- the server's log\n{log}---");
}

/// The load tools, which cargo builds beside the server.
pub fn bench_program() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_crore")).with_file_name("crore-bench");
    assert!(
        path.is_file(),
        "{} is not there: `cargo build --package crore-bench`",
        path.display()
    );
    path
}

/// The binary that cargo built for this test, unless `CRORE_TEST_PROGRAM` names another build.
pub fn program() -> PathBuf {
    std::env::var_os("CRORE_TEST_PROGRAM")
        .map_or_else(|| env!("CARGO_BIN_EXE_crore").into(), PathBuf::from)
}
