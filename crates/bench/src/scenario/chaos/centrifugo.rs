//! The connection of a subscriber that speaks Centrifugo's protocol: several subscriptions, which begin and end while the connection is open.
//!
//! It behaves as Centrifugo's libraries do: it keeps the position of the last message of each channel, and recovers from there, after a cut as
//! after an unsubscribe. It uses no socket. What violates the protocol is an error with a reason.

mod replies;

use crore_wire::websocket::frame::Opcode;

use self::replies::{Publication, Reply, Subscribed, read_replies};
use crate::client::subscription::{Gap, NextAction, ServerEvent};
use crate::client::{parse, request};
use crate::measure::payload::Random;
use crate::scenario::centrifugo::frames::{self, Command, Format, Position};

/// One in this many rounds changes a subscription.
const ROUNDS_OF_A_CHANGE: u32 = 10;
/// The code of a subscription that ends since messages are lost. Libraries subscribe again after this code and higher ones.
const ENDED_FOR_GAP: u32 = 2500;
/// Codes of a close that a failing network brings about: a frame or the connect command came too slowly, no answer to a ping, too many bytes
/// are held for a client that does not read, or for its commands.
const EXPECTED_CLOSES: [u16; 5] = [3000, 3008, 3012, 3013, 3502];

type Result<T = ()> = std::result::Result<T, String>;
type OnEvent<'a> = dyn FnMut(ServerEvent<'_>) -> Result + 'a;

/// What the client knows of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Ended,
    /// The subscribe command with this id is not answered.
    Begins(u32),
    Subscribed,
    /// The unsubscribe command with this id is not answered.
    Ends(u32),
}

struct Channel {
    name: String,
    is_wanted: bool,
    progress: Progress,
    /// Where the subscription recovers.
    position: Option<Position>,
}

impl Channel {
    /// Passes a message on.
    fn deliver(&mut self, publication: &Publication, on_event: &mut OnEvent<'_>) -> Result {
        let position = self.position.as_mut().ok_or("a message without an epoch")?;
        position.offset = publication.offset;
        on_event(ServerEvent::Message {
            // The form of the positions that subscriptions over HTTP get.
            position: &format!("1{}-{}", position.epoch, position.offset),
            topic: Some(&self.name),
            data: &publication.data,
        })
    }

    fn handle_subscribed(&mut self, subscribed: Subscribed, on_event: &mut OnEvent<'_>) -> Result {
        let name = &self.name;
        let recovers = self.position.is_some();
        if subscribed.epoch.is_empty() {
            return Err(format!("{name}: a subscription without a position"));
        }
        match (recovers, subscribed.is_recovered) {
            (false, false) => on_event(ServerEvent::Position(Some(name)))?,
            (true, false) => on_event(ServerEvent::Gap(Gap::Topic(Some(name.as_bytes()))))?,
            (true, true) => {}
            (false, true) => return Err(format!("{name}: recovered without a position")),
        }
        self.progress = Progress::Subscribed;
        self.position = Some(Position {
            channel: name.clone(),
            epoch: subscribed.epoch,
            offset: subscribed.offset,
        });
        for publication in &subscribed.publications {
            self.deliver(publication, on_event)?;
        }
        Ok(())
    }
}

/// The subscriptions of one client.
pub struct Subscriptions {
    format: Format,
    channels: Vec<Channel>,
    last_id: u32,
    buffer: Vec<u8>,
    is_upgraded: bool,
    /// The id of the connect command. `None` once it is answered.
    connect_id: Option<u32>,
    /// Whether the first subscriptions of the connection are complete, which was passed on as the server's answer.
    is_answered: bool,
    /// Whether one of these recovers.
    resumes: bool,
    /// Bytes to send.
    pub outgoing: Vec<u8>,
}

