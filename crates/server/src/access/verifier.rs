//! The verifier: answers the shards' questions about credentials. One thread owns all state, and other threads verify.
//!
//! The state needs no locks. It has the connections that wait for each credential, a cache of recent answers, and the load of each queue.
//! Connections with the same credential share one verification, which is called a *flight*. Tokens, passwords and the callback have
//! separate queues and threads, so a storm of passwords does not delay tokens.
//!
//! A question is refused at once if its queue has `access.questions_max` jobs. The client tries again later; by then the answers to the
//! other questions are cached. Client addresses share each queue: no address may fill a queue ([`QueueLoad::may_add`]), and jobs run in
//! fair turns, so a storm from one address does not delay the others. The thread that owns the state decodes no credential. So every
//! question costs it the same small work, even one that is refused because its address has used up its share.
//!
//! Invariants: each question that was accepted gets one answer; a refused question leaves no state behind.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use crore_broker::Verdict;
use crore_broker::access::{Digest, Question, Revoked, VerifiedClient};
use crore_broker::{Closed, Reason};
use crore_broker::{ConnId, ShardId};
use crore_net::clock;

use super::credential_verifiers::CredentialVerifiers;
use super::jobs::{Job, JobQueue, JobSender, Queue, QueueLoad};
use super::jwt::has_parts;
use super::keys::{Keys, header};
use super::threads::spawn;

/// The number of threads that verify signatures. Two are enough, since a signature takes little time.
const TOKEN_THREADS: usize = 2;
/// How many seconds a refusal is cached. This is long enough that a client which keeps trying costs almost nothing, and short enough that a client
/// whose rights were just granted can soon connect.
const REFUSAL_CACHE_S: u32 = 5;
/// The minimum time between two log lines about one kind of refusal.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// The maximum number of connections that wait for an answer. Each of them takes an entry in a flight, but causes no work: connections with
/// the same credential share the flight.
const OPEN_QUESTIONS_MAX: usize = 1 << 20;

/// An input of the thread that owns the state.
enum VerifierEvent {
    /// A connection waits for an answer.
    Question(ShardId, ConnId, Question),
    /// A job is done.
    JobResult(JobResult),
    /// The token of this job names an unknown key, and a fetch of newer keys was requested.
    UnknownKey(Job),
    /// The token of this job is not a JWT, so the callback must verify it.
    NotJwt(Job),
    /// A fetch of keys by URL has ended, successfully or not.
    KeysFetched,
    /// The operator has changed the settings of access.
    CredentialVerifiers(Arc<CredentialVerifiers>),
    /// The operator has changed the list of revocations.
    Revoked(Arc<Revoked>),
}

/// The result of a job.
struct JobResult {
    flight: FlightKey,
    queue: Queue,
    /// The address of the client that asked.
    asker: u64,
    result: Result<VerifiedClient, Reason>,
    /// How many seconds the result may be cached.
    cache_s: u32,
}

/// Sends a verdict to the shard of the connection.
pub type VerdictSender = Box<dyn Fn(ConnId, Verdict) + Send>;

/// A shard's sender of questions to the verifier.
pub struct QuestionSender {
    shard: ShardId,
    events: Sender<VerifierEvent>,
    open_questions: Arc<AtomicUsize>,
}

impl QuestionSender {
    /// Sends a question. Returns false if too many questions are open, or if the verifier's thread has ended. Then nobody will answer, and
    /// the question does not count as open.
    pub fn ask(&self, conn: ConnId, question: Question) -> bool {
        let is_sent = self.open_questions.fetch_add(1, Relaxed) < OPEN_QUESTIONS_MAX
            && (self.events)
                .send(VerifierEvent::Question(self.shard, conn, question))
                .is_ok();
        if !is_sent {
            self.open_questions.fetch_sub(1, Relaxed);
        }
        is_sent
    }
}

/// A handle to the verifier's thread, which runs until the process ends.
pub struct Verifier {
    events: Sender<VerifierEvent>,
}

