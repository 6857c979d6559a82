//! The clients of `centrifugo`: subscribers and a publisher, all on the calling thread, over WebSocket without compression.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::frames::{self, Answer, Command, Format, Position, Reply};
use crate::rig::{DeliveryClients, Load, Receiver, Window};
use crate::sys::{Epoll, Interest};

/// Timeout for an expected reply or message.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The epoll key of the publisher.
const PUBLISHER_KEY: u64 = u64::MAX;
/// The number of connections that are opened at the same time.
const OPENED_TOGETHER: usize = 64;
/// The maximum number of unanswered commands of a client.
const UNANSWERED_MAX: u32 = 256;

/// A client.
pub struct Connection {
    socket: TcpStream,
    format: Format,
    received: Vec<u8>,
    last_id: u32,
    answers: u32,
    /// The positions at which the client's subscriptions began.
    pub positions: Vec<Position>,
    /// The number of recovered messages. `None` if messages were lost.
    recovered: Option<usize>,
    receiver: Receiver,
}

impl Connection {
    /// Connects and sends the WebSocket handshake.
    fn begin(server: SocketAddr, format: Format, channel: &str) -> Result<Connection> {
        let mut socket = TcpStream::connect(server)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        let protocol = match format {
            Format::Json => "",
            Format::Protobuf => "Sec-WebSocket-Protocol: centrifuge-protobuf\r\n",
        };
        write!(
            socket,
            "GET /connection/websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{protocol}\r\n"
        )?;
        Ok(Connection {
            socket,
            format,
            received: Vec::new(),
            last_id: 0,
            answers: 0,
            positions: Vec::new(),
            recovered: None,
            receiver: Receiver::new(channel.into()),
        })
    }

    /// Waits for the response to the handshake, and sends the connect command.
    fn connect(&mut self) -> Result<()> {
        let end = loop {
            let end = self.received.windows(4).position(|it| it == b"\r\n\r\n");
            if let Some(end) = end {
                break end + 4;
            }
            ensure!(self.read()?, "no response to a handshake");
        };
        let head = String::from_utf8_lossy(&self.received[..end]).into_owned();
        ensure!(head.starts_with("HTTP/1.1 101 "), "no WebSocket: {head}");
        self.received.drain(..end);
        self.send(&[Command::Connect])
    }

