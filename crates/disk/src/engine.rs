//! The engine: the thread that commits batches to the log. While it writes and syncs one group, the batches of the next group gather in a
//! queue. So batches that arrive together share one sync. Batches are acknowledged in the order of their arrival.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{io, mem};

use crate::log::{CommitError, End, Log, LogUsage, Reserve, bytes_in_group};
use crate::storage::Storage;

const POISONED: &str = "the lock of the log's queue is not poisoned";
/// Interval at which the engine looks for free space while the disk is full.
const RETRY: Duration = Duration::from_secs(1);
/// The maximum time that a caller waits for [`Engine::seal`] or [`Engine::release`], because a disk can hang.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The engine of one log. Dropping it commits all queued batches (unless the disk is full) and stops the thread.
pub struct Engine<B> {
    shared: Arc<Shared<B>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared<B> {
    queue: Mutex<Queue<B>>,
    filled: Condvar,
    /// Notified after the thread has handled requests.
    done: Condvar,
}

struct Queue<B> {
    waiting: VecDeque<B>,
    /// The thread sleeps, so the caller that adds a batch must wake it. Adding a batch while the thread is awake costs no system call.
    sleeps: bool,
    /// The end of the log after the last synced group.
    end: End,
    /// The state of the log after that group.
    state: State,
    /// Requests besides commits.
    requests: Requests,
    /// `requests` has changed since the thread last read them.
    requested: bool,
    ends: bool,
}

/// Requests to a log besides commits.
#[derive(Clone, Copy, Default)]
struct Requests {
    /// Remove the segments before this one.
    remove_before: u64,
    /// The size of the caller's other files, which counts towards [`Options::bytes_max`](crate::Options::bytes_max).
    other_bytes: u64,
    /// Bytes of the file system that the log keeps free for a checkpoint.
    reserve: Reserve,
    /// Seal the open segment. Reset to false after the attempt.
    seal: bool,
    /// Remove the spare files. Reset to false when they are removed.
    release: bool,
}

/// The state of an engine's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The space that the log occupies.
    pub figures: LogUsage,
    /// There is no space for another spare file. Clients should send less before the spare files are used up too.
    pub is_full: bool,
    /// Number of committed groups; each takes one sync.
    pub syncs: u64,
    /// Total time of all commits: writes and syncs, without the waits for disk space.
    pub sync_time: Duration,
    /// Number of commits by duration: class `n` counts durations from 2^(n-1) up to 2^n microseconds. The last class also counts all longer
    /// durations.
    pub sync_counts: [u64; SYNC_TIMES],
    /// Number of synced batches.
    pub batches: u64,
}

/// The space of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSpace {
    /// As in [`State::is_full`].
    pub is_full: bool,
    /// Bytes that can be written before the log is full.
    pub free_bytes: u64,
    /// [`Options::bytes_max`](crate::Options::bytes_max).
    pub all_bytes: u64,
}

impl LogSpace {
    fn of<S: Storage>(log: &Log<S>, is_full: bool) -> LogSpace {
        let (free_bytes, all_bytes) = log.free_bytes();
        LogSpace {
            is_full,
            free_bytes,
            all_bytes,
        }
    }
}

/// Number of classes in [`State::sync_counts`]; the last one begins at 16 s.
pub const SYNC_TIMES: usize = 26;

/// What the thread does next.
struct NextWork<B> {
    requests: Option<Requests>,
    /// The batches to commit; may be empty.
    group: Vec<B>,
}

impl<B> Shared<B> {
    fn lock(&self) -> MutexGuard<'_, Queue<B>> {
        // No code that could panic runs under the lock.
        self.queue.lock().expect(POISONED)
    }
}