impl Verifier {
    /// Starts the thread that owns the state, and makes a sender of questions for each shard. The worker threads of a queue start with its
    /// first job.
    pub fn start(
        verifiers: Arc<CredentialVerifiers>,
        revoked: Arc<Revoked>,
        verdict_senders: Vec<VerdictSender>,
    ) -> anyhow::Result<(Verifier, Vec<QuestionSender>)> {
        let (events, inbox) = mpsc::channel();
        let open = Arc::new(AtomicUsize::new(0));
        let sender = |shard| QuestionSender {
            shard,
            events: events.clone(),
            open_questions: Arc::clone(&open),
        };
        let senders = (0..verdict_senders.len() as ShardId).map(sender).collect();
        fetch_keys(&verifiers, &Keys::default(), &events)
            .context("cannot start the thread that fetches keys")?;
        let state = VerifierState::new(verifiers, revoked, verdict_senders, events.clone(), open);
        spawn("access", move || state.run(&inbox)).context("cannot start the access thread")?;
        Ok((Verifier { events }, senders))
    }

    /// Replaces the list of revocations, and empties the cache.
    pub fn revoke(&self, revoked: Arc<Revoked>) {
        let _ = self.events.send(VerifierEvent::Revoked(revoked));
    }

    /// Replaces the settings of access, and empties the cache.
    pub fn replace(&self, verifiers: Arc<CredentialVerifiers>) {
        let _ = self
            .events
            .send(VerifierEvent::CredentialVerifiers(verifiers));
    }
}

/// The cache of answers. Refusals are evicted first: anybody can make up credentials that are refused, and would otherwise evict the
/// accepted credentials.
#[derive(Default)]
struct AnswerCache {
    accepted: Cache<VerifiedClient>,
    refused: Cache<Reason>,
}

impl AnswerCache {
    /// The cached answer about a credential, and until when it is valid, in seconds of `clock::counted_s`. The expiry of a token itself
    /// is by the wall clock.
    fn get(&self, digest: Digest) -> Option<(Result<VerifiedClient, Reason>, u64)> {
        let is_over = |known: &VerifiedClient| u64::from(known.until_unix_s) <= clock::unix_s();
        let accepted = self
            .accepted
            .get(digest)
            .filter(|(known, _)| !is_over(known));
        let accepted = accepted.map(|(known, end_s)| (Ok(known), end_s));
        accepted.or_else(|| (self.refused.get(digest)).map(|(reason, end_s)| (Err(reason), end_s)))
    }

    fn insert(
        &mut self,
        digest: Digest,
        answer: Result<VerifiedClient, Reason>,
        end_s: u64,
        entries_max: usize,
    ) {
        match answer {
            Ok(known) => self.accepted.insert(digest, known, end_s),
            Err(reason) => self.refused.insert(digest, reason, end_s),
        }
        while self.accepted.digests.len() + self.refused.digests.len() > entries_max {
            if !self.refused.evict_oldest() {
                self.accepted.evict_oldest();
            }
        }
    }
}

/// Answers of one kind, each with the end of its validity in seconds of `clock::counted_s`. The oldest answer is evicted first.
struct Cache<A> {
    entries: HashMap<Digest, (A, u64)>,
    /// The keys of `entries`, oldest first.
    digests: VecDeque<Digest>,
}

impl<A> Default for Cache<A> {
    fn default() -> Self {
        Cache {
            entries: HashMap::new(),
            digests: VecDeque::new(),
        }
    }
}

impl<A: Clone> Cache<A> {
    fn get(&self, digest: Digest) -> Option<(A, u64)> {
        let found = self.entries.get(&digest);
        found
            .filter(|(_, end_s)| clock::counted_s() < *end_s)
            .cloned()
    }

    fn insert(&mut self, digest: Digest, answer: A, end_s: u64) {
        if self.entries.insert(digest, (answer, end_s)).is_none() {
            self.digests.push_back(digest);
        }
    }

    /// Evicts the oldest answer. Returns false if there is none.
    fn evict_oldest(&mut self) -> bool {
        let oldest = self.digests.pop_front();
        oldest.is_some_and(|oldest| self.entries.remove(&oldest).is_some())
    }
}

/// A credential that is being verified, and the generation of the verifiers that verify it. A question that is asked after the verifiers were
/// replaced must not share the answer of the former verifiers.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct FlightKey {
    digest: Digest,
    generation: u64,
}

/// A connection that waits for an answer, and the generation of its shard's settings when it asked.
struct Waiter {
    shard: ShardId,
    conn: ConnId,
    settings_generation: u32,
}

