//! Installs programs and libraries for the client tests: Chromium, nginx, Caddy, HAProxy, the clients of Mosquitto and nghttp2, and libraries for Node,
//! Python and Go. Also installs the tools that check packages and man pages. It installs no shells, so their completions are tested only where the shell
//! exists.
//!
//! Missing programs come from Debian's packages, and none is started as a service. Libraries are installed below `target/` in the versions that
//! `conformance/` pins, and again only when the pins change. So a second run only reads a few files.

use crate::run::{Program, target_directory, which, workspace_root};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};

/// The needed programs (names in `PATH`, or paths), each with the Debian packages that contain it.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("curl", &["curl"]),
    ("chromium", &["chromium"]),
    ("/usr/sbin/nginx", &["nginx"]),
    ("caddy", &["caddy"]),
    ("/usr/sbin/haproxy", &["haproxy"]),
    ("promtool", &["prometheus"]),
    ("mosquitto_pub", &["mosquitto-clients"]),
    ("nghttp", &["nghttp2-client"]),
    ("node", &["nodejs"]),
    ("npm", &["npm"]),
    ("python3", &["python3", "python3-venv"]),
    ("bash", &["bash"]),
    ("groff", &["groff-base"]),
    ("dpkg-deb", &["dpkg"]),
    ("objdump", &["binutils"]),
    ("systemd-analyze", &["systemd"]),
    ("faketime", &["faketime"]),
    ("/usr/sbin/nft", &["nftables"]),
    ("pg_virtualenv", &["postgresql", "postgresql-common"]),
];

/// The packages that contain a service with the same name.
pub const SERVICES: [&str; 6] = [
    "nginx",
    "mosquitto",
    "caddy",
    "haproxy",
    "prometheus",
    "postgresql",
];
/// The program that Debian asks whether a package may start its service. By default it does not exist.
const POLICY_PROGRAM: &str = "/usr/sbin/policy-rc.d";
/// The policy program that refuses the start of every service (exit status 101).
const REFUSING_POLICY: &str = "#!/bin/sh\nexit 101\n";

/// A library's repository that has its own tests, or has no package.
pub struct Suite {
    /// The name of the suite's directories, in `conformance/` and among the tools.
    name: &'static str,
    repository: &'static str,
    tag: &'static str,
    /// The environment variable that names a copy of the repository.
    copy: &'static str,
    /// The files below `conformance/` that pin the suite's Node packages. Empty if it needs none.
    pins: &'static [&'static str],
    /// Further programs and files that the suite needs, each with the Debian packages that contain it.
    programs: &'static [(&'static str, &'static [&'static str])],
    /// The prefix of the names of the tests that run the suite.
    pub tests: &'static str,
}

pub const CENTRIFUGE_JS: Suite = Suite {
    name: "centrifuge-js",
    repository: "https://github.com/centrifugal/centrifuge-js.git",
    tag: "5.7.1",
    copy: "CRORE_CENTRIFUGE_JS",
    pins: &[
        "centrifuge-js/package.json",
        "centrifuge-js/package-lock.json",
    ],
    programs: &[],
    tests: "centrifugo_suites::",
};

pub const PUSHER_JS: Suite = Suite {
    name: "pusher-js",
    repository: "https://github.com/pusher/pusher-js.git",
    tag: "v8.6.0",
    copy: "CRORE_PUSHER_JS",
    pins: &["pusher-js/package.json", "pusher-js/package-lock.json"],
    programs: &[],
    tests: "pusher_js::",
};

/// Pusher's server library for PHP. Only Packagist has a package of it, and that would need one more tool to install.
pub const PUSHER_PHP: Suite = Suite {
    name: "pusher-http-php",
    repository: "https://github.com/pusher/pusher-http-php.git",
    tag: "7.2.7",
    copy: "CRORE_PUSHER_PHP",
    pins: &[],
    programs: &[
        ("php", &["php-cli", "php-curl"]),
        (
            "/usr/share/php/GuzzleHttp/autoload.php",
            &["php-guzzlehttp-guzzle"],
        ),
        ("/usr/share/php/Psr/Log/autoload.php", &["php-psr-log"]),
    ],
    tests: "pusher_php::",
};

