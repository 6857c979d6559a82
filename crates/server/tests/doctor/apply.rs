//! The doctor's changes: as a script, and by itself.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::tree::Tree;
use crate::{MILLION, TEN};

const SYSCTLS: &str = "etc/sysctl.d/90-crore.conf";

/// A host that lacks a sysctl that is demanded, one that is advised, and descriptors.
fn lacking() -> Tree {
    Tree::large()
        .with("proc/sys/fs/file-max", "1000000\n")
        .with("proc/sys/net/core/somaxconn", "128\n")
        .with("proc/self/limits", "Max open files 1024 20000 files\n")
}

fn said(output: &std::process::Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn the_script_is_one_that_a_shell_reads_and_has_every_change() {
    let host = lacking()
        .with("crore.toml", "backlog = 16\n")
        .with("sys/class/net/eth0/device/vendor", "0x1af4")
        .with("sys/class/net/eth0/queues/rx-0/rps_cpus", "0\n");
    let output = host.doctor(&[TEN, &["--script"]].concat());
    assert_eq!(output.status.code(), Some(1), "they do not fit yet");
    let script = said(&output);
    for part in [
        "cat > /etc/sysctl.d/90-crore.conf",
        "\nfs.file-max = 10002048\n",
        "sysctl -w fs.file-max='10002048'\n",
        "sysctl -w net.core.somaxconn='4096'\n",
        "* hard nofile 313000\n",
        "[Service]\nLimitNOFILE=313000\n",
        "#   backlog = 4096\n",
    ] {
        assert!(script.contains(part), "{part} is not in\n{script}");
    }
    assert!(!script.contains("systemctl"), "nobody to tell");
    let masks = script.find("rps_cpus").expect("the card has one queue");
    assert!(
        script.find("LimitNOFILE") < Some(masks),
        "what may fail comes last"
    );
    assert!(!host.has(SYSCTLS), "a script changes nothing");
    let mut shell = Command::new("sh")
        .arg("-n")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    shell
        .stdin
        .take()
        .unwrap()
        .write_all(script.as_bytes())
        .unwrap();
    assert!(shell.wait().unwrap().success());
}

#[test]
fn the_script_does_what_applying_does_however_often_it_runs() {
    let (applied, scripted) = (lacking(), lacking());
    applied.doctor(&[TEN, &["--apply"]].concat());
    let script = said(&scripted.doctor(&[TEN, &["--script"]].concat()));
    // The same script on a host below a directory, where sysctls are files.
    let root = scripted.path("").display().to_string();
    let script = script.replace("/etc/", &format!("{root}etc/"));
    let sysctl = "sysctl() {\n  file=$(echo \"${2%%=*}\" | tr . /)\n  printf %s \"${2#*=}\" > \"$ROOT/proc/sys/$file\"\n}\n";
    for _ in 0..2 {
        let done = Command::new("sh")
            .args(["-c", &format!("{sysctl}{script}")])
            .env("ROOT", &root)
            .status()
            .unwrap();
        assert!(done.success());
        for file in [
            SYSCTLS,
            "etc/security/limits.d/90-crore.conf",
            "etc/systemd/system/crore.service.d/90-limits.conf",
            "proc/sys/fs/file-max",
            "proc/sys/net/core/somaxconn",
        ] {
            assert_eq!(scripted.read(file), applied.read(file), "{file}");
        }
    }
}

#[test]
fn applying_shows_each_step_and_takes_it_once() {
    let host = lacking();
    let apply = [TEN, &["--apply"]].concat();
    let output = host.doctor(&apply);
    let shown = said(&output);
    for step in [
        "sysctl -w fs.file-max='10002048'",
        "sysctl -w net.core.somaxconn='4096'",
        "LimitNOFILE=313000",
    ] {
        assert!(shown.contains(step), "{step} is not in\n{shown}");
    }
    assert_eq!(host.read("proc/sys/fs/file-max"), "10002048");
    assert_eq!(host.read("proc/sys/net/core/somaxconn"), "4096");
    assert!(host.read(SYSCTLS).contains("\nfs.file-max = 10002048\n"));
    assert!(
        host.read("etc/security/limits.d/90-crore.conf")
            .contains("* soft nofile 313000\n")
    );
    let unit = "etc/systemd/system/crore.service.d/90-limits.conf";
    assert!(host.read(unit).contains("LimitNOFILE=313000\n"));
    // The limit of the shell that asked is as it was.
    assert_eq!(output.status.code(), Some(1));
    assert!(shown.contains("do not fit: 1 to change"), "{shown}");

    let host = host.with("proc/self/limits", "Max open files 1024 313000 files\n");
    let kept = host.read(SYSCTLS);
    let output = host.doctor(&apply);
    assert!(output.status.success());
    assert!(
        said(&output).contains("nothing to change"),
        "{}",
        said(&output)
    );
    assert_eq!(host.read(SYSCTLS), kept);
}

#[test]
fn settings_kept_by_an_earlier_run_outlive_a_later_one() {
    let host = lacking();
    host.doctor(&[TEN, &["--apply"]].concat());
    let host = host.with("proc/sys/net/core/netdev_max_backlog", "10\n");
    host.doctor(&[TEN, &["--apply"]].concat());
    let kept = host.read(SYSCTLS);
    for line in [
        "fs.file-max = 10002048\n",
        "net.core.somaxconn = 4096\n",
        "net.core.netdev_max_backlog = 2048\n",
    ] {
        assert_eq!(kept.matches(line).count(), 1, "{line} in\n{kept}");
    }
}

#[test]
fn nobody_but_root_may_apply() {
    let host = lacking().with(
        "proc/self/status",
        "Uid:\t1000\t1000\t1000\t1000\nCpus_allowed_list:\t0-31\n",
    );
    let output = host.doctor(&[MILLION, &["--apply"]].concat());
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains("sudo") && error.contains("--script"),
        "{error}"
    );
    assert_eq!(host.read("proc/sys/fs/file-max"), "1000000\n");
    assert!(!host.has(SYSCTLS));
}

#[test]
fn a_step_that_fails_is_told_and_the_others_are_taken() {
    let host = lacking().blocked("etc/security/limits.d/90-crore.conf");
    let output = host.doctor(&[TEN, &["--apply"]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("# failed: "), "{}", said(&output));
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("1 steps failed")
    );
    assert_eq!(host.read("proc/sys/fs/file-max"), "10002048");
}
