//! The asynchronous runtime of this crate, on its own thread. Other threads can start tasks there and wait for results.

use std::sync::Arc;
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::error::Error;

/// The handle of the thread. The thread ends when the last clone is dropped, so no task on it may keep a clone.
#[derive(Clone)]
pub struct Driver(Arc<Inner>);

struct Inner {
    handle: Handle,
    /// Dropping this ends the thread. Nothing is sent.
    _ends: oneshot::Sender<()>,
}

impl Driver {
    /// Starts the thread.
    pub fn start() -> Result<Driver, Error> {
        let failed = |error: std::io::Error| {
            Error::lasting(format!("cannot start the runtime of NATS: {error}"))
        };
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let handle = runtime.handle().clone();
        let (ends, ended) = oneshot::channel();
        let thread = thread::Builder::new().name("nats".to_string());
        let run = move || drop(runtime.block_on(ended));
        thread.spawn(run).map_err(failed)?;
        Ok(Driver(Arc::new(Inner {
            handle,
            _ends: ends,
        })))
    }

    /// Runs a task on the thread.
    pub fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.0.handle.spawn(task)
    }

    /// Waits for a future. The thread of the runtime must not call this. Nor must a shard, whose thread cannot wake the runtime.
    pub fn block_on<T>(&self, what: impl Future<Output = T>) -> T {
        self.0.handle.block_on(what)
    }
}
