//! The engine: the thread that commits batches to the log. While it writes and syncs one group, the batches of the next group gather in a
//! queue. So batches that arrive together share one sync. Batches are acknowledged in the order of their arrival.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{io, mem};

use crate::log::{CommitError, Log, LogEnd, LogUsage, Reserve, bytes_in_group};
use crate::storage::Storage;

const POISONED: &str = "the lock of the log's queue is not poisoned";
/// Interval at which the engine looks for free space while the disk is full.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum time that a caller waits for [`Engine::seal`] or [`Engine::remove_spares`], because a disk can hang.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The engine of one log. Dropping it commits all queued batches (unless the disk is full) and stops the thread.
pub struct Engine<B> {
    shared: Arc<Shared<B>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared<B> {
    queue: Mutex<Queue<B>>,
    work_added: Condvar,
    /// Notified after the thread has handled requests.
    requests_handled: Condvar,
}

struct Queue<B> {
    /// The batches that no group contains yet.
    batches: VecDeque<B>,
    /// The thread sleeps, so the caller that adds a batch must wake it. Adding a batch while the thread is awake costs no system call.
    is_asleep: bool,
    /// The end of the log after the last synced group.
    end: LogEnd,
    /// The state of the log after that group.
    state: EngineState,
    /// Requests besides commits.
    requests: Requests,
    /// `requests` has changed since the thread last read them.
    has_new_requests: bool,
    is_ending: bool,
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
    remove_spares: bool,
}

/// The state of an engine's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineState {
    /// The space that the log occupies.
    pub usage: LogUsage,
    /// There is no space for another spare file. The log still commits to those that exist, and clients should send less before they are used up.
    pub is_full: bool,
    /// Number of committed groups; each takes one sync.
    pub syncs: u64,
    /// Total time of all commits: writes and syncs, without the waits for disk space.
    pub sync_time: Duration,
    /// Number of commits by duration: class `n` counts durations from 2^(n-1) up to 2^n microseconds. The last class also counts all longer
    /// durations.
    pub sync_counts: [u64; SYNC_TIME_CLASSES],
    /// Number of synced batches.
    pub batches: u64,
}

/// The space of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSpace {
    /// As in [`EngineState::is_full`].
    pub is_full: bool,
    /// Bytes that can be written before commits find no space.
    pub free_bytes: u64,
    /// [`Options::bytes_max`](crate::Options::bytes_max).
    pub bytes_max: u64,
}

impl LogSpace {
    fn of<S: Storage>(log: &Log<S>, is_full: bool) -> LogSpace {
        LogSpace {
            is_full,
            free_bytes: log.free_bytes(),
            bytes_max: log.bytes_max(),
        }
    }
}

