//! The thread that commits: while one group is written and synced, the batches of the next one gather.
//!
//! A lone batch waits for one sync. Many that come together share one. The thread answers in the order in which it was asked.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{io, mem};

use crate::log::{CommitError, End, Figures, Log, bytes_in_group};
use crate::storage::Storage;

const POISONED: &str = "the lock of the log's queue is not poisoned";
/// While the disk is full, room is looked for this often.
const RETRY: Duration = Duration::from_secs(1);
/// A disk that hangs for longer does not hold up a checkpoint or a stop.
const PATIENCE: Duration = Duration::from_secs(5);

/// The engine of one log. It stops when it is dropped, after all that it was given is committed.
pub struct Engine<B> {
    shared: Arc<Shared<B>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared<B> {
    queue: Mutex<Queue<B>>,
    filled: Condvar,
    /// Told when wishes were carried out.
    carried_out: Condvar,
}

struct Queue<B> {
    waiting: VecDeque<B>,
    /// The thread waits for batches: the next ones wake it, and cost no system call while it is awake.
    sleeps: bool,
    /// Where the log ended behind the last group that was synced.
    end: End,
    /// How it was then.
    state: State,
    /// Another order to the log.
    wishes: Wishes,
    /// They were not carried out yet.
    wished: bool,
    ends: bool,
}

/// Orders to a log besides commits.
#[derive(Clone, Copy, Default)]
struct Wishes {
    /// Segments before this one are to be removed.
    remove_before: u64,
    /// So many bytes of other files count.
    beside: u64,
    /// Bytes of the file system that are to stay free for a checkpoint, and from where on what is written adds to them.
    reserve: (u64, u64),
    /// The segment that is written to is to be sealed. Once: it is unset when that was tried.
    seal: bool,
    /// The files that wait as segments are to be removed. Once.
    release: bool,
}

/// How the log of an engine is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The bytes that it occupies.
    pub figures: Figures,
    /// A file that is to wait as a segment cannot be made for want of room: less is to be asked for, before all room is used up.
    pub is_full: bool,
    /// How often the log was written and synced.
    pub syncs: u64,
    /// How long that took, in all.
    pub sync_time: Duration,
    /// How often it took less than 1, 2, 4, 8, ... microseconds, and not less than half of that; the last one has all that took longer.
    pub sync_counts: [u64; SYNC_TIMES],
    /// Batches that were synced.
    pub batches: u64,
}

/// The room of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// As in [`State::is_full`].
    pub is_full: bool,
    /// Bytes that can be written before it is full.
    pub free_bytes: u64,
    /// [`Options::bytes_max`](crate::Options::bytes_max).
    pub all_bytes: u64,
}

impl Room {
    fn of<S: Storage>(log: &Log<S>, is_full: bool) -> Room {
        let (free_bytes, all_bytes) = log.free_bytes();
        Room {
            is_full,
            free_bytes,
            all_bytes,
        }
    }
}

/// Classes of [`State::sync_counts`]: up to 16 s.
pub const SYNC_TIMES: usize = 26;

/// The next order of the thread.
struct Work<B> {
    wishes: Option<Wishes>,
    /// May be empty.
    group: Vec<B>,
}

impl<B> Shared<B> {
    fn lock(&self) -> MutexGuard<'_, Queue<B>> {
        // No code that could panic runs under the lock.
        self.queue.lock().expect(POISONED)
    }
}

