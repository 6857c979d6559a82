//! Runs clients and publishers on threads while the main thread of a scenario causes its events.

use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};

use super::client_thread::ClientThread;
use super::publishers::Publishers;
use super::run_result::RunResult;
use super::shared_state::SharedState;
use crate::rig::pause;

/// The maximum number of clients that one thread runs.
const CLIENTS_PER_THREAD_MAX: u32 = 15_000;
/// Timeout for three waits: until all connections are open, for the last acknowledgements, and for the last messages.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Seconds between the last reconnect and the last messages. Meanwhile subscribe requests that are in flight reach the shards that keep the
/// topics.
const SETTLE_S: f64 = 2.0;
/// Polling interval of the main thread.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Stops the threads when this value is dropped, however the run ends.
pub struct StopOnDrop<'a>(pub &'a SharedState);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.must_stop.store(true, Relaxed);
    }
}

/// Runs a thread's body. An error stops the other threads, too.
pub fn stop_all_on_error<T>(shared: &SharedState, body: impl FnOnce() -> Result<T>) -> Result<T> {
    let result = body();
    if result.is_err() {
        shared.must_stop.store(true, Relaxed);
    }
    result
}

/// The result of a thread.
pub fn join<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().map_err(|_| anyhow!("a thread panicked"))?
}

/// Runs all clients, and publishers that send `rate` requests a second, while `cause_events` runs. Stops them when
/// `cause_events` returns. Returns the results of the threads, and the result of `cause_events`.
pub fn run_clients<T>(
    shared: &SharedState,
    addresses: &[SocketAddr],
    connections: u32,
    rate: f64,
    cause_events: impl FnOnce() -> Result<T>,
) -> Result<(RunResult, T)> {
    std::thread::scope(|scope| {
        let stop_guard = StopOnDrop(shared);
        let client_threads: Vec<_> = (0..connections)
            .step_by(CLIENTS_PER_THREAD_MAX as usize)
            .map(|first| {
                let count = CLIENTS_PER_THREAD_MAX.min(connections - first);
                let client_thread =
                    move || ClientThread::new(shared, addresses, first, count)?.run();
                scope.spawn(move || stop_all_on_error(shared, client_thread))
            })
            .collect();
        let publishers = scope.spawn(move || {
            stop_all_on_error(shared, || Publishers::new(shared, addresses)?.run(rate))
        });
        let events_result = cause_events();
        drop(stop_guard);
        let mut result = RunResult::default();
        for client_thread in client_threads {
            result.clients.merge(join(client_thread)?);
        }
        result.publishers = join(publishers)?;
        Ok((result, events_result?))
    })
}

/// Waits until all clients are connected.
pub fn wait_until_open(shared: &SharedState, connections: u32) -> Result<()> {
    ensure!(
        wait_until(shared, || shared.open_clients.load(Relaxed) == connections)?,
        "only {} clients opened",
        shared.open_clients.load(Relaxed)
    );
    Ok(())
}

/// Publishes the last messages, and waits until all clients have them.
pub fn deliver_last_messages(shared: &SharedState, connections: u32) -> Result<()> {
    pause(SETTLE_S);
    shared.must_publish_last.store(true, Relaxed);
    pause(SETTLE_S);
    wait_until(shared, || Publishers::are_all_idle(shared))?;
    // A client that is not complete in time has lost a message. The sequence check of that client reports which one.
    wait_until(shared, || {
        shared.complete_clients.load(Relaxed) == connections
    })?;
    pause(SETTLE_S);
    Ok(())
}

/// Waits until `condition` is true, and returns whether that happened in time.
pub fn wait_until(shared: &SharedState, condition: impl Fn() -> bool) -> Result<bool> {
    let start = Instant::now();
    while !condition() {
        ensure!(!shared.must_stop.load(Relaxed), "a thread ended");
        if start.elapsed() > TIMEOUT {
            return Ok(false);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(true)
}
