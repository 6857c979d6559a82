//! Tests the mailbox (messages between threads) over its real eventfd, threads and driver.

use std::thread;

use crore_net::kernel::driver::Driver;
use crore_net::kernel::fd_table;
use crore_net::transport::Event;
use crore_net::{Inbox, mailbox};

/// Reads until `count` mails (messages) have arrived, and sleeps whenever it can.
fn read(mut inbox: Inbox<(usize, usize)>, count: usize) -> Vec<(usize, usize)> {
    let mut driver = Driver::new(8).unwrap();
    driver.add_wake(inbox.fd()).unwrap();
    let mut all = Vec::new();
    while all.len() < count {
        let timeout_ms = if inbox.announce_sleep() {
            Some(10_000)
        } else {
            Some(0)
        };
        let ready = driver.wait(timeout_ms).unwrap();
        assert!(
            ready > 0 || timeout_ms == Some(0),
            "a wake was lost: {} of {count} came",
            all.len()
        );
        inbox.end_sleep();
        inbox.drain(&mut all);
    }
    all
}

#[test]
fn under_load_nothing_is_lost_and_each_sender_keeps_its_order() {
    const SENDERS: usize = 4;
    const EACH: usize = 20_000;
    let (sender, inbox) = mailbox().unwrap();
    let eventfd = inbox.fd();
    let posting: Vec<_> = (0..SENDERS)
        .map(|who| {
            let sender = sender.clone();
            thread::spawn(move || {
                fd_table::unshare(&[eventfd]).unwrap();
                for serial in 0..EACH {
                    sender.post((who, serial));
                    if serial % 100 == who {
                        thread::yield_now();
                    }
                }
            })
        })
        .collect();
    let reading = thread::spawn(move || {
        fd_table::unshare(&[eventfd]).unwrap();
        read(inbox, SENDERS * EACH)
    });
    let all = reading.join().unwrap();
    for thread in posting {
        thread.join().unwrap();
    }
    for who in 0..SENDERS {
        assert!(
            all.iter()
                .filter(|mail| mail.0 == who)
                .map(|mail| mail.1)
                .eq(0..EACH)
        );
    }
}

/// Two threads answer each other and sleep before every mail, so each mail needs a wake-up.
#[test]
fn ping_and_pong_wake_each_other() {
    const ROUNDS: usize = 5_000;
    let (to_a, a) = mailbox().unwrap();
    let (to_b, b) = mailbox().unwrap();
    let pong = thread::spawn(move || rally(b, &to_a, ROUNDS));
    to_b.post(0);
    rally(a, &to_b, ROUNDS);
    pong.join().unwrap();
}

fn rally(mut inbox: Inbox<usize>, other: &crore_net::Sender<usize>, rounds: usize) {
    let mut driver = Driver::new(8).unwrap();
    driver.add_wake(inbox.fd()).unwrap();
    let mut mail = Vec::new();
    loop {
        if inbox.announce_sleep() {
            assert!(driver.wait(Some(10_000)).unwrap() > 0, "a wake was lost");
        }
        inbox.end_sleep();
        inbox.drain(&mut mail);
        for round in mail.drain(..) {
            other.post(round + 1);
            if round + 2 > rounds {
                return;
            }
        }
    }
}

#[test]
fn only_a_sleeping_reader_is_woken_and_only_once() {
    let (sender, mut inbox) = mailbox().unwrap();
    let mut driver = Driver::new(8).unwrap();
    driver.add_wake(inbox.fd()).unwrap();
    let mut mail = Vec::new();

    sender.post(1);
    assert_eq!(
        driver.wait(Some(0)).unwrap(),
        0,
        "a busy reader costs no system call"
    );
    assert!(!inbox.announce_sleep(), "mail is there: it must not block");
    inbox.end_sleep();
    inbox.drain(&mut mail);

    assert!(inbox.announce_sleep());
    assert_eq!(driver.wait(Some(0)).unwrap(), 0);
    sender.post(2);
    sender.post(3);
    assert_eq!(driver.wait(Some(0)).unwrap(), 1);
    assert_eq!(driver.event(0), Event::Woken);
    inbox.end_sleep();
    assert_eq!(driver.wait(Some(0)).unwrap(), 0, "a ring is one event");
    inbox.drain(&mut mail);
    assert_eq!(mail, [1, 2, 3]);

    assert!(inbox.announce_sleep());
    inbox.end_sleep();
    sender.post(4);
    assert_eq!(
        driver.wait(Some(0)).unwrap(),
        0,
        "the announcement was taken back"
    );
}

#[test]
fn batch_keeps_its_order_and_its_memory_is_reused() {
    let (sender, mut inbox) = mailbox().unwrap();
    let mut batch = vec![1, 2, 3];
    let capacity = batch.capacity();
    sender.post(0);
    sender.post_all(&mut batch);
    sender.post(4);
    assert_eq!((batch.len(), batch.capacity()), (0, capacity));
    let mut mail = Vec::new();
    inbox.drain(&mut mail);
    assert_eq!(mail, [0, 1, 2, 3, 4]);
}
