//! Mounts file systems for tests. Only root may mount; without root such a test prints that and tests nothing.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::directory::is_root;
use crate::support::program::output;

#[allow(clippy::print_stderr, reason = "a test that tests nothing says so")]
fn requires_root(action: &str) -> bool {
    if !is_root() {
        eprintln!("not tested: only root may {action}");
    }
    is_root()
}

/// A mounted file system. Dropping it unmounts the file system.
pub struct Mounted<'a>(&'a Path);

impl Mounted<'_> {
    /// Mounts a file system. `None` if this host does not permit it.
    #[allow(clippy::print_stderr, reason = "a test that tests nothing says so")]
    pub fn new<'a>(directory: &'a Path, args: &[impl AsRef<OsStr>]) -> Option<Mounted<'a>> {
        if !requires_root("mount file systems") {
            return None;
        }
        fs::create_dir_all(directory).expect("a directory");
        let mounted = output(Command::new("mount").args(args).arg(directory));
        if !mounted.status.success() {
            let reason = String::from_utf8_lossy(&mounted.stderr);
            eprintln!("not tested: this host mounts no file systems: {reason}");
            return None;
        }
        Some(Mounted(directory))
    }

    pub fn tmpfs<'a>(directory: &'a Path, size: &str) -> Option<Mounted<'a>> {
        Mounted::new(
            directory,
            &["-t", "tmpfs", "-o", &format!("size={size}"), "none"],
        )
    }

    pub fn remount(&self, options: &str) {
        let options = format!("remount,{options}");
        let result = output(Command::new("mount").args(["-o", &options]).arg(self.0));
        assert!(
            result.status.success(),
            "{}",
            String::from_utf8_lossy(&result.stderr)
        );
    }
}

/// Makes an ext4 file system of `mib` MiB in a file of `directory`. Returns the options of `mount` for it.
pub fn file_system(directory: &Path, mib: u64, options: &[&str]) -> [String; 3] {
    let image = directory.join("image");
    let file = fs::File::create(&image).expect("a file");
    file.set_len(mib << 20).expect("a sparse file");
    let mut command = Command::new("mkfs.ext4");
    let result = output(command.arg("-q").args(options).arg(&image));
    let reason = String::from_utf8_lossy(&result.stderr);
    assert!(result.status.success(), "{reason}");
    ["-o".into(), "loop".into(), image.display().to_string()]
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}