/// The files that pin the versions of the libraries.
const NODE_PINS: &[&str] = &["package.json", "package-lock.json"];
const PYTHON_PINS: &[&str] = &["requirements.txt"];
const GO_PINS: &[&str] = &["go.mod", "go.sum"];
/// The directories in `conformance/` that pin Centrifugo's libraries for Go and for Java.
const GO_CLIENTS: &str = "go-clients";
const GO_CLIENTS_PINS: &[&str] = &["go-clients/go.mod", "go-clients/go.sum"];
const JAVA_CLIENTS: &str = "java-clients";
const JAVA_CLIENTS_PINS: &[&str] = &["java-clients/pom.xml"];
/// Centrifugo's library for Python. Only its sources contain its tests.
const CENTRIFUGE_PYTHON: &str = "centrifuge-python";

/// The version of nats-server for which the cluster's tests are written. Go installs it, because Debian's package is too old.
const NATS_SERVER: &str = "github.com/nats-io/nats-server/v2@v2.15.2";
/// The HTTP/2 tests. No distribution packages them.
const H2SPEC: &str = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible";

/// Installs everything that is missing. Returns the directory with `node_modules/`, `venv/` and `go/`.
pub fn prepare() -> Result<PathBuf> {
    install_missing(PROGRAMS)?;
    let tools = target_directory()?.join("client-tools");
    fs::create_dir_all(&tools).with_context(|| format!("creating {}", tools.display()))?;
    nats_server()?;
    install_go_program("h2spec", H2SPEC)?;
    install_once(&tools, "node", NODE_PINS, || install_node_packages(&tools))?;
    install_once(&tools, "python", PYTHON_PINS, || {
        install_python_packages(&tools)
    })?;
    install_once(&tools, "go-modules", GO_PINS, || install_go_modules(&tools))?;
    Ok(tools)
}

/// Installs nats-server if it is missing, and returns its path.
pub fn nats_server() -> Result<PathBuf> {
    install_go_program("nats-server", NATS_SERVER)
}

/// Installs a program with Go if it is missing, and returns its path.
fn install_go_program(name: &str, package: &str) -> Result<PathBuf> {
    let directory = target_directory()?.join("client-tools/go");
    let path = directory.join(name);
    if path.is_file() {
        return Ok(path);
    }
    if which("go").is_none() {
        apt_install(&["golang-go"])?;
    }
    // If the installed Go is too old for this package, it downloads a newer Go.
    Program::new("go")
        .args(["install", package])
        .env("GOBIN", directory)
        .env("CGO_ENABLED", "0")
        .run()?;
    Ok(path)
}

/// Installs the packages of the programs and files that are missing.
fn install_missing(programs: &[(&str, &[&str])]) -> Result<()> {
    let missing: Vec<_> = programs
        .iter()
        .filter(|(name, _)| which(name).is_none())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = missing.iter().map(|(name, _)| *name).collect();
    if which("apt-get").is_none() {
        bail!("the client tests need {names:?} in PATH, and this is no Debian to install them on");
    }
    eprintln!("xtask: missing {names:?}, installing them");
    let packages = missing
        .iter()
        .flat_map(|(_, packages)| packages.iter().copied());
    apt_install(&packages.collect::<Vec<_>>())
}

