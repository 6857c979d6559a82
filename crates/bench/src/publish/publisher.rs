//! A running publisher: its schedule, its connections, and its results.
//!
//! Invariant: the bytes that wait in a connection are complete groups of messages. The next group is composed only after the last one was
//! completely sent.

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
const BATCH_BYTES: usize = 60_000;
/// The minimum time between two groups if messages are published at a rate. Shorter sleeps would cost too much processor time.
const TICK_NS: u64 = 1_000_000;
/// The maximum time to wait for events.
const POLL_NS: u64 = 100_000_000;
/// If messages are later than this, the rate was not kept.
const LATE_NS: u64 = 100_000_000;

/// A running publisher.
pub struct Publisher {
    format: MessageFormat,
    links: Vec<Link>,
    composer: Composer,
    epoll: Epoll,
    answers: Answers,
    schedule: Schedule,
    /// The number of messages in a group; `None`: limited only by bytes.
    batch: Option<u64>,
    /// The maximum number of requests without an answer on one connection.
    requests_max: usize,
    first_sent_ns: u64,
    last_sent_ns: u64,
}

/// The schedule of the messages.
struct Schedule {
    /// Messages a second; `None`: as many as the server accepts.
    rate: Option<f64>,
    /// The start of the present rate.
    since_ns: u64,
    /// The number of messages composed before `since_ns`.
    composed_before: u64,
    composed: u64,
    messages_max: u64,
    /// The largest delay of a message behind its schedule.
    late_ns_max: u64,
    /// The earliest time of the next group, if messages are published at a rate.
    next_group_ns: u64,
}

impl Schedule {
    fn left(&self) -> u64 {
        self.messages_max - self.composed
    }

    /// The number of messages due at this rate.
    fn due(&self, rate: f64, now_ns: u64) -> u64 {
        let elapsed_ns = (now_ns - self.since_ns) as f64;
        let due = (elapsed_ns * rate / 1e9) as u64 + 1;
        due.saturating_sub(self.composed - self.composed_before)
    }

    /// Records the delay of `left` messages that were due and could not be composed. Returns the time until the next group.
    fn next_group(&mut self, rate: f64, left: u64, now_ns: u64) -> u64 {
        let late_ns = left as f64 * 1e9 / rate;
        self.late_ns_max = self.late_ns_max.max(late_ns as u64);
        let composed = self.composed - self.composed_before;
        let next_ns = self.since_ns + (composed as f64 * 1e9 / rate) as u64;
        let wait_ns = next_ns.saturating_sub(now_ns).clamp(TICK_NS, POLL_NS);
        self.next_group_ns = now_ns + wait_ns;
        wait_ns
    }

    fn is_kept(&self) -> bool {
        self.late_ns_max < LATE_NS
    }
}

