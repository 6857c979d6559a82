//! The signals of the process, as a queue for the control thread.
//!
//! Signals are blocked in all threads, so that no handler ever interrupts a shard. A small thread waits for the signals. This thread uses
//! the descriptor table of the process, so that it can wake the runtime of the control thread.

use anyhow::Context as _;
use crore_net::signal::{Signal, Signals};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Stack of the thread. It is small, because the thread only waits.
const STACK_BYTES: usize = 64 << 10;

pub struct SignalQueue(UnboundedReceiver<Signal>);

impl SignalQueue {
    /// The next signal.
    pub async fn next(&mut self) -> Signal {
        let signal = self.0.recv().await;
        signal.expect("the thread that waits for signals never ends")
    }
}

/// Starts the thread that waits for signals.
///
/// # Errors
/// The thread cannot be started.
pub fn listen(signals: Signals) -> anyhow::Result<SignalQueue> {
    let (sender, coming) = unbounded_channel();
    std::thread::Builder::new()
        .name("signals".to_string())
        .stack_size(STACK_BYTES)
        .spawn(move || {
            while let Ok(signal) = signals.wait() {
                if sender.send(signal).is_err() {
                    return;
                }
            }
        })
        .context("cannot start the thread that waits for signals")?;
    Ok(SignalQueue(coming))
}