/// Installs Debian packages, and prevents their services from starting, now and at the next boot.
pub fn apt_install(packages: &[&str]) -> Result<()> {
    let apt = || as_root("env").args(["DEBIAN_FRONTEND=noninteractive", "apt-get"]);
    apt().args(["update", "-qq"]).run()?;
    let has_refused = refuse_services()?;
    let result = apt()
        .args(["install", "-qq", "-y", "--no-install-recommends"])
        .args(packages)
        .run();
    if has_refused {
        as_root("rm").args([POLICY_PROGRAM]).run()?;
    }
    result?;
    for service in SERVICES {
        if packages.contains(&service) && which("systemctl").is_some() {
            as_root("systemctl")
                .args(["disable", "--quiet", service])
                .run()?;
        }
    }
    Ok(())
}

/// Installs the policy that forbids the start of services. Returns false if this machine has its own policy, which stays unchanged.
fn refuse_services() -> Result<bool> {
    if Path::new(POLICY_PROGRAM).exists() {
        return Ok(false);
    }
    let file = target_directory()?.join("policy-rc.d");
    fs::write(&file, REFUSING_POLICY).with_context(|| format!("writing {}", file.display()))?;
    as_root("install")
        .args([
            "-m".as_ref(),
            "755".as_ref(),
            file.as_os_str(),
            POLICY_PROGRAM.as_ref(),
        ])
        .run()?;
    Ok(true)
}

/// A program that needs root. It is run with `sudo` if the user is not root and has `sudo`.
pub fn as_root(program: &str) -> Program {
    let is_root = fs::metadata("/proc/self")
        .is_ok_and(|metadata| std::os::unix::fs::MetadataExt::uid(&metadata) == 0);
    match which("sudo") {
        Some(sudo) if !is_root => Program::new(sudo).args([program]),
        _ => Program::new(program),
    }
}

/// Runs `install`, unless it has already succeeded with the same pinned versions.
fn install_once(
    tools: &Path,
    name: &str,
    pins: &[&str],
    install: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let mut pinned_text = String::new();
    for pin in pins {
        let path = workspace_root().join("conformance").join(pin);
        pinned_text +=
            &fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    }
    let stamp = tools.join(format!("{name}.installed"));
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == pinned_text) {
        return Ok(());
    }
    install()?;
    fs::write(&stamp, pinned_text).with_context(|| format!("writing {}", stamp.display()))
}

/// Copies files of `conformance/` to the tools.
fn copy_pins(tools: &Path, pins: &[&str]) -> Result<()> {
    for pin in pins {
        let pinned = workspace_root().join("conformance").join(pin);
        fs::copy(&pinned, tools.join(pin)).with_context(|| format!("copying {pin}"))?;
    }
    Ok(())
}

fn install_node_packages(tools: &Path) -> Result<()> {
    copy_pins(tools, NODE_PINS)?;
    // No package needs an install script, and the script of a later version must not run.
    Program::new("npm")
        .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
        .current_dir(tools)
        .run()
}

/// Installs what only `cargo xtask conformance centrifugo` runs: Centrifugo's libraries for Go and Java, and the tests of the library for Python.
pub fn centrifugo_clients(tools: &Path) -> Result<()> {
    install_once(tools, GO_CLIENTS, GO_CLIENTS_PINS, || {
        install_go_clients(tools)
    })?;
    install_once(tools, JAVA_CLIENTS, JAVA_CLIENTS_PINS, || {
        install_java_clients(tools)
    })?;
    install_once(tools, CENTRIFUGE_PYTHON, PYTHON_PINS, || {
        fetch_centrifuge_python(tools)
    })
}

/// Installs the pinned modules. The tests build the programs that use them.
fn install_go_clients(tools: &Path) -> Result<()> {
    let directory = empty_directory(&tools.join(GO_CLIENTS))?;
    copy_pins(tools, GO_CLIENTS_PINS)?;
    if which("go").is_none() {
        apt_install(&["golang-go"])?;
    }
    Program::new("go")
        .args(["mod", "download"])
        .current_dir(&directory)
        .run()
}

