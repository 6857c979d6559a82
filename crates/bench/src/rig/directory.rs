//! The temporary directory of a scenario or a server.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A directory that is deleted when this value is dropped.
pub struct Directory(PathBuf);

impl Directory {
    /// Creates `crore-bench-{name}` in the system's temporary directory, unless it exists.
    pub fn make(name: impl std::fmt::Display) -> Result<Directory> {
        let path = std::env::temp_dir().join(format!("crore-bench-{name}"));
        std::fs::create_dir_all(&path)
            .with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Directory(path))
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file in the directory and returns the file's path.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.0.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
