//! Flow control: the windows of a connection and of its streams, in both directions (RFC 9113 section 5.2).

use super::frame::MAX_31;

/// A window over 2^31 - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overflow;

/// The number of bytes that the peer allows this side to send. It becomes negative if the peer lowers the initial window (RFC 9113 section
/// 6.9.2).
#[derive(Clone, Copy, Debug)]
pub(super) struct SendWindow(i32);

impl SendWindow {
    pub const fn new(bytes: u32) -> SendWindow {
        SendWindow(bytes as i32)
    }

    /// The number of bytes that may be sent now.
    pub const fn available(self) -> usize {
        if self.0 > 0 { self.0 as usize } else { 0 }
    }

    pub fn change(&mut self, by: i64) -> Result<(), Overflow> {
        let bytes = i64::from(self.0) + by;
        if bytes > i64::from(MAX_31) {
            return Err(Overflow);
        }
        // A window is never below -(2^31 - 1): that is a full window that was used up, and then lowered to 0.
        self.0 = bytes.max(i64::from(i32::MIN)) as i32;
        Ok(())
    }

    /// Uses bytes of the window. They must be available.
    pub fn take(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.available());
        self.0 -= bytes as i32;
    }
}

/// The number of bytes that the peer may send.
///
/// The size of a window is the sum of three numbers of bytes. The peer may still send the first. The server holds the second. The server
/// has released the third, but the peer does not know that yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceiveWindow {
    left: u32,
    untold: u32,
}

impl ReceiveWindow {
    pub const fn new(size: u32) -> ReceiveWindow {
        ReceiveWindow {
            left: size,
            untold: 0,
        }
    }

    /// Counts bytes that the peer sent. Returns `false` if the window does not allow them.
    #[must_use]
    pub fn receive(&mut self, bytes: u32) -> bool {
        let left = self.left.checked_sub(bytes);
        self.left = left.unwrap_or(self.left);
        left.is_some()
    }

    /// The number of bytes that the server holds.
    pub const fn held(&self, size: u32) -> u32 {
        size - self.left - self.untold
    }

    /// Releases bytes that the server held. Returns the increment for the peer when it is half of the window, so that few frames are
    /// needed. If much is held, half of the window may never be released, so the increment is also due when the peer may send less than it.
    pub fn release(&mut self, bytes: u32, size: u32) -> Option<u32> {
        debug_assert!(bytes <= self.held(size));
        self.untold += bytes;
        let is_due = self.untold >= size / 2 || self.untold >= self.left;
        if self.untold == 0 || !is_due {
            return None;
        }
        self.left += self.untold;
        Some(core::mem::take(&mut self.untold))
    }
}
