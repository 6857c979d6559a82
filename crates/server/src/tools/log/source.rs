//! Finds the log and its base in a directory, and reads through the log.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use crore_disk::{Directory, Found, Recovered, ScanError, Storage as _, number_of, scan};

use crate::lifecycle::state::{Base, LOG};

/// A log, and the directory that it belongs to.
pub struct Source {
    /// `state.directory`; none for a log elsewhere.
    pub state: Option<PathBuf>,
    /// The log; none if the directory has only a base.
    pub log: Option<PathBuf>,
    /// The newest base.
    pub base: Option<Base>,
}

impl Source {
    /// Finds log and base. `directory` is that of `state.directory`, or the log in it.
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

    /// The first segment that a server would read; none if that is unknown.
    pub fn first_segment(&self) -> Option<u64> {
        (self.state.is_some()).then(|| self.base.map_or(1, |base| base.end.0.max(1)))
    }

    /// Reads the log in order, and calls `each` with every batch and every damage.
    pub fn walk(&self, each: impl FnMut(Found<'_>)) -> anyhow::Result<Recovered> {
        let Some(log) = &self.log else {
            return Ok(Recovered::default());
        };
        let directory = Directory::read_only(log)?;
        scan(&directory, (self.first_segment(), None), each)
            .with_context(|| log.display().to_string())
    }
}

/// The segments in a directory, in order: the number and the size of the file.
pub fn segments(log: &Path) -> anyhow::Result<Vec<(u64, u64)>> {
    let listed = Directory::read_only(log)?.list();
    let listed = listed.with_context(|| log.display().to_string())?;
    let segment = |entry: &crore_disk::Entry| Some((number_of(&entry.name)?, entry.bytes));
    let mut found: Vec<_> = listed.iter().filter_map(segment).collect();
    found.sort_unstable();
    Ok(found)
}

/// Whether a file was missing: a running server removes files after a checkpoint.
pub fn is_missing_file(error: &anyhow::Error) -> bool {
    let is_missing = |error: &std::io::Error| error.kind() == ErrorKind::NotFound;
    error.chain().any(|cause| {
        let of_scan = cause.downcast_ref::<ScanError>();
        cause.downcast_ref().is_some_and(is_missing)
            || matches!(of_scan, Some(ScanError::Io(_, error)) if is_missing(error))
    })
}
