//! Writes to stdout, which gets the data of a command and nothing else.

use std::io::{self, ErrorKind, Write};

/// Writes `bytes` to stdout. A closed pipe is no error.
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
