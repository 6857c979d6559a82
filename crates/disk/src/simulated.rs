//! A disk in memory that simulates power cuts, for tests and the simulator. After a cut, any part of the unsynced bytes may be lost.
//!
//! Deliberately not simulated: partly written sectors, and damage to synced bytes, except by [`Disk::damage`], `truncate` and `copy_from`.

use std::cell::{RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::rc::Rc;

use crore_rng::Rng;

use crate::mark;
use crate::storage::{Entry, File, Storage};

/// Bytes of a sector, which a disk writes as a whole or not at all.
const SECTOR: usize = 512;

/// A fault of the disk itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The disk works.
    None,
    /// A sync of a file does nothing.
    FileNotSynced,
    /// A sync of the names does nothing.
    NamesNotSynced,
}

#[derive(Default)]
struct Content {
    /// The bytes as the process sees them.
    now: Vec<u8>,
    /// The bytes on the disk.
    kept: Vec<u8>,
    /// Sectors in which `now` and `kept` may differ.
    dirty: BTreeSet<usize>,
}

type Shared = Rc<RefCell<Content>>;

struct Inner {
    names: BTreeMap<String, Shared>,
    /// The names on the disk.
    kept: BTreeMap<String, Shared>,
    /// The changes of names since the last sync of the directory, in order.
    changes: Vec<DirectoryChange>,
    /// Capacity for files in bytes.
    room: usize,
    /// Number of calls until the power fails.
    calls_left: usize,
    fault: Fault,
    rng: Rng,
}

enum DirectoryChange {
    Add(String, Shared),
    Remove(String),
    Rename(String, String),
}

fn apply(names: &mut BTreeMap<String, Shared>, change: &DirectoryChange) {
    match change {
        DirectoryChange::Add(name, content) => drop(names.insert(name.clone(), content.clone())),
        DirectoryChange::Remove(name) => drop(names.remove(name)),
        DirectoryChange::Rename(from, to) => {
            let content = names.remove(from).expect("it was there");
            names.insert(to.clone(), content);
        }
    }
}

/// The disk. A clone is a handle to the same disk.
#[derive(Clone)]
pub struct Disk(Rc<RefCell<Inner>>);

impl Disk {
    /// An empty disk. The seed determines which unsynced bytes a power cut loses.
    pub fn new(seed: u64, fault: Fault) -> Disk {
        Disk(Rc::new(RefCell::new(Inner {
            names: BTreeMap::new(),
            kept: BTreeMap::new(),
            changes: Vec::new(),
            room: usize::MAX,
            calls_left: usize::MAX,
            fault,
            rng: Rng::new(seed),
        })))
    }

    /// Makes the power fail after this many calls. All later calls fail.
    pub fn power_goes_after(&self, calls: usize) {
        self.0.borrow_mut().calls_left = calls;
    }

    /// Sets the capacity for files, in bytes.
    pub fn set_room(&self, bytes: usize) {
        self.0.borrow_mut().room = bytes;
    }

    /// Bytes of all files except the mark.
    pub fn bytes(&self) -> u64 {
        let inner = self.0.borrow();
        let all = inner.names.iter().filter(|(name, _)| *name != mark::NAME);
        all.map(|(_, content)| content.borrow().now.len() as u64)
            .sum()
    }

    /// The process was killed and starts again. Nothing is lost, because the kernel's memory has all bytes.
    pub fn process_restarts(&self) {
        self.0.borrow_mut().calls_left = usize::MAX;
    }

    /// The power returns. Any unsynced sectors may be lost, and also the last unsynced changes of names.
    pub fn power_returns(&self) {
        let mut inner = self.0.borrow_mut();
        let Inner {
            names,
            kept,
            changes,
            rng,
            ..
        } = &mut *inner;
        let last = rng.below(changes.len() + 1);
        for change in &changes[..last] {
            apply(kept, change);
        }
        changes.clear();
        *names = kept.clone();
        let all: Vec<Shared> = names.values().cloned().collect();
        for content in all {
            let mut content = content.borrow_mut();
            let Content { now, kept, dirty } = &mut *content;
            // The dirty sectors that survive: all, none, the first ones, or random ones.
            let manner = rng.below(4);
            let first = rng.below(dirty.len() + 1);
            for (n, sector) in core::mem::take(dirty).into_iter().enumerate() {
                let stays = match manner {
                    0 => true,
                    1 => false,
                    2 => n < first,
                    _ => rng.chance(50),
                };
                let range = sector * SECTOR..((sector + 1) * SECTOR).min(now.len());
                if stays {
                    let end = range.end.max(kept.len());
                    kept.resize(end, 0);
                    kept[range.clone()].copy_from_slice(&now[range]);
                }
            }
            *now = kept.clone();
        }
        inner.calls_left = usize::MAX;
    }

