//! One publisher's connection: bytes that wait to be sent, requests that wait for their answer.
//!
//! Answers come in the order of the requests (HTTP/1.1 pipelining, RFC 9112 §9.3.2) and every one
//! of them is checked; [`Packets`] checks those of MQTT. The other forms have no answers: there only a full
//! socket holds the publisher back.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use rustls::ClientConfig;

use super::compose::Form;
use super::packets::{Answers, Packets};
use crate::client::parse::{self, Response};
use crate::client::request;
use crate::client::tls::Tls;
use crate::sys::{self, Dial, Epoll, Interest};
use crore_wire::mqtt::PacketId;

/// Bytes of one read of answers.
const RECEIVE_BYTES: usize = 64 << 10;

/// A connection.
pub struct Link {
    fd: i32,
    key: u64,
    form: Form,
    /// Bytes to send; those before `sent` are gone.
    pub out: Vec<u8>,
    sent: usize,
    watched: Interest,
    /// Messages of each request that has no answer yet.
    requests: VecDeque<u64>,
    received: Vec<u8>,
    /// `Some` exactly when the form is MQTT's.
    packets: Option<Packets>,
    tls: Option<Tls>,
}

impl Link {
    /// Connects, waits until it is established, and sends the greeting.
    pub fn open(
        remote: SocketAddr,
        key: u64,
        form: Form,
        greeting: &[u8],
        tls: Option<&Arc<ClientConfig>>,
        epoll: &Epoll,
    ) -> Result<Link> {
        let dial = Dial {
            remote,
            local: None,
            receive_buffer: None,
        };
        let (fd, connected) = sys::dial(&dial).with_context(|| format!("connect to {remote}"))?;
        if !connected {
            sys::wait_writable(fd);
            sys::connect_result(fd).with_context(|| format!("connect to {remote}"))?;
        }
        sys::no_delay(fd)?;
        epoll.add(fd, Interest::IN, key)?;
        let mut link = Link {
            fd,
            key,
            form,
            out: greeting.to_vec(),
            sent: 0,
            watched: Interest::IN,
            requests: VecDeque::new(),
            received: Vec::new(),
            packets: match form {
                Form::Packet(dialect) => Some(Packets::new(dialect, form.has_ids(), key as u32)),
                _ => None,
            },
            tls: tls.map(Tls::new).transpose()?,
        };
        link.flush(epoll)?;
        Ok(link)
    }

    /// Whether another group of messages may be composed.
    pub fn has_room(&self, requests_max: usize) -> bool {
        self.out.is_empty()
            && self.requests.len() < requests_max
            && self
                .packets
                .as_ref()
                .is_none_or(|packets| packets.has_room(requests_max))
    }

    /// How many messages the next group may have: MQTT acknowledges each by itself.
    pub fn window(&self, requests_max: usize) -> u64 {
        let packets = self.packets.as_ref();
        packets.map_or(u64::MAX, |packets| packets.window(requests_max))
    }

    /// The packet id of the next message, where messages have them.
    pub fn packet_id(&mut self) -> Option<PacketId> {
        self.packets.as_mut()?.packet_id()
    }

    /// Notes that a group of `messages` was composed.
    pub fn composed(&mut self, messages: u64) {
        if self.form.is_answered() && self.packets.is_none() {
            self.requests.push_back(messages);
        }
    }

    /// Sends a ping where messages have no answers of their own: its answer says that the server has read them.
    pub fn ping(&mut self, epoll: &Epoll) -> Result<()> {
        if let Some(packets) = &mut self.packets {
            packets.ping(&mut self.out);
        }
        self.flush(epoll)
    }

    /// Messages that have no answer yet.
    pub fn unanswered(&self) -> u64 {
        self.requests.iter().sum::<u64>() + self.packets.as_ref().map_or(0, Packets::unanswered)
    }

    /// Whether everything is sent and answered.
    pub fn is_idle(&self) -> bool {
        self.out.is_empty() && self.unanswered() == 0
    }

    /// Forgets the bytes before `start`, which hold no request.
    pub fn skip(&mut self, start: usize) {
        debug_assert_eq!(self.sent, 0);
        self.sent = start;
    }

    /// Sends as much as the socket takes.
    pub fn flush(&mut self, epoll: &Epoll) -> Result<()> {
        while self.sent < self.out.len() {
            let rest = &self.out[self.sent..];
            let sent = match &mut self.tls {
                Some(tls) => tls.send(self.fd, rest),
                None => sys::send(self.fd, rest),
            };
            match sent.context("the publisher's connection")? {
                0 => break,
                count => self.sent += count,
            }
        }
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        }
        let waits = match &mut self.tls {
            Some(tls) => !tls.flush(self.fd)?,
            None => false,
        };
        let wanted = sys::reading(waits || !self.out.is_empty());
        if wanted != self.watched {
            epoll.modify(self.fd, wanted, self.key)?;
            self.watched = wanted;
        }
        Ok(())
    }

    /// Reads and checks answers, and sends the packets that they ask for.
    pub fn answers(&mut self, answers: &mut Answers, epoll: &Epoll) -> Result<()> {
        let held = self.received.len();
        self.received.resize(held + RECEIVE_BYTES, 0);
        let received = &mut self.received[held..];
        let received = match &mut self.tls {
            Some(tls) => tls.receive(self.fd, received),
            None => sys::receive(self.fd, received),
        };
        match received.context("the publisher's connection")? {
            Some(0) => bail!("the server closed the publisher's connection"),
            count => self.received.truncate(held + count.unwrap_or(0)),
        }
        if let Some(packets) = &mut self.packets {
            packets.take(&mut self.received, &mut self.out, answers)?;
            return self.flush(epoll);
        }
        let mut used = 0;
        while let Some(bytes) = self.answer(used, answers)? {
            used += bytes;
        }
        self.received.drain(..used);
        Ok(())
    }

    /// Takes the answer at `start`, when it is whole, and returns its bytes.
    fn answer(&mut self, start: usize, answers: &mut Answers) -> Result<Option<usize>> {
        let bytes = &self.received[start..];
        if bytes.is_empty() {
            return Ok(None);
        }
        if matches!(self.form, Form::Record) {
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
        let good = matches!(status, 200..=202);
        let refused = match self.form {
            _ if !good => messages,
            Form::Batch => request::failed(body),
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
