//! Writes the result of a command to stdout. Messages about the command go elsewhere.

use std::io::{self, ErrorKind, Write};

/// Writes `bytes` to stdout. If stdout is a pipe that its reader has closed, that is no error.
///
/// # Errors
/// If the write fails for any other reason.
pub fn print(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(anyhow::anyhow!("stdout: {error}"))
        }
        _ => Ok(()),
    }
}
