//! Tests of the verifier's state: the choice of the queue, fair turns, the cache, and the count of open questions.

use crore_broker::access::{Credential, Grants, QuestionBytes};

use super::*;

const SETTINGS: &str = "[[key]]\nalg = 'HS256'\nsecret = '0123456789abcdef0123456789abcdef'\n\
     [callback]\nurl = 'http://127.0.0.1:1/'\n";

fn question(token: &[u8], asker: u64) -> Question {
    let credential = Credential::Token(token);
    let digest = credential.digest(&[0; 32]);
    Question::new(credential, digest, 0, asker, &QuestionBytes::default())
}

/// The state, and its inbox.
fn state() -> (VerifierState, Receiver<VerifierEvent>) {
    let access = toml::from_str(SETTINGS).expect("settings");
    let Ok(verifiers) = CredentialVerifiers::new(&access) else {
        panic!("settings that can be read");
    };
    let (events, inbox) = mpsc::channel();
    let open = Arc::new(AtomicUsize::new(0));
    (
        VerifierState::new(
            Arc::new(verifiers),
            Arc::default(),
            Vec::new(),
            events,
            open,
        ),
        inbox,
    )
}

/// Tests that the thread which owns the state decodes no token. Decoding a large token takes a millisecond, so a question behind thousands
/// of large tokens would wait for all of them.
#[test]
fn the_thread_of_the_state_decodes_no_token() {
    let (state, _inbox) = state();
    for (token, queue) in [
        ("opaque", Queue::Callback),
        ("a.b", Queue::Callback),
        ("a.b.c.d", Queue::Callback),
        // The first part is not JSON, which only the token threads notice.
        ("a.b.c", Queue::Tokens),
    ] {
        assert_eq!(
            state.queue_for(&question(token.as_bytes(), 1)),
            Ok(queue),
            "{token}"
        );
    }
}

#[test]
fn a_token_that_is_no_jwt_leaves_the_queue_of_tokens_and_is_counted_in_the_callbacks() {
    let (mut state, inbox) = state();
    let verifiers = Arc::clone(&state.verifiers);
    let job = Job {
        verifiers,
        generation: 0,
        question: question(b"a.b.c", 7),
    };
    let queues = [(); 2].map(|()| Arc::<JobQueue<Job>>::default());
    state.job_senders[Queue::Tokens as usize] = Some(JobSender(Arc::clone(&queues[0])));
    state.job_senders[Queue::Callback as usize] = Some(JobSender(Arc::clone(&queues[1])));
    state.enqueue(Queue::Tokens, job);
    // Closes the queue, so that `run_worker` ends after this job.
    drop(state.job_senders[Queue::Tokens as usize].take());
    run_worker(Queue::Tokens, &queues[0], &state.events);
    let event = inbox.try_recv().expect("an event");
    state.handle_event(event);
    assert!(queues[1].next().is_some(), "the callback is asked");
    let has_room = |queue| state.loads[queue as usize].may_add(7, 1);
    assert!(has_room(Queue::Tokens) && !has_room(Queue::Callback));
}

/// Tests that a client with the largest tokens and a client with small ones get the same amount of work done.
#[test]
fn a_large_token_counts_as_much_work_as_many_small_ones() {
    let queue = Arc::<JobQueue<Job>>::default();
    let sender = JobSender(Arc::clone(&queue));
    let (state, _inbox) = state();
    let large = vec![b'x'; 64 << 10];
    for n in 0..10_u8 {
        for (token, asker) in [(&large[n.into()..], 1), (&[n][..], 2)] {
            sender.push(Job {
                verifiers: Arc::clone(&state.verifiers),
                generation: 0,
                question: question(token, asker),
            });
        }
    }
    let askers: Vec<u64> = (0..12)
        .map(|_| queue.next().expect("a job").question.asker)
        .collect();
    assert_eq!(askers[1..11], [2; 10], "{askers:?}");
}

#[test]
fn made_up_tokens_push_no_good_one_out_of_memory() {
    let digest = |n: u32| Credential::Token(&n.to_le_bytes()).digest(&[0; 32]);
    let known = VerifiedClient {
        grants: Arc::new(Grants::default()),
        until_unix_s: u32::MAX,
    };
    let (end_s, mut answers) = (u64::MAX, AnswerCache::default());
    answers.insert(digest(0), Ok(known.clone()), end_s, 4);
    for n in 1..100 {
        answers.insert(digest(n), Err(Reason::TokenSignature), end_s, 4);
        assert!(answers.get(digest(n)).is_some_and(|it| it.0.is_err()));
    }
    assert!(answers.get(digest(0)).is_some_and(|it| it.0.is_ok()));
    assert!(answers.get(digest(96)).is_none(), "the oldest made room");
    (100..104).for_each(|n| answers.insert(digest(n), Ok(known.clone()), end_s, 4));
    assert!(answers.get(digest(0)).is_none(), "the oldest made room");
    answers.insert(digest(9), Ok(known), end_s, 0);
    assert!(answers.get(digest(9)).is_none() && answers.get(digest(103)).is_none());
}

#[test]
fn only_a_question_that_was_sent_counts_as_open() {
    let (events, inbox) = mpsc::channel();
    let sender = QuestionSender {
        shard: 0,
        events,
        open_questions: Arc::new(AtomicUsize::new(OPEN_QUESTIONS_MAX - 1)),
    };
    let ask = || {
        sender.ask(
            ConnId {
                slot: 1,
                generation: 0,
            },
            question(b"token", 1),
        )
    };
    let open = || sender.open_questions.load(Relaxed);
    assert!(ask() && open() == OPEN_QUESTIONS_MAX);
    assert!(!ask() && open() == OPEN_QUESTIONS_MAX, "too many are open");
    sender.open_questions.store(0, Relaxed);
    drop(inbox);
    assert!(!ask() && open() == 0, "the thread has ended");
}
