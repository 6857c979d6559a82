//! Publishers that never retry: after a 503 they publish a newer value to the same topic at another node.
//!
//! A publish that is answered with 503 ("outcome unknown") takes effect before that answer or never. So an older value must never stand behind a newer one,
//! and each topic's last value must be the one that was answered last. Half of the topics keep every message, and each node's logs are read. The other
//! topics only have a retained message, which a new subscriber gets at each node.
//!
//! If a connection breaks, the publisher does not know the outcome. It then waits for the time after which a node would have answered 503.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use serde::Serialize;
use serde_json::Value;

use crate::client::link::{Link, LinkError};
use crate::measure::payload::Random;
use crate::report;
use crate::scenario::chaos::Retention;

/// The number of topics. Each has one publisher.
const TOPICS: u32 = 16;
/// The mean pause after an answer.
const PAUSE_MEAN: Duration = Duration::from_millis(100);
/// The pause before the other node is tried, after a 503 or if a node cannot be reached.
const REFUSAL_PAUSE: Duration = Duration::from_millis(100);
/// A publish that got no answer takes effect within this time or never.
const OUTCOME_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for the answer to the last value of a topic.
const LAST_ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// The values that one publisher has published.
struct PublishedValues {
    topic: String,
    /// Whether the topic's log keeps every message.
    keeps_all: bool,
    /// For each value from 1 on, whether its publish was acknowledged.
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
    /// Given-up values that are in the log of a topic nevertheless. That is allowed.
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

/// Publishes while `run_meanwhile` runs. Then checks each topic at each node.
pub fn run<T>(
    addresses: &[SocketAddr],
    seed: u64,
    run_meanwhile: impl FnOnce() -> Result<T>,
) -> Result<(T, NewestValueResult)> {
    let must_end = AtomicBool::new(false);
    let (result_meanwhile, published_values) = std::thread::scope(|scope| {
        let must_end = &must_end;
        let publishers: Vec<_> = (0..TOPICS)
            .map(|index| scope.spawn(move || publish_until(must_end, addresses, seed, index)))
            .collect();
        let result_meanwhile = run_meanwhile();
        must_end.store(true, Relaxed);
        let published_values = publishers
            .into_iter()
            .map(|publisher| {
                publisher
                    .join()
                    .map_err(|_| anyhow!("a publisher panicked"))?
            })
            .collect::<Result<Vec<_>>>();
        Ok::<_, anyhow::Error>((result_meanwhile?, published_values?))
    })?;
    let mut result = NewestValueResult {
        topics: TOPICS,
        ..NewestValueResult::default()
    };
    for topic in &published_values {
        let answered = topic.answered.iter().filter(|answered| **answered).count();
        result.answered += answered as u64;
        result.given_up += (topic.answered.len() - answered) as u64;
        for (node, address) in addresses.iter().enumerate() {
            check_topic(topic, *address, node, &mut result)
                .with_context(|| format!("the values of {} at node {node}", topic.topic))?;
        }
    }
    Ok((result_meanwhile, result))
}

/// Publishes values to the topic with this index until `must_end`, and then newer values until one is acknowledged.
fn publish_until(
    must_end: &AtomicBool,
    addresses: &[SocketAddr],
    seed: u64,
    index: u32,
) -> Result<PublishedValues> {
    let keeps_all = index.is_multiple_of(2);
    let retention = if keeps_all {
        Retention::Deep
    } else {
        Retention::Unkept
    };
    let topic = format!("{}/newest/{index}", retention.name());
    let mut random = Random::new(seed ^ 0x9a1e ^ u64::from(index) << 32);
    let mut node = random.below(addresses.len() as u32) as usize;
    let mut link = None;
    let mut answered: Vec<bool> = Vec::new();
    let mut end: Option<Instant> = None;
    loop {
        let is_last = must_end.load(Relaxed);
        if is_last {
            let waited = end.get_or_insert_with(Instant::now).elapsed();
            ensure!(
                waited < LAST_ANSWER_TIMEOUT,
                "the last value of {topic} was not answered"
            );
        }
        let mut connection = match link.take() {
            Some(link) => link,
            None => match Link::open(addresses[node], ANSWER_TIMEOUT) {
                Ok(link) => link,
                Err(_) => {
                    node = (node + 1) % addresses.len();
                    std::thread::sleep(REFUSAL_PAUSE);
                    continue;
                }
            },
        };
        let value = (answered.len() + 1).to_string();
        let request = format!(
            "POST /pub/{topic} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nCrore-Retain: true\r\nContent-Length: {}\r\n\r\n{value}",
            value.len()
        );
        match connection.request(request.as_bytes()) {
            Ok((200..=202, _)) => {
                answered.push(true);
                if is_last {
                    return Ok(PublishedValues {
                        topic,
                        keeps_all,
                        answered,
                    });
                }
                // A publisher sometimes changes the node, so that both nodes accept values of each topic.
                if random.below(20) == 0 {
                    node = (node + 1) % addresses.len();
                } else {
                    link = Some(connection);
                }
                std::thread::sleep(PAUSE_MEAN.mul_f64(f64::from(random.below(200)) / 100.0));
            }
            Ok((429 | 503, _)) => {
                answered.push(false);
                node = (node + 1) % addresses.len();
                std::thread::sleep(REFUSAL_PAUSE);
            }
            Ok((status, body)) => {
                let body = String::from_utf8_lossy(&body);
                return Err(anyhow!("publish to {topic}: {status} {body}"));
            }
            Err(LinkError::Violation(reason)) => {
                return Err(anyhow!("publish to {topic}: {reason}"));
            }
            Err(LinkError::Refused(_) | LinkError::Disconnected | LinkError::NotListening) => {
                answered.push(false);
                node = (node + 1) % addresses.len();
                std::thread::sleep(OUTCOME_TIMEOUT);
            }
        }
    }
}

/// Compares a topic at a node with what was published.
fn check_topic(
    published_values: &PublishedValues,
    address: SocketAddr,
    node: usize,
    result: &mut NewestValueResult,
) -> Result<()> {
    let PublishedValues {
        topic,
        keeps_all,
        answered,
    } = published_values;
    let newest_value = answered.len();
    let mut link = Link::open(address, ANSWER_TIMEOUT)?;
    if !keeps_all {
        let value = read_retained_value(&mut link, topic)?;
        if value != newest_value {
            result.wrong.push(format!(
                "{topic}: node {node} has the retained value {value}, and {newest_value} was answered last"
            ));
        }
        return Ok(());
    }
    let values = read_log(&mut link, topic)?;
    result.wrong.extend(
        find_faults(answered, &values)
            .into_iter()
            .map(|fault| format!("{topic} at node {node}: {fault}")),
    );
    if node == 0 {
        let answered = answered.iter().filter(|answered| **answered).count();
        result.given_up_and_in_the_log += values.len().saturating_sub(answered) as u64;
    }
    Ok(())
}

/// The faults of the values in a log. `answered` tells for each value whether its publish was acknowledged.
fn find_faults(answered: &[bool], values: &[usize]) -> Vec<String> {
    let mut faults = Vec::new();
    for pair in values.windows(2) {
        if pair[1] <= pair[0] {
            faults.push(format!("{} stands behind {}", pair[1], pair[0]));
        }
    }
    for (value, _) in (1..).zip(answered).filter(|(_, answered)| **answered) {
        if !values.contains(&value) {
            faults.push(format!("{value} was acknowledged and is missing"));
        }
    }
    if values.last() != Some(&answered.len()) {
        let newest_value = answered.len();
        faults.push(format!(
            "the last value is {:?}, and {newest_value} was answered last",
            values.last()
        ));
    }
    faults
}

/// All values of a topic's log, from the oldest.
fn read_log(link: &mut Link, topic: &str) -> Result<Vec<usize>> {
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
fn read_retained_value(link: &mut Link, topic: &str) -> Result<usize> {
    let body = get(link, &format!("/sub/{topic}"))?;
    Ok(std::str::from_utf8(&body)?.parse()?)
}

fn get(link: &mut Link, target: &str) -> Result<Vec<u8>> {
    let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let (status, body) = link.request(request.as_bytes())?;
    ensure!(status == 200, "GET {target}: {status}");
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_value_behind_a_newer_one_and_missing_value_are_faults() {
        let answered = [true, false, true, true];
        assert_eq!(find_faults(&answered, &[1, 3, 4]), [""; 0]);
        assert_eq!(find_faults(&answered, &[1, 2, 3, 4]), [""; 0]);
        assert_eq!(find_faults(&answered, &[1, 3, 2, 4]), ["2 stands behind 3"]);
        assert_eq!(
            find_faults(&answered, &[1, 4]),
            ["3 was acknowledged and is missing"]
        );
        let found = find_faults(&answered, &[1, 3, 4, 2]);
        assert_eq!(found.len(), 2, "{found:?}");
    }
}
