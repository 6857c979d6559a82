//! Measures how long the machine itself holds threads up. A byte goes back and forth between two threads that have nothing else to do. A
//! wait for a processor or for the loopback delays this byte too.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time between two pings.
const INTERVAL: Duration = Duration::from_millis(20);
/// A shorter ping is no hold-up.
const HOLD_UP_MIN: Duration = Duration::from_millis(10);

#[derive(Default)]
struct HoldUps {
    must_end: AtomicBool,
    slow_pings: Mutex<Vec<(Instant, Duration)>>,
}

/// Two threads that ping each other until this is dropped.
pub struct Ping(Arc<HoldUps>);

impl Ping {
    pub fn start() -> Ping {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let mut client = TcpStream::connect(address).expect("a connection");
        let (mut server, _) = listener.accept().expect("a connection");
        for stream in [&client, &server] {
            stream.set_nodelay(true).expect("no delay");
        }
        std::thread::spawn(move || {
            let mut byte = [0];
            while server
                .read_exact(&mut byte)
                .and_then(|()| server.write_all(&byte))
                .is_ok()
            {}
        });
        let hold_ups = Arc::new(HoldUps::default());
        let shared = Arc::clone(&hold_ups);
        std::thread::spawn(move || {
            let mut byte = [0];
            // Time that a thread wakes too late counts as a hold-up too.
            let mut began = Instant::now();
            while !shared.must_end.load(Ordering::Relaxed) {
                let result = client
                    .write_all(&byte)
                    .and_then(|()| client.read_exact(&mut byte));
                let took = began.elapsed();
                if result.is_err() {
                    return;
                }
                if took > HOLD_UP_MIN {
                    shared
                        .slow_pings
                        .lock()
                        .expect("the pings")
                        .push((began, took));
                }
                began = Instant::now() + INTERVAL;
                std::thread::sleep(INTERVAL);
            }
        });
        Ping(hold_ups)
    }

    /// How long, within this time, pings were held up.
    pub fn hold_up_within(&self, from: Instant, took: Duration) -> Duration {
        let until = from + took;
        let slow_pings = self.0.slow_pings.lock().expect("the pings");
        let overlaps = slow_pings.iter().map(|(began, took)| {
            let (first, last) = (from.max(*began), until.min(*began + *took));
            last.saturating_duration_since(first)
        });
        overlaps.sum()
    }
}

impl Drop for Ping {
    fn drop(&mut self) {
        self.0.must_end.store(true, Ordering::Relaxed);
    }
}