/// Number of classes in [`EngineState::sync_counts`]; the last one begins at 16 s.
pub const SYNC_TIME_CLASSES: usize = 26;

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
    /// Starts the thread. It calls `on_committed` with the batches of each group after the group's sync, `report_space` with the space of
    /// the log after each turn of its loop, and `on_failed` once if the log fails. After `on_failed` nothing is committed, and the process
    /// should end.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start<S>(
        log: Log<S>,
        mut on_committed: impl FnMut(Vec<B>) + Send + 'static,
        mut report_space: impl FnMut(LogSpace) + Send + 'static,
        on_failed: impl FnOnce(io::Error) + Send + 'static,
    ) -> io::Result<Engine<B>>
    where
        S: Storage + Send + 'static,
        S::File: Send,
    {
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue {
                batches: VecDeque::new(),
                is_asleep: false,
                end: log.end(),
                state: EngineState {
                    usage: log.usage(),
                    ..EngineState::default()
                },
                requests: Requests::default(),
                has_new_requests: false,
                is_ending: false,
            }),
            work_added: Condvar::new(),
            requests_handled: Condvar::new(),
        });
        let thread_shared = Arc::clone(&shared);
        let run = move || {
            if let Err(error) = thread_shared.run(log, &mut on_committed, &mut report_space) {
                on_failed(error);
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
        queue.batches.extend(batches);
        let is_asleep = mem::take(&mut queue.is_asleep);
        drop(queue);
        if is_asleep {
            self.shared.work_added.notify_one();
        }
    }

    /// The end of the log after the last synced group.
    pub fn end(&self) -> LogEnd {
        self.shared.lock().end
    }

    /// The state of the log.
    pub fn state(&self) -> EngineState {
        self.shared.lock().state
    }

    /// Requests the removal of the segments before this one; see [`Log::remove_before`]. `other_bytes` is the size of the caller's other
    /// files. From now on it counts towards [`Options::bytes_max`](crate::Options::bytes_max).
    pub fn remove_before(&self, segment: u64, other_bytes: u64) {
        let mut queue = self.shared.lock();
        (queue.requests.remove_before, queue.requests.other_bytes) = (segment, other_bytes);
        queue.has_new_requests = true;
        drop(queue);
        self.shared.work_added.notify_one();
    }

    /// Sets how much of the file system stays free for the next checkpoint: `bytes`, plus the bytes written to the log since
    /// [`LogUsage::written_bytes`] was `since_written`. With less free space the log counts as full ([`EngineState::is_full`]), but it can
    /// still commit into its spare files.
    pub fn reserve(&self, bytes: u64, since_written: u64) {
        let mut queue = self.shared.lock();
        queue.requests.reserve = Reserve {
            bytes,
            since_written,
        };
        queue.has_new_requests = true;
        drop(queue);
        self.shared.work_added.notify_one();
    }

    /// Seals the open segment if it has groups, and waits for that. A checkpoint can then replace all groups synced before. Returns false
    /// if the segment stays open, because spare files are missing or the disk does not answer in time.
    pub fn seal(&self) -> bool {
        let queue = self.shared.lock();
        if queue.state.usage.open_bytes == 0 {
            return true;
        }
        let before = queue.end.segment;
        self.request_and_wait(queue, |requests| requests.seal = true)
            .end
            .segment
            > before
    }

    /// Removes the spare files and waits for that, so that the final checkpoint can use their space. Call this at the end of the process,
    /// when nothing more will be committed.
    pub fn remove_spares(&self) {
        let queue = self.shared.lock();
        drop(self.request_and_wait(queue, |requests| requests.remove_spares = true));
    }

    /// Adds a request, and waits until the thread has handled it, at most for [`REQUEST_TIMEOUT`].
    fn request_and_wait<'a>(
        &self,
        mut queue: MutexGuard<'a, Queue<B>>,
        request: impl FnOnce(&mut Requests),
    ) -> MutexGuard<'a, Queue<B>> {
        request(&mut queue.requests);
        queue.has_new_requests = true;
        self.shared.work_added.notify_one();
        let is_unhandled = |queue: &mut Queue<B>| {
            let Requests {
                seal,
                remove_spares,
                ..
            } = queue.requests;
            (seal || remove_spares) && !queue.is_ending
        };
        let waited =
            (self.shared.requests_handled).wait_timeout_while(queue, REQUEST_TIMEOUT, is_unhandled);
        waited.expect(POISONED).0
    }
}

impl<B> Drop for Engine<B> {
    fn drop(&mut self) {
        self.shared.lock().is_ending = true;
        self.shared.work_added.notify_one();
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
        on_committed: &mut impl FnMut(Vec<B>),
        report_space: &mut impl FnMut(LogSpace),
    ) -> io::Result<()> {
        // The last search for space while the disk is full. `None`: it is not full.
        let mut last_space_check: Option<Instant> = None;
        loop {
            // While the disk is full, clients send nothing and no batch wakes the thread. So it must look for space itself.
            let can_sleep = log.has_spares() && last_space_check.is_none();
            let Some(NextWork { requests, group }) =
                self.wait_for_work(log.next_group_bytes_max(), can_sleep)
            else {
                return log.write_end_mark();
            };
            if let Some(requests) = requests {
                self.carry_out(&mut log, requests)?;
            }
            if !group.is_empty() {
                let commit_time = loop {
                    let start = Instant::now();
                    match log.commit(group.iter().map(AsRef::as_ref)) {
                        Ok(()) => break start.elapsed(),
                        Err(CommitError::Failed(error)) => return Err(error),
                        Err(CommitError::Full) => {}
                    }
                    // The log can be full although the spare files exist: a batch longer than a spare file needs a larger file.
                    if last_space_check.replace(Instant::now()).is_none() {
                        report_space(LogSpace::of(&log, true));
                        self.publish_state(&log, |state| state.is_full = true);
                    }
                    match self.wait_for_request(RETRY_INTERVAL) {
                        // The process ends. The queued batches are dropped without an acknowledgement, as if they had never arrived.
                        WakeReason::Ends => return log.write_end_mark(),
                        WakeReason::Requested(requests) => self.carry_out(&mut log, requests)?,
                        WakeReason::TimedOut => {}
                    }
                };
                let bits = u128::BITS - commit_time.as_micros().leading_zeros();
                self.publish_state(&log, |state| {
                    state.syncs += 1;
                    state.batches += group.len() as u64;
                    state.sync_time += commit_time;
                    state.sync_counts[(bits as usize).min(SYNC_TIME_CLASSES - 1)] += 1;
                });
                on_committed(group);
            }
            // Spare files are made after the acknowledgements, so that no client waits for them. While the disk is full, the attempt is
            // made once per `RETRY_INTERVAL` and not after every group.
            let is_due = last_space_check.is_none_or(|check| check.elapsed() >= RETRY_INTERVAL);
            if requests.is_some() || (is_due && (last_space_check.is_some() || !log.has_spares())) {
                last_space_check = (!log.make_spares()?).then(Instant::now);
                self.publish_state(&log, |state| state.is_full = last_space_check.is_some());
            }
            report_space(LogSpace::of(&log, last_space_check.is_some()));
        }
    }

