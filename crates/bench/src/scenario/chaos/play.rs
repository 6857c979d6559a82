//! Clients and publishers as threads around a scenario's own course of events.

use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};

use super::crowd::Crowd;
use super::feed::Feed;
use super::outcome::Outcome;
use super::world::World;
use crate::rig::pause;

/// Clients of one thread.
const PER_CROWD: u32 = 15_000;
/// How long the opening, the last acknowledgements and the last messages may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Seconds that all clients are connected before the last messages: a request may still be on its way to the home.
const REST_S: f64 = 2.0;
/// How often the main thread looks around.
const LOOK: Duration = Duration::from_millis(50);

/// Ends the threads when it is dropped, however the run ends.
pub struct Guard<'a>(pub &'a World);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Relaxed);
    }
}

/// Runs a thread's body; an error ends the others too.
pub fn whole<T>(world: &World, body: impl FnOnce() -> Result<T>) -> Result<T> {
    let result = body();
    if result.is_err() {
        world.stop.store(true, Relaxed);
    }
    result
}

/// The result of a thread.
pub fn joined<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().map_err(|_| anyhow!("a thread panicked"))?
}

/// Runs all clients, and publishers that make `rate` requests a second, at these addresses while `course` goes on.
/// Returns their results, and that of `course`.
pub fn play<T>(
    world: &World,
    addresses: &[SocketAddr],
    connections: u32,
    rate: f64,
    course: impl FnOnce() -> Result<T>,
) -> Result<(Outcome, T)> {
    std::thread::scope(|scope| {
        let guard = Guard(world);
        let crowds: Vec<_> = (0..connections)
            .step_by(PER_CROWD as usize)
            .map(|first| {
                let count = PER_CROWD.min(connections - first);
                let crowd = move || Crowd::new(world, addresses, first, count)?.run();
                scope.spawn(move || whole(world, crowd))
            })
            .collect();
        let feed = scope.spawn(move || whole(world, || Feed::new(world, addresses)?.run(rate)));
        let came = course();
        drop(guard);
        let mut outcome = Outcome::default();
        for crowd in crowds {
            outcome.seen.merge(joined(crowd)?);
        }
        outcome.fed = joined(feed)?;
        Ok((outcome, came?))
    })
}

/// Waits until all clients are connected.
pub fn opened(world: &World, connections: u32) -> Result<()> {
    ensure!(
        until(world, || world.live.load(Relaxed) == connections)?,
        "only {} clients opened",
        world.live.load(Relaxed)
    );
    Ok(())
}

/// Has the last messages published, and waits until all clients have them.
pub fn finish(world: &World, connections: u32) -> Result<()> {
    pause(REST_S);
    world.closing.store(true, Relaxed);
    pause(REST_S);
    until(world, || Feed::all_idle(world))?;
    // A client that is not complete in time has lost a message; its track will say which.
    until(world, || world.complete.load(Relaxed) == connections)?;
    pause(REST_S);
    Ok(())
}

/// Waits until this holds, and returns whether it did so in time.
pub fn until(world: &World, there: impl Fn() -> bool) -> Result<bool> {
    let begin = Instant::now();
    while !there() {
        ensure!(!world.stop.load(Relaxed), "a thread ended");
        if begin.elapsed() > PATIENCE {
            return Ok(false);
        }
        std::thread::sleep(LOOK);
    }
    Ok(true)
}
