//! Runs the real `crore` binary as a child process of a test. The test gives the settings, the kernel chooses the port, and the server is
//! killed at the end of the test.
//!
//! If the server exits without having been told to, or panics, the test fails even if its own checks pass. The submodules contain the
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
pub mod webhook_receiver;
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
use waiting::CHECK_INTERVAL;
pub use waiting::{PATIENCE, connect, connect_from, eventually, is_timeout, read_again, until};

/// The text before the address of the data port in the log. The server logs it when it accepts connections.
const READY: &str = "listening on http://";

/// The same text of a server that accepts only TLS.
const READY_TLS: &str = "listening on https://";

/// The text before the address of the admin port in the log.
const ADMIN: &str = "admin port at http://";

/// The name of a server's settings file.
const SETTINGS: &str = "crore.toml";

/// A loopback address with a port of the kernel's choice.
const ANY_PORT: &str = "127.0.0.1:0";

/// Reserves a free port for a program that needs its port as an argument.
pub fn hold_port() -> HeldPort {
    HeldPort::choose((Ipv4Addr::LOCALHOST, 0).into()).expect("a port")
}

/// How a server is started.
struct Launch<'a> {
    program: PathBuf,
    shards: u32,
    settings: &'a str,
    /// Limit of open file descriptors.
    descriptors: Option<u32>,
    /// The address of the data port. `None` if `settings` has it.
    listen: Option<&'a str>,
    /// The address of the admin port. `None` for a server without one.
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

    /// The command that starts the server in the directory of its settings.
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
    /// The test has asked the server to end, or expects its end.
    may_end: AtomicBool,
}

impl Server {
    /// A server with default settings and two shards.
    pub fn start() -> Server {
        Server::with("")
    }

    /// A server with `settings`, the text of a `crore.toml`. The text begins with a table, since this module writes the keys before it.
    pub fn with(settings: &str) -> Server {
        Launch::new(settings).start()
    }

    /// A server with an admin port, also on a port of the kernel's choice.
    pub fn with_admin(settings: &str) -> Server {
        let admin = Some(ANY_PORT);
        let launch = Launch::new(settings);
        Launch { admin, ..launch }.start()
    }

    /// A server that runs `program` (another build of Crore), with an admin port.
    pub fn from_build(program: &Path, settings: &str) -> Server {
        let launch = Launch::new(settings);
        Launch {
            program: program.to_path_buf(),
            admin: Some(ANY_PORT),
            ..launch
        }
        .start()
    }

    /// A server that runs `program` and listens at `address`, with an admin port.
    pub fn from_build_at(program: &Path, settings: &str, address: SocketAddr) -> Server {
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

    /// A server that listens where `settings` says, with an admin port at `admin`. The text of `settings` may begin with top-level keys.
    ///
    /// If the server listens on all addresses, `address` and `admin` return the loopback address.
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

    /// A server with an admin port, and with these environment variables.
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

    /// A server with this number of shards, and an admin port.
    pub fn with_shards(shards: u32, settings: &str) -> Server {
        let (launch, admin) = (Launch::new(settings), Some(ANY_PORT));
        Launch {
            shards,
            admin,
            ..launch
        }
        .start()
    }

    /// A server with `settings` under a limit of open file descriptors.
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
                Ok((prefix, address)) if prefix == wanted => return address,
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

    /// The address of the data port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of the admin port.
    pub fn admin(&self) -> SocketAddr {
        self.admin.expect("a server with an admin port")
    }

    /// The id of the server's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The URL of `path`, which begins with a slash.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The file of the server's settings.
    pub fn settings_file(&self) -> PathBuf {
        self.directory.join(SETTINGS)
    }

    /// The server's proportional share of memory (PSS), in bytes.
    pub fn pss_bytes(&self) -> u64 {
        self.bytes_of("smaps_rollup", "Pss:")
    }

    /// The server's anonymous resident memory, in bytes. Pages of the program file are not counted: the server releases them after the
    /// start, and the kernel loads them again when they are needed.
    pub fn resident_bytes(&self) -> u64 {
        self.bytes_of("status", "RssAnon:")
    }

    /// A field of a file in the server's `/proc` directory, converted from kilobytes to bytes.
    fn bytes_of(&self, file: &str, name: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/{file}", self.pid()));
        let text = text.expect("it runs");
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.expect("its line").trim().trim_end_matches(" kB");
        kib.parse::<u64>().expect("kilobytes") * 1024
    }

    /// Watches the memory (PSS) for two seconds, and panics if it grows to `limit` bytes above `before`. For memory that the server must
    /// not take: no event shows that it never will.
    pub fn assert_growth_below(&self, before: u64, limit: u64) {
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            let grown = self.pss_bytes().saturating_sub(before);
            assert!(grown < limit, "it has grown by {} MiB", grown >> 20);
            std::thread::sleep(CHECK_INTERVAL);
        }
    }

    /// Sends a signal. `name` is the name without `SIG`.
    pub fn signal(&self, name: &str) {
        self.may_end.fetch_or(name != "HUP", Ordering::Relaxed);
        let id = self.pid().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status();
        assert!(sent.expect("kill").success());
    }