impl Subscriptions {
    /// Subscriptions to these channels, none of which has begun.
    pub fn new<'a>(format: Format, names: impl Iterator<Item = &'a str>) -> Subscriptions {
        let channel = |name: &str| Channel {
            name: name.into(),
            is_wanted: true,
            progress: Progress::Ended,
            position: None,
        };
        Subscriptions {
            format,
            channels: names.map(channel).collect(),
            last_id: 0,
            buffer: Vec::new(),
            is_upgraded: false,
            connect_id: None,
            is_answered: false,
            resumes: false,
            outgoing: Vec::new(),
        }
    }

    /// Prepares the request of a new connection.
    pub fn start_connection(&mut self) {
        self.buffer.clear();
        (self.is_upgraded, self.is_answered, self.connect_id) = (false, false, None);
        for channel in &mut self.channels {
            channel.progress = Progress::Ended;
        }
        let protocol = (self.format == Format::Protobuf).then_some("centrifuge-protobuf");
        self.outgoing = request::upgrade("localhost", "/connection/websocket", protocol);
    }

    /// Ends or begins a subscription in some of the calls. If the client must have all, begins those that it has not. Returns the number of commands.
    pub fn change(&mut self, must_have_all: bool, random: &mut Random) -> u64 {
        if !self.is_connected() {
            return 0;
        }
        if must_have_all {
            self.channels.iter_mut().for_each(|it| it.is_wanted = true);
        } else if random.below(ROUNDS_OF_A_CHANGE) == 0 {
            let index = random.below(self.channels.len() as u32) as usize;
            self.channels[index].is_wanted ^= true;
        }
        self.follow_wanted()
    }

    /// Sends the commands after which the client has the subscriptions that are wanted, and no others. Returns their number.
    fn follow_wanted(&mut self) -> u64 {
        let mut commands = 0;
        for index in 0..self.channels.len() {
            let channel = &self.channels[index];
            if channel.progress == Progress::Subscribed && !channel.is_wanted {
                let id = self.next_id();
                let command = Command::Unsubscribe(&self.channels[index].name);
                frames::write(self.format, id, &command, &mut self.outgoing);
                self.channels[index].progress = Progress::Ends(id);
                commands += 1;
            }
        }
        commands + self.begin_wanted()
    }

    /// Whether the connect command is answered.
    fn is_connected(&self) -> bool {
        self.is_upgraded && self.connect_id.is_none()
    }

    fn next_id(&mut self) -> u32 {
        self.last_id += 1;
        self.last_id
    }

    /// Begins the subscriptions that have ended but are wanted. Returns their number.
    fn begin_wanted(&mut self) -> u64 {
        let mut begun = 0;
        for index in 0..self.channels.len() {
            let channel = &self.channels[index];
            if channel.progress != Progress::Ended || !channel.is_wanted {
                continue;
            }
            let id = self.next_id();
            let channel = &mut self.channels[index];
            let command = match &channel.position {
                Some(position) => Command::Recover(position),
                None => Command::Subscribe(&channel.name),
            };
            frames::write(self.format, id, &command, &mut self.outgoing);
            channel.progress = Progress::Begins(id);
            begun += 1;
        }
        begun
    }

    /// Handles received bytes, and passes each event in them to `on_event`.
    pub fn handle_bytes(&mut self, bytes: &[u8], on_event: &mut OnEvent<'_>) -> Result<NextAction> {
        self.buffer.extend_from_slice(bytes);
        if !self.is_upgraded {
            let Some(response) = parse::response(&self.buffer)? else {
                return Ok(NextAction::KeepConnection);
            };
            let (status, accepted) = (response.head.status, response.head.accepted);
            let length = response.bytes;
            match status {
                101 if accepted => {}
                408 | 429 | 503 => {
                    on_event(ServerEvent::Unavailable)?;
                    return Ok(NextAction::Reconnect);
                }
                status => return Err(format!("the WebSocket of Centrifugo's protocol: {status}")),
            }
            self.buffer.drain(..length);
            self.is_upgraded = true;
            let id = self.next_id();
            self.connect_id = Some(id);
            frames::write(self.format, id, &Command::Connect, &mut self.outgoing);
        }
        self.handle_frames(on_event)
    }

    fn handle_frames(&mut self, on_event: &mut OnEvent<'_>) -> Result<NextAction> {
        let buffer = std::mem::take(&mut self.buffer);
        let mut handled_bytes = 0;
        while let Some(frame) = parse::frame(&buffer[handled_bytes..])? {
            handled_bytes += frame.bytes;
            match (frame.opcode, self.format) {
                (Opcode::Text, Format::Json) | (Opcode::Binary, Format::Protobuf) => {
                    let replies = read_replies(self.format, frame.payload)
                        .map_err(|error| format!("a frame of replies: {error}"))?;
                    for reply in replies {
                        self.handle_reply(reply, on_event)?;
                    }
                }
                (Opcode::Ping, _) => request::pong(frame.payload, &mut self.outgoing),
                (Opcode::Close, _) => {
                    handle_close(frame.payload, on_event)?;
                    return Ok(NextAction::Reconnect);
                }
                (other, _) => return Err(format!("a frame of the kind {other:?}")),
            }
        }
        self.buffer = buffer;
        self.buffer.drain(..handled_bytes);
        Ok(NextAction::KeepConnection)
    }

    fn handle_reply(&mut self, reply: Reply, on_event: &mut OnEvent<'_>) -> Result {
        match reply {
            Reply::Ping => {
                frames::write(self.format, 0, &Command::Pong, &mut self.outgoing);
            }
            Reply::Connected(id) => {
                if self.connect_id.take() != Some(id) {
                    return Err(format!("an answer to a connect {id}, which was not sent"));
                }
                self.resumes = self.channels.iter().any(|it| it.position.is_some());
                self.begin_wanted();
            }
            Reply::Subscribed(id, subscribed) => {
                self.channel_that(Progress::Begins(id))?
                    .handle_subscribed(subscribed, on_event)?;
            }
            Reply::Unsubscribed(id) => {
                self.channel_that(Progress::Ends(id))?.progress = Progress::Ended;
            }
            Reply::Error(id, error) if error.is_temporary => {
                let channel = self.channel_that(Progress::Begins(id));
                channel.map_err(|_| format!("refused: {error:?}"))?.progress = Progress::Ended;
                on_event(ServerEvent::Unavailable)?;
            }
            Reply::Error(_, error) => return Err(format!("refused: {error:?}")),
            Reply::Publication(name, publication) => {
                let channel = self.channel(&name)?;
                if !matches!(channel.progress, Progress::Subscribed | Progress::Ends(_)) {
                    let progress = channel.progress;
                    return Err(format!(
                        "a message of {name}, whose subscription {progress:?}"
                    ));
                }
                channel.deliver(&publication, on_event)?;
            }
            Reply::Ended(name, code) => {
                if code < ENDED_FOR_GAP {
                    return Err(format!("the subscription of {name} ended with {code}"));
                }
                // The answer to an unsubscribe that is under way still comes.
                let channel = self.channel(&name)?;
                if channel.progress == Progress::Subscribed {
                    channel.progress = Progress::Ended;
                }
            }
            Reply::Other => {}
        }
        let is_complete = |it: &Channel| !it.is_wanted || it.progress == Progress::Subscribed;
        if !self.is_answered && self.is_connected() && self.channels.iter().all(is_complete) {
            self.is_answered = true;
            let resumes = self.resumes;
            on_event(ServerEvent::Answer { resumes })?;
        }
        Ok(())
    }

    /// The channel whose command the server answers.
    fn channel_that(&mut self, progress: Progress) -> Result<&mut Channel> {
        let mut channels = self.channels.iter_mut();
        let channel = channels.find(|channel| channel.progress == progress);
        channel.ok_or_else(|| format!("an answer to {progress:?}, which was not sent"))
    }

    fn channel(&mut self, name: &str) -> Result<&mut Channel> {
        let channel = self.channels.iter_mut().find(|it| it.name == name);
        channel.ok_or_else(|| format!("a push of `{name}`, which was not asked for"))
    }
}

fn handle_close(payload: &[u8], on_event: &mut OnEvent<'_>) -> Result {
    let (code, reason) = payload
        .split_first_chunk()
        .ok_or("a close without a code")?;
    let code = u16::from_be_bytes(*code);
    if !EXPECTED_CLOSES.contains(&code) {
        let reason = String::from_utf8_lossy(reason);
        return Err(format!("closed {code} {reason}"));
    }
    on_event(ServerEvent::End(None))
}

#[cfg(test)]
mod tests;
