//! Answers the shards' questions: one thread keeps the books, and other threads do the work.
//!
//! The books: the connections that wait for each credential (one flight each, however many wait), recent answers, and how many wait.
//! They have one owner and no lock. The work: signatures, passwords and the callback have threads and queues of their own, so that a
//! storm of passwords holds up no token. A question past `access.questions_max` in one of the queues is refused at once: a client
//! that is told to come back then finds the answers of those before it. Addresses share each queue: none may fill it
//! ([`Waiting::may_add`]), and the work is done in fair turns, so that a storm of one address holds up no other. The thread of the books
//! decodes nothing of a credential: it does so much work for each question, whoever asks, before it knows the share of the address.
//!
//! Invariants: each question that was taken gets one answer; a question that was refused leaves nothing behind.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, Sender as Notes};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use crore_broker::Verdict;
use crore_broker::access::{Digest, Known, Question, Revoked};
use crore_broker::{Closed, Reason};
use crore_broker::{ConnId, ShardId};
use crore_net::clock;

use super::checks::Checks;
use super::jobs::{Job, JobQueue, Queue, Waiting, Workers};
use super::jwt::has_parts;
use super::keys::{Keys, header_members};
use super::threads::spawn;

/// Threads that verify signatures, which are short work.
const TOKEN_THREADS: usize = 2;
/// How long a refusal is believed: long enough that a client that tries again and again costs nothing, short enough for one that
/// was just given the right.
const REFUSED_S: u32 = 5;
/// How often one kind of refusal is logged, at most.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// A note to the books.
enum Note {
    /// A connection waits for an answer.
    Asked(ShardId, ConnId, Question),
    /// Work is done, for this address, by the checks of this round.
    Found(FlightKey, (Queue, u64), Result<Known, Reason>, u32),
    /// A token of this job names a key that is not known, and newer keys were asked for.
    MissesKey(Job),
    /// The token of this job is no JWT, and the callback may know it.
    IsNoJwt(Job),
    /// Keys of a URL were fetched, or could not be.
    KeysFetched,
    /// The operator has changed what to verify with.
    Checks(Arc<Checks>),
    /// The operator has changed what is revoked.
    Revoked(Arc<Revoked>),
}

/// How a shard is answered.
pub type VerdictSender = Box<dyn Fn(ConnId, Verdict) + Send>;

/// A shard's end of the verifier: it asks with this.
pub struct QuestionSender {
    shard: ShardId,
    notes: Notes<Note>,
    open: Arc<AtomicUsize>,
}

impl QuestionSender {
    /// Asks; false when too many questions are open.
    pub fn ask(&self, conn: ConnId, question: Question) -> bool {
        if self.open.fetch_add(1, Relaxed) >= OPEN_MAX {
            self.open.fetch_sub(1, Relaxed);
            return false;
        }
        let asked = self.notes.send(Note::Asked(self.shard, conn, question));
        asked.is_ok()
    }
}

/// The verifier, for the thread that started it.
pub struct Verifier {
    notes: Notes<Note>,
}

impl Verifier {
    /// Starts the thread of the books, with an end for each shard that is answered; those that do the work come when there is some.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn start(
        checks: Arc<Checks>,
        revoked: Arc<Revoked>,
        shards: Vec<VerdictSender>,
    ) -> anyhow::Result<(Verifier, Vec<QuestionSender>)> {
        let (notes, inbox) = mpsc::channel();
        let open = Arc::new(AtomicUsize::new(0));
        let asker = |shard| QuestionSender {
            shard,
            notes: notes.clone(),
            open: Arc::clone(&open),
        };
        let askers = (0..shards.len() as ShardId).map(asker).collect();
        fetch_keys(&checks, &Keys::default(), &notes)
            .context("cannot start the thread that fetches keys")?;
        let books = VerifierState::new(checks, revoked, shards, notes.clone(), open);
        spawn("access", move || books.keep(&inbox)).context("cannot start the access thread")?;
        Ok((Verifier { notes }, askers))
    }

    /// Refuses these from now on; earlier answers are forgotten.
    pub fn revoke(&self, revoked: Arc<Revoked>) {
        // The thread ends with the process.
        let _ = self.notes.send(Note::Revoked(revoked));
    }

    /// Verifies by these from now on; earlier answers are forgotten.
    pub fn replace(&self, checks: Arc<Checks>) {
        // The thread ends with the process.
        let _ = self.notes.send(Note::Checks(checks));
    }
}

