//! The tools against the floor.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use clap::Parser;
use crore_bench::floor::Floor;
use crore_bench::publish::{self, PublishArgs};
use crore_bench::subscribe::Subscriber;

use crate::{subscribe, wait_for};

#[derive(Parser)]
struct Publish {
    #[command(flatten)]
    args: PublishArgs,
}

/// A floor on a thread of its own, ended when dropped.
struct Served {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
}

impl Served {
    fn start() -> Served {
        let stop = Arc::new(AtomicBool::new(false));
        let (seen, (tell, told)) = (stop.clone(), mpsc::channel());
        std::thread::spawn(move || {
            let mut floor = Floor::bind("127.0.0.1:0".parse().unwrap()).unwrap();
            tell.send(floor.address).unwrap();
            floor.serve(&seen).unwrap();
        });
        let address = told.recv().unwrap();
        Served { address, stop }
    }

    fn subscribe(&self, rest: &str) -> Subscriber {
        let subscriber = subscribe(&format!("--floor --server {} {rest}", self.address));
        wait_for(|| subscriber.is_settled());
        subscriber
    }

    fn publish(&self, rest: &str) {
        let line = format!("x --floor --quiet --server {} {rest}", self.address);
        publish::run(&Publish::parse_from(line.split(' ')).args).unwrap();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[test]
fn every_message_reaches_its_own_subscriber_once() {
    let served = Served::start();
    let subscriber = served
        .subscribe("--connections 200 --topics /p/s{1..200}/- --threads 3 --local 127.0.{1..2}.1");
    served.publish("--topics /p/s{1..200}/- --messages 5000 --saturate --size 100 --connections 3");
    wait_for(|| subscriber.tally().messages >= 5000);
    let tally = subscriber.tally();
    assert_eq!((tally.messages, tally.lost, tally.doubled), (5000, 0, 0));
    assert_eq!((tally.misdelivered, tally.unmeasured), (0, 0));
    assert_eq!(
        (tally.connections.opened, tally.connections.failed),
        (200, 0)
    );
    let summary = tally.latency.summary();
    assert_eq!(summary.count, 5000);
    assert!(0.0 < summary.min_ms && summary.p50_ms <= summary.p99_ms);
    assert!(summary.p99_ms <= summary.max_ms && summary.max_ms < 20_000.0);
    subscriber.stop();
}

#[test]
fn a_short_broadcast_is_counted_by_everybody() {
    let served = Served::start();
    let subscriber = served.subscribe("--connections 200 --topics news");
    served.publish("--topics news --broadcast --messages 3 --rate 1000 --size 5");
    wait_for(|| subscriber.tally().messages >= 600);
    let tally = subscriber.tally();
    assert_eq!(
        (
            tally.messages,
            tally.unmeasured,
            tally.latency.summary().count
        ),
        (600, 600, 0)
    );
    assert!(tally.first_arrival_ns <= tally.last_arrival_ns);
    subscriber.stop();
}

#[test]
fn messages_for_somebody_else_are_noticed() {
    let served = Served::start();
    // The subscriber of number 1 asks for topic 0 of its own pattern, but so does the publisher
    // for topic 1 of another: the floor knows only numbers.
    let subscriber = served.subscribe("--connections 1 --topics s{1..1}");
    served.publish("--topics s{0..1} --cycle --messages 2 --rate 1000 --size 64");
    wait_for(|| subscriber.tally().messages >= 1);
    assert_eq!(subscriber.tally().misdelivered, 1);
    subscriber.stop();
}

#[test]
fn a_second_publisher_begins_anew() {
    let served = Served::start();
    let subscriber = served.subscribe("--connections 10 --topics s{1..10}");
    for total in [200, 400] {
        served.publish("--topics s{1..10} --messages 200 --saturate --size 40");
        wait_for(|| subscriber.tally().messages >= total);
    }
    let tally = subscriber.tally();
    // Runs are told apart by sixteen random bits: once in 65,536 they look the same.
    assert!(
        tally.doubled == 0 || tally.doubled >= 190,
        "{}",
        tally.doubled
    );
    assert_eq!((tally.messages, tally.lost), (400, 0));
    subscriber.stop();
}
