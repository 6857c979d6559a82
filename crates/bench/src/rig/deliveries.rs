//! Measures the server's processor time of a delivery for several variants, such as two servers or two protocols, with different numbers of
//! messages in flight.
//!
//! Each variant has its own server. In each round the variants take turns, so that only one server has load. A message is in flight until
//! all its receivers have it. A message begins with its number and its topic, so that each delivery can be checked: a receiver must get the
//! messages of its topic once and in order.

use std::time::Instant;

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::args::RunArgs;
use super::server::Server;
use crate::measure::stats::median;
use crate::report;

/// Messages in flight.
const IN_FLIGHT: [usize; 3] = [1, 16, 256];
/// Messages of a fan-out window. Each is delivered to all receivers.
const FAN_OUT_MESSAGES: usize = 2_000;
/// Messages of a unicast window. Each is delivered to one receiver.
const UNICAST_MESSAGES: usize = 100_000;
/// With one message in flight each takes a round trip, so a window has fewer messages by this factor.
const FEWER: usize = 4;
/// Default bytes of a message.
pub const MESSAGE_BYTES: usize = 512;

/// A subscriber of one topic.
pub struct Receiver {
    topic: String,
    /// The smallest number that the next message may have.
    next_number: usize,
}

impl Receiver {
    /// A subscriber of this topic.
    pub fn new(topic: String) -> Receiver {
        Receiver {
            topic,
            next_number: 0,
        }
    }
}

/// Checks and counts the deliveries of a window.
pub struct Window {
    first_number: usize,
    /// Number of deliveries of each message.
    deliveries: Vec<usize>,
    receivers: usize,
    /// Number of messages that all their receivers have.
    pub completed: usize,
    /// Deliveries of the wrong topic, again or out of order.
    pub faults: usize,
}

impl Window {
    /// A window of `messages` messages from this number on, each for `receivers` receivers.
    pub fn new(first_number: usize, messages: usize, receivers: usize) -> Window {
        Window {
            first_number,
            deliveries: vec![0; messages],
            receivers,
            completed: 0,
            faults: 0,
        }
    }

    /// Records a delivery: the number and the topic that the message contains, or `None` if it contains none.
    pub fn record(&mut self, receiver: &mut Receiver, message: Option<(usize, &str)>) {
        let expected = message.filter(|(number, topic)| {
            *topic == receiver.topic
                && *number >= receiver.next_number
                && *number >= self.first_number
                && *number - self.first_number < self.deliveries.len()
        });
        let Some((number, _)) = expected else {
            self.faults += 1;
            return;
        };
        receiver.next_number = number + 1;
        let count = &mut self.deliveries[number - self.first_number];
        *count += 1;
        self.completed += usize::from(*count == self.receivers);
    }
}

/// The messages that a window publishes.
pub struct Load {
    /// Number of messages.
    pub messages: usize,
    /// Number of receivers of each message.
    pub receivers: usize,
    /// Messages in flight, at most.
    pub in_flight: usize,
    /// Bytes of a message.
    pub size: usize,
    /// All messages have the same topic.
    is_fan_out: bool,
    /// Number of topics.
    topics: u32,
}

impl Load {
    /// The topic of a message of the window.
    pub fn topic_of(&self, message: usize) -> String {
        topic_name(self.is_fan_out, message as u32 % self.topics)
    }
}

/// The topic of a receiver.
pub fn topic_name(is_fan_out: bool, receiver: u32) -> String {
    format!("t{}", if is_fan_out { 0 } else { receiver })
}

/// A publisher and receivers.
pub trait DeliveryClients {
    /// Publishes the messages, and waits until all have arrived. Returns the number of wrong deliveries.
    fn publish(&mut self, load: &Load) -> Result<usize>;
}

/// A server with its clients.
pub struct Variant {
    name: String,
    server: Server,
    clients: Box<dyn DeliveryClients>,
    /// The windows, by number of messages in flight.
    windows: Vec<Vec<Value>>,
}

impl Variant {
    /// A variant whose clients are connected.
    pub fn new(name: String, server: Server, clients: impl DeliveryClients + 'static) -> Variant {
        Variant {
            name,
            server,
            clients: Box::new(clients),
            windows: vec![Vec::new(); IN_FLIGHT.len()],
        }
    }

