//! Reads the answers to a publisher. Over HTTP the answers come in the order of the requests. Over a WebSocket each answer says which frame of
//! the publisher it answers.

use crore_broker::position::{self, Since};
use crore_wire::websocket::receive::Event;

use super::{Publisher, Request};
use crate::client::http::{self, Framing};
use crate::client::websocket;
use crate::coverage::Coverage;
use crate::truth::{Truth, Violation, printable};

impl Publisher {
    /// Reads received answers.
    pub fn read(
        &mut self,
        bytes: &[u8],
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        self.bytes.extend_from_slice(bytes);
        if self.upgraded {
            return self.read_frames(truth, coverage);
        }
        loop {
            let mut rest = self.bytes.clone();
            let Some(head) = http::take_head(&mut rest)? else {
                return Ok(());
            };
            let Framing::Length(len) = http::framing(&head)? else {
                return Err("an answer to a publisher without a length".into());
            };
            if rest.len() < len {
                return Ok(());
            }
            let body: Vec<u8> = rest.drain(..len).collect();
            self.bytes = rest;
            if self.websocket_topic.is_some() && head.status == 101 {
                self.upgraded = true;
                return self.read_frames(truth, coverage);
            }
            self.must_close |=
                head.field("connection") == Some("close") || self.websocket_topic.is_some();
            if head.status == 408 || self.websocket_topic.is_some() {
                // The server has not received the whole request, or has refused the upgrade. The publisher will send the request again.
                return Ok(());
            }
            if head.field("idempotency-replayed").is_some() {
                self.check_replay(coverage)?;
            }
            let request = self.pending.pop_front();
            let request =
                request.ok_or_else(|| format!("an answer to nothing: {}", head.status))?;
            self.read_answer(&request, head.status, &body, truth, coverage)?;
        }
    }

    /// Checks that this publisher sends idempotency keys. Only then may the server replay the first answer to a key.
    fn check_replay(&self, coverage: &mut Coverage) -> Result<(), Violation> {
        coverage.replays += 1;
        match self.idempotent {
            true => Ok(()),
            false => Err("an answer to a key that nobody sent".into()),
        }
    }

    /// Reads acknowledgements over a WebSocket.
    fn read_frames(&mut self, truth: &mut Truth, coverage: &mut Coverage) -> Result<(), Violation> {
        let mut partial = self.partial.take();
        let input = std::mem::take(&mut self.bytes);
        websocket::read(&mut partial, input, 1 << 16, false, |event| {
            match event {
                Event::Ping(data) => websocket::pong(&mut self.out, data),
                Event::Text(text) => {
                    let text = String::from_utf8_lossy(text).into_owned();
                    self.read_ack(&text, truth, coverage)?;
                }
                Event::Close { .. } => self.must_close = true,
                other => return Err(format!("a publisher got {other:?}")),
            }
            Ok(true)
        })?;
        self.partial = partial;
        Ok(())
    }

    fn read_ack(
        &mut self,
        text: &str,
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        // The message is identified by the frame number and not by the order, since a refusal may overtake answers from other shards.
        let frame = text
            .lines()
            .next()
            .and_then(|line| line.strip_prefix("ack: "));
        let frame = frame.and_then(|digits| digits.parse::<usize>().ok());
        let number = frame.and_then(|frame| self.sent_frames.get(frame).copied());
        let matches = |request: &Request| matches!(request, Request::One(n) if Some(*n) == number);
        let at = self.pending.iter().position(matches);
        let (Some(number), Some(at)) = (number, at) else {
            return Err(format!("an acknowledgement of nothing: {text:?}"));
        };
        self.pending.remove(at);
        let id = text.lines().find_map(|line| line.strip_prefix("id: "));
        truth.note(|| format!("{:?} is told of {number}: {text:?}", self.link));
        if let Some(id) = id {
            truth.set_offset(number, offset_of(id)?)?;
            truth.acknowledge(number);
            coverage.acknowledged += 1;
        } else if !truth.may_refuse() {
            return Err(format!("message {number} was refused: {text:?}"));
        } else {
            truth.refuse(number);
            coverage.refused += 1;
        }
        Ok(())
    }

    fn read_answer(
        &mut self,
        request: &Request,
        status: u16,
        body: &[u8],
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        truth.note(|| {
            format!(
                "{:?} is answered {status} to {request:?} {}",
                self.link,
                printable(body)
            )
        });
        match (request, status) {
            (Request::One(number), 201 | 202) => {
                truth.set_offset(*number, offset_in(body)?)?;
                truth.acknowledge(*number);
                coverage.acknowledged += 1;
            }
            (Request::One(number), 429 | 503) if truth.may_refuse() => {
                truth.refuse(*number);
                coverage.refused += 1;
            }
            (Request::Batch(numbers), 200) => {
                let text = String::from_utf8_lossy(body);
                let published = format!("{{\"published\": {}, ", numbers.len());
                if text.contains("\"replayed\": ") {
                    self.check_replay(coverage)?;
                }
                if text.starts_with(&published) && text.ends_with("\"failed\": []}\n") {
                    numbers.iter().for_each(|number| truth.acknowledge(*number));
                    coverage.acknowledged += numbers.len() as u64;
                } else if !truth.may_refuse() {
                    return Err(format!("a batch failed: {}", printable(body)));
                } else {
                    coverage.refused += 1;
                }
            }
            (Request::Delete(topic, n), 200 | 404) => {
                truth.topics[*topic].deletes[*n].1 = Some(truth.step);
            }
            (Request::Info(topic), 404) => {
                self.subscribers.insert(*topic, None);
            }
            (Request::Info(topic), 200) => {
                let count = subscribers_in(body)?;
                self.subscribers.insert(*topic, Some(count));
            }
            (Request::Other, 200 | 201) => {}
            // The server refused the connection, and did not read the request.
            (
                Request::Batch(_) | Request::Delete(..) | Request::Info(_) | Request::Other,
                429 | 503,
            ) if truth.may_refuse() => {
                coverage.refused += 1;
            }
            _ => return Err(format!("{request:?} was answered {status}")),
        }
        Ok(())
    }
}

/// The offset in the answer to a publish.
fn offset_in(body: &[u8]) -> Result<u64, Violation> {
    let text = String::from_utf8_lossy(body);
    let id = text
        .split_once("\"last_message_id\": \"")
        .and_then(|(_, rest)| rest.split_once('"'));
    let (id, _) = id.ok_or_else(|| format!("no position in {}", printable(body)))?;
    offset_of(id)
}

/// The number of subscribers in the info of a topic.
fn subscribers_in(body: &[u8]) -> Result<u64, Violation> {
    let text = String::from_utf8_lossy(body);
    let count = text.split_once("\"subscribers\": ").map(|(_, rest)| rest);
    let digits = count.and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
    let count = digits.and_then(|digits| digits.parse().ok());
    count.ok_or_else(|| format!("no subscribers in {}", printable(body)))
}

/// The offset in the position of a message.
fn offset_of(id: &str) -> Result<u64, Violation> {
    let since = position::parse(id.as_bytes(), 0, 1).ok();
    match since.as_deref() {
        Some([Since::At(position)]) => Ok(position.offset),
        _ => Err(format!("no position: {id}")),
    }
}
