//! Who pays for memory, and what a caller sends.

use crate::row::Conn;

/// The account of the caller. It is charged for every byte that a connection holds: sent and not acknowledged, not sent yet, received and not
/// read, received out of order. It is also charged for what is kept of a connection while it is busy.
pub trait Account {
    /// Charges `bytes` to this connection. `false` if there is no room. Then received bytes are dropped, so that the peer retransmits them
    /// later, and bytes to send are refused.
    fn charge(&mut self, conn: Conn, bytes: usize) -> bool;

    /// Gives back `bytes` that were charged to this connection.
    fn release(&mut self, conn: Conn, bytes: usize);

    /// What is kept of a busy connection beside its data took `before` bytes, and takes `after` now. This cannot be refused: if it is more than there
    /// is room for, memory is short, and data is refused.
    fn resize_entry(&mut self, conn: Conn, before: usize, after: usize);

    /// Whether memory is short. Then connections have only [`Config::short_hold_ms`](crate::Config::short_hold_ms) to acknowledge what is held
    /// for them, and bytes out of order are dropped.
    fn is_short(&self) -> bool {
        false
    }
}

/// Bytes to send.
#[derive(Debug)]
pub enum Part<'a, H> {
    /// They are copied.
    Copied(&'a [u8]),
    /// They are shared if there are many ([`Config::share_bytes`](crate::Config::share_bytes)), and copied otherwise. `H` is a handle to
    /// bytes that others share, such as an `Arc`.
    Shared(&'a H),
}

impl<H: AsRef<[u8]>> Part<'_, H> {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Part::Copied(bytes) => bytes,
            Part::Shared(handle) => handle.as_ref(),
        }
    }
}