fn install_java_clients(tools: &Path) -> Result<()> {
    let directory = empty_directory(&tools.join(JAVA_CLIENTS))?;
    copy_pins(tools, JAVA_CLIENTS_PINS)?;
    if which("mvn").is_none() || which("java").is_none() {
        apt_install(&["default-jdk-headless", "maven"])?;
    }
    Program::new("mvn")
        .args(["--batch-mode", "--quiet", "dependency:copy-dependencies"])
        .args([format!("-DoutputDirectory={}", directory.display())])
        .current_dir(&directory)
        .run()
}

/// Fetches the sources of centrifuge-python in the installed version, because only the sources contain its tests.
fn fetch_centrifuge_python(tools: &Path) -> Result<()> {
    let directory = empty_directory(&tools.join(CENTRIFUGE_PYTHON))?;
    let pins = workspace_root().join("conformance/requirements.txt");
    let pins = fs::read_to_string(&pins).with_context(|| format!("reading {}", pins.display()))?;
    let pinned = (pins.lines()).find(|line| line.starts_with(CENTRIFUGE_PYTHON));
    let pinned = pinned.with_context(|| format!("no version of {CENTRIFUGE_PYTHON} is pinned"))?;
    Program::new(tools.join("venv/bin/pip"))
        .args(["download", "--quiet", "--disable-pip-version-check"])
        .args(["--no-deps", "--no-binary", CENTRIFUGE_PYTHON, pinned])
        .current_dir(&directory)
        .run()?;
    let archive = format!("{}.tar.gz", pinned.replace('-', "_").replace("==", "-"));
    Program::new("tar")
        .args(["--extract", "--strip-components", "1", "--file", &archive])
        .current_dir(&directory)
        .run()
}

/// Creates an empty directory. If it exists, removes its content.
fn empty_directory(directory: &Path) -> Result<PathBuf> {
    if directory.exists() {
        fs::remove_dir_all(directory)
            .with_context(|| format!("removing {}", directory.display()))?;
    }
    fs::create_dir_all(directory).with_context(|| format!("creating {}", directory.display()))?;
    Ok(directory.to_path_buf())
}

/// Fetches a suite, and installs its packages and programs.
pub fn fetch_suite(tools: &Path, suite: &Suite) -> Result<()> {
    install_missing(suite.programs)?;
    let stamp = format!("{}-{}", suite.name, suite.tag);
    install_once(tools, &stamp, suite.pins, || {
        let directory = tools.join(suite.name);
        if directory.exists() {
            fs::remove_dir_all(&directory)
                .with_context(|| format!("removing {}", directory.display()))?;
        }
        let copy = std::env::var(suite.copy);
        Program::new("git")
            .args(["clone", "--quiet", "--depth", "1"])
            .args(["--branch", suite.tag])
            .args([copy.as_deref().unwrap_or(suite.repository)])
            .args([&directory])
            .run()?;
        // The suite's own package list would also install the tools that build the library.
        if suite.pins.is_empty() {
            return Ok(());
        }
        copy_pins(tools, suite.pins)?;
        Program::new("npm")
            .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
            .current_dir(&directory)
            .run()
    })
}

/// Puts the libraries into Go's cache. The tools' directory becomes the module that names their versions.
fn install_go_modules(tools: &Path) -> Result<()> {
    copy_pins(tools, GO_PINS)?;
    Program::new("go")
        .args(["mod", "download"])
        .current_dir(tools)
        .run()
}

fn install_python_packages(tools: &Path) -> Result<()> {
    let venv = tools.join("venv");
    let create_venv = || {
        Program::new("python3")
            .args(["-m", "venv", "--clear"])
            .args([&venv])
    };
    // Debian's python3 lacks `ensurepip`, which shows only when an environment is created.
    if !create_venv().succeeds() {
        apt_install(&["python3-venv"])?;
        create_venv().run()?;
    }
    Program::new(venv.join("bin/pip"))
        .args([
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--requirement",
        ])
        .args([workspace_root().join("conformance/requirements.txt")])
        .run()
}
