//! Queues of jobs for threads that verify credentials or call a backend. Client addresses get fair turns in each queue.
//!
//! Invariant: no address has more jobs in a queue than its share of the queue's limit ([`may_take`]).

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

/// The number of jobs that wait in a queue or are in progress: in total, and for each address.
#[derive(Default)]
pub struct QueueLoad {
    all: usize,
    by_address: HashMap<u64, usize>,
}

impl QueueLoad {
    pub fn add(&mut self, asker: u64) {
        self.all += 1;
        *self.by_address.entry(asker).or_default() += 1;
    }

    pub fn remove(&mut self, asker: u64) {
        self.all -= 1;
        if let Some(count) = self.by_address.get_mut(&asker) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&asker);
            }
        }
    }

    pub fn may_add(&self, asker: u64, jobs_max: usize) -> bool {
        let own = self.by_address.get(&asker).copied().unwrap_or(0);
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
    /// Whether no further job will come: then the threads end when the queue is empty.
    is_closed: bool,
}

impl<J> Default for JobQueue<J> {
    fn default() -> Self {
        let state = JobQueueState {
            fair_queue: FairQueue::default(),
            is_closed: false,
        };
        JobQueue {
            jobs: Mutex::new(state),
            more: Condvar::new(),
        }
    }
}

impl<J: QueuedJob> JobQueue<J> {
    fn jobs(&self) -> MutexGuard<'_, JobQueueState<J>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next job. Takes it from the address whose jobs have cost the least so far. `None` when the queue is closed and empty.
    pub fn next(&self) -> Option<J> {
        let mut jobs = self.jobs();
        loop {
            if let Some(job) = jobs.fair_queue.pop() {
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