impl<B: AsRef<[u8]> + Send + 'static> Engine<B> {
    /// Starts the thread. It calls `committed` with the batches of each group once that group is synced, `room` when its room has changed,
    /// and `failed` once if the log fails: nothing is committed from then on, and the process should end.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start<S>(
        log: Log<S>,
        mut committed: impl FnMut(Vec<B>) + Send + 'static,
        mut room: impl FnMut(Room) + Send + 'static,
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
                wishes: Wishes::default(),
                wished: false,
                ends: false,
            }),
            filled: Condvar::new(),
            carried_out: Condvar::new(),
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

    /// Hands batches over that came at once, to be committed behind all that were handed over before: they share a sync, if a group has room for them.
    pub fn append_all(&self, batches: impl IntoIterator<Item = B>) {
        let mut queue = self.shared.lock();
        queue.waiting.extend(batches);
        let sleeps = mem::take(&mut queue.sleeps);
        drop(queue);
        if sleeps {
            self.shared.filled.notify_one();
        }
    }

    /// Where the log ends: behind the last group that was synced.
    pub fn end(&self) -> End {
        self.shared.lock().end
    }

    /// How the log is.
    pub fn state(&self) -> State {
        self.shared.lock().state
    }

    /// Has the segments before this one removed, soon; see [`Log::remove_before`]. From then on so many bytes of other files count for
    /// [`Options::bytes_max`](crate::Options::bytes_max).
    pub fn remove_before(&self, segment: u64, beside: u64) {
        let mut queue = self.shared.lock();
        (queue.wishes.remove_before, queue.wishes.beside) = (segment, beside);
        queue.wished = true;
        drop(queue);
        self.shared.filled.notify_one();
    }

    /// So many bytes of the file system are to stay free, for the next checkpoint, and as many more as are written from [`Figures::written`] on. With
    /// less the log is full ([`State::is_full`]), while room for what is still committed waits in files.
    pub fn reserve(&self, bytes: u64, from: u64) {
        let mut queue = self.shared.lock();
        queue.wishes.reserve = (bytes, from);
        queue.wished = true;
        drop(queue);
        self.shared.filled.notify_one();
    }

    /// Seals the segment that is written to, if it has groups, and waits until that is done. So a checkpoint can replace all that was synced before. Where
    /// the next segments are not prepared, or the disk does not answer in time, the segment stays open: false.
    pub fn seal(&self) -> bool {
        let queue = self.shared.lock();
        if queue.state.figures.open_bytes == 0 {
            return true;
        }
        let before = queue.end.segment;
        self.carried_out(queue, |wishes| wishes.seal = true)
            .end
            .segment
            > before
    }

    /// Removes the files that wait as segments, and waits until that is done. Before the end of the process, when nothing more is to be committed: what
    /// else it has to write has their room.
    pub fn release(&self) {
        let queue = self.shared.lock();
        drop(self.carried_out(queue, |wishes| wishes.release = true));
    }

    fn carried_out<'a>(
        &self,
        mut queue: MutexGuard<'a, Queue<B>>,
        wish: impl FnOnce(&mut Wishes),
    ) -> MutexGuard<'a, Queue<B>> {
        wish(&mut queue.wishes);
        queue.wished = true;
        self.shared.filled.notify_one();
        let waits = |queue: &mut Queue<B>| {
            let Wishes { seal, release, .. } = queue.wishes;
            (seal || release) && !queue.ends
        };
        let waited = (self.shared.carried_out).wait_timeout_while(queue, PATIENCE, waits);
        waited.expect(POISONED).0
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