impl<B: AsRef<[u8]> + Send + 'static> Engine<B> {
    /// Starts the thread. It calls `committed` with the batches of each group after the group's sync, `room` with the space of the log
    /// after each turn of its loop, and `failed` once if the log fails. After `failed` nothing is committed, and the process should end.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start<S>(
        log: Log<S>,
        mut committed: impl FnMut(Vec<B>) + Send + 'static,
        mut room: impl FnMut(LogSpace) + Send + 'static,
        failed: impl FnOnce(io::Error) + Send + 'static,
    ) -> io::Result<Engine<B>>
    where
        S: Storage + Send + 'static,
        S::File: Send,
    {
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue {
                waiting: VecDeque::new(),
                sleeps: false,
                end: log.end(),
                state: State {
                    figures: log.figures(),
                    ..State::default()
                },
                requests: Requests::default(),
                requested: false,
                ends: false,
            }),
            filled: Condvar::new(),
            done: Condvar::new(),
        });
        let of_thread = Arc::clone(&shared);
        let run = move || {
            if let Err(error) = of_thread.run(log, &mut committed, &mut room) {
                failed(error);
            }
        };
        let thread = std::thread::Builder::new().name("log".into()).spawn(run)?;
        Ok(Engine {
            shared,
            thread: Some(thread),
        })
    }

    /// Queues batches after all earlier ones. Batches that fit into one group share a sync.
    pub fn append_all(&self, batches: impl IntoIterator<Item = B>) {
        let mut queue = self.shared.lock();
        queue.waiting.extend(batches);
        let sleeps = mem::take(&mut queue.sleeps);
        drop(queue);
        if sleeps {
            self.shared.filled.notify_one();
        }
    }

    /// The end of the log after the last synced group.
    pub fn end(&self) -> End {
        self.shared.lock().end
    }

    /// The state of the log.
    pub fn state(&self) -> State {
        self.shared.lock().state
    }

    /// Requests the removal of the segments before this one; see [`Log::remove_before`]. `other_bytes` is the size of the caller's other
    /// files. From now on it counts towards [`Options::bytes_max`](crate::Options::bytes_max).
    pub fn remove_before(&self, segment: u64, other_bytes: u64) {
        let mut queue = self.shared.lock();
        (queue.requests.remove_before, queue.requests.other_bytes) = (segment, other_bytes);
        queue.requested = true;
        drop(queue);
        self.shared.filled.notify_one();
    }

    /// Sets how much of the file system stays free for the next checkpoint: `bytes`, plus the bytes written to the log since
    /// [`LogUsage::written`] was `from`. With less free space the log counts as full ([`State::is_full`]), but it can still commit into its
    /// spare files.
    pub fn reserve(&self, bytes: u64, from: u64) {
        let mut queue = self.shared.lock();
        queue.requests.reserve = Reserve { bytes, from };
        queue.requested = true;
        drop(queue);
        self.shared.filled.notify_one();
    }

    /// Seals the open segment if it has groups, and waits for that. A checkpoint can then replace all groups synced before. Returns false
    /// if the segment stays open, because spare files are missing or the disk does not answer in time.
    pub fn seal(&self) -> bool {
        let queue = self.shared.lock();
        if queue.state.figures.open_bytes == 0 {
            return true;
        }
        let before = queue.end.segment;
        self.request(queue, |requests| requests.seal = true)
            .end
            .segment
            > before
    }

    /// Removes the spare files and waits for that, so that the final checkpoint can use their space. Call this at the end of the process,
    /// when nothing more will be committed.
    pub fn release(&self) {
        let queue = self.shared.lock();
        drop(self.request(queue, |requests| requests.release = true));
    }

    fn request<'a>(
        &self,
        mut queue: MutexGuard<'a, Queue<B>>,
        request: impl FnOnce(&mut Requests),
    ) -> MutexGuard<'a, Queue<B>> {
        request(&mut queue.requests);
        queue.requested = true;
        self.shared.filled.notify_one();
        let waits = |queue: &mut Queue<B>| {
            let Requests { seal, release, .. } = queue.requests;
            (seal || release) && !queue.ends
        };
        let waited = (self.shared.done).wait_timeout_while(queue, REQUEST_TIMEOUT, waits);
        waited.expect(POISONED).0
    }
}

impl<B> Drop for Engine<B> {
    fn drop(&mut self) {
        self.shared.lock().ends = true;
        self.shared.filled.notify_one();
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, the panic hook has already reported it.
            let _ = thread.join();
        }
    }
}

