//! The results of honest clients: faults, late messages and answers, and the number of the last message of each topic.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The maximum of faults that are kept. More say nothing new.
const FAULTS_MAX: usize = 20;
/// Waits that are longer are noted, and judged later together with the hold-ups of the machine in that time.
const NOTED: Duration = Duration::from_millis(50);

/// A message or an answer that took long.
#[derive(Clone)]
pub struct Late {
    pub what: String,
    pub from: Instant,
    pub took: Duration,
}

/// The results of a round, which all its clients share.
pub struct Tally {
    began: Instant,
    faults: Mutex<Vec<String>>,
    late: Mutex<Vec<Late>>,
    waits: Mutex<Vec<(Instant, Duration)>>,
    ends: Mutex<BTreeMap<String, u64>>,
    /// Tells the publishers to stop.
    pub quiet: AtomicBool,
    /// Tells the readers to read what is still due, and then to end.
    pub finish: AtomicBool,
    pub ready: AtomicU64,
    pub published: AtomicU64,
    pub taken: AtomicU64,
    /// The longest wait, in milliseconds.
    pub worst_ms: AtomicU64,
}

impl Tally {
    pub fn new() -> Tally {
        Tally {
            began: Instant::now(),
            faults: Mutex::default(),
            late: Mutex::default(),
            waits: Mutex::default(),
            ends: Mutex::default(),
            quiet: AtomicBool::new(false),
            finish: AtomicBool::new(false),
            ready: AtomicU64::new(0),
            published: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            worst_ms: AtomicU64::new(0),
        }
    }

    pub fn fault(&self, description: String) {
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

    /// Records a wait from `from` to now.
    pub fn took(&self, description: impl FnOnce() -> String, from: Instant) {
        let took = from.elapsed();
        let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        self.worst_ms.fetch_max(ms, Ordering::Relaxed);
        self.waits.lock().expect("the waits").push((from, took));
        if took > NOTED {
            let description = description();
            let late = Late {
                what: description,
                from,
                took,
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
    pub fn ended(&self, topic: &str, last: u64) {
        self.ends
            .lock()
            .expect("the ends")
            .insert(topic.to_string(), last);
    }

    /// The first topic whose last message is not known, or was not seen. `None` if all messages were seen.
    fn missing(&self, seen: &BTreeMap<String, u64>) -> Option<String> {
        let ends = self.ends.lock().expect("the ends");
        let mut missing = seen
            .iter()
            .filter_map(|(topic, seen)| match ends.get(topic) {
                Some(last) if last == seen => None,
                Some(last) => Some(format!("{topic}: {seen} of {last}")),
                None => Some(format!("{topic}: nobody said where it ends")),
            });
        missing.next()
    }
}

/// The messages that one reader has seen of its topics.
pub struct Follower<'a> {
    tally: &'a Tally,
    pub name: &'static str,
    seen: BTreeMap<String, u64>,
}

impl<'a> Follower<'a> {
    pub fn new(tally: &'a Tally, name: &'static str, topics: &[&str]) -> Follower<'a> {
        let seen = topics.iter().map(|topic| (topic.to_string(), 0)).collect();
        Follower { tally, name, seen }
    }

    /// Checks a received message.
    pub fn take(&mut self, payload: &[u8]) {
        if let Err(fault) = self.check(payload) {
            self.tally.fault(format!("{}: {fault}", self.name));
        }
    }

    fn check(&mut self, payload: &[u8]) -> Result<(), String> {
        let text = std::str::from_utf8(payload).map_err(|_| "a message is not UTF-8")?;
        let mut words = text.splitn(4, ' ');
        let mut word = || words.next().ok_or(format!("a foreign message: {text:.80}"));
        let topic = word()?;
        let number: u64 = word()?.parse().map_err(|_| "no number".to_string())?;
        let sent_us: u64 = word()?.parse().map_err(|_| "no time".to_string())?;
        let seen = self.seen.get_mut(topic).ok_or(format!(
            "a message of {topic:.80}, which it did not ask for"
        ))?;
        let due = *seen + 1;
        // Errors of later messages are counted from here on, so that one loss is reported once.
        *seen = number.max(*seen);
        match number {
            number if number == due => {}
            number if number > due => {
                return Err(format!("{topic}: {due} to {} are lost", number - 1));
            }
            number => {
                return Err(format!(
                    "{topic}: {number} came again, or late: {due} was due"
                ));
            }
        }
        self.tally.taken.fetch_add(1, Ordering::Relaxed);
        let sent = self.tally.began + Duration::from_micros(sent_us);
        self.tally
            .took(|| format!("{}: {topic} {number}", self.name), sent);
        Ok(())
    }

    /// Whether the reader has all messages. It knows that only when nothing more is published.
    pub fn is_done(&self) -> bool {
        self.tally.finish.load(Ordering::Relaxed) && self.tally.missing(&self.seen).is_none()
    }

    pub fn missing(&self) -> Option<String> {
        self.tally.missing(&self.seen)
    }
}
