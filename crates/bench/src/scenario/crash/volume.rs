//! The volume for the server's state: a directory, or a file system on a loop device whose power can be cut.
//!
//! A loop device writes to its file only the blocks that the file system has sent to the device. So a copy of that file, made while the
//! server is stopped (as by SIGSTOP), contains what a disk would contain if the power failed at that time: nothing is synced or unmounted
//! first. The file system is mounted in a mount namespace of this process, and the device detaches itself. So nothing remains on the
//! machine, however the run ends.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::rig::Directory;
use crate::sys;

/// Size of the file system from which the power is cut. Its file is sparse.
pub const POWER_CUT_MIB: u32 = 3 << 10;
/// Size of the file system that the run fills.
pub const SMALL_MIB: u32 = 192;
/// The maximum number of attempts to copy the image without a write of the kernel during the copy.
const COPIES_MAX: usize = 10;

/// The volume. It also decides the kind of crash.
pub enum Volume {
    /// A directory: a crash is a kill.
    Directory(PathBuf),
    /// A directory whose newest log segment is deleted after each kill.
    LosesNewestSegment(PathBuf),
    /// A file system on a loop device: a crash is a power cut.
    Disk(Disk),
    /// A small file system on a loop device, which the log fills before each kill.
    Filled(Disk),
}

impl Volume {
    /// The state directory.
    pub fn path(&self) -> &Path {
        match self {
            Volume::Directory(path) | Volume::LosesNewestSegment(path) => path,
            Volume::Disk(disk) | Volume::Filled(disk) => disk.path(),
        }
    }

    /// Deletes the newest log segment, if this kind of crash includes that. Returns whether a segment was deleted.
    pub fn delete_newest_segment(&self) -> Result<bool> {
        let Volume::LosesNewestSegment(state) = self else {
            return Ok(false);
        };
        let names = std::fs::read_dir(state.join("log"))?;
        let paths = names.map(|entry| Ok(entry?.path()));
        let paths = paths.collect::<Result<Vec<PathBuf>>>()?;
        let is_segment = |path: &&PathBuf| path.extension().is_some_and(|it| it == "log");
        let newest = paths.iter().filter(is_segment).max();
        std::fs::remove_file(newest.context("the log has no segment")?)?;
        Ok(true)
    }
}

/// A file system on a loop device.
pub struct Disk {
    /// The file of the loop device.
    image: PathBuf,
    mount: PathBuf,
    cuts: u32,
    mounted: bool,
}

impl Disk {
    /// Creates and mounts an ext4 file system of this size.
    ///
    /// # Errors
    /// If this process lacks the rights, or the tools are missing.
    pub fn make(directory: &Directory, mib: u32) -> Result<Disk> {
        ensure!(sys::is_root(), "loop devices need root's rights");
        sys::unshare_mounts().context("no mount namespace of its own")?;
        run("mount", &["--make-rprivate", "/"])?;
        let (image, mount) = (
            directory.path().join("disk-0"),
            directory.path().join("mount"),
        );
        std::fs::create_dir_all(&mount)?;
        run("truncate", &["-s", &format!("{mib}M"), text(&image)])?;
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

    /// The mount point.
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

    /// Copies the present bytes of the disk. The caller has stopped the execution of the server.
    pub fn copy(&mut self) -> Result<PathBuf> {
        self.cuts += 1;
        let copy = self.image.with_file_name(format!("disk-{}", self.cuts));
        for _ in 0..COPIES_MAX {
            let before = changed(&self.image)?;
            run("cp", &["--sparse=always", text(&self.image), text(&copy)])?;
            // If the kernel wrote to the file during the copy, the copy is a mixture of two states.
            if before == changed(&self.image)? {
                return Ok(copy);
            }
        }
        bail!("the kernel does not stop writing to the disk");
    }

    /// Replaces the disk by a copy. No process may use the disk at this time.
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

/// The time of the last change of a file.
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
