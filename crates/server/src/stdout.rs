//! The output of every command: data on stdout, and nothing else there.

use std::io::{self, ErrorKind, Write};

/// Writes `bytes` to stdout; a pipe that nobody reads any more is not an error.
///
/// # Errors
/// Stdout cannot be written to for another reason.
pub fn print(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(anyhow::anyhow!("stdout: {error}"))
        }
        _ => Ok(()),
    }
}
