//! A running publisher: its schedule, its connections, and its results. Messages are composed in *groups*; with HTTP a group is one request.
//!
//! Invariant: a connection's outgoing bytes are complete groups. The next group is composed only after the last one was completely sent.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::args::PublishArgs;
use super::compose::{Composer, MessageFormat};
use super::link::Link;
use super::mqtt_acks::Answers;
use crate::client::tls;
use crate::measure::pattern::{self, Pattern};
use crate::measure::payload::TOPICS_MAX;
use crate::sys::{self, Epoll};

/// The maximum size of a batch's body, in bytes. Body and head together fit into the server's receive buffer of 64 KiB.
const BATCH_BYTES_MAX: usize = 60_000;
/// The minimum time between two groups if there is a rate. Shorter sleeps would cost too much processor time.
const GROUP_INTERVAL_MIN_NS: u64 = 1_000_000;
/// The maximum time to wait for events.
const WAIT_MAX_NS: u64 = 100_000_000;
/// If a message is later than this, the rate was not kept.
const LATENESS_MAX_NS: u64 = 100_000_000;

/// A running publisher.
pub struct Publisher {
    format: MessageFormat,
    links: Vec<Link>,
    composer: Composer,
    epoll: Epoll,
    answers: Answers,
    schedule: Schedule,
    /// The maximum number of messages in a group. `None` means that only bytes limit it.
    batch_messages: Option<u64>,
    /// The maximum number of requests without an answer on one connection.
    requests_max: usize,
    first_sent_ns: u64,
    last_sent_ns: u64,
}

/// The schedule of the messages.
struct Schedule {
    /// Messages a second. `None` means as many as the server accepts.
    rate: Option<f64>,
    /// The start of the present rate.
    rate_start_ns: u64,
    /// The number of messages composed before `rate_start_ns`.
    composed_before_rate: u64,
    composed: u64,
    messages_max: u64,
    /// The longest time by which a message was composed too late.
    lateness_ns_max: u64,
    /// The earliest time of the next group, if messages are published at a rate.
    next_group_ns: u64,
}

impl Schedule {
    fn remaining_count(&self) -> u64 {
        self.messages_max - self.composed
    }

    /// The number of messages due at this rate.
    fn due_count(&self, rate: f64, now_ns: u64) -> u64 {
        let elapsed_ns = (now_ns - self.rate_start_ns) as f64;
        let due = (elapsed_ns * rate / 1e9) as u64 + 1;
        due.saturating_sub(self.composed - self.composed_before_rate)
    }

    /// Schedules the next group, and returns the time until then. `remaining` messages were due but could not be composed; their delay is
    /// recorded.
    fn next_group(&mut self, rate: f64, remaining: u64, now_ns: u64) -> u64 {
        let lateness_ns = remaining as f64 * 1e9 / rate;
        self.lateness_ns_max = self.lateness_ns_max.max(lateness_ns as u64);
        let composed = self.composed - self.composed_before_rate;
        let next_ns = self.rate_start_ns + (composed as f64 * 1e9 / rate) as u64;
        let wait_ns = next_ns
            .saturating_sub(now_ns)
            .clamp(GROUP_INTERVAL_MIN_NS, WAIT_MAX_NS);
        self.next_group_ns = now_ns + wait_ns;
        wait_ns
    }

    fn is_rate_kept(&self) -> bool {
        self.lateness_ns_max < LATENESS_MAX_NS
    }
}

impl Publisher {
    /// Opens the connections. The schedule starts now.
    pub fn open(args: &PublishArgs) -> Result<Publisher> {
        ensure!(
            args.saturate || args.rate > 0.0,
            "a rate is more than nothing"
        );
        let topics = Pattern::parse(&args.topics)?;
        ensure!(
            topics.count() <= TOPICS_MAX,
            "--topics names {} topics; a message can say {TOPICS_MAX} apart",
            topics.count()
        );
        let servers = pattern::servers(&args.server)?;
        let format = args.format();
        let count = args.connections.clamp(1, topics.count() as usize);
        let host = servers[0].to_string();
        let composer = Composer::new(format, topics, args.cycle, host, args.size, args.broadcast);
        let epoll = Epoll::new(count.min(256))?;
        let tls = args
            .tls
            .as_ref()
            .map(|roots| tls::client(roots, true))
            .transpose()?;
        let mut links = Vec::new();
        for index in 0..count {
            let first_bytes = composer.first_bytes(index as u32);
            let remote = servers[index % servers.len()];
            let tls = tls.as_ref();
            links.push(Link::open(
                remote,
                index as u64,
                format,
                &first_bytes,
                tls,
                &epoll,
            )?);
        }
        Ok(Publisher {
            format,
            links,
            composer,
            epoll,
            answers: Answers::default(),
            schedule: Schedule {
                rate: (!args.saturate).then_some(args.rate),
                rate_start_ns: sys::now_ns(),
                composed_before_rate: 0,
                composed: 0,
                messages_max: args.messages.unwrap_or(u64::MAX),
                lateness_ns_max: 0,
                next_group_ns: 0,
            },
            requests_max: if format.is_answered() {
                args.in_flight
            } else {
                usize::MAX
            },
            batch_messages: args.batch,
            first_sent_ns: 0,
            last_sent_ns: 0,
        })
    }

