//! An honest client that connects anew again and again. Each time it needs a little of each resource that all clients share: a new topic,
//! a place among the followers of interest (clients that are told which topics have subscribers), a filter, and an answer.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Server;
use super::readers::Socket;
use super::stream::{Stream, read_answer};
use crate::tally::Tally;

/// Time between two visits.
const INTERVAL: Duration = Duration::from_millis(150);

/// Visits again and again.
pub fn connect_repeatedly(server: &Server, tally: &Tally) -> Result<(), String> {
    let mut number = 0;
    while !tally.must_stop_publishing.load(Ordering::Relaxed) {
        number += 1;
        let topic = format!("own/new/{number}");
        assert_status(server, tally, "GET", "none", 404)?;
        assert_status(server, tally, "PUT", &topic, 201)?;
        assert_status(server, tally, "DELETE", &topic, 200)?;
        for target in [
            "/interest?match=own/none",
            &format!("/sub?filter=own/none/%2B/{number}"),
        ] {
            let began = Instant::now();
            Socket::open(server, target, "").map_err(|fault| format!("{target}: {fault}"))?;
            tally.record_wait(|| format!("the upgrade of {target}"), began);
        }
        std::thread::sleep(INTERVAL);
    }
    Ok(())
}

fn assert_status(
    server: &Server,
    tally: &Tally,
    method: &str,
    topic: &str,
    status: u16,
) -> Result<(), String> {
    let mut stream = Stream::plain(server)?;
    let began = Instant::now();
    let request = format!("{method} /pub/{topic} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.send(request.as_bytes())?;
    let answer = read_answer(&mut stream)?;
    tally.record_wait(|| format!("the answer to {method} {topic}"), began);
    match answer.status == status {
        true => Ok(()),
        false => Err(format!("{method} {topic}: {}", answer.describe())),
    }
}
