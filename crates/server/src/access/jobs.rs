//! Jobs of the verifier: credentials that wait for the threads of a queue, in fair turns of the addresses that ask.
//!
//! Invariant: no address has more jobs in a queue than its share of `access.questions_max` ([`may_take`]).

use std::collections::hash_map::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crore_broker::access::Question;
use crore_broker::admission::shares::{HALF, may_take};
use crore_broker::turns::Turns;

use super::checks::Checks;

/// The work of a signature, a password or a request, in steps: that of as many steps of bytes.
const JOB_STEPS: u64 = 16;
/// Bytes of a credential that are decoded and hashed in a step.
const STEP_BYTES: u64 = 256;

/// Work for a thread.
pub struct Job {
    pub checks: Arc<Checks>,
    pub round: u64,
    pub question: Question,
}

impl Job {
    /// Its work against that of others in the queue.
    fn steps(&self) -> u64 {
        JOB_STEPS + self.question.secret.len() as u64 / STEP_BYTES
    }
}

/// The queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    Tokens,
    Passwords,
    Callback,
}

/// The questions that wait in a queue, those that are being worked on included.
#[derive(Default)]
pub struct Waiting {
    all: usize,
    /// By address.
    of: HashMap<u64, usize>,
}

impl Waiting {
    pub fn add(&mut self, asker: u64) {
        self.all += 1;
        *self.of.entry(asker).or_default() += 1;
    }

    pub fn remove(&mut self, asker: u64) {
        self.all -= 1;
        if let Some(count) = self.of.get_mut(&asker) {
            *count -= 1;
            if *count == 0 {
                self.of.remove(&asker);
            }
        }
    }

    pub fn may_add(&self, asker: u64, most: usize) -> bool {
        let own = self.of.get(&asker).copied().unwrap_or(0);
        may_take(own, most.saturating_sub(self.all), HALF)
    }
}

/// Work that waits for the threads of a queue.
#[derive(Default)]
pub struct JobQueue {
    jobs: Mutex<Jobs>,
    more: Condvar,
}

#[derive(Default)]
struct Jobs {
    turns: Turns<Job>,
    /// No more comes: the threads end when all is done.
    over: bool,
}

impl JobQueue {
    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next job, that of the address for which least was done; none when no more comes.
    pub fn next(&self) -> Option<Job> {
        let mut jobs = self.jobs();
        loop {
            if let Some(job) = jobs.turns.pop() {
                // Threads that take jobs meanwhile must see it, so that it counts before it is done.
                jobs.turns.did(job.steps());
                return Some(job);
            }
            if jobs.over {
                return None;
            }
            let more = self.more.wait(jobs);
            jobs = more.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The books' end of a line.
pub struct Workers(pub Arc<JobQueue>);

impl Workers {
    pub fn hand(&self, job: Job) {
        self.0.jobs().turns.push(job.question.asker, job);
        self.0.more.notify_one();
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.0.jobs().over = true;
        self.0.more.notify_all();
    }
}
