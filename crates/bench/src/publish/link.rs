//! One connection of a publisher, with the bytes to send and the requests that have no answer yet.
//!
//! HTTP answers arrive in the order of the requests (pipelining, RFC 9112 §9.3.2), and each is checked. [`MqttAcks`] checks the answers of
//! MQTT. `crore-bench floor` does not answer, so only a full socket slows its publisher.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use rustls::ClientConfig;

use super::compose::MessageFormat;
use super::mqtt_acks::{Answers, MqttAcks};
use crate::client::parse::{self, Response};
use crate::client::request;
use crate::client::tls::Tls;
use crate::sys::{self, DialOptions, Epoll, Interest};
use crore_wire::mqtt::PacketId;

/// The maximum size of one read of answers, in bytes.
const RECEIVE_BYTES: usize = 64 << 10;

/// A connection.
pub struct Link {
    fd: i32,
    key: u64,
    format: MessageFormat,
    /// Bytes to send. The first `sent_bytes` of them are already sent.
    pub outgoing: Vec<u8>,
    sent_bytes: usize,
    watched_interest: Interest,
    /// The number of messages in each request without an answer.
    requests: VecDeque<u64>,
    received: Vec<u8>,
    /// The state of MQTT acknowledgements. `None` if the messages are not MQTT packets.
    acks: Option<MqttAcks>,
    tls: Option<Tls>,
}

impl Link {
    /// Connects, waits until the connection is established, and starts to send `first_bytes`.
    pub fn open(
        remote: SocketAddr,
        key: u64,
        format: MessageFormat,
        first_bytes: &[u8],
        tls: Option<&Arc<ClientConfig>>,
        epoll: &Epoll,
    ) -> Result<Link> {
        let options = DialOptions {
            remote,
            local: None,
            receive_buffer: None,
        };
        let (fd, connected) =
            sys::dial(&options).with_context(|| format!("connect to {remote}"))?;
        if !connected {
            sys::wait_writable(fd);
            sys::connect_result(fd).with_context(|| format!("connect to {remote}"))?;
        }
        sys::no_delay(fd)?;
        epoll.add(fd, Interest::IN, key)?;
        let mut link = Link {
            fd,
            key,
            format,
            outgoing: first_bytes.to_vec(),
            sent_bytes: 0,
            watched_interest: Interest::IN,
            requests: VecDeque::new(),
            received: Vec::new(),
            acks: match format {
                MessageFormat::Packet(dialect) => {
                    Some(MqttAcks::new(dialect, format.has_ids(), key as u32))
                }
                _ => None,
            },
            tls: tls.map(Tls::new).transpose()?,
        };
        link.flush(epoll)?;
        Ok(link)
    }

    /// Whether another group of messages may be composed.
    pub fn has_room(&self, requests_max: usize) -> bool {
        self.outgoing.is_empty()
            && self.requests.len() < requests_max
            && self
                .acks
                .as_ref()
                .is_none_or(|acks| acks.has_room(requests_max))
    }

    /// The maximum number of messages in the next group. Only MQTT with QoS 1 or 2 has a limit, since each message is acknowledged there.
    pub fn window(&self, requests_max: usize) -> u64 {
        let acks = self.acks.as_ref();
        acks.map_or(u64::MAX, |acks| acks.window(requests_max))
    }

    /// The packet id of the next message, if the format has them.
    pub fn packet_id(&mut self) -> Option<PacketId> {
        self.acks.as_mut()?.packet_id()
    }

    /// Records that a group of `messages` was composed.
    pub fn record_composed(&mut self, messages: u64) {
        if self.format.is_answered() && self.acks.is_none() {
            self.requests.push_back(messages);
        }
    }

    /// With MQTT QoS 0, sends a ping. The answer means that the server has read all messages before the ping.
    pub fn send_ping(&mut self, epoll: &Epoll) -> Result<()> {
        if let Some(acks) = &mut self.acks {
            acks.write_ping(&mut self.outgoing);
        }
        self.flush(epoll)
    }