/// The state, which only the verifier's thread has.
struct VerifierState {
    verifiers: Arc<CredentialVerifiers>,
    revoked: Arc<Revoked>,
    /// The number of times that the verifiers were replaced.
    generation: u64,
    shards: Vec<VerdictSender>,
    events: Sender<VerifierEvent>,
    open: Arc<AtomicUsize>,
    /// The load and the threads of each [`Queue`].
    loads: [QueueLoad; 3],
    job_senders: [Option<JobSender<Job>>; 3],
    flights: HashMap<FlightKey, Vec<Waiter>>,
    /// Jobs that wait for a fetch of keys. They still count in the load of the token queue.
    jobs_without_key: Vec<Job>,
    answers: AnswerCache,
    logged_refusals: Vec<LoggedRefusal>,
}

/// The last log line about one reason for refusals, and the number of refusals since then.
struct LoggedRefusal {
    reason: Reason,
    logged_at: Instant,
    unlogged: u64,
}

impl Job {
    fn flight(&self) -> FlightKey {
        FlightKey {
            digest: self.question.digest,
            generation: self.generation,
        }
    }
}

impl VerifierState {
    fn new(
        verifiers: Arc<CredentialVerifiers>,
        revoked: Arc<Revoked>,
        shards: Vec<VerdictSender>,
        events: Sender<VerifierEvent>,
        open: Arc<AtomicUsize>,
    ) -> VerifierState {
        VerifierState {
            verifiers,
            revoked,
            generation: 0,
            shards,
            events,
            open,
            loads: Default::default(),
            job_senders: [const { None }; 3],
            flights: HashMap::new(),
            jobs_without_key: Vec::new(),
            answers: AnswerCache::default(),
            logged_refusals: Vec::new(),
        }
    }

    fn run(mut self, inbox: &Receiver<VerifierEvent>) {
        while let Ok(event) = inbox.recv() {
            self.handle_event(event);
        }
    }

    fn handle_event(&mut self, event: VerifierEvent) {
        match event {
            VerifierEvent::Question(shard, conn, question) => {
                self.handle_question(shard, conn, question)
            }
            VerifierEvent::JobResult(done) => {
                self.loads[done.queue as usize].remove(done.asker);
                let is_current = done.flight.generation == self.generation;
                let cache_s = if is_current { done.cache_s } else { 0 };
                self.finish_flight(done.flight, done.result, cache_s);
            }
            VerifierEvent::UnknownKey(job) => {
                let is_pending = job.verifiers.keys.is_pending();
                self.jobs_without_key.push(job);
                // If the fetch has already ended, no event will follow.
                if !is_pending {
                    self.retry_jobs_without_key();
                }
            }
            VerifierEvent::NotJwt(job) => {
                self.loads[Queue::Tokens as usize].remove(job.question.asker);
                self.enqueue(Queue::Callback, job);
            }
            VerifierEvent::KeysFetched => self.retry_jobs_without_key(),
            VerifierEvent::Revoked(revoked) => {
                self.revoked = revoked;
                self.answers = AnswerCache::default();
            }
            VerifierEvent::CredentialVerifiers(verifiers) => {
                if let Err(error) = fetch_keys(&verifiers, &self.verifiers.keys, &self.events) {
                    tracing::error!(%error, "the thread that fetches keys could not be started");
                }
                // Jobs in progress finish with the former verifiers. Their results are not cached.
                self.verifiers = verifiers;
                self.generation += 1;
                self.answers = AnswerCache::default();
                self.job_senders = [const { None }; 3];
            }
        }
    }

    fn handle_question(&mut self, shard: ShardId, conn: ConnId, question: Question) {
        let digest = question.digest;
        let waiter = Waiter {
            shard,
            conn,
            settings_generation: question.settings_generation,
        };
        if let Some((found, end_s)) = self.answers.get(digest) {
            return self.answer(&[waiter], digest, &found, end_s);
        }
        let flight = FlightKey {
            digest,
            generation: self.generation,
        };
        match self.flights.entry(flight) {
            Entry::Occupied(mut waiters) => return waiters.get_mut().push(waiter),
            Entry::Vacant(free) => {
                free.insert(vec![waiter]);
            }
        }
        let queue = match self.queue_for(&question) {
            Ok(queue) => queue,
            Err(refusal) => return self.finish_flight(flight, Err(refusal), 0),
        };
        let job = Job {
            verifiers: Arc::clone(&self.verifiers),
            generation: self.generation,
            question,
        };
        self.enqueue(queue, job);
    }

