//! The asynchronous runtime of this crate, on its own thread. Other threads can start tasks there and wait for results.

use std::sync::Arc;
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::error::Error;

/// The handle of the thread. The thread ends when the last clone is dropped, so no task on it may keep a clone.
#[derive(Clone)]
pub struct Driver(Arc<RuntimeThread>);

struct RuntimeThread {
    handle: Handle,
    /// Dropping this ends the thread. Nothing is sent.
    _stop: oneshot::Sender<()>,
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
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new().name("nats".to_string());
        let run = move || drop(runtime.block_on(stopped));
        thread.spawn(run).map_err(failed)?;
        Ok(Driver(Arc::new(RuntimeThread {
            handle,
            _stop: stop,
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
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.0.handle.block_on(future)
    }
}
