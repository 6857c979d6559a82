//! Starts threads that verify credentials or fetch keys.

/// Stack size of a thread. RSA needs the most.
const STACK_BYTES: usize = 512 << 10;

/// Starts a thread.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name(name.to_string());
    thread.stack_size(STACK_BYTES).spawn(work).map(drop)
}