impl<B: AsRef<[u8]>> Shared<B> {
    /// Commits until the engine ends.
    fn run<S: Storage>(
        &self,
        mut log: Log<S>,
        committed: &mut impl FnMut(Vec<B>),
        room: &mut impl FnMut(Room),
    ) -> io::Result<()> {
        let mut full_since: Option<Instant> = None;
        loop {
            // Clients that were told of a full disk send nothing more, so the engine looks for room without a request.
            let is_prepared = log.is_prepared() && full_since.is_none();
            let Some(Work { wishes, group }) = self.next(log.group_bytes(), is_prepared) else {
                return log.mark_end();
            };
            if let Some(wishes) = wishes {
                self.carry_out(&mut log, wishes)?;
            }
            if !group.is_empty() {
                let began = Instant::now();
                loop {
                    match log.commit(group.iter().map(AsRef::as_ref)) {
                        Ok(()) => break,
                        Err(CommitError::Failed(error)) => return Err(error),
                        Err(CommitError::Full) => {}
                    }
                    // One batch may be longer than the files that wait, so that nothing else shows want of room.
                    if full_since.replace(Instant::now()).is_none() {
                        room(Room::of(&log, true));
                        self.note(&log, |state| state.is_full = true);
                    }
                    match self.wish_within(RETRY) {
                        // Nobody is answered: the batches are as if they had never come.
                        Woken::Ends => return log.mark_end(),
                        Woken::Wished(wishes) => self.carry_out(&mut log, wishes)?,
                        Woken::InTime => {}
                    }
                }
                let took = began.elapsed();
                let bits = u128::BITS - took.as_micros().leading_zeros();
                self.note(&log, |state| {
                    state.syncs += 1;
                    state.batches += group.len() as u64;
                    state.sync_time += took;
                    state.sync_counts[(bits as usize).min(SYNC_TIMES - 1)] += 1;
                });
                committed(group);
            }
            // Behind the answers, so that nobody waits for it; where there is no room, not for each group.
            let is_due = full_since.is_none_or(|since| since.elapsed() >= RETRY);
            if wishes.is_some() || is_due && (full_since.is_some() || !log.is_prepared()) {
                full_since = (!log.prepare()?).then(Instant::now);
                self.note(&log, |state| state.is_full = full_since.is_some());
            }
            room(Room::of(&log, full_since.is_some()));
        }
    }

    /// Carries out what is wished.
    fn carry_out<S: Storage>(&self, log: &mut Log<S>, wishes: Wishes) -> io::Result<()> {
        log.count_beside(wishes.beside);
        log.reserve(wishes.reserve.0, wishes.reserve.1);
        if log.first_segment() < wishes.remove_before {
            log.remove_before(wishes.remove_before)?;
        }
        if wishes.seal {
            log.prepare()?;
        }
        // Else nothing would be left for what is still committed.
        if wishes.seal && log.is_prepared() {
            match log.begin_segment() {
                Ok(()) | Err(CommitError::Full) => {}
                Err(CommitError::Failed(error)) => return Err(error),
            }
        }
        if wishes.release {
            log.release()?;
        }
        if wishes.seal || wishes.release {
            self.note(log, |_| ());
            let mut queue = self.lock();
            queue.wishes.seal &= !wishes.seal;
            queue.wishes.release &= !wishes.release;
            self.carried_out.notify_all();
        }
        Ok(())
    }

    /// Notes how the log is.
    fn note<S: Storage>(&self, log: &Log<S>, change: impl FnOnce(&mut State)) {
        let mut queue = self.lock();
        queue.end = log.end();
        queue.state.figures = log.figures();
        change(&mut queue.state);
    }

    /// Waits so long for a wish.
    fn wish_within(&self, time: Duration) -> Woken {
        let queue = self.lock();
        let idle = |queue: &mut Queue<B>| !queue.ends && !queue.wished;
        let woken = self.filled.wait_timeout_while(queue, time, idle);
        let (mut queue, _) = woken.expect(POISONED);
        match (queue.ends, mem::take(&mut queue.wished)) {
            (true, _) => Woken::Ends,
            (false, true) => Woken::Wished(queue.wishes),
            (false, false) => Woken::InTime,
        }
    }

    /// Waits for work: for batches, of which it takes as many as have so many bytes, or a longer one; for wishes; where not all is prepared,
    /// for the time to try again. `None` at the end.
    fn next(&self, bytes_max: usize, is_prepared: bool) -> Option<Work<B>> {
        let mut queue = self.lock();
        while queue.waiting.is_empty() && !queue.wished {
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
        let wished = mem::take(&mut queue.wished);
        let wishes = wished.then_some(queue.wishes);
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
        Some(Work { wishes, group })
    }
}

/// The end of a wait for a wish.
enum Woken {
    /// The engine ends.
    Ends,
    Wished(Wishes),
    /// There was none.
    InTime,
}