    /// Sends commands, and waits for the answers.
    pub fn command(&mut self, commands: &[Command<'_>]) -> Result<()> {
        self.send(commands)?;
        self.await_answers()
    }

    /// Publishes to the client's channel, and waits for the message.
    pub fn publish_and_receive(&mut self, channel: &str) -> Result<()> {
        let data = message(self.last_id as usize, channel, 0);
        self.send(&[Command::Publish(channel, &data)])?;
        let mut is_received = false;
        while !is_received || self.answers < self.last_id {
            ensure!(self.read()?, "no message");
            self.handle_replies(|_, received| {
                is_received |= received.starts_with(data.as_bytes())
            })?;
        }
        Ok(())
    }

    fn send(&mut self, commands: &[Command<'_>]) -> Result<()> {
        let mut out = Vec::new();
        for command in commands {
            self.last_id += u32::from(!matches!(command, Command::Pong));
            frames::write(self.format, self.last_id, command, &mut out);
        }
        self.socket.write_all(&out).context("a client's command")
    }

    /// Waits until all commands are answered.
    fn await_answers(&mut self) -> Result<()> {
        while self.answers < self.last_id {
            self.handle_replies(|_, _| {})?;
            if self.answers < self.last_id {
                ensure!(self.read()?, "no answer");
            }
        }
        Ok(())
    }

    /// Reads once. Returns false if there is nothing to read.
    fn read(&mut self) -> Result<bool> {
        let mut bytes = [0; 64 << 10];
        match self.socket.read(&mut bytes) {
            Ok(0) => bail!("the server closed a connection"),
            Ok(size) => self.received.extend_from_slice(&bytes[..size]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        Ok(true)
    }

    /// Handles the replies that have arrived, and passes each message to `on_message`.
    fn handle_replies(&mut self, mut on_message: impl FnMut(&mut Receiver, &[u8])) -> Result<()> {
        let (mut handled, mut has_ping) = (0, false);
        while let Some((payload, bytes)) = frames::read_frame(&self.received[handled..])? {
            handled += bytes;
            frames::read_replies(self.format, payload, |reply| {
                match reply {
                    Reply::Answer(answer) => {
                        self.answers += 1;
                        let Answer {
                            position,
                            recovered,
                        } = answer;
                        self.recovered = recovered.or(self.recovered);
                        if let Some((epoch, offset)) = position {
                            self.positions.push(Position {
                                channel: String::new(),
                                epoch,
                                offset,
                            });
                        }
                    }
                    Reply::Publication(data) => on_message(&mut self.receiver, data),
                    Reply::Ping => has_ping = true,
                    Reply::Other => {}
                }
                Ok(())
            })?;
        }
        self.received.drain(..handled);
        if has_ping {
            self.send(&[Command::Pong])?;
        }
        Ok(())
    }

    /// Whether the client has recovered exactly one message.
    pub fn has_recovered_one(&self) -> bool {
        self.recovered == Some(1)
    }
}

/// Opens clients with these channels, several at the same time.
pub fn open_all(
    server: SocketAddr,
    format: Format,
    channels: impl Iterator<Item = Vec<String>>,
) -> Result<Vec<Connection>> {
    let all: Vec<Vec<String>> = channels.collect();
    open_groups(server, format, &all, |connection, channels| {
        let commands: Vec<Command<'_>> = channels.iter().map(|it| Command::Subscribe(it)).collect();
        connection.send(&commands)?;
        connection.await_answers()?;
        for (position, channel) in connection.positions.iter_mut().zip(channels) {
            position.channel.clone_from(channel);
        }
        Ok(())
    })
}

/// Opens clients that subscribe from these positions on.
pub fn recover_all(server: SocketAddr, positions: &[Vec<Position>]) -> Result<Vec<Connection>> {
    open_groups(server, Format::Json, positions, |connection, positions| {
        let commands: Vec<Command<'_>> = positions.iter().map(Command::Recover).collect();
        connection.send(&commands)?;
        connection.await_answers()
    })
}

/// Opens a client for each item. `subscribe` sends its subscriptions and waits for the answers.
fn open_groups<T>(
    server: SocketAddr,
    format: Format,
    items: &[Vec<T>],
    mut subscribe: impl FnMut(&mut Connection, &[T]) -> Result<()>,
) -> Result<Vec<Connection>> {
    let mut all = Vec::with_capacity(items.len());
    for group in items.chunks(OPENED_TOGETHER) {
        let begin = |_: &Vec<T>| Connection::begin(server, format, "");
        let mut open: Vec<Connection> = group.iter().map(begin).collect::<Result<_>>()?;
        open.iter_mut().try_for_each(Connection::connect)?;
        for (connection, item) in open.iter_mut().zip(group) {
            connection.await_answers()?;
            subscribe(connection, item)?;
        }
        all.append(&mut open);
    }
    Ok(all)
}

/// The publisher and the subscribers.
pub struct Clients {
    publisher: Connection,
    subscribers: Vec<Connection>,
    epoll: Epoll,
    /// The number of the next message.
    next_number: usize,
}

impl Clients {
    /// Connects this many subscribers, and a publisher. Each subscriber has one channel.
    pub fn open(
        server: SocketAddr,
        format: Format,
        count: u32,
        channels: impl Fn(u32) -> Vec<String>,
    ) -> Result<Clients> {
        let epoll = Epoll::new(1024)?;
        let publisher = open_all(server, format, std::iter::once(Vec::new()))?.pop();
        let publisher = publisher.context("a publisher")?;
        let mut subscribers = open_all(server, format, (0..count).map(&channels))?;
        for (number, subscriber) in subscribers.iter_mut().enumerate() {
            let channel = channels(number as u32).pop();
            subscriber.receiver = Receiver::new(channel.context("a channel")?);
            subscriber.socket.set_nonblocking(true)?;
            epoll.add(subscriber.socket.as_raw_fd(), Interest::IN, number as u64)?;
        }
        epoll.add(publisher.socket.as_raw_fd(), Interest::IN, PUBLISHER_KEY)?;
        Ok(Clients {
            publisher,
            subscribers,
            epoll,
            next_number: 0,
        })
    }

    /// Publishes one message to the channel of each of `count` clients, and waits for the answers.
    pub fn publish_to_each(&mut self, count: u32) -> Result<()> {
        for number in 0..count {
            let channel = crate::rig::topic_name(false, number);
            let data = message(number as usize, &channel, 0);
            self.publisher.send(&[Command::Publish(&channel, &data)])?;
            if number % UNANSWERED_MAX == 0 {
                self.publisher.await_answers()?;
            }
        }
        self.publisher.await_answers()
    }

    fn handle_events(&mut self, window: &mut Window) -> Result<()> {
        for index in 0..self.epoll.wait(Duration::from_secs(1))? {
            let connection = match self.epoll.ready(index).key {
                PUBLISHER_KEY => &mut self.publisher,
                key => &mut self.subscribers[key as usize],
            };
            connection.read()?;
            connection.handle_replies(|receiver, data| window.record(receiver, parse(data)))?;
        }
        Ok(())
    }
}

impl DeliveryClients for Clients {
    fn publish(&mut self, load: &Load) -> Result<usize> {
        let first_number = self.next_number;
        let mut window = Window::new(first_number, load.messages, load.receivers);
        self.next_number += load.messages;
        let (mut published, mut progress) = (0, Instant::now());
        while window.completed < load.messages {
            let unanswered = self.publisher.last_id - self.publisher.answers;
            let mut room = UNANSWERED_MAX.saturating_sub(unanswered);
            let mut out = Vec::new();
            while room > 0
                && published < load.messages
                && published - window.completed < load.in_flight
            {
                let channel = load.topic_of(published);
                let data = message(first_number + published, &channel, load.size);
                let command = Command::Publish(&channel, &data);
                self.publisher.last_id += 1;
                let (format, id) = (self.publisher.format, self.publisher.last_id);
                frames::write(format, id, &command, &mut out);
                (published, room) = (published + 1, room - 1);
            }
            // Only a few small commands are unanswered, so the socket has room for them.
            self.publisher.socket.write_all(&out)?;
            let completed = window.completed;
            self.handle_events(&mut window)?;
            if window.completed > completed {
                progress = Instant::now();
            }
            ensure!(progress.elapsed() < TIMEOUT, "messages are missing");
        }
        Ok(window.faults)
    }
}

/// The data of a message: JSON with its number and its channel, of about `size` bytes.
fn message(number: usize, channel: &str, size: usize) -> String {
    let mut data = format!(r#"{{"n":{number},"t":"{channel}","x":""#);
    data.extend(std::iter::repeat_n(
        '.',
        size.saturating_sub(data.len() + 2),
    ));
    data + "\"}"
}

/// The number and the channel of a message.
fn parse(data: &[u8]) -> Option<(usize, &str)> {
    let text = std::str::from_utf8(data).ok()?;
    let (number, rest) = text.strip_prefix(r#"{"n":"#)?.split_once(',')?;
    let (channel, _) = rest.strip_prefix(r#""t":""#)?.split_once('"')?;
    Some((number.parse().ok()?, channel))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_names_its_number_and_its_channel() {
        let data = message(7, "t1", 64);
        assert_eq!(data.len(), 64);
        assert_eq!(parse(data.as_bytes()), Some((7, "t1")));
    }
}
