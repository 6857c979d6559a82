//! The tools as threads of the tests, over loopback with ports of the kernel's choice.

mod floor;
mod split;
mod swarm;

use std::time::{Duration, Instant};

use clap::Parser;
use crore_bench::subscribe::{SubscribeArgs, Subscriber};

#[derive(Parser)]
struct Subscribe {
    #[command(flatten)]
    args: SubscribeArgs,
}

/// A subscriber with these flags.
fn subscribe(flags: &str) -> Subscriber {
    let line = format!("x {flags}");
    Subscriber::start(&Subscribe::parse_from(line.split(' ')).args).unwrap()
}

fn wait_for(done: impl Fn() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "it takes too long"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}
