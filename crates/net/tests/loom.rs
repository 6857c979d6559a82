//! The mailbox under every interleaving of its senders and its reader, as far as the bounds below reach:
//! `cargo test -p crore-net --features loom --test loom`
//!
//! A lost wake shows as a deadlock, which the model checker reports.

use crore_net::{Inbox, Sender, mailbox};
use loom::thread;

/// Thread switches that are not forced by blocking, for each run. Known lost-wake bugs of such protocols need two.
const PREEMPTIONS_MAX: usize = 3;

fn model(body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS_MAX);
    builder.check(body);
}

/// Reads as a shard does, turn by turn, until `count` mails are there.
fn read(inbox: &mut Inbox<(u8, u8)>, count: usize) -> Vec<(u8, u8)> {
    let mut all = Vec::new();
    loop {
        inbox.drain(&mut all);
        if all.len() == count {
            return all;
        }
        if inbox.sleep() {
            inbox.block();
        }
        inbox.awake();
    }
}

fn post(sender: &Sender<(u8, u8)>, who: u8, count: u8) {
    for serial in 0..count {
        sender.post((who, serial));
    }
}

fn of(all: &[(u8, u8)], who: u8) -> Vec<u8> {
    all.iter()
        .filter(|mail| mail.0 == who)
        .map(|mail| mail.1)
        .collect()
}

#[test]
fn one_sender_loses_no_wake_and_no_order() {
    model(|| {
        let (sender, mut inbox) = mailbox().unwrap();
        let posting = thread::spawn(move || post(&sender, 0, 3));
        assert_eq!(of(&read(&mut inbox, 3), 0), [0, 1, 2]);
        posting.join().unwrap();
    });
}

#[test]
fn two_senders_lose_no_wake_and_no_order() {
    model(|| {
        let (sender, mut inbox) = mailbox().unwrap();
        let other = sender.clone();
        let posting = [
            thread::spawn(move || post(&sender, 0, 2)),
            thread::spawn(move || other.post_all(&mut vec![(1, 0), (1, 1)])),
        ];
        let all = read(&mut inbox, 4);
        assert_eq!(of(&all, 0), [0, 1]);
        assert_eq!(of(&all, 1), [0, 1]);
        for thread in posting {
            thread.join().unwrap();
        }
    });
}

/// Something else (a socket, a deadline) ended a turn while a sender was about to ring: the ring comes late, maybe in the next sleep.
#[test]
fn a_turn_ended_by_something_else_loses_no_wake() {
    model(|| {
        let (sender, mut inbox) = mailbox().unwrap();
        let posting = thread::spawn(move || post(&sender, 0, 2));
        let mut all = Vec::new();
        inbox.sleep();
        inbox.awake();
        inbox.drain(&mut all);
        let rest = 2 - all.len();
        all.append(&mut read(&mut inbox, rest));
        assert_eq!(of(&all, 0), [0, 1]);
        posting.join().unwrap();
    });
}