    /// Changes a byte of a file on the disk. Returns false if there is no such byte.
    pub fn damage(&self, name: &str, at: usize) -> bool {
        let inner = self.0.borrow();
        let Some(content) = inner.names.get(name) else {
            return false;
        };
        let mut content = content.borrow_mut();
        let Content { now, kept, .. } = &mut *content;
        let (Some(now), Some(kept)) = (now.get_mut(at), kept.get_mut(at)) else {
            return false;
        };
        *now ^= 0x10;
        *kept = *now;
        true
    }

    /// Cuts a file on the disk to this length.
    pub fn truncate(&self, name: &str, bytes: usize) {
        let inner = self.0.borrow();
        let mut content = inner.names[name].borrow_mut();
        content.now.truncate(bytes);
        content.kept.truncate(bytes);
        content.dirty.clear();
    }

    /// Replaces the bytes of a file with those of the same file on another disk.
    pub fn copy_from(&self, other: &Disk, name: &str) {
        let bytes = other.0.borrow().names[name].borrow().now.clone();
        let inner = self.0.borrow();
        let mut content = inner.names[name].borrow_mut();
        (content.now, content.kept) = (bytes.clone(), bytes);
    }

    fn call(&self) -> io::Result<RefMut<'_, Inner>> {
        let mut inner = self.0.borrow_mut();
        match inner.calls_left.checked_sub(1) {
            Some(left) => {
                inner.calls_left = left;
                Ok(inner)
            }
            None => Err(io::Error::other("the power is gone")),
        }
    }
}

fn not_found() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl Storage for Disk {
    type File = Open;

    fn list(&self) -> io::Result<Vec<Entry>> {
        let inner = self.call()?;
        let entry = |(name, content): (&String, &Shared)| Entry {
            name: name.clone(),
            bytes: content.borrow().now.len() as u64,
            is_file: true,
        };
        Ok(inner.names.iter().map(entry).collect())
    }

    fn open(&self, name: &str) -> io::Result<Open> {
        let inner = self.call()?;
        let content = inner.names.get(name).ok_or_else(not_found)?.clone();
        Ok(Open(self.clone(), content))
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Open> {
        let mut inner = self.call()?;
        let used: usize = inner.names.values().map(|it| it.borrow().now.len()).sum();
        let bytes = bytes as usize;
        if used + bytes > inner.room {
            return Err(io::ErrorKind::StorageFull.into());
        }
        // The content of a new file is undefined, so it may be the content of another file.
        let others: Vec<Shared> = inner.names.values().cloned().collect();
        let mut now = match inner.rng.below(others.len() + 1) {
            0 => Vec::new(),
            n => others[n - 1].borrow().now.clone(),
        };
        now.resize(bytes, 0);
        let dirty = (0..bytes.div_ceil(SECTOR)).collect();
        // The length of the file, too, reaches the disk only with the first sync of the file.
        let kept = Vec::new();
        let content = Rc::new(RefCell::new(Content { now, kept, dirty }));
        let change = DirectoryChange::Add(name.to_string(), content.clone());
        apply(&mut inner.names, &change);
        inner.changes.push(change);
        Ok(Open(self.clone(), content))
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let inner = self.0.borrow();
        let used: usize = inner.names.values().map(|it| it.borrow().now.len()).sum();
        Ok((inner.room - used) as u64)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut inner = self.call()?;
        assert!(!inner.names.contains_key(to), "{to} is there already");
        let change = DirectoryChange::Rename(from.to_string(), to.to_string());
        apply(&mut inner.names, &change);
        inner.changes.push(change);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut inner = self.call()?;
        if !inner.names.contains_key(name) {
            return Err(not_found());
        }
        let change = DirectoryChange::Remove(name.to_string());
        apply(&mut inner.names, &change);
        inner.changes.push(change);
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut inner = self.call()?;
        if inner.fault != Fault::NamesNotSynced {
            let Inner { kept, changes, .. } = &mut *inner;
            changes.drain(..).for_each(|change| apply(kept, &change));
        }
        Ok(())
    }
}

/// An open file.
pub struct Open(Disk, Shared);

impl File for Open {
    fn bytes(&self) -> io::Result<u64> {
        let _inner = self.0.call()?;
        Ok(self.1.borrow().now.len() as u64)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let _inner = self.0.call()?;
        let content = self.1.borrow();
        let from = content.now.get(offset as usize..).unwrap_or_default();
        let len = from.len().min(bytes.len());
        bytes[..len].copy_from_slice(&from[..len]);
        Ok(len)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut content = self.1.borrow_mut();
        let at = offset as usize;
        let end = at + bytes.len();
        if content.now.len() < end {
            content.now.resize(end, 0);
        }
        // The bytes are written before the power can fail, so that sectors of the last write can survive the power cut.
        content.now[at..end].copy_from_slice(bytes);
        content.dirty.extend(at / SECTOR..end.div_ceil(SECTOR));
        self.0.call().map(drop)
    }

    fn sync(&self) -> io::Result<()> {
        let inner = self.0.call()?;
        if inner.fault != Fault::FileNotSynced {
            let mut content = self.1.borrow_mut();
            let Content { now, kept, dirty } = &mut *content;
            kept.clone_from(now);
            dirty.clear();
        }
        Ok(())
    }
}
