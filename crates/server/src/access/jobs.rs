//! Queues of jobs for threads that verify credentials or call a backend. Parties (addresses, or users) get fair turns in each queue.
//!
//! Invariants: no party has more jobs in a queue than its share of the queue's limit ([`may_take`]). If a queue has a limit of the jobs that are in progress for
//! one party, no party has more.

use std::collections::hash_map::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crore_broker::access::Question;
use crore_broker::admission::shares::{HALF, may_take};
use crore_broker::fair_queue::FairQueue;

use super::credential_verifiers::CredentialVerifiers;

/// The fixed cost of a job (a signature, a password hash or a request), in steps.
const JOB_STEPS: u64 = 16;
/// Decoding, hashing or sending this number of bytes counts as a step.
const STEP_BYTES: u64 = 256;

/// A job of a queue.
pub trait QueuedJob {
    /// The party for which it is done.
    fn asker(&self) -> u64;
    /// The bytes that it works on.
    fn bytes(&self) -> usize;
}

/// A credential to verify.
pub struct Job {
    pub verifiers: Arc<CredentialVerifiers>,
    /// The generation of `verifiers`.
    pub generation: u64,
    pub question: Question,
}

impl QueuedJob for Job {
    fn asker(&self) -> u64 {
        self.question.asker
    }

    fn bytes(&self) -> usize {
        self.question.secret.len()
    }
}

/// One queue for each kind of verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    Tokens,
    Passwords,
    Callback,
}

/// The number of jobs that wait in a queue or are in progress: in total, and for each party.
#[derive(Default)]
pub struct QueueLoad {
    all: usize,
    by_party: PartyCounts,
}

/// The number of jobs of each party that has any.
#[derive(Default)]
struct PartyCounts(HashMap<u64, usize>);

impl PartyCounts {
    fn of(&self, party: u64) -> usize {
        self.0.get(&party).copied().unwrap_or(0)
    }

    fn add(&mut self, party: u64) {
        *self.0.entry(party).or_default() += 1;
    }

    fn remove(&mut self, party: u64) {
        if let Some(count) = self.0.get_mut(&party) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&party);
            }
        }
    }
}

impl QueueLoad {
    pub fn add(&mut self, asker: u64) {
        self.all += 1;
        self.by_party.add(asker);
    }

    pub fn remove(&mut self, asker: u64) {
        self.all -= 1;
        self.by_party.remove(asker);
    }

    pub fn may_add(&self, asker: u64, jobs_max: usize) -> bool {
        let own = self.by_party.of(asker);
        may_take(own, jobs_max.saturating_sub(self.all), HALF)
    }
}

/// A queue between those that make jobs and the threads that do them.
pub struct JobQueue<J> {
    jobs: Mutex<JobQueueState<J>>,
    more: Condvar,
}

struct JobQueueState<J> {
    fair_queue: FairQueue<J>,
    /// The jobs in progress, if they are limited for each party.
    in_progress: Option<InProgress>,
    /// Whether no further job will come: then the threads end when the queue is empty.
    is_closed: bool,
}

/// The jobs that are in progress for each party.
struct InProgress {
    by_party: PartyCounts,
    /// The limit of one party.
    jobs_max: usize,
}

impl<J> Default for JobQueue<J> {
    fn default() -> Self {
        JobQueue::new(None)
    }
}

impl<J> JobQueue<J> {
    fn new(in_progress: Option<InProgress>) -> Self {
        let state = JobQueueState {
            fair_queue: FairQueue::default(),
            in_progress,
            is_closed: false,
        };
        JobQueue {
            jobs: Mutex::new(state),
            more: Condvar::new(),
        }
    }

    /// A queue that has at most `jobs_max` jobs of one party in progress. Each job that [`JobQueue::next`] returns must be ended with [`JobQueue::finish`].
    pub fn with_share(jobs_max: usize) -> Self {
        JobQueue::new(Some(InProgress {
            by_party: PartyCounts::default(),
            jobs_max,
        }))
    }
}

impl<J: QueuedJob> JobQueue<J> {
    fn jobs(&self) -> MutexGuard<'_, JobQueueState<J>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next job. Takes it from the party whose jobs have cost the least so far, and which may have one more in progress. `None` when the queue is
    /// closed and has no such job.
    pub fn next(&self) -> Option<J> {
        let mut jobs = self.jobs();
        loop {
            if let Some(job) = jobs.pop() {
                // Charged before the job is done, because other threads choose their next job meanwhile.
                let steps = JOB_STEPS + job.bytes() as u64 / STEP_BYTES;
                jobs.fair_queue.charge(steps);
                return Some(job);
            }
            if jobs.is_closed {
                return None;
            }
            let more = self.more.wait(jobs);
            jobs = more.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<J: QueuedJob> JobQueue<J> {
    /// Called when a job of this party is done, by the thread that did it. This thread then asks for the next job, so no other thread has to be woken.
    pub fn finish(&self, party: u64) {
        if let Some(in_progress) = &mut self.jobs().in_progress {
            in_progress.by_party.remove(party);
        }
    }
}

impl<J: QueuedJob> JobQueueState<J> {
    fn pop(&mut self) -> Option<J> {
        let Some(in_progress) = &mut self.in_progress else {
            return self.fair_queue.pop();
        };
        let InProgress { by_party, jobs_max } = in_progress;
        let may_serve = |party| by_party.of(party) < *jobs_max;
        let job = self.fair_queue.pop_of(may_serve)?;
        by_party.add(job.asker());
        Some(job)
    }
}

/// The end of a queue that gets the jobs. Dropping it closes the queue.
pub struct JobSender<J: QueuedJob>(pub Arc<JobQueue<J>>);

impl<J: QueuedJob> JobSender<J> {
    pub fn push(&self, job: J) {
        self.0.jobs().fair_queue.push(job.asker(), job);
        self.0.more.notify_one();
    }
}

impl<J: QueuedJob> Drop for JobSender<J> {
    fn drop(&mut self) {
        self.0.jobs().is_closed = true;
        self.0.more.notify_all();
    }
}
