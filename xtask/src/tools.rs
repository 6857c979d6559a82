//! Programs and libraries of the client tests: Chromium, nginx, Caddy, HAProxy, Mosquitto's clients, Node with four packages, Python
//! with four; and the tools that check packages and man pages. Shells are not installed: their completions are tested
//! where they are present.
//!
//! Programs come from Debian's packages and only when they are missing; none is started as a service. The libraries come in the
//! versions that `conformance/` pins, into a directory below `target/`, and are left alone while
//! those pins stand. A second run therefore costs a few file reads.

use crate::run::{Step, target_directory, which, workspace_root};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};

/// A program that must be in `PATH` (or there, with a slash), and the Debian packages that bring it.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("curl", &["curl"]),
    ("chromium", &["chromium"]),
    ("/usr/sbin/nginx", &["nginx"]),
    ("caddy", &["caddy"]),
    ("/usr/sbin/haproxy", &["haproxy"]),
    ("promtool", &["prometheus"]),
    ("mosquitto_pub", &["mosquitto-clients"]),
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

/// The packages that bring a service of their name.
pub const SERVICES: [&str; 6] = [
    "nginx",
    "mosquitto",
    "caddy",
    "haproxy",
    "prometheus",
    "postgresql",
];
/// Debian asks this program whether a package may start its service; there is none by default.
const POLICY: &str = "/usr/sbin/policy-rc.d";
/// Its answer: no (exit status 101).
const REFUSAL: &str = "#!/bin/sh\nexit 101\n";

/// The files that pin the libraries.
const NODE_PINS: &[&str] = &["package.json", "package-lock.json"];
const PYTHON_PINS: &[&str] = &["requirements.txt"];

/// nats-server, which is in no package of Debian that is new enough: the version that the cluster's tests are written for, by Go.
const NATS_SERVER: &str = "github.com/nats-io/nats-server/v2@v2.15.2";

/// Installs everything that is missing and returns the directory that holds `node_modules/` and `venv/`.
pub fn prepare() -> Result<PathBuf> {
    programs()?;
    let tools = target_directory()?.join("client-tools");
    fs::create_dir_all(&tools).with_context(|| format!("creating {}", tools.display()))?;
    nats_server()?;
    once(&tools, "node", NODE_PINS, || node(&tools))?;
    once(&tools, "python", PYTHON_PINS, || python(&tools))?;
    Ok(tools)
}

/// nats-server, which is installed if it is missing.
pub fn nats_server() -> Result<PathBuf> {
    let directory = target_directory()?.join("client-tools/go");
    let path = directory.join("nats-server");
    if path.is_file() {
        return Ok(path);
    }
    if which("go").is_none() {
        apt_install(&["golang-go"])?;
    }
    // An older Go fetches the one that this version wants.
    Step::new("go")
        .args(["install", NATS_SERVER])
        .env("GOBIN", directory)
        .env("CGO_ENABLED", "0")
        .run()?;
    Ok(path)
}

fn programs() -> Result<()> {
    let missing: Vec<_> = PROGRAMS
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

/// Installs Debian packages, as programs: their services are kept from starting, now and at the next boot.
pub fn apt_install(packages: &[&str]) -> Result<()> {
    let apt = || as_root("env").args(["DEBIAN_FRONTEND=noninteractive", "apt-get"]);
    apt().args(["update", "-qq"]).run()?;
    let refused = refuse_services()?;
    let installed = apt()
        .args(["install", "-qq", "-y", "--no-install-recommends"])
        .args(packages)
        .run();
    if refused {
        as_root("rm").args([POLICY]).run()?;
    }
    installed?;
    for service in SERVICES {
        if packages.contains(&service) && which("systemctl").is_some() {
            as_root("systemctl")
                .args(["disable", "--quiet", service])
                .run()?;
        }
    }
    Ok(())
}

/// Refuses the start of services until the policy is removed again; false when this machine has a
/// policy of its own, which is left alone.
fn refuse_services() -> Result<bool> {
    if Path::new(POLICY).exists() {
        return Ok(false);
    }
    let file = target_directory()?.join("policy-rc.d");
    fs::write(&file, REFUSAL).with_context(|| format!("writing {}", file.display()))?;
    as_root("install")
        .args([
            "-m".as_ref(),
            "755".as_ref(),
            file.as_os_str(),
            POLICY.as_ref(),
        ])
        .run()?;
    Ok(true)
}

/// A program that needs root: a user who is not root has `sudo`, or is told so by the program.
pub fn as_root(program: &str) -> Step {
    let root =
        fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    match which("sudo") {
        Some(sudo) if !root => Step::new(sudo).args([program]),
        _ => Step::new(program),
    }
}

/// Runs `install` unless it succeeded before with the same pins, of which a copy is kept.
fn once(
    tools: &Path,
    name: &str,
    pins: &[&str],
    install: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let mut wanted = String::new();
    for pin in pins {
        let path = workspace_root().join("conformance").join(pin);
        wanted +=
            &fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    }
    let stamp = tools.join(format!("{name}.installed"));
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    install()?;
    fs::write(&stamp, wanted).with_context(|| format!("writing {}", stamp.display()))
}

fn node(tools: &Path) -> Result<()> {
    for pin in NODE_PINS {
        fs::copy(
            workspace_root().join("conformance").join(pin),
            tools.join(pin),
        )
        .with_context(|| format!("copying {pin}"))?;
    }
    // None of these packages runs an install script, and none may begin to.
    Step::new("npm")
        .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
        .current_dir(tools)
        .run()
}

fn python(tools: &Path) -> Result<()> {
    let venv = tools.join("venv");
    let make = || {
        Step::new("python3")
            .args(["-m", "venv", "--clear"])
            .args([&venv])
    };
    // Debian's python3 comes without `ensurepip`, which only shows when an environment is made.
    if !make().succeeds() {
        apt_install(&["python3-venv"])?;
        make().run()?;
    }
    Step::new(venv.join("bin/pip"))
        .args([
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--requirement",
        ])
        .args([workspace_root().join("conformance/requirements.txt")])
        .run()
}