/// Connections that wait for an answer at once: each is a row of the books, and no work, since those that wait for one flight wait together.
const OPEN_MAX: usize = 1 << 20;

/// Answers that were given lately. Refusals make room first: anybody can make up credentials that are refused, and the others' good ones
/// would all have to be verified again.
#[derive(Default)]
struct Answers {
    good: Recent<Known>,
    refused: Recent<Reason>,
}

impl Answers {
    /// The answer about a credential and until when it is believed, by the count; a token ends by the wall clock.
    fn get(&self, digest: Digest) -> Option<(Result<Known, Reason>, u64)> {
        let is_over = |known: &Known| u64::from(known.until_unix_s) <= clock::unix_s();
        let good = self.good.get(digest).filter(|(known, _)| !is_over(known));
        let good = good.map(|(known, end_s)| (Ok(known), end_s));
        good.or_else(|| (self.refused.get(digest)).map(|(reason, end_s)| (Err(reason), end_s)))
    }

    fn keep(&mut self, digest: Digest, answer: Result<Known, Reason>, end_s: u64, most: usize) {
        match answer {
            Ok(known) => self.good.keep(digest, known, end_s),
            Err(reason) => self.refused.keep(digest, reason, end_s),
        }
        while self.good.order.len() + self.refused.order.len() > most {
            if !self.refused.forget_oldest() {
                self.good.forget_oldest();
            }
        }
    }
}

/// Answers of one kind, each with the second until which it is believed.
struct Recent<A> {
    known: HashMap<Digest, (A, u64)>,
    /// In the order in which they came; as many as there are in `known`.
    order: VecDeque<Digest>,
}

impl<A> Default for Recent<A> {
    fn default() -> Self {
        Recent {
            known: HashMap::new(),
            order: VecDeque::new(),
        }
    }
}

impl<A: Clone> Recent<A> {
    fn get(&self, digest: Digest) -> Option<(A, u64)> {
        let found = self.known.get(&digest);
        found
            .filter(|(_, end_s)| clock::counted_s() < *end_s)
            .cloned()
    }

    fn keep(&mut self, digest: Digest, answer: A, end_s: u64) {
        if self.known.insert(digest, (answer, end_s)).is_none() {
            self.order.push_back(digest);
        }
    }

    /// Forgets the oldest; says whether there was one.
    fn forget_oldest(&mut self) -> bool {
        let oldest = self.order.pop_front();
        oldest.is_some_and(|oldest| self.known.remove(&oldest).is_some())
    }
}

/// A credential that is being looked at, and by which checks: how often they were replaced. A question that comes after a
/// replacement does not share the answer of the checks before it.
type FlightKey = (Digest, u64);

/// The connection that waits for an answer, and the round of its shard in which it asked.
type Waiter = (ShardId, ConnId, u32);

struct VerifierState {
    checks: Arc<Checks>,
    revoked: Arc<Revoked>,
    /// How often the checks were replaced.
    round: u64,
    shards: Vec<VerdictSender>,
    notes: Notes<Note>,
    open: Arc<AtomicUsize>,
    /// By queue.
    waiting: [Waiting; 3],
    workers: [Option<Workers>; 3],
    flights: HashMap<FlightKey, Vec<Waiter>>,
    /// Jobs that wait until keys are fetched; they count as waiting in the queue of tokens.
    missing_key: Vec<Job>,
    answers: Answers,
    /// When each refusal was logged, and how many there were since.
    told: Vec<(Reason, Instant, u64)>,
}

impl VerifierState {
    fn new(
        checks: Arc<Checks>,
        revoked: Arc<Revoked>,
        shards: Vec<VerdictSender>,
        notes: Notes<Note>,
        open: Arc<AtomicUsize>,
    ) -> VerifierState {
        VerifierState {
            checks,
            revoked,
            round: 0,
            shards,
            notes,
            open,
            waiting: Default::default(),
            workers: [const { None }; 3],
            flights: HashMap::new(),
            missing_key: Vec::new(),
            answers: Answers::default(),
            told: Vec::new(),
        }
    }

    fn keep(mut self, inbox: &Receiver<Note>) {
        while let Ok(note) = inbox.recv() {
            self.noted(note);
        }
    }

