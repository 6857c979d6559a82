//! `crore pub`, `crore sub` and `crore admin`: the toolbox's small clients.
//!
//! Blocking sockets, one connection at a time, TLS where the URL says `https`. They speak what any client speaks
//! (HTTP/1.1, Server-Sent Events, WebSocket) and nothing that is only ours. What goes to stdout is
//! data; everything else goes to stderr. A reader of stdout that went away ends them quietly.

mod admin;
mod envelope;
mod flags;
pub mod http;
mod poll;
mod publish;
pub mod server;
mod sse;
mod stream;
mod subscribe;
pub mod tls;
mod websocket;

use std::io::{self, ErrorKind, Write};

pub use admin::{AdminArgs, EXAMPLES as ADMIN_EXAMPLES, admin};
pub use publish::{PubArgs, publish};
pub use subscribe::{SubArgs, subscribe};

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