    fn run_window(&mut self, load: &Load) -> Result<Value> {
        let (start, before) = (Instant::now(), self.server.cpu_s()?);
        let faults = self.clients.publish(load)?;
        let elapsed_s = start.elapsed().as_secs_f64();
        let cpu_s = self.server.cpu_s()? - before;
        let deliveries = (load.messages * load.receivers) as f64;
        Ok(json!({
            "clean": faults == 0,
            "faults": faults,
            "messages": load.messages,
            "took_s": elapsed_s,
            "deliveries_per_s": deliveries / elapsed_s,
            "server_cpu_us": cpu_s * 1e6 / deliveries,
        }))
    }

    /// The median of a field of the windows with this number of messages in flight.
    fn median_of(&self, index: usize, field: &str) -> f64 {
        let windows = self.windows[index].iter();
        let values: Vec<f64> = windows
            .filter_map(|window| window[field].as_f64())
            .collect();
        median(&values)
    }
}

/// Measures all variants: with messages that all receivers get (`is_fan_out`), or messages that one receiver gets, each of its own topic. The
/// first variant is the reference.
pub fn measure_deliveries(
    args: &RunArgs,
    row: &str,
    is_fan_out: bool,
    receivers: u32,
    mut variants: Vec<Variant>,
) -> Result<Value> {
    let size = args.size.unwrap_or(MESSAGE_BYTES);
    for round in 1..=args.rounds {
        for (index, in_flight) in IN_FLIGHT.into_iter().enumerate() {
            let (messages, receivers_of_each) = match is_fan_out {
                true => (FAN_OUT_MESSAGES, receivers as usize),
                false => (UNICAST_MESSAGES, 1),
            };
            let load = Load {
                messages: messages / if in_flight == 1 { FEWER } else { 1 },
                receivers: receivers_of_each,
                in_flight,
                size,
                is_fan_out,
                topics: receivers,
            };
            for variant in &mut variants {
                let window = variant.run_window(&load)?;
                variant.windows[index].push(window);
            }
        }
        report::note(&format!("{row}: round {round} of {} is done", args.rounds));
    }
    let mut result = Map::new();
    for (index, in_flight) in IN_FLIGHT.into_iter().enumerate() {
        let reference_us = variants[0].median_of(index, "server_cpu_us");
        let mut of_variants = Map::new();
        for variant in &variants {
            let cpu_us = variant.median_of(index, "server_cpu_us");
            let rate = variant.median_of(index, "deliveries_per_s");
            report::say(&format!(
                "{row}, {in_flight} in flight, {}: {cpu_us:.2} us a delivery (x{:.2}), {rate:.0} deliveries/s",
                variant.name,
                cpu_us / reference_us
            ));
            let value = json!({
                "server_cpu_us_median": cpu_us,
                "ratio": cpu_us / reference_us,
                "deliveries_per_s_median": rate,
                "windows": variant.windows[index],
            });
            of_variants.insert(variant.name.clone(), value);
        }
        result.insert(format!("in_flight_{in_flight}"), of_variants.into());
    }
    let mut windows = variants.iter().flat_map(|it| it.windows.iter().flatten());
    let is_clean = windows.all(|window| window["clean"] == true);
    result.insert("clean".into(), json!(is_clean));
    result.insert("receivers".into(), json!(receivers));
    result.insert("size".into(), json!(size));
    Ok(result.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delivery_counts_once_in_order_and_for_its_topic() {
        let mut window = Window::new(10, 3, 1);
        let mut receiver = Receiver::new("t1".into());
        let mut record = |message| {
            window.record(&mut receiver, message);
            (window.completed, window.faults)
        };
        assert_eq!(record(Some((10, "t1"))), (1, 0));
        assert_eq!(record(Some((11, "t1"))), (2, 0));
        assert_eq!(record(Some((11, "t1"))), (2, 1));
        assert_eq!(record(Some((12, "t2"))), (2, 2));
        assert_eq!(record(Some((13, "t1"))), (2, 3));
        assert_eq!(record(None), (2, 4));
    }
}
