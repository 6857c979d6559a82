//! The threads of this room.

/// The stack of a thread that verifies; RSA needs most.
const STACK_BYTES: usize = 512 << 10;

/// Starts a thread.
///
/// # Errors
/// There is no thread to be had.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name(name.to_string());
    thread.stack_size(STACK_BYTES).spawn(work).map(drop)
}