    /// The number of messages without an answer.
    pub fn unanswered(&self) -> u64 {
        self.requests.iter().sum::<u64>() + self.acks.as_ref().map_or(0, MqttAcks::unanswered)
    }

    /// Whether everything is sent and answered.
    pub fn is_idle(&self) -> bool {
        self.outgoing.is_empty() && self.unanswered() == 0
    }

    /// Drops the bytes before `start`, which contain no request.
    pub fn skip_to(&mut self, start: usize) {
        debug_assert_eq!(self.sent_bytes, 0);
        self.sent_bytes = start;
    }

    /// Sends as much as the socket accepts.
    pub fn flush(&mut self, epoll: &Epoll) -> Result<()> {
        while self.sent_bytes < self.outgoing.len() {
            let rest = &self.outgoing[self.sent_bytes..];
            let result = match &mut self.tls {
                Some(tls) => tls.send(self.fd, rest),
                None => sys::send(self.fd, rest),
            };
            match result.context("the publisher's connection")? {
                0 => break,
                count => self.sent_bytes += count,
            }
        }
        if self.sent_bytes == self.outgoing.len() {
            self.outgoing.clear();
            self.sent_bytes = 0;
        }
        let has_tls_bytes = match &mut self.tls {
            Some(tls) => !tls.flush(self.fd)?,
            None => false,
        };
        let wanted_interest = sys::reading(has_tls_bytes || !self.outgoing.is_empty());
        if wanted_interest != self.watched_interest {
            epoll.modify(self.fd, wanted_interest, self.key)?;
            self.watched_interest = wanted_interest;
        }
        Ok(())
    }

    /// Reads and checks answers, and sends the packets that MQTT requires in return.
    pub fn read_answers(&mut self, answers: &mut Answers, epoll: &Epoll) -> Result<()> {
        let kept_bytes = self.received.len();
        self.received.resize(kept_bytes + RECEIVE_BYTES, 0);
        let received = &mut self.received[kept_bytes..];
        let received = match &mut self.tls {
            Some(tls) => tls.receive(self.fd, received),
            None => sys::receive(self.fd, received),
        };
        match received.context("the publisher's connection")? {
            Some(0) => bail!("the server closed the publisher's connection"),
            count => self.received.truncate(kept_bytes + count.unwrap_or(0)),
        }
        if let Some(acks) = &mut self.acks {
            acks.handle_bytes(&mut self.received, &mut self.outgoing, answers)?;
            return self.flush(epoll);
        }
        let mut handled_bytes = 0;
        while let Some(bytes) = self.handle_answer(handled_bytes, answers)? {
            handled_bytes += bytes;
        }
        self.received.drain(..handled_bytes);
        Ok(())
    }

    /// Handles the answer at `start`, if it is complete, and returns its length.
    fn handle_answer(&mut self, start: usize, answers: &mut Answers) -> Result<Option<usize>> {
        let bytes = &self.received[start..];
        if bytes.is_empty() {
            return Ok(None);
        }
        if matches!(self.format, MessageFormat::Record) {
            return Ok(Some(bytes.len()));
        }
        let Some(Response { head, body, bytes }) = parse::response(bytes)? else {
            return Ok(None);
        };
        let status = head.status;
        ensure!(
            !head.chunked,
            "a chunked answer to a publish is not understood"
        );
        let messages = self
            .requests
            .pop_front()
            .context("an answer to no request")?;
        let is_accepted = matches!(status, 200..=202);
        let refused = match self.format {
            _ if !is_accepted => messages,
            MessageFormat::Batch => request::count_failed(body),
            _ => 0,
        };
        answers.refused += refused;
        answers.accepted += messages.saturating_sub(refused);
        if refused > 0 {
            answers.first_refusal.get_or_insert_with(|| {
                format!("{status}: {}", String::from_utf8_lossy(body).trim())
            });
        }
        if head.close {
            bail!("the server ends the publisher's connection ({status})");
        }
        Ok(Some(bytes))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        sys::close(self.fd);
    }
}