    /// Kills the server with SIGKILL, as a crash would.
    pub fn kill(mut self) {
        self.crash();
    }

    /// Kills the server with SIGKILL, and keeps its directory and its log.
    pub fn crash(&mut self) {
        self.signal("KILL");
        self.child.wait().expect("it ends");
    }

    /// Sends SIGTERM, and waits until the server has exited. Returns its log.
    pub fn stop(self) -> String {
        self.signal("TERM");
        self.await_end()
    }

    /// Waits until the server has exited with success. Returns its log.
    pub fn await_end(mut self) -> String {
        self.may_end.store(true, Ordering::Relaxed);
        let status = eventually("its end", || self.child.try_wait().expect("it runs"));
        assert!(status.success(), "{status}:\n{}", self.log());
        self.log()
    }

    /// Waits until the server has exited, with success or not. Returns its exit code and its log.
    pub fn await_exit(mut self) -> (Option<i32>, String) {
        self.may_end.store(true, Ordering::Relaxed);
        let status = eventually("its end", || self.child.try_wait().expect("it runs"));
        (status.code(), self.log())
    }

    /// All lines that the server has logged so far.
    pub fn log(&self) -> String {
        self.log.lock().expect("the log").clone()
    }

    /// Waits until the log contains `text`.
    pub fn await_log(&self, text: &str) {
        until(text, || self.log().contains(text));
    }

    /// Replaces the settings file, and sends SIGHUP so that the running server reads it. The log says whether the server accepted it.
    pub fn reload(&self, settings: &str) {
        std::fs::write(self.settings_file(), settings).expect("a settings file");
        self.signal("HUP");
    }

    /// Waits until the server's uptime has advanced by `seconds`. The server needs an admin port.
    pub fn await_uptime(&self, seconds: f64) {
        let uptime = || port::metric(self.admin(), "crore_uptime_seconds").expect("a metric");
        let began = uptime();
        until("its time", || uptime() >= began + seconds);
    }

    /// Waits until the topic has `count` subscribers. The server counts a subscriber when it has read the request, and a long poll that
    /// waits has no answer that would show this.
    pub fn await_subscribers(&self, topic: &str, count: u64) {
        until(&format!("{count} subscribers of {topic}"), || {
            self.info(topic)
                .map_or(0, |info| info["subscribers"].as_u64().expect("a count"))
                == count
        });
    }

    /// Waits until the topic keeps `count` messages.
    pub fn await_kept(&self, topic: &str, count: u64) {
        until(&format!("{count} messages of {topic}"), || {
            self.info(topic)
                .map_or(0, |info| info["messages"].as_u64().expect("a count"))
                == count
        });
    }

    /// The topic's info. `None` if the topic does not exist.
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

/// Starts a thread that copies the server's output into `log`. Returns a channel of the addresses in the output, each with the text before
/// it (`READY` or `ADMIN`).
fn keep_log(
    stderr: ChildStderr,
    log: &Arc<Mutex<String>>,
) -> mpsc::Receiver<(&'static str, SocketAddr)> {
    let (ready, addresses) = mpsc::channel();
    let lines = BufReader::new(stderr).lines();
    let kept = Arc::clone(log);
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            for (port, prefix) in [(READY, READY), (READY, READY_TLS), (ADMIN, ADMIN)] {
                if let Some(address) = address_after(&line, prefix) {
                    let _ = ready.send((port, address)); // after the start nobody reads the channel
                }
            }
            let mut kept = kept.lock().expect("the log");
            kept.push_str(&line);
            kept.push('\n');
        }
    });
    addresses
}

/// The address after `prefix` in a line of the log. An unspecified address (all interfaces) is replaced by the loopback address.
fn address_after(line: &str, prefix: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once(prefix)?;
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

/// The result of `check`. `None` if an assertion in it fails; the failure is printed. A test with a table of cases uses this to report
/// every case that fails, and not only the first.
pub fn attempt<T>(check: impl FnOnce() -> T) -> Option<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).ok()
}

/// The path of `crore-bench`, which cargo builds beside the server.
pub fn bench_program() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_crore")).with_file_name("crore-bench");
    assert!(
        path.is_file(),
        "{} is not there: `cargo build --package crore-bench`",
        path.display()
    );
    path
}

/// The path of the server's program: the build for this test, or the one that `CRORE_TEST_PROGRAM` names.
pub fn program() -> PathBuf {
    std::env::var_os("CRORE_TEST_PROGRAM")
        .map_or_else(|| env!("CARGO_BIN_EXE_crore").into(), PathBuf::from)
}

/// `count` filters of twelve levels. Each has at least three wildcards, and no two have them at the same levels. `plus` is the wildcard of
/// one level, as the test must write it: `+`, or `%2B` in a URL.
pub fn wildcard_filters(plus: &str, count: usize) -> Vec<String> {
    let level_sets = (0_u32..1 << 12).filter(|levels| levels.count_ones() > 2);
    let filter = |levels: u32| {
        let level = |n: u32| if levels >> n & 1 == 1 { plus } else { "x" };
        (0..12).map(level).collect::<Vec<_>>().join("/")
    };
    level_sets.map(filter).take(count).collect()
}