    fn noted(&mut self, note: Note) {
        match note {
            Note::Asked(shard, conn, question) => self.asked(shard, conn, question),
            Note::Found(flown, (queue, asker), found, cache_s) => {
                self.waiting[queue as usize].remove(asker);
                let cache_s = if flown.1 == self.round { cache_s } else { 0 };
                self.found(flown, found, cache_s);
            }
            Note::MissesKey(job) => {
                let is_pending = job.checks.keys.is_pending();
                self.missing_key.push(job);
                // If the fetch has ended meanwhile, no other note comes.
                if !is_pending {
                    self.verify_again();
                }
            }
            Note::IsNoJwt(job) => {
                self.waiting[Queue::Tokens as usize].remove(job.question.asker);
                self.hand_on(Queue::Callback, job);
            }
            Note::KeysFetched => self.verify_again(),
            Note::Revoked(revoked) => {
                self.revoked = revoked;
                self.answers = Answers::default();
            }
            Note::Checks(checks) => {
                if let Err(error) = fetch_keys(&checks, &self.checks.keys, &self.notes) {
                    tracing::error!(%error, "the thread that fetches keys could not be started");
                }
                // Questions under way are answered by the checks that held when they were asked; those answers are not cached.
                self.checks = checks;
                self.round += 1;
                self.answers = Answers::default();
                self.workers = [const { None }; 3];
            }
        }
    }

    fn asked(&mut self, shard: ShardId, conn: ConnId, question: Question) {
        let (digest, waits) = (question.digest, (shard, conn, question.round));
        if let Some((found, end)) = self.answers.get(digest) {
            return self.answer(&[waits], digest, &found, end);
        }
        let flown = (digest, self.round);
        match self.flights.entry(flown) {
            Entry::Occupied(mut flight) => return flight.get_mut().push(waits),
            Entry::Vacant(free) => {
                free.insert(vec![waits]);
            }
        }
        let queue = match self.queue(&question) {
            Ok(queue) => queue,
            Err(refusal) => return self.found(flown, Err(refusal), 0),
        };
        let job = Job {
            checks: Arc::clone(&self.checks),
            round: self.round,
            question,
        };
        self.hand_on(queue, job);
    }

    /// The queue that answers this: the keys' for what may be a JWT, the users' for a name that is theirs, else the callback's.
    fn queue(&self, question: &Question) -> Result<Queue, Reason> {
        let checks = &self.checks;
        let callback = checks.callback.is_some();
        match &question.user {
            None => match (checks.keys.is_empty(), callback) {
                (false, _) if !callback || has_parts(&question.secret) => Ok(Queue::Tokens),
                (_, true) => Ok(Queue::Callback),
                _ => Err(Reason::TokenSignature),
            },
            Some(user) => match (checks.users.has(user), callback) {
                (true, _) => Ok(Queue::Passwords),
                (false, true) => Ok(Queue::Callback),
                (false, false) if checks.users.is_empty() => Err(Reason::WrongPassword),
                // Takes its time all the same.
                (false, false) => Ok(Queue::Passwords),
            },
        }
    }

    /// Queues the work, or refuses it when the queue is full, or its share for this address.
    fn hand_on(&mut self, queue: Queue, job: Job) {
        let flown = (job.question.digest, job.round);
        let (waiting, asker) = (&mut self.waiting[queue as usize], job.question.asker);
        let may_wait = waiting.may_add(asker, self.checks.questions_max);
        if may_wait {
            waiting.add(asker);
        }
        if !may_wait || !self.hand(queue, job) {
            self.found(flown, Err(Reason::VerifierBusy), 0);
        }
    }

    /// Gives a job, which counts as waiting, to the threads of its queue; false when there are none to be had.
    fn hand(&mut self, queue: Queue, job: Job) -> bool {
        if self.workers[queue as usize].is_none() {
            self.workers[queue as usize] = self.start_workers(queue);
        }
        match &self.workers[queue as usize] {
            Some(workers) => workers.hand(job),
            None => self.waiting[queue as usize].remove(job.question.asker),
        }
        self.workers[queue as usize].is_some()
    }

    /// Keys were fetched: verifies the tokens that waited for them.
    fn verify_again(&mut self) {
        for job in std::mem::take(&mut self.missing_key) {
            let flown = (job.question.digest, job.round);
            if !self.hand(Queue::Tokens, job) {
                self.found(flown, Err(Reason::VerifierBusy), 0);
            }
        }
    }

