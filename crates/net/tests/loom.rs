//! Tests the mailbox (messages between threads) under every interleaving of its senders and its reader, within the bounds below: `cargo
//! test -p crore-net --features loom --test loom`
//!
//! A lost wake-up shows as a deadlock, which the model checker reports.

use crore_net::{Inbox, Sender, mailbox};
use loom::thread;

/// Maximum of thread switches in a run that are not forced by blocking. Known lost-wake-up bugs of such protocols need two.
const PREEMPTIONS_MAX: usize = 3;

fn model(body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS_MAX);
    builder.check(body);
}

/// Reads as a shard does, turn by turn (a turn is one run of its event loop), until `count` mails have arrived.
fn read(inbox: &mut Inbox<(u8, u8)>, count: usize) -> Vec<(u8, u8)> {
    let mut all = Vec::new();
    loop {
        inbox.drain(&mut all);
        if all.len() == count {
            return all;
        }
        if inbox.announce_sleep() {
            inbox.block();
        }
        inbox.end_sleep();
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
fn one_sender_loses_no_wake_up_and_keeps_its_order() {
    model(|| {
        let (sender, mut inbox) = mailbox().unwrap();
        let posting = thread::spawn(move || post(&sender, 0, 3));
        assert_eq!(of(&read(&mut inbox, 3), 0), [0, 1, 2]);
        posting.join().unwrap();
    });
}

#[test]
fn two_senders_lose_no_wake_up_and_keep_their_order() {
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

/// Something else (a socket, a deadline) ends a turn while a sender is about to wake the reader. The wake-up comes late, maybe in the next
/// sleep.
#[test]
fn turn_ended_by_another_event_loses_no_wake_up() {
    model(|| {
        let (sender, mut inbox) = mailbox().unwrap();
        let posting = thread::spawn(move || post(&sender, 0, 2));
        let mut all = Vec::new();
        inbox.announce_sleep();
        inbox.end_sleep();
        inbox.drain(&mut all);
        let rest = 2 - all.len();
        all.append(&mut read(&mut inbox, rest));
        assert_eq!(of(&all, 0), [0, 1]);
        posting.join().unwrap();
    });
}
