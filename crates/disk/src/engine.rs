//! The thread that commits: while one group is written and synced, the batches of the next one gather.
//!
//! A lone batch waits for one sync. Many that come together share one. The thread answers in the order in which it was asked.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{io, mem};

use crate::log::{CommitError, Log, bytes_in_group};
use crate::storage::Storage;

/// While the disk is full, room is looked for this often.
const RETRY: Duration = Duration::from_secs(1);

/// What is committed.
pub trait Batch: Send + 'static {
    /// Its bytes.
    fn bytes(&self) -> &[u8];
}

/// The engine of one log. It stops when it is dropped, after all that it was given is committed.
pub struct Engine<B> {
    shared: Arc<Shared<B>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared<B> {
    queue: Mutex<Queue<B>>,
    filled: Condvar,
}

struct Queue<B> {
    waiting: VecDeque<B>,
    ends: bool,
}

impl<B> Shared<B> {
    fn lock(&self) -> MutexGuard<'_, Queue<B>> {
        // No code that could panic runs under the lock.
        self.queue
            .lock()
            .expect("the lock of the log's queue is not poisoned")
    }
}

impl<B: Batch> Engine<B> {
    /// Starts the thread. It calls `committed` with the batches of each group once that group is synced, and `failed` once if the
    /// log fails: nothing is committed from then on, and the process should end.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start<S>(
        log: Log<S>,
        mut committed: impl FnMut(Vec<B>) + Send + 'static,
        failed: impl FnOnce(io::Error) + Send + 'static,
    ) -> io::Result<Engine<B>>
    where
        S: Storage + Send + 'static,
        S::File: Send,
    {
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue {
                waiting: VecDeque::new(),
                ends: false,
            }),
            filled: Condvar::new(),
        });
        let of_thread = Arc::clone(&shared);
        let run = move || {
            if let Err(error) = of_thread.run(log, &mut committed) {
                failed(error);
            }
        };
        let thread = std::thread::Builder::new().name("log".into()).spawn(run)?;
        Ok(Engine {
            shared,
            thread: Some(thread),
        })
    }

    /// Hands a batch over. It is committed behind all that were handed over before.
    pub fn append(&self, batch: B) {
        let mut queue = self.shared.lock();
        queue.waiting.push_back(batch);
        drop(queue);
        self.shared.filled.notify_one();
    }
}

impl<B> Drop for Engine<B> {
    fn drop(&mut self) {
        self.shared.lock().ends = true;
        self.shared.filled.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported by its hook.
            let _ = thread.join();
        }
    }
}

impl<B: Batch> Shared<B> {
    /// Commits until the engine ends.
    fn run<S: Storage>(
        &self,
        mut log: Log<S>,
        committed: &mut impl FnMut(Vec<B>),
    ) -> io::Result<()> {
        let mut full_since: Option<Instant> = None;
        while let Some(group) = self.next_group(log.group_bytes()) {
            loop {
                match log.commit(group.iter().map(Batch::bytes)) {
                    Ok(()) => break,
                    // Nobody is answered: the batches are as if they had never come.
                    Err(CommitError::Full) if self.ends_within(RETRY) => return Ok(()),
                    Err(CommitError::Full) => {}
                    Err(CommitError::Failed(error)) => return Err(error),
                }
            }
            committed(group);
            // Behind the answers, so that nobody waits for it; where there is no room, not for each group.
            if full_since.is_none_or(|since| since.elapsed() >= RETRY) {
                full_since = (!log.prepare()?).then(Instant::now);
            }
        }
        Ok(())
    }

    /// Whether the engine ends within this time.
    fn ends_within(&self, time: Duration) -> bool {
        let queue = self.lock();
        let woken = self
            .filled
            .wait_timeout_while(queue, time, |queue| !queue.ends);
        let (queue, _) = woken.expect("the lock of the log's queue is not poisoned");
        queue.ends
    }

    /// Waits for batches, and takes as many as have so many bytes, or a longer one; `None` at the end.
    fn next_group(&self, bytes_max: usize) -> Option<Vec<B>> {
        let mut queue = self.lock();
        while queue.waiting.is_empty() {
            if queue.ends {
                return None;
            }
            let woken = self.filled.wait(queue);
            queue = woken.expect("the lock of the log's queue is not poisoned");
        }
        let mut bytes = 0;
        let mut fits = |batch: &B| {
            bytes += bytes_in_group(batch.bytes().len());
            bytes <= bytes_max
        };
        let count = queue
            .waiting
            .iter()
            .map_while(|batch| fits(batch).then_some(()))
            .count();
        let rest = queue.waiting.split_off(count.max(1));
        Some(mem::replace(&mut queue.waiting, rest).into())
    }
}
