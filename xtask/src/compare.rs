//! `cargo xtask compare`: measures four servers in turn, with one core each: the floor (a minimal reference server), this server, Nchan and
//! Mosquitto.
//!
//! The other servers come from Debian's packages. Their services are not started, neither during the installation nor at the next boot. `crore-bench run
//! pair` starts each server with its own configuration, and ends it.

use crate::run::{Program, build_programs, target_directory, which};
use crate::tools::{SERVICES, apt_install};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};

/// Needed files, each with the Debian package that contains it.
const PEER_FILES: &[(&str, &str)] = &[
    ("/usr/sbin/nginx", "nginx"),
    (
        "/usr/lib/nginx/modules/ngx_nchan_module.so",
        "libnginx-mod-nchan",
    ),
    ("/usr/sbin/mosquitto", "mosquitto"),
];
/// The flags of a single short round, which only shows that everything runs. Its figures mean nothing.
const QUICK_FLAGS: [&str; 4] = ["--rounds", "1", "--duration", "2"];

/// Installs missing servers, builds the programs and runs the scenario `pair`. All arguments but `--quick` are passed to it.
pub fn run(args: &[&str]) -> Result<()> {
    let is_quick = args.contains(&"--quick");
    let args: Vec<&str> = args
        .iter()
        .copied()
        .filter(|arg| *arg != "--quick")
        .collect();
    install_missing_servers()?;
    build_programs()?;
    let target = target_directory()?;
    let mut bench = Program::new(target.join("release/crore-bench")).args([
        "run",
        "pair",
        "--pin",
        "--peer",
        "nchan,mosquitto",
    ]);
    if is_quick {
        bench = bench.args(QUICK_FLAGS);
    }
    if !is_given(&args, "--json") {
        bench = bench.args([
            "--json".as_ref(),
            result_file(&args, is_quick, &target)?.as_os_str(),
        ]);
    }
    bench.args(args).run()
}

/// The path of the result: among the benchmarks, unless the run is quick.
fn result_file(args: &[&str], is_quick: bool, target: &Path) -> Result<PathBuf> {
    let directory = if is_quick {
        target.to_path_buf()
    } else {
        PathBuf::from("docs/benchmarks")
    };
    fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
    Ok(directory.join(format!(
        "compare-{}.json",
        flag_value(args, "--protocol").unwrap_or("ws")
    )))
}

fn is_given(args: &[&str], flag: &str) -> bool {
    flag_value(args, flag).is_some()
}

/// The value of a flag, written `--flag value` or `--flag=value`.
fn flag_value<'a>(args: &[&'a str], flag: &str) -> Option<&'a str> {
    args.iter()
        .enumerate()
        .find_map(|(index, arg)| match arg.strip_prefix(flag)? {
            "" => args.get(index + 1).copied(),
            rest => rest.strip_prefix('='),
        })
}

/// Installs missing servers, without their services.
fn install_missing_servers() -> Result<()> {
    let missing: Vec<&str> = PEER_FILES
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
    let services_before = running_services();
    apt_install(&missing)?;
    let started_services: Vec<_> = running_services()
        .into_iter()
        .filter(|service| !services_before.contains(service))
        .collect();
    ensure!(
        started_services.is_empty(),
        "installing has started {started_services:?}; stop them, they would disturb every measurement"
    );
    Ok(())
}

/// The processes with the name of a service: their ids and names.
fn running_services() -> Vec<(u32, String)> {
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
    fn value_of_a_flag_is_found_in_both_spellings() {
        assert_eq!(
            flag_value(&["--rounds", "3", "--protocol", "sse"], "--protocol"),
            Some("sse")
        );
        assert_eq!(flag_value(&["--protocol=poll"], "--protocol"), Some("poll"));
        for other in ["--rounds", "--protocol-version"] {
            assert_eq!(flag_value(&[other, "3"], "--protocol"), None);
        }
    }
}
