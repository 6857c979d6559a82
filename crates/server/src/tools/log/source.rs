//! Finds a log and its base (the snapshot that the log continues) in a directory, and reads the log after the base.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use crore_disk::{
    Directory, ScanError, ScanEvent, ScanSummary, Storage as _, scan, segment_number,
};

use crate::lifecycle::state::{Base, LOG};

/// A log and its base, as found in a directory.
pub struct Source {
    /// The directory that the setting `state.directory` names. `None` if the log is in a directory of another name, as a copy may be.
    pub state: Option<PathBuf>,
    /// The directory of the log. `None` if there is only a base.
    pub log: Option<PathBuf>,
    /// The newest base.
    pub base: Option<Base>,
}

impl Source {
    /// Finds the log and the base. `directory` is the directory that `state.directory` names, or the log's directory in it.
    ///
    /// # Errors
    /// The directory cannot be read, or has neither a log nor a base.
    pub fn find(directory: &Path) -> anyhow::Result<Source> {
        let shown = || {
            format!(
                "{}, which should be the directory of state.directory",
                directory.display()
            )
        };
        let directory = &directory.canonicalize().with_context(shown)?;
        let bases = |state: &Path| Base::all(state).with_context(|| state.display().to_string());
        let log = directory.join(LOG);
        let newest = bases(directory)?.pop();
        if log.is_dir() || newest.is_some() {
            return Ok(Source {
                state: Some(directory.clone()),
                log: log.is_dir().then_some(log),
                base: newest,
            });
        }
        if segments(directory)?.is_empty() {
            bail!(
                "{} has neither a log nor a base; write the directory of state.directory",
                directory.display()
            );
        }
        let is_named = directory.file_name().is_some_and(|name| name == LOG);
        let state = directory.parent().filter(|_| is_named);
        Ok(Source {
            state: state.map(Path::to_path_buf),
            log: Some(directory.clone()),
            base: match state {
                Some(state) => bases(state)?.pop(),
                None => None,
            },
        })
    }

    /// The first segment that a server would read at its start. `None` if the number of that segment is unknown.
    pub fn first_segment(&self) -> Option<u64> {
        (self.state.is_some()).then(|| self.base.map_or(1, |base| base.end.0.max(1)))
    }

    /// Reads the log from the first segment that a server would read, and calls `each` with every batch and every damaged place.
    pub fn walk(&self, each: impl FnMut(ScanEvent<'_>)) -> anyhow::Result<ScanSummary> {
        let Some(log) = &self.log else {
            return Ok(ScanSummary::default());
        };
        let directory = Directory::read_only(log)?;
        scan(&directory, (self.first_segment(), None), each)
            .with_context(|| log.display().to_string())
    }
}

/// The segments in a directory, in order: the number of each, and the size of its file in bytes.
pub fn segments(log: &Path) -> anyhow::Result<Vec<(u64, u64)>> {
    let listed = Directory::read_only(log)?.list();
    let listed = listed.with_context(|| log.display().to_string())?;
    let segment = |entry: &crore_disk::Entry| Some((segment_number(&entry.name)?, entry.bytes));
    let mut found: Vec<_> = listed.iter().filter_map(segment).collect();
    found.sort_unstable();
    Ok(found)
}

/// Whether the error is a missing file. A missing file is no damage of the log: a running server removes files after a checkpoint.
pub fn is_missing_file(error: &anyhow::Error) -> bool {
    let is_missing = |error: &std::io::Error| error.kind() == ErrorKind::NotFound;
    error.chain().any(|cause| {
        let of_scan = cause.downcast_ref::<ScanError>();
        cause.downcast_ref().is_some_and(is_missing)
            || matches!(of_scan, Some(ScanError::Io(_, error)) if is_missing(error))
    })
}
