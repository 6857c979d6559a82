//! Publishers that never retry: after a 503 they publish a newer value to the same topic at another node.
//!
//! A publish with the answer 503 ("outcome unknown") takes effect before that answer or never. So an older value must never stand behind a
//! newer one, and in the end each topic's value is the one that was answered last. One half of the topics keeps every message: their logs
//! are read at each node. The other half has retained messages only, which a new subscriber gets at each node.
//!
//! A connection that breaks tells a publisher nothing. Then it waits as long as a node would have waited with its 503.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use serde::Serialize;
use serde_json::Value;

use crate::client::link::{End, Link};
use crate::measure::payload::Random;
use crate::report;
use crate::scenario::chaos::Retention;

/// The number of topics. Each has one publisher.
const TOPICS: u32 = 16;
/// The mean pause after an answer.
const PAUSE: Duration = Duration::from_millis(100);
/// The pause before the other node is tried, after a 503 or if a node cannot be reached.
const AFTER_REFUSAL: Duration = Duration::from_millis(100);
/// A publish that a node took, and did not answer, takes effect within this time or never.
const BOUND: Duration = Duration::from_secs(10);
/// Timeout for an answer.
const ANSWER: Duration = Duration::from_secs(30);
/// Timeout for the answer to the last value of a topic.
const LAST_ANSWER: Duration = Duration::from_secs(120);

/// The values that one publisher has published: the value at index 0 is 1.
struct Published {
    topic: String,
    kept: bool,
    answered: Vec<bool>,
}

/// The results of all publishers.
#[derive(Debug, Default, Serialize)]
pub struct NewestValueResult {
    topics: u32,
    /// Values whose publish was acknowledged.
    answered: u64,
    /// Values whose publish was answered with 503, or not at all.
    given_up: u64,
    /// Given-up values that are in the log of a topic nevertheless, in their place. They are allowed.
    given_up_and_in_the_log: u64,
    /// Readings that disagree with the publisher: an older value behind a newer one, an acknowledged value that is missing, or another
    /// last value than the one answered last.
    wrong: Vec<String>,
}

impl NewestValueResult {
    /// Whether every topic has the value that was answered last, and no older value behind a newer one.
    pub fn is_clean(&self) -> bool {
        self.wrong.is_empty()
    }

    /// Prints the counts, and what is wrong.
    pub fn print(&self) {
        report::say(&format!(
            "{} topics whose publishers do not retry: {} values answered, {} given up; {} times a topic had another value than the one \
             answered last, or an older one behind a newer one",
            self.topics,
            self.answered,
            self.given_up,
            self.wrong.len()
        ));
        self.wrong.iter().for_each(|wrong| report::say(wrong));
    }
}

/// Publishes while `during` runs. Then checks each topic at each node.
pub fn run<T>(
    addresses: &[SocketAddr],
    seed: u64,
    during: impl FnOnce() -> Result<T>,
) -> Result<(T, NewestValueResult)> {
    let over = AtomicBool::new(false);
    let (returned, published) = std::thread::scope(|scope| {
        let over = &over;
        let publishers: Vec<_> = (0..TOPICS)
            .map(|number| scope.spawn(move || publish_until(over, addresses, seed, number)))
            .collect();
        let returned = during();
        over.store(true, Relaxed);
        let published = publishers
            .into_iter()
            .map(|publisher| {
                publisher
                    .join()
                    .map_err(|_| anyhow!("a publisher panicked"))?
            })
            .collect::<Result<Vec<_>>>();
        Ok::<_, anyhow::Error>((returned?, published?))
    })?;
    let mut result = NewestValueResult {
        topics: TOPICS,
        ..NewestValueResult::default()
    };
    for topic in &published {
        let answered = topic.answered.iter().filter(|answered| **answered).count();
        result.answered += answered as u64;
        result.given_up += (topic.answered.len() - answered) as u64;
        for (node, address) in addresses.iter().enumerate() {
            check(topic, *address, node, &mut result)
                .with_context(|| format!("the values of {} at node {node}", topic.topic))?;
        }
    }
    Ok((returned, result))
}