    /// Uses these sequence numbers from now on ([`Composer::share_sequences`]).
    pub fn share_sequences(&mut self, sequences: Arc<[AtomicU32]>) {
        self.composer.share_sequences(sequences);
    }

    /// Changes the rate, and resets the largest delay.
    pub fn set_rate(&mut self, rate: f64, now_ns: u64) {
        self.schedule.rate = Some(rate);
        self.schedule.rate_start_ns = now_ns;
        self.schedule.composed_before_rate = self.schedule.composed;
        self.schedule.lateness_ns_max = 0;
        self.schedule.next_group_ns = 0;
    }

    /// Sets the maximum number of messages since the start.
    pub fn set_messages_max(&mut self, messages: u64) {
        self.schedule.messages_max = messages;
    }

    /// Messages that the server refused.
    pub fn refused(&self) -> u64 {
        self.answers.refused
    }

    /// The longest time by which a message was composed too late at the present rate.
    pub fn lateness_ns_max(&self) -> u64 {
        self.schedule.lateness_ns_max
    }

    /// The number of messages composed so far.
    pub fn composed(&self) -> u64 {
        self.schedule.composed
    }

    /// Whether the limit of messages is reached.
    pub fn is_done(&self) -> bool {
        self.schedule.composed >= self.schedule.messages_max
    }

    /// Whether everything was accepted.
    pub fn is_clean(&self) -> bool {
        self.answers.refused == 0 && self.unanswered() == 0
    }

    /// Waits until everything is sent and answered, at most `timeout_ns`.
    pub fn wait_for_answers(&mut self, timeout_ns: u64) -> Result<()> {
        let end_ns = sys::now_ns() + timeout_ns;
        for link in &mut self.links {
            link.send_ping(&self.epoll)?;
        }
        while !self.links.iter().all(Link::is_idle) && sys::now_ns() < end_ns {
            self.wait(WAIT_MAX_NS)?;
        }
        Ok(())
    }

    /// Composes the messages that are due, sends them, and waits for events.
    pub fn run_turn(&mut self, now_ns: u64, end_ns: u64) -> Result<()> {
        let remaining = self.schedule.remaining_count();
        let wait_ns = match self.schedule.rate {
            None => {
                let composed = self.compose_saturating(remaining)?;
                // Without answers only a full socket limits the rate.
                if composed > 0 && !self.format.is_answered() {
                    0
                } else {
                    WAIT_MAX_NS
                }
            }
            // An answer has ended the wait early. Continue to wait: otherwise a server that answers would get smaller groups than one that does
            // not.
            Some(_) if now_ns < self.schedule.next_group_ns => self.schedule.next_group_ns - now_ns,
            Some(rate) => {
                let due = self.schedule.due_count(rate, now_ns);
                let composed = self.compose_due(due.min(remaining))?;
                let wait_ns = self.schedule.next_group(rate, due - composed, now_ns);
                // Waking for each answer would take processor time from the server and the subscribers.
                std::thread::sleep(Duration::from_nanos(GROUP_INTERVAL_MIN_NS));
                wait_ns - GROUP_INTERVAL_MIN_NS
            }
        };
        self.wait(wait_ns.min(end_ns - now_ns))
    }

    /// Records that `count` messages were composed since `start_ns`. Subscribers may have received them already.
    fn record_composed(&mut self, count: u64, start_ns: u64) {
        if count == 0 {
            return;
        }
        self.last_sent_ns = sys::now_ns();
        if self.schedule.composed == 0 {
            self.first_sent_ns = start_ns;
        }
        self.schedule.composed += count;
    }

    /// Composes a full group for each connection that has room, from the topics of that connection.
    fn compose_saturating(&mut self, remaining: u64) -> Result<u64> {
        let start_ns = sys::now_ns();
        let mut composed = 0;
        let count = self.links.len() as u32;
        for index in 0..count {
            while composed < remaining && self.links[index as usize].has_room(self.requests_max) {
                let window = self.links[index as usize].window(self.requests_max);
                let messages_max = (remaining - composed).min(self.group_max()).min(window);
                let messages = self.compose_group(index, messages_max);
                composed += messages;
                self.links[index as usize].flush(&self.epoll)?;
                if !self.format.is_answered() || self.format.has_ids() {
                    // Otherwise this loop would never end if the server reads as fast as it writes, and nobody would check the clock.
                    break;
                }
            }
        }
        self.record_composed(composed, start_ns);
        Ok(composed)
    }

    /// The maximum number of messages in one group.
    fn group_max(&self) -> u64 {
        if matches!(self.format, MessageFormat::Single) {
            1
        } else {
            self.batch_messages.unwrap_or(u64::MAX)
        }
    }

