//! The results of honest clients: faults, late messages and answers, and the number of the last message of each topic.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The maximum of faults that are kept. More say nothing new.
const FAULTS_MAX: usize = 20;
/// Waits that are longer are noted, and judged later together with the hold-ups of the machine in that time.
const LATE_MIN: Duration = Duration::from_millis(50);

/// A message or an answer that took long.
#[derive(Clone)]
pub struct Late {
    pub description: String,
    pub start: Instant,
    pub duration: Duration,
}

/// The results of a round, which all its clients share.
pub struct Tally {
    began: Instant,
    faults: Mutex<Vec<String>>,
    late: Mutex<Vec<Late>>,
    waits: Mutex<Vec<(Instant, Duration)>>,
    last_numbers: Mutex<BTreeMap<String, u64>>,
    /// Tells the publishers to stop.
    pub must_stop_publishing: AtomicBool,
    /// Tells the readers to read what is still due, and then to end.
    pub must_finish: AtomicBool,
    pub ready_readers: AtomicU64,
    pub published: AtomicU64,
    pub received: AtomicU64,
    /// The longest wait, in milliseconds.
    pub longest_wait_ms: AtomicU64,
}

impl Tally {
    pub fn new() -> Tally {
        Tally {
            began: Instant::now(),
            faults: Mutex::default(),
            late: Mutex::default(),
            waits: Mutex::default(),
            last_numbers: Mutex::default(),
            must_stop_publishing: AtomicBool::new(false),
            must_finish: AtomicBool::new(false),
            ready_readers: AtomicU64::new(0),
            published: AtomicU64::new(0),
            received: AtomicU64::new(0),
            longest_wait_ms: AtomicU64::new(0),
        }
    }

    pub fn record_fault(&self, description: String) {
        let mut faults = self.faults.lock().expect("the faults");
        if faults.len() < FAULTS_MAX {
            faults.push(format!(
                "at {:.1} s: {description}",
                self.began.elapsed().as_secs_f64()
            ));
        }
    }

    pub fn faults(&self) -> Vec<String> {
        self.faults.lock().expect("the faults").clone()
    }

    /// Start and duration of the wait for each message and each answer, in no order.
    pub fn waits(&self) -> Vec<(Instant, Duration)> {
        self.waits.lock().expect("the waits").clone()
    }

    pub fn late(&self) -> Vec<Late> {
        self.late.lock().expect("what was late").clone()
    }

    /// Records a wait from `start` to now.
    pub fn record_wait(&self, description: impl FnOnce() -> String, start: Instant) {
        let duration = start.elapsed();
        let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        self.longest_wait_ms.fetch_max(ms, Ordering::Relaxed);
        self.waits
            .lock()
            .expect("the waits")
            .push((start, duration));
        if duration > LATE_MIN {
            let description = description();
            let late = Late {
                description,
                start,
                duration,
            };
            self.late.lock().expect("what was late").push(late);
        }
    }

    /// The text of a message: topic, number, the time at which its last byte is sent, and padding.
    pub fn message(&self, topic: &str, number: u64, sent: Instant, padding: usize) -> String {
        let sent_us = sent.saturating_duration_since(self.began).as_micros();
        format!("{topic} {number} {sent_us} {}", "p".repeat(padding))
    }

    /// Sets the number of the last message published to a topic.
    pub fn set_last_number(&self, topic: &str, last: u64) {
        self.last_numbers
            .lock()
            .expect("the ends")
            .insert(topic.to_string(), last);
    }

    /// The first topic whose last message is not known, or was not seen. `None` if all messages were seen.
    fn missing(&self, last_seen: &BTreeMap<String, u64>) -> Option<String> {
        let last_numbers = self.last_numbers.lock().expect("the ends");
        let mut missing =
            last_seen
                .iter()
                .filter_map(|(topic, last_seen)| match last_numbers.get(topic) {
                    Some(last) if last == last_seen => None,
                    Some(last) => Some(format!("{topic}: {last_seen} of {last}")),
                    None => Some(format!("{topic}: nobody said where it ends")),
                });
        missing.next()
    }
}

/// The messages that one reader has seen of its topics.
pub struct SequenceCheck<'a> {
    tally: &'a Tally,
    pub name: &'static str,
    last_seen: BTreeMap<String, u64>,
}

impl<'a> SequenceCheck<'a> {
    pub fn new(tally: &'a Tally, name: &'static str, topics: &[&str]) -> SequenceCheck<'a> {
        let last_seen = topics.iter().map(|topic| (topic.to_string(), 0)).collect();
        SequenceCheck {
            tally,
            name,
            last_seen,
        }
    }

    /// Checks a received message.
    pub fn receive(&mut self, payload: &[u8]) {
        if let Err(fault) = self.check(payload) {
            self.tally.record_fault(format!("{}: {fault}", self.name));
        }
    }

    fn check(&mut self, payload: &[u8]) -> Result<(), String> {
        let text = std::str::from_utf8(payload).map_err(|_| "a message is not UTF-8")?;
        let mut words = text.splitn(4, ' ');
        let mut word = || words.next().ok_or(format!("a foreign message: {text:.80}"));
        let topic = word()?;
        let number: u64 = word()?.parse().map_err(|_| "no number".to_string())?;
        let sent_us: u64 = word()?.parse().map_err(|_| "no time".to_string())?;
        let last_seen = self.last_seen.get_mut(topic).ok_or(format!(
            "a message of {topic:.80}, which it did not ask for"
        ))?;
        let expected = *last_seen + 1;
        // Errors of later messages are counted from here on, so that one loss is reported once.
        *last_seen = number.max(*last_seen);
        match number {
            number if number == expected => {}
            number if number > expected => {
                return Err(format!("{topic}: {expected} to {} are lost", number - 1));
            }
            number => {
                return Err(format!(
                    "{topic}: {number} came again, or late: {expected} was due"
                ));
            }
        }
        self.tally.received.fetch_add(1, Ordering::Relaxed);
        let sent = self.tally.began + Duration::from_micros(sent_us);
        self.tally
            .record_wait(|| format!("{}: {topic} {number}", self.name), sent);
        Ok(())
    }

    /// Whether the reader has all messages. It knows that only when nothing more is published.
    pub fn is_done(&self) -> bool {
        self.tally.must_finish.load(Ordering::Relaxed)
            && self.tally.missing(&self.last_seen).is_none()
    }

    pub fn missing(&self) -> Option<String> {
        self.tally.missing(&self.last_seen)
    }
}