    /// The queue for a credential: tokens if it may be a JWT, passwords for a known user, otherwise the callback.
    fn queue_for(&self, question: &Question) -> Result<Queue, Reason> {
        let verifiers = &self.verifiers;
        let callback = verifiers.callback.is_some();
        match &question.user {
            None => match (verifiers.keys.is_empty(), callback) {
                (false, _) if !callback || has_parts(&question.secret) => Ok(Queue::Tokens),
                (_, true) => Ok(Queue::Callback),
                _ => Err(Reason::TokenSignature),
            },
            Some(user) => match (verifiers.users.has(user), callback) {
                (true, _) => Ok(Queue::Passwords),
                (false, true) => Ok(Queue::Callback),
                (false, false) if verifiers.users.is_empty() => Err(Reason::WrongPassword),
                // An unknown name is verified like a wrong password, so that its answer takes as long.
                (false, false) => Ok(Queue::Passwords),
            },
        }
    }

    /// Queues a job, or refuses it if the queue or its address's share of the queue is full.
    fn enqueue(&mut self, queue: Queue, job: Job) {
        let flight = job.flight();
        let (load, asker) = (&mut self.loads[queue as usize], job.question.asker);
        let may_wait = load.may_add(asker, self.verifiers.questions_max);
        if may_wait {
            load.add(asker);
        }
        if !may_wait || !self.send_job(queue, job) {
            self.finish_flight(flight, Err(Reason::VerifierBusy), 0);
        }
    }

    /// Passes a job, which `load` already counts, to the threads of its queue. Returns false if the threads cannot be started.
    fn send_job(&mut self, queue: Queue, job: Job) -> bool {
        if self.job_senders[queue as usize].is_none() {
            self.job_senders[queue as usize] = self.start_threads(queue);
        }
        match &self.job_senders[queue as usize] {
            Some(sender) => sender.push(job),
            None => self.loads[queue as usize].remove(job.question.asker),
        }
        self.job_senders[queue as usize].is_some()
    }

    /// Verifies again the tokens that waited for a fetch of keys.
    fn retry_jobs_without_key(&mut self) {
        for job in std::mem::take(&mut self.jobs_without_key) {
            let flight = job.flight();
            if !self.send_job(Queue::Tokens, job) {
                self.finish_flight(flight, Err(Reason::VerifierBusy), 0);
            }
        }
    }

    fn start_threads(&self, queue: Queue) -> Option<JobSender<Job>> {
        let (count, name) = match queue {
            Queue::Tokens => (TOKEN_THREADS, "access-token"),
            Queue::Passwords => (self.verifiers.password_threads, "access-passwd"),
            Queue::Callback => {
                let concurrency = self.verifiers.callback.as_ref().map(|it| it.concurrency);
                (concurrency.unwrap_or(1), "access-ask")
            }
        };
        let jobs = match queue {
            // Each request holds a thread for as long as the endpoint takes, so no party may hold them all.
            Queue::Callback => JobQueue::with_share((count / 2).max(1)),
            // These take no longer than the processor needs.
            Queue::Tokens | Queue::Passwords => JobQueue::default(),
        };
        let sender = JobSender(Arc::new(jobs));
        for _ in 0..count {
            let (jobs, events) = (Arc::clone(&sender.0), self.events.clone());
            if let Err(error) = spawn(name, move || run_worker(queue, &jobs, &events)) {
                tracing::error!(%error, "a thread that verifies credentials could not be started");
                return None;
            }
        }
        Some(sender)
    }

