//! File systems that a test mounts. Only root may mount, so elsewhere such a test says so and tests nothing.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::directory::is_root;
use crate::support::program::output;

#[allow(clippy::print_stderr, reason = "a test that tests nothing says so")]
fn only_root(what: &str) -> bool {
    if !is_root() {
        eprintln!("not tested: only root may {what}");
    }
    is_root()
}

/// A file system that is unmounted when this is dropped.
pub struct Mounted<'a>(&'a Path);

impl Mounted<'_> {
    /// Mounts a file system. `None` if this host does not permit it.
    #[allow(clippy::print_stderr, reason = "a test that tests nothing says so")]
    pub fn new<'a>(at: &'a Path, args: &[impl AsRef<OsStr>]) -> Option<Mounted<'a>> {
        if !only_root("mount file systems") {
            return None;
        }
        fs::create_dir_all(at).expect("a directory");
        let mounted = output(Command::new("mount").args(args).arg(at));
        if !mounted.status.success() {
            let why = String::from_utf8_lossy(&mounted.stderr);
            eprintln!("not tested: this host mounts no file systems: {why}");
            return None;
        }
        Some(Mounted(at))
    }

    pub fn tmpfs<'a>(at: &'a Path, size: &str) -> Option<Mounted<'a>> {
        Mounted::new(at, &["-t", "tmpfs", "-o", &format!("size={size}"), "none"])
    }

    pub fn again(&self, options: &str) {
        let options = format!("remount,{options}");
        let done = output(Command::new("mount").args(["-o", &options]).arg(self.0));
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
    }
}

/// Makes a file system (ext4) of this many MiB in a file of the directory. Returns the options that mount it.
pub fn file_system(directory: &Path, mib: u64, options: &[&str]) -> [String; 3] {
    let image = directory.join("image");
    let file = fs::File::create(&image).expect("a file");
    file.set_len(mib << 20).expect("a sparse file");
    let mut make = Command::new("mkfs.ext4");
    let made = output(make.arg("-q").args(options).arg(&image));
    let why = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{why}");
    ["-o".into(), "loop".into(), image.display().to_string()]
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}