    /// Composes one group of at most `messages_max` messages, for topics of one connection. Returns the number of messages.
    fn compose_group(&mut self, index: u32, messages_max: u64) -> u64 {
        let (count, link) = (self.links.len() as u32, &mut self.links[index as usize]);
        let bytes_max = self
            .batch_messages
            .map_or(BATCH_BYTES_MAX, |_| usize::MAX / 2);
        let group_start = self.composer.begin_group(&mut link.outgoing);
        let mut messages = 0;
        while messages < messages_max && link.outgoing.len() < bytes_max {
            let topic = self.composer.choose_topic_of(index, count);
            let length_before = link.outgoing.len();
            let id = link.packet_id();
            self.composer.append_message(topic, id, &mut link.outgoing);
            messages += 1;
            if link.outgoing.len() * 2 - length_before > bytes_max {
                break;
            }
        }
        let start = self.composer.finish_group(group_start, &mut link.outgoing);
        link.skip_to(start);
        link.record_composed(messages);
        messages
    }

    /// Composes and sends up to `due` messages, each on the connection of its topic. Stops when a connection has no room. Returns the
    /// number of messages.
    fn compose_due(&mut self, due: u64) -> Result<u64> {
        let start_ns = sys::now_ns();
        let mut composed = 0;
        while composed < due {
            if !self
                .links
                .iter()
                .all(|link| link.has_room(self.requests_max))
            {
                break;
            }
            let messages_max = (due - composed).min(self.group_max());
            let messages = self.compose_groups(messages_max);
            composed += messages;
            for link in &mut self.links {
                link.flush(&self.epoll)?;
            }
        }
        self.record_composed(composed, start_ns);
        Ok(composed)
    }

    /// Composes up to `messages_max` messages, as one group on each connection that has one of their topics. All connections must have room.
    /// Returns the number of messages.
    fn compose_groups(&mut self, messages_max: u64) -> u64 {
        let count = self.links.len();
        let mut groups: Vec<(usize, u64)> = vec![(usize::MAX, 0); count];
        let mut messages = 0;
        while messages < messages_max {
            let topic = self.composer.choose_topic();
            let index = topic as usize % count;
            let link = &mut self.links[index];
            if groups[index].1 == 0 {
                groups[index].0 = self.composer.begin_group(&mut link.outgoing);
            }
            let id = link.packet_id();
            self.composer.append_message(topic, id, &mut link.outgoing);
            groups[index].1 += 1;
            messages += 1;
            if link.outgoing.len() >= BATCH_BYTES_MAX || link.window(self.requests_max) == 0 {
                break;
            }
        }
        for (link, (group_start, messages)) in self.links.iter_mut().zip(groups) {
            if messages > 0 {
                let start = self.composer.finish_group(group_start, &mut link.outgoing);
                link.skip_to(start);
                link.record_composed(messages);
            }
        }
        messages
    }

    fn wait(&mut self, wait_ns: u64) -> Result<()> {
        let count = self.epoll.wait(Duration::from_nanos(wait_ns))?;
        for event in 0..count {
            let ready = self.epoll.ready(event);
            let link = &mut self.links[ready.key as usize];
            if ready.readable {
                link.read_answers(&mut self.answers, &self.epoll)?;
            }
            if ready.writable {
                link.flush(&self.epoll)?;
            }
        }
        Ok(())
    }

    fn unanswered(&self) -> u64 {
        self.links.iter().map(Link::unanswered).sum()
    }

    /// A line of progress that shows the rate `per_s`.
    pub fn progress_line(&self, per_s: f64) -> String {
        let mut line = format!(
            "Published: {}, {per_s:.0}/s, accepted: {}, refused: {}, unanswered: {}",
            self.schedule.composed,
            self.answers.accepted,
            self.answers.refused,
            self.unanswered()
        );
        if let Some(rate) = self.schedule.rate
            && !self.schedule.is_rate_kept()
        {
            let late_ms = self.schedule.lateness_ns_max / 1_000_000;
            line.push_str(&format!(
                "; the rate of {rate:.0}/s was NOT kept: up to {late_ms} ms late"
            ));
        }
        if let Some(reason) = &self.answers.first_refusal {
            line.push_str(&format!("; the first refusal: {reason}"));
        }
        line
    }

    /// The result of a run of `seconds`.
    pub fn json(&self, seconds: f64) -> Value {
        json!({
            "published": self.schedule.composed,
            "accepted": self.answers.accepted,
            "refused": self.answers.refused,
            "unanswered": self.unanswered(),
            "first_refusal": self.answers.first_refusal,
            "seconds": seconds,
            "messages_per_s": self.schedule.composed as f64 / seconds,
            "rate_wanted": self.schedule.rate,
            "rate_kept": self.schedule.is_rate_kept(),
            "late_ms_max": self.schedule.lateness_ns_max as f64 / 1e6,
            "first_sent_ns": self.first_sent_ns,
            "last_sent_ns": self.last_sent_ns,
            "tool_cpu_s": sys::process_cpu_ns() as f64 / 1e9,
        })
    }
}
