//! A simulated host made of files: a directory with the parts of `/proc`, `/sys` and `/etc` that the doctor reads and writes.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

/// A simulated host. Its directory is removed at the end of the test.
pub struct Tree {
    root: PathBuf,
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// The files that the doctor reads, for a host that is tuned for ten million connections: 32 cores, 128 GiB.
const LARGE: &[(&str, &str)] = &[
    ("proc/sys/kernel/osrelease", "6.12.9-amd64\n"),
    (
        "proc/meminfo",
        "MemTotal:       134217728 kB\nMemFree:        120000000 kB\nMemAvailable:   130000000 kB\nSwapTotal:              0 kB\n\
         CommitLimit:    67108864 kB\nCommitted_AS:     200000 kB\n",
    ),
    (
        "proc/self/status",
        "Name:\tcrore\nUid:\t0\t0\t0\t0\nCpus_allowed_list:\t0-31\n",
    ),
    (
        "proc/self/limits",
        "Limit                     Soft Limit           Hard Limit           Units\n\
         Max open files            1024                 400000               files\n",
    ),
    ("proc/self/cgroup", "0::/system.slice/crore.service\n"),
    ("proc/sys/fs/nr_open", "1048576\n"),
    ("proc/sys/fs/file-max", "12000000\n"),
    ("proc/sys/fs/file-nr", "2048\t0\t12000000\n"),
    ("proc/sys/fs/epoll/max_user_watches", "29000000\n"),
    ("proc/sys/vm/overcommit_memory", "0\n"),
    ("proc/sys/vm/max_map_count", "65530\n"),
    ("proc/sys/vm/swappiness", "60\n"),
    ("proc/sys/vm/min_free_kbytes", "1048576\n"),
    ("proc/sys/net/core/somaxconn", "4096\n"),
    ("proc/sys/net/core/netdev_max_backlog", "4096\n"),
    ("proc/sys/net/core/rmem_max", "212992\n"),
    ("proc/sys/net/core/wmem_max", "212992\n"),
    ("proc/sys/net/core/rps_sock_flow_entries", "0\n"),
    ("proc/sys/net/ipv4/tcp_mem", "1572864\t2097152\t3145728\n"),
    ("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n"),
    ("proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t65536\n"),
    ("proc/sys/net/ipv4/tcp_moderate_rcvbuf", "1\n"),
    ("proc/sys/net/ipv4/tcp_max_syn_backlog", "4096\n"),
    ("proc/sys/net/ipv4/tcp_syncookies", "1\n"),
    ("proc/sys/net/ipv4/tcp_ehash_entries", "8388608\n"),
    ("proc/sys/net/ipv4/tcp_max_orphans", "1310720\n"),
    ("proc/sys/net/ipv4/tcp_max_tw_buckets", "10000000\n"),
    ("proc/sys/net/ipv4/tcp_tw_reuse", "2\n"),
    ("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n"),
    ("proc/net/softnet_stat", "0000ffff 00000000 00000000\n"),
    (
        "proc/net/netstat",
        "TcpExt: SyncookiesSent ListenOverflows\nTcpExt: 0 0\n",
    ),
];

impl Tree {
    /// A host without any file.
    pub fn bare() -> Tree {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let root =
            std::env::temp_dir().join(format!("crore-doctor-{}-{number}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        Tree { root }
    }

    /// A host for ten million connections.
    pub fn large() -> Tree {
        LARGE.iter().fold(Tree::bare(), |tree, (path, text)| {
            tree.with_file(path, text)
        })
    }

    /// The host with this file added or replaced.
    pub fn with_file(self, path: &str, text: &str) -> Tree {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    /// The host without this file.
    pub fn without_file(self, path: &str) -> Tree {
        fs::remove_file(self.root.join(path)).unwrap();
        self
    }

    /// Runs `crore doctor ARGS` on this host.
    pub fn doctor(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_crore"))
            .arg("doctor")
            .arg("--root")
            .arg(&self.root)
            .args(args)
            .current_dir(&self.root)
            .env_remove("RUST_LOG")
            .output()
            .unwrap()
    }

    /// The findings of `crore doctor ARGS` on this host.
    pub fn findings(&self, args: &[&str]) -> Findings {
        let output = self.doctor(&[&["--json"], args].concat());
        let value: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {output:?}"));
        assert_eq!(value["fits"] == true, output.status.success());
        Findings(value)
    }
}

/// The findings, as `--json` prints them.
pub struct Findings(pub Value);

impl Findings {
    /// The check of a setting.
    pub fn check(&self, setting: &str) -> &Value {
        let checks = self.0["checks"].as_array().unwrap();
        checks
            .iter()
            .find(|check| check["setting"] == setting)
            .unwrap_or_else(|| panic!("no check of {setting}"))
    }

    /// The verdict on a setting.
    pub fn state(&self, setting: &str) -> &str {
        self.check(setting)["state"].as_str().unwrap()
    }

    /// The advised changes of a setting, all lines together.
    pub fn change(&self, setting: &str) -> String {
        self.check(setting)["change"].to_string()
    }

    /// The names of the checks that have this state.
    pub fn all_in(&self, state: &str) -> Vec<&str> {
        let checks = self.0["checks"].as_array().unwrap().iter();
        let with_same_state = checks.filter(|check| check["state"] == state);
        with_same_state
            .map(|check| check["setting"].as_str().unwrap())
            .collect()
    }

    /// The number of connections that a bound permits. `None` if the bound does not apply here.
    pub fn bound(&self, name: &str) -> Option<u64> {
        let bounds = self.0["bounds"].as_array().unwrap();
        let bound = bounds
            .iter()
            .find(|bound| bound["name"].as_str().unwrap().contains(name))?;
        bound["holds"].as_u64()
    }

    /// The number of connections that the host can hold, and the bound that limits it.
    pub fn estimate(&self) -> (u64, &str) {
        (
            self.0["holds"].as_u64().unwrap(),
            self.0["binds_first"].as_str().unwrap(),
        )
    }
}
