//! The volume for the server's state: a directory, or a file system on a loop device, from which a run can cut the power.
//!
//! A loop device writes only those blocks to its file that the file system has sent to the device. To cut the power, a run stops the
//! execution of the server (SIGSTOP) and copies that file without a sync or an unmount. The copy contains what a disk would contain after a
//! power failure at that time. The file system is mounted in a mount namespace of this process, and the device detaches itself. So nothing
//! remains on the machine, however the run ends.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::DirEntry;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::rig::Directory;
use crate::sys;

/// Size of the file system from which the power is cut. Its file is sparse.
pub const POWER_CUT_DISK_MIB: u32 = 3 << 10;
/// Size of the file system that the run fills.
pub const FILLED_DISK_MIB: u32 = 192;
/// The name of a file that takes the free space of the disk.
const FILLER_FILE: &str = "ballast";
/// The maximum number of attempts to copy the image without a write of the kernel during the copy.
const COPY_ATTEMPTS_MAX: usize = 10;

/// The volume. It also decides the kind of crash.
pub enum Volume {
    /// A directory: a crash is a kill.
    Directory(PathBuf),
    /// A directory whose newest log segment is deleted after each kill.
    LosesNewestSegment(PathBuf),
    /// A file system on a loop device: a crash is a power cut.
    Disk(Disk),
    /// A small file system on a loop device, which the log fills before each kill. In some rounds another file takes the rest of the space,
    /// and the power is cut while a checkpoint replaces the documents of the base one by one.
    Filled(Disk),
}

/// The newest base (checkpoint on disk) in a state directory: the directory's name, and the inode of each document in it.
#[derive(Debug, PartialEq, Eq)]
pub struct BaseFiles {
    base: OsString,
    documents: BTreeMap<OsString, u64>,
}

impl BaseFiles {
    /// Reads the names and inodes. If the server renames the base meanwhile, this fails and must be called again.
    pub fn read(state: &Path) -> Result<BaseFiles> {
        let names = std::fs::read_dir(state)?.map(|entry| Ok(entry?.file_name()));
        let names = names.collect::<Result<Vec<OsString>>>()?;
        let base_number = |name: &OsString| -> Option<u64> {
            let rest = name.to_str()?.strip_prefix("base-")?;
            rest.split('-').next()?.parse().ok()
        };
        let newest = names.into_iter().max_by_key(base_number);
        let base = newest.context("the directory is empty")?;
        let entries = std::fs::read_dir(state.join(&base))?;
        let document = |entry: std::io::Result<DirEntry>| {
            let entry = entry?;
            Ok((entry.file_name(), entry.ino()))
        };
        let documents = entries.map(document).collect::<Result<_>>()?;
        Ok(BaseFiles { base, documents })
    }

    /// The number of documents of this base that were replaced by the time of `later`; `None` if `later` is another base.
    pub fn count_replaced(&self, later: &BaseFiles) -> Option<usize> {
        let documents = self.documents.iter().zip(&later.documents);
        let replaced = documents.filter(|(before, after)| before != after).count();
        (self.base == later.base).then_some(replaced)
    }

    /// The number of documents.
    pub fn document_count(&self) -> usize {
        self.documents.len()
    }
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
    mount_point: PathBuf,
    copy_count: u32,
    is_mounted: bool,
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
        let (image, mount_point) = (
            directory.path().join("disk-0"),
            directory.path().join("mount"),
        );
        std::fs::create_dir_all(&mount_point)?;
        run("truncate", &["-s", &format!("{mib}M"), path_text(&image)])?;
        // Without `-m 0` ext4 reserves blocks for root. `take_free_space` would take them, but the server does not count them as free.
        run("mkfs.ext4", &["-q", "-F", "-m", "0", path_text(&image)])?;
        let mut disk = Disk {
            image,
            mount_point,
            copy_count: 0,
            is_mounted: false,
        };
        disk.mount()?;
        Ok(disk)
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.mount_point
    }

    /// Takes all free space with another file.
    pub fn take_free_space(&self) -> Result<()> {
        let mut file = std::fs::File::create(self.mount_point.join(FILLER_FILE))?;
        for chunk in [1 << 20, 4 << 10] {
            let bytes = vec![b'x'; chunk];
            loop {
                match file.write_all(&bytes).and_then(|()| file.sync_data()) {
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    written => written?,
                }
            }
        }
        Ok(())
    }

    /// Removes the file that [`Disk::take_free_space`] has made.
    pub fn release_space(&self) -> Result<()> {
        Ok(std::fs::remove_file(self.mount_point.join(FILLER_FILE))?)
    }

    fn mount(&mut self) -> Result<()> {
        run(
            "mount",
            &[
                "-t",
                "ext4",
                "-o",
                "loop",
                path_text(&self.image),
                path_text(&self.mount_point),
            ],
        )?;
        self.is_mounted = true;
        Ok(())
    }

    fn unmount(&mut self) -> Result<()> {
        if std::mem::take(&mut self.is_mounted) {
            run("umount", &[path_text(&self.mount_point)])?;
        }
        Ok(())
    }

    /// Copies the present bytes of the disk. The caller must have stopped the execution of the server.
    pub fn copy(&mut self) -> Result<PathBuf> {
        self.copy_count += 1;
        let copy = self
            .image
            .with_file_name(format!("disk-{}", self.copy_count));
        for _ in 0..COPY_ATTEMPTS_MAX {
            let before = changed_at(&self.image)?;
            run(
                "cp",
                &["--sparse=always", path_text(&self.image), path_text(&copy)],
            )?;
            // If the kernel wrote to the file during the copy, the copy is a mixture of two states.
            if before == changed_at(&self.image)? {
                return Ok(copy);
            }
        }
        bail!("the kernel does not stop writing to the disk");
    }

    /// Replaces the disk by a copy. No process may use the disk at this time.
    pub fn replace(&mut self, copy: PathBuf) -> Result<()> {
        self.unmount()?;
        let old_image = std::mem::replace(&mut self.image, copy);
        std::fs::remove_file(old_image)?;
        self.mount()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = self.unmount();
    }
}

/// The time of the last change of a file.
fn changed_at(path: &Path) -> Result<(i64, i64)> {
    let metadata = std::fs::metadata(path)?;
    Ok((metadata.ctime(), metadata.ctime_nsec()))
}

fn path_text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

fn run(program: &str, args: &[&str]) -> Result<()> {
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{program} is not there"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{program} {args:?}: {}",
        stderr.trim()
    );
    Ok(())
}