    /// Ends a flight: answers all connections that wait for it, and caches the answer.
    fn finish_flight(
        &mut self,
        flight: FlightKey,
        found: Result<VerifiedClient, Reason>,
        cache_s: u32,
    ) {
        let digest = flight.digest;
        let now_unix_s = u32::try_from(clock::unix_s()).unwrap_or(u32::MAX);
        let found = match found {
            Ok(known) if self.revoked.has(&known.grants, now_unix_s) => {
                Err(Reason::CredentialsRevoked)
            }
            found => found,
        };
        let cache_s = match &found {
            // The queue was full, so the credential was not verified, and the answer is not cached.
            Err(reason) if reason.row().closed == Closed::Full => 0,
            Err(_) => cache_s.min(REFUSAL_CACHE_S),
            Ok(_) => cache_s,
        };
        let end_s = clock::counted_s() + u64::from(cache_s);
        if cache_s > 0 {
            let entries_max = self.verifiers.cache_entries;
            self.answers
                .insert(digest, found.clone(), end_s, entries_max);
        }
        if let Err(refusal) = &found {
            self.log_refusal(*refusal);
        }
        if let Some(waiters) = self.flights.remove(&flight) {
            self.answer(&waiters, digest, &found, end_s);
        }
    }

    fn answer(
        &self,
        to: &[Waiter],
        digest: Digest,
        found: &Result<VerifiedClient, Reason>,
        end_s: u64,
    ) {
        for waiter in to {
            let verdict = Verdict {
                digest,
                found: found.clone(),
                believed_until_s: u32::try_from(end_s).unwrap_or(u32::MAX),
                settings_generation: waiter.settings_generation,
            };
            self.shards[usize::from(waiter.shard)](waiter.conn, verdict);
            self.open.fetch_sub(1, Relaxed);
        }
    }

    /// Logs a refusal. Each reason is logged once in [`LOG_EVERY`], with the number of refusals since its last line.
    fn log_refusal(&mut self, refusal: Reason) {
        let now = Instant::now();
        let refused = match self
            .logged_refusals
            .iter_mut()
            .find(|it| it.reason == refusal)
        {
            Some(logged) if now - logged.logged_at < LOG_EVERY => {
                logged.unlogged += 1;
                return;
            }
            Some(logged) => {
                logged.logged_at = now;
                std::mem::take(&mut logged.unlogged) + 1
            }
            None => {
                self.logged_refusals.push(LoggedRefusal {
                    reason: refusal,
                    logged_at: now,
                    unlogged: 0,
                });
                1
            }
        };
        let (reason, remedy) = (refusal.text(), refusal.row().remedy);
        tracing::warn!(refused, "credentials refused: {reason}; {remedy}");
    }
}

/// Starts to fetch the keys at URLs. Until they arrive, the keys of the former verifiers are used.
fn fetch_keys(
    verifiers: &CredentialVerifiers,
    former: &Keys,
    events: &Sender<VerifierEvent>,
) -> std::io::Result<()> {
    let events = events.clone();
    verifiers.keys.start(former, move || {
        let _ = events.send(VerifierEvent::KeysFetched);
    })
}

/// A thread that does the jobs of one queue.
fn run_worker(queue: Queue, jobs: &JobQueue<Job>, events: &Sender<VerifierEvent>) {
    let mut connection = None;
    while let Some(job) = jobs.next() {
        let (verifiers, question) = (&job.verifiers, &job.question);
        let (found, cache_s) = match (queue, &verifiers.callback) {
            (Queue::Callback, Some(callback)) => callback.ask(question, &mut connection),
            (Queue::Callback, None) => (Err(Reason::VerifierUnreachable), 0),
            (Queue::Tokens, Some(_)) if header(&question.secret).is_none() => {
                if events.send(VerifierEvent::NotJwt(job)).is_err() {
                    return;
                }
                continue;
            }
            (Queue::Tokens, _) => {
                let found = verifiers.keys.verify(&question.secret, clock::unix_s());
                if found.is_err() && verifiers.keys.request_newer(&question.secret) {
                    if events.send(VerifierEvent::UnknownKey(job)).is_err() {
                        return;
                    }
                    continue;
                }
                (found, verifiers.cache_s)
            }
            (Queue::Passwords, _) => {
                let user = question.user.as_deref().unwrap_or_default();
                (
                    verifiers.users.verify(user, &question.secret),
                    verifiers.cache_s,
                )
            }
        };
        let asker = question.asker;
        let done = JobResult {
            flight: job.flight(),
            queue,
            asker,
            result: found,
            cache_s,
        };
        if events.send(VerifierEvent::JobResult(done)).is_err() {
            return;
        }
        jobs.finish(asker);
    }
}