    fn start_workers(&self, queue: Queue) -> Option<Workers> {
        let (count, name) = match queue {
            Queue::Tokens => (TOKEN_THREADS, "access-token"),
            Queue::Passwords => (self.checks.password_threads, "access-passwd"),
            Queue::Callback => {
                let concurrency = self.checks.callback.as_ref().map(|it| it.concurrency);
                (concurrency.unwrap_or(1), "access-ask")
            }
        };
        let workers = Workers(Arc::default());
        for _ in 0..count {
            let (line, notes) = (Arc::clone(&workers.0), self.notes.clone());
            if let Err(error) = spawn(name, move || work(queue, &line, &notes)) {
                tracing::error!(%error, "a thread that verifies credentials could not be started");
                return None;
            }
        }
        Some(workers)
    }

    /// Work is done: tells all connections that waited, and remembers it.
    fn found(&mut self, flown: FlightKey, found: Result<Known, Reason>, cache_s: u32) {
        let digest = flown.0;
        let now_unix_s = u32::try_from(clock::unix_s()).unwrap_or(u32::MAX);
        let found = match found {
            Ok(known) if self.revoked.has(&known.grants, now_unix_s) => {
                Err(Reason::CredentialsRevoked)
            }
            found => found,
        };
        let cache_s = match &found {
            // There was no room to verify them.
            Err(reason) if reason.row().closed == Closed::Full => 0,
            Err(_) => cache_s.min(REFUSED_S),
            Ok(_) => cache_s,
        };
        let end_s = clock::counted_s() + u64::from(cache_s);
        if cache_s > 0 {
            let most = self.checks.cache_entries;
            self.answers.keep(digest, found.clone(), end_s, most);
        }
        if let Err(refusal) = &found {
            self.tell(*refusal);
        }
        if let Some(waiting) = self.flights.remove(&flown) {
            self.answer(&waiting, digest, &found, end_s);
        }
    }

    fn answer(&self, to: &[Waiter], digest: Digest, found: &Result<Known, Reason>, end_s: u64) {
        for (shard, conn, round) in to {
            let verdict = Verdict {
                digest,
                found: found.clone(),
                believed_until_s: u32::try_from(end_s).unwrap_or(u32::MAX),
                round: *round,
            };
            self.shards[usize::from(*shard)](*conn, verdict);
            self.open.fetch_sub(1, Relaxed);
        }
    }

    /// Logs a refusal, each kind once in a while.
    fn tell(&mut self, refusal: Reason) {
        let now = Instant::now();
        let known = self.told.iter_mut().find(|(told, ..)| *told == refusal);
        let refused = match known {
            Some((_, last, count)) if now - *last < TELL_EVERY => {
                *count += 1;
                return;
            }
            Some((_, last, count)) => {
                *last = now;
                std::mem::take(count) + 1
            }
            None => {
                self.told.push((refusal, now, 0));
                1
            }
        };
        let (reason, remedy) = (refusal.text(), refusal.row().remedy);
        tracing::warn!(refused, "credentials refused: {reason}; {remedy}");
    }
}

/// Starts to fetch the keys at URLs, beside those of the former checks.
fn fetch_keys(checks: &Checks, former: &Keys, notes: &Notes<Note>) -> std::io::Result<()> {
    let notes = notes.clone();
    checks.keys.start(former, move || {
        // The thread of the books ends with the process.
        let _ = notes.send(Note::KeysFetched);
    })
}

/// A thread that does the work of one queue.
fn work(queue: Queue, line: &JobQueue, notes: &Notes<Note>) {
    let mut connection = None;
    while let Some(job) = line.next() {
        let (checks, question) = (&job.checks, &job.question);
        let (found, cache_s) = match (queue, &checks.callback) {
            (Queue::Callback, Some(callback)) => callback.ask(question, &mut connection),
            (Queue::Callback, None) => (Err(Reason::VerifierUnreachable), 0),
            (Queue::Tokens, Some(_)) if header_members(&question.secret).is_none() => {
                if notes.send(Note::IsNoJwt(job)).is_err() {
                    return;
                }
                continue;
            }
            (Queue::Tokens, _) => {
                let found = checks.keys.verify(&question.secret, clock::unix_s());
                if found.is_err() && checks.keys.ask_for_newer(&question.secret) {
                    if notes.send(Note::MissesKey(job)).is_err() {
                        return;
                    }
                    continue;
                }
                (found, checks.cache_s)
            }
            (Queue::Passwords, _) => {
                let user = question.user.as_deref().unwrap_or_default();
                (checks.users.verify(user, &question.secret), checks.cache_s)
            }
        };
        let flown = (question.digest, job.round);
        let note = Note::Found(flown, (queue, question.asker), found, cache_s);
        if notes.send(note).is_err() {
            return;
        }
    }
}
