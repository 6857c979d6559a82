//! The verifier's queues of jobs. Client addresses get fair turns in each queue.
//!
//! Invariant: no address has more jobs in a queue than its share of `access.questions_max` ([`may_take`]).

use std::collections::hash_map::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crore_broker::access::Question;
use crore_broker::admission::shares::{HALF, may_take};
use crore_broker::fair_queue::FairQueue;

use super::credential_verifiers::CredentialVerifiers;

/// The fixed cost of a job (a signature, a password hash or a request), in steps.
const JOB_STEPS: u64 = 16;
/// Decoding and hashing this number of bytes of a credential counts as a step.
const STEP_BYTES: u64 = 256;

/// A credential to verify.
pub struct Job {
    pub verifiers: Arc<CredentialVerifiers>,
    /// The generation of `verifiers`.
    pub generation: u64,
    pub question: Question,
}

impl Job {
    /// The cost of the job. Fair turns give all addresses the same total cost.
    fn steps(&self) -> u64 {
        JOB_STEPS + self.question.secret.len() as u64 / STEP_BYTES
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

/// A queue between the verifier and its threads.
#[derive(Default)]
pub struct JobQueue {
    jobs: Mutex<JobQueueState>,
    more: Condvar,
}

#[derive(Default)]
struct JobQueueState {
    fair_queue: FairQueue<Job>,
    /// Whether no further job will come: then the threads end when the queue is empty.
    is_closed: bool,
}

impl JobQueue {
    fn jobs(&self) -> MutexGuard<'_, JobQueueState> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next job. Takes it from the address whose jobs have cost the least so far. `None` when the queue is closed and empty.
    pub fn next(&self) -> Option<Job> {
        let mut jobs = self.jobs();
        loop {
            if let Some(job) = jobs.fair_queue.pop() {
                // Charged before the job is done, because other threads choose their next job meanwhile.
                jobs.fair_queue.charge(job.steps());
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

/// The verifier's end of a queue. Dropping it closes the queue.
pub struct JobSender(pub Arc<JobQueue>);

impl JobSender {
    pub fn push(&self, job: Job) {
        self.0.jobs().fair_queue.push(job.question.asker, job);
        self.0.more.notify_one();
    }
}

impl Drop for JobSender {
    fn drop(&mut self) {
        self.0.jobs().is_closed = true;
        self.0.more.notify_all();
    }
}
