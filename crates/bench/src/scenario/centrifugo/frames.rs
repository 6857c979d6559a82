//! Encodes and decodes the part of Centrifugo's client protocol (`client.proto`) that the scenario needs, in JSON and protobuf, in WebSocket frames.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

/// The encoding of commands and replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Lines of JSON, in text frames.
    Json,
    /// Messages with a length prefix, in binary frames.
    Protobuf,
}

impl Format {
    /// The name in results.
    pub fn name(self) -> &'static str {
        match self {
            Format::Json => "json",
            Format::Protobuf => "protobuf",
        }
    }
}

/// The position of a subscription.
#[derive(Clone, Debug)]
pub struct Position {
    /// The channel.
    pub channel: String,
    /// The epoch, which identifies the channel's history.
    pub epoch: String,
    /// The offset of the last message.
    pub offset: u64,
}

/// A command of the client.
pub enum Command<'a> {
    /// Begins the connection.
    Connect,
    /// Subscribes to a channel.
    Subscribe(&'a str),
    /// Ends a subscription.
    Unsubscribe(&'a str),
    /// Subscribes, and asks for the messages after a position.
    Recover(&'a Position),
    /// Publishes JSON to a channel.
    Publish(&'a str, &'a str),
    /// The answer to a ping.
    Pong,
}

/// Writes a frame with one command.
pub fn write(format: Format, id: u32, command: &Command<'_>, out: &mut Vec<u8>) {
    let payload = match format {
        Format::Json => json_command(id, command).into_bytes(),
        Format::Protobuf => protobuf_command(id, command),
    };
    let opcode = if format == Format::Json { 1 } else { 2 };
    out.push(0x80 | opcode);
    match u8::try_from(payload.len()).ok().filter(|len| *len < 126) {
        Some(len) => out.push(0x80 | len),
        None => {
            out.push(0x80 | 126);
            let len = u16::try_from(payload.len()).expect("a small command");
            out.extend_from_slice(&len.to_be_bytes());
        }
    }
    // A mask of zeros leaves the payload as it is.
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&payload);
}

fn json_command(id: u32, command: &Command<'_>) -> String {
    match command {
        Command::Connect => format!(r#"{{"id":{id},"connect":{{}}}}"#),
        Command::Subscribe(channel) => {
            format!(r#"{{"id":{id},"subscribe":{{"channel":"{channel}"}}}}"#)
        }
        Command::Unsubscribe(channel) => {
            format!(r#"{{"id":{id},"unsubscribe":{{"channel":"{channel}"}}}}"#)
        }
        Command::Recover(position) => json!({
            "id": id,
            "subscribe": {
                "channel": position.channel, "recover": true,
                "epoch": position.epoch, "offset": position.offset,
            },
        })
        .to_string(),
        Command::Publish(channel, data) => {
            format!(r#"{{"id":{id},"publish":{{"channel":"{channel}","data":{data}}}}}"#)
        }
        Command::Pong => "{}".into(),
    }
}

fn protobuf_command(id: u32, command: &Command<'_>) -> Vec<u8> {
    let mut request = Vec::new();
    let number = match command {
        Command::Connect => 4,
        Command::Subscribe(channel) => {
            write_bytes(1, channel.as_bytes(), &mut request);
            5
        }
        Command::Unsubscribe(channel) => {
            write_bytes(1, channel.as_bytes(), &mut request);
            6
        }
        Command::Publish(channel, data) => {
            write_bytes(1, channel.as_bytes(), &mut request);
            write_bytes(2, data.as_bytes(), &mut request);
            7
        }
        Command::Recover(position) => {
            write_bytes(1, position.channel.as_bytes(), &mut request);
            request.extend_from_slice(&[3 << 3, 1]);
            write_bytes(6, position.epoch.as_bytes(), &mut request);
            request.push(7 << 3);
            write_varint(position.offset, &mut request);
            5
        }
        Command::Pong => return vec![0],
    };
    let mut message = vec![1 << 3];
    write_varint(id.into(), &mut message);
    write_bytes(number, &request, &mut message);
    let mut payload = Vec::new();
    write_varint(message.len() as u64, &mut payload);
    payload.extend_from_slice(&message);
    payload
}

pub fn write_bytes(field: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(field << 3 | 2);
    write_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

pub fn write_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A reply or push of the server.
pub enum Reply<'a> {
    /// The answer to a command.
    Answer(Answer),
    /// The data of a message.
    Publication(&'a [u8]),
    /// A ping, which the client must answer.
    Ping,
    /// Another push.
    Other,
}

/// The answer to a command.
pub struct Answer {
    /// The position of a new subscription. Only in JSON.
    pub position: Option<(String, u64)>,
    /// The number of recovered messages, if nothing is lost. Only in JSON.
    pub recovered: Option<usize>,
}

/// Finds the frame at the start of `received`. Returns its payload and its length; `None` if it is incomplete.
pub fn read_frame(received: &[u8]) -> Result<Option<(&[u8], usize)>> {
    let &[first, second, ..] = received else {
        return Ok(None);
    };
    let (len, head) = match second {
        126 => (received.get(2..4).map(number), 4),
        127 => (received.get(2..10).map(number), 10),
        len => (Some(usize::from(len)), 2),
    };
    let Some(payload) = len.and_then(|len| received.get(head..head + len)) else {
        return Ok(None);
    };
    ensure!(
        matches!(first, 0x81 | 0x82),
        "the server sent a frame {first:#x}: {}",
        String::from_utf8_lossy(payload)
    );
    Ok(Some((payload, head + payload.len())))
}

/// A number in big-endian order.
fn number(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .fold(0, |number, byte| number << 8 | usize::from(*byte))
}

/// Passes each reply of a frame to `on_reply`.
pub fn read_replies(
    format: Format,
    payload: &[u8],
    mut on_reply: impl FnMut(Reply<'_>) -> Result<()>,
) -> Result<()> {
    if format == Format::Json {
        for line in payload.split(|byte| *byte == b'\n') {
            if !line.is_empty() {
                on_reply(read_json(line)?)?;
            }
        }
        return Ok(());
    }
    let mut rest = payload;
    while !rest.is_empty() {
        let (message, after) = read_delimited(rest)?;
        on_reply(read_protobuf(message)?)?;
        rest = after;
    }
    Ok(())
}

/// The first message of these bytes, which has a length prefix, and the bytes after it.
pub fn read_delimited(bytes: &[u8]) -> Result<(&[u8], &[u8])> {
    let (len, after) = read_varint(bytes)?;
    after.split_at_checked(len as usize).context("a message")
}

/// The first bytes of every message that this scenario publishes.
const DATA: &[u8] = br#"{"n":"#;

fn read_json(line: &[u8]) -> Result<Reply<'_>> {
    if line == b"{}" {
        return Ok(Reply::Ping);
    }
    if line.starts_with(br#"{"push":"#) {
        let at = line.windows(DATA.len()).position(|part| part == DATA);
        return Ok(at.map_or(Reply::Other, |at| Reply::Publication(&line[at..])));
    }
    let reply: Value = serde_json::from_slice(line)?;
    ensure!(reply["error"].is_null(), "a command was refused: {reply}");
    let subscribe = &reply["subscribe"];
    let position = subscribe["epoch"].as_str().map(|epoch| {
        let offset = subscribe["offset"].as_u64().unwrap_or(0);
        (epoch.to_string(), offset)
    });
    let messages = subscribe["publications"].as_array().map_or(0, Vec::len);
    let is_recovered = subscribe["recovered"] == true;
    Ok(Reply::Answer(Answer {
        position,
        recovered: is_recovered.then_some(messages),
    }))
}

fn read_protobuf(message: &[u8]) -> Result<Reply<'_>> {
    if message.is_empty() {
        return Ok(Reply::Ping);
    }
    if let Some(push) = field(message, 4)? {
        let publication = field(push, 4)?;
        let data = publication.map(|it| field(it, 4)).transpose()?.flatten();
        return Ok(data.map_or(Reply::Other, Reply::Publication));
    }
    let error = field(message, 2)?;
    ensure!(error.is_none(), "a command was refused: {error:?}");
    Ok(Reply::Answer(Answer {
        position: None,
        recovered: None,
    }))
}

/// The first length-delimited field with this number.
fn field(mut message: &[u8], number: u64) -> Result<Option<&[u8]>> {
    while !message.is_empty() {
        let (field, value, after) = read_field(message)?;
        match value {
            FieldValue::Bytes(bytes) if field == number => return Ok(Some(bytes)),
            _ => message = after,
        }
    }
    Ok(None)
}

/// The value of a field of protobuf.
#[derive(Clone, Copy)]
pub enum FieldValue<'a> {
    /// A number.
    Number(u64),
    /// Bytes, text or a message.
    Bytes(&'a [u8]),
}

/// The number and the value of the first field, and the bytes behind it.
pub fn read_field(message: &[u8]) -> Result<(u64, FieldValue<'_>, &[u8])> {
    let (key, after) = read_varint(message)?;
    let (value, rest) = match key & 7 {
        0 => {
            let (value, rest) = read_varint(after)?;
            (FieldValue::Number(value), rest)
        }
        2 => {
            let (bytes, rest) = read_delimited(after)?;
            (FieldValue::Bytes(bytes), rest)
        }
        kind => bail!("a field of type {kind}"),
    };
    Ok((key >> 3, value, rest))
}

fn read_varint(bytes: &[u8]) -> Result<(u64, &[u8])> {
    let mut value = 0;
    for (index, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok((value, &bytes[index + 1..]));
        }
    }
    bail!("an incomplete number")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_a_publication_have_its_data() {
        let data = br#"{"n":7,"t":"t1"}"#;
        let json = [
            &br#"{"push":{"channel":"t1","pub":{"data":"#[..],
            data,
            b"}}}\n{}",
        ]
        .concat();
        let (mut publication, mut push, mut reply) = (Vec::new(), Vec::new(), Vec::new());
        write_bytes(4, data, &mut publication);
        write_bytes(2, b"t1", &mut push);
        write_bytes(4, &publication, &mut push);
        write_bytes(4, &push, &mut reply);
        let mut protobuf = vec![reply.len() as u8];
        protobuf.extend_from_slice(&reply);
        protobuf.push(0);
        for (format, payload) in [(Format::Json, json), (Format::Protobuf, protobuf)] {
            let (mut publications, mut pings) = (0, 0);
            let read = read_replies(format, &payload, |reply| {
                match reply {
                    Reply::Publication(bytes) => {
                        assert!(bytes.starts_with(data));
                        publications += 1;
                    }
                    Reply::Ping => pings += 1,
                    Reply::Answer(_) | Reply::Other => panic!("another reply"),
                }
                Ok(())
            });
            assert!(read.is_ok());
            assert_eq!((publications, pings), (1, 1));
        }
    }
}
