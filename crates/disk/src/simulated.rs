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
    cached: Vec<u8>,
    /// The bytes on the disk.
    synced: Vec<u8>,
    /// Sectors in which `cached` and `synced` may differ.
    dirty: BTreeSet<usize>,
}

type SharedContent = Rc<RefCell<Content>>;

struct DiskState {
    names: BTreeMap<String, SharedContent>,
    /// The names on the disk.
    synced: BTreeMap<String, SharedContent>,
    /// The changes of names since the last sync of the directory, in order.
    changes: Vec<DirectoryChange>,
    /// Capacity for files in bytes.
    capacity: usize,
    /// Number of calls until the power fails.
    calls_left: usize,
    fault: Fault,
    rng: Rng,
}

enum DirectoryChange {
    Add(String, SharedContent),
    Remove(String),
    Rename(String, String),
}

fn apply_change(names: &mut BTreeMap<String, SharedContent>, change: &DirectoryChange) {
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
pub struct Disk(Rc<RefCell<DiskState>>);

impl Disk {
    /// An empty disk. The seed determines which unsynced bytes a power cut loses.
    pub fn new(seed: u64, fault: Fault) -> Disk {
        Disk(Rc::new(RefCell::new(DiskState {
            names: BTreeMap::new(),
            synced: BTreeMap::new(),
            changes: Vec::new(),
            capacity: usize::MAX,
            calls_left: usize::MAX,
            fault,
            rng: Rng::new(seed),
        })))
    }

    /// Makes the power fail after this many calls. All later calls fail.
    pub fn cut_power_after(&self, calls: usize) {
        self.0.borrow_mut().calls_left = calls;
    }

    /// Sets the capacity for files, in bytes.
    pub fn set_capacity(&self, bytes: usize) {
        self.0.borrow_mut().capacity = bytes;
    }

    /// Bytes of all files except the mark.
    pub fn bytes(&self) -> u64 {
        let state = self.0.borrow();
        let all = state
            .names
            .iter()
            .filter(|(name, _)| *name != mark::FILE_NAME);
        all.map(|(_, content)| content.borrow().cached.len() as u64)
            .sum()
    }

    /// Starts the process again after a kill. Nothing is lost, because the kernel's memory has all bytes.
    pub fn restart_process(&self) {
        self.0.borrow_mut().calls_left = usize::MAX;
    }

    /// Ends a power cut. Any unsynced sectors may be lost, and also the last unsynced changes of names.
    pub fn restore_power(&self) {
        let mut state = self.0.borrow_mut();
        let DiskState {
            names,
            synced,
            changes,
            rng,
            ..
        } = &mut *state;
        let change_count = rng.below(changes.len() + 1);
        for change in &changes[..change_count] {
            apply_change(synced, change);
        }
        changes.clear();
        *names = synced.clone();
        let all: Vec<SharedContent> = names.values().cloned().collect();
        for content in all {
            let mut content = content.borrow_mut();
            let Content {
                cached,
                synced,
                dirty,
            } = &mut *content;
            // The dirty sectors that survive: all, none, the first ones, or random ones.
            let loss_kind = rng.below(4);
            let first_count = rng.below(dirty.len() + 1);
            for (n, sector) in core::mem::take(dirty).into_iter().enumerate() {
                let survives = match loss_kind {
                    0 => true,
                    1 => false,
                    2 => n < first_count,
                    _ => rng.chance(50),
                };
                let range = sector * SECTOR..((sector + 1) * SECTOR).min(cached.len());
                if survives {
                    let end = range.end.max(synced.len());
                    synced.resize(end, 0);
                    synced[range.clone()].copy_from_slice(&cached[range]);
                }
            }
            *cached = synced.clone();
        }
        state.calls_left = usize::MAX;
    }

    /// Changes a byte of a file on the disk. Returns false if there is no such byte.
    pub fn damage(&self, name: &str, at: usize) -> bool {
        let state = self.0.borrow();
        let Some(content) = state.names.get(name) else {
            return false;
        };
        let mut content = content.borrow_mut();
        let Content { cached, synced, .. } = &mut *content;
        let (Some(cached), Some(synced)) = (cached.get_mut(at), synced.get_mut(at)) else {
            return false;
        };
        *cached ^= 0x10;
        *synced = *cached;
        true
    }

    /// Cuts a file on the disk to this length.
    pub fn truncate(&self, name: &str, bytes: usize) {
        let state = self.0.borrow();
        let mut content = state.names[name].borrow_mut();
        content.cached.truncate(bytes);
        content.synced.truncate(bytes);
        content.dirty.clear();
    }

    /// Replaces the bytes of a file with those of the same file on another disk.
    pub fn copy_from(&self, other: &Disk, name: &str) {
        let bytes = other.0.borrow().names[name].borrow().cached.clone();
        let state = self.0.borrow();
        let mut content = state.names[name].borrow_mut();
        (content.cached, content.synced) = (bytes.clone(), bytes);
    }

    /// Counts a call; fails if the power is gone.
    fn begin_call(&self) -> io::Result<RefMut<'_, DiskState>> {
        let mut state = self.0.borrow_mut();
        match state.calls_left.checked_sub(1) {
            Some(left) => {
                state.calls_left = left;
                Ok(state)
            }
            None => Err(io::Error::other("the power is gone")),
        }
    }
}

