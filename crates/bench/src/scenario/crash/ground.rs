//! Where the server keeps its state: a directory, or a file system of its own on a loop device, from which the power can be
//! cut.
//!
//! The loop device writes into its file only the blocks that the file system has sent to the device. So a copy of that file, made while
//! the server stands still, has the bytes that a disk would have if the power failed now: nothing is synced or unmounted for
//! it. The file system is mounted in a mount namespace of this process' own and the device detaches itself, so that
//! nothing stays behind however the run ends.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::rig::Directory;
use crate::sys;

/// Bytes of the file system, most of which its file does not take.
const BYTES: &str = "3G";
/// How often a copy is made again because the kernel wrote something meanwhile.
const COPIES_MAX: usize = 10;

/// A file system on a loop device.
pub struct Disk {
    /// The file of the loop device.
    image: PathBuf,
    mount: PathBuf,
    cuts: u32,
    mounted: bool,
}

impl Disk {
    /// Makes an ext4 file system and mounts it.
    ///
    /// # Errors
    /// Where this process may not do so, or the tools are missing.
    pub fn make(directory: &Directory) -> Result<Disk> {
        ensure!(sys::is_root(), "loop devices need root's rights");
        sys::part_mounts().context("no mount namespace of its own")?;
        run("mount", &["--make-rprivate", "/"])?;
        let (image, mount) = (
            directory.path().join("disk-0"),
            directory.path().join("mount"),
        );
        std::fs::create_dir_all(&mount)?;
        run("truncate", &["-s", BYTES, text(&image)])?;
        run("mkfs.ext4", &["-q", "-F", text(&image)])?;
        let mut disk = Disk {
            image,
            mount,
            cuts: 0,
            mounted: false,
        };
        disk.attach()?;
        Ok(disk)
    }

    /// Where the file system is mounted.
    pub fn path(&self) -> &Path {
        &self.mount
    }

    fn attach(&mut self) -> Result<()> {
        run(
            "mount",
            &[
                "-t",
                "ext4",
                "-o",
                "loop",
                text(&self.image),
                text(&self.mount),
            ],
        )?;
        self.mounted = true;
        Ok(())
    }

    fn detach(&mut self) -> Result<()> {
        if std::mem::take(&mut self.mounted) {
            run("umount", &[text(&self.mount)])?;
        }
        Ok(())
    }

    /// Copies the disk as it is at this moment. The server must stand still.
    pub fn copy(&mut self) -> Result<PathBuf> {
        self.cuts += 1;
        let copy = self.image.with_file_name(format!("disk-{}", self.cuts));
        for _ in 0..COPIES_MAX {
            let before = changed(&self.image)?;
            run("cp", &["--sparse=always", text(&self.image), text(&copy)])?;
            // The file system's own threads may write while the copy is made; then it is of no one moment.
            if before == changed(&self.image)? {
                return Ok(copy);
            }
        }
        bail!("the kernel does not stop writing to the disk");
    }

    /// Puts a copy in the place of the disk. Nobody may use the disk any more.
    pub fn replace(&mut self, copy: PathBuf) -> Result<()> {
        self.detach()?;
        let old = std::mem::replace(&mut self.image, copy);
        std::fs::remove_file(old)?;
        self.attach()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = self.detach();
    }
}

/// When the file was written to.
fn changed(path: &Path) -> Result<(i64, i64)> {
    let data = std::fs::metadata(path)?;
    Ok((data.ctime(), data.ctime_nsec()))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

fn run(program: &str, args: &[&str]) -> Result<()> {
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{program} is not there"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{program} {args:?}: {}",
        said.trim()
    );
    Ok(())
}
