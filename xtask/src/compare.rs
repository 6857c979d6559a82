//! `cargo xtask compare`: measures the reference floor, this server, Nchan and Mosquitto in turn, with one core each.
//!
//! The other servers come from Debian's packages, without their services: nothing is started during the installation or at the next boot.
//! `crore-bench run pair` starts each one with its own configuration, and ends it.

use crate::run::{Program, build_programs, target_directory, which};
use crate::tools::{SERVICES, apt_install};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};

/// Needed files, each with the Debian package that contains it.
const PEERS: &[(&str, &str)] = &[
    ("/usr/sbin/nginx", "nginx"),
    (
        "/usr/lib/nginx/modules/ngx_nchan_module.so",
        "libnginx-mod-nchan",
    ),
    ("/usr/sbin/mosquitto", "mosquitto"),
];
/// A single short round, to show that everything runs; its figures mean nothing.
const QUICK: [&str; 4] = ["--rounds", "1", "--duration", "2"];

/// Installs missing servers, builds the programs and runs the scenario `pair`. All arguments but `--quick` are passed to it.
pub fn run(args: &[&str]) -> Result<()> {
    let quick = args.contains(&"--quick");
    let args: Vec<&str> = args
        .iter()
        .copied()
        .filter(|arg| *arg != "--quick")
        .collect();
    install()?;
    build_programs()?;
    let target = target_directory()?;
    let mut step = Program::new(target.join("release/crore-bench")).args([
        "run",
        "pair",
        "--pin",
        "--peer",
        "nchan,mosquitto",
    ]);
    if quick {
        step = step.args(QUICK);
    }
    if !is_given(&args, "--json") {
        step = step.args([
            "--json".as_ref(),
            result_file(&args, quick, &target)?.as_os_str(),
        ]);
    }
    step.args(args).run()
}

/// The file for the result: with the benchmarks, unless the run is a quick one.
fn result_file(args: &[&str], quick: bool, target: &Path) -> Result<PathBuf> {
    let directory = if quick {
        target.to_path_buf()
    } else {
        PathBuf::from("docs/benchmarks")
    };
    fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
    Ok(directory.join(format!(
        "compare-{}.json",
        value(args, "--protocol").unwrap_or("ws")
    )))
}

fn is_given(args: &[&str], flag: &str) -> bool {
    value(args, flag).is_some()
}

/// The value of a flag, written `--flag value` or `--flag=value`.
fn value<'a>(args: &[&'a str], flag: &str) -> Option<&'a str> {
    let place = args.iter().position(|arg| arg.starts_with(flag))?;
    match args[place].strip_prefix(flag)?.strip_prefix('=') {
        Some(value) => Some(value),
        None => args.get(place + 1).copied(),
    }
}

/// Installs missing servers, without their services.
fn install() -> Result<()> {
    let missing: Vec<&str> = PEERS
        .iter()
        .filter(|(file, _)| !Path::new(file).exists())
        .map(|(_, package)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    if which("apt-get").is_none() {
        bail!("{missing:?} are missing, and this is no Debian to install them on");
    }
    eprintln!("xtask: missing {missing:?}, installing them without their services");
    let before = running();
    apt_install(&missing)?;
    let started: Vec<_> = running()
        .into_iter()
        .filter(|it| !before.contains(it))
        .collect();
    ensure!(
        started.is_empty(),
        "installing has started {started:?}; stop them, they would disturb every measurement"
    );
    Ok(())
}

/// The processes with the name of a service: their ids and names.
fn running() -> Vec<(u32, String)> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let name = fs::read_to_string(entry.path().join("comm")).ok()?;
            let name = name.trim().to_string();
            SERVICES.contains(&name.as_str()).then_some((pid, name))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_s_value_is_found_in_both_spellings() {
        assert_eq!(
            value(&["--rounds", "3", "--protocol", "sse"], "--protocol"),
            Some("sse")
        );
        assert_eq!(value(&["--protocol=poll"], "--protocol"), Some("poll"));
        assert_eq!(value(&["--rounds", "3"], "--protocol"), None);
    }
}
