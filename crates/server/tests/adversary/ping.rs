//! Measures how long the machine itself holds threads up. A byte goes back and forth between two threads that have nothing else to do. A
//! wait for a processor or for the loopback delays this byte too.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time between two pings.
const PACE: Duration = Duration::from_millis(20);
/// A shorter ping is no hold-up.
const NOTED: Duration = Duration::from_millis(10);

#[derive(Default)]
struct Seen {
    over: AtomicBool,
    slow: Mutex<Vec<(Instant, Duration)>>,
}

/// Two threads that ping each other until this is dropped.
pub struct Ping(Arc<Seen>);

impl Ping {
    pub fn start() -> Ping {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let mut near = TcpStream::connect(address).expect("a connection");
        let (mut far, _) = listener.accept().expect("a connection");
        for stream in [&near, &far] {
            stream.set_nodelay(true).expect("no delay");
        }
        std::thread::spawn(move || {
            let mut byte = [0];
            while far
                .read_exact(&mut byte)
                .and_then(|()| far.write_all(&byte))
                .is_ok()
            {}
        });
        let seen = Arc::new(Seen::default());
        let ours = Arc::clone(&seen);
        std::thread::spawn(move || {
            let mut byte = [0];
            // Time that a thread wakes too late counts as a hold-up too.
            let mut began = Instant::now();
            while !ours.over.load(Ordering::Relaxed) {
                let back = near
                    .write_all(&byte)
                    .and_then(|()| near.read_exact(&mut byte));
                let took = began.elapsed();
                if back.is_err() {
                    return;
                }
                if took > NOTED {
                    ours.slow.lock().expect("the pings").push((began, took));
                }
                began = Instant::now() + PACE;
                std::thread::sleep(PACE);
            }
        });
        Ping(seen)
    }

    /// How long, within this time, pings were held up.
    pub fn explains(&self, from: Instant, took: Duration) -> Duration {
        let until = from + took;
        let slow = self.0.slow.lock().expect("the pings");
        let shares = slow.iter().map(|(began, took)| {
            let (first, last) = (from.max(*began), until.min(*began + *took));
            last.saturating_duration_since(first)
        });
        shares.sum()
    }
}

impl Drop for Ping {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}