fn not_found() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl Storage for Disk {
    type File = OpenFile;

    fn list(&self) -> io::Result<Vec<Entry>> {
        let state = self.begin_call()?;
        let entry = |(name, content): (&String, &SharedContent)| Entry {
            name: name.clone(),
            bytes: content.borrow().cached.len() as u64,
            is_file: true,
        };
        Ok(state.names.iter().map(entry).collect())
    }

    fn open(&self, name: &str) -> io::Result<OpenFile> {
        let state = self.begin_call()?;
        let content = state.names.get(name).ok_or_else(not_found)?.clone();
        Ok(OpenFile(self.clone(), content))
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<OpenFile> {
        let mut state = self.begin_call()?;
        let used: usize = state
            .names
            .values()
            .map(|it| it.borrow().cached.len())
            .sum();
        let bytes = bytes as usize;
        if used + bytes > state.capacity {
            return Err(io::ErrorKind::StorageFull.into());
        }
        // The content of a new file is undefined, so it may be the content of another file.
        let others: Vec<SharedContent> = state.names.values().cloned().collect();
        let mut cached = match state.rng.below(others.len() + 1) {
            0 => Vec::new(),
            n => others[n - 1].borrow().cached.clone(),
        };
        cached.resize(bytes, 0);
        let dirty = (0..bytes.div_ceil(SECTOR)).collect();
        // The length of the file, too, reaches the disk only with the first sync of the file.
        let synced = Vec::new();
        let content = Rc::new(RefCell::new(Content {
            cached,
            synced,
            dirty,
        }));
        let change = DirectoryChange::Add(name.to_string(), content.clone());
        apply_change(&mut state.names, &change);
        state.changes.push(change);
        Ok(OpenFile(self.clone(), content))
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let state = self.0.borrow();
        let used: usize = state
            .names
            .values()
            .map(|it| it.borrow().cached.len())
            .sum();
        Ok((state.capacity - used) as u64)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.begin_call()?;
        assert!(!state.names.contains_key(to), "{to} is there already");
        let change = DirectoryChange::Rename(from.to_string(), to.to_string());
        apply_change(&mut state.names, &change);
        state.changes.push(change);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.begin_call()?;
        if !state.names.contains_key(name) {
            return Err(not_found());
        }
        let change = DirectoryChange::Remove(name.to_string());
        apply_change(&mut state.names, &change);
        state.changes.push(change);
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut state = self.begin_call()?;
        if state.fault != Fault::NamesNotSynced {
            let DiskState {
                synced, changes, ..
            } = &mut *state;
            changes
                .drain(..)
                .for_each(|change| apply_change(synced, &change));
        }
        Ok(())
    }
}

/// An open file.
pub struct OpenFile(Disk, SharedContent);

impl File for OpenFile {
    fn bytes(&self) -> io::Result<u64> {
        let _inner = self.0.begin_call()?;
        Ok(self.1.borrow().cached.len() as u64)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let _inner = self.0.begin_call()?;
        let content = self.1.borrow();
        let from = content.cached.get(offset as usize..).unwrap_or_default();
        let len = from.len().min(bytes.len());
        bytes[..len].copy_from_slice(&from[..len]);
        Ok(len)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut content = self.1.borrow_mut();
        let at = offset as usize;
        let end = at + bytes.len();
        if content.cached.len() < end {
            content.cached.resize(end, 0);
        }
        // The bytes are written before the power can fail, so that sectors of the last write can survive the power cut.
        content.cached[at..end].copy_from_slice(bytes);
        content.dirty.extend(at / SECTOR..end.div_ceil(SECTOR));
        self.0.begin_call().map(drop)
    }

    fn sync(&self) -> io::Result<()> {
        let state = self.0.begin_call()?;
        if state.fault != Fault::FileNotSynced {
            let mut content = self.1.borrow_mut();
            let Content {
                cached,
                synced,
                dirty,
            } = &mut *content;
            synced.clone_from(cached);
            dirty.clear();
        }
        Ok(())
    }
}