impl Publisher {
    /// Opens the connections. The schedule begins now.
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
                since_ns: sys::now_ns(),
                composed_before: 0,
                composed: 0,
                messages_max: args.messages.unwrap_or(u64::MAX),
                late_ns_max: 0,
                next_group_ns: 0,
            },
            requests_max: if format.is_answered() {
                args.in_flight
            } else {
                usize::MAX
            },
            batch: args.batch,
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
        self.schedule.since_ns = now_ns;
        self.schedule.composed_before = self.schedule.composed;
        self.schedule.late_ns_max = 0;
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

    /// The largest delay of a message behind its schedule, at this rate.
    pub fn late_ns_max(&self) -> u64 {
        self.schedule.late_ns_max
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

    /// Waits until everything is sent and answered, at most `longest_ns`.
    pub fn drain(&mut self, longest_ns: u64) -> Result<()> {
        let until_ns = sys::now_ns() + longest_ns;
        for link in &mut self.links {
            link.ping(&self.epoll)?;
        }
        while !self.links.iter().all(Link::is_idle) && sys::now_ns() < until_ns {
            self.wait(POLL_NS)?;
        }
        Ok(())
    }

    /// Composes the messages that are due, sends them, and waits for events.
    pub fn turn(&mut self, now_ns: u64, until_ns: u64) -> Result<()> {
        let left = self.schedule.left();
        let wait_ns = match self.schedule.rate {
            None => {
                let taken = self.fill(left)?;
                // Without answers only a full socket limits the rate.
                if taken > 0 && !self.format.is_answered() {
                    0
                } else {
                    POLL_NS
                }
            }
            // An answer ended the wait early. Continue to wait: otherwise a server that answers would get smaller groups than a server that
            // does not.
            Some(_) if now_ns < self.schedule.next_group_ns => self.schedule.next_group_ns - now_ns,
            Some(rate) => {
                let due = self.schedule.due(rate, now_ns);
                let taken = self.compose(due.min(left))?;
                let wait_ns = self.schedule.next_group(rate, due - taken, now_ns);
                // Waking for each answer would take processor time from the server and the subscribers.
                std::thread::sleep(Duration::from_nanos(TICK_NS));
                wait_ns - TICK_NS
            }
        };
        self.wait(wait_ns.min(until_ns - now_ns))
    }

    /// Records that `count` messages were composed since `begun_ns`. Subscribers may have received them already.
    fn count(&mut self, count: u64, begun_ns: u64) {
        if count == 0 {
            return;
        }
        self.last_sent_ns = sys::now_ns();
        if self.schedule.composed == 0 {
            self.first_sent_ns = begun_ns;
        }
        self.schedule.composed += count;
    }

    /// Composes a full group for each connection that has room, from the topics of that connection.
    fn fill(&mut self, left: u64) -> Result<u64> {
        let begun_ns = sys::now_ns();
        let mut taken = 0;
        let count = self.links.len() as u32;
        for index in 0..count {
            while taken < left && self.links[index as usize].has_room(self.requests_max) {
                let window = self.links[index as usize].window(self.requests_max);
                let room = (left - taken).min(self.group_max()).min(window);
                let messages = self.group(index, room);
                taken += messages;
                self.links[index as usize].flush(&self.epoll)?;
                if !self.format.is_answered() || self.format.has_ids() {
                    // If the server reads as fast as this loop writes, the loop would never end and nobody would check the clock.
                    break;
                }
            }
        }
        self.count(taken, begun_ns);
        Ok(taken)
    }

    /// The maximum number of messages in one group.
    fn group_max(&self) -> u64 {
        if matches!(self.format, MessageFormat::Single) {
            1
        } else {
            self.batch.unwrap_or(u64::MAX)
        }
    }

    /// Composes one group of at most `room` messages, for topics of one connection. Returns the number of messages.
    fn group(&mut self, index: u32, room: u64) -> u64 {
        let (count, link) = (self.links.len() as u32, &mut self.links[index as usize]);
        let bytes_max = self.batch.map_or(BATCH_BYTES, |_| usize::MAX / 2);
        let mark = self.composer.begin_group(&mut link.out);
        let mut messages = 0;
        while messages < room && link.out.len() < bytes_max {
            let topic = self.composer.draw_topic_of(index, count);
            let before = link.out.len();
            let id = link.packet_id();
            self.composer.append(topic, id, &mut link.out);
            messages += 1;
            if link.out.len() * 2 - before > bytes_max {
                break;
            }
        }
        let start = self.composer.finish_group(mark, &mut link.out);
        link.skip(start);
        link.composed(messages);
        messages
    }

    /// Composes and sends up to `due` messages, each on the connection of its topic. Stops when a connection has no room. Returns the
    /// number of messages.
    fn compose(&mut self, due: u64) -> Result<u64> {
        let begun_ns = sys::now_ns();
        let mut taken = 0;
        while taken < due {
            if !self
                .links
                .iter()
                .all(|link| link.has_room(self.requests_max))
            {
                break;
            }
            let room = (due - taken).min(self.group_max());
            let messages = self.compose_groups(room);
            taken += messages;
            for link in &mut self.links {
                link.flush(&self.epoll)?;
            }
        }
        self.count(taken, begun_ns);
        Ok(taken)
    }

    /// Composes up to `room` messages for random topics, as one group on each connection that has one of these topics. All connections must
    /// have room. Returns the number of messages.
    fn compose_groups(&mut self, room: u64) -> u64 {
        let count = self.links.len();
        let mut groups: Vec<(usize, u64)> = vec![(usize::MAX, 0); count];
        let mut messages = 0;
        while messages < room {
            let topic = self.composer.draw_topic();
            let index = topic as usize % count;
            let link = &mut self.links[index];
            if groups[index].1 == 0 {
                groups[index].0 = self.composer.begin_group(&mut link.out);
            }
            let id = link.packet_id();
            self.composer.append(topic, id, &mut link.out);
            groups[index].1 += 1;
            messages += 1;
            if link.out.len() >= BATCH_BYTES || link.window(self.requests_max) == 0 {
                break;
            }
        }
        for (link, (mark, messages)) in self.links.iter_mut().zip(groups) {
            if messages > 0 {
                let start = self.composer.finish_group(mark, &mut link.out);
                link.skip(start);
                link.composed(messages);
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
                link.answers(&mut self.answers, &self.epoll)?;
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
    pub fn line(&self, per_s: f64) -> String {
        let mut line = format!(
            "Published: {}, {per_s:.0}/s, accepted: {}, refused: {}, unanswered: {}",
            self.schedule.composed,
            self.answers.accepted,
            self.answers.refused,
            self.unanswered()
        );
        if let Some(rate) = self.schedule.rate
            && !self.schedule.is_kept()
        {
            let late_ms = self.schedule.late_ns_max / 1_000_000;
            line.push_str(&format!(
                "; the rate of {rate:.0}/s was NOT kept: up to {late_ms} ms late"
            ));
        }
        if let Some(why) = &self.answers.first_refusal {
            line.push_str(&format!("; the first refusal: {why}"));
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
            "rate_kept": self.schedule.is_kept(),
            "late_ms_max": self.schedule.late_ns_max as f64 / 1e6,
            "first_sent_ns": self.first_sent_ns,
            "last_sent_ns": self.last_sent_ns,
            "tool_cpu_s": sys::process_cpu_ns() as f64 / 1e9,
        })
    }
}