/// Publishes values to the topic with this number until `over`, and after that one more until it is answered.
fn publish_until(
    over: &AtomicBool,
    addresses: &[SocketAddr],
    seed: u64,
    number: u32,
) -> Result<Published> {
    let kept = number.is_multiple_of(2);
    let retention = if kept {
        Retention::Deep
    } else {
        Retention::Unkept
    };
    let topic = format!("{}/newest/{number}", retention.name());
    let mut random = Random::new(seed ^ 0x9a1e ^ u64::from(number) << 32);
    let mut node = random.below(addresses.len() as u32) as usize;
    let mut link = None;
    let mut answered: Vec<bool> = Vec::new();
    let mut ended: Option<Instant> = None;
    loop {
        let last = over.load(Relaxed);
        if last {
            let waited = ended.get_or_insert_with(Instant::now).elapsed();
            ensure!(
                waited < LAST_ANSWER,
                "the last value of {topic} was not answered"
            );
        }
        let mut open = match link.take() {
            Some(link) => link,
            None => match Link::open(addresses[node], ANSWER) {
                Ok(link) => link,
                Err(_) => {
                    node = (node + 1) % addresses.len();
                    std::thread::sleep(AFTER_REFUSAL);
                    continue;
                }
            },
        };
        let value = (answered.len() + 1).to_string();
        let request = format!(
            "POST /pub/{topic} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nCrore-Retain: true\r\nContent-Length: {}\r\n\r\n{value}",
            value.len()
        );
        match open.ask(request.as_bytes()) {
            Ok((200..=202, _)) => {
                answered.push(true);
                if last {
                    return Ok(Published {
                        topic,
                        kept,
                        answered,
                    });
                }
                // A publisher changes the node from time to time, so that both take values of each topic.
                if random.below(20) == 0 {
                    node = (node + 1) % addresses.len();
                } else {
                    link = Some(open);
                }
                std::thread::sleep(PAUSE.mul_f64(f64::from(random.below(200)) / 100.0));
            }
            Ok((429 | 503, _)) => {
                answered.push(false);
                node = (node + 1) % addresses.len();
                std::thread::sleep(AFTER_REFUSAL);
            }
            Ok((status, body)) => {
                let body = String::from_utf8_lossy(&body);
                return Err(anyhow!("publish to {topic}: {status} {body}"));
            }
            Err(End::Violation(why)) => return Err(anyhow!("publish to {topic}: {why}")),
            Err(End::Disconnected | End::NotListening) => {
                answered.push(false);
                node = (node + 1) % addresses.len();
                std::thread::sleep(BOUND);
            }
        }
    }
}

/// Compares a topic at a node with what was published.
fn check(
    published: &Published,
    address: SocketAddr,
    node: usize,
    result: &mut NewestValueResult,
) -> Result<()> {
    let Published {
        topic,
        kept,
        answered,
    } = published;
    let newest = answered.len();
    let mut link = Link::open(address, ANSWER)?;
    if !kept {
        let value = retained(&mut link, topic)?;
        if value != newest {
            result.wrong.push(format!(
                "{topic}: node {node} has the retained value {value}, and {newest} was answered last"
            ));
        }
        return Ok(());
    }
    let values = log(&mut link, topic)?;
    result.wrong.extend(
        faults(answered, &values)
            .into_iter()
            .map(|fault| format!("{topic} at node {node}: {fault}")),
    );
    if node == 0 {
        let answered = answered.iter().filter(|answered| **answered).count();
        result.given_up_and_in_the_log += values.len().saturating_sub(answered) as u64;
    }
    Ok(())
}

/// What is wrong with the values of a log. `answered` says of each value whether its publish was acknowledged.
fn faults(answered: &[bool], values: &[usize]) -> Vec<String> {
    let mut faults = Vec::new();
    for pair in values.windows(2) {
        if pair[1] <= pair[0] {
            faults.push(format!("{} stands behind {}", pair[1], pair[0]));
        }
    }
    for (number, _) in (1..).zip(answered).filter(|(_, answered)| **answered) {
        if !values.contains(&number) {
            faults.push(format!("{number} was acknowledged and is missing"));
        }
    }
    if values.last() != Some(&answered.len()) {
        let newest = answered.len();
        faults.push(format!(
            "the last value is {:?}, and {newest} was answered last",
            values.last()
        ));
    }
    faults
}

/// All values of a topic's log, from the oldest.
fn log(link: &mut Link, topic: &str) -> Result<Vec<usize>> {
    let mut values = Vec::new();
    let mut since = "oldest".to_string();
    loop {
        let page = get(link, &format!("/history/{topic}?since={since}"))?;
        let page: Vec<Value> = serde_json::from_slice(&page)?;
        let Some(last) = page.last() else {
            return Ok(values);
        };
        since = last["id"]
            .as_str()
            .context("a message without id")?
            .to_string();
        for message in &page {
            let data = message["data"].as_str().context("a message without data")?;
            values.push(data.parse()?);
        }
    }
}

/// The value of a topic's retained message, which a long-poll without a position gets first.
fn retained(link: &mut Link, topic: &str) -> Result<usize> {
    let body = get(link, &format!("/sub/{topic}"))?;
    Ok(std::str::from_utf8(&body)?.parse()?)
}

fn get(link: &mut Link, target: &str) -> Result<Vec<u8>> {
    let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let (status, body) = link.ask(request.as_bytes())?;
    ensure!(status == 200, "GET {target}: {status}");
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_value_behind_a_newer_one_and_a_missing_one_are_faults() {
        let answered = [true, false, true, true];
        assert_eq!(faults(&answered, &[1, 3, 4]), [""; 0]);
        assert_eq!(faults(&answered, &[1, 2, 3, 4]), [""; 0]);
        assert_eq!(faults(&answered, &[1, 3, 2, 4]), ["2 stands behind 3"]);
        assert_eq!(
            faults(&answered, &[1, 4]),
            ["3 was acknowledged and is missing"]
        );
        let last = faults(&answered, &[1, 3, 4, 2]);
        assert_eq!(last.len(), 2, "{last:?}");
    }
}
