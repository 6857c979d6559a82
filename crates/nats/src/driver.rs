//! The runtime of this crate, on a thread of its own. Other threads wait for the tasks that run there.

use std::sync::Arc;
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::error::Error;

/// The way to the thread, which ends with the last of these. No task may keep one.
#[derive(Clone)]
pub struct Driver(Arc<Inner>);

struct Inner {
    handle: Handle,
    /// Nothing is sent.
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

    /// Runs a task there.
    pub fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.0.handle.spawn(task)
    }

    /// Waits for it. Not to be called there, nor by a shard, whose thread must not wake the runtime.
    pub fn block_on<T>(&self, what: impl Future<Output = T>) -> T {
        self.0.handle.block_on(what)
    }
}