impl<B: AsRef<[u8]>> Shared<B> {
    /// The loop of the thread.
    fn run<S: Storage>(
        &self,
        mut log: Log<S>,
        committed: &mut impl FnMut(Vec<B>),
        room: &mut impl FnMut(LogSpace),
    ) -> io::Result<()> {
        let mut full_since: Option<Instant> = None;
        loop {
            // While the disk is full, clients send nothing and no batch wakes the thread. So it must look for space itself.
            let is_prepared = log.is_prepared() && full_since.is_none();
            let Some(NextWork { requests, group }) = self.next(log.group_bytes(), is_prepared)
            else {
                return log.mark_end();
            };
            if let Some(requests) = requests {
                self.carry_out(&mut log, requests)?;
            }
            if !group.is_empty() {
                let took = loop {
                    let began = Instant::now();
                    match log.commit(group.iter().map(AsRef::as_ref)) {
                        Ok(()) => break began.elapsed(),
                        Err(CommitError::Failed(error)) => return Err(error),
                        Err(CommitError::Full) => {}
                    }
                    // The log can be full although the spare files exist: a batch longer than a spare file needs a larger file.
                    if full_since.replace(Instant::now()).is_none() {
                        room(LogSpace::of(&log, true));
                        self.publish_state(&log, |state| state.is_full = true);
                    }
                    match self.request_within(RETRY) {
                        // The process ends. The queued batches are dropped without an acknowledgement, as if they had never arrived.
                        WakeReason::Ends => return log.mark_end(),
                        WakeReason::Requested(requests) => self.carry_out(&mut log, requests)?,
                        WakeReason::TimedOut => {}
                    }
                };
                let bits = u128::BITS - took.as_micros().leading_zeros();
                self.publish_state(&log, |state| {
                    state.syncs += 1;
                    state.batches += group.len() as u64;
                    state.sync_time += took;
                    state.sync_counts[(bits as usize).min(SYNC_TIMES - 1)] += 1;
                });
                committed(group);
            }
            // Spare files are made after the acknowledgements, so that no client waits for them. While the disk is full, the attempt is
            // made once per `RETRY` and not after every group.
            let is_due = full_since.is_none_or(|since| since.elapsed() >= RETRY);
            if requests.is_some() || is_due && (full_since.is_some() || !log.is_prepared()) {
                full_since = (!log.prepare()?).then(Instant::now);
                self.publish_state(&log, |state| state.is_full = full_since.is_some());
            }
            room(LogSpace::of(&log, full_since.is_some()));
        }
    }

    fn carry_out<S: Storage>(&self, log: &mut Log<S>, requests: Requests) -> io::Result<()> {
        log.set_other_bytes(requests.other_bytes);
        log.reserve(requests.reserve.bytes, requests.reserve.from);
        if log.first_segment() < requests.remove_before {
            log.remove_before(requests.remove_before)?;
        }
        if requests.seal {
            log.prepare()?;
        }
        // Without spare files there might be no space for the next commit, so the segment then stays open.
        if requests.seal && log.is_prepared() {
            match log.begin_segment() {
                Ok(()) | Err(CommitError::Full) => {}
                Err(CommitError::Failed(error)) => return Err(error),
            }
        }
        if requests.release {
            log.release()?;
        }
        if requests.seal || requests.release {
            self.publish_state(log, |_| ());
            let mut queue = self.lock();
            queue.requests.seal &= !requests.seal;
            queue.requests.release &= !requests.release;
            self.done.notify_all();
        }
        Ok(())
    }

    fn publish_state<S: Storage>(&self, log: &Log<S>, change: impl FnOnce(&mut State)) {
        let mut queue = self.lock();
        queue.end = log.end();
        queue.state.figures = log.figures();
        change(&mut queue.state);
    }

    /// Waits for a request, at most this long.
    fn request_within(&self, time: Duration) -> WakeReason {
        let queue = self.lock();
        let idle = |queue: &mut Queue<B>| !queue.ends && !queue.requested;
        let woken = self.filled.wait_timeout_while(queue, time, idle);
        let (mut queue, _) = woken.expect(POISONED);
        match (queue.ends, mem::take(&mut queue.requested)) {
            (true, _) => WakeReason::Ends,
            (false, true) => WakeReason::Requested(queue.requests),
            (false, false) => WakeReason::TimedOut,
        }
    }

    /// Waits for batches or requests. If spare files are missing, waits at most for `RETRY`, so that the thread looks for space. Takes
    /// batches up to `bytes_max` bytes, or a single longer one. Returns `None` when the engine ends and no batch is left.
    fn next(&self, bytes_max: usize, is_prepared: bool) -> Option<NextWork<B>> {
        let mut queue = self.lock();
        while queue.waiting.is_empty() && !queue.requested {
            if queue.ends {
                return None;
            }
            let time = if is_prepared { Duration::MAX } else { RETRY };
            queue.sleeps = true;
            let (woken, timeout) = self.filled.wait_timeout(queue, time).expect(POISONED);
            queue = woken;
            queue.sleeps = false;
            if timeout.timed_out() {
                break;
            }
        }
        let requested = mem::take(&mut queue.requested);
        let requests = requested.then_some(queue.requests);
        let mut bytes = 0;
        let mut fits = |batch: &B| {
            bytes += bytes_in_group(batch.as_ref().len());
            bytes <= bytes_max
        };
        let count = queue
            .waiting
            .iter()
            .map_while(|batch| fits(batch).then_some(()))
            .count();
        let count = count.max(1).min(queue.waiting.len());
        let rest = queue.waiting.split_off(count);
        let group = mem::replace(&mut queue.waiting, rest).into();
        Some(NextWork { requests, group })
    }
}

enum WakeReason {
    Ends,
    Requested(Requests),
    TimedOut,
}