    fn carry_out<S: Storage>(&self, log: &mut Log<S>, requests: Requests) -> io::Result<()> {
        log.set_other_bytes(requests.other_bytes);
        log.reserve(requests.reserve.bytes, requests.reserve.since_written);
        if log.first_segment() < requests.remove_before {
            log.remove_before(requests.remove_before)?;
        }
        if requests.seal {
            log.make_spares()?;
        }
        // Without spare files there might be no space for the next commit, so the segment then stays open.
        if requests.seal && log.has_spares() {
            match log.begin_segment() {
                Ok(()) | Err(CommitError::Full) => {}
                Err(CommitError::Failed(error)) => return Err(error),
            }
        }
        if requests.remove_spares {
            log.remove_spares()?;
        }
        if requests.seal || requests.remove_spares {
            self.publish_state(log, |_| ());
            let mut queue = self.lock();
            queue.requests.seal &= !requests.seal;
            queue.requests.remove_spares &= !requests.remove_spares;
            self.requests_handled.notify_all();
        }
        Ok(())
    }

    fn publish_state<S: Storage>(&self, log: &Log<S>, change: impl FnOnce(&mut EngineState)) {
        let mut queue = self.lock();
        queue.end = log.end();
        queue.state.usage = log.usage();
        change(&mut queue.state);
    }

    /// Waits for a request, at most this long.
    fn wait_for_request(&self, time: Duration) -> WakeReason {
        let queue = self.lock();
        let is_idle = |queue: &mut Queue<B>| !queue.is_ending && !queue.has_new_requests;
        let woken = self.work_added.wait_timeout_while(queue, time, is_idle);
        let (mut queue, _) = woken.expect(POISONED);
        match (queue.is_ending, mem::take(&mut queue.has_new_requests)) {
            (true, _) => WakeReason::Ends,
            (false, true) => WakeReason::Requested(queue.requests),
            (false, false) => WakeReason::TimedOut,
        }
    }

    /// Waits for batches or requests. If spare files are missing, waits at most for `RETRY_INTERVAL`, so that the thread looks for space.
    /// Takes batches up to `bytes_max` bytes, or a single longer one. Returns `None` when the engine ends and no batch is left.
    fn wait_for_work(&self, bytes_max: usize, has_spares: bool) -> Option<NextWork<B>> {
        let mut queue = self.lock();
        while queue.batches.is_empty() && !queue.has_new_requests {
            if queue.is_ending {
                return None;
            }
            let time = if has_spares {
                Duration::MAX
            } else {
                RETRY_INTERVAL
            };
            queue.is_asleep = true;
            let (woken, timeout) = self.work_added.wait_timeout(queue, time).expect(POISONED);
            queue = woken;
            queue.is_asleep = false;
            if timeout.timed_out() {
                break;
            }
        }
        let has_new_requests = mem::take(&mut queue.has_new_requests);
        let requests = has_new_requests.then_some(queue.requests);
        let mut bytes = 0;
        let mut fits = |batch: &B| {
            bytes += bytes_in_group(batch.as_ref().len());
            bytes <= bytes_max
        };
        let count = queue
            .batches
            .iter()
            .map_while(|batch| fits(batch).then_some(()))
            .count();
        let count = count.max(1).min(queue.batches.len());
        let rest = queue.batches.split_off(count);
        let group = mem::replace(&mut queue.batches, rest).into();
        Some(NextWork { requests, group })
    }
}

enum WakeReason {
    Ends,
    Requested(Requests),
    TimedOut,
}
