//! Runs the real binary as a child process for tests, on a port of the kernel's choice with the test's own settings. The server ends with
//! the test.
//!
//! If the server ends by itself or panics, the test fails, whatever else it checks. The submodules have the clients that several test
//! programs use.

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

/// The words in the log before the server's address, once it accepts connections.
const READY: &str = "listening on http://";

/// The words before the address if the server speaks TLS only.
const READY_TLS: &str = "listening on https://";

/// The words before the address of the admin port.
const ADMIN: &str = "admin port at http://";

/// The name of a server's settings file.
const SETTINGS: &str = "crore.toml";

/// A loopback address with a port of the kernel's choice.
const ANY_PORT: &str = "127.0.0.1:0";

/// Reserves a port for another program that must be told where to listen.
pub fn hold_port() -> HeldPort {
    HeldPort::choose((Ipv4Addr::LOCALHOST, 0).into()).expect("a port")
}

/// The arguments that a server is started with.
struct Launch<'a> {
    program: PathBuf,
    shards: u32,
    settings: &'a str,
    descriptors: Option<u32>,
    /// The address of the data port. `None`: as the settings say.
    listen: Option<&'a str>,
    /// The address of the admin port, if the server has one.
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

    /// A server with `settings`, the text of a `crore.toml`. It may have only tables, since this module writes the top level.
    pub fn with(settings: &str) -> Server {
        Launch::new(settings).start()
    }

    /// A server with an admin port, also on a port of the kernel's choice.
    pub fn with_admin(settings: &str) -> Server {
        let admin = Some(ANY_PORT);
        let launch = Launch::new(settings);
        Launch { admin, ..launch }.start()
    }

    /// A server from another build, with an admin port.
    pub fn of(program: &Path, settings: &str) -> Server {
        let launch = Launch::new(settings);
        Launch {
            program: program.to_path_buf(),
            admin: Some(ANY_PORT),
            ..launch
        }
        .start()
    }

    /// A server from another build at this address, with an admin port.
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

    /// A server with the data ports that `settings` name (which begin with the top level), and an admin port at this address.
    ///
    /// Tests reach a server that listens on all addresses through the loopback.
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

    /// The server's resident memory without pages of files, in bytes. Pages of its program are excluded, since the server releases them
    /// after the start and reads them again as it serves.
    pub fn resident_bytes(&self) -> u64 {
        self.bytes_of("status", "RssAnon:")
    }

    /// A value of a file of `/proc`, in bytes. The file has it in kilobytes.
    fn bytes_of(&self, file: &str, name: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/{file}", self.pid()));
        let text = text.expect("it runs");
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.expect("its line").trim().trim_end_matches(" kB");
        kib.parse::<u64>().expect("kilobytes") * 1024
    }

    /// Panics if the memory grows by `most` bytes above `before` within two seconds. This is for memory that the server must not take,
    /// where no event shows when the danger is over.
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

    /// Kills the server, as a crash would.
    pub fn kill(mut self) {
        self.crash();
    }

    /// The same for a server that other code still refers to.
    pub fn crash(&mut self) {
        self.signal("KILL");
        self.child.wait().expect("it ends");
    }

    /// Asks the server to end, and waits until it has. Returns what it printed.
    pub fn stop(self) -> String {
        self.signal("TERM");
        self.ended()
    }

    /// Waits until the server has ended in order. Returns what it printed.
    pub fn ended(mut self) -> String {
        self.may_end.store(true, Ordering::Relaxed);
        let status = eventually("its end", || self.child.try_wait().expect("it runs"));
        assert!(status.success(), "{status}:\n{}", self.log());
        self.log()
    }

    /// Waits until the server has ended by itself, in whatever way. Returns its exit code and what it printed.
    pub fn failed(mut self) -> (Option<i32>, String) {
        self.may_end.store(true, Ordering::Relaxed);
        let status = eventually("its end", || self.child.try_wait().expect("it runs"));
        (status.code(), self.log())
    }

    /// The server's output so far.
    pub fn log(&self) -> String {
        self.log.lock().expect("the log").clone()
    }

    /// Waits until the server has printed this text.
    pub fn await_log(&self, text: &str) {
        until(text, || self.log().contains(text));
    }

    /// Makes the running server read these settings. Its log says whether it accepted them.
    pub fn reread(&self, settings: &str) {
        std::fs::write(self.settings_file(), settings).expect("a settings file");
        self.signal("HUP");
    }

    /// Waits until the server's clock has advanced by this much. The server needs an admin port.
    pub fn passes(&self, seconds: f64) {
        let uptime = || port::metric(self.admin(), "crore_uptime_seconds").expect("a metric");
        let began = uptime();
        until("its time", || uptime() >= began + seconds);
    }

    /// Waits until the topic has this many subscribers. The server counts a subscriber when it has read the request, which no answer
    /// shows.
    pub fn await_subscribers(&self, topic: &str, count: u64) {
        until(&format!("{count} subscribers of {topic}"), || {
            self.info(topic)
                .map_or(0, |info| info["subscribers"].as_u64().expect("a count"))
                == count
        });
    }

    /// Waits until this many messages of the topic are kept.
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

/// Collects what the server prints in `log`. Returns a channel of the addresses in the output, each with the words before it.
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

/// The address after `what` in a line of the log, as a client on this machine reaches it.
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

/// The program of the load tools, which cargo builds beside the server.
pub fn bench_program() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_crore")).with_file_name("crore-bench");
    assert!(
        path.is_file(),
        "{} is not there: `cargo build --package crore-bench`",
        path.display()
    );
    path
}

/// The server's program: the one that cargo built for this test, unless `CRORE_TEST_PROGRAM` names another build.
pub fn program() -> PathBuf {
    std::env::var_os("CRORE_TEST_PROGRAM")
        .map_or_else(|| env!("CARGO_BIN_EXE_crore").into(), PathBuf::from)
}

/// Filters of twelve levels with at least three wildcards `plus`, each at other levels than in the other filters.
pub fn shapes(plus: &str, count: usize) -> Vec<String> {
    let shapes = (0_u32..1 << 12).filter(|shape| shape.count_ones() > 2);
    let text = |shape: u32| {
        let level = |n: u32| if shape >> n & 1 == 1 { plus } else { "x" };
        (0..12).map(level).collect::<Vec<_>>().join("/")
    };
    shapes.map(text).take(count).collect()
}
